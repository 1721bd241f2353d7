"""What must hold in every journal, whoever did whatever: read from the entries alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FLOOR = {"taken", "claimed", "handed_back", "released", "freed", "stale", "resumed"}
OUTCOMES = {"ok", "error", "interrupted", "aborted", "superseded", "withdrawn", "unknown"}
MAIN = ""


@dataclass
class Rules:
    """Follows a journal from its first entry.

    Attributes:
        broken: what did not hold, in words.
    """

    broken: list[str] = field(default_factory=list)
    admitted: dict[str, str] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    actors: set[str] = field(default_factory=set)
    _seq: int = 0
    _generation: int = 0
    _incarnation: int = 0
    _driver: str | None = None
    _is_stale: bool = False
    _running: str | None = None
    _requests: dict[tuple[str, str], str] = field(default_factory=dict)

    def follow(self, entries: Iterable[Mapping[str, Any]]) -> Rules:
        for entry in entries:
            self._take(entry)
        return self

    def finish(self) -> Rules:
        """The session is at rest: nothing may be without its outcome."""
        for operation in self.admitted.keys() - self.ended.keys():
            self.broken.append(f"{operation} of {self.admitted[operation]} was admitted and has no outcome")
        return self

    def _take(self, entry: Mapping[str, Any]) -> None:
        kind, seq = str(entry["type"]), int(entry["seq"])
        data = entry.get("data") if isinstance(entry.get("data"), Mapping) else {}
        self.types[kind] += 1
        if seq != self._seq + 1:
            self._break(entry, f"comes after {self._seq}")
        self._seq = seq
        for name, last in (("generation", self._generation), ("incarnation", self._incarnation)):
            if int(entry.get(name) or 0) < last:
                self._break(entry, f"has {name} {entry.get(name)} after {last}")
        self._generation = max(self._generation, int(entry.get("generation") or 0))
        self._incarnation = max(self._incarnation, int(entry.get("incarnation") or 0))
        if kind in FLOOR:
            self._floor(entry, kind, data or {})
        elif kind == "admitted":
            self._admit(entry)
        elif kind == "delivered":
            self._deliver(entry)
        elif kind == "ended":
            self._end(entry, data or {})

    def _break(self, entry: Mapping[str, Any], what: str) -> None:
        self.broken.append(f"entry {entry['seq']} ({entry['type']} {entry.get('operation') or ''}) {what}")

    def _floor(self, entry: Mapping[str, Any], kind: str, data: Mapping[str, Any]) -> None:
        if data.get("from") != self._driver:
            self._break(entry, f"is from {data.get('from')}, and {self._driver} drove")
        self._driver, self._is_stale = data.get("to"), kind == "stale"

    def _admit(self, entry: Mapping[str, Any]) -> None:
        operation, actor = str(entry["operation"]), str(entry["actor"])
        self.actors.add(actor)
        if operation in self.admitted:
            self._break(entry, "was admitted before")
        self.admitted[operation] = actor
        if self._driver not in (None, actor):
            self._break(entry, f"is of {actor}, while {self._driver} drives")
        if request := entry.get("request_id"):
            if (actor, str(request)) in self._requests:
                self._break(entry, f"has the request id of {self._requests[actor, str(request)]}")
            self._requests[actor, str(request)] = operation

    def _deliver(self, entry: Mapping[str, Any]) -> None:
        operation = str(entry["operation"])
        if operation not in self.admitted or operation in self.delivered or operation in self.ended:
            self._break(entry, "was delivered unadmitted, twice or late")
        if self._running is not None:
            self._break(entry, f"was delivered while {self._running} ran")
        self.delivered.add(operation)
        self._running = operation

    def _end(self, entry: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        operation, outcome = str(entry["operation"]), str(data.get("outcome"))
        if operation not in self.admitted or operation in self.ended:
            self._break(entry, "ended unadmitted or twice")
        if outcome not in OUTCOMES:
            self._break(entry, f"ended as {outcome}")
        if outcome in ("ok", "error", "unknown") and operation not in self.delivered:
            self._break(entry, f"ended as {outcome} and was never delivered")
        self.ended[operation] = outcome
        self.outcomes[outcome] += 1
        if self._running == operation:
            self._running = None


def slope(points: list[tuple[float, float]]) -> float:
    """The least-squares slope of y over x."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
