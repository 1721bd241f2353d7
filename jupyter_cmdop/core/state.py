"""What a session knows: its state as data, and the questions that the rules ask of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .actor import Actor
from .floor import Floor, FloorState
from .grants import Attachment, Grant, Right, attachment_of_grant
from .operations import MAIN_LANE, Lane, Operation
from .policy import POLICIES, PolicyName
from .refusal import Refusal

REMEMBERED_OPERATIONS = 4096  # ended ones kept for duplicates; older ones are in the journal
REMEMBERED_CONNECTIONS = 64  # client sessions an attachment, for telling those that lost the floor
REMEMBERED_AWAY = 256  # attachments whose clients may come back

Connection = tuple[str, str]
"""(attachment, client's header session)."""


@dataclass(frozen=True, slots=True)
class Loss:
    """That a connection lost the floor, of which it has not been told yet.

    Attributes:
        by: who drove next, or None when nobody did.
        generation: the first one that was not his.
    """

    by: str | None
    reason: str
    generation: int


class State:
    """The data of one session; `Session` adds what may happen to it.

    Attributes:
        backend: starting, ready, mute (it lives, and nothing of it can be followed), lost or closed.
        prompts: operation -> {prompt, text, password, since}.
        lost: connections to be told of a loss at their next explicit input.
        connections: attachment -> client sessions that have been let in, the latest last.
        away: attachment that may come back -> its actor, who left last at the end.
        alive_until: actor -> second until which his persistent attachments count as alive.
    """

    def __init__(self, *, owner: Actor, policy: PolicyName = "open") -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
        self.owner = owner
        self.policy: PolicyName = policy
        self.floor = Floor()
        self.incarnation = 0
        self.backend = "starting"
        self.lanes: dict[str, Lane] = {MAIN_LANE: Lane()}
        self.operations: OrderedDict[str, Operation] = OrderedDict()
        self.attachments: dict[str, Attachment] = {}
        self.grants: dict[str, Grant] = {}
        self.prompts: dict[str, dict[str, Any]] = {}
        self.lost: dict[Connection, Loss] = {}
        self.connections: dict[str, list[str]] = {}
        self.away: dict[str, str] = {}
        self.alive_until: dict[str, float] = {}
        self.counter = 0
        self._by_message: dict[tuple[str, str, str], dict[str, str]] = {}  # message -> digest -> operation
        self._by_request: dict[tuple[str, str], str] = {}

    # ------------------------------------------------------------------ operations

    def running(self) -> list[Operation]:
        """What the backend has, the main lane's first."""
        lanes = sorted(self.lanes.items(), key=lambda item: item[0] != MAIN_LANE)
        return [self.operations[lane.running] for _, lane in lanes if lane.running is not None]

    def queued(self) -> list[Operation]:
        return [self.operations[name] for lane in self.lanes.values() for name in lane.queue]

    def active(self) -> Iterator[Operation]:
        """What runs or waits, lane by lane."""
        for lane in self.lanes.values():
            if lane.running is not None:
                yield self.operations[lane.running]
            yield from (self.operations[name] for name in lane.queue)

    def is_busy(self, actor: str) -> bool:
        """Something that he wrote or adopted runs or waits."""
        return any(actor in (op.holder, op.actor.id) for op in self.active())

    def remember(self, operation: Operation) -> None:
        """From here on `operation` answers what repeats it."""
        self.operations[operation.id] = operation
        message = (*operation.connection, operation.msg_id)
        self._by_message.setdefault(message, {})[operation.digest] = operation.id
        if operation.request_id is not None:
            self._by_request[(operation.actor.id, operation.request_id)] = operation.id

    def of_message(self, connection: Connection, msg_id: str) -> dict[str, Operation]:
        """What was admitted under a message id, by digest."""
        found = self._by_message.get((*connection, msg_id), {})
        return {digest: self.operations[name] for digest, name in found.items()}

    def of_request(self, actor: str, request_id: str) -> Operation | None:
        name = self._by_request.get((actor, request_id))
        return None if name is None else self.operations[name]

    def forget_old(self) -> None:
        """Keep memory bounded: what ended long ago is in the journal."""
        excess = len(self.operations) - REMEMBERED_OPERATIONS
        oldest: list[Operation] = []
        for operation in self.operations.values():  # the oldest have nearly always ended: this stops at once
            if len(oldest) >= excess:
                break
            if not operation.is_active:
                oldest.append(operation)
        for operation in oldest:
            del self.operations[operation.id]
            message = (*operation.connection, operation.msg_id)
            self._by_message[message].pop(operation.digest)
            if not self._by_message[message]:
                del self._by_message[message]
            if operation.request_id is not None:
                self._by_request.pop((operation.actor.id, operation.request_id), None)

    # ------------------------------------------------------------------ the floor

    def is_barred(self, actor: str, *, explicit: bool) -> bool:
        """The floor is somebody else's, and this input may not claim it: a stale floor yields to explicit input."""
        yields = explicit and self.floor.state is FloorState.STALE
        return self.floor.is_held_against(actor) and not yields

    def lease_until(self) -> float | None:
        """The second at which time alone changes the floor; None while it does not."""
        floor = self.floor
        if floor.state is FloorState.STALE:
            return floor.stale_until
        if floor.driver is None or self.is_busy(floor.driver):
            return None
        return self._signs_until(floor.driver)

    def has_lapsed(self, now: float) -> bool:
        """Whether time alone changes the floor now. This is asked for each event, so what is cheap is asked first."""
        floor = self.floor
        if floor.state is FloorState.STALE:
            return floor.stale_until <= now
        return (
            floor.driver is not None
            and self._signs_until(floor.driver) <= now
            and not self.is_busy(floor.driver)
        )

    def _signs_until(self, driver: str) -> float:
        """Until when the driver's last act, or his last sign of life, lasts."""
        return max(self.floor.act_until, self.alive_until.get(driver, float("-inf")))

    def refusal(
        self, code: str, message: str, *, next_: tuple[str, ...] = (), since: float | None = None
    ) -> Refusal:
        """A refusal with the facts of the floor."""
        floor = self.floor
        if since is None and floor.driver is not None:
            since = floor.since
        return Refusal(
            code, message, driver=floor.driver, since=since, generation=floor.generation, next=next_
        )

    # ------------------------------------------------------------------ actors and their connections

    def _holders(self) -> list[Attachment | Grant]:
        return [*self.attachments.values(), *self.grants.values()]

    def may(self, actor: str, right: Right) -> bool:
        """By any of his attachments and grants."""
        return actor == self.owner.id or any(
            holder.actor.id == actor and right in holder.rights for holder in self._holders()
        )

    def actor_of(self, actor: str) -> Actor | None:
        """The actor of this id, if he is, may come or has been here."""
        if actor == self.owner.id:
            return self.owner
        for holder in self._holders():
            if holder.actor.id == actor:
                return holder.actor
        return next((op.actor for op in reversed(self.operations.values()) if op.actor.id == actor), None)

    def attachment_actor(self, attachment: str) -> str | None:
        """Whose an attachment is, or was if it can come back: that of a grant keeps its id."""
        known = self.attachments.get(attachment)
        if known is not None:
            return known.actor.id
        if attachment in self.away:
            return self.away[attachment]
        return next(
            (g.actor.id for g in self.grants.values() if attachment_of_grant(g.id) == attachment), None
        )

    def remember_away(self, attachment: Attachment) -> None:
        """Its client may come back under the same id, and is then told what it has lost."""
        self.away[attachment.id] = attachment.actor.id
        for oldest in list(self.away)[:-REMEMBERED_AWAY]:
            del self.away[oldest]
            self.forget_connections(oldest)

    def remember_connection(self, connection: Connection) -> None:
        attachment, session = connection
        sessions = self.connections.setdefault(attachment, [])
        if session in sessions:
            sessions.remove(session)
        sessions.append(session)
        for forgotten in sessions[:-REMEMBERED_CONNECTIONS]:
            self.lost.pop((attachment, forgotten), None)
        del sessions[:-REMEMBERED_CONNECTIONS]

    def forget_connections(self, attachment: str) -> None:
        """It cannot come back, so that it has no later input that could be stale."""
        for session in self.connections.pop(attachment, ()):
            self.lost.pop((attachment, session), None)

    def note_loss(self, loser: str, by: str | None, reason: str) -> None:
        """All connections of `loser` are to be told."""
        loss = Loss(by, reason, self.floor.generation)
        for attachment, sessions in self.connections.items():
            if self.attachment_actor(attachment) == loser:
                self.lost.update(((attachment, session), loss) for session in sessions)

    def forget_loss(self, actor: str) -> None:
        """He knows: he took the floor, or was given it."""
        for connection in [c for c in self.lost if self.attachment_actor(c[0]) == actor]:
            del self.lost[connection]
