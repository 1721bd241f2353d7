"""What kernel clients send: decoded, its author named by the key that signed it, submitted.

Every message that is not let in is answered the way a kernel would answer an error, so that no client hangs; what
cannot be answered (it is not signed, not readable, or a copy) is counted and recorded, at a bounded rate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core import events as ev
from ..core.operations import MAIN_LANE
from ..core.policy import (
    CONTROL_CLASSES,
    SHELL_CLASSES,
    UNKNOWN_CLASS,
    InputClass,
    debug_class,
    execute_class,
)
from ..core.refusal import Refusal
from ..wire.errors import WireError
from ..wire.kernel import (
    ExecuteRequest,
    Header,
    Message,
    client_stamp,
    content_digest,
    decode_json,
    parse_execute,
    parse_header,
    parse_parent,
    split,
    strict_object,
    verify,
)
from .clients import Client, Published
from .history import parse_history
from .kernel_listen import COMM_TYPES
from .stamps import Origin
from .synthesis import detach_content, error_content, refusal_content

if TYPE_CHECKING:
    from ..core import effects as fx
    from .kernel_endpoint import KernelEndpoint
    from .kernel_side import KernelSide
    from .runner import LiveOperation, Runner

log = logging.getLogger(__name__)

PREVIEW_CHARACTERS = 80
REFUSALS_RECORDED_PER_SECOND = 10
# A cell that is just this leaves the client; the kernel and everybody else stay.
LEAVING = frozenset({"exit", "quit", "exit()", "quit()", "exit;", "quit;", "%exit", "%quit"})


@dataclass(slots=True)
class Meter:
    """Records at most so many refusals a second, and then how many there were."""

    second: int = 0
    recorded: int = 0
    skipped: int = 0

    def admit(self) -> int | None:
        """None when this one is not recorded; else how many before it were not."""
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.recorded = second, 0
        if self.recorded >= REFUSALS_RECORDED_PER_SECOND:
            self.skipped += 1
            return None
        self.recorded += 1
        skipped, self.skipped = self.skipped, 0
        return skipped


@dataclass(slots=True)
class Request:
    """A message of a kernel client that is being handled: the `Hand` of its event."""

    desk: KernelRequests
    endpoint: Client
    channel: str
    message: Message
    header: Header
    origin: Origin
    execute: ExecuteRequest | None = None
    composed_before: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reply_type(self) -> str | None:
        """What answers it; None for a comm message, of which a client only sees that it was handled: busy, idle."""
        kind = self.header.msg_type.removesuffix("_request")
        return None if kind == self.header.msg_type else f"{kind}_reply"

    def rejected(self, refusal: Refusal) -> None:
        if self.channel == "stdin":
            return  # an input_reply is not answered
        if self.header.msg_type in COMM_TYPES:
            self.desk.runner.recorder.show(self.desk.take_back, self)
            return
        content = refusal_content(refusal)
        if self.execute is not None:
            content["execution_count"] = self.desk.kernel.state.execution_count
        self.answer(content, show_error=self.execute is not None and not self.execute.silent)

    def answer(self, content: dict[str, Any] | bytes, *, show_error: bool = False) -> None:
        desk, runner = self.desk, self.desk.runner

        def say() -> None:
            stamp = runner.stamp_now(self.origin)
            desk.kernel.talk.answer_in_place(
                self.endpoint, self.origin, self.reply_type, content, stamp, show_error=show_error
            )

        # It lets nothing happen, so it is said also while nothing can be recorded.
        if self.execute is not None:
            runner.recorder.show(desk.kernel.talk.in_order, self.origin, say)
        else:
            runner.recorder.show(say)

    def admitted(self, operation: LiveOperation) -> None:
        self.origin.operation = operation.id
        operation.origin = self.origin
        operation.message = self.message
        if self.execute is not None:
            operation.source = self.execute.code
            operation.preview = preview(self.execute.code)
            operation.records_history = self.execute.store_history and not self.execute.silent
        self.desk.runner.remember_origin(self.header.msg_id, self.origin)

    def duplicate(self, operation: str) -> None:
        self.desk.repeat(operation, self)

    def forward(self, generation: int) -> None:
        if self.desk.kernel.state.channels is None:
            self.rejected(
                Refusal("busy", "the kernel is starting: ask again", retry_after=1.0, next=("ask again",))
            )
            return
        if self.header.msg_type in COMM_TYPES:
            self.desk.kernel.listen.widgets.note(self.header.msg_type, self.message.content)
        self.origin.reading = self.origin.reading or self.header.msg_type.endswith("_request")
        self.desk.runner.remember_origin(self.header.msg_id, self.origin)
        self.desk.runner.recorder.send(
            self.desk.kernel.talk.forward, self.channel, self.message, self.origin, generation
        )

    def send_answer(self, operation: LiveOperation, prompt: str) -> None:
        self.desk.runner.recorder.send(self.desk.kernel.talk.answer, operation, prompt, self.message.content)


class KernelRequests:
    """Takes what kernel clients send, whichever way they come."""

    def __init__(
        self,
        runner: Runner,
        kernel: KernelSide,
        *,
        repeat_result: Callable[[str, Request], None],
    ) -> None:
        self.runner = runner
        self.kernel = kernel
        self._repeat_result = repeat_result
        self._meters: dict[str, Meter] = {}
        self._waiting_for_info: list[Request] = []

    def forget(self, client: Client) -> None:
        """A client's endpoint is closed."""
        self._meters.pop(client.attachment, None)
        self._waiting_for_info = [r for r in self._waiting_for_info if r.endpoint is not client]

    def kernel_is_ready(self) -> None:
        waiting, self._waiting_for_info = self._waiting_for_info, []
        for request in waiting:
            self._answer_info(request)

    # ------------------------------------------------------------------ receiving

    def receive_frames(self, endpoint: KernelEndpoint, channel: str, frames: list[bytes]) -> None:
        """Take the frames of one ZMQ message; whose key signed them is their author."""
        try:
            message = split(frames)
            if not verify(endpoint.key, message):
                raise WireError("it is not signed with the key of this connection")
            header = parse_header(message.header)
        except WireError as error:
            self.note_refused(endpoint, "forbidden", f"a message on {channel} was not let in: {error}")
            return
        # A copied execute_request is known by its message id and content, and told what came of the first.
        if header.msg_type != "execute_request" and not endpoint.seen.is_new(message.signature):
            self.note_refused(
                endpoint, "request_id_conflict", f"message {header.msg_id} on {channel} came a second time"
            )
            return
        self.receive(endpoint, channel, message, header)

    def receive(
        self, client: Client, channel: str, message: Message, header: Header, *, composed_before: bool = False
    ) -> None:
        """Take one message whose author is known; `composed_before` as in `Submit`."""
        if header.session in self.kernel.state.sessions:
            self.note_refused(client, "forbidden", f"a message of the kernel came back on {channel}")
            return
        origin = Origin(
            client.actor,
            header.msg_type,
            header=message.header,
            endpoint=client,
            identities=message.identities,
            channel=channel,
            client_session=header.session,
            lane=header.subshell_id or MAIN_LANE,
        )
        request = Request(self, client, channel, message, header, origin, composed_before=composed_before)
        try:
            self._dispatch(request, client.attachment)
        except WireError as error:
            refusal = Refusal("unsupported", f"{header.msg_type} cannot be read: {error}")
            self.note_refused(client, refusal.code, refusal.message)
            request.rejected(refusal)

    def note_refused(self, client: Client, code: str, message: str) -> None:
        skipped = self._meters.setdefault(client.attachment, Meter()).admit()
        if skipped is None:
            return
        data: dict[str, Any] = {"code": code, "message": message}
        if skipped:
            data["unrecorded_before"] = skipped
        log.warning("refused from the endpoint of %s: %s", client.actor.id, message)
        # The author is not known: the message is not his who holds the key, or is a copy.
        self.runner.note(
            "refused", grant=client.grant_id, attachment=client.attachment, data=data, basis="intended"
        )

    def _dispatch(self, request: Request, attachment: str) -> None:
        kind = request.header.msg_type
        # A kernel would drop a message of which it cannot read these, and never answer it.
        client_stamp(request.message.metadata)
        parse_parent(request.message.parent)
        if request.channel == "stdin":
            if kind != "input_reply":
                raise WireError(f"{kind} does not belong on stdin")
            self._input_reply(request, attachment)
        elif request.channel == "shell":
            if kind == "kernel_info_request":
                self._kernel_info(request, attachment)
            elif kind == "execute_request":
                self._execute(request, attachment)
            elif kind == "history_request":
                self._history(request, attachment)
            elif kind in ("shutdown_request", "interrupt_request"):
                self._control_verb(request, attachment)
            elif kind in CONTROL_CLASSES:
                raise WireError("it belongs on the control channel")
            else:
                self._pass_on(request, attachment, SHELL_CLASSES.get(kind, UNKNOWN_CLASS))
        elif kind == "kernel_info_request":
            self._kernel_info(request, attachment)
        elif kind in ("shutdown_request", "interrupt_request"):
            self._control_verb(request, attachment)
        elif kind in SHELL_CLASSES:
            raise WireError("it belongs on the shell channel")
        else:
            self._control(request, attachment)

    def _submit(
        self, request: Request, attachment: str, input_class: InputClass, **fields: Any
    ) -> Refusal | None:
        return self.runner.submit(
            ev.Submit(
                attachment=attachment,
                client_session=request.header.session,
                msg_id=request.header.msg_id,
                message_type=request.header.msg_type,
                input_class=input_class,
                executes=request.execute is not None,
                composed_before=request.composed_before,
                **fields,
            ),
            request,
        )

    def _execute(self, request: Request, attachment: str) -> None:
        message = request.message
        execute = parse_execute(message.content)
        request.execute = execute
        if execute.code.strip() in LEAVING and not execute.silent:
            self._leave(request, attachment, "exit")
            return
        stamp = client_stamp(message.metadata)
        request.facts = {"code": execute.code}
        known = self.runner.origins.get(request.header.msg_id)
        if known is not None and known.endpoint is not request.endpoint and known.operation is not None:
            request.rejected(
                Refusal(
                    "request_id_conflict",
                    f"message id {request.header.msg_id!r} belongs to another client of this session",
                    next=("use a new message id",),
                )
            )
            return
        self._submit(
            request,
            attachment,
            execute_class(silent=execute.silent, store_history=execute.store_history),
            lane=request.header.subshell_id or MAIN_LANE,
            digest=content_digest(request.header.msg_type, message.content, message.buffers),
            size=len(message.content) + sum(map(len, message.buffers)),
            stop_on_error=execute.stop_on_error,
            generation=stamp.generation,
            request_id=stamp.request_id,
        )

    def _pass_on(self, request: Request, attachment: str, input_class: InputClass) -> None:
        request.message.content = _object(request.message.content, "content")
        request.origin.reading = input_class in (InputClass.READING, InputClass.PEER_READING)
        self._submit(request, attachment, input_class)

    def _control(self, request: Request, attachment: str) -> None:
        kind = request.header.msg_type
        input_class = CONTROL_CLASSES.get(kind, UNKNOWN_CLASS)
        if kind == "debug_request":
            content = decode_json(request.message.content)
            command = content.get("command") if isinstance(content, dict) else None
            input_class = debug_class(command if isinstance(command, str) else "")
        elif kind == "delete_subshell_request" and self._is_busy_subshell(request):
            return
        self._pass_on(request, attachment, input_class)

    def _is_busy_subshell(self, request: Request) -> bool:
        """Deleting a busy subshell would stop the kernel's shell and control for everybody: it is refused."""
        content = decode_json(request.message.content)
        name = content.get("subshell_id") if isinstance(content, dict) else None
        lane = self.runner.session.lanes.get(name) if isinstance(name, str) else None
        if lane is None or lane.running is None:
            return False
        self._refuse(request, "busy", f"subshell {name} runs operation {lane.running}", ("wait",))
        return True

    def _refuse(self, request: Request, code: str, message: str, next_: tuple[str, ...] = ()) -> None:
        self.runner.note(
            "refused",
            actor=request.endpoint.actor.id,
            grant=request.endpoint.grant_id,
            basis="intended",
            data={"code": code, "message": message, "what": request.header.msg_type},
        )
        request.rejected(Refusal(code, message, next=next_))

    # ------------------------------------------------------------------ answered here

    def take_back(self, request: Request) -> None:
        """Answer a widget's change that was not let in: busy, the state as it is, idle."""
        stamp = self.runner.stamp_now(request.origin)
        metadata, parent, voice = b'{"cmdop":' + stamp + b"}", request.origin.header, self.kernel.state.voice
        state = self.kernel.listen.widgets.take_back(request.message.content)
        endpoint = request.endpoint
        endpoint.publish(Published(b"status", voice.status("busy", parent, metadata)))
        if state is not None:
            endpoint.publish(Published(b"comm_msg", voice.say("comm_msg", parent, state, metadata)))
        endpoint.publish(Published(b"status", voice.status("idle", parent, metadata)))

    def _kernel_info(self, request: Request, attachment: str) -> None:
        """From the cache, so that a newcomer need not wait for the cell that runs."""
        if not self.kernel.state.info_content:
            self._waiting_for_info.append(request)
            return
        self._answer_info(request)

    def _answer_info(self, request: Request) -> None:
        request.answer(self.kernel.state.info_content)

    def _history(self, request: Request, attachment: str) -> None:
        if "input" not in self.runner.session.attachments[attachment].rights:
            self._refuse(request, "read_only", "the history is for peers: what it holds was typed by others")
            return
        wanted = parse_history(request.message.content)
        request.answer(self.kernel.listen.history.answer(wanted, self.runner.session.incarnation))

    def _leave(self, request: Request, attachment: str, how: str) -> None:
        self.runner.note(
            "detach_requested",
            actor=request.endpoint.actor.id,
            grant=request.endpoint.grant_id,
            attachment=attachment,
            data={"how": how, "client_session": request.header.session},
        )
        if how == "exit":
            request.answer(detach_content(self.kernel.state.execution_count))
        else:
            request.answer({"status": "ok", "restart": False})

    def _control_verb(self, request: Request, attachment: str) -> None:
        if request.header.msg_type == "interrupt_request":
            if self.runner.submit(ev.Interrupt(attachment), request) is None:
                request.answer({"status": "ok"})
            return
        content = decode_json(request.message.content)
        if isinstance(content, dict) and content.get("restart"):
            self._refuse(
                request,
                "forbidden",
                "a kernel client does not restart a shared kernel",
                (f"jupyter cmdop restart {self.runner.name}",),
            )
            return
        self._leave(request, attachment, "shutdown_request")

    def _input_reply(self, request: Request, attachment: str) -> None:
        content = decode_json(request.message.content)
        value = content.get("value") if isinstance(content, dict) else None
        if not isinstance(value, str):
            raise WireError("an input_reply needs a text as its value")
        connection = (attachment, request.header.session)
        operations = self.runner.session.operations
        prompt = next(
            (
                p
                for name, p in self.runner.session.prompts.items()
                if (operations[name].attachment, operations[name].client_session) == connection
            ),
            None,
        )
        if prompt is not None and not prompt["password"]:
            request.facts = {"value": value}
        self.runner.submit(ev.Answer(attachment, client_session=request.header.session, stock=True), request)

    # ------------------------------------------------------------------ duplicates

    def repeat(self, operation: str, request: Request) -> None:
        """Answer with the first result: now if there is one, else when there is."""
        live = self.runner.operations.get(operation)
        if live is not None and live.outcome is None:

            def later(_: LiveOperation, __: fx.End) -> None:
                self._repeat_result(operation, request)

            live.ended.append(later)
        else:
            self.runner.recorder.send(self._repeat_result, operation, request)

    def show_result(self, request: Request, messages: list[tuple[str, Message]], operation: str) -> None:
        """Send the recorded messages of an operation again, as the answer to `request`.

        Args:
            messages: (channel, message) in their order, from the journal.
            operation: whose they are.
        """
        origin, endpoint = request.origin, request.endpoint
        if not endpoint.is_open:
            return
        same = any(m.parent and parent_id(m.parent) == request.header.msg_id for _, m in messages)
        replied = False
        for channel, message in messages:
            parts = [message.header, origin.header, message.metadata, message.content, *message.buffers]
            if channel == "shell":
                endpoint.reply("shell", origin.identities, parts)
                replied = True
            elif not same:  # a new message id has not seen the output; the same one has
                endpoint.publish(Published(b"repeated", parts))
        if not replied:
            live = self.runner.session.operations.get(operation)
            outcome = live.outcome if live is not None and live.outcome is not None else "unknown"
            content = error_content(outcome, f"operation {operation} ended as {outcome}")
            content["execution_count"] = self.kernel.state.execution_count
            request.answer(content)


def _object(raw: bytes, what: str) -> bytes:
    return raw if raw == b"{}" else strict_object(raw, what=what)


def parent_id(parent: bytes) -> str:
    decoded = decode_json(parent)
    name = decoded.get("msg_id") if isinstance(decoded, dict) else None
    return name if isinstance(name, str) else ""


def preview(source: str) -> str:
    line = source.strip().splitlines()[0] if source.strip() else ""
    return line if len(line) <= PREVIEW_CHARACTERS else line[: PREVIEW_CHARACTERS - 1] + "…"


def expiry(seconds: float | None) -> str | None:
    """ISO 8601 of a moment `seconds` from now: a label, never compared."""
    if seconds is None:
        return None
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
