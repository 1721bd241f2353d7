"""Watches the kernel: one from which nothing is heard is asked, and what does not answer is called unresponsive.

A kernel is not suspected for being busy. It is asked what it can answer while it works: ipykernel has a thread for its
control channel (it needs the interpreter's lock, so that code in C which never gives it back is found out), every other
kernel a thread that sends its heartbeat back. While anything of it waits to be read, and after this process stood still
itself, nothing is judged: ipykernel's control channel does not answer while its publisher waits for its reader, who is
this keeper.

A kernel that answers, and of which nothing is published any more, is mute: what runs in it could not be followed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core import effects as fx

if TYPE_CHECKING:
    from .kernel_state import KernelState
    from .kernel_talk import KernelTalk
    from .runner import Runner

log = logging.getLogger(__name__)

QUIET_SECONDS = 5.0  # without a word, before it is asked
PATIENCE_SECONDS = 4.0  # for the answer
AGAIN_SECONDS = (
    0.5  # after it answers again, in which an interrupt that it was sent meanwhile has ended what runs
)
MUTE_SECONDS = 10.0  # between an answer and anything that is published
CONTROL_THREAD_MAJOR = 6  # the first ipykernel whose control channel has a thread of its own
_KEPT_ASKED = 64


class KernelWatch:
    """Judges the incarnation in hand.

    Args:
        is_mute: called with the reason when nothing is published any more.

    Attributes:
        unresponsive: what it was asked and did not answer, in words; None while it answers.
    """

    def __init__(
        self, runner: Runner, state: KernelState, talk: KernelTalk, *, is_mute: Callable[[str], None]
    ) -> None:
        self._runner = runner
        self._state = state
        self._talk = talk
        self._is_mute = is_mute
        self.unresponsive: str | None = None
        self.since: float | None = None
        self._knows_heartbeat = False
        self._asked_at: float | None = None
        self._question = ""
        self._asked: dict[str, float] = {}
        self._mute_at: float | None = None
        self._interrupt_again_at: float | None = None

    def begin(self) -> None:
        """A new incarnation can be used."""
        self.forget()
        self._state.heard_at = self._state.published_at = self._runner.clock.monotonic()
        if not self._has_control_thread:
            self._state.open_channels().ping()  # to learn whether it has a heartbeat at all

    def forget(self) -> None:
        self.unresponsive, self.since = None, None
        self._knows_heartbeat = False
        self._asked_at = self._mute_at = self._interrupt_again_at = None
        self._asked.clear()

    def excuse(self) -> None:
        """This process stood still: what it has not heard says nothing."""
        now = self._runner.clock.monotonic()
        self._state.heard_at = max(self._state.heard_at, now - QUIET_SECONDS + 1.0)
        if self._state.channels is not None and self._state.channels.asked_at is not None:
            self._state.channels.asked_at = now
        if self._asked_at is not None:
            self._asked_at = now
        if self._mute_at is not None:
            self._mute_at = now + MUTE_SECONDS

    # ------------------------------------------------------------------ what is heard

    def heard(self, channel: str) -> None:
        if channel == "hb":
            self._knows_heartbeat = True
        elif channel == "iopub":
            self._mute_at = None
        if self._asked_at is not None:
            self._asked_at = None
        if self.unresponsive is None:
            return
        seconds = 0.0 if self.since is None else self._runner.clock.monotonic() - self.since
        self.unresponsive, self.since = None, None
        data = {"heard": channel, "after_seconds": round(seconds, 1)}
        self._runner.note("responsive", actor="keeper", operation=self._running(), data=data)
        self._announce({"state": "ready", "incarnation": self._runner.session.incarnation})
        self._interrupt_again_at = self._runner.clock.monotonic() + AGAIN_SECONDS

    def note_asked(self, msg_id: str) -> None:
        """A request that is answered and published about, whoever had a reason to send it."""
        self._asked[msg_id] = self._runner.clock.monotonic()
        if len(self._asked) > _KEPT_ASKED:
            del self._asked[next(iter(self._asked))]

    def answered(self, msg_id: str) -> None:
        asked = self._asked.pop(msg_id, None)
        if asked is not None and self._state.published_at < asked and self._mute_at is None:
            self._mute_at = self._runner.clock.monotonic() + MUTE_SECONDS

    # ------------------------------------------------------------------ judging

    def next_timer(self) -> float | None:
        if self._state.phase != "ready" or self._runner.session.backend != "ready":
            return None
        due = [moment for moment in (self._mute_at, self._interrupt_again_at) if moment is not None]
        if self.unresponsive is None:
            if self._asked_at is not None:
                due.append(self._asked_at + PATIENCE_SECONDS)
            elif (since := self._silent_since()) is not None:
                due.append(since + QUIET_SECONDS)
        return min(due, default=None)

    def run_timers(self, now: float) -> None:
        due = self.next_timer()
        if due is None or now < due or self._has_unread():
            return
        if self._interrupt_again_at is not None and now >= self._interrupt_again_at:
            self._interrupt_again_at = None
            self._interrupt_again()
        elif self._mute_at is not None and now >= self._mute_at:
            self._mute_at = None
            self._is_mute(f"it answers, and has published nothing for {MUTE_SECONDS:.0f} s")
        elif self._asked_at is None:
            self._ask(now)
        else:
            self._judge(now)

    def _interrupt_again(self) -> None:
        """What came while the process was stopped may have been taken by a thread that it does not wake."""
        for operation in self._runner.session.running():
            if operation.interrupted_by is not None and operation.replied is None:
                self._talk.interrupt(operation.id)

    def _silent_since(self) -> float | None:
        """Since when it owes a word; None while it owes none."""
        channels = self._state.channels
        if channels is None:
            return None
        if channels.asked_at is not None:
            return channels.asked_at
        return self._state.heard_at if self._running() is not None else None

    def _has_unread(self) -> bool:
        channels = self._state.channels
        return channels is not None and channels.has_unread()

    def _running(self) -> str | None:
        running = self._runner.session.running()
        return running[0].id if running else None

    @property
    def _has_control_thread(self) -> bool:
        info = self._state.info or {}
        major = str(info.get("implementation_version", "")).split(".")[0]
        return (
            info.get("implementation") == "ipython"
            and major.isdecimal()
            and int(major) >= CONTROL_THREAD_MAJOR
        )

    def _ask(self, now: float) -> None:
        channels = self._state.open_channels()
        if self._has_control_thread:
            self.note_asked(self._talk.ask("control", "kernel_info_request", {}))
            self._question = "kernel_info_request on control"
        elif self._knows_heartbeat:
            channels.ping()
            self._question = "a ping of its heartbeat"
        elif self._running() is None:
            self.note_asked(self._talk.ask("shell", "kernel_info_request", {}))
            self._question = "kernel_info_request on shell"
        else:  # it has no way to say that it is merely busy
            self._state.heard_at = now
            channels.asked_at = None
            return
        self._asked_at = now

    def _judge(self, now: float) -> None:
        self._asked_at = None
        self.unresponsive, self.since = self._question, now
        data = {
            "asked": self._question,
            "unanswered_seconds": PATIENCE_SECONDS,
            "silent_seconds": round(now - self._state.heard_at, 1),
        }
        log.warning("the kernel does not answer: %s", data)
        self._runner.note("unresponsive", actor="keeper", operation=self._running(), data=data)
        self._announce({"state": "unresponsive", "reason": self.reason, "asked": self._question})

    @property
    def reason(self) -> str | None:
        if self.unresponsive is None:
            return None
        return f"the kernel does not answer ({self.unresponsive}): wait, interrupt, or restart"

    def _announce(self, data: dict[str, Any]) -> None:
        if self._runner.endpoints is not None:
            self._runner.recorder.show(self._runner.endpoints.announce, fx.Announce("backend", data))
