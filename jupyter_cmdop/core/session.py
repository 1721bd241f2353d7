"""The one place where a session's state changes: `Session.handle(event, now) -> list[Effect]`.

Every endpoint submits here and none decides. Effects come in the order in which they must be carried out: the record
before the send it justifies. Remote input never raises; it yields `Reject`. What raises is a bug of the caller.

The kind of an actor is never read (a test swaps all kinds in recorded runs and compares).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from . import effects as fx
from . import events as ev
from .actor import KEEPER, Actor
from .effects import Effect
from .floor import (
    ACT_LEASE_SECONDS,
    MAX_LEASE_SECONDS,
    SIGN_OF_LIFE_SECONDS,
    Floor,
    FloorEvent,
    FloorState,
)
from .grants import Attachment, Grant, Right
from .operations import MAIN_LANE, Lane, Operation, Outcome, Status, Step, next_in_turn
from .policy import POLICIES, InputClass, PolicyName
from .refusal import Refusal

MAX_QUEUED_OPERATIONS = 1024  # an actor; JupyterLab's "Run all" sends every cell at once
MAX_QUEUED_BYTES = 64 * 1024 * 1024  # an actor
REMEMBERED_OPERATIONS = 4096  # ended ones kept for duplicates; older ones are in the journal
REMEMBERED_CONNECTIONS = 64  # client sessions an attachment, for telling those that lost the floor
MAX_CONNECTIONS = 256  # attachments whose client sessions are remembered before the ended ones are forgotten

Connection = tuple[str, str]
"""(attachment, client's header session)."""


class Session:
    """The arbitration state of one session.

    Args:
        owner: the actor to whom the session belongs.
        policy: how the floor moves at first.
    """

    def __init__(self, *, owner: Actor, policy: PolicyName = "open") -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
        self.owner = owner
        self.policy: PolicyName = policy
        self.floor = Floor()
        self.incarnation = 0
        self.backend = "starting"  # starting, ready, lost, closed
        self.lanes: dict[str, Lane] = {MAIN_LANE: Lane()}
        self.operations: OrderedDict[str, Operation] = OrderedDict()
        self.attachments: dict[str, Attachment] = {}
        self.grants: dict[str, Grant] = {}
        self.prompts: dict[str, dict[str, Any]] = {}  # operation -> {prompt, text, password, since}
        self.lost: dict[Connection, dict[str, Any]] = {}  # told at their next explicit input
        self.connections: dict[str, list[str]] = {}  # attachment -> client sessions seen
        self.alive_until: dict[str, float] = {}  # actor -> while his persistent attachments count as alive
        self.counter = 0
        self._by_message: dict[tuple[str, str, str], str] = {}
        self._by_request: dict[tuple[str, str], str] = {}

    # ------------------------------------------------------------------ entry points

    def handle(self, event: ev.Event, now: float) -> list[Effect]:
        """Take one event.

        Args:
            event: what happened.
            now: session-clock seconds, monotonic.

        Returns:
            What to do, in order. A refused event yields its refusal's record and one `Reject`, and changes nothing
            but what the refusal itself says (a stale connection has been told).
        """
        out: list[Effect] = []
        self._expire(now, out)
        _HANDLERS[type(event)](self, event, now, out)
        return out

    def next_timer(self) -> float | None:
        """The session-clock second at which `handle_timer` is due, or None."""
        due = [grant.expires for grant in self.grants.values() if grant.expires is not None]
        if self.floor.state is FloorState.STALE:
            due.append(self.floor.stale_until)
        elif self.floor.state is FloorState.HELD and not self._is_busy(self.floor.driver):
            due.append(self._held_until())
        return min(due, default=None)

    def handle_timer(self, now: float) -> list[Effect]:
        """Do what the passing of time demands."""
        out: list[Effect] = []
        self._expire(now, out)
        return out

    # ------------------------------------------------------------------ presence

    def _attach(self, event: ev.Attach, now: float, out: list[Effect]) -> None:
        attachment = event.attachment
        if attachment.id in self.attachments:
            raise AssertionError(f"attachment {attachment.id} is attached already")
        self.attachments[attachment.id] = attachment
        if attachment.persistent:
            out.append(
                fx.Record(
                    "attached",
                    attachment.actor,
                    attachment=attachment.id,
                    grant=attachment.grant,
                    via=attachment.via,
                    data={
                        "role": attachment.role,
                        "transport": attachment.transport,
                        "client": attachment.client,
                        "kind": attachment.actor.kind,
                    },
                )
            )
            self._live(attachment.actor.id, now, out)
            out.append(fx.Announce("presence", {"actor": attachment.actor.id, "attached": True}))

    def _detach(self, event: ev.Detach, now: float, out: list[Effect]) -> None:
        attachment = self.attachments.pop(event.attachment, None)
        if attachment is None or not attachment.persistent:
            return
        out.append(
            fx.Record(
                "detached",
                attachment.actor,
                attachment=attachment.id,
                grant=attachment.grant,
                data={"reason": event.reason},
            )
        )
        actor = attachment.actor.id
        if not any(a.persistent and a.actor.id == actor for a in self.attachments.values()):
            self.alive_until.pop(actor, None)
        out.append(fx.Announce("presence", {"actor": actor, "attached": False}))
        self._expire(now, out)

    def _alive(self, event: ev.Alive, now: float, out: list[Effect]) -> None:
        attachment = self.attachments.get(event.attachment)
        if attachment is not None and attachment.persistent:
            self._live(attachment.actor.id, now, out)

    def _live(self, actor: str, now: float, out: list[Effect]) -> None:
        self.alive_until[actor] = now + SIGN_OF_LIFE_SECONDS
        if self.floor.state is FloorState.STALE and self.floor.driver == actor:
            self._move(FloorEvent.RESUME, now, out, by=self._actor_of(actor))

    # ------------------------------------------------------------------ input

    def _submit(self, event: ev.Submit, now: float, out: list[Effect]) -> None:
        attachment = self.attachments.get(event.attachment)
        if attachment is None:
            return self._reject(out, None, event, "revoked", "this connection has ended", next_=("attach again",))
        connection = (attachment.id, event.client_session)
        earlier = self._earlier(attachment, event)
        if isinstance(earlier, Refusal):
            return self._refuse(out, attachment, event, earlier)
        if earlier is not None:
            out.append(
                fx.Record(
                    "duplicate",
                    attachment.actor,
                    earlier,
                    attachment.id,
                    attachment.grant,
                    event.request_id,
                    basis="intended",
                )
            )
            out.append(fx.Duplicate(earlier))
            return None
        refusal = self._may_submit(attachment, event, connection, now)
        if refusal is not None:
            return self._refuse(out, attachment, event, refusal)
        if event.input_class in (InputClass.EXPLICIT, InputClass.IMPLICIT):
            self._remember_connection(connection)
            self._settle_floor(attachment, event, now, out)
        if not event.executes:
            if event.input_class is InputClass.IMPLICIT:
                out.append(
                    fx.Record(
                        "input",
                        attachment.actor,
                        None,
                        attachment.id,
                        attachment.grant,
                        basis="intended",
                        via=attachment.via,
                        data={"message": event.message_type, "msg_id": event.msg_id},
                    )
                )
            out.append(fx.Forward(self.floor.generation))
            return None
        operation = self._admit(attachment, event, now, out)
        self._pump(operation.lane, now, out)
        return None

    def _earlier(self, attachment: Attachment, event: ev.Submit) -> str | Refusal | None:
        """The operation that this input repeats, if it repeats one."""
        if not event.executes:
            return None
        if event.request_id is not None:
            prior = event.prior
            known = self._by_request.get((attachment.actor.id, event.request_id))
            if known is not None:
                prior = ev.Prior(known, self.operations[known].digest)
            if prior is not None:
                if prior.digest == event.digest:
                    return prior.operation
                return Refusal(
                    "request_id_conflict",
                    f"request id {event.request_id!r} was used for operation {prior.operation}, whose content differs",
                    next=("use another request id", f"wait {prior.operation}"),
                )
        known = self._by_message.get((attachment.id, event.client_session, event.msg_id))
        if known is not None:
            operation = self.operations[known]
            if operation.digest == event.digest:
                return known
            if operation.is_active:
                return Refusal(
                    "request_id_conflict",
                    f"message id {event.msg_id!r} belongs to operation {known}, which has not ended",
                    next=("use a new message id",),
                )
        return None

    def _may_submit(
        self, attachment: Attachment, event: ev.Submit, connection: Connection, now: float
    ) -> Refusal | None:
        """The admission rules, in order: rights, backend, policy, staleness, floor, room."""
        needed: Right = "observe" if event.input_class is InputClass.READING else "input"
        if needed not in attachment.rights:
            return Refusal(
                "read_only",
                f"{attachment.actor.id} observes this session and may not input",
                next=("ask for an invitation as peer",),
            )
        if self.backend in ("lost", "closed"):
            return Refusal("backend_lost", "the backend of this session has ended", next=("restart", "close"))
        if needed == "observe" or event.input_class is InputClass.PEER_READING:
            return None
        if self.policy == "readonly":
            return Refusal(
                "read_only",
                "the policy of this session is readonly: nobody may input",
                generation=self.floor.generation,
                next=("policy open", "policy turns"),
            )
        stale = self._stale(attachment, event, connection)
        if stale is not None:
            return stale
        if self.floor.is_held_against(attachment.actor.id) and not (
            self.floor.state is FloorState.STALE and event.input_class is InputClass.EXPLICIT
        ):
            return Refusal(
                "not_driver",
                f"{self.floor.driver} drives this session",
                driver=self.floor.driver,
                since=self.floor.since,
                generation=self.floor.generation,
                next=("take", "wait"),
            )
        return self._room(attachment, event) if event.executes else None

    def _stale(self, attachment: Attachment, event: ev.Submit, connection: Connection) -> Refusal | None:
        floor = self.floor
        if event.input_class is not InputClass.EXPLICIT:
            return None
        loss = self.lost.pop(connection, None)
        if loss is not None:
            by = loss["by"]
            return Refusal(
                "stale_generation",
                f"{by or 'somebody else'} took over at generation {loss['generation']}"
                + (f" ({loss['reason']})" if loss["reason"] else "")
                + ": run it again to drive",
                driver=floor.driver,
                since=floor.since,
                generation=floor.generation,
                next=("run it again",),
            )
        compared = floor.driver is not None or self.policy == "turns"
        if event.generation is not None and compared and event.generation != floor.generation:
            return Refusal(
                "stale_generation",
                f"this was made under generation {event.generation}; generation {floor.generation} is in force",
                driver=floor.driver,
                since=floor.since,
                generation=floor.generation,
                next=("status", "run it again with the generation in force"),
            )
        if event.composed_before:
            return Refusal(
                "stale_generation",
                "this was made while its connection was away: look at the session, then run it again",
                driver=floor.driver,
                since=floor.since,
                generation=floor.generation,
                next=("run it again",),
            )
        return None

    def _room(self, attachment: Attachment, event: ev.Submit) -> Refusal | None:
        actor = attachment.actor.id
        lane = self.lanes.get(event.lane)
        if event.if_busy == "refuse" and lane is not None and (lane.running or lane.queue):
            running = self.operations[lane.running or lane.queue[0]]
            return Refusal(
                "busy",
                f"operation {running.id} of {running.actor.id} is {running.state}",
                driver=self.floor.driver,
                since=running.since,
                generation=self.floor.generation,
                next=("wait", "interrupt", "run it without if_busy=refuse"),
            )
        waiting = [op for op in self._queued() if op.actor.id == actor]
        if len(waiting) >= MAX_QUEUED_OPERATIONS or sum(op.size for op in waiting) + event.size > MAX_QUEUED_BYTES:
            return Refusal(
                "queue_full",
                f"{actor} has {len(waiting)} operations waiting; the limits are {MAX_QUEUED_OPERATIONS} "
                f"operations and {MAX_QUEUED_BYTES // 2**20} MiB",
                next=("wait", "interrupt"),
            )
        return None

    def _settle_floor(self, attachment: Attachment, event: ev.Submit, now: float, out: list[Effect]) -> None:
        """Claim, resume or renew, as an input that has passed the rules does."""
        actor = attachment.actor
        explicit = event.input_class is InputClass.EXPLICIT
        if self.floor.state is FloorState.STALE:
            if self.floor.driver == actor.id:
                self._move(FloorEvent.RESUME, now, out, by=actor)
            elif self.policy == "turns":
                self._move(FloorEvent.CLAIM, now, out, by=actor, to=actor.id, grant=attachment.grant)
            else:
                self._move(FloorEvent.VACATE, now, out, by=KEEPER, reason="lapsed")
        elif self.floor.state is FloorState.FREE and explicit and self.policy == "turns":
            self._move(FloorEvent.CLAIM, now, out, by=actor, to=actor.id, grant=attachment.grant)
        if self.floor.driver == actor.id:
            self.floor.renew_act(now, ACT_LEASE_SECONDS if event.act else SIGN_OF_LIFE_SECONDS)

    def _admit(self, attachment: Attachment, event: ev.Submit, now: float, out: list[Effect]) -> Operation:
        self.counter += 1
        operation = Operation(
            id=f"o{self.counter}",
            actor=attachment.actor,
            attachment=attachment.id,
            grant=attachment.grant,
            client_session=event.client_session,
            msg_id=event.msg_id,
            message_type=event.message_type,
            lane=event.lane,
            input_class=event.input_class,
            digest=event.digest,
            size=event.size,
            generation=self.floor.generation,
            incarnation=self.incarnation,
            since=now,
            request_id=event.request_id,
            stop_on_error=event.stop_on_error,
            via=attachment.via,
        )
        self.operations[operation.id] = operation
        self._by_message[(attachment.id, event.client_session, event.msg_id)] = operation.id
        if event.request_id is not None:
            self._by_request[(attachment.actor.id, event.request_id)] = operation.id
        self.lanes.setdefault(event.lane, Lane()).queue.append(operation.id)
        out.append(
            fx.Record(
                "admitted",
                attachment.actor,
                operation.id,
                attachment.id,
                attachment.grant,
                event.request_id,
                basis="intended",
                via=attachment.via,
                durable=event.input_class is InputClass.EXPLICIT,
                data={
                    "message": event.message_type,
                    "class": event.input_class.value,
                    "digest": event.digest,
                    "lane": event.lane,
                    "msg_id": event.msg_id,
                    "client_session": event.client_session,
                },
            )
        )
        out.append(fx.Admitted(operation.id))
        out.append(fx.Announce("operation", {"operation": operation.id, "status": "queued"}))
        self._forget_old()
        return operation

    def _pump(self, lane_name: str, now: float, out: list[Effect]) -> None:
        """Deliver the next operation of a lane that is free."""
        lane = self.lanes[lane_name]
        if self.backend != "ready" or lane.running is not None:
            return
        chosen = next_in_turn([(name, self.operations[name].holder) for name in lane.queue], lane.served)
        if chosen is None:
            if lane_name != MAIN_LANE:
                del self.lanes[lane_name]
            return
        operation = self.operations[chosen]
        lane.queue.remove(chosen)
        lane.running = chosen
        lane.note_served(operation.holder)
        operation.generation = self.floor.generation
        operation.incarnation = self.incarnation
        operation.since = now
        operation.step(Step.DELIVER)
        out.append(
            fx.Record(
                "delivered", operation.actor, chosen, operation.attachment, operation.grant, basis="attempted"
            )
        )
        out.append(fx.Deliver(chosen, lane_name, operation.generation))
        out.append(fx.Announce("operation", {"operation": chosen, "status": "running"}))

    # ------------------------------------------------------------------ what the backend says

    def _backend_ready(self, event: ev.BackendReady, now: float, out: list[Effect]) -> None:
        if event.incarnation <= self.incarnation:
            raise AssertionError(f"incarnation {event.incarnation} after {self.incarnation}")
        self.incarnation = event.incarnation
        self.backend = "ready"
        out.append(fx.Record("backend_ready", KEEPER, data={"incarnation": event.incarnation}))
        out.append(fx.Announce("backend", {"state": "ready", "incarnation": event.incarnation}))
        for lane in list(self.lanes):
            self._pump(lane, now, out)

    def _backend_died(self, event: ev.BackendDied, now: float, out: list[Effect]) -> None:
        if self.backend == "closed":
            return
        self.backend = "starting" if event.will_restart else "lost"
        out.append(
            fx.Record(
                "backend_died",
                KEEPER,
                durable=True,
                data={"reason": event.reason, "incarnation": self.incarnation},
            )
        )
        self._raise_generation(out)
        self._clear_lanes("unknown", None, event.reason, out)
        out.append(fx.Announce("backend", {"state": self.backend, "reason": event.reason}))

    def _replied(self, event: ev.Replied, now: float, out: list[Effect]) -> None:
        operation = self.operations.get(event.operation)
        if operation is None or not operation.is_active or operation.status is Status.QUEUED:
            return
        operation.replied, operation.error_name = event.status, event.error_name
        self._finish(operation, now, out)

    def _idle(self, event: ev.Idle, now: float, out: list[Effect]) -> None:
        operation = self.operations.get(event.operation)
        if operation is None or not operation.is_active or operation.status is Status.QUEUED:
            return
        operation.idle = True
        self._finish(operation, now, out)

    def _finish(self, operation: Operation, now: float, out: list[Effect]) -> None:
        if operation.replied is None or not operation.idle:
            return
        outcome: Outcome
        if operation.replied == "error" and operation.interrupted_by is not None:
            outcome = "interrupted"
        else:
            outcome = {"ok": "ok", "error": "error", "aborted": "aborted"}[operation.replied]  # type: ignore[assignment]  # values are outcomes
        lane = self.lanes[operation.lane]
        if lane.running != operation.id:
            raise AssertionError(f"{operation.id} finished, but lane {operation.lane!r} runs {lane.running}")
        lane.running = None
        self._end(operation, Step.FINISH, outcome, out, by=operation.interrupted_by)
        if self.floor.driver == operation.holder:
            self.floor.renew_act(now, SIGN_OF_LIFE_SECONDS)
        if outcome in ("error", "interrupted") and operation.stop_on_error:
            # What an error aborts is what the same client session queued behind it, and nothing of anybody else.
            for other in [self.operations[name] for name in lane.queue]:
                if (other.attachment, other.client_session) == (operation.attachment, operation.client_session):
                    lane.queue.remove(other.id)
                    self._end(other, Step.DROP, "aborted", out, reason=f"operation {operation.id} failed before it")
        self._pump(operation.lane, now, out)

    def _prompted(self, event: ev.Prompted, now: float, out: list[Effect]) -> None:
        operation = self.operations.get(event.operation)
        if operation is None or operation.status not in (Status.RUNNING, Status.AWAITING_INPUT):
            return
        operation.step(Step.PROMPT)
        self.prompts[operation.id] = {
            "prompt": event.prompt,
            "text": event.text,
            "password": event.password,
            "since": now,
        }
        out.append(
            fx.Record(
                "input_requested",
                operation.actor,
                operation.id,
                data={"prompt_id": event.prompt, "prompt": event.text, "password": event.password},
            )
        )
        self._show_prompt(operation, out)

    def _show_prompt(self, operation: Operation, out: list[Effect]) -> None:
        prompt = self.prompts[operation.id]
        out.append(
            fx.ShowPrompt(operation.id, prompt["prompt"], self._may_answer(operation.actor.id, operation) is None)
        )
        out.append(fx.Announce("prompt", {"operation": operation.id, "prompt_id": prompt["prompt"]}))

    # ------------------------------------------------------------------ answering and interrupting

    def _answer(self, event: ev.Answer, now: float, out: list[Effect]) -> None:
        attachment = self.attachments.get(event.attachment)
        if attachment is None:
            return self._reject(out, None, event, "revoked", "this connection has ended")
        operation = self._prompting(event)
        if operation is None:
            return self._reject(
                out,
                attachment,
                event,
                "no_prompt",
                "nothing waits for this answer"
                + (": a kernel client can answer only the prompt of its own cell" if event.stock else ""),
                next_=("status",),
            )
        if "answer" not in attachment.rights:
            return self._reject(
                out, attachment, event, "read_only", f"{attachment.actor.id} observes this session and may not answer"
            )
        refusal = self._may_answer(attachment.actor.id, operation)
        if refusal is not None:
            return self._refuse(out, attachment, event, refusal)
        prompt = self.prompts.pop(operation.id)
        operation.step(Step.ANSWER)
        if self.floor.driver == attachment.actor.id:
            self.floor.renew_act(now, SIGN_OF_LIFE_SECONDS)
        out.append(
            fx.Record(
                "input_answered",
                attachment.actor,
                operation.id,
                attachment.id,
                attachment.grant,
                basis="attempted",
                via=attachment.via,
                durable=True,
                data={"prompt_id": prompt["prompt"], "withheld": prompt["password"]},
            )
        )
        out.append(fx.SendAnswer(operation.id, prompt["prompt"]))
        out.append(fx.Announce("prompt", {"operation": operation.id, "answered_by": attachment.actor.id}))
        return None

    def _prompting(self, event: ev.Answer) -> Operation | None:
        for name, prompt in self.prompts.items():
            operation = self.operations[name]
            if event.prompt is not None and prompt["prompt"] != event.prompt:
                continue
            if event.stock and (operation.attachment, operation.client_session) != (
                event.attachment,
                event.client_session,
            ):
                continue
            return operation
        return None

    def _may_answer(self, actor: str, operation: Operation) -> Refusal | None:
        """The driver answers; while nobody drives, any peer may (the first answer wins)."""
        if not self.floor.is_held_against(actor):
            return None
        return Refusal(
            "not_driver",
            f"{self.floor.driver} drives this session and has the right to answer operation {operation.id}",
            driver=self.floor.driver,
            since=self.floor.since,
            generation=self.floor.generation,
            next=("take",),
        )

    def _interrupt(self, event: ev.Interrupt, now: float, out: list[Effect]) -> None:
        attachment = self.attachments.get(event.attachment)
        if attachment is None:
            return self._reject(out, None, event, "revoked", "this connection has ended")
        if "interrupt" not in attachment.rights:
            return self._reject(
                out,
                attachment,
                event,
                "read_only",
                f"{attachment.actor.id} observes this session and may not interrupt",
            )
        if self.floor.driver == attachment.actor.id:
            self.floor.renew_act(now, SIGN_OF_LIFE_SECONDS)
        if event.operation is None:
            targets = self._interrupt_targets(attachment.actor.id)
        elif event.operation in self.operations:
            targets = [self.operations[event.operation]]
        else:
            return self._reject(
                out,
                attachment,
                event,
                "unknown_operation",
                f"no operation {event.operation!r} is known here",
                next_=("status", "log"),
            )
        for operation in targets:
            if operation.status is Status.QUEUED:
                self.lanes[operation.lane].queue.remove(operation.id)
                self._end(operation, Step.DROP, "withdrawn", out, by=attachment.actor.id, reason="interrupt")
            elif operation.is_active and operation.lane != MAIN_LANE:
                return self._reject(
                    out,
                    attachment,
                    event,
                    "unsupported",
                    f"operation {operation.id} runs in a subshell, which cannot be interrupted",
                    next_=("wait", "restart"),
                )
            elif operation.is_active:
                self._interrupt_running(operation, attachment, out)
        return None

    def _interrupt_targets(self, actor: str) -> list[Operation]:
        """Without a name: the actor's own running operation; else his queued ones; else the running one."""
        running = [self.operations[lane.running] for lane in self.lanes.values() if lane.running is not None]
        running.sort(key=lambda op: op.lane != MAIN_LANE)
        own = [op for op in running if actor in (op.actor.id, op.adopted_by)]
        if own:
            return own[:1]
        waiting = [op for op in self._queued() if actor in (op.actor.id, op.adopted_by)]
        return waiting or running[:1]

    def _interrupt_running(self, operation: Operation, by: Attachment, out: list[Effect]) -> None:
        operation.interrupted_by = by.actor.id
        out.append(
            fx.Record(
                "interrupted",
                by.actor,
                operation.id,
                by.id,
                by.grant,
                basis="attempted",
                via=by.via,
                durable=True,
            )
        )
        out.append(fx.InterruptBackend(operation.id))

    # ------------------------------------------------------------------ the floor's verbs

    def _take(self, event: ev.Take, now: float, out: list[Effect]) -> None:
        attachment = self._with_right(event, "take", out)
        if attachment is None:
            return
        if self.policy == "readonly":
            return self._reject(
                out,
                attachment,
                event,
                "read_only",
                "the policy of this session is readonly: there is no floor to take",
                next_=("policy open", "policy turns"),
            )
        actor = attachment.actor
        lease = min(event.lease_seconds or ACT_LEASE_SECONDS, MAX_LEASE_SECONDS)
        for connection in [c for c in self.lost if self._connection_actor(c) == actor.id]:
            del self.lost[connection]
        if self.floor.driver == actor.id:
            if self.floor.state is FloorState.STALE:
                self._move(FloorEvent.RESUME, now, out, by=actor)
            self.floor.renew_act(now, lease)
            return
        self._move(
            FloorEvent.TAKE, now, out, by=actor, to=actor.id, reason=event.reason, adopt=event.queue == "adopt"
        )
        self.floor.renew_act(now, lease)
        if event.running == "interrupt":
            running = self.lanes[MAIN_LANE].running
            if running is not None:
                self._interrupt_running(self.operations[running], attachment, out)
        self._pump_all(now, out)

    def _hand_back(self, event: ev.HandBack, now: float, out: list[Effect]) -> None:
        attachment = self._with_right(event, "take", out)
        if attachment is None or not self._must_drive(attachment, event, out):
            return
        to = event.to if event.to is not None else self.floor.previous
        if to is None or to == attachment.actor.id:
            self._move(FloorEvent.RELEASE, now, out, by=attachment.actor, reason=event.note)
            self._pump_all(now, out)
            return
        receiver = self._actor_of(to)
        if receiver is None or not self._may(to, "input"):
            if event.to is None:  # whom he had it from has left for good: give it up instead
                self._move(FloorEvent.RELEASE, now, out, by=attachment.actor, reason=event.note)
                self._pump_all(now, out)
                return
            return self._reject(
                out,
                attachment,
                event,
                "forbidden",
                f"{to} is not an actor of this session who may input",
                next_=("status", "invite"),
            )
        for connection in [c for c in self.lost if self._connection_actor(c) == to]:
            del self.lost[connection]
        self._move(FloorEvent.HAND_BACK, now, out, by=attachment.actor, to=to, reason=event.note)
        self.floor.renew_act(now, ACT_LEASE_SECONDS)
        self._pump_all(now, out)

    def _release(self, event: ev.Release, now: float, out: list[Effect]) -> None:
        attachment = self._with_right(event, "take", out)
        if attachment is None or not self._must_drive(attachment, event, out):
            return
        self._move(FloorEvent.RELEASE, now, out, by=attachment.actor)
        self._pump_all(now, out)

    def _must_drive(self, attachment: Attachment, event: ev.Event, out: list[Effect]) -> bool:
        if self.floor.driver == attachment.actor.id:
            return True
        driver = self.floor.driver
        self._reject(
            out,
            attachment,
            event,
            "not_driver",
            f"{driver} drives this session, not {attachment.actor.id}" if driver else "nobody drives this session",
            next_=("take",) if driver else ("status",),
        )
        return False

    def _set_policy(self, event: ev.SetPolicy, now: float, out: list[Effect]) -> None:
        attachment = self._with_right(event, "policy", out)
        if attachment is None:
            return
        if event.policy not in POLICIES:
            return self._reject(
                out,
                attachment,
                event,
                "unsupported",
                f"no policy {event.policy!r}: use one of {', '.join(POLICIES)}",
            )
        before, self.policy = self.policy, event.policy
        self._raise_generation(out)
        out.append(
            fx.Record(
                "policy",
                attachment.actor,
                attachment=attachment.id,
                grant=attachment.grant,
                via=attachment.via,
                durable=True,
                data={"from": before, "to": event.policy},
            )
        )
        if event.policy == "readonly":
            self._supersede(lambda op: True, attachment.actor, "policy readonly", out)
            if self.floor.driver is not None:
                self._move(FloorEvent.VACATE, now, out, by=attachment.actor, reason="policy readonly")
        elif event.policy == "turns" and self.floor.driver is None:
            # Under turns, whoever runs or waits first has the floor, as if he had claimed it.
            first = next(iter([*self._running(), *self._queued()]), None)
            if first is not None:
                self._move(FloorEvent.CLAIM, now, out, by=first.actor, to=first.holder)
        out.append(fx.Announce("policy", {"policy": event.policy, "by": attachment.actor.id}))
        self._pump_all(now, out)

    def _move(
        self,
        event: FloorEvent,
        now: float,
        out: list[Effect],
        *,
        by: Actor | None,
        to: str | None = None,
        reason: str = "",
        adopt: bool = False,
        grant: str | None = None,
    ) -> None:
        """Apply a floor event with everything it entails: fence, record, queue, those who lost."""
        loser = self.floor.driver
        generation = self.floor.generation
        entry = self.floor.apply(event, now=now, actor=to, reason=reason)
        if entry is None:
            raise AssertionError(f"no transition for {event} from {self.floor.state}")
        changed = self.floor.generation != generation
        if changed:
            out.append(fx.Fence(self.floor.generation))
        data: dict[str, Any] = {"from": loser, "to": self.floor.driver}
        if reason:
            data["reason"] = reason
        out.append(fx.Record(entry, by, grant=grant, durable=changed, data=data))
        if changed and event in (FloorEvent.TAKE, FloorEvent.CLAIM, FloorEvent.HAND_BACK):
            driver = self._actor_of(self.floor.driver or "") or by
            if adopt:
                self._adopt(driver, out)
            self._supersede(lambda op: op.holder != self.floor.driver, by, reason or entry, out)
        if changed and loser is not None and loser != self.floor.driver and event is not FloorEvent.RELEASE:
            if event is not FloorEvent.HAND_BACK:
                self._note_loss(loser, self.floor.driver, reason)
            out.append(fx.Tell(loser, self.floor.driver, reason, self.floor.generation))
        if changed:
            for operation in self._queued():
                operation.generation = self.floor.generation
            for name in self.prompts:
                self._show_prompt(self.operations[name], out)
        out.append(
            fx.Announce(
                "floor",
                {
                    "state": self.floor.state.value,
                    "driver": self.floor.driver,
                    "generation": self.floor.generation,
                    "by": by.id if by else None,
                    "how": entry,
                    "reason": reason,
                },
            )
        )

    def _note_loss(self, loser: str, by: str | None, reason: str) -> None:
        for attachment, sessions in self.connections.items():
            if self._attachment_actor(attachment) == loser:
                for session in sessions:
                    self.lost[(attachment, session)] = {
                        "by": by,
                        "reason": reason,
                        "generation": self.floor.generation,
                    }

    def _adopt(self, driver: Actor | None, out: list[Effect]) -> None:
        if driver is None:
            return
        for operation in self._queued():
            if operation.holder != driver.id:
                operation.adopted_by = driver.id
                out.append(
                    fx.Record("adopted", driver, operation.id, basis="intended", data={"author": operation.actor.id})
                )

    def _supersede(
        self, chosen: Callable[[Operation], bool], by: Actor | None, reason: str, out: list[Effect]
    ) -> None:
        for operation in self._queued():
            if chosen(operation):
                self.lanes[operation.lane].queue.remove(operation.id)
                self._end(operation, Step.DROP, "superseded", out, by=by.id if by else None, reason=reason)

    # ------------------------------------------------------------------ grants and lifecycle

    def _invite(self, event: ev.Invite, now: float, out: list[Effect]) -> None:
        attachment = self._with_right(event, "invite", out)
        if attachment is None:
            return
        grant = event.grant
        if grant.id in self.grants:
            raise AssertionError(f"grant {grant.id} exists already")
        if not grant.rights <= attachment.rights:
            return self._reject(
                out, attachment, event, "forbidden", "a grant can only carry rights that its giver has"
            )
        self.grants[grant.id] = grant
        out.append(
            fx.Record(
                "granted",
                attachment.actor,
                attachment=attachment.id,
                grant=grant.id,
                via=attachment.via,
                durable=True,
                data={
                    "actor": grant.actor.id,
                    "kind": grant.actor.kind,
                    "name": grant.actor.display_name,
                    "on_behalf_of": grant.actor.on_behalf_of or "",
                    "role": grant.role,
                    "transport": grant.transport,
                    "expires_in": "" if grant.expires is None else str(round(grant.expires - now)),
                },
            )
        )
        out.append(fx.OpenGrant(grant.id))

    def _revoke(self, event: ev.Revoke, now: float, out: list[Effect]) -> None:
        attachment = self.attachments.get(event.attachment)
        if attachment is None:
            return self._reject(out, None, event, "revoked", "this connection has ended")
        grant = self.grants.get(event.grant)
        if grant is None:
            return self._reject(
                out, attachment, event, "unknown_grant", f"no grant {event.grant!r} here", next_=("grants",)
            )
        if "invite" not in attachment.rights and attachment.actor.id != grant.actor.id:
            return self._reject(
                out,
                attachment,
                event,
                "forbidden",
                f"{attachment.actor.id} may revoke only his own grants",
                next_=("ask the owner",),
            )
        self._end_grant(grant, "revoked", attachment.actor, now, out)
        return None

    def _end_grant(self, grant: Grant, how: str, by: Actor, now: float, out: list[Effect]) -> None:
        del self.grants[grant.id]
        out.append(
            fx.Record(
                how,
                by,
                grant=grant.id,
                durable=True,
                data={"actor": grant.actor.id},
            )
        )
        for operation in self._queued():
            if operation.grant == grant.id:
                self.lanes[operation.lane].queue.remove(operation.id)
                self._end(operation, Step.DROP, "withdrawn", out, by=by.id, reason=f"grant {how}")
        out.append(fx.CloseGrant(grant.id, how))
        for attachment in [a for a in self.attachments.values() if a.grant == grant.id]:
            self._detach(ev.Detach(attachment.id, how), now, out)
        self.connections = {
            name: sessions
            for name, sessions in self.connections.items()
            if name in self.attachments or self._attachment_actor(name) != grant.actor.id
        }
        if self.floor.driver == grant.actor.id and not self._may(grant.actor.id, "input"):
            self._move(FloorEvent.VACATE, now, out, by=by, reason=f"grant {how}")
        self._pump_all(now, out)

    def _lifecycle(self, event: ev.Lifecycle, now: float, out: list[Effect]) -> None:
        attachment = self._with_right(event, "lifecycle", out)
        if attachment is None:
            return
        others = [op for op in (*self._running(), *self._queued()) if op.actor.id != attachment.actor.id]
        if event.verb == "close" and others and not event.force:
            return self._reject(
                out,
                attachment,
                event,
                "busy",
                f"operation {others[0].id} of {others[0].actor.id} is {others[0].state}: closing would end it",
                next_=("wait", "close --force"),
            )
        data: dict[str, Any] = {} if event.name is None else {"name": event.name}
        word = {"restart": "restarted", "close": "closed", "rename": "renamed"}[event.verb]
        out.append(
            fx.Record(
                word,
                attachment.actor,
                attachment=attachment.id,
                grant=attachment.grant,
                via=attachment.via,
                durable=True,
                basis="intended",
                data=data,
            )
        )
        if event.verb == "rename":
            if event.name is None:
                raise AssertionError("rename needs a name")
            out.append(fx.Renamed(event.name))
            return None
        self._raise_generation(out)
        self._clear_lanes("interrupted", attachment.actor, event.verb, out)
        self.backend = "starting" if event.verb == "restart" else "closed"
        out.append(fx.Announce("backend", {"state": self.backend, "by": attachment.actor.id}))
        out.append(fx.RestartBackend() if event.verb == "restart" else fx.StopBackend())
        return None

    def _clear_lanes(self, running: Outcome, by: Actor | None, reason: str, out: list[Effect]) -> None:
        """The backend is gone or going: what it had has this outcome, what waited is aborted."""
        self.prompts.clear()
        who = by.id if by else None
        for lane in list(self.lanes.values()):
            if lane.running is not None:
                operation = self.operations[lane.running]
                lane.running = None
                self._end(operation, Step.LOSE, running, out, by=who, reason=reason)
            for name in lane.queue:
                self._end(self.operations[name], Step.DROP, "aborted", out, by=who, reason=reason)
        self.lanes = {MAIN_LANE: Lane()}

    # ------------------------------------------------------------------ shared steps

    def _end(
        self,
        operation: Operation,
        step: Step,
        outcome: Outcome,
        out: list[Effect],
        *,
        by: str | None = None,
        reason: str = "",
    ) -> None:
        operation.step(step, outcome)
        self.prompts.pop(operation.id, None)
        data: dict[str, Any] = {"outcome": outcome}
        if by:
            data["by"] = by
        if reason:
            data["reason"] = reason
        out.append(
            fx.Record(
                "ended",
                operation.actor,
                operation.id,
                operation.attachment,
                operation.grant,
                operation.request_id,
                data=data,
            )
        )
        out.append(fx.End(operation.id, outcome, step is not Step.DROP, by, reason))
        out.append(fx.Announce("operation", {"operation": operation.id, "status": outcome}))

    def _raise_generation(self, out: list[Effect]) -> None:
        self.floor.generation += 1
        out.append(fx.Fence(self.floor.generation))
        for operation in self._queued():
            operation.generation = self.floor.generation

    def _pump_all(self, now: float, out: list[Effect]) -> None:
        for lane in list(self.lanes):
            self._pump(lane, now, out)

    def _expire(self, now: float, out: list[Effect]) -> None:
        """What time alone brings about: ended grants, a lapsed driver, a grace time that is over."""
        for grant in [g for g in self.grants.values() if g.expires is not None and g.expires <= now]:
            self._end_grant(grant, "expired", KEEPER, now, out)
        if (
            self.floor.state is FloorState.HELD
            and not self._is_busy(self.floor.driver)
            and self._held_until() <= now
        ):
            self._move(FloorEvent.LAPSE, now, out, by=KEEPER, reason="no sign of life within the lease")
        if self.floor.state is FloorState.STALE and self.floor.stale_until <= now:
            self._move(FloorEvent.VACATE, now, out, by=KEEPER, reason="the stale driver did not return")

    def _held_until(self) -> float:
        return max(self.floor.act_until, self.alive_until.get(self.floor.driver or "", float("-inf")))

    def _is_busy(self, actor: str | None) -> bool:
        return any(actor in (op.holder, op.actor.id) for op in [*self._running(), *self._queued()])

    def _with_right(self, event: Any, right: Right, out: list[Effect]) -> Attachment | None:
        attachment: Attachment | None = self.attachments.get(event.attachment)
        if attachment is None:
            self._reject(out, None, event, "revoked", "this connection has ended")
            return None
        if right not in attachment.rights:
            self._reject(
                out,
                attachment,
                event,
                "forbidden",
                f"{attachment.actor.id} has not the right {right!r} here",
                next_=("ask the owner",),
            )
            return None
        return attachment

    def _reject(
        self,
        out: list[Effect],
        attachment: Attachment | None,
        event: ev.Event,
        code: str,
        message: str,
        *,
        next_: tuple[str, ...] = (),
    ) -> None:
        refusal = Refusal(
            code, message, driver=self.floor.driver, generation=self.floor.generation, next=next_
        )
        self._refuse(out, attachment, event, refusal)

    def _refuse(
        self, out: list[Effect], attachment: Attachment | None, event: ev.Event, refusal: Refusal
    ) -> None:
        """A refused attempt is an entry of its own, and no operation."""
        data: dict[str, Any] = {
            "code": refusal.code,
            "message": refusal.message,
            "what": getattr(event, "message_type", type(event).__name__.lower()),
        }
        out.append(
            fx.Record(
                "refused",
                attachment.actor if attachment else None,
                None,
                getattr(event, "attachment", None),
                attachment.grant if attachment else None,
                getattr(event, "request_id", None),
                basis="intended",
                via=attachment.via if attachment else None,
                data=data,
            )
        )
        out.append(fx.Reject(refusal))

    def _running(self) -> Iterator[Operation]:
        return (self.operations[lane.running] for lane in self.lanes.values() if lane.running is not None)

    def _queued(self) -> list[Operation]:
        return [self.operations[name] for lane in self.lanes.values() for name in lane.queue]

    def _may(self, actor: str, right: Right) -> bool:
        holders: list[Attachment | Grant] = [*self.attachments.values(), *self.grants.values()]
        return actor == self.owner.id or any(h.actor.id == actor and right in h.rights for h in holders)

    def _actor_of(self, actor: str) -> Actor | None:
        if actor == self.owner.id:
            return self.owner
        holders: list[Attachment | Grant] = [*self.attachments.values(), *self.grants.values()]
        for holder in holders:
            if holder.actor.id == actor:
                return holder.actor
        return next((op.actor for op in reversed(self.operations.values()) if op.actor.id == actor), None)

    def _attachment_actor(self, attachment: str) -> str | None:
        known = self.attachments.get(attachment)
        if known is not None:
            return known.actor.id
        return next((g.actor.id for g in self.grants.values() if attachment_of_grant(g.id) == attachment), None)

    def _connection_actor(self, connection: Connection) -> str | None:
        return self._attachment_actor(connection[0])

    def _remember_connection(self, connection: Connection) -> None:
        attachment, session = connection
        sessions = self.connections.setdefault(attachment, [])
        if session in sessions:
            sessions.remove(session)
        sessions.append(session)
        for forgotten in sessions[:-REMEMBERED_CONNECTIONS]:
            self.lost.pop((attachment, forgotten), None)
        del sessions[:-REMEMBERED_CONNECTIONS]
        if len(self.connections) > MAX_CONNECTIONS:
            # One-shot connections have no later input that could be stale: they are forgotten with their attachment.
            for name in [n for n in self.connections if self._attachment_actor(n) is None]:
                del self.connections[name]
            for known in [c for c in self.lost if c[0] not in self.connections]:
                del self.lost[known]

    def _forget_old(self) -> None:
        excess = len(self.operations) - REMEMBERED_OPERATIONS
        if excess <= 0:
            return
        oldest: list[Operation] = []
        for operation in self.operations.values():  # oldest first, and nearly always ended: this stops at once
            if len(oldest) == excess:
                break
            if not operation.is_active:
                oldest.append(operation)
        for operation in oldest:
            del self.operations[operation.id]
            key = (operation.attachment, operation.client_session, operation.msg_id)
            if self._by_message.get(key) == operation.id:
                del self._by_message[key]
            if operation.request_id is not None:
                self._by_request.pop((operation.actor.id, operation.request_id), None)

    # ------------------------------------------------------------------ snapshot

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON values: what `restore` takes, and what `status` is made from."""
        return {
            "owner": _actor_dict(self.owner),
            "policy": self.policy,
            "floor": self.floor.to_dict(),
            "incarnation": self.incarnation,
            "backend": self.backend,
            "lanes": {name: lane.to_dict() for name, lane in self.lanes.items()},
            "operations": [operation.to_dict() for operation in self.operations.values()],
            "attachments": [
                {**_slots(a), "actor": _actor_dict(a.actor)} for a in self.attachments.values()
            ],
            "grants": [{**_slots(g), "actor": _actor_dict(g.actor)} for g in self.grants.values()],
            "prompts": {name: dict(prompt) for name, prompt in self.prompts.items()},
            "lost": [[*connection, dict(loss)] for connection, loss in self.lost.items()],
            "connections": {name: list(sessions) for name, sessions in self.connections.items()},
            "alive_until": dict(self.alive_until),
            "counter": self.counter,
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Session:
        """A session that goes on exactly where `snapshot` was taken."""
        session = cls(owner=Actor(**snapshot["owner"]), policy=snapshot["policy"])
        session.floor = Floor.from_dict(snapshot["floor"])
        session.incarnation = snapshot["incarnation"]
        session.backend = snapshot["backend"]
        session.lanes = {
            name: Lane(lane["running"], list(lane["queue"]), list(lane["served"]))
            for name, lane in snapshot["lanes"].items()
        }
        for data in snapshot["operations"]:
            operation = Operation.from_dict(data)
            session.operations[operation.id] = operation
            session._by_message[(operation.attachment, operation.client_session, operation.msg_id)] = operation.id
            if operation.request_id is not None:
                session._by_request[(operation.actor.id, operation.request_id)] = operation.id
        for data in snapshot["attachments"]:
            session.attachments[data["id"]] = Attachment(**{**data, "actor": Actor(**data["actor"])})
        for data in snapshot["grants"]:
            session.grants[data["id"]] = Grant(**{**data, "actor": Actor(**data["actor"])})
        session.prompts = {name: dict(prompt) for name, prompt in snapshot["prompts"].items()}
        session.lost = {(attachment, client): dict(loss) for attachment, client, loss in snapshot["lost"]}
        session.connections = {name: list(sessions) for name, sessions in snapshot["connections"].items()}
        session.alive_until = dict(snapshot["alive_until"])
        session.counter = snapshot["counter"]
        return session


def attachment_of_grant(grant: str) -> str:
    """The id of the attachment that a grant's own endpoint makes: known before it is attached, and after."""
    return f"g-{grant}"


def _slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _actor_dict(actor: Actor) -> dict[str, Any]:
    return _slots(actor)


_HANDLERS: dict[type, Callable[[Session, Any, float, list[Effect]], None]] = {
    ev.Attach: Session._attach,
    ev.Detach: Session._detach,
    ev.Alive: Session._alive,
    ev.Submit: Session._submit,
    ev.Take: Session._take,
    ev.HandBack: Session._hand_back,
    ev.Release: Session._release,
    ev.SetPolicy: Session._set_policy,
    ev.Interrupt: Session._interrupt,
    ev.Answer: Session._answer,
    ev.Invite: Session._invite,
    ev.Revoke: Session._revoke,
    ev.Lifecycle: Session._lifecycle,
    ev.BackendReady: Session._backend_ready,
    ev.BackendDied: Session._backend_died,
    ev.Replied: Session._replied,
    ev.Idle: Session._idle,
    ev.Prompted: Session._prompted,
}
