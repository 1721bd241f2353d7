"""What goes to the kernel, and what is said to clients in its place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..backends.kernel_process import KernelProcess
from ..core import effects as fx
from ..core import events as ev
from ..core.actor import KEEPER
from ..core.operations import MAIN_LANE, Operation, ReplyStatus
from ..wire.kernel import (
    Message,
    encode_json,
    join,
    stamp_header,
    stamp_metadata,
    without_stop_on_error,
)
from .clients import Client, Published
from .kernel_state import KernelState
from .stamps import Origin
from .synthesis import error_content, make_header

if TYPE_CHECKING:
    from .runner import LiveOperation, Runner

log = logging.getLogger(__name__)

# Measured on two cores: longer rests are slower, because a long turn holds the core that the kernel wants.
REST_SECONDS = 0.0005
START_PATIENCE_SECONDS = 1.0  # between a cell and the kernel's first word about it
INTERRUPT_PATIENCE_SECONDS = 5.0  # for the answer to an interrupt_request, before the queue goes on


class KernelTalk:
    """Writes to the kernel's sockets; carries out, and does not decide."""

    def __init__(self, runner: Runner, state: KernelState, process: KernelProcess) -> None:
        self._runner = runner
        self.state = state
        self.process = process
        self._count = 0
        self.held_until: float | None = None
        self._held: list[tuple[LiveOperation, str, int]] = []
        self._interrupts: set[str] = set()

    def ask(self, channel: str, message_type: str, content: dict[str, Any], lane: str = MAIN_LANE) -> str:
        """Send a request of the keeper's own; its messages are hidden from everybody."""
        channels = self.state.open_channels()
        self._count += 1
        msg_id = f"{self.state.own_session}_{self._count}"
        header = make_header(
            message_type, session=self.state.own_session, username="keeper", msg_id=msg_id, lane=lane
        )
        self._runner.remember_origin(
            msg_id, Origin(KEEPER, message_type, header=header, channel=channel, reading=True, hidden=True)
        )
        self.state.own_waiting.add(msg_id)
        channels.send(channel, join(channels.launched.key, [header, b"{}", b"{}", encode_json(content)]))
        return msg_id

    def is_interrupt(self, msg_id: str) -> bool:
        """Whether this request of ours was an interrupt that is now answered."""
        if msg_id not in self._interrupts:
            return False
        self._interrupts.discard(msg_id)
        return True

    def forget(self) -> None:
        """The kernel is gone: nothing waits for it any more."""
        self.held_until = None
        self._held.clear()
        self._interrupts.clear()
        self.state.own_waiting.clear()

    def set_fence(self, generation: int) -> None:
        if self.state.channels is not None:
            self.state.channels.fence = max(self.state.channels.fence, generation)

    def deliver(self, operation: LiveOperation, lane: str, generation: int) -> None:
        if self.held_until is not None:
            self._held.append((operation, lane, generation))
            return
        message, core = operation.message, self._runner.session.operations.get(operation.id)
        if core is None or not core.is_active:
            return  # while it waited for the journal or an interrupt, the kernel it was for has gone
        status = self._late_refusal(core)
        if status is not None:
            operation.facts["evalue"] = "it was stopped before it reached the kernel"
            self._end_unsent(operation.id, status)
            return
        if message is None or self.state.channels is None:
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
            self._stamped(message, operation.origin, generation),
            without_stop_on_error(message.content),
            *message.buffers,
        ]
        frames = join(self.state.channels.launched.key, parts)
        if self.state.channels.send("shell", frames, generation=generation):
            operation.message, operation.is_sent = None, True
            self.state.unheard[operation.id] = self._runner.clock.monotonic() + START_PATIENCE_SECONDS
            # That it is busy, and its echo of the code, can be recorded together: nobody waits for them.
            self._runner.loop.rest(self.state.channels.sockets["iopub"], REST_SECONDS)
            return
        log.error("operation %s of generation %d was fenced off at the backend", operation.id, generation)
        self._end_unsent(operation.id, "aborted")

    def _late_refusal(self, operation: Operation) -> ReplyStatus | None:
        """The last look before the byte: what has come since it was let in.

        An interrupt that overtakes its operation would hit nothing, or something else. A grant that has ended lets
        nothing through any more.
        """
        if operation.interrupted_by is not None:
            return "error"
        return "aborted" if operation.revoked else None

    def _end_unsent(self, operation: str, status: ReplyStatus) -> None:
        self._runner.submit(ev.Replied(operation, status))
        self._runner.submit(ev.Idle(operation))

    def forward(self, channel: str, message: Message, origin: Origin, generation: int) -> None:
        """Pass on what is no operation: reading, widgets, the debugger."""
        if self.state.channels is None:
            return
        header = stamp_header(
            message.header,
            username=origin.actor.id,
            actor=origin.actor.id,
            operation=None,
            generation=generation,
        )
        metadata = self._stamped(message, origin, generation)
        parts = [header, message.parent, metadata, message.content, *message.buffers]
        fenced = None if origin.reading else generation
        self.state.channels.send(channel, join(self.state.channels.launched.key, parts), generation=fenced)

    def _stamped(self, message: Message, origin: Origin, generation: int) -> bytes:
        """The metadata of a request: code in the kernel must not read a stamp that a client made."""
        seq = self._runner.recorder.committed_seq
        return stamp_metadata(
            message.metadata, self._runner.stamper.stamp(origin, "by", generation=generation, seq=seq)
        )

    def answer(self, operation: LiveOperation, prompt: str, content: bytes) -> None:
        request = operation.prompts.pop(prompt, None)
        if request is None or self.state.channels is None:
            return
        operation.shown_prompt = None
        header = make_header("input_reply", session=self.state.own_session, username="keeper")
        self.state.channels.send(
            "stdin", join(self.state.channels.launched.key, [header, request.header, b"{}", content])
        )

    def show_prompt(self, operation: LiveOperation, prompt: str, *, to_author: bool) -> None:
        request, endpoint = operation.prompts.get(prompt), operation.origin.endpoint
        if request is None or endpoint is None or not to_author or operation.shown_prompt == prompt:
            return
        stamp = self._runner.stamp_now(operation.origin)
        parts = [request.header, request.parent, stamp_metadata(request.metadata, stamp), request.content]
        if endpoint.reply("stdin", operation.origin.identities, parts):
            operation.shown_prompt = prompt

    def interrupt(self, operation: str) -> None:
        core, live = self._runner.session.operations.get(operation), self._runner.operations.get(operation)
        if core is None or not core.is_active:
            return
        if live is not None and live.message is not None:
            return  # the kernel has not got it, and will not
        if self.state.channels is not None and self.state.channels.launched.interrupt_mode == "message":
            self._interrupts.add(self.ask("control", "interrupt_request", {}))
            self.held_until = self._runner.clock.monotonic() + INTERRUPT_PATIENCE_SECONDS
        else:
            self.process.interrupt()

    def let_go(self) -> None:
        """The interrupt has been taken, so that it cannot hit what comes next."""
        self.held_until = None
        held, self._held = self._held, []
        for operation, lane, generation in held:
            self.deliver(operation, lane, generation)

    def end_without_running(self, operation: LiveOperation, end: fx.End) -> None:
        """Give the client of an operation that did not run (or whose kernel is gone) what it waits for."""
        endpoint = operation.origin.endpoint
        if endpoint is None:
            return
        who = f" by {end.by}" if end.by else ""
        was_sent = operation.is_sent
        sentences = {
            "superseded": f"superseded{who} before it ran: the input is given back to you",
            "withdrawn": f"withdrawn{who} before it ran",
            "aborted": f"aborted{who} before it ran",
            "unknown": "the kernel was lost while this ran; it may have had effects, and is not run again by itself",
            "interrupted": f"cut off{who} while it ran" if was_sent else f"interrupted{who} before it ran",
            "error": "the kernel gave no reply to it",
        }
        sentence = sentences[end.outcome] + (f" ({end.reason})" if end.reason else "")
        status = "aborted" if end.outcome in ("aborted", "withdrawn") else "error"
        content = error_content(end.outcome, sentence, status=status)
        if status == "error":  # as ipykernel: what was aborted has no number, and a page shows none
            content["execution_count"] = self.state.execution_count
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
        earlier = None
        for live in self._runner.operations.values():
            if live.origin is origin:
                break  # what was admitted later waits for this one, not the other way round
            if live.origin.endpoint is origin.endpoint and live.outcome is None:
                known = live.origin  # the core may have forgotten it, when it has just ended
                if (known.client_session, known.lane) == (origin.client_session, origin.lane):
                    earlier = live
        if earlier is None:
            say()
        else:
            earlier.ended.append(lambda _, __: say())

    def answer_in_place(
        self,
        endpoint: Client,
        origin: Origin,
        reply_type: str | None,
        content: dict[str, Any] | bytes,
        stamp: bytes,
        *,
        show_error: bool = False,
    ) -> None:
        """Say what the kernel would: busy, an error where there is one, the reply where one is due, idle."""
        metadata = b'{"cmdop":' + stamp + b"}"
        parent, voice = origin.header, self.state.voice
        endpoint.publish(Published(b"status", voice.status("busy", parent, metadata)))
        if show_error and isinstance(content, dict):
            shown = {key: content[key] for key in ("ename", "evalue", "traceback")}
            endpoint.publish(Published(b"error", voice.say("error", parent, shown, metadata)))
        if reply_type is not None:
            endpoint.reply(
                origin.channel, origin.identities, voice.say(reply_type, parent, content, metadata)
            )
        endpoint.publish(Published(b"status", voice.status("idle", parent, metadata)))
        busy = still_busy(self._runner, self.state)
        if busy is not None:
            endpoint.publish(busy)


def still_busy(runner: Runner, state: KernelState) -> Published | None:
    """What says that the main shell works on, to follow an idle that ended something else; None when it does not.

    Clients show one state of a kernel, and what is answered in its place, its control channel and its subshells end in
    an idle of their own: a page would say that the kernel has nothing to do. What is idle and has only its reply to
    come is not worked on: no idle would follow any more, and the page would say for ever that it is.
    """
    running = runner.session.lanes[MAIN_LANE].running or ""
    live, core = runner.operations.get(running), runner.session.operations.get(running)
    if live is None or core is None or core.idle:
        return None
    stamp = runner.stamp_now(live.origin)
    return Published(b"status", state.voice.status("busy", live.origin.header, b'{"cmdop":' + stamp + b"}"))
