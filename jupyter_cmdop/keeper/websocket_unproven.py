"""What was said to one websocket client alone and has no place in the journal, until the client has surely read it.

A refusal, the reply for a cell that was superseded while its author was away, the answer to a completion: none is an
output that the journal could give again, and a client that never gets it waits for ever.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

KEPT_BYTES = 4 * 1024 * 1024
KEPT_MESSAGES = 4096


class Unproven:
    """Messages in the order in which they were said.

    Attributes:
        has_lost_prompt: a prompt was written to a connection that is gone, and perhaps not read.
    """

    def __init__(self) -> None:
        self._said = 0
        self.has_lost_prompt = False
        self._kept: collections.deque[tuple[int, str, Sequence[bytes]]] = collections.deque()
        self._bytes = 0
        self._proven = 0
        self._prompt = 0
        self._write_up_to = 0

    def add(self, channel: str, parts: Sequence[bytes]) -> None:
        """Something is said; the oldest is given up when there is too much."""
        self._said += 1
        self._kept.append((self._said, channel, parts))
        self._bytes += sum(map(len, parts))
        while self._kept and (self._bytes > KEPT_BYTES or len(self._kept) > KEPT_MESSAGES):
            self._forget_oldest()

    def note_prompt(self) -> None:
        """A prompt is shown. It is counted and not kept: the session knows whether it still waits."""
        self._said += 1
        self._prompt = self._said
        self.has_lost_prompt = False

    @property
    def written(self) -> int:
        """How many have been written to the connection in hand, or need not be: what a mark says of them."""
        return self._proven if self._write_up_to else self._said

    def prove(self, written: int) -> None:
        """A mark that said `written` has been answered."""
        self._proven = max(self._proven, written)
        while self._kept and self._kept[0][0] <= written:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, _, parts = self._kept.popleft()
        self._bytes -= sum(map(len, parts))

    def write_again(self) -> None:
        """There is a new connection; what is kept now was not written to it."""
        self._write_up_to = self._said
        self.has_lost_prompt = self._prompt > self._proven

    def to_write(self) -> Iterator[tuple[str, Sequence[bytes]]]:
        """What is to be written again: (channel, parts). It is asked for once a connection."""
        until, self._write_up_to = self._write_up_to, 0
        return ((channel, parts) for number, channel, parts in list(self._kept) if number <= until)
