"""Notices, before anything else is done, that this process stood still, that the machine slept, that a clock was set.

A process that was stopped (SIGSTOP, a debugger, a frozen container) or a machine that was suspended goes on as if
nothing had been. What came meanwhile lies in its sockets, and what ran out meanwhile must be judged first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..clocks import JUMP_SECONDS, session_seconds

LATE_SECONDS = 2.0
"""A wake-up that comes so much too late was not merely slow."""
SHORT_SECONDS = 1.0
"""A process that was told to go on after less than this has missed nothing."""
SUSPENDED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What is odd about the time.

    Attributes:
        seconds: how long at most it stood still or was suspended; by how much the clock was set, ahead or back.
    """

    kind: Literal["stopped", "suspended", "clock"]
    seconds: float


class TimeWatch:
    """Compares clocks each time the loop wakes.

    Args:
        monotonic, session, wall: the clocks; a test gives its own.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        session: Callable[[], float] = session_seconds,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._session = session
        self._wall = wall
        self._was_continued = False
        self._seen = monotonic()
        self._asleep = session() - self._seen
        self._offset = wall() - session()

    def continued(self) -> None:
        """The process was told to go on (SIGCONT). It may not have been stopped; that it was cannot be asked."""
        self._was_continued = True

    def look(self, due: float) -> list[Finding]:
        """What has happened since the last look.

        Args:
            due: the monotonic second by which the loop meant to be awake.
        """
        found: list[Finding] = []
        now, session = self._monotonic(), self._session()
        asleep = session - now
        if asleep - self._asleep > SUSPENDED_SECONDS:
            found.append(Finding("suspended", asleep - self._asleep))
        self._asleep = asleep
        missed = now - self._seen if self._was_continued else 0.0
        if missed > SHORT_SECONDS or now - due > LATE_SECONDS:
            found.append(Finding("stopped", max(missed, now - due)))
        self._was_continued = False
        self._seen = now
        offset = self._wall() - session
        if abs(offset - self._offset) > JUMP_SECONDS:
            found.append(Finding("clock", offset - self._offset))
            self._offset = offset
        elif found:
            self._offset = offset
        return found
