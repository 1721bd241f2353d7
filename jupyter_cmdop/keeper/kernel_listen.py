"""What comes from the kernel: stamped with its author, recorded, shown; what it means is reported to the core."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..core import events as ev
from ..core.actor import KEEPER, KERNEL, UNATTRIBUTED
from ..core.operations import MAIN_LANE
from ..wire.errors import WireError
from ..wire.kernel import (
    Message,
    ParentHeader,
    decode_as,
    parse_header,
    parse_parent,
    split,
    stamp_metadata,
    verify,
)
from ..wire.websocket import encode_v1
from .clients import LONG_BYTES, Client, Published
from .history import History
from .kernel_state import KernelState
from .kernel_talk import REST_SECONDS, still_busy
from .losses import MessageNumbers
from .recorder import Worker
from .stamps import Origin, relation_of
from .widgets import WidgetStates

if TYPE_CHECKING:
    from .runner import Runner

log = logging.getLogger(__name__)
T = TypeVar("T")

IOPUB_TURN = 512  # messages drained in one turn
REPLY_TURN = 64
BURST = 24  # messages without a status or a pause, after which more is to be expected
SILENCE_SECONDS = 0.02
BACKED_UP_SECONDS = 0.05  # between two looks whether the disk has caught up
TURN_BYTES = (
    4 * 1024 * 1024
)  # read in one turn: what is read must be in memory, and takes its time to be recorded
IDLE_PATIENCE_SECONDS = 1.0  # between a reply and its idle, before the idle counts as perhaps lost
REPLY_PATIENCE_SECONDS = 1.0  # between an idle and its reply, which a kernel sends before
LOSS_PATIENCE_SECONDS = 1.0  # for a number that is missing: channels overtake each other
RAW_OUTPUT_BYTES = 64 * 1024
LAST_WORDS_MILLISECONDS = 20  # without a word, after which a dead kernel has said everything
LAST_WORDS_TURNS = 64
STARTING_LINES = 20  # of one piece of raw output, into the log
UNATTRIBUTED_KEPT = 1024
COMM_TYPES = frozenset({"comm_open", "comm_msg", "comm_close"})
# What a kernel publishes because of a request, and not under it: a thread prints under whatever was asked last.
OF_REQUEST = frozenset({"status", "execute_input", "shutdown_reply"})
AROUND = "somebody reached the kernel without passing this session"
REPEATED = f"{AROUND}, under the message id of a request that had passed it"


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


class KernelListen:
    """Reads the kernel's sockets and pipes.

    Args:
        own_reply: gets the replies to the keeper's own requests: (message id, type, message).
        own_status: told when a status of the keeper's own request was published (whether it was idle).
        heard: told of each channel on which something has come.

    Attributes:
        clients: who sees what the kernel publishes.
        raw: descriptors of the process's own output, by name.
    """

    def __init__(
        self,
        runner: Runner,
        state: KernelState,
        *,
        own_reply: Callable[[str, str, Message], None],
        own_status: Callable[[bool], None],
        heard: Callable[[str], None] = lambda channel: None,
    ) -> None:
        self._runner = runner
        self.state = state
        self._own_reply = own_reply
        self._own_status = own_status
        self._heard = heard
        self.clients: Callable[[], Iterable[Client]] = tuple
        self.history = History()
        self.widgets = WidgetStates()
        self.raw: dict[int, str] = {}
        self._await_idle: dict[str, float] = {}
        self._await_reply: dict[str, float] = {}
        self._idle_probes: dict[str, list[str]] = {}
        self._reply_probes: dict[str, list[str]] = {}
        self._start_probes: dict[str, list[str]] = {}
        self._unattributed: OrderedDict[str, None] = OrderedDict()
        self._is_at_rest = True  # the kernel: the last that it has said was that it is idle
        self._burst = 0
        self._burst_at = 0.0
        self._numbers = MessageNumbers()
        self._last_heard: Origin | None = None
        self._checking: dict[str, list[bytes]] = {}
        self._worker: Worker | None = None

    def next_timer(self) -> float | None:
        if self.state.phase != "ready":
            return None
        due = min(self._due(), default=None)
        missing = self._numbers.due
        if missing is None:
            return due
        return missing + LOSS_PATIENCE_SECONDS if due is None else min(due, missing + LOSS_PATIENCE_SECONDS)

    def _due(self) -> Iterator[float]:
        for waiting in self._waiting():
            yield from waiting.values()

    def overdue(self, now: float) -> set[str]:
        """The lanes in which for too long nothing is heard of an operation, or its reply or idle and not the other."""
        operations = self._runner.session.operations
        late = {name for waiting in self._waiting() for name, due in waiting.items() if due <= now}
        return {operations[name].lane if name in operations else MAIN_LANE for name in late}

    def expect_proof(self, lane: str, msg_id: str, now: float) -> None:
        """A request has gone out behind everything overdue in a lane: what it is answered before will never come.

        A request to another lane proves nothing: each works at its own pace.
        """
        operations = self._runner.session.operations
        for waiting, probes in zip(
            self._waiting(), (self._idle_probes, self._reply_probes, self._start_probes), strict=True
        ):
            late = [
                name
                for name, due in waiting.items()
                if due <= now and (operations[name].lane if name in operations else MAIN_LANE) == lane
            ]
            for name in late:
                waiting[name] = now + IDLE_PATIENCE_SECONDS * 10
            if late:
                probes[msg_id] = late

    def _waiting(self) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        return self._await_idle, self._await_reply, self.state.unheard

    def forget(self) -> None:
        """The kernel is gone: nothing more comes from it."""
        self.forget_waiting()
        self._checking.clear()
        self.widgets.forget()
        self._numbers = MessageNumbers()
        self._last_heard = None
        for descriptor in list(self.raw):
            self._runner.loop.remove_reader(descriptor)
            os.close(descriptor)
        self.raw.clear()

    def forget_waiting(self) -> None:
        """Nothing more is to be heard of what the kernel had."""
        for waiting in self._waiting():
            waiting.clear()
        for probes in (self._idle_probes, self._reply_probes, self._start_probes):
            probes.clear()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def reader(self, channel: str) -> Callable[[], bool]:
        if channel == "iopub":
            return self._read_iopub
        if channel == "hb":
            return self._read_heartbeat
        return lambda: self._read(channel, REPLY_TURN) is None

    def _read_iopub(self) -> bool:
        """Read what there is, and rest for a moment when more is to be expected, so that each turn has more to do.

        A kernel that prints as fast as it can wants the core that a turn takes, and most of a turn's cost is the same
        for one message as for many. The end of a cell is never delayed: its reply ends the rest.
        """
        if "iopub" in self._checking:
            return False
        if self._runner.recorder.is_backed_up and self.state.channels is not None:
            # The disk is behind by more than may wait in memory: what waits in the kernel costs us nothing.
            self._runner.loop.rest(self.state.channels.sockets["iopub"], BACKED_UP_SECONDS)
            return False
        count = self._read("iopub", IOPUB_TURN)
        if count is None:
            return True
        if "iopub" in self._checking:
            return False
        channels = self.state.channels
        now = self._runner.clock.monotonic()
        self._burst = count if now - self._burst_at > SILENCE_SECONDS else self._burst + count
        self._burst_at = now
        if (
            count > 0
            and self._burst > BURST
            and not self._is_at_rest
            and not self._await_idle
            and channels is not None
            and "iopub" in channels.sockets
        ):
            self._runner.loop.rest(channels.sockets["iopub"], REST_SECONDS)
        return False

    def _read_heartbeat(self) -> bool:
        if self.state.channels is not None and list(self.state.channels.drain("hb", REPLY_TURN)):
            self._note_heard("hb")
        return False

    def _note_heard(self, channel: str) -> None:
        state = self.state
        state.heard_at = self._runner.clock.monotonic()
        if channel == "iopub":
            state.published_at = state.heard_at
        if state.channels is not None:
            state.channels.asked_at = None
        self._heard(channel)

    def hear_out(self) -> None:
        """Take what a kernel that has ended said before: all of it counts, however much it is."""
        channels = self.state.channels
        for channel in () if channels is None else ("iopub", "shell", "control", "stdin"):
            if (frames := self._checking.pop(channel, None)) is not None:
                self._take(channel, frames)
            # libzmq's thread may still be reading what is in the kernel's socket.
            for _ in range(LAST_WORDS_TURNS):
                if self._read(channel, IOPUB_TURN, patience_milliseconds=LAST_WORDS_MILLISECONDS) == 0:
                    break
        for descriptor in list(self.raw):
            self.raw_reader(descriptor)()

    def _read(self, channel: str, most: int, *, patience_milliseconds: int = 0) -> int | None:
        """Take what has arrived.

        Returns:
            How many messages that were; None when there may be more.
        """
        channels = self.state.channels
        if channels is None or channel not in channels.sockets:
            return 0
        if channel in self._checking:
            return 0
        if patience_milliseconds:
            channels.sockets[channel].poll(patience_milliseconds)
        count = 0
        size = 0
        for frames in channels.drain(channel, most):
            count += 1
            length = sum(map(len, frames))
            size += length
            if length > LONG_BYTES and not patience_milliseconds:
                self._note_heard(channel)
                self._check_long(channel, frames, channels.launched.key)
                return count
            self._take(channel, frames)
            if size > TURN_BYTES:
                self._note_heard(channel)
                return None
        if count:
            self._note_heard(channel)
        return None if count == most else count

    def _check_long(self, channel: str, frames: list[bytes], key: bytes) -> None:
        """Have a thread check the signature of a long message; nothing behind it on its channel is read meanwhile."""
        self._checking[channel] = frames
        good: list[Message | WireError] = []

        def check() -> None:
            try:
                good.append(_verified(frames, key))
            except WireError as error:
                good.append(error)

        def checked() -> None:
            if (
                self._checking.get(channel) is not frames
            ):  # the kernel has gone, and what it said was heard out
                return
            del self._checking[channel]
            self._take(channel, frames, good[0] if good else None)
            channels = self.state.channels
            if channels is not None and channel in channels.sockets:
                self._runner.loop.touch(channels.sockets[channel])

        if self._worker is None:
            self._worker = Worker("kernel-signatures")
        self._worker.do(check, lambda: self._runner.loop.post(checked))

    def _take(self, channel: str, frames: list[bytes], checked: Message | WireError | None = None) -> None:
        channels = self.state.channels
        if channels is None:
            return
        take = self._on_iopub if channel == "iopub" else self._on_reply
        try:
            if isinstance(checked, WireError):
                raise checked
            take(channel, checked or _verified(frames, channels.launched.key))
        except WireError as error:
            log.warning("a message of the kernel on %s cannot be read: %s", channel, error)
            self._runner.note(
                "gap",
                actor="keeper",
                data={"channel": channel, "reason": f"unreadable message: {error}"},
            )

    def _origin_of(self, parent: ParentHeader, message_type: str) -> Origin:
        """Who is behind a message: the author of the request that it names, the kernel, or nobody we know."""
        msg_id = parent.msg_id
        origin = self._runner.origins.get(msg_id) if msg_id else None
        if origin is None:
            if not (msg_id or parent.msg_type or parent.session):
                return Origin(KERNEL, "")
            return self._around(msg_id or parent.session, msg_id, message_type, AROUND)
        if origin.hidden and msg_id not in self.state.own_waiting:
            # Ours is over. What prints since then does so by itself; what is asked since then was not asked by us.
            if message_type in OF_REQUEST and message_type != "shutdown_reply":
                return self._around(f"{msg_id} again", msg_id, message_type, REPEATED)
            return Origin(KERNEL, "")
        if message_type == "execute_input" and not self._may_start(origin):
            return self._around(f"{msg_id} again", msg_id, message_type, REPEATED)
        return origin

    def _may_start(self, origin: Origin) -> bool:
        """Whether the kernel may say that this request's code begins: once, and of an execute_request only."""
        if origin.operation is None:
            return origin.message_type == "execute_request"
        live = self._runner.operations.get(origin.operation)
        return live is None or not live.has_started

    def _around(self, key: str, msg_id: str, message_type: str, why: str) -> Origin:
        """Record, once a request, that the kernel was reached around us."""
        if key not in self._unattributed:
            self._unattributed[key] = None
            if len(self._unattributed) > UNATTRIBUTED_KEPT:
                self._unattributed.popitem(last=False)
            self._runner.note(
                "unattributed",
                actor=UNATTRIBUTED.id,
                data={"parent": msg_id, "message": message_type, "why": why},
            )
        return Origin(UNATTRIBUTED, "")

    def _count(self, msg_id: str) -> None:
        if self.state.may_drop and self.state.phase == "ready":
            self._numbers.note(msg_id, self._runner.clock.monotonic())

    def report_losses(self, now: float) -> None:
        """Record and show how many messages a publisher that drops has dropped, as far as their numbers tell."""
        lost = self._numbers.lost(now - LOSS_PATIENCE_SECONDS)
        if not lost:
            return
        heard = self._last_heard
        operation = None if heard is None else heard.operation
        self._runner.note(
            "gap",
            actor="keeper",
            operation=operation,
            data={"lost": lost, "reason": "the kernel published faster than it was read, and dropped them"},
        )
        text = f"[{lost} messages of the kernel are lost: it published them faster than they could be read]\n"
        parent = b"{}" if heard is None else heard.header
        header, _, metadata, content = self.state.voice.say(
            "stream", parent, {"name": "stderr", "text": text}, b"{}"
        )
        message = Message([], b"", header, parent, metadata, content, [])
        self._publish(Origin(KEEPER, "", operation=operation), "stream", message)

    def _on_iopub(self, channel: str, message: Message) -> None:
        parent = parse_parent(message.parent)
        header = parse_header(message.header)
        self._count(header.msg_id)
        if header.msg_type == "iopub_welcome":
            return
        if header.msg_type in OF_REQUEST and self._is_own(parent.msg_id, header.msg_type):
            self._on_own_iopub(parent.msg_id, header.msg_type, message)
            return
        origin = self._origin_of(parent, header.msg_type)
        if origin.hidden:  # printed by itself, as it happens while we ask something
            origin = Origin(KERNEL, "")
        if origin.operation is not None:
            self.state.unheard.pop(origin.operation, None)
            self._last_heard = origin
        state = ""
        if header.msg_type == "status":
            state = msgspec_or(_STATUS, message.content, _Status()).execution_state
        elif header.msg_type == "execute_input" and origin.operation is not None:
            self._note_started(origin.operation, message.content)
        elif header.msg_type in COMM_TYPES:
            self.widgets.note(header.msg_type, message.content)
        self._is_at_rest = state == "idle"
        if state:
            self._burst = 0
        self._publish(origin, header.msg_type, message)
        running = self._runner.session.lanes[MAIN_LANE].running
        if state == "idle" and running is not None and running != origin.operation:
            self._runner.recorder.show(self._show_still_busy)
        if state == "idle" and origin.operation is not None:
            self._await_idle.pop(origin.operation, None)
            self._runner.submit(ev.Idle(origin.operation))
            operation = self._runner.session.operations.get(origin.operation)
            if operation is not None and operation.is_active:
                self._await_reply[operation.id] = self._runner.clock.monotonic() + REPLY_PATIENCE_SECONDS

    def _is_own(self, msg_id: str, message_type: str) -> bool:
        """Whether this answers a request of the keeper's own. The id says it, not the session, which is no secret."""
        if msg_id in self.state.own_waiting:
            return True
        # A kernel says farewell at its very end, after its idle.
        origin = self._runner.origins.get(msg_id) if message_type == "shutdown_reply" else None
        return origin is not None and origin.hidden

    def _on_own_iopub(self, msg_id: str, message_type: str, message: Message) -> None:
        if message_type != "status":
            return
        is_idle = msgspec_or(_STATUS, message.content, _Status()).execution_state == "idle"
        if is_idle:
            self.state.own_waiting.discard(msg_id)
        self._own_status(is_idle)
        # FIFO: what was published before this idle has been published, or lost.
        for operation in self._idle_probes.pop(msg_id, []) if is_idle else []:
            if self._await_idle.pop(operation, None) is not None:
                self._runner.note(
                    "gap", actor="keeper", operation=operation, data={"reason": "its idle message was lost"}
                )
                self._say_idle(operation)
                self._runner.submit(ev.Idle(operation, inferred=True))
        # The same holds for what was asked before: a kernel drops a message that it cannot read, without a word.
        for operation in self._start_probes.pop(msg_id, []) if is_idle else []:
            if self.state.unheard.pop(operation, None) is not None:
                self._end_unanswered(operation)
                self._runner.submit(ev.Idle(operation, inferred=True))

    def _say_idle(self, operation: str) -> None:
        """Show the idle that was lost: until they see one, clients show its cell as running, for ever."""
        live = self._runner.operations.get(operation)
        parent = b"{}" if live is None else live.origin.header
        header, _, metadata, content = self.state.voice.status("idle", parent, b"{}")
        message = Message([], b"", header, parent, metadata, content, [])
        self._publish(Origin(KEEPER, "", operation=operation), "status", message)

    def _note_started(self, operation: str, content: bytes) -> None:
        live = self._runner.operations.get(operation)
        if live is None:
            return
        live.has_started = True
        count = msgspec_or(_REPLY, content, _Reply()).execution_count
        if count is not None:
            self.state.execution_count = max(self.state.execution_count, count)
            live.facts.setdefault("execution_count", count)
        if live.records_history and count is not None:
            self.history.add(self.state.incarnation, count, live.source)
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
        seq = recorder.last_seq if origin.reading else recorder.next_seq
        stamp = runner.stamper.stamp(origin, relation_of(message_type), generation=generation, seq=seq)
        parts = [
            message.header,
            message.parent,
            stamp_metadata(message.metadata, stamp),
            message.content,
            *message.buffers,
        ]
        topic = message.identities[0] if message.identities else message_type.encode()
        published = Published(
            topic, parts, incarnation=self.state.incarnation, seq=0 if origin.reading else seq
        )
        if not origin.reading:
            body = published.v1
            if len(body) > LONG_BYTES:
                for client in self.clients():
                    client.foresee(published)
            runner.note_message("output", origin, body, prepare=published.make_ready)
        recorder.show(self.show, published)

    def _show_still_busy(self) -> None:
        busy = still_busy(self._runner, self.state)
        if busy is not None:
            self.show(busy)

    def show(self, published: Published) -> None:
        for client in self.clients():
            client.publish(published)

    def _on_reply(self, channel: str, message: Message) -> None:
        parent = parse_parent(message.parent)
        header = parse_header(message.header)
        self._count(header.msg_id)
        if channel == "stdin":
            self._on_stdin(parent, header.msg_id, header.msg_type, message)
            return
        origin = self._runner.origins.get(parent.msg_id)
        if origin is None:
            self._origin_of(parent, header.msg_type)
            return
        if origin.hidden:
            self._on_own_reply(parent.msg_id, header.msg_type, message)
            return
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
        self._await_reply.pop(name, None)
        self.state.unheard.pop(name, None)
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
            origin, "by", generation=operation.generation, seq=runner.recorder.next_seq
        )
        # Who keeps this can later prove that the journal was not cut behind it.
        head = runner.recorder.store.head
        stamp = stamp[:-1] + b',"receipt":"%d:%s"}' % (head.seq, head.hash.encode())
        metadata = stamp_metadata(message.metadata, stamp)
        body = encode_v1("shell", message.header, message.parent, metadata, message.content, message.buffers)
        seq = runner.note_message("reply", origin, body)
        if origin.endpoint is not None:
            parts = [message.header, message.parent, metadata, message.content, *message.buffers]
            runner.recorder.show(origin.endpoint.reply, "shell", origin.identities, parts, seq)
        self._await_idle[name] = self._runner.clock.monotonic() + IDLE_PATIENCE_SECONDS
        runner.loop.end_rest()
        status: Any = reply.status if reply.status in ("ok", "error", "aborted") else "error"
        runner.submit(ev.Replied(name, status, reply.ename))
        if operation.outcome is not None:
            self._await_idle.pop(name, None)

    def _on_own_reply(self, msg_id: str, message_type: str, message: Message) -> None:
        self._own_reply(msg_id, message_type, message)
        for operation in self._reply_probes.pop(msg_id, []):
            if self._await_reply.pop(operation, None) is not None:
                self._end_unanswered(operation)

    def _end_unanswered(self, operation: str) -> None:
        """The kernel has done with it and will not reply (it failed, or dropped it): nobody may wait on."""
        live = self._runner.operations.get(operation)
        if live is None or live.outcome is not None:
            return
        reason = "the kernel gave no reply to it"
        self._runner.note("gap", actor="keeper", operation=operation, data={"reason": reason})
        live.facts.update({"ename": "NoReply", "evalue": reason})
        self._runner.submit(ev.Replied(operation, "error", "NoReply"))

    def _on_stdin(self, parent: ParentHeader, prompt_id: str, message_type: str, message: Message) -> None:
        if message_type != "input_request":
            return
        origin = self._origin_of(parent, message_type)
        live = self._runner.operations.get(origin.operation or "")
        if live is None:
            return
        # Of what cannot be read it is not known that it asks for no secret.
        request = msgspec_or(_INPUT_REQUEST, message.content, _InputRequest(password=True))
        live.prompts[prompt_id] = message
        self._runner.submit(ev.Prompted(live.id, prompt_id, request.prompt, request.password))

    def raw_reader(self, descriptor: int) -> Callable[[], None]:
        """What the process writes around the protocol is recorded too, and never fills its pipe."""

        def read() -> None:
            try:
                data = os.read(descriptor, RAW_OUTPUT_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            name = self.raw[descriptor]
            if not data:
                self._runner.loop.remove_reader(descriptor)
                os.close(descriptor)
                del self.raw[descriptor]
                return
            text = data.decode(errors="replace")
            self._runner.note("backend_output", actor="kernel", data={"stream": name, "text": text})
            if (
                self.state.phase != "ready"
            ):  # whoever starts it sees the end of the keeper's log when that fails
                for line in text.splitlines()[-STARTING_LINES:]:
                    log.warning("the kernel's %s: %s", name, "".join(_shown(c) for c in line))

        return read


def _verified(frames: list[bytes], key: bytes) -> Message:
    message = split(frames)
    if not verify(key, message):
        raise WireError("its signature is not the kernel's")
    return message


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape", "replace").decode()


def msgspec_or(decoder: msgspec.json.Decoder[T], raw: bytes, otherwise: T) -> T:
    """Decode, or take `otherwise` where a kernel's content is not as specified."""
    try:
        return decode_as(decoder, raw, what="content")
    except WireError:
        return otherwise
