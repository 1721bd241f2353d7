"""The verbs of the link: each decodes its arguments, submits, and says what came of it. None decides."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ..clocks import session_seconds
from ..core import effects as fx
from ..core import events as ev
from ..core.actor import ACTOR_KINDS, Actor, BadName, check_actor_id, check_session_name
from ..core.grants import ROLE_RIGHTS, Attachment, Grant, Role
from ..core.operations import MAIN_LANE
from ..core.policy import PolicyName, execute_class
from ..core.refusal import Refusal
from ..journal.errors import JournalError
from ..wire.kernel import Message, content_digest, encode_json
from .journal_desk import Item, Wanted, parse_cursor
from .kernel_requests import expiry, preview
from .link_activity import LinkActivity
from .link_calls import (
    AnswerArgs,
    BadArguments,
    Call,
    CloseArgs,
    DropArgs,
    HandBackArgs,
    InterruptArgs,
    InviteArgs,
    LogArgs,
    NoArgs,
    NoteArgs,
    PolicyArgs,
    ReadArgs,
    RenameArgs,
    RenewArgs,
    RevokeArgs,
    RunArgs,
    TakeArgs,
    VerifyArgs,
    WaitArgs,
    parse_receipt,
    refusal_data,
)
from .link_waiting import Follow, LinkWaiting, Waiter, refuse_unknown
from .runner import NoHand
from .synthesis import make_header
from .websocket_desk import AdoptArgs, NotAdopted

if TYPE_CHECKING:
    from .grant_endpoints import GrantEndpoints
    from .journal_desk import JournalDesk
    from .kernel_side import KernelSide
    from .link_endpoint import LinkConnection, LinkServer
    from .runner import Hand, LiveOperation, Runner
    from .websocket_desk import WebsocketDesk

log = logging.getLogger(__name__)

MAX_EXPIRES_SECONDS = 366 * 86_400.0
MAX_CODE_BYTES = 64 * 1024 * 1024


class RunHand(NoHand):
    """A `run` that is being submitted; without a call nobody waits for it."""

    def __init__(self, verbs: LinkVerbs, call: Call | None, args: RunArgs, message: Message) -> None:
        super().__init__(facts={"code": args.code})
        self._verbs = verbs
        self._call = call
        self._args = args
        self._message = message
        self.operation: str | None = None
        self.is_duplicate = False

    def rejected(self, refusal: Refusal) -> None:
        super().rejected(refusal)
        if self._call is None:
            log.error("code of the session's own was refused: %s", refusal.message)
            return
        result: Item = {
            "status": "refused",
            "operation": None,
            "request_id": self._args.request_id,
            "duplicate": False,
            "generation": refusal.generation,
            "incarnation": self._verbs.runner.session.incarnation,
            "outputs": [],
            "refusal": refusal_data(refusal),
        }
        self._verbs.runner.recorder.show(self._call.result, result)

    def admitted(self, operation: LiveOperation) -> None:
        operation.message = self._message
        operation.origin.header = self._message.header
        operation.source = self._args.code
        operation.preview = preview(self._args.code)
        operation.records_history = self._args.store_history and not self._args.silent
        self.operation = operation.id
        self._verbs.runner.remember_origin(_msg_id(self._message), operation.origin)

    def duplicate(self, operation: str) -> None:
        self.operation, self.is_duplicate = operation, True


class AnswerHand(NoHand):
    """An `answer` that is being submitted."""

    def __init__(self, verbs: LinkVerbs, call: Call, text: str, facts: dict[str, Any]) -> None:
        super().__init__(facts=facts)
        self._verbs = verbs
        self._call = call
        self._text = text

    def rejected(self, refusal: Refusal) -> None:
        super().rejected(refusal)
        self._verbs.runner.recorder.show(self._call.refuse, refusal)

    def send_answer(self, operation: LiveOperation, prompt: str) -> None:
        send = self._verbs.runner.recorder.send
        send(self._verbs.kernel.talk.answer, operation, prompt, encode_json({"value": self._text}))
        send(self._call.result, {"operation": operation.id, "prompt_id": prompt})


class LinkVerbs:
    """Carries out what link clients ask."""

    def __init__(
        self,
        runner: Runner,
        kernel: KernelSide,
        desk: GrantEndpoints,
        journal: JournalDesk,
        server: LinkServer,
        *,
        websockets: WebsocketDesk,
        status: Callable[[], dict[str, Any]],
        activity: Callable[[], dict[str, Any]],
    ) -> None:
        self.runner = runner
        self.kernel = kernel
        self._desk = desk
        self._journal = journal
        self._server = server
        self._status = status
        self._websockets = websockets
        self.waiting = LinkWaiting(runner, journal)
        self.activity = LinkActivity(runner, activity)
        self._closers: list[Call] = []
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
            "note": (NoteArgs, self._note),
            "log": (LogArgs, self._log),
            "verify": (VerifyArgs, self._verify),
            "rename": (RenameArgs, self._rename),
            "restart": (NoArgs, self._restart),
            "close": (CloseArgs, self._close),
            "adopt": (AdoptArgs, self._adopt),
            "renew": (RenewArgs, self._renew),
            "drop": (DropArgs, self._drop),
            "activity": (NoArgs, self._activity),
            "ping": (NoArgs, self._ping),
        }
        server.verb = self._dispatch
        server.cancel = self._cancel

    def _dispatch(
        self, connection: LinkConnection, number: int, verb: str, args: dict[str, Any], payload: bytes
    ) -> None:
        descriptors = connection.descriptors
        # Each `adopt` has one descriptor of its own, whatever becomes of it: the next one must not get it.
        descriptor = descriptors.popleft() if verb == "adopt" and descriptors else None
        call = Call(connection, number, payload, descriptor)
        known = self._verbs.get(verb)
        if known is None:
            call.fail("unknown_verb", f"no verb {verb!r}; there are {', '.join(sorted(self._verbs))}")
            return
        try:
            known[1](call, msgspec.convert(args, known[0]))
        except (msgspec.ValidationError, BadArguments, ValueError) as error:
            call.fail("bad_request", f"{verb}: {error}")
        finally:
            if call.descriptor is not None:
                os.close(call.descriptor)

    def _cancel(self, connection: LinkConnection, number: int) -> None:
        self.waiting.cancel(connection, number)
        self.activity.cancel(connection, number)

    def _submit(self, call: Call, event: ev.Event) -> list[fx.Effect] | None:
        """Submit an event that carries nothing.

        Returns:
            What came of it; None when it was refused, and the client has been told.
        """
        hand = NoHand()
        refusal = self.runner.submit(event, hand)
        if refusal is not None:
            self.runner.recorder.show(call.refuse, refusal)
            return None
        return hand.effects

    def _result(self, call: Call, result: Item) -> None:
        self.runner.recorder.send(call.result, result)

    # ------------------------------------------------------------------ looking

    def _status_verb(self, call: Call, args: NoArgs) -> None:
        self.runner.recorder.at_once(call.result, self._status())

    def _grants(self, call: Call, args: NoArgs) -> None:
        session = self.runner.session
        now = session_seconds()
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
                    "held": grant.id in self._desk.held,
                }
            )
        self.runner.recorder.show(call.result, {"grants": found})

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
        return None if moment is None else expiry(moment - session_seconds())

    # ------------------------------------------------------------------ grants

    def _invite(self, call: Call, args: InviteArgs) -> None:
        runner = self.runner
        name = f"agent-{secrets.token_hex(2)}" if args.actor is None else args.actor
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
        holder = call.connection.attachment if args.held else None
        if holder is not None and (holder.role != "owner" or holder.grant is not None):
            raise BadArguments("only the owner's own programs hold grants for others")
        on_behalf_of = None if name == call.actor.id or args.held else call.actor.id
        actor = (
            runner.owner if name == runner.owner.id else Actor(name, kind, args.name or name, on_behalf_of)
        )
        role: Role = args.role
        grant = Grant(
            secrets.token_hex(4),
            actor,
            role,
            args.transport,
            None if seconds is None else session_seconds() + seconds,
        )
        if holder is not None:
            self._desk.held[grant.id] = holder
        if self._submit(call, ev.Invite(call.attachment, grant)) is None:
            self._desk.held.pop(grant.id, None)
            return
        endpoint = self._desk.endpoint(grant.id)
        # Its sockets or its file may not have been made.
        if endpoint is None or grant.id not in runner.session.grants:
            refusal = _no_endpoint(self._desk.problem)
            self.runner.recorder.send(call.refuse, refusal)
            return
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
                "held": holder is not None,
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
        message = self._message(call.actor, args)
        hand = RunHand(self, call, args, message)
        if self._submit_run(call.attachment, call.actor, args, hand, message) or hand.operation is None:
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
        self.runner.recorder.send(self.waiting.answer_when_ended, waiter, args.stream)

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
                if_busy=args.if_busy,
                act=True,
            ),
            hand,
        )

    def run_for(self, attachment: Attachment, code: str) -> None:
        """Run code in the name of an attachment that waits for no answer."""
        args = RunArgs(code)
        message = self._message(attachment.actor, args)
        self._submit_run(attachment.id, attachment.actor, args, RunHand(self, None, args, message), message)

    def _wait(self, call: Call, args: WaitArgs) -> None:
        operation = args.operation
        if operation is None and args.request_id is not None:
            try:
                prior = self.runner.prior(call.actor.id, args.request_id)
            except JournalError as error:
                message = f"request ids cannot be looked up: {error}"
                call.refuse(Refusal("journal_unavailable", message, retry_after=1.0))
                return
            if prior is None:
                refuse_unknown(call, f"no request {args.request_id!r} of {call.actor.id} is known here")
                return
            operation = prior.operation
        due = None if args.wait_seconds is None else time.monotonic() + max(0.0, args.wait_seconds)
        waiter = Waiter(call, operation, False, args.request_id, args.max_bytes, due)
        if operation is not None and operation not in self.runner.session.operations:
            self.waiting.answer_from_journal(waiter)
            return
        self.waiting.answer_when_ended(waiter, args.stream)

    # ------------------------------------------------------------------ reading

    def _read(self, call: Call, args: ReadArgs) -> None:
        after = parse_cursor(args.after)
        until = None if args.follow else self.runner.recorder.committed_seq
        follow = Follow(call, Wanted(args.view), after, until, lambda seq: None, limit_bytes=args.limit_bytes)

        def finish(seq: int) -> None:
            call.result({"cursor": f"{self.runner.session.incarnation}:{seq}", "more": follow.cut})

        follow.finish = finish
        self.waiting.start(follow)

    def _log(self, call: Call, args: LogArgs) -> None:
        until = None if args.follow else self.runner.recorder.committed_seq
        types = None if args.types is None else frozenset(args.types)
        wanted = Wanted("log", args.actor, args.operation, types)
        follow = Follow(call, wanted, args.after or 0, until, lambda seq: None, limit=args.limit)

        def finish(seq: int) -> None:
            head = self.runner.recorder.store.head
            call.result({"head": {"seq": head.seq, "hash": head.hash}})

        follow.finish = finish
        self.waiting.start(follow)

    # ------------------------------------------------------------------ interrupting and answering

    def _interrupt(self, call: Call, args: InterruptArgs) -> None:
        effects = self._submit(call, ev.Interrupt(call.attachment, args.operation))
        if effects is None:
            return
        hit = next((e.operation for e in effects if isinstance(e, fx.InterruptBackend)), None)
        withdrawn = [e.operation for e in effects if isinstance(e, fx.End) and e.outcome == "withdrawn"]
        silent = self.kernel.watch.reason
        result: Item = {"interrupted": hit, "withdrawn": withdrawn}
        if hit is not None and silent is not None:  # the signal is sent, and may not be taken
            result |= {"unresponsive": silent, "next": ["wait", "restart"]}
        self.runner.recorder.show(call.result, result)

    def _answer(self, call: Call, args: AnswerArgs) -> None:
        prompts = self.runner.session.prompts
        chosen = next(
            (p for p in prompts.values() if args.prompt_id is None or p["prompt"] == args.prompt_id), None
        )
        secret = chosen is None or chosen["password"]
        hand = AnswerHand(self, call, args.text, {} if secret else {"value": args.text})
        self.runner.submit(ev.Answer(call.attachment, args.prompt_id), hand)

    # ------------------------------------------------------------------ the record

    def _note(self, call: Call, args: NoteArgs) -> None:
        if not args.text.strip():
            raise BadArguments("a note has some text")
        if self._submit(call, ev.Note(call.attachment, args.text)) is not None:
            self._result(call, {"seq": self.runner.recorder.last_seq})

    def _verify(self, call: Call, args: VerifyArgs) -> None:
        receipt = parse_receipt(args.receipt)
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
        self.waiting.session_ended()

    # ------------------------------------------------------------------ what a Jupyter server asks

    def _adopt(self, call: Call, args: AdoptArgs) -> None:
        if not self._is_server(call):
            call.refuse(Refusal("forbidden", "only a Jupyter server of the owner hands sockets over"))
            return
        if call.descriptor is None:
            raise BadArguments("the socket must come with this frame (SCM_RIGHTS)")
        try:
            adopted = socket.socket(fileno=call.descriptor)
        except OSError as error:
            raise BadArguments(f"what came with this frame is no socket: {error}") from error
        call.descriptor = None
        try:
            after = None if args.cursor is None else parse_cursor(args.cursor)
            attachment = self._websockets.adopt(args, adopted, call.payload, after)
        except (NotAdopted, ValueError) as error:
            adopted.close()
            call.refuse(Refusal("unsupported", str(error)))
            return
        self._result(call, {"attachment": attachment})

    def _is_server(self, call: Call) -> bool:
        """Whether the owner himself is at the other end, and so may speak of others."""
        attachment = call.connection.attachment
        return attachment is not None and attachment.role == "owner" and attachment.via is None

    def _renew(self, call: Call, args: RenewArgs) -> None:
        known = self._is_server(call) and self._websockets.renew(args.attachment, args.valid_until_seconds)
        self._result(call, {"renewed": known})

    def _drop(self, call: Call, args: DropArgs) -> None:
        if not self._is_server(call):
            call.refuse(
                Refusal("forbidden", "only the owner closes the connections of others", next=("revoke",))
            )
            return
        closed = self._websockets.drop(
            attachment=args.attachment, actor=args.actor, grant=args.grant, reason=args.reason
        )
        self._result(call, {"closed": closed})

    def _activity(self, call: Call, args: NoArgs) -> None:
        self.activity.watch(call)

    def _ping(self, call: Call, args: NoArgs) -> None:
        """For those who want to know whether anybody is there."""
        self.runner.recorder.show(call.result, {})

    # ------------------------------------------------------------------ telling

    def tell_back(self, seconds: float) -> None:
        """This process stood still; what was said before may not hold any more."""
        self.activity.tell_soon()
        event = {**self._status(), "kind": "backend", "stood_still_seconds": round(seconds, 1)}
        event = {key: event[key] for key in ("kind", "state", "execution_state", "stood_still_seconds")}
        for connection in list(self._server.connections):
            if connection.attachment is not None and connection.attachment.persistent:
                connection.send({"event": event})

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


def _no_endpoint(problem: Exception | None) -> Refusal:
    """Why a grant was taken back at once."""
    if isinstance(problem, PermissionError):
        return Refusal(
            "forbidden",
            f"no connection file is written where others could read or replace it: {problem.filename}: "
            f"{problem.strerror}",
            next=("move it away, or make it yours alone: chmod 700", "jupyter cmdop doctor"),
        )
    return Refusal(
        "queue_full",
        f"the keeper has no room for the sockets or the file of another grant ({problem})",
        next=("grants", "revoke", "free some space", "ulimit -n"),
    )
