"""Round trips: from the request until reply and idle have both come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.doors import Door
from bench.figures import OURS, Figure, interleave
from bench.probes import cpu_seconds
from bench.servers import Bench

VISIT = 25
"""Round trips through one door before it is the next one's turn."""


def trips(bench: Bench, doors: Sequence[Door], *, silent: bool) -> tuple[dict[str, list[float]], float]:
    """Microseconds by door, and the keeper's CPU microseconds an execute."""
    samples: dict[str, list[float]] = {door.name: [] for door in doors}
    used = 0.0
    for door in interleave(doors, bench.count(20, 2)):
        door.drain(0.002)
        before = cpu_seconds(door.pid) if door.pid else 0
        samples[door.name] += [door.trip_us(silent=silent) for _ in range(VISIT)]
        if door.name == OURS and door.pid:
            used += cpu_seconds(door.pid) - before
    return samples, used / len(samples[OURS]) * 1e6


def over_zmq(bench: Bench) -> Iterator[Figure]:
    for kind, limit in (("ipykernel", 1.35), ("null", 3.3)):
        doors: list[Door] = [bench.plain(kind).door(), bench.session(kind).door()]
        bench.keep(doors)
        for silent in (True, False):
            samples, used = trips(bench, doors, silent=silent)
            what = f"{kind}, {'silent' if silent else 'not silent'}"
            yield Figure.of(what, "µs", samples, tails=True).at_most_direct(limit)
            yield Figure(f"{what}: CPU of the keeper an execute", "µs", used)


def over_websocket(bench: Bench) -> Iterator[Figure]:
    ours, peer = bench.server(), bench.server(is_ours=False)
    for kind in ("ipykernel", "null"):
        doors: list[Door] = [
            bench.plain(kind).door(),
            peer.start_kernel(kind).door(),
            ours.start_kernel(kind).door(),
        ]
        bench.keep(doors)
        for silent in (True, False):
            samples, used = trips(bench, doors, silent=silent)
            what = f"{kind}, {'silent' if silent else 'not silent'}"
            figure = Figure.of(what, "µs", samples, tails=True)
            if kind == "ipykernel":
                figure.at_most_direct(1.3).at_most_peer(1)
                figure.must("p95 ≤ 10 ms", (figure.p95 or 0) <= 10_000)
            else:
                figure.at_most_peer(0.9)
            yield figure
            yield Figure(f"{what}: CPU of the keeper an execute", "µs", used)
