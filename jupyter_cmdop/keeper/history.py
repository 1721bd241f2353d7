"""Answers `history_request` from what this session ran, so that no client sees other kernels' history."""

from __future__ import annotations

import collections
import fnmatch
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..wire.kernel import decode_as

KEPT_BYTES = 16 * 1024 * 1024
KEPT_LINES = 10_000


class HistoryRequest(msgspec.Struct):
    """Content of a history_request (messaging specification, "History")."""

    output: bool = False
    raw: bool = True
    hist_access_type: str = "tail"
    session: int = 0
    start: int = 0
    stop: int | None = None
    n: int | None = None
    pattern: str | None = None
    unique: bool = False


REQUEST: msgspec.json.Decoder[HistoryRequest] = msgspec.json.Decoder(HistoryRequest)


def parse_history(content: bytes) -> HistoryRequest:
    """Read the content of a history_request.

    Raises:
        WireError: not an object, a field of another type, or too deep.
    """
    return decode_as(REQUEST, content, what="history_request")


@dataclass(frozen=True, slots=True)
class Line:
    """One cell: the incarnation stands for IPython's session number."""

    session: int
    number: int
    source: str


@dataclass(slots=True)
class History:
    """The cells of one session, the latest last, bounded."""

    lines: collections.deque[Line] = field(default_factory=lambda: collections.deque(maxlen=KEPT_LINES))
    size: int = 0

    def add(self, session: int, number: int, source: str) -> None:
        if len(self.lines) == KEPT_LINES:
            self.size -= len(self.lines[0].source)
        self.lines.append(Line(session, number, source))
        self.size += len(source)
        while self.size > KEPT_BYTES and len(self.lines) > 1:
            self.size -= len(self.lines.popleft().source)

    def answer(self, request: HistoryRequest, session: int) -> dict[str, Any]:
        """The content of the history_reply.

        Args:
            session: the current incarnation: what 0 means, and what negative numbers count back from.
        """
        if request.hist_access_type == "range":
            wanted = request.session if request.session > 0 else session + request.session
            chosen = [
                line
                for line in self.lines
                if line.session == wanted
                and line.number >= request.start
                and (request.stop is None or line.number < request.stop)
            ]
        else:
            chosen = list(self.lines)
            if request.hist_access_type == "search":
                pattern = request.pattern or "*"
                chosen = [line for line in chosen if fnmatch.fnmatchcase(line.source, pattern)]
                if request.unique:
                    latest = {line.source: line for line in chosen}
                    chosen = sorted(latest.values(), key=lambda line: (line.session, line.number))
            if request.n is not None:
                chosen = chosen[max(0, len(chosen) - request.n) :]
        entry: Any = (lambda source: (source, None)) if request.output else (lambda source: source)
        return {
            "status": "ok",
            "history": [(line.session, line.number, entry(line.source)) for line in chosen],
        }
