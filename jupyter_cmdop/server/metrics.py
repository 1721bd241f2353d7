"""What `/metrics` tells of the sessions that this process shows: sums over all of them, as their keepers last said.

No label names a session, a person or a kernel. Sessions are named after documents, without an end to it; each name
would be a time series of its own, kept long after its session. Who needs one session asks it: `jupyter cmdop status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from prometheus_client import REGISTRY, Counter, Gauge

STATES: Final = ("starting", "open", "unresponsive", "lost", "closed", "other")

Kind = TypeVar("Kind", Counter, Gauge)


def _once(kind: type[Kind], name: str, meaning: str, labels: Sequence[str] = ()) -> Kind:
    """Register a metric, or find the one that an earlier import of this module has registered in this process."""
    try:
        return kind(name, meaning, labels)
    except ValueError:
        found = REGISTRY._names_to_collectors.get(name)  # noqa: SLF001 (there is no public way to ask for it)
        if not isinstance(found, kind):
            raise
        return found


SESSIONS = _once(
    Gauge, "cmdop_sessions", f"sessions that this server shows, by `state`: {', '.join(STATES)}", ["state"]
)
ATTACHMENTS = _once(Gauge, "cmdop_attachments", "kernel clients and websockets that sessions have now")
QUEUED = _once(Gauge, "cmdop_queued_operations", "operations that are admitted and wait for their turn")
REFUSALS = _once(
    Counter, "cmdop_refusals", "attempts that were refused while this server showed their session"
)
JOURNAL_WAITING = _once(
    Gauge,
    "cmdop_journal_waiting_entries",
    "entries that wait to be written to their journals",
)
METRICS: Final = (SESSIONS, ATTACHMENTS, QUEUED, REFUSALS, JOURNAL_WAITING)

for _state in STATES:
    SESSIONS.labels(state=_state)  # a state without a session is a zero, not a gap


@dataclass(frozen=True, slots=True)
class Sample:
    """What a keeper said that is measured. `state` is "" and everything zero before it has said anything."""

    state: str = ""
    connections: int = 0
    queued: int = 0
    refused: int = 0
    journal_waiting: int = 0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Sample:
        state = said.get("state")
        return cls(
            state if isinstance(state, str) and state in STATES else "other",
            *(_count(said.get(key)) for key in ("connections", "queued", "refused", "journal_waiting")),
        )


class Measured:
    """One session's part in the sums; whoever follows the session says what it hears, and when that is over."""

    def __init__(self) -> None:
        self._last = Sample()

    def heard(self, said: Mapping[str, Any]) -> None:
        last, now = self._last, Sample.of(said)
        # What a keeper refused before we knew it is not news; it may have been counted by another server.
        if last.state and now.refused > last.refused:
            REFUSALS.inc(now.refused - last.refused)
        self._become(now)

    def gone(self) -> None:
        """The session has ended, or this server does not follow it any more. What was refused stays counted."""
        self._become(Sample())

    def _become(self, now: Sample) -> None:
        last, self._last = self._last, now
        if last.state != now.state:
            if last.state:
                SESSIONS.labels(state=last.state).dec()
            if now.state:
                SESSIONS.labels(state=now.state).inc()
        ATTACHMENTS.inc(now.connections - last.connections)
        QUEUED.inc(now.queued - last.queued)
        JOURNAL_WAITING.inc(now.journal_waiting - last.journal_waiting)


def _count(value: object) -> int:
    """An older keeper does not say everything, and a metric must not fail for what it says."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
