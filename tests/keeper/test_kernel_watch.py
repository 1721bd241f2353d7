"""When the keeper asks its kernel, and when it judges, with a clock that is moved by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.keeper.clock import Clock
from jupyter_cmdop.keeper.kernel_state import KernelState
from jupyter_cmdop.keeper.kernel_watch import MUTE_SECONDS, PATIENCE_SECONDS, QUIET_SECONDS, KernelWatch

IPYKERNEL = {"implementation": "ipython", "implementation_version": "7.4.0"}
OTHER = {"implementation": "xeus-python", "implementation_version": "0.19"}
STEP = 0.5


class Stage:
    """A kernel of which only its words are seen."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.now = 1000.0
        self.unread = False
        self.running: list[Any] = []
        self.asked: list[str] = []
        self.entries: list[str] = []
        self.told: list[str] = []
        self.mute: list[str] = []
        self.channels = SimpleNamespace(
            asked_at=None, has_unread=lambda: self.unread, ping=lambda: self.asked.append("hb")
        )
        self.state = KernelState(phase="ready", info=info)
        self.state.channels = self.channels  # type: ignore[assignment]
        runner = SimpleNamespace(
            clock=Clock(monotonic=lambda: self.now),
            session=SimpleNamespace(backend="ready", incarnation=1, running=lambda: self.running),
            recorder=SimpleNamespace(show=lambda act, *args: act(*args)),
            endpoints=SimpleNamespace(announce=self._announce),
            note=lambda entry, **fields: self.entries.append(entry),
        )
        talk = SimpleNamespace(ask=self._ask)
        self.watch = KernelWatch(runner, self.state, talk, is_mute=self.mute.append)  # type: ignore[arg-type]
        self.watch.begin()

    def _ask(self, channel: str, message_type: str, content: dict[str, Any]) -> str:
        self.asked.append(channel)
        return f"m{len(self.asked)}"

    def _announce(self, effect: fx.Announce) -> None:
        self.told.append(str(effect.data["state"]))

    def run(self, operation: str = "o1") -> None:
        self.running = [SimpleNamespace(id=operation)]

    def say(self, channel: str) -> None:
        self.state.heard_at = self.now
        if channel == "iopub":
            self.state.published_at = self.now
        self.channels.asked_at = None
        self.watch.heard(channel)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.watch.run_timers(self.now)


@pytest.fixture
def stage() -> Stage:
    return Stage(IPYKERNEL)


@pytest.fixture
def other() -> Stage:
    return Stage(OTHER)


def test_idle_kernel_that_owes_nothing_is_not_asked(stage: Stage) -> None:
    stage.wait(600)
    assert (stage.asked, stage.watch.next_timer()) == ([], None)


def test_silent_one_is_asked_then_judged_then_heard(stage: Stage) -> None:
    stage.run()
    stage.wait(QUIET_SECONDS)
    assert stage.asked == ["control"]
    stage.wait(PATIENCE_SECONDS)
    assert (stage.entries, stage.told) == (["unresponsive"], ["unresponsive"])
    assert "control" in str(stage.watch.reason)
    stage.wait(60)
    assert stage.asked == ["control"], "the question that lies there is enough"
    stage.say("shell")
    assert (stage.entries[1:], stage.told[1:], stage.watch.reason) == (["responsive"], ["ready"], None)


def test_one_that_answers_is_asked_again_after_the_next_silence(stage: Stage) -> None:
    stage.run()
    for _ in range(5):
        stage.wait(QUIET_SECONDS + 1)
        stage.say("iopub")
        stage.say("control")
    assert (stage.asked, stage.entries) == (["control"] * 5, [])


def test_nothing_is_judged_while_anything_waits_to_be_read(stage: Stage) -> None:
    """ipykernel's control thread stands still while its publisher waits for its reader."""
    stage.run()
    stage.wait(QUIET_SECONDS)
    stage.unread = True
    stage.wait(60)
    assert stage.entries == []
    stage.unread = False
    stage.wait(STEP)
    assert stage.entries == ["unresponsive"]


def test_keeper_that_stood_still_gives_the_kernel_its_time_again(stage: Stage) -> None:
    stage.run()
    stage.wait(QUIET_SECONDS)
    stage.now += 3600
    stage.watch.excuse()
    stage.wait(PATIENCE_SECONDS - STEP)
    assert stage.entries == []
    stage.wait(STEP)
    assert stage.entries == ["unresponsive"]


def test_idle_kernel_that_was_asked_something_owes_a_word(stage: Stage) -> None:
    stage.channels.asked_at = stage.now
    stage.wait(QUIET_SECONDS + PATIENCE_SECONDS)
    assert stage.entries == ["unresponsive"]


def test_other_kernels_are_asked_on_their_heartbeat(other: Stage) -> None:
    assert other.asked == ["hb"], "at first, to learn whether it has one"
    other.say("hb")
    other.run()
    other.wait(QUIET_SECONDS)
    assert other.asked == ["hb", "hb"]
    other.wait(PATIENCE_SECONDS)
    assert other.entries == ["unresponsive"]


def test_kernel_without_a_heartbeat_is_merely_busy(other: Stage) -> None:
    """It has no way to say so: nothing can be known. Idle, it can be asked on shell."""
    other.run()
    other.wait(600)
    assert other.entries == []
    other.running = []
    other.channels.asked_at = other.now
    other.wait(QUIET_SECONDS)
    assert other.asked[-1] == "shell"


@pytest.mark.parametrize("publishes", [True, False])
def test_mute_is_who_answers_and_publishes_nothing(stage: Stage, publishes: bool) -> None:
    stage.run()
    stage.wait(QUIET_SECONDS)
    stage.say("control")
    stage.watch.answered("m1")
    if publishes:
        stage.say("iopub")
    stage.running = []
    stage.wait(MUTE_SECONDS)
    assert bool(stage.mute) is not publishes


def test_kernel_that_is_restarted_begins_with_a_clean_sheet(stage: Stage) -> None:
    stage.run()
    stage.wait(QUIET_SECONDS + PATIENCE_SECONDS)
    stage.watch.forget()
    assert stage.watch.reason is None
    stage.running = []
    stage.watch.begin()
    assert stage.watch.next_timer() is None
