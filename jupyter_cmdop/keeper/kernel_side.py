"""The kernel's life as the keeper sees it: start, restart, death and end, and the parts that talk and listen to it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import zmq

from ..backends.kernel_channels import KernelChannels
from ..backends.kernel_process import KernelProcess, Launched, LaunchFailed
from ..core import effects as fx
from ..core import events as ev
from ..wire.kernel import Message, decode_json, parse_header
from .kernel_listen import KernelListen
from .kernel_state import KernelState
from .kernel_talk import KernelTalk
from .kernel_watch import KernelWatch
from .synthesis import Voice

if TYPE_CHECKING:
    from .runner import LiveOperation, Runner

log = logging.getLogger(__name__)

INFO_RETRY_SECONDS = 0.1
STARTUP_SECONDS = 120.0
RESTARTS = 5  # in a row, as jupyter_client's restarter
STABLE_SECONDS = 10.0  # a kernel that lived so long starts the count anew
REMOTE_POLL_SECONDS = 3.0
EXCUSED_SECONDS = 30.0  # that a starting kernel has at least when its keeper goes on

# libzmq's XPUB_NODROP as a number: the publisher waits for its subscriber instead of dropping. It is set inside
# ipykernel's IOPub thread, which owns the socket; nothing in argv, environment or files changes. `history_manager`
# keeps this session's cells out of the user's shared history file.
NODROP = (
    "(lambda thread: thread.schedule(lambda: thread.socket.setsockopt(69, 1)))("
    "getattr(get_ipython().kernel, 'iopub_thread', None) or get_ipython().kernel.iopub_socket.io_thread)"
)
# ipykernel takes what its forked children print on a TCP port of the loopback interface. A secret keeps the output of
# other users of the machine out; a socket in our directory keeps them off altogether.
FORK_PIPE = (
    "(lambda thread, address, zmq, done: (thread.schedule(lambda: ("
    "thread._pipe_in.socket.bind(address), "
    "thread._pipe_in.socket.unbind('tcp://127.0.0.1:%i' % thread._pipe_port), "
    "setattr(thread, '_setup_pipe_out', lambda: (lambda context: (lambda pipe: "
    "(setattr(pipe, 'linger', 3000), pipe.connect(address), (context, pipe))[-1])(context.socket(zmq.PUSH))"
    ")(zmq.Context())), done.set())), done.wait(1)))("
    "getattr(get_ipython().kernel, 'iopub_thread', None) or get_ipython().kernel.iopub_socket.io_thread, {address!r}, "
    "__import__('zmq'), __import__('threading').Event())"
)
OWN_HISTORY = "setattr(get_ipython().history_manager, 'enabled', False)"


class Viewers(Protocol):
    """Who is told when the kernel comes and goes."""

    def kernel_is_ready(self) -> None: ...
    def kernel_has_left(self, *, asked: bool) -> None: ...


class KernelSide:
    """Owns the kernel process and the only sockets to it.

    Args:
        started: called once, with None when the first incarnation is ready or with the reason why there is none.
        stopped: called when the session's end has been carried out, with the pids that were ended.
        restarted: called when a restart that an actor asked for is complete.
        channels: makes the sockets to an incarnation.
    """

    def __init__(
        self,
        runner: Runner,
        context: zmq.Context[zmq.Socket[bytes]],
        process: KernelProcess,
        *,
        started: Callable[[str | None], None],
        stopped: Callable[[list[int]], None],
        channels: Callable[..., KernelChannels] = KernelChannels,
    ) -> None:
        self._runner = runner
        self._context = context
        self._open_channels = channels
        self.process = process
        self._started: Callable[[str | None], None] | None = started
        self._stopped = stopped
        self.viewers: Viewers | None = None
        self.restarted: list[Callable[[str | None], None]] = []
        self.lost_reason: str | None = None
        self.state = KernelState()
        self.talk = KernelTalk(runner, self.state, process)
        self.watch = KernelWatch(runner, self.state, self.talk, is_mute=self._is_mute)
        self.listen = KernelListen(
            runner,
            self.state,
            own_reply=self._on_own_reply,
            own_status=self._on_own_status,
            heard=self.watch.heard,
        )
        self._pidfd: int | None = None
        self._greetings: set[str] = set()
        self._subscribed = False
        self._preparing = ""
        self._next_greeting: float | None = None
        self._deadline: float | None = None
        self._restarts = 0
        self._ready_at = 0.0
        self._stopping = False
        self._poll_at: float | None = None
        runner.loop.add_timer(self._next_timer)

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Launch the next incarnation; the rest follows from the loop."""
        self.state.incarnation += 1
        self.state.execution_count = 0
        self.state.phase = "launching"
        self._deadline = self._runner.clock.monotonic() + STARTUP_SECONDS
        self._runner.note(
            "backend_started",
            actor="keeper",
            data={"spec": self.process.spec_name, "incarnation": self.state.incarnation},
        )
        post = self._runner.loop.post
        self.process.launch(self.state.incarnation, lambda result: post(lambda: self._launched(result)))

    def _launched(self, result: Launched | LaunchFailed) -> None:
        if self.state.phase != "launching":
            self._send_away(result)
            return
        if isinstance(result, LaunchFailed):
            self._give_up(str(result))
            return
        loop = self._runner.loop
        self.state.phase = "greeting"
        self._subscribed, self._greetings = False, set()
        self.state.channels = self._open_channels(
            self._context, result, bounded=result.language == "python", touched=loop.touch
        )
        self.state.channels.fence = self._runner.session.floor.generation
        for name, descriptor in result.outputs.items():
            self.listen.raw[descriptor] = name
            loop.add_reader(descriptor, self.listen.raw_reader(descriptor))
        for channel, socket in self.state.channels.sockets.items():
            loop.add_socket(socket, self.listen.reader(channel))
        if result.pid is not None and hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(result.pid)
                loop.add_reader(self._pidfd, self._process_ended)
        self._poll_at = self._runner.clock.monotonic() + REMOTE_POLL_SECONDS if self._pidfd is None else None
        self._greet()

    def _send_away(self, result: Launched | LaunchFailed) -> None:
        """It was asked to go before it had come: whoever ends it does the rest."""
        if isinstance(result, Launched):
            for descriptor in result.outputs.values():
                os.close(descriptor)
            result.connection_file.unlink(missing_ok=True)

    def _greet(self) -> None:
        """Ask for kernel_info until the answer and its status on iopub show that both directions work."""
        self._greetings.add(self.talk.ask("shell", "kernel_info_request", {}))
        self._next_greeting = self._runner.clock.monotonic() + INFO_RETRY_SECONDS

    def _on_own_status(self, is_idle: bool) -> None:
        self._subscribed = True
        if is_idle:
            self._check_greeting()

    def _on_own_reply(self, msg_id: str, message_type: str, message: Message) -> None:
        self.watch.answered(msg_id)
        if (
            message_type == "kernel_info_reply"
            and msg_id in self._greetings
            and self.state.phase == "greeting"
        ):
            self._greeted(message)
        elif msg_id == self._preparing and self.state.phase == "preparing":
            content = decode_json(message.content)
            expressions = content.get("user_expressions", {}) if isinstance(content, dict) else {}
            result = expressions.get("cmdop", {}) if isinstance(expressions, dict) else {}
            self._prepared(ok=isinstance(result, dict) and result.get("status") == "ok")
        elif self.talk.is_interrupt(msg_id):
            self.talk.let_go()

    def _greeted(self, message: Message) -> None:
        header = parse_header(message.header)
        self.state.voice = Voice(header.session)
        self.state.sessions.add(header.session)
        self.state.info_content = message.content
        info = decode_json(message.content)
        self.state.info = info if isinstance(info, dict) else {}
        self._check_greeting()

    def _check_greeting(self) -> None:
        if (
            self.state.phase != "greeting"
            or self.state.info is None
            or not self._subscribed
            or not self.state.voice.session
        ):
            return
        self._next_greeting = None
        self.state.phase = "preparing"
        if self.state.info.get("implementation") != "ipython":
            self._prepared(ok=False)
            return
        self._preparing = self.talk.ask(
            "shell",
            "execute_request",
            {
                "code": "",
                "silent": True,
                "store_history": False,
                "allow_stdin": False,
                "stop_on_error": False,
                "user_expressions": {
                    "cmdop": NODROP,
                    "cmdop_history": OWN_HISTORY,
                    "cmdop_fork_pipe": FORK_PIPE.format(address=self._fork_pipe()),
                },
            },
        )

    def _fork_pipe(self) -> str:
        """Where forked children of this incarnation's kernel may print, beside its other sockets."""
        launched = self.state.open_channels().launched
        return f"ipc://{self.process.directory / f'k{launched.incarnation}-forks'}"

    def _prepared(self, *, ok: bool) -> None:
        """The publisher waits for us from here on, or is known not to."""
        self.state.may_drop = not ok
        self._preparing = ""
        channels = self.state.open_channels()
        if self.state.may_drop and channels.bounded:
            loop = self._runner.loop
            loop.remove_socket(channels.sockets["iopub"])
            loop.add_socket(channels.unbound_iopub(), self.listen.reader("iopub"))
        channels.launched.connection_file.unlink(missing_ok=True)
        self.process.close_sockets_to_others()
        self.state.phase = "ready"
        self._deadline = None
        self._ready_at = self._runner.clock.monotonic()
        self.watch.begin()
        self.process.note_memory_limits()
        self._runner.stamper.incarnation = self.state.incarnation
        self._runner.note(
            "iopub",
            actor="keeper",
            data={"delivery": "may_drop" if self.state.may_drop else "waits_for_reader"},
        )
        self._runner.submit(ev.BackendReady(self.state.incarnation))
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
        self.state.phase = "off"
        self._close_channels()
        self._runner.submit(ev.BackendDied(reason, will_restart=False))
        self._tell_started(reason)
        for call in self.restarted:
            call(reason)
        self.restarted.clear()

    @property
    def is_ready(self) -> bool:
        return self.state.phase == "ready"

    @property
    def pid(self) -> int | None:
        return None if self.state.channels is None else self.state.channels.launched.pid

    @property
    def pid_start(self) -> float | None:
        return None if self.state.channels is None else self.state.channels.launched.pid_start

    # ------------------------------------------------------------------ what the core wants of a backend

    def set_fence(self, generation: int) -> None:
        self.talk.set_fence(generation)

    def deliver(self, operation: LiveOperation, lane: str, generation: int) -> None:
        self.talk.deliver(operation, lane, generation)

    def interrupt(self, operation: str) -> None:
        self.talk.interrupt(operation)

    def show_prompt(self, operation: LiveOperation, prompt: str, *, to_author: bool) -> None:
        self.talk.show_prompt(operation, prompt, to_author=to_author)

    def end_without_running(self, operation: LiveOperation, end: fx.End) -> None:
        self.talk.end_without_running(operation, end)

    # ------------------------------------------------------------------ time, death, end

    def excuse(self) -> None:
        """This process stood still: what it has not heard of the kernel says nothing."""
        self.watch.excuse()
        if self._deadline is not None:
            self._deadline = max(self._deadline, self._runner.clock.monotonic() + EXCUSED_SECONDS)

    def _next_timer(self) -> float | None:
        due = [
            when
            for when in (
                self._next_greeting,
                self._deadline,
                self.talk.held_until,
                self._poll_at,
                self.listen.next_timer(),
                self.watch.next_timer(),
            )
            if when is not None
        ]
        return min(due, default=None)

    def run_timers(self) -> None:
        now = self._runner.clock.monotonic()
        if self._next_greeting is not None and now >= self._next_greeting and self.state.phase == "greeting":
            self._greet()
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self.process.end(lambda pids: None, force=True)
            self._give_up(f"the kernel did not answer within {STARTUP_SECONDS:.0f} s")
        if self.talk.held_until is not None and now >= self.talk.held_until:
            self.talk.let_go()
        if self._poll_at is not None and now >= self._poll_at:
            self._poll_at = now + REMOTE_POLL_SECONDS
            self._poll()
        self.listen.report_losses(now)
        if self.state.phase == "ready":
            for lane in self.listen.overdue(now):
                proof = self.talk.ask("shell", "kernel_info_request", {}, lane)
                self.watch.note_asked(proof)
                self.listen.expect_proof(lane, proof, now)
        self.watch.run_timers(now)

    def _is_mute(self, reason: str) -> None:
        """What it says of the work in it is lost: nobody waits for that, and nothing new is let in."""
        why = f"the kernel publishes nothing any more: {reason}"
        lost: list[str | None] = [operation.id for operation in self._runner.session.running()]
        for operation in lost or [None]:
            self._runner.note("gap", actor="keeper", operation=operation, data={"reason": why})
        self._runner.submit(ev.BackendMute(why))
        self.listen.forget_waiting()

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
        if self.state.phase in ("off", "ending", "launching"):
            if self._pidfd is not None:
                self._close_pidfd()
            return
        self.listen.hear_out()
        reason = self.process.exit_reason() or "the kernel ended"
        was_ready = self.state.phase == "ready"
        self._close_channels()
        if not was_ready and self._started is not None:
            self.state.phase = "off"
            self._give_up(f"{reason} before it was ready")
            return
        if self._runner.clock.monotonic() - self._ready_at >= STABLE_SECONDS and was_ready:
            self._restarts = 0
        self._restarts += 1
        again = self._restarts <= RESTARTS
        self._runner.submit(ev.BackendDied(reason, will_restart=again))
        if self.viewers is not None:
            self.viewers.kernel_has_left(asked=False)
        if not again:
            self._give_up(f"{reason}; it was restarted {RESTARTS} times in a row")
            return
        self._runner.note("restarted", actor="keeper", data={"reason": reason, "try": self._restarts})
        self.start()

    def leave(self) -> None:
        """A restart or a stop is decided: what this incarnation says now, also that it is ready, is too late."""
        self.state.phase = "ending"

    def restart(self) -> None:
        """End this incarnation and start the next; asked for by an actor."""
        self.state.phase = "ending"
        if self.viewers is not None:
            self.viewers.kernel_has_left(asked=True)
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
        was_open = self.state.channels is not None
        self.state.phase = "ending"
        if was_open:
            self._say_goodbye(restart=False)
        post = self._runner.loop.post
        self.process.end(lambda pids: post(lambda: self._all_ended(pids)), force=not was_open)

    def _all_ended(self, pids: list[int]) -> None:
        self._close_channels()
        self._stopped(pids)

    def abandon(self) -> None:
        """Leave no kernel, whatever state things are in."""
        self.state.phase = "ending"
        if self.process.exit_reason() is None and self.pid is not None:
            done = threading.Event()
            self.process.end(lambda pids: done.set(), force=True)
            done.wait(10)
        self._close_channels()
        self.listen.close()

    def _say_goodbye(self, *, restart: bool) -> None:
        if self.state.channels is not None:
            self.talk.ask("control", "shutdown_request", {"restart": restart})

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            self._runner.loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _close_channels(self) -> None:
        self._close_pidfd()
        self._poll_at = None
        self._next_greeting = None
        self.talk.forget()
        self.listen.forget()
        self.watch.forget()
        self.state.info = None
        if self.state.channels is not None:
            for socket in self.state.channels.sockets.values():
                self._runner.loop.remove_socket(socket)
            self.state.channels.close()
            self.state.channels = None
