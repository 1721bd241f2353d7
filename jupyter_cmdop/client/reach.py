"""From a name to the link of its keeper, or to the reason why there is none."""

from __future__ import annotations

from jupyter_cmdop.core.refusal import Refusal

from .errors import KeeperGone, LinkTimeout, Refused, UnknownSession
from .identity import Identity
from .registry import Found, Registry, facts


def find_live(name: str, identity: Identity, registry: Registry) -> Found:
    """Resolve `name` to a session whose keeper should answer.

    Raises:
        UnknownSession: there is none; for a past session the message says how it ended.
        Refused: the grant in `identity` is for another session.
    """
    found = registry.resolve(name)
    if not found.is_live:
        raise UnknownSession(
            name,
            reason=f"{found.name} is not there any more: {found.liveness.reason}",
            next=(f"jupyter cmdop log {found.name}", f"jupyter cmdop new {found.name}"),
        )
    if identity.session is not None and identity.session not in (found.id, found.name):
        raise Refused(
            Refusal(
                code="forbidden",
                message=f"the grant file is for another session ({identity.session}), not for {found.name}",
                next=("use the grant file of this session", f"jupyter cmdop invite {found.name}"),
            )
        )
    return found


def link_of(found: Found) -> str:
    """The path of its link.

    Raises:
        KeeperGone: its keeper is starting, or on another host.
    """
    pointer = found.pointer
    if pointer is None or pointer.link is None or found.liveness.state != "alive":
        raise KeeperGone(
            f"{found.name} does not answer: {found.liveness.reason or 'it has no link'}",
            next=("jupyter cmdop ls", "jupyter cmdop doctor"),
        )
    return pointer.link


def explain(found: Found, error: KeeperGone | LinkTimeout) -> KeeperGone | LinkTimeout | UnknownSession:
    """Say more than "nobody listens": the process may have ended, or stand still, since its pointer was read."""
    now = facts(found.pointer) if found.pointer is not None else found.liveness
    if now.state == "lost":
        return UnknownSession(
            found.name,
            reason=f"{found.name} is lost: {now.reason}",
            next=(f"jupyter cmdop log {found.name}", f"jupyter cmdop new {found.name}"),
        )
    pid = found.pointer.pid if found.pointer is not None else None
    return type(error)(
        f"{found.name} does not answer (process {pid} runs): {error}",
        next=("jupyter cmdop doctor", f"look into the keeper.log of {found.id}"),
    )
