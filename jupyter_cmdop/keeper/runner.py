"""The one mutator: events go to the core, what comes out is recorded and then done, in order."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from ..clocks import LastMoment
from ..core import effects as fx
from ..core import events as ev
from ..core.actor import KEEPER, Actor
from ..core.floor import FloorState
from ..core.grants import Attachment
from ..core.operations import Outcome
from ..core.refusal import Refusal
from ..core.session import Session
from ..journal.entry import Entry
from ..journal.errors import JournalError
from ..wire.kernel import Message, encode_json
from .clients import Client
from .config import KeeperConfig
from .loop import Loop
from .recorder import Recorder
from .stamps import Origin, Stamper

log = logging.getLogger(__name__)

KEPT_ORIGINS = 8192  # requests whose late output can still be attributed
BACKLOG_SECONDS = 0.5  # for what lies in the sockets of a process that goes on to reach it
_WHAT_STOOD_STILL = {"stopped": "this keeper was stopped", "suspended": "the machine was suspended"}
KEPT_ENDED = 1024  # operations whose facts are kept in memory after they ended; all are in the journal


class Hand(Protocol):
    """What is known of the event in hand beyond what decides: its content, and how to answer it.

    Attributes:
        facts: what the keeper adds to the entry of an admitted or forwarded input.
    """

    facts: dict[str, Any]

    def rejected(self, refusal: Refusal) -> None: ...
    def admitted(self, operation: LiveOperation) -> None: ...
    def duplicate(self, operation: str) -> None: ...
    def forward(self, generation: int) -> None: ...
    def send_answer(self, operation: LiveOperation, prompt: str) -> None: ...


@dataclass(slots=True)
class NoHand:
    """For events that carry nothing; remembers what came of them."""

    facts: dict[str, Any] = field(default_factory=dict)
    refusal: Refusal | None = None
    effects: list[fx.Effect] = field(default_factory=list)

    def rejected(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def admitted(self, operation: LiveOperation) -> None:
        raise AssertionError("only a submitted input can be admitted")

    def duplicate(self, operation: str) -> None:
        raise AssertionError("only a submitted input can be a duplicate")

    def forward(self, generation: int) -> None:
        raise AssertionError("only a submitted input can be forwarded")

    def send_answer(self, operation: LiveOperation, prompt: str) -> None:
        raise AssertionError("only an answer can be sent as one")


@dataclass(slots=True)
class LiveOperation:
    """What the keeper holds of an operation beyond the core's state of it.

    Attributes:
        message: the input as it came, until it was written to the backend.
        is_sent: whether it was.
        facts: execution count, error, as the kernel reported them.
        ended: told (outcome, reason) once it has one.
        first_seq, delivered_seq: of the entries that say that it was admitted, and that it was delivered.
        shown_prompt: id of the prompt that its author's client has been shown.
    """

    id: str
    origin: Origin
    preview: str
    message: Message | None
    is_sent: bool = False
    first_seq: int = 0
    delivered_seq: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    records_history: bool = False
    has_started: bool = False
    outcome: Outcome | None = None
    ended: list[Callable[[LiveOperation, fx.End], None]] = field(default_factory=list)
    prompts: dict[str, Message] = field(default_factory=dict)
    shown_prompt: str | None = None


class Backend(Protocol):
    """What the runner asks of what executes.

    `leave` says that a restart or a stop is decided; it follows as soon as it is recorded.
    """

    def deliver(self, operation: LiveOperation, lane: str, generation: int) -> None: ...
    def interrupt(self, operation: str) -> None: ...
    def set_fence(self, generation: int) -> None: ...
    def show_prompt(self, operation: LiveOperation, prompt: str, *, to_author: bool) -> None: ...
    def end_without_running(self, operation: LiveOperation, end: fx.End) -> None: ...
    def leave(self) -> None: ...
    def restart(self) -> None: ...
    def stop(self) -> None: ...


class Endpoints(Protocol):
    """What the runner asks of the ways in."""

    def open_grant(self, grant: str) -> None: ...
    def close_grant(self, grant: str, reason: str) -> None: ...
    def tell(self, effect: fx.Tell) -> None: ...
    def announce(self, effect: fx.Announce) -> None: ...
    def renamed(self, name: str) -> None: ...


class Runner:
    """Holds the session's state and its journal; everything that happens passes `submit`."""

    def __init__(self, config: KeeperConfig, loop: Loop, recorder: Recorder) -> None:
        self.config = config
        self.name = config.name
        self.loop = loop
        self.recorder = recorder
        self.clock = recorder.clock
        self.owner = Actor(config.owner.id, "human", config.owner.name)
        self.session = Session(owner=self.owner, policy=config.policy)
        self.stamper = Stamper(config.id)
        self.operations: OrderedDict[str, LiveOperation] = OrderedDict()
        self.origins: OrderedDict[str, Origin] = OrderedDict()
        self.backend: Backend | None = None
        self.endpoints: Endpoints | None = None
        self.attached_at: dict[str, str] = {}
        self.refused = 0
        self.touched_at = self.clock.monotonic()
        self.active = LastMoment()
        self._lapsed: tuple[str, float] | None = None
        loop.add_timer(self._next_timer)
        loop.add_timer(recorder.next_timer)
        self.keeper = Attachment("keeper", KEEPER, "owner", "link", persistent=False, client="keeper")
        self.submit(ev.Attach(self.keeper))

    # ------------------------------------------------------------------ in

    def submit(self, event: ev.Event, hand: Hand | None = None) -> Refusal | None:
        """Take one event.

        Returns:
            The refusal, when it was refused; `hand` has been told already.
        """
        holder = NoHand() if hand is None else hand
        if not isinstance(event, ev.Alive):
            self.touched_at = self.clock.monotonic()
        if isinstance(event, ev.Submit):
            self.active.note()
        refusal = self._refusal_of_journal(event) or self._refusal_of_lapsed(event)
        if refusal is not None:
            holder.rejected(refusal)
            return refusal
        if isinstance(event, ev.Submit) and event.request_id is not None:
            try:
                event = replace(event, prior=self._prior_of(event))
            except JournalError as error:
                # It may have been used: to let it in could run it a second time.
                refusal = self._unavailable(str(error))
                holder.rejected(refusal)
                return refusal
        if isinstance(event, ev.Submit) and self._has_lapsed(event.attachment):
            event = replace(event, composed_before=True)
        effects = self.session.handle(event, self.clock.session())
        if isinstance(holder, NoHand):
            holder.effects = effects
        return self._perform(effects, holder)

    def _refusal_of_journal(self, event: ev.Event) -> Refusal | None:
        """While nothing can be recorded nothing new is let in; reading, leaving and the backend's word are."""
        refused = (
            ev.Submit | ev.Take | ev.HandBack | ev.Release | ev.SetPolicy | ev.Invite | ev.Answer | ev.Note
        )
        is_rename = isinstance(event, ev.Lifecycle) and event.verb == "rename"
        if self.recorder.unavailable is None or not (is_rename or isinstance(event, refused)):
            return None
        return self._unavailable(self.recorder.unavailable)

    def _unavailable(self, reason: str) -> Refusal:
        if self.recorder.store.failure is not None:
            return Refusal(
                "journal_unavailable",
                "nothing is let in any more: nobody knows what the disk has kept since it reported an error "
                f"({reason})",
                next=("read", f"jupyter cmdop close {self.name} --force", f"jupyter cmdop new {self.name}"),
            )
        return Refusal(
            "journal_unavailable",
            f"nothing is let in while the journal cannot be used: {reason}",
            retry_after=1.0,
            next=("free some space", "read"),
        )

    # ------------------------------------------------------------------ having stood still

    def stood_still(self, kind: str, seconds: float) -> None:
        """This process did not run: judge first what ran out meanwhile, then what has come.

        What lies in the sockets by now was sent while nothing was answered. The driver whose lease ran out meanwhile
        must not act by it, though nobody else could claim the floor: he cannot know what has become of it.
        """
        floor = self.session.floor
        driver = floor.driver if floor.state is FloorState.HELD else None
        self.run_timers()
        lapsed = driver if driver is not None and floor.state is not FloorState.HELD else None
        if lapsed is not None:
            self._lapsed = (lapsed, self.clock.monotonic() + BACKLOG_SECONDS)
        data: dict[str, Any] = {"at_most_seconds": round(seconds, 1), "what": _WHAT_STOOD_STILL[kind]}
        if lapsed is not None:
            data["lapsed"] = lapsed
        self.note("stood_still", actor="keeper", data=data, durable=True)

    def _has_lapsed(self, attachment: str) -> bool:
        """Whose input may have been sent while this process stood still, and his lease ran out."""
        if self._lapsed is None:
            return False
        driver, until = self._lapsed
        if self.clock.monotonic() >= until:
            self._lapsed = None
            return False
        known = self.session.attachments.get(attachment)
        return known is not None and known.actor.id == driver

    def _refusal_of_lapsed(self, event: ev.Event) -> Refusal | None:
        """What only the driver may do, beside input, which the core refuses itself."""
        if not isinstance(event, ev.Answer | ev.HandBack | ev.Release):
            return None
        if not self._has_lapsed(event.attachment):
            return None
        refusal = self.session.refusal(
            "stale_generation",
            "this was sent while the session stood still, and the lease ran out meanwhile: look at it, then ask again",
            next_=("status", "ask again"),
        )
        actor = self.session.attachment_actor(event.attachment)
        data = {"code": refusal.code, "message": refusal.message, "what": type(event).__name__.lower()}
        self.refused += 1
        self.note("refused", actor=actor, attachment=event.attachment, data=data, basis="intended")
        return refusal

    def _prior_of(self, event: ev.Submit) -> ev.Prior | None:
        attachment = self.session.attachments.get(event.attachment)
        if attachment is None or event.request_id is None:
            return None
        return self.prior(attachment.actor.id, event.request_id)

    def prior(self, actor: str, request_id: str) -> ev.Prior | None:
        """What the journal knows of a request id.

        Raises:
            JournalError: it cannot be read now.
        """
        found = self.recorder.store.find_request(actor, request_id)
        return None if found is None or found[0] is None else ev.Prior(found[0], found[1])

    def _next_timer(self) -> float | None:
        due = self.session.next_timer()
        return None if due is None else due - self.clock.session() + self.clock.monotonic()

    def run_timers(self) -> None:
        due = self.session.next_timer()
        now = self.clock.session()
        if due is not None and due <= now:
            self._perform(self.session.handle_timer(now), NoHand())

    def commit(self) -> None:
        """End the turn: record, then send; what the sends bring about is a turn of its own."""
        while self.recorder.commit(self.session.floor.generation):
            pass

    # ------------------------------------------------------------------ out

    def note(
        self,
        entry_type: str,
        *,
        actor: str | None = None,
        operation: str | None = None,
        data: dict[str, Any] | None = None,
        durable: bool = False,
        generation: int | None = None,
        **fields: Any,
    ) -> int:
        """Add an entry, by default of the generation in force; see `Entry` for `fields`."""
        return self.recorder.note(
            Entry(
                type=entry_type,
                actor=actor,
                operation=operation,
                generation=self.session.floor.generation if generation is None else generation,
                incarnation=self.session.incarnation,
                body=encode_json(data or {}),
                time_ns=self.clock.wall_ns(),
                mono_ns=self.clock.monotonic_ns(),
                **fields,
            ),
            durable=durable,
        )

    def note_message(
        self,
        entry_type: str,
        origin: Origin,
        body: bytes,
        *,
        basis: Any = "observed",
        prepare: Callable[[], None] | None = None,
    ) -> int:
        """Add an entry whose body is a kernel message (a websocket v1 frame); `prepare` as in `Recorder.note`."""
        self.active.note()
        return self.recorder.note(
            Entry(
                type=entry_type,
                actor=origin.actor.id,
                operation=origin.operation,
                generation=self.session.floor.generation,
                incarnation=self.session.incarnation,
                basis=basis,
                body=body,
                form="v1",
                time_ns=self.clock.wall_ns(),
                mono_ns=self.clock.monotonic_ns(),
            ),
            prepare=prepare,
        )

    def _record(self, record: fx.Record, hand: Hand) -> None:
        data = dict(record.data)
        if record.type in ("admitted", "input", "input_answered"):
            data.update(hand.facts)
        if record.type == "attached" and record.attachment is not None:
            self.attached_at[record.attachment] = _label(self.clock.wall_ns())
        elif record.type == "detached":
            self.attached_at.pop(record.attachment or "", None)
        live = self.operations.get(record.operation or "")
        if live is not None and record.type == "ended":
            data.update({key: value for key, value in live.facts.items() if key != "status"})
        if live is not None and record.type == "adopted" and record.actor is not None:
            live.origin.adopted_by = record.actor.id
            self.stamper.forget(live.origin)
        self.note(
            record.type,
            actor=record.actor.id if record.actor else None,
            on_behalf_of=record.actor.on_behalf_of if record.actor else None,
            operation=record.operation,
            attachment=record.attachment,
            grant=record.grant,
            request_id=record.request_id,
            basis=record.basis,
            via=record.via,
            data=data,
            durable=record.durable,
            generation=record.generation,
        )

    def _perform(self, effects: list[fx.Effect], hand: Hand) -> Refusal | None:
        backend, endpoints, refusal = self.backend, self.endpoints, None
        send = self.recorder.send
        # What ends something waits for no disk: the cell that fills it must be stoppable, the session, a grant.
        at_once = self.recorder.at_once
        for effect in effects:
            match effect:
                case fx.Record():
                    self._record(effect, hand)
                case fx.Reject():
                    refusal = effect.refusal
                    self.refused += 1
                    hand.rejected(refusal)
                case fx.Admitted():
                    self._admitted(effect.operation, hand)
                case fx.Duplicate():
                    hand.duplicate(effect.operation)
                case fx.Forward():
                    hand.forward(effect.generation)
                case fx.Deliver() if backend is not None:
                    live = self.operations[effect.operation]
                    live.delivered_seq = self.recorder.last_seq
                    send(backend.deliver, live, effect.lane, effect.generation)
                case fx.Fence() if backend is not None:
                    send(backend.set_fence, effect.generation)
                case fx.InterruptBackend() if backend is not None:
                    at_once(backend.interrupt, effect.operation)
                case fx.ShowPrompt() if backend is not None:
                    live = self.operations[effect.operation]
                    self._show_prompt(backend, live, effect)
                case fx.SendAnswer():
                    hand.send_answer(self.operations[effect.operation], effect.prompt)
                case fx.End():
                    send(self._ended, effect)
                case fx.RestartBackend() if backend is not None:
                    backend.leave()
                    at_once(backend.restart)
                case fx.StopBackend() if backend is not None:
                    backend.leave()
                    at_once(backend.stop)
                case fx.OpenGrant() if endpoints is not None:
                    endpoints.open_grant(effect.grant)
                case fx.CloseGrant() if endpoints is not None:
                    at_once(endpoints.close_grant, effect.grant, effect.reason)
                case fx.Tell() if endpoints is not None:
                    send(endpoints.tell, effect)
                case fx.Announce() if endpoints is not None:
                    send(endpoints.announce, effect)
                case fx.Renamed() if endpoints is not None:
                    send(endpoints.renamed, effect.name)
                case _:
                    log.debug("nobody takes %s yet", effect)
        return refusal

    def _show_prompt(self, backend: Backend, live: LiveOperation, effect: fx.ShowPrompt) -> None:
        def show() -> None:
            backend.show_prompt(live, effect.prompt, to_author=effect.to_author)

        self.recorder.send(show)

    def _admitted(self, operation: str, hand: Hand) -> None:
        core = self.session.operations[operation]
        live = LiveOperation(
            operation,
            Origin(core.actor, core.message_type, operation=operation, via=core.via),
            preview="",
            message=None,
            first_seq=self.recorder.last_seq,
        )
        self.operations[operation] = live
        hand.admitted(live)
        self._forget_ended()

    def _ended(self, end: fx.End) -> None:
        live = self.operations.get(end.operation)
        if live is None:
            return
        live.outcome = end.outcome
        live.message = None
        if self.backend is not None and (
            not end.delivered or end.outcome == "unknown" or "status" not in live.facts
        ):
            self.backend.end_without_running(live, end)
        waiting, live.ended = live.ended, []
        for call in waiting:
            call(live, end)

    def _forget_ended(self) -> None:
        while len(self.operations) > KEPT_ENDED:
            oldest = next(iter(self.operations))
            if self.operations[oldest].outcome is None:
                self.operations.move_to_end(oldest)
                if all(live.outcome is None for live in self.operations.values()):
                    return
                continue
            del self.operations[oldest]

    def forget_client(self, client: Client) -> None:
        """It is gone for good: its requests are remembered longer than itself, for what they still bring about."""
        for origin in (*self.origins.values(), *(live.origin for live in self.operations.values())):
            if origin.endpoint is client:
                origin.endpoint = None

    def stamp_now(self, origin: Origin) -> bytes:
        """The stamp of what is said by the keeper, or shown again: what is recorded by now comes before it."""
        return self.stamper.stamp(
            origin, "by", generation=self.session.floor.generation, seq=self.recorder.committed_seq
        )

    def remember_origin(self, msg_id: str, origin: Origin) -> None:
        """From now on messages whose parent is `msg_id` are known to come from `origin`."""
        self.origins[msg_id] = origin
        if len(self.origins) <= KEPT_ORIGINS:
            return
        oldest, known = self.origins.popitem(last=False)
        live = None if known.operation is None else self.operations.get(known.operation)
        if live is not None and live.outcome is None:
            self.origins[oldest] = known


def _label(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="seconds")
