"""Ctrl-C as something to wait for, instead of an exception that may come between two bytes."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self


class Signals:
    """While it is entered, the named signals are counted and make `fileno()` readable."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers or (signal.SIGINT,)
        self._before: dict[signal.Signals, Any] = {}
        self._counts: dict[int, int] = {}
        self._read, self._write = -1, -1

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def take(self) -> dict[int, int]:
        """How often each signal has come since the last call."""
        try:
            while os.read(self._read, 1024):
                pass
        except BlockingIOError:
            pass
        counts, self._counts = self._counts, {}
        return counts

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._counts[number] = self._counts.get(number, 0) + 1
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # it is readable already
