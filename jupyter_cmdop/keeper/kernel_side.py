"""The keeper's side of the kernel: its start, its messages, its prompts, its death.

What a kernel sends is stamped with its author, recorded, and shown to every client, in that order. Nothing here
decides: it reports to the core and does what the core says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import zmq

from ..backends.kernel_channels import KernelChannels
from ..backends.kernel_process import KernelProcess, Launched, LaunchFailed
from ..core import effects as fx
from ..core import events as ev
from ..core.actor import KEEPER, KERNEL, UNATTRIBUTED
from ..wire.errors import WireError
from ..wire.kernel import (
    Message,
    decode_json,
    encode_json,
    join,
    parse_header,
    parse_parent,
    split,
    stamp_header,
    stamp_metadata,
    verify,
    without_stop_on_error,
)
from ..wire.websocket import encode_v1
from .history import History
from .stamps import Origin, relation_of
from .synthesis import Voice, error_content, make_header

if TYPE_CHECKING:
    from .kernel_endpoint import KernelEndpoint
    from .runner import LiveOperation, Runner

log = logging.getLogger(__name__)
T = TypeVar("T")

IOPUB_TURN = 512  # messages drained in one turn
REPLY_TURN = 64
INFO_RETRY_SECONDS = 0.1
STARTUP_SECONDS = 120.0
RESTARTS = 5  # in a row, as jupyter_client's restarter
STABLE_SECONDS = 10.0  # a kernel that lived so long starts the count anew
IDLE_PATIENCE_SECONDS = 1.0  # between a reply and its idle, before the idle counts as perhaps lost
INTERRUPT_PATIENCE_SECONDS = 5.0  # for the answer to an interrupt_request, before the queue goes on
RAW_OUTPUT_BYTES = 64 * 1024
REMOTE_POLL_SECONDS = 3.0
UNATTRIBUTED_KEPT = 1024

# libzmq's XPUB_NODROP as a number: the publisher waits for its subscriber instead of dropping. It is set inside
# ipykernel's IOPub thread, which owns the socket; nothing in argv, environment or files changes. `history_manager`
# keeps this session's cells out of the user's shared history file.
NODROP = (
    "(lambda thread: thread.schedule(lambda: thread.socket.setsockopt(69, 1)))("
    "getattr(get_ipython().kernel, 'iopub_thread', None) or get_ipython().kernel.iopub_socket.io_thread)"
)
OWN_HISTORY = "setattr(get_ipython().history_manager, 'enabled', False)"


class _Reply(msgspec.Struct):
    """What we read of a reply's content."""

    status: str = "ok"
    execution_count: int | None = None
    ename: str | None = None
    evalue: str | None = None


class _Status(msgspec.Struct):
    execution_state: str = ""


class _InputRequest(msgspec.Struct):
    prompt: str = ""
    password: bool = False


_REPLY = msgspec.json.Decoder(_Reply)
_STATUS = msgspec.json.Decoder(_Status)
_INPUT_REQUEST = msgspec.json.Decoder(_InputRequest)


class Viewers(Protocol):
    """Who sees what the kernel publishes."""

    def endpoints(self) -> Iterable[KernelEndpoint]: ...
    def kernel_is_ready(self) -> None: ...
    def kernel_has_left(self) -> None: ...


class KernelSide:
    """Owns the kernel process and the only sockets to it.

    Args:
        started: called once, with None when the first incarnation is ready or with the reason why there is none.
        stopped: called when the session's end has been carried out, with the pids that were ended.
        restarted: called when a restart that an actor asked for is complete.
    """

    def __init__(
        self,
        runner: Runner,
        context: zmq.Context[zmq.Socket[bytes]],
        process: KernelProcess,
        *,
        started: Callable[[str | None], None],
        stopped: Callable[[list[int]], None],
    ) -> None:
        self._runner = runner
        self._context = context
        self.process = process
        self._started: Callable[[str | None], None] | None = started
        self._stopped = stopped
        self.viewers: Viewers | None = None
        self.restarted: list[Callable[[str | None], None]] = []
        self.channels: KernelChannels | None = None
        self.voice = Voice("")
        self.kernel_sessions: set[str] = set()
        self.history = History()
        self.info: dict[str, Any] | None = None
        self.info_content = b""
        self.execution_count = 0
        self.may_drop = True
        self.subshells: set[str] = set()
        self.lost_reason: str | None = None
        self._incarnation = 0
        self._own = f"keeper-{uuid.uuid4().hex[:12]}"
        self._own_count = 0
        self._pidfd: int | None = None
        self._phase = "off"  # off, launching, greeting, preparing, ready, ending
        self._greetings: set[str] = set()
        self._subscribed = False
        self._preparing = ""
        self._next_greeting: float | None = None
        self._deadline: float | None = None
        self._restarts = 0
        self._ready_at = 0.0
        self._stopping = False
        self._await_idle: dict[str, float] = {}
        self._probes: dict[str, list[str]] = {}
        self._held_until: float | None = None
        self._held: list[tuple[LiveOperation, str, int]] = []
        self._interrupt_ids: set[str] = set()
        self._unattributed: OrderedDict[str, None] = OrderedDict()
        self._raw: dict[int, str] = {}
        self._poll_at: float | None = None
        runner.loop.add_timer(self._next_timer)

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Launch the next incarnation; the rest follows from the loop."""
        self._incarnation += 1
        self._phase = "launching"
        self._deadline = time.monotonic() + STARTUP_SECONDS
        self._runner.note(
            "backend_started",
            actor="keeper",
            data={"spec": self.process.spec_name, "incarnation": self._incarnation},
        )
        post = self._runner.loop.post
        self.process.launch(self._incarnation, lambda result: post(lambda: self._launched(result)))

    def _launched(self, result: Launched | LaunchFailed) -> None:
        if isinstance(result, LaunchFailed):
            self._give_up(str(result))
            return
        loop = self._runner.loop
        self._phase = "greeting"
        self._subscribed, self._greetings = False, set()
        self.channels = KernelChannels(self._context, result, bounded=result.language == "python")
        self.channels.fence = self._runner.session.floor.generation
        for name, descriptor in result.outputs.items():
            self._raw[descriptor] = name
            loop.add_reader(descriptor, self._raw_reader(descriptor))
        for channel, socket in self.channels.sockets.items():
            loop.add_socket(socket, self._reader(channel))
        if result.pid is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(result.pid)
                loop.add_reader(self._pidfd, self._process_ended)
        self._poll_at = time.monotonic() + REMOTE_POLL_SECONDS if self._pidfd is None else None
        self._greet()

    def _greet(self) -> None:
        """Ask for kernel_info until the answer and its status on iopub show that both directions work."""
        self._greetings.add(self._ask("shell", "kernel_info_request", {}))
        self._next_greeting = time.monotonic() + INFO_RETRY_SECONDS

    def _ask(self, channel: str, message_type: str, content: dict[str, Any]) -> str:
        """Send a request of the keeper's own; its messages are hidden from everybody."""
        channels = self._open_channels()
        self._own_count += 1
        msg_id = f"{self._own}_{self._own_count}"
        header = make_header(message_type, session=self._own, username="keeper", msg_id=msg_id)
        self._runner.remember_origin(
            msg_id, Origin(KEEPER, message_type, header=header, channel=channel, reading=True, hidden=True)
        )
        channels.send(channel, join(channels.launched.key, [header, b"{}", b"{}", encode_json(content)]))
        self._runner.loop.touch_all()
        return msg_id

    def _open_channels(self) -> KernelChannels:
        if self.channels is None:
            raise AssertionError("the kernel has no channels now")
        return self.channels

    def _greeted(self, message: Message) -> None:
        header = parse_header(message.header)
        self.voice = Voice(header.session)
        self.kernel_sessions.add(header.session)
        self.info_content = message.content
        info = decode_json(message.content)
        self.info = info if isinstance(info, dict) else {}
        self._check_greeting()

    def _check_greeting(self) -> None:
        if self._phase != "greeting" or self.info is None or not self._subscribed or not self.voice.session:
            return
        self._next_greeting = None
        self._phase = "preparing"
        if self.info.get("implementation") != "ipython":
            self._prepared(ok=False)
            return
        self._preparing = self._ask(
            "shell",
            "execute_request",
            {
                "code": "",
                "silent": True,
                "store_history": False,
                "allow_stdin": False,
                "stop_on_error": False,
                "user_expressions": {"cmdop": NODROP, "cmdop_history": OWN_HISTORY},
            },
        )

    def _prepared(self, *, ok: bool) -> None:
        """The publisher waits for us from here on, or is known not to."""
        self.may_drop = not ok
        self._preparing = ""
        channels = self._open_channels()
        if self.may_drop and channels.bounded:
            loop = self._runner.loop
            loop.remove_socket(channels.sockets["iopub"])
            loop.add_socket(channels.unbound_iopub(), self._reader("iopub"))
        channels.launched.connection_file.unlink(missing_ok=True)
        self._phase = "ready"
        self._deadline = None
        self._ready_at = time.monotonic()
        self._runner.stamper.incarnation = self._incarnation
        self._runner.note(
            "iopub", actor="keeper", data={"delivery": "may_drop" if self.may_drop else "waits_for_reader"}
        )
        self._runner.submit(ev.BackendReady(self._incarnation))
        if self.viewers is not None:
            self.viewers.kernel_is_ready()
        self._tell_started(None)
        for call in self.restarted:
            call(None)
        self.restarted.clear()

    def _tell_started(self, problem: str | None) -> None:
        if self._started is not None:
            started, self._started = self._started, None
            started(problem)

    def _give_up(self, reason: str) -> None:
        """No kernel, and no further try."""
        self.lost_reason = reason
        self._phase = "off"
        self._close_channels()
        self._runner.submit(ev.BackendDied(reason, will_restart=False))
        self._tell_started(reason)
        for call in self.restarted:
            call(reason)
        self.restarted.clear()

    @property
    def is_ready(self) -> bool:
        return self._phase == "ready"

    @property
    def pid(self) -> int | None:
        return None if self.channels is None else self.channels.launched.pid

    @property
    def pid_start(self) -> float | None:
        return None if self.channels is None else self.channels.launched.pid_start

    # ------------------------------------------------------------------ what the kernel sends

    def _reader(self, channel: str) -> Callable[[], None]:
        def read() -> None:
            channels = self.channels
            if channels is None or channel not in channels.sockets:
                return
            take = self._on_iopub if channel == "iopub" else self._on_reply
            for frames in channels.drain(channel, IOPUB_TURN if channel == "iopub" else REPLY_TURN):
                try:
                    message = split(frames)
                    if not verify(channels.launched.key, message):
                        raise WireError("its signature is not the kernel's")
                    take(channel, message)
                except WireError as error:
                    log.warning("a message of the kernel on %s cannot be read: %s", channel, error)
                    self._runner.note(
                        "gap",
                        actor="keeper",
                        data={"channel": channel, "reason": f"unreadable message: {error}"},
                    )

        return read

    def _origin_of(self, msg_id: str, message_type: str) -> Origin:
        origin = self._runner.origins.get(msg_id)
        if origin is not None:
            return origin
        if not msg_id:
            return Origin(KERNEL, "")
        if msg_id not in self._unattributed:
            self._unattributed[msg_id] = None
            if len(self._unattributed) > UNATTRIBUTED_KEPT:
                self._unattributed.popitem(last=False)
            self._runner.note(
                "unattributed",
                actor=UNATTRIBUTED.id,
                data={
                    "parent": msg_id,
                    "message": message_type,
                    "why": "somebody reached the kernel without passing this session",
                },
            )
        return Origin(UNATTRIBUTED, "")

    def _on_iopub(self, channel: str, message: Message) -> None:
        parent = parse_parent(message.parent)
        header = parse_header(message.header)
        if header.msg_type == "iopub_welcome":
            return
        if parent.session == self._own:
            self._on_own_iopub(parent.msg_id, header.msg_type, message)
            return
        origin = self._origin_of(parent.msg_id, header.msg_type)
        state = ""
        if header.msg_type == "status":
            state = msgspec_or(_STATUS, message.content, _Status()).execution_state
        elif header.msg_type == "execute_input" and origin.operation is not None:
            self._note_started(origin.operation, message.content)
        self._publish(origin, header.msg_type, message)
        if state == "idle" and origin.operation is not None:
            self._await_idle.pop(origin.operation, None)
            self._runner.submit(ev.Idle(origin.operation))

    def _on_own_iopub(self, msg_id: str, message_type: str, message: Message) -> None:
        if message_type != "status":
            return
        self._subscribed = True
        if msgspec_or(_STATUS, message.content, _Status()).execution_state != "idle":
            return
        if self._phase == "greeting":
            self._check_greeting()
        # FIFO: what was published before this idle has been published, or lost.
        for operation in self._probes.pop(msg_id, []):
            if self._await_idle.pop(operation, None) is not None:
                self._runner.note(
                    "gap", actor="keeper", operation=operation, data={"reason": "its idle message was lost"}
                )
                self._runner.submit(ev.Idle(operation, inferred=True))

    def _note_started(self, operation: str, content: bytes) -> None:
        live = self._runner.operations.get(operation)
        if live is None:
            return
        count = msgspec_or(_REPLY, content, _Reply()).execution_count
        if count is not None:
            self.execution_count = max(self.execution_count, count)
            live.facts.setdefault("execution_count", count)
        if live.records_history and count is not None:
            self.history.add(self._incarnation, count, live.source)
        self._runner.note(
            "started", actor=live.origin.actor.id, operation=operation, data={"execution_count": count}
        )

    def _publish(self, origin: Origin, message_type: str, message: Message) -> None:
        """Stamp, record, show."""
        runner = self._runner
        recorder = runner.recorder
        generation = runner.session.floor.generation
        if origin.operation is not None:
            operation = runner.session.operations.get(origin.operation)
            generation = generation if operation is None else operation.generation
        seq = recorder.last_seq + (0 if origin.reading else 1)
        stamp = runner.stamper.stamp(origin, relation_of(message_type), generation=generation, seq=seq)
        parts = [
            message.header,
            message.parent,
            stamp_metadata(message.metadata, stamp),
            message.content,
            *message.buffers,
        ]
        if not origin.reading:
            body = encode_v1("iopub", parts[0], parts[1], parts[2], parts[3], message.buffers)
            runner.note_message("output", origin, body)
        topic = message.identities[0] if message.identities else message_type.encode()
        recorder.show(self._show, topic, parts, f"{self._incarnation}:{seq}")

    def _show(self, topic: bytes, parts: list[bytes], cursor: str) -> None:
        if self.viewers is not None:
            for endpoint in self.viewers.endpoints():
                endpoint.publish(topic, parts, cursor)

    def _on_reply(self, channel: str, message: Message) -> None:
        parent = parse_parent(message.parent)
        header = parse_header(message.header)
        if channel == "stdin":
            self._on_stdin(parent.msg_id, header.msg_id, header.msg_type, message)
            return
        origin = self._runner.origins.get(parent.msg_id)
        if origin is None:
            self._origin_of(parent.msg_id, header.msg_type)
            return
        if origin.hidden:
            self._on_own_reply(parent.msg_id, header.msg_type, message)
            return
        self._follow_subshells(header.msg_type, origin, message)
        if origin.operation is not None and header.msg_type == "execute_reply":
            self._on_execute_reply(origin, message)
        elif origin.endpoint is not None:
            stamp = self._runner.stamper.stamp(
                origin,
                "by",
                generation=self._runner.session.floor.generation,
                seq=self._runner.recorder.last_seq,
            )
            parts = [
                message.header,
                message.parent,
                stamp_metadata(message.metadata, stamp),
                message.content,
                *message.buffers,
            ]
            self._runner.recorder.show(origin.endpoint.reply, channel, origin.identities, parts)

    def _on_execute_reply(self, origin: Origin, message: Message) -> None:
        runner = self._runner
        name = origin.operation or ""
        reply = msgspec_or(_REPLY, message.content, _Reply(status="error", ename="unreadable reply"))
        live = runner.operations.get(name)
        operation = runner.session.operations.get(name)
        if live is None or operation is None or live.outcome is not None:
            return
        live.facts.update(
            {
                key: value
                for key, value in (
                    ("status", reply.status),
                    ("execution_count", reply.execution_count),
                    ("ename", reply.ename),
                    ("evalue", reply.evalue),
                )
                if value is not None
            }
        )
        stamp = runner.stamper.stamp(
            origin, "by", generation=operation.generation, seq=runner.recorder.last_seq + 1
        )
        # Who keeps this can later prove that the journal was not cut behind it.
        head = runner.recorder.store.head
        stamp = stamp[:-1] + b',"receipt":"%d:%s"}' % (head.seq, head.hash.encode())
        metadata = stamp_metadata(message.metadata, stamp)
        body = encode_v1("shell", message.header, message.parent, metadata, message.content, message.buffers)
        runner.note_message("reply", origin, body)
        if origin.endpoint is not None:
            parts = [message.header, message.parent, metadata, message.content, *message.buffers]
            runner.recorder.show(origin.endpoint.reply, "shell", origin.identities, parts)
        self._await_idle[name] = time.monotonic() + IDLE_PATIENCE_SECONDS
        status: Any = reply.status if reply.status in ("ok", "error", "aborted") else "error"
        runner.submit(ev.Replied(name, status, reply.ename))
        if operation.outcome is not None:
            self._await_idle.pop(name, None)

    def _on_own_reply(self, msg_id: str, message_type: str, message: Message) -> None:
        if message_type == "kernel_info_reply" and msg_id in self._greetings and self._phase == "greeting":
            self._greeted(message)
        elif msg_id == self._preparing and self._phase == "preparing":
            content = decode_json(message.content)
            expressions = content.get("user_expressions", {}) if isinstance(content, dict) else {}
            result = expressions.get("cmdop", {}) if isinstance(expressions, dict) else {}
            self._prepared(ok=isinstance(result, dict) and result.get("status") == "ok")
        elif msg_id in self._interrupt_ids:
            self._interrupt_ids.discard(msg_id)
            self._let_go()

    def _follow_subshells(self, message_type: str, origin: Origin, message: Message) -> None:
        if message_type == "create_subshell_reply":
            content = decode_json(message.content)
            name = content.get("subshell_id") if isinstance(content, dict) else None
            if isinstance(name, str):
                self.subshells.add(name)

    def _on_stdin(self, parent_id: str, prompt_id: str, message_type: str, message: Message) -> None:
        if message_type != "input_request":
            return
        origin = self._origin_of(parent_id, message_type)
        live = self._runner.operations.get(origin.operation or "")
        if live is None:
            return
        request = msgspec_or(_INPUT_REQUEST, message.content, _InputRequest())
        live.prompts[prompt_id] = message
        self._runner.submit(ev.Prompted(live.id, prompt_id, request.prompt, request.password))

    def _raw_reader(self, descriptor: int) -> Callable[[], None]:
        """What the process writes around the protocol is recorded too, and never fills its pipe."""

        def read() -> None:
            try:
                data = os.read(descriptor, RAW_OUTPUT_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            name = self._raw[descriptor]
            if not data:
                self._runner.loop.remove_reader(descriptor)
                os.close(descriptor)
                del self._raw[descriptor]
                return
            self._runner.note(
                "backend_output", actor="kernel", data={"stream": name, "text": data.decode(errors="replace")}
            )

        return read

    # ------------------------------------------------------------------ what the core wants

    def set_fence(self, generation: int) -> None:
        if self.channels is not None:
            self.channels.fence = max(self.channels.fence, generation)

    def deliver(self, operation: LiveOperation, lane: str, generation: int) -> None:
        if self._held_until is not None:
            self._held.append((operation, lane, generation))
            return
        message, core = operation.message, self._runner.session.operations[operation.id]
        if message is None or self.channels is None:
            log.error("operation %s cannot be delivered: its input is gone", operation.id)
            return
        header = stamp_header(
            message.header,
            username=core.actor.id,
            actor=core.actor.id,
            operation=operation.id,
            generation=generation,
        )
        parts = [
            header,
            message.parent,
            message.metadata,
            without_stop_on_error(message.content),
            *message.buffers,
        ]
        frames = join(self.channels.launched.key, parts)
        if self.channels.send("shell", frames, generation=generation):
            operation.message = None
            return
        log.error("operation %s of generation %d was fenced off at the backend", operation.id, generation)
        self._runner.submit(ev.Replied(operation.id, "aborted"))
        self._runner.submit(ev.Idle(operation.id))

    def forward(self, channel: str, message: Message, origin: Origin, generation: int) -> None:
        """Pass on what is no operation: reading, widgets, the debugger."""
        if self.channels is None:
            return
        header = stamp_header(
            message.header,
            username=origin.actor.id,
            actor=origin.actor.id,
            operation=None,
            generation=generation,
        )
        parts = [header, message.parent, message.metadata, message.content, *message.buffers]
        fenced = None if origin.reading else generation
        self.channels.send(channel, join(self.channels.launched.key, parts), generation=fenced)

    def answer(self, operation: LiveOperation, prompt: str, content: bytes) -> None:
        request = operation.prompts.pop(prompt, None)
        if request is None or self.channels is None:
            return
        operation.shown_prompt = None
        header = make_header("input_reply", session=self._own, username="keeper")
        self.channels.send(
            "stdin", join(self.channels.launched.key, [header, request.header, b"{}", content])
        )

    def show_prompt(self, operation: LiveOperation, prompt: str, *, to_author: bool) -> None:
        request, endpoint = operation.prompts.get(prompt), operation.origin.endpoint
        if request is None or endpoint is None or not to_author or operation.shown_prompt == prompt:
            return
        stamp = self._runner.stamper.stamp(
            operation.origin,
            "by",
            generation=self._runner.session.floor.generation,
            seq=self._runner.recorder.committed_seq,
        )
        parts = [request.header, request.parent, stamp_metadata(request.metadata, stamp), request.content]
        if endpoint.reply("stdin", operation.origin.identities, parts):
            operation.shown_prompt = prompt

    def interrupt(self, operation: str) -> None:
        core = self._runner.session.operations.get(operation)
        if core is None or not core.is_active:
            return
        if self.channels is not None and self.channels.launched.interrupt_mode == "message":
            self._interrupt_ids.add(self._ask("control", "interrupt_request", {}))
            self._held_until = time.monotonic() + INTERRUPT_PATIENCE_SECONDS
        else:
            self.process.interrupt()

    def _let_go(self) -> None:
        """The interrupt has been taken, so that it cannot hit what comes next."""
        self._held_until = None
        held, self._held = self._held, []
        for operation, lane, generation in held:
            self.deliver(operation, lane, generation)

    def end_without_running(self, operation: LiveOperation, end: fx.End) -> None:
        """Give the client of an operation that did not run (or whose kernel is gone) what it waits for."""
        endpoint = operation.origin.endpoint
        if endpoint is None:
            return
        who = f" by {end.by}" if end.by else ""
        sentences = {
            "superseded": f"superseded{who} before it ran: the input is given back to you",
            "withdrawn": f"withdrawn{who} before it ran",
            "aborted": f"aborted{who} before it ran",
            "unknown": "the kernel ended while this ran; it may have had effects, and is not run again by itself",
            "interrupted": f"cut off{who} while it ran",
        }
        sentence = sentences[end.outcome] + (f" ({end.reason})" if end.reason else "")
        status = "aborted" if end.outcome in ("aborted", "withdrawn") else "error"
        content = error_content(end.outcome, sentence, status=status)
        content["execution_count"] = self.execution_count
        core = self._runner.session.operations.get(operation.id)
        generation = self._runner.session.floor.generation if core is None else core.generation
        stamp = self._runner.stamper.stamp(
            operation.origin, "by", generation=generation, seq=self._runner.recorder.committed_seq
        )

        def say() -> None:
            self.answer_in_place(
                endpoint, operation.origin, "execute_reply", content, stamp, show_error=status == "error"
            )

        self.in_order(operation.origin, say)

    def in_order(self, origin: Origin, say: Callable[[], None]) -> None:
        """Call `say` when the client has been answered what it sent earlier to the same lane.

        A kernel answers in the order in which it was asked, and clients rely on it: jupyter_client throws away a
        reply that comes before the one it waits for, and would then wait for ever.
        """
        operations = self._runner.session.operations
        earlier = None
        for live in self._runner.operations.values():
            if live.origin is origin:
                break  # what was admitted later waits for this one, not the other way round
            if live.origin.endpoint is origin.endpoint and live.outcome is None:
                core = operations[live.id]
                if (core.client_session, core.lane) == (origin.client_session, origin.lane):
                    earlier = live
        if earlier is None:
            say()
        else:
            earlier.ended.append(lambda _, __: say())

    def answer_in_place(
        self,
        endpoint: KernelEndpoint,
        origin: Origin,
        reply_type: str,
        content: dict[str, Any] | bytes,
        stamp: bytes,
        *,
        show_error: bool = False,
    ) -> None:
        """Say what the kernel would: busy, an error where there is one, the reply, idle."""
        metadata = b'{"cmdop":' + stamp + b"}"
        cursor = f"{self._incarnation}:{self._runner.recorder.committed_seq}"
        parent, voice = origin.header, self.voice
        endpoint.publish(b"status", voice.status("busy", parent, metadata), cursor)
        if show_error and isinstance(content, dict):
            shown = {key: content[key] for key in ("ename", "evalue", "traceback")}
            endpoint.publish(b"error", voice.say("error", parent, shown, metadata), cursor)
        endpoint.reply(origin.channel, origin.identities, voice.say(reply_type, parent, content, metadata))
        endpoint.publish(b"status", voice.status("idle", parent, metadata), cursor)

    # ------------------------------------------------------------------ time, death, end

    def _next_timer(self) -> float | None:
        due = [
            when
            for when in (
                self._next_greeting,
                self._deadline,
                self._held_until,
                self._poll_at,
                *(self._await_idle.values() if self._phase == "ready" else ()),
            )
            if when is not None
        ]
        return min(due, default=None)

    def run_timers(self) -> None:
        now = time.monotonic()
        if self._next_greeting is not None and now >= self._next_greeting and self._phase == "greeting":
            self._greet()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self.process.end(lambda pids: None, force=True)
            self._give_up(f"the kernel did not answer within {STARTUP_SECONDS:.0f} s")
        if self._held_until is not None and now >= self._held_until:
            self._let_go()
        if self._poll_at is not None and now >= self._poll_at:
            self._poll_at = now + REMOTE_POLL_SECONDS
            self._poll()
        late = [name for name, due in self._await_idle.items() if now >= due]
        if late and self._phase == "ready":
            for name in late:
                self._await_idle[name] = now + IDLE_PATIENCE_SECONDS * 10
            self._probes[self._ask("shell", "kernel_info_request", {})] = late

    def _poll(self) -> None:
        if self.pid is not None:
            if self.process.exit_reason() is not None:
                self._process_ended()
            return
        post = self._runner.loop.post

        def told(alive: bool) -> None:
            if not alive:
                post(self._process_ended)

        self.process.poll_remote(told)

    def _process_ended(self) -> None:
        if self._phase in ("off", "ending", "launching"):
            if self._pidfd is not None:
                self._close_pidfd()
            return
        for channel in ("iopub", "shell", "control", "stdin"):
            self._reader(channel)()  # what it said before it died still counts
        reason = self.process.exit_reason() or "the kernel ended"
        was_ready = self._phase == "ready"
        for descriptor in list(self._raw):
            self._raw_reader(descriptor)()
        self._close_channels()
        if not was_ready and self._started is not None:
            self._phase = "off"
            self._give_up(f"{reason} before it was ready")
            return
        if time.monotonic() - self._ready_at >= STABLE_SECONDS and was_ready:
            self._restarts = 0
        self._restarts += 1
        again = self._restarts <= RESTARTS
        self._runner.submit(ev.BackendDied(reason, will_restart=again))
        if self.viewers is not None:
            self.viewers.kernel_has_left()
        if not again:
            self._give_up(f"{reason}; it was restarted {RESTARTS} times in a row")
            return
        self._runner.note("restarted", actor="keeper", data={"reason": reason, "try": self._restarts})
        self.start()

    def restart(self) -> None:
        """End this incarnation and start the next; asked for by an actor."""
        self._phase = "ending"
        if self.viewers is not None:
            self.viewers.kernel_has_left()
        self._say_goodbye(restart=True)
        post = self._runner.loop.post

        def ended(pids: list[int]) -> None:
            post(self._restart_ended)

        self.process.end(ended)

    def _restart_ended(self) -> None:
        self._close_channels()
        if not self._stopping:
            self._restarts = 0
            self.start()

    def stop(self) -> None:
        """End the kernel and say so."""
        self._stopping = True
        was_open = self.channels is not None
        self._phase = "ending"
        if was_open:
            self._say_goodbye(restart=False)
        post = self._runner.loop.post
        self.process.end(lambda pids: post(lambda: self._all_ended(pids)), force=not was_open)

    def _all_ended(self, pids: list[int]) -> None:
        self._close_channels()
        self._stopped(pids)

    def abandon(self) -> None:
        """Leave no kernel, whatever state things are in."""
        self._phase = "ending"
        if self.process.exit_reason() is None and self.pid is not None:
            done = threading.Event()
            self.process.end(lambda pids: done.set(), force=True)
            done.wait(10)
        self._close_channels()

    def _say_goodbye(self, *, restart: bool) -> None:
        if self.channels is not None:
            self._ask("control", "shutdown_request", {"restart": restart})

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            self._runner.loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _close_channels(self) -> None:
        self._close_pidfd()
        self._poll_at = None
        self._next_greeting = None
        self._await_idle.clear()
        self._probes.clear()
        self._held.clear()
        self._held_until = None
        self._interrupt_ids.clear()
        self.subshells.clear()
        self.info = None
        for descriptor in list(self._raw):
            self._runner.loop.remove_reader(descriptor)
            os.close(descriptor)
        self._raw.clear()
        if self.channels is not None:
            for socket in self.channels.sockets.values():
                self._runner.loop.remove_socket(socket)
            self.channels.close()
            self.channels = None


def msgspec_or(decoder: msgspec.json.Decoder[T], raw: bytes, otherwise: T) -> T:
    """Decode, or take `otherwise` where a kernel's content is not as specified."""
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        return otherwise
