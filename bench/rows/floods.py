"""Much output in many messages: what arrives, how fast, and whether the end is seen."""

from __future__ import annotations

from collections.abc import Iterator

from bench.doors import Door, Flood, ZmqDoor, code_for, flood
from bench.figures import DIRECT, OURS, Figure, interleave
from bench.probes import cpu_seconds, peak_mib, reset_peak, rss_mib, wait_quiet
from bench.servers import Bench


def add_losses(figure: Figure, floods: dict[str, list[Flood]]) -> Figure:
    """What each door lost. Only ours must not."""
    lost = sum(one.lost for one in floods[OURS])
    idle = sum(one.saw_idle for one in floods[OURS])
    runs = len(floods[OURS])
    figure.must("0 lost", lost == 0).must("idle seen", idle == runs)
    for name, ones in floods.items():
        figure.note(
            f"{name}: {sum(one.lost for one in ones)} lost, idle {sum(one.saw_idle for one in ones)}/{len(ones)}"
        )
    return figure


def rates(floods: dict[str, list[Flood]]) -> dict[str, list[float]]:
    return {name: [one.messages_per_second for one in ones] for name, ones in floods.items()}


def _lines(bench: Bench, kind: str, least: float) -> Iterator[Figure]:
    doors: list[Door] = [bench.plain(kind).door(), bench.session(kind).door()]
    bench.keep(doors)
    count = bench.count(20_000)
    code = code_for("ipykernel" if kind == "ipykernel" else "null", "flood", count, 100)
    floods: dict[str, list[Flood]] = {door.name: [] for door in doors}
    used: list[float] = []
    for door in interleave(doors, 2 if bench.quick else 7):
        before = cpu_seconds(door.pid) if door.pid else 0
        one = flood(door, code, count)
        floods[door.name].append(one)
        if door.pid and one.messages:
            used.append((cpu_seconds(door.pid) - before) / one.messages * 1e6)
    figure = Figure.of(f"{kind}: {count:,} lines", "messages/s", rates(floods)).at_least_direct(least)
    yield add_losses(figure, floods)
    yield Figure.of(f"{kind}: CPU of the keeper a message", "µs", {OURS: used})


def lines_of_ipykernel(bench: Bench) -> Iterator[Figure]:
    yield from _lines(bench, "ipykernel", 0.88)


def fast_kernel(bench: Bench) -> Iterator[Figure]:
    for kind in ("null", "null, hwm 0"):
        yield from _lines(bench, kind, 0.45)
    yield from _buffers(bench)


def _buffers(bench: Bench) -> Iterator[Figure]:
    """The kernel queues without limit: what is lost in its own socket says nothing about what is behind it."""
    kind, count = "null, hwm 0", bench.count(6_000)
    direct, endpoint = bench.plain(kind).door(), bench.session(kind)
    ours: ZmqDoor = endpoint.door()
    bench.keep([direct, ours])
    floods: dict[str, list[Flood]] = {DIRECT: [], OURS: []}
    above: list[float] = []
    wait_quiet([endpoint.pid])
    idle_mib = rss_mib(endpoint.pid)
    for door in interleave([direct, ours], 2 if bench.quick else 3):
        reset_peak(endpoint.pid)
        floods[door.name].append(flood(door, f"comm {count} 32768", count))
        if door is ours:
            above.append(peak_mib(endpoint.pid) - idle_mib)
    speeds = {name: [one.megabytes_per_second for one in ones] for name, ones in floods.items()}
    yield add_losses(Figure.of(f"{kind}: {count:,} buffers of 32 KB", "MB/s", speeds), floods)
    memory = Figure.of("the keeper's memory, peak above idle", "MiB", {OURS: above})
    yield memory.must("≤ 256 MiB, each time", max(above) <= 256)
