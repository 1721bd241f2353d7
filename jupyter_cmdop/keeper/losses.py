"""Notices what a kernel has said and nobody has heard, by the numbers in its message ids.

`jupyter_client.session` numbers all messages of a process, whatever channel they leave by: `session_pid_number`.
ipykernel and what is built on it does so; ids of another form are not counted, and their losses are not seen.
"""

from __future__ import annotations

MAX_MISSING = 10_000  # spans that are waited for at once; more are not counted


class MessageNumbers:
    """The numbers of one kernel's messages.

    Channels overtake each other, so that a number which is missing may still come: it counts as lost when it has
    not come within the patience of whoever asks.
    """

    def __init__(self) -> None:
        self._prefix: str | None = None
        self._next = 0
        self._missing: dict[int, tuple[int, float]] = {}  # first: (behind the last, since when)

    def forget(self) -> None:
        """Another kernel, or the same anew."""
        self.__init__()  # type: ignore[misc]  # all of its state

    def note(self, msg_id: str, now: float) -> None:
        """A message with this id has come."""
        prefix, _, digits = msg_id.rpartition("_")
        if prefix != self._prefix:
            if self._prefix is not None or not digits.isdecimal() or "_" not in prefix:
                return  # a process below the kernel speaks with numbers of its own
            self._prefix, self._next = prefix, int(digits)
        elif not digits.isdecimal() or len(digits) > 18:
            return
        number = int(digits)
        if number == self._next:
            self._next = number + 1
        elif number > self._next:
            if len(self._missing) < MAX_MISSING:
                self._missing[self._next] = (number, now)
            self._next = number + 1
        else:
            self._found(number)

    def _found(self, number: int) -> None:
        for first, (behind, since) in self._missing.items():
            if first <= number < behind:
                del self._missing[first]
                if first < number:
                    self._missing[first] = (number, since)
                if number + 1 < behind:
                    self._missing[number + 1] = (behind, since)
                return

    @property
    def due(self) -> float | None:
        """Since when the first of them is missing."""
        return min((since for _, since in self._missing.values()), default=None)

    def lost(self, before: float) -> int:
        """How many are missing since before that moment; they are not reported again."""
        spans = [(first, behind) for first, (behind, since) in self._missing.items() if since <= before]
        for first, _ in spans:
            del self._missing[first]
        return sum(behind - first for first, behind in spans)
