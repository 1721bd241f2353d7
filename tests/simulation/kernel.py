"""A kernel without a process: it speaks the real protocol through sockets that are lists, and does what it is told.

It executes one request a lane, in the order in which they came, and says about each what a kernel says. The simulation
decides when it goes on and what it says; it may forget to say something, or die.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from jupyter_cmdop.backends.kernel_process import Launched, LaunchFailed
from jupyter_cmdop.wire.kernel import encode_json, join, split

SLOWNESS = 25  # looks at its sockets before a slow kernel answers on the control channel
CHANNELS = ("shell", "control", "stdin", "iopub")
_decode = msgspec.json.Decoder().decode


class Socket:
    """One channel's incoming side."""

    def __init__(self) -> None:
        self.waiting: deque[list[bytes]] = deque()

    def poll(self, _milliseconds: int) -> bool:
        return bool(self.waiting)

    def close(self) -> None:
        self.waiting.clear()


class Loop:
    """The keeper's loop: what came is handled in the order of the channels, then what was posted."""

    def __init__(self) -> None:
        self._timers: list[Callable[[], float | None]] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._handlers: dict[Any, Callable[[], object]] = {}

    def add_timer(self, due: Callable[[], float | None]) -> None:
        self._timers.append(due)

    def post(self, call: Callable[[], None]) -> None:
        self._posted.append(call)

    def add_socket(self, socket: Any, handler: Callable[[], object]) -> None:
        self._handlers[socket] = handler

    def remove_socket(self, socket: Any) -> None:
        self._handlers.pop(socket, None)

    def touch(self, socket: Any) -> None:
        return

    def rest(self, socket: Any, seconds: float) -> None:
        return

    def end_rest(self) -> None:
        return

    def next_due(self) -> float | None:
        return min((due for timer in self._timers if (due := timer()) is not None), default=None)

    def turn(self) -> None:
        for socket in list(self._handlers):
            if socket.waiting and (handler := self._handlers.get(socket)) is not None:
                handler()
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    @property
    def is_awake(self) -> bool:
        return bool(self._posted) or any(socket.waiting for socket in self._handlers)


@dataclass(slots=True, eq=False)
class Job:
    """A request that the kernel has.

    Attributes:
        operation: whose it is; None for what is no operation.
        said: what it has said about it: started, reply, idle.
    """

    header: bytes
    fields: dict[str, Any]
    operation: str | None
    lane: str
    said: set[str] = field(default_factory=set)
    prompt: str | None = None
    interrupted: bool = False


class Kernel:
    """One incarnation."""

    def __init__(self, incarnation: int) -> None:
        self.session = f"kernel-{incarnation}"
        self.incarnation = incarnation
        self.sockets = {channel: Socket() for channel in CHANNELS}
        self.lanes: dict[str, deque[Job]] = {"": deque()}
        self.is_alive = True
        self.awake_at = 0.0
        self.count = 0
        self.is_slow = False  # in answering on the control channel
        self._late: list[tuple[str, bytes]] = []
        self._said = 0
        self._worked = 0

    # ------------------------------------------------------------------ what comes

    def receive(self, channel: str, frames: Sequence[bytes]) -> Job | None:
        """A request; returns the job that it became, if it is one that executes."""
        if not self.is_alive:
            return None
        message = split(frames)
        header = _decode(message.header)
        kind = header["msg_type"]
        if channel == "stdin":
            parent = _decode(message.parent)["msg_id"]
            for job in self.jobs():
                if job.prompt == parent:
                    job.prompt = None
            return None
        if channel == "control":
            if kind == "interrupt_request":
                self.interrupt()
            self._late.append((kind.replace("_request", "_reply"), message.header))
            if not self.is_slow:
                self._answer()
            return None
        lane = header.get("subshell_id") or ""
        job = Job(message.header, header, header.get("cmdop_operation"), lane)
        self.lanes.setdefault(lane, deque()).append(job)
        return job

    def interrupt(self) -> None:
        """What the main shell executes now is hit; nothing, when it executes nothing."""
        main = self.lanes[""]
        if main and main[0].operation is not None:
            main[0].interrupted = True

    # ------------------------------------------------------------------ what it does

    def jobs(self) -> list[Job]:
        """What executes, lane by lane."""
        return [lane[0] for lane in self.lanes.values() if lane and lane[0].operation is not None]

    def work(self) -> None:
        """Do at once what takes no time: everything but operations."""
        self._worked += 1
        if self._worked % SLOWNESS == 0:
            self._answer()
        for lane in self.lanes.values():
            while lane and lane[0].operation is None:
                job = lane.popleft()
                kind = job.fields["msg_type"]
                self._status("busy", job)
                if kind.endswith("_request"):
                    content: dict[str, Any] = {"status": "ok"}
                    if kind == "kernel_info_request":
                        content["implementation"] = "ipython"
                    elif kind == "execute_request":
                        content["user_expressions"] = {"cmdop": {"status": "ok"}}
                    self._say("shell", kind.replace("_request", "_reply"), job.header, content)
                self._status("idle", job)

    def _answer(self) -> None:
        for kind, header in self._late:
            self._say("control", kind, header, {"status": "ok"})
        self._late.clear()

    def start(self, job: Job) -> None:
        job.said.add("started")
        self.count += 1
        self._status("busy", job)
        self._say("iopub", "execute_input", job.header, {"code": "1", "execution_count": self.count})

    def output(self, job: Job, text: str) -> None:
        self._say("iopub", "stream", job.header, {"name": "stdout", "text": text})

    def reply(self, job: Job, status: str) -> None:
        job.said.add("reply")
        content: dict[str, Any] = {"status": status, "execution_count": self.count}
        if status == "error":
            content["ename"] = "KeyboardInterrupt" if job.interrupted else "ValueError"
        self._say("shell", "execute_reply", job.header, content)

    def finish(self, job: Job, *, says_idle: bool = True) -> None:
        """It is done with it, and says so if it does not forget."""
        if says_idle:
            self._status("idle", job)
        self.lanes[job.lane].remove(job)

    def ask(self, job: Job, prompt: str, *, password: bool) -> None:
        job.prompt = prompt
        self._say("stdin", "input_request", job.header, {"prompt": "? ", "password": password}, prompt)

    def _status(self, state: str, job: Job) -> None:
        self._say("iopub", "status", job.header, {"execution_state": state})

    def _say(
        self, channel: str, kind: str, parent: bytes, content: dict[str, Any], msg_id: str | None = None
    ) -> None:
        self._said += 1
        header = {
            "msg_id": msg_id or f"{self.session}_{self._said}",
            "msg_type": kind,
            "session": self.session,
        }
        self.sockets[channel].waiting.append(
            join(b"", [encode_json(header), parent, b"{}", encode_json(content)])
        )


class NoFile:
    def unlink(self, *, missing_ok: bool) -> None:
        return


class Process:
    """Starts and ends kernels: what `KernelSide` asks of a `KernelProcess`."""

    spec_name = "simulated"
    directory = Path("simulated")

    def __init__(self, choose: Callable[[Sequence[Any]], Any], now: Callable[[], float]) -> None:
        self._choose = choose
        self._now = now
        self.kernel: Kernel | None = None

    def launch(self, incarnation: int, told: Callable[[Launched | LaunchFailed], None]) -> None:
        if self._choose([False] * 19 + [True]) and incarnation > 1:
            told(LaunchFailed("simulated: it does not start"))
            return
        self.kernel = Kernel(incarnation)
        self.kernel.awake_at = self._now() + self._choose([0.0, 0.0, 0.05, 0.3])
        self.kernel.is_slow = self._choose([True, False])
        mode = self._choose(["signal", "message"])
        told(Launched(incarnation, None, None, b"", {}, {}, mode, "python", NoFile()))  # type: ignore[arg-type]

    def end(self, told: Callable[[list[int]], None], *, force: bool = False) -> None:
        if self.kernel is not None:
            self.kernel.is_alive = False
        told([1])

    def exit_reason(self) -> str | None:
        return None if self.kernel is not None and self.kernel.is_alive else "simulated: it died"

    def interrupt(self) -> None:
        if self.kernel is not None and self.kernel.is_alive:
            self.kernel.interrupt()

    def close_sockets_to_others(self) -> None:
        return

    def note_memory_limits(self) -> None:
        return

    def poll_remote(self, told: Callable[[bool], None]) -> None:
        told(self.kernel is not None and self.kernel.is_alive)


class Channels:
    """What `KernelChannels` is to the keeper; the byte is where the last checks are made.

    Args:
        world: told of each message that is written: `written(channel, frames, generation, job)`.
    """

    def __init__(
        self, world: Any, launched: Launched, *, bounded: bool, touched: Callable[[Any], None]
    ) -> None:
        self.launched = launched
        self.bounded = bounded
        self._world = world
        self._fence = -1
        self.asked_at: float | None = None
        self.kernel: Kernel = world.process.kernel
        self.sockets: dict[str, Any] = dict(self.kernel.sockets)

    def ping(self) -> None:
        """It has no heartbeat."""

    @property
    def fence(self) -> int:
        return self._fence

    @fence.setter
    def fence(self, generation: int) -> None:
        if self._fence >= 0:  # the first is what is in force when the sockets are opened
            self._world.before_fence(generation)
        self._fence = generation

    def unbound_iopub(self) -> Any:
        return self.sockets["iopub"]

    def send(self, channel: str, frames: Sequence[bytes], *, generation: int | None = None) -> bool:
        if generation is not None and generation < self.fence:
            return False
        self._world.before_write(channel, frames, generation)
        self._world.after_write(self.kernel.receive(channel, frames))
        return True

    def has_unread(self) -> bool:
        return any(socket.waiting for socket in self.sockets.values())

    def drain(self, channel: str, most: int) -> Iterator[list[bytes]]:
        waiting = self.sockets[channel].waiting
        for _ in range(min(most, len(waiting))):
            yield waiting.popleft()

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close()
        self.sockets.clear()
