"""The verbs of the link: each decodes its arguments, submits, and says what came of it. None decides."""

from __future__ import annotations

import json
import logging
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..core import effects as fx
from ..core import events as ev
from ..core.actor import ACTOR_KINDS, Actor, BadName, check_actor_id, check_session_name
from ..core.grants import ROLE_RIGHTS, Attachment, Grant, Role
from ..core.operations import MAIN_LANE
from ..core.policy import PolicyName, execute_class
from ..core.refusal import Refusal
from ..journal.errors import JournalError
from ..wire.kernel import Message, content_digest, encode_json
from .journal_desk import DEFAULT_RESULT_BYTES, Item, Page, Wanted, page, parse_cursor, result_of
from .kernel_requests import expiry, preview
from .runner import NoHand
from .synthesis import make_header

if TYPE_CHECKING:
    from .journal_desk import JournalDesk
    from .kernel_requests import KernelRequests
    from .kernel_side import KernelSide
    from .link_endpoint import LinkConnection, LinkServer
    from .runner import Hand, LiveOperation, Runner

log = logging.getLogger(__name__)

MAX_EXPIRES_SECONDS = 366 * 86_400.0
MAX_CODE_BYTES = 64 * 1024 * 1024


class BadArguments(ValueError):
    """The arguments of a verb are not of its form; the message says what it takes."""


class RunArgs(msgspec.Struct, forbid_unknown_fields=False):
    code: str
    request_id: str | None = None
    generation: int | None = None
    silent: bool = False
    store_history: bool = True
    stop_on_error: bool = True
    lane: str = MAIN_LANE
    if_busy: Literal["queue", "refuse"] = "queue"
    wait_seconds: float | None = None
    stream: bool = False
    max_bytes: int | None = None


class WaitArgs(msgspec.Struct):
    operation: str | None = None
    request_id: str | None = None
    wait_seconds: float | None = None
    stream: bool = False
    max_bytes: int | None = None


class InviteArgs(msgspec.Struct):
    actor: str | None = None
    kind: str | None = None
    name: str = ""
    role: Literal["observer", "peer", "owner"] = "peer"
    expires_seconds: float | None = None
    transport: Literal["ipc", "tcp"] = "ipc"


class RevokeArgs(msgspec.Struct):
    grant: str


class TakeArgs(msgspec.Struct):
    reason: str | None = None
    running: Literal["let", "interrupt"] = "let"
    queue: Literal["drop", "adopt"] = "drop"
    lease_seconds: float | None = None


class HandBackArgs(msgspec.Struct):
    to: str | None = None
    note: str | None = None


class PolicyArgs(msgspec.Struct):
    policy: str


class InterruptArgs(msgspec.Struct):
    operation: str | None = None


class AnswerArgs(msgspec.Struct):
    text: str
    prompt_id: str | None = None


class ReadArgs(msgspec.Struct):
    view: Literal["outputs", "stream"] = "outputs"
    after: str | None = None
    limit_bytes: int | None = None
    follow: bool = False


class LogArgs(msgspec.Struct):
    after: int | None = None
    actor: str | None = None
    operation: str | None = None
    types: list[str] | None = None
    limit: int | None = None
    follow: bool = False


class VerifyArgs(msgspec.Struct):
    receipt: str | list[Any] | None = None


class RenameArgs(msgspec.Struct):
    name: str


class CloseArgs(msgspec.Struct):
    force: bool = False


class NoArgs(msgspec.Struct):
    pass


@dataclass(slots=True)
class Call:
    """One request on a link connection, until it has been answered."""

    connection: LinkConnection
    number: int
    done: bool = False

    @property
    def attachment(self) -> str:
        if self.connection.attachment is None:
            raise AssertionError("a verb comes after the hello")
        return self.connection.attachment.id

    @property
    def actor(self) -> Actor:
        if self.connection.attachment is None:
            raise AssertionError("a verb comes after the hello")
        return self.connection.attachment.actor

    def item(self, item: Item) -> None:
        if not self.done:
            self.connection.send({"id": self.number, "item": item})

    def result(self, result: Item) -> None:
        self._finish({"id": self.number, "result": result})

    def refuse(self, refusal: Refusal) -> None:
        self._finish({"id": self.number, "refusal": refusal.to_dict()})

    def fail(self, code: str, message: str) -> None:
        self._finish({"id": self.number, "error": {"code": code, "message": message}})

    def _finish(self, frame: dict[str, Any]) -> None:
        if not self.done:
            self.done = True
            self.connection.send(frame)


@dataclass(slots=True)
class RunHand:
    """A `run` that is being submitted."""

    verbs: LinkVerbs
    call: Call
    args: RunArgs
    message: Message
    facts: dict[str, Any]
    operation: str | None = None
    is_duplicate: bool = False

    def rejected(self, refusal: Refusal) -> None:
        result: Item = {
            "status": "refused",
            "operation": None,
            "request_id": self.args.request_id,
            "duplicate": False,
            "generation": refusal.generation,
            "incarnation": self.verbs.runner.session.incarnation,
            "outputs": [],
            "refusal": refusal.to_dict(),
        }
        self.verbs.runner.recorder.send(self.call.result, result)

    def admitted(self, operation: LiveOperation) -> None:
        operation.message = self.message
        operation.origin.header = self.message.header
        operation.source = self.args.code
        operation.preview = preview(self.args.code)
        operation.records_history = self.args.store_history and not self.args.silent
        self.operation = operation.id
        self.verbs.runner.remember_origin(_msg_id(self.message), operation.origin)

    def duplicate(self, operation: str) -> None:
        self.operation, self.is_duplicate = operation, True

    def forward(self, generation: int) -> None:
        raise AssertionError("a run is an operation")

    def send_answer(self, operation: LiveOperation, prompt: str) -> None:
        raise AssertionError("a run is no answer")


@dataclass(slots=True)
class QuietRun:
    """A run that nobody waits for."""

    verbs: LinkVerbs
    code: str
    message: Message
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = {"code": self.code}

    def rejected(self, refusal: Refusal) -> None:
        log.error("the setup was refused: %s", refusal.message)

    def admitted(self, operation: LiveOperation) -> None:
        operation.message = self.message
        operation.origin.header = self.message.header
        operation.source = self.code
        operation.preview = preview(self.code)
        self.verbs.runner.remember_origin(_msg_id(self.message), operation.origin)

    def duplicate(self, operation: str) -> None:
        raise AssertionError("a setup runs once")

    def forward(self, generation: int) -> None:
        raise AssertionError("a setup is an operation")

    def send_answer(self, operation: LiveOperation, prompt: str) -> None:
        raise AssertionError("a setup is no answer")


@dataclass(slots=True)
class AnswerHand:
    """An `answer` that is being submitted."""

    verbs: LinkVerbs
    call: Call
    text: str
    facts: dict[str, Any]

    def rejected(self, refusal: Refusal) -> None:
        self.verbs.runner.recorder.send(self.call.refuse, refusal)

    def admitted(self, operation: LiveOperation) -> None:
        raise AssertionError("an answer is no operation")

    def duplicate(self, operation: str) -> None:
        raise AssertionError("an answer is no operation")

    def forward(self, generation: int) -> None:
        raise AssertionError("an answer is no operation")

    def send_answer(self, operation: LiveOperation, prompt: str) -> None:
        send = self.verbs.runner.recorder.send
        send(self.verbs.kernel.answer, operation, prompt, encode_json({"value": self.text}))
        send(self.call.result, {"operation": operation.id, "prompt_id": prompt})


@dataclass(slots=True)
class Follow:
    """A reader of the journal: page by page, at its own pace.

    Attributes:
        until: the seq after which it is complete; None follows for ever.
        finish: called when it is complete.
    """

    call: Call
    wanted: Wanted
    after: int
    until: int | None
    finish: Callable[[int], None]
    limit: int | None = None
    in_flight: bool = False
    items: int = 0


@dataclass(slots=True)
class Waiter:
    """A `run` or `wait` that has not been answered yet."""

    call: Call
    operation: str | None
    duplicate: bool
    request_id: str | None
    max_bytes: int | None
    due: float | None
    follow: Follow | None = None
    answering: bool = False
    pending: set[str] = field(default_factory=set)


class LinkVerbs:
    """Carries out what link clients ask."""

    def __init__(
        self,
        runner: Runner,
        kernel: KernelSide,
        desk: KernelRequests,
        journal: JournalDesk,
        server: LinkServer,
        *,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self.runner = runner
        self.kernel = kernel
        self._desk = desk
        self._journal = journal
        self._server = server
        self._status = status
        self._follows: list[Follow] = []
        self._waiters: list[Waiter] = []
        self._closers: list[Call] = []
        self._follow_seq = 0
        self._verbs: dict[str, tuple[type[Any], Callable[[Call, Any], None]]] = {
            "status": (NoArgs, self._status_verb),
            "invite": (InviteArgs, self._invite),
            "grants": (NoArgs, self._grants),
            "revoke": (RevokeArgs, self._revoke),
            "take": (TakeArgs, self._take),
            "hand_back": (HandBackArgs, self._hand_back),
            "release": (NoArgs, self._release),
            "policy": (PolicyArgs, self._policy),
            "run": (RunArgs, self._run),
            "wait": (WaitArgs, self._wait),
            "read": (ReadArgs, self._read),
            "interrupt": (InterruptArgs, self._interrupt),
            "answer": (AnswerArgs, self._answer),
            "log": (LogArgs, self._log),
            "verify": (VerifyArgs, self._verify),
            "rename": (RenameArgs, self._rename),
            "restart": (NoArgs, self._restart),
            "close": (CloseArgs, self._close),
        }
        server.verb = self._dispatch
        server.cancel = self._cancel
        runner.loop.add_timer(self._next_timer)

    def _dispatch(
        self, connection: LinkConnection, number: int, verb: str, args: dict[str, Any], _: bytes
    ) -> None:
        call = Call(connection, number)
        known = self._verbs.get(verb)
        if known is None:
            call.fail("unknown_verb", f"no verb {verb!r}; there are {', '.join(sorted(self._verbs))}")
            return
        try:
            known[1](call, msgspec.convert(args, known[0]))
        except (msgspec.ValidationError, BadArguments, ValueError) as error:
            call.fail("bad_request", f"{verb}: {error}")

    def _submit(self, call: Call, event: ev.Event) -> list[fx.Effect] | None:
        """Submit an event that carries nothing.

        Returns:
            What came of it; None when it was refused, and the client has been told.
        """
        hand = NoHand()
        refusal = self.runner.submit(event, hand)
        if refusal is not None:
            self.runner.recorder.send(call.refuse, refusal)
            return None
        return hand.effects

    def _result(self, call: Call, result: Item) -> None:
        self.runner.recorder.send(call.result, result)

    # ------------------------------------------------------------------ looking

    def _status_verb(self, call: Call, args: NoArgs) -> None:
        self._result(call, self._status())

    def _grants(self, call: Call, args: NoArgs) -> None:
        session = self.runner.session
        now = time.monotonic()
        found = []
        for grant in session.grants.values():
            endpoint = self._desk.endpoint(grant.id)
            file = None if endpoint is None else endpoint.connection_file
            created = self._desk.files.get(grant.id, ("", 0.0))[0]
            found.append(
                {
                    "grant": grant.id,
                    "actor": grant.actor.id,
                    "kind": grant.actor.kind,
                    "role": grant.role,
                    "rights": sorted(grant.rights),
                    "transport": grant.transport,
                    "expires": expiry(None if grant.expires is None else grant.expires - now),
                    "created": created or None,
                    "connected": endpoint is not None and endpoint.is_present,
                    "connection_file": str(file) if file else None,
                }
            )
        self._result(call, {"grants": found})

    # ------------------------------------------------------------------ the floor

    def _take(self, call: Call, args: TakeArgs) -> None:
        if args.lease_seconds is not None and args.lease_seconds <= 0:
            raise BadArguments("lease_seconds must be more than 0")
        self._move_floor(
            call, ev.Take(call.attachment, args.reason or "", args.running, args.queue, args.lease_seconds)
        )

    def _hand_back(self, call: Call, args: HandBackArgs) -> None:
        self._move_floor(call, ev.HandBack(call.attachment, args.to, args.note or ""))

    def _release(self, call: Call, args: NoArgs) -> None:
        self._move_floor(call, ev.Release(call.attachment))

    def _policy(self, call: Call, args: PolicyArgs) -> None:
        policy: PolicyName = args.policy  # type: ignore[assignment]  # the core refuses what is no policy
        self._move_floor(call, ev.SetPolicy(call.attachment, policy))

    def _move_floor(self, call: Call, event: ev.Event) -> None:
        effects = self._submit(call, event)
        if effects is None:
            return
        session = self.runner.session
        ended = [e.operation for e in effects if isinstance(e, fx.End) and e.outcome == "superseded"]
        adopted = [e.operation for e in effects if isinstance(e, fx.Record) and e.type == "adopted"]
        self._result(
            call,
            {
                "driver": session.floor.driver,
                "state": session.floor.state.value,
                "generation": session.floor.generation,
                "policy": session.policy,
                "since": self.wall(session.floor.since),
                "superseded": ended,
                "adopted": adopted,
                "running": [lane.running for lane in session.lanes.values() if lane.running is not None],
            },
        )

    def wall(self, moment: float | None) -> str | None:
        """ISO 8601 of a session-clock second."""
        return None if moment is None else expiry(moment - time.monotonic())

    # ------------------------------------------------------------------ grants

    def _invite(self, call: Call, args: InviteArgs) -> None:
        runner = self.runner
        name = args.actor or f"agent-{secrets.token_hex(2)}"
        kind = args.kind or ("human" if name == runner.owner.id else "agent")
        if kind not in ACTOR_KINDS:
            raise BadArguments(f"kind must be one of {', '.join(ACTOR_KINDS)}, not {kind!r}")
        if name != runner.owner.id:
            try:
                check_actor_id(name)
            except BadName as error:
                raise BadArguments(str(error)) from error
        seconds = args.expires_seconds
        if seconds is not None and not 0 < seconds <= MAX_EXPIRES_SECONDS:
            raise BadArguments(f"expires_seconds must be more than 0 and at most {MAX_EXPIRES_SECONDS:.0f}")
        on_behalf_of = None if name == call.actor.id else call.actor.id
        actor = (
            runner.owner if name == runner.owner.id else Actor(name, kind, args.name or name, on_behalf_of)
        )
        role: Role = args.role
        grant = Grant(
            secrets.token_hex(4),
            actor,
            role,
            args.transport,
            None if seconds is None else time.monotonic() + seconds,
        )
        if self._submit(call, ev.Invite(call.attachment, grant)) is None:
            return
        endpoint = self._desk.endpoint(grant.id)
        if endpoint is None:
            raise AssertionError("an admitted invitation has opened its endpoint")
        self._desk.files[grant.id] = (expiry(0.0) or "", time.monotonic())
        self._result(
            call,
            {
                "connection_file": str(endpoint.connection_file),
                "token": endpoint.token,
                "actor": actor.id,
                "kind": actor.kind,
                "role": role,
                "rights": sorted(ROLE_RIGHTS[role]),
                "expires": expiry(seconds),
                "grant": grant.id,
                "transport": args.transport,
            },
        )

    def _revoke(self, call: Call, args: RevokeArgs) -> None:
        session = self.runner.session
        chosen = [g for g in session.grants.values() if args.grant in (g.id, g.actor.id)]
        if not chosen:
            self._submit(call, ev.Revoke(call.attachment, args.grant))
            return
        for grant in chosen:
            if self._submit(call, ev.Revoke(call.attachment, grant.id)) is None:
                return
        self._result(
            call,
            {
                "grant": chosen[0].id if len(chosen) == 1 else [g.id for g in chosen],
                "actor": chosen[0].actor.id,
            },
        )

    # ------------------------------------------------------------------ running

    def _run(self, call: Call, args: RunArgs) -> None:
        if len(args.code) > MAX_CODE_BYTES:
            self._result(
                call,
                {
                    "status": "refused",
                    "outputs": [],
                    "refusal": Refusal(
                        "too_large", f"code of more than {MAX_CODE_BYTES // 2**20} MiB"
                    ).to_dict(),
                },
            )
            return
        hand = RunHand(self, call, args, self._message(call.actor, args), {"code": args.code})
        if self._submit_run(call.attachment, call.actor, args, hand, hand.message) or hand.operation is None:
            return
        waiter = Waiter(
            call,
            hand.operation,
            hand.is_duplicate,
            args.request_id,
            args.max_bytes,
            None if args.wait_seconds is None else time.monotonic() + max(0.0, args.wait_seconds),
        )
        accepted = {"operation": hand.operation, "duplicate": hand.is_duplicate}
        self.runner.recorder.send(call.item, {"accepted": accepted})
        self.runner.recorder.send(self._await, waiter, args.stream)

    def _message(self, actor: Actor, args: RunArgs) -> Message:
        content = {
            "code": args.code,
            "silent": args.silent,
            "store_history": args.store_history and not args.silent,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": args.stop_on_error,
        }
        header = json.loads(
            make_header("execute_request", session=f"link-{uuid.uuid4().hex[:12]}", username=actor.id)
        )
        if args.lane != MAIN_LANE:
            header["subshell_id"] = args.lane
        return Message([], b"", encode_json(header), b"{}", b"{}", encode_json(content), [])

    def _submit_run(
        self, attachment: str, actor: Actor, args: RunArgs, hand: Hand, message: Message
    ) -> Refusal | None:
        header = json.loads(message.header)
        return self.runner.submit(
            ev.Submit(
                attachment=attachment,
                client_session=header["session"],
                msg_id=header["msg_id"],
                message_type="execute_request",
                input_class=execute_class(silent=args.silent, store_history=args.store_history),
                executes=True,
                lane=args.lane,
                # Only what makes it the same work: how long its author waits for it does not.
                digest=content_digest("run", encode_json([args.code, args.silent, args.store_history]), []),
                size=len(message.content),
                stop_on_error=args.stop_on_error,
                generation=args.generation,
                request_id=args.request_id,
                prior=self.runner.prior(actor.id, args.request_id),
                if_busy=args.if_busy,
                act=True,
            ),
            hand,
        )

    def run_for(self, attachment: Attachment, code: str) -> None:
        """Run code in the name of an attachment that waits for no answer."""
        args = RunArgs(code)
        message = self._message(attachment.actor, args)
        self._submit_run(attachment.id, attachment.actor, args, QuietRun(self, code, message), message)

    def _wait(self, call: Call, args: WaitArgs) -> None:
        operation = args.operation
        if operation is None and args.request_id is not None:
            prior = self.runner.prior(call.actor.id, args.request_id)
            if prior is None:
                self._submit_unknown(call, f"no request {args.request_id!r} of {call.actor.id} is known here")
                return
            operation = prior.operation
        due = None if args.wait_seconds is None else time.monotonic() + max(0.0, args.wait_seconds)
        waiter = Waiter(call, operation, False, args.request_id, args.max_bytes, due)
        if operation is not None and operation not in self.runner.session.operations:
            self._result_from_journal(waiter)
            return
        self._await(waiter, args.stream)

    def _submit_unknown(self, call: Call, message: str) -> None:
        call.refuse(Refusal("unknown_operation", message, next=("log", "status")))

    def _await(self, waiter: Waiter, stream: bool) -> None:
        """Answer when the operation has ended, or the time is over."""
        live = self.runner.operations.get(waiter.operation or "")
        if stream and live is not None:
            waiter.follow = Follow(
                waiter.call,
                Wanted("run", operation=live.id),
                max(0, live.first_seq - 1),
                None,
                lambda seq: None,
            )
            self._follows.append(waiter.follow)
        self._waiters.append(waiter)
        waiter.call.connection.on_close.append(lambda: self._drop(waiter))
        if waiter.operation is not None and (live is None or live.outcome is not None):
            self._operation_ended(waiter)
        elif live is not None:
            live.ended.append(lambda _, __: self._operation_ended(waiter))
        self._check_idle()
        if waiter.follow is not None:
            self._pump(waiter.follow)

    def _operation_ended(self, waiter: Waiter) -> None:
        if waiter.answering or waiter.call.done:
            return
        waiter.answering = True
        if waiter.follow is None:
            self._result_from_journal(waiter)
            return
        # First everything that was shown, then the result.
        follow = waiter.follow
        follow.until = self.runner.recorder.committed_seq
        follow.finish = lambda seq: self._result_from_journal(waiter)
        if not follow.in_flight:
            self._pump(follow)

    def _result_from_journal(self, waiter: Waiter) -> None:
        operation = waiter.operation
        if operation is None:
            return
        live = self.runner.operations.get(operation)
        first = 0 if live is None else live.first_seq

        def told(result: Item | JournalError) -> None:
            self._drop(waiter)
            if isinstance(result, JournalError):
                waiter.call.fail("journal", str(result))
                return
            if result["generation"] is None:
                self._submit_unknown(waiter.call, f"no operation {operation!r} is known here")
                return
            core = self.runner.session.operations.get(operation)
            if core is not None and core.is_active:
                result["status"] = core.state
            result["duplicate"] = waiter.duplicate
            result["request_id"] = waiter.request_id or result["request_id"]
            waiter.call.result(result)

        limit = DEFAULT_RESULT_BYTES if waiter.max_bytes is None else waiter.max_bytes
        self._journal.ask(lambda reader: result_of(reader, operation, max_bytes=limit, first_seq=first), told)

    def _drop(self, waiter: Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.follow is not None and waiter.follow in self._follows:
            self._follows.remove(waiter.follow)

    def _check_idle(self) -> None:
        """Answer those who wait for a session in which nothing runs or waits."""
        session = self.runner.session
        if (
            any(lane.running or lane.queue for lane in session.lanes.values())
            or session.backend == "starting"
        ):
            return
        for waiter in [w for w in self._waiters if w.operation is None]:
            self._drop(waiter)
            waiter.call.result(self._idle_result("idle"))

    def _idle_result(self, status: str) -> Item:
        session = self.runner.session
        return {
            "status": status,
            "operation": None,
            "generation": session.floor.generation,
            "incarnation": session.incarnation,
            "cursor": f"{session.incarnation}:{self.runner.recorder.committed_seq}",
            "basis": "observed",
            "outputs": [],
        }

    # ------------------------------------------------------------------ reading

    def _read(self, call: Call, args: ReadArgs) -> None:
        after = parse_cursor(args.after)
        until = None if args.follow else self.runner.recorder.committed_seq
        follow = Follow(call, Wanted(args.view), after, until, lambda seq: None)

        def finish(seq: int) -> None:
            call.result({"cursor": f"{self.runner.session.incarnation}:{seq}", "more": False})

        follow.finish = finish
        self._start(follow)

    def _log(self, call: Call, args: LogArgs) -> None:
        until = None if args.follow else self.runner.recorder.committed_seq
        types = None if args.types is None else frozenset(args.types)
        wanted = Wanted("log", args.actor, args.operation, types)
        follow = Follow(call, wanted, args.after or 0, until, lambda seq: None, limit=args.limit)

        def finish(seq: int) -> None:
            head = self.runner.recorder.store.head
            call.result({"head": {"seq": head.seq, "hash": head.hash}})

        follow.finish = finish
        self._start(follow)

    def _start(self, follow: Follow) -> None:
        self._follows.append(follow)
        follow.call.connection.on_close.append(lambda: self._stop(follow))
        self._pump(follow)

    def _stop(self, follow: Follow) -> None:
        if follow in self._follows:
            self._follows.remove(follow)

    def _pump(self, follow: Follow) -> None:
        """Fetch the next page for a reader, unless it still has something to read."""
        if follow.in_flight or follow not in self._follows:
            return
        if follow.call.connection.is_backed_up:
            follow.in_flight = True

            def resume() -> None:
                follow.in_flight = False
                self._pump(follow)

            follow.call.connection.on_drain.append(resume)
            return
        follow.in_flight = True
        until = follow.until

        def told(result: Page | JournalError) -> None:
            follow.in_flight = False
            self._page(follow, result)

        self._journal.ask(lambda reader: page(reader, follow.wanted, follow.after, until), told)

    def _page(self, follow: Follow, result: Page | JournalError) -> None:
        if follow not in self._follows:
            return
        if isinstance(result, JournalError):
            self._stop(follow)
            follow.call.fail("journal", str(result))
            return
        for item in result.items:
            if follow.limit is not None and follow.items >= follow.limit:
                self._stop(follow)
                follow.finish(follow.after)
                return
            follow.items += 1
            follow.call.item(item)
        follow.after = max(follow.after, result.after)
        if follow.until is not None and follow.after >= follow.until and not result.more:
            self._stop(follow)
            follow.finish(follow.after)
        elif result.more or follow.after < self.runner.recorder.committed_seq:
            self._pump(follow)

    def after_commit(self) -> None:
        """Something may have been recorded: readers that follow get their next page, waiters their answer."""
        seq = self.runner.recorder.committed_seq
        if seq != self._follow_seq:
            self._follow_seq = seq
            for follow in list(self._follows):
                self._pump(follow)
        if self._waiters:
            self._check_idle()

    def _next_timer(self) -> float | None:
        return min((w.due for w in self._waiters if w.due is not None), default=None)

    def run_timers(self) -> None:
        now = time.monotonic()
        for waiter in [w for w in self._waiters if w.due is not None and w.due <= now]:
            waiter.due = None
            if waiter.operation is None:
                self._drop(waiter)
                session = self.runner.session
                busy = next((lane.running for lane in session.lanes.values() if lane.running), None)
                state = session.operations[busy].state if busy else "queued"
                waiter.call.result({**self._idle_result(state), "operation": busy})
            else:
                self._operation_ended(waiter)

    def _cancel(self, connection: LinkConnection, number: int) -> None:
        for waiter in [
            w for w in self._waiters if w.call.connection is connection and w.call.number == number
        ]:
            self._drop(waiter)
            waiter.call.result(
                {**self._idle_result("cancelled"), "cancelled": True, "operation": waiter.operation}
            )
        for follow in [
            f for f in self._follows if f.call.connection is connection and f.call.number == number
        ]:
            self._stop(follow)
            incarnation = self.runner.session.incarnation
            follow.call.result({"cancelled": True, "cursor": f"{incarnation}:{follow.after}", "more": False})

    # ------------------------------------------------------------------ interrupting and answering

    def _interrupt(self, call: Call, args: InterruptArgs) -> None:
        effects = self._submit(call, ev.Interrupt(call.attachment, args.operation))
        if effects is None:
            return
        hit = next((e.operation for e in effects if isinstance(e, fx.InterruptBackend)), None)
        withdrawn = [e.operation for e in effects if isinstance(e, fx.End) and e.outcome == "withdrawn"]
        self._result(call, {"interrupted": hit, "withdrawn": withdrawn})

    def _answer(self, call: Call, args: AnswerArgs) -> None:
        prompts = self.runner.session.prompts
        chosen = next(
            (p for p in prompts.values() if args.prompt_id is None or p["prompt"] == args.prompt_id), None
        )
        secret = chosen is None or chosen["password"]
        hand = AnswerHand(self, call, args.text, {} if secret else {"value": args.text})
        self.runner.submit(ev.Answer(call.attachment, args.prompt_id), hand)

    # ------------------------------------------------------------------ the record

    def _verify(self, call: Call, args: VerifyArgs) -> None:
        receipt = _receipt(args.receipt)
        self._journal.verify(receipt, lambda report: call.result(msgspec.to_builtins(report)))

    # ------------------------------------------------------------------ lifecycle

    def _rename(self, call: Call, args: RenameArgs) -> None:
        check_session_name(args.name)
        if self._submit(call, ev.Lifecycle(call.attachment, "rename", args.name)) is not None:
            self._result(call, {"name": args.name})

    def _restart(self, call: Call, args: NoArgs) -> None:
        def told(problem: str | None) -> None:
            if problem is None:
                call.result({"incarnation": self.runner.session.incarnation})
            else:
                call.refuse(Refusal("backend_lost", problem, next=("log", "close")))

        if self.runner.session.backend == "starting" and self.runner.session.incarnation:
            self.kernel.restarted.append(told)  # one restart serves all who ask while it goes on
            return
        if self._submit(call, ev.Lifecycle(call.attachment, "restart")) is not None:
            self.kernel.restarted.append(told)

    def _close(self, call: Call, args: CloseArgs) -> None:
        if self._submit(call, ev.Lifecycle(call.attachment, "close", force=args.force)) is not None:
            self._closers.append(call)

    def tell_closed(self, pids: list[int]) -> None:
        for call in self._closers:
            call.result({"closed": True, "ended": pids})
        for waiter in list(self._waiters):
            if waiter.operation is None:
                self._drop(waiter)
                waiter.call.result(self._idle_result("idle"))

    @property
    def is_quiet(self) -> bool:
        """Whether no answer is owed any more."""
        return not self._waiters and not any(follow.until is not None for follow in self._follows)

    # ------------------------------------------------------------------ telling

    def tell(self, effect: fx.Tell) -> None:
        """Tell the connections of an actor that he lost the floor."""
        event = {
            "kind": "floor_lost",
            "by": effect.by,
            "reason": effect.reason,
            "generation": effect.generation,
        }
        for connection in list(self._server.connections):
            attachment = connection.attachment
            if attachment is not None and attachment.persistent and attachment.actor.id == effect.actor:
                connection.send({"event": event})

    def announce(self, effect: fx.Announce) -> None:
        if effect.kind in ("presence", "operation"):
            return
        for connection in list(self._server.connections):
            if connection.attachment is not None and connection.attachment.persistent:
                connection.send({"event": {"kind": effect.kind, **effect.data}})


def _msg_id(message: Message) -> str:
    return str(json.loads(message.header)["msg_id"])


def _receipt(receipt: str | list[Any] | None) -> tuple[int, str] | None:
    """Read `SEQ:HASH` or `[seq, hash]`.

    Raises:
        BadArguments: it is neither.
    """
    if receipt is None:
        return None
    parts = receipt.split(":") if isinstance(receipt, str) else receipt
    if len(parts) != 2 or not str(parts[0]).isdecimal() or not isinstance(parts[1], str):
        raise BadArguments("a receipt is SEQ:HASH, as `log` and `status` give it")
    return int(parts[0]), parts[1]
