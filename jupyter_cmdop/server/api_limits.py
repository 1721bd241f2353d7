"""How often one actor may act over HTTP: a bucket that fills evenly and lets a burst through."""

from __future__ import annotations

import time
from collections.abc import Callable

from .api_errors import refused

KEPT_BUCKETS = 4096
"""Actors that are remembered; one that was forgotten has a full bucket."""
BURST_SECONDS = 10.0
"""An actor who was silent may do at once what he might have done in this time."""


class ActLimit:
    """Counts acts of each actor."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_minute / 60.0
        self._burst = max(1.0, self._per_second * BURST_SECONDS)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, actor: str) -> None:
        """Count one act.

        Raises:
            ApiError: `rate_limited`, with the seconds after which it may pass.
        """
        if self._per_second <= 0:
            return
        now = self._clock()
        left, at = self._buckets.pop(actor, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        if left < 1:
            self._buckets[actor] = (left, now)
            seconds = round((1 - left) / self._per_second, 3)
            raise refused(
                {
                    "code": "rate_limited",
                    "message": f"{actor} acts more often than this server allows over HTTP",
                    "retry_after": seconds,
                    "next": [f"wait {seconds:.1f} s", "put several statements into one run"],
                }
            )
        self._buckets[actor] = (left - 1, now)
        while len(self._buckets) > KEPT_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
