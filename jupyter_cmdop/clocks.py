"""The clocks by which sessions are judged: seconds that only grow, and wall time that somebody may set.

Leases, grants and credentials are judged by `session_seconds`. It goes on while the machine is suspended, so that what
has run out meanwhile has run out; and setting the wall clock changes nothing. Where a system has no such clock
(macOS), it is the monotonic one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

JUMP_SECONDS = 5.0
"""By how much wall time may stray from the others (it is slewed, and read at another moment) before it was set."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def session_seconds() -> float:
    """Seconds since some moment in the past, those of a suspended machine included."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


@dataclass(slots=True)
class LastMoment:
    """When something last happened, in wall time as it is reckoned now.

    Who compares it with the time of day (a culler) must not take a clock that was set two hours ahead for two hours of
    silence. While the clock is not set, the answer stays the same to the last digit.
    """

    _wall: float = field(default_factory=time.time)
    _seconds: float = field(default_factory=session_seconds)

    def note(self) -> None:
        self._wall, self._seconds = time.time(), session_seconds()

    def note_past(self, wall: float) -> None:
        """It happened at that moment of the wall clock as it goes now."""
        self._wall = wall
        self._seconds = session_seconds() - (time.time() - wall)

    @property
    def wall(self) -> float:
        strayed = (time.time() - session_seconds()) - (self._wall - self._seconds)
        if abs(strayed) > JUMP_SECONDS:
            self._wall += strayed
        return self._wall

    @property
    def moment(self) -> datetime:
        # Not `fromtimestamp`, which refuses what a clock that is far off may say.
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self.wall)
