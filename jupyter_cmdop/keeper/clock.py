"""Where the keeper's parts read the time: from the system's clocks, or from those of a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """The monotonic clock, on which leases and patience run, and the wall clock, which only labels.

    Attributes:
        monotonic: seconds. monotonic_ns: the same clock in nanoseconds.
        wall_ns: nanoseconds since 1970.
    """

    monotonic: Callable[[], float] = time.monotonic
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns


SYSTEM = Clock()
