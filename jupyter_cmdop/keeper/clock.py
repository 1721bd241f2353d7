"""Where the keeper's parts read the time: from the system's clocks, or from those of a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..clocks import session_seconds


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks: patience runs on the monotonic one, leases on that of sessions; wall time only labels.

    Attributes:
        monotonic: seconds. monotonic_ns: the same clock in nanoseconds.
        session: seconds, those of a suspended machine included; see `clocks`.
        wall_ns: nanoseconds since 1970.
    """

    monotonic: Callable[[], float] = time.monotonic
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    session: Callable[[], float] = session_seconds
    wall_ns: Callable[[], int] = time.time_ns


SYSTEM = Clock()
