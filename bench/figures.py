"""What a row of the table says, and how it is written: on the terminal, as JSON, as Markdown."""

from __future__ import annotations

import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

T = TypeVar("T")
OURS, DIRECT, PEER = "ours", "direct", "peer"
"""The doors of a comparison: D is a client straight at an identical kernel, P jupyter_server without
its known brakes."""


def percentile(values: Iterable[float], q: float) -> float:
    """Linear between the two nearest; NaN of nothing."""
    data = sorted(values)
    if not data:
        return math.nan
    place = (len(data) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(data) - 1)
    return data[low] + (data[high] - data[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def interleave(doors: Sequence[T], rounds: int, seed: int = 7) -> Iterator[T]:
    """Every door once a round, in another order each round: what the machine does meanwhile falls on all of them."""
    order = list(doors)
    choose = random.Random(seed)
    for _ in range(rounds):
        choose.shuffle(order)
        yield from list(order)


@dataclass(slots=True)
class Figure:
    """One line of the table.

    Attributes:
        direct: the same through D in the same run, where that means something.
        peer: the same through P.
        musts: what it has to be, each with whether it is; `None` where a short run cannot tell.
        notes: what else was counted.
        samples: what the medians are of, by door.
    """

    what: str
    unit: str
    ours: float
    direct: float | None = None
    peer: float | None = None
    p95: float | None = None
    p99: float | None = None
    musts: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)
    load: float = math.nan

    @classmethod
    def of(
        cls, what: str, unit: str, samples: Mapping[str, Sequence[float]], *, tails: bool = False
    ) -> Figure:
        """The medians of samples by door; with `tails` our p95 and p99 too."""
        figure = cls(what, unit, median(samples[OURS]), samples={k: list(v) for k, v in samples.items()})
        figure.direct = median(samples[DIRECT]) if DIRECT in samples else None
        figure.peer = median(samples[PEER]) if PEER in samples else None
        if tails:
            figure.p95, figure.p99 = (percentile(samples[OURS], q) for q in (95, 99))
        return figure

    @property
    def x_direct(self) -> float:
        return self.ours / self.direct if self.direct else math.nan

    @property
    def x_peer(self) -> float:
        return self.ours / self.peer if self.peer else math.nan

    def must(self, text: str, is_met: bool) -> Figure:
        self.musts.append((text, is_met))
        return self

    def at_most(self, limit: float) -> Figure:
        return self.must(f"≤ {limit:g} {self.unit}", self.ours <= limit)

    def at_least(self, limit: float) -> Figure:
        return self.must(f"≥ {limit:g} {self.unit}", self.ours >= limit)

    def at_most_direct(self, limit: float) -> Figure:
        return self.must(f"≤ {limit:g} D", self.x_direct <= limit)

    def at_least_direct(self, limit: float) -> Figure:
        return self.must(f"≥ {limit:g} D", self.x_direct >= limit)

    def at_most_peer(self, limit: float) -> Figure:
        return self.must(f"≤ {limit:g} P" if limit != 1 else "< P", self.x_peer <= limit)

    def note(self, text: str) -> Figure:
        self.notes.append(text)
        return self

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "ours": self.ours,
            "p95": self.p95,
            "p99": self.p99,
            "direct": self.direct,
            "peer": self.peer,
            "x_direct": None if self.direct is None else self.x_direct,
            "x_peer": None if self.peer is None else self.x_peer,
            "musts": [{"text": text, "met": met} for text, met in self.musts],
            "notes": self.notes,
            "load": self.load,
            "samples": self.samples,
        }


def number(value: float | None) -> str:
    """About three digits."""
    if value is None or math.isnan(value):
        return ""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return (
        f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if abs(value) < 100 else f"{value:.0f}"
    )


HEAD = ("what", "unit", "ours", "p95", "p99", "D", "P", "x D", "x P", "must", "met", "load")


def cells(figure: Figure) -> list[str]:
    met = "" if not figure.musts else "yes" if all(met for _, met in figure.musts) else "**no**"
    return [
        "; ".join([figure.what, *figure.notes]),
        figure.unit,
        number(figure.ours),
        number(figure.p95),
        number(figure.p99),
        number(figure.direct),
        number(figure.peer),
        number(figure.x_direct),
        number(figure.x_peer),
        ", ".join(text for text, _ in figure.musts),
        met,
        number(figure.load),
    ]


def as_text(figure: Figure) -> str:
    """One line for the terminal: what there is, by name."""
    named = dict(zip(HEAD, cells(figure), strict=True))
    shown = "  ".join(f"{key} {value}" for key, value in list(named.items())[3:] if value)
    return f"{named['what']}: {named['ours']} {named['unit']}  {shown}"


def as_markdown(
    rows: Mapping[str, Sequence[Figure]],
    abouts: Mapping[str, str],
    failures: Mapping[str, str],
    host: Mapping[str, Any],
) -> str:
    lines = [
        f"{host['time']}; {host['cpus']} CPUs, {host['system']}, Python {host['python']}; "
        + ", ".join(f"{name} {number}" for name, number in host["versions"].items())
        + ("; **a quick run: its figures mean nothing**" if host["quick"] else "")
        + ".",
    ]
    for name, figures in rows.items():
        lines += ["", f"### {abouts[name]}", "", f"`python bench/run.py {name}`", ""]
        if name in failures:
            lines += [f"**This row failed**: {failures[name].splitlines()[-1]}", ""]
        if figures:
            lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
            lines += ["| " + " | ".join(cells(figure)) + " |" for figure in figures]
    return "\n".join(lines) + "\n"


def host_facts(*, quick: bool) -> dict[str, Any]:
    names = ("jupyter_cmdop", "jupyter_server", "jupyter_client", "ipykernel", "tornado", "pyzmq")
    return {
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: version(name) for name in names},
        "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "quick": quick,
    }
