"""Where a message came from, and the stamp (`metadata.cmdop`) that says so on everything it causes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.actor import Actor
from ..wire.kernel import encode_json

if TYPE_CHECKING:
    from .clients import Client

STAMP_VERSION = 1

# By whom: inputs, replies, errors, states. Everything else is printed *during* an operation: threads and subprocesses
# print under whatever cell runs, so a kernel cannot say whose it is.
_BY = frozenset({"execute_input", "execute_result", "error", "status", "input_request", "shutdown_reply"})


def relation_of(message_type: str) -> str:
    return "by" if message_type in _BY or message_type.endswith("_reply") else "during"


@dataclass(slots=True)
class Origin:
    """The request behind messages of the kernel.

    Attributes:
        header: the client's own header, for messages that answer it in the kernel's place.
        reading: it concerns nobody else and is not recorded.
        hidden: the keeper's own; its messages are shown to nobody.
    """

    actor: Actor
    message_type: str
    header: bytes = b"{}"
    operation: str | None = None
    endpoint: Client | None = None
    identities: list[bytes] = field(default_factory=list)
    channel: str = "shell"
    reading: bool = False
    hidden: bool = False
    adopted_by: str | None = None
    via: str | None = None
    client_session: str = ""
    lane: str = ""


@dataclass(slots=True)
class Stamper:
    """Builds stamps; all but the sequence number of one origin's stamp is built once.

    Attributes:
        session: id of the session.
    """

    session: str
    incarnation: int = 0
    _cache: dict[tuple[int, str, int, int], tuple[Origin, bytes]] = field(default_factory=dict)

    def stamp(self, origin: Origin, relation: str, *, generation: int, seq: int) -> bytes:
        """The JSON object `{v, session, seq, incarnation, generation, operation, actor, relation, …}`."""
        key = (id(origin), relation, generation, self.incarnation)
        cached = self._cache.get(key)
        if cached is None or cached[0] is not origin:
            if len(self._cache) > 512:
                self._cache.clear()
            cached = (origin, self._prefix(origin, relation, generation))
            self._cache[key] = cached
        return cached[1] + b'"seq":%d}' % seq

    def _prefix(self, origin: Origin, relation: str, generation: int) -> bytes:
        actor = origin.actor
        stamp: dict[str, object] = {
            "v": STAMP_VERSION,
            "session": self.session,
            "incarnation": self.incarnation,
            "generation": generation,
            "operation": origin.operation,
            "actor": {"id": actor.id, "kind": actor.kind, "name": actor.display_name},
            "relation": relation,
        }
        if actor.on_behalf_of:
            stamp["on_behalf_of"] = actor.on_behalf_of
        if origin.adopted_by:
            stamp["adopted_by"] = origin.adopted_by
        if origin.via:
            stamp["via"] = origin.via
        return encode_json(stamp)[:-1] + b","

    def forget(self, origin: Origin) -> None:
        """After a change of `origin`: its stamps are built anew."""
        self._cache = {key: value for key, value in self._cache.items() if value[0] is not origin}
