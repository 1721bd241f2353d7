"""When something last happened must not move because somebody sets the wall clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from jupyter_cmdop import clocks

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall, self.seconds = NOON, 1000.0
        patch.setattr(time, "time", lambda: self.wall)
        patch.setattr(clocks, "session_seconds", lambda: self.seconds)

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(monkeypatch)
    # The fields' defaults were bound when the class was made.
    monkeypatch.setattr(clocks.LastMoment, "__init__", lambda self: self.note())
    return made


@pytest.mark.parametrize("jump", [7200.0, -3600.0, 6.0])
def test_idle_time_is_the_same_whatever_the_wall_clock_was_set_to(clock: Clock, jump: float) -> None:
    last = clocks.LastMoment()
    clock.go(10)
    clock.wall += jump
    assert clock.wall - last.wall == pytest.approx(10)
    clock.go(20)
    assert clock.wall - last.wall == pytest.approx(30)


def test_moment_is_stable_to_the_last_digit_while_the_clock_is_merely_slewed(clock: Clock) -> None:
    """A front end takes a new `last_activity` for news, and asks for everything again."""
    last = clocks.LastMoment()
    first = last.moment
    for _ in range(10):
        clock.go(60)
        clock.wall += 0.3
        assert last.moment == first


def test_moment_that_another_process_told_is_as_good(clock: Clock) -> None:
    last = clocks.LastMoment()
    last.note_past(NOON - 100)
    assert last.moment == datetime.fromtimestamp(NOON - 100, UTC)
    clock.wall += 7200
    assert clock.wall - last.wall == pytest.approx(100)


def test_session_clock_counts_what_the_machine_slept() -> None:
    assert clocks.session_seconds() >= time.monotonic() - 1e-3
