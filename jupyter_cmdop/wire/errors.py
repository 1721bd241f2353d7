"""The one error of the codecs.

    ValueError
    └── WireError      what arrived, or what was to be sent, is not a message; nothing was changed

Whatever the other side sends, no codec raises anything else. A `TypeError` from here is a bug in the caller.
"""

from __future__ import annotations


class WireError(ValueError):
    """Bytes that are not what they should be.

    Attributes:
        reason: what is wrong, for the person who reads the log; never the content itself.
        offset: where: a byte offset, or the index of the frame in a ZMQ message; None when it has no place.
    """

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return self.reason if self.offset is None else f"{self.reason} (at {self.offset})"
