"""Whether a signed message has come before.

A copy of a message bears the same signature. Half a signature tells two messages apart just as well (128 bits of an
HMAC), and what is remembered for nothing else must be small: all of it stays in memory.
"""

from __future__ import annotations

WINDOW = 65_536  # signatures remembered; at least half as many at any time
_HALF_OF_HEX = 32  # digits of an HMAC-SHA256, of 64


class SeenSignatures:
    """The latest signatures, in two sets of which the older is dropped when the newer is full."""

    def __init__(self, window: int = WINDOW) -> None:
        self._most = window // 2
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def is_new(self, signature: bytes) -> bool:
        """Whether this (already verified) hex signature is seen for the first time; it is remembered from now on."""
        digest = int(signature[:_HALF_OF_HEX] or b"0", 16)
        if digest in self._newer:
            return False
        is_new = digest not in self._older
        self._newer.add(digest)
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, set()
        return is_new
