"""64 viewers of one null kernel: how late each message is, how many a second, and what a viewer costs.

What attaching costs is over before the first figure of processor time is taken: the keeper shows all of them, has sent
what they are owed, and does nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.doors import Door
from bench.fan import Fan, Receiver, Subscriber
from bench.figures import DIRECT, OURS, PEER, Figure, interleave
from bench.probes import cpu_seconds, descriptors, uss_mib, wait_quiet, wait_until
from bench.servers import Bench, PlainKernel, ServedKernel
from jupyter_cmdop.client.session import Session

VIEWERS = 64
PACE_MS = 20
BURST = 500
SIZE = 100


@dataclass(slots=True)
class Watched:
    """A kernel with its viewers, and what was measured on them."""

    driver: Door
    receivers: list[Receiver]
    pid: int | None
    fan: Fan
    paced: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    paced_cpu: list[float] = field(default_factory=list)
    burst_cpu: list[float] = field(default_factory=list)
    lost: int = 0

    def settle(self) -> None:
        self.driver.drain(0.1)
        wait_quiet([self.pid] if self.pid else [], self.fan.drop_ready)
        self.fan.reset()

    def run(self, code: str, count: int) -> tuple[float, float]:
        """Seconds until all have it, and CPU microseconds a delivery (the driver's own is one of them)."""
        self.settle()
        before = cpu_seconds(self.pid) if self.pid else 0
        start = time.perf_counter()
        self.driver.request(code)
        got = sum(self.fan.pump(count))
        took = time.perf_counter() - start
        used = (cpu_seconds(self.pid) - before if self.pid else 0) / max(1, got + count) * 1e6
        self.lost += count * len(self.receivers) - got
        return took, used


def _attach(kernel: PlainKernel | ServedKernel, viewers: int) -> list[Receiver]:
    if isinstance(kernel, PlainKernel):
        return [Subscriber(kernel.connection_file) for _ in range(viewers)]
    return [kernel.connect().websocket for _ in range(viewers)]


def viewers(bench: Bench) -> Iterator[Figure]:
    kernels: dict[str, PlainKernel | ServedKernel] = {
        DIRECT: bench.plain("null"),
        PEER: bench.server(is_ours=False).start_kernel("null"),
        OURS: bench.server().start_kernel("null"),
    }
    watched: dict[str, Watched] = {}
    costs: dict[str, tuple[float, float]] = {}
    for name, kernel in kernels.items():
        driver = kernel.door()
        pid = kernel.pid if isinstance(kernel, ServedKernel) else None
        bench.keep([driver])
        if pid:
            wait_quiet([pid])
        before = (uss_mib(pid), descriptors(pid)) if pid else (0.0, 0)
        receivers = _attach(kernel, VIEWERS)
        bench.keep(receivers)
        made = watched[name] = Watched(driver, receivers, pid, Fan(receivers))
        bench.keep([made.fan])
        if name == OURS and isinstance(kernel, ServedKernel):
            _wait_attached(kernel.id, VIEWERS + 1)
        made.settle()
        if pid:
            costs[name] = (
                (uss_mib(pid) - before[0]) * 1024 / VIEWERS,
                (descriptors(pid) - before[1]) / VIEWERS,
            )
    _measure(bench, watched)
    yield from _figures(watched, costs)


def _wait_attached(session: str, count: int) -> None:
    with Session.open(session) as link:
        wait_until(
            f"{count} websockets are attached",
            lambda: sum(one.transport == "websocket" for one in link.status().presence) >= count,
        )


def _measure(bench: Bench, watched: dict[str, Watched]) -> None:
    for one in interleave(list(watched.values()), 1 if bench.quick else 3):
        count = bench.count(150)
        _, used = one.run(f"pace {count} {SIZE} {PACE_MS}", count)
        one.paced += [latency for seen in one.fan.latencies for latency in seen]
        one.paced_cpu.append(used)
    for one in interleave(list(watched.values()), 2 if bench.quick else 7):
        took, used = one.run(f"burst {BURST} {SIZE}", BURST)
        one.per_second.append(sum(map(len, one.fan.latencies)) / took)
        one.burst_cpu.append(used)


def _figures(watched: dict[str, Watched], costs: dict[str, tuple[float, float]]) -> Iterator[Figure]:
    late = {name: [value / 1000 for value in one.paced] for name, one in watched.items()}
    figure = Figure.of(f"delivery, one message every {PACE_MS} ms", "ms", late, tails=True)
    figure.samples.clear()  # tens of thousands
    yield figure.at_most(1.5).at_most_peer(0.35)
    rate = Figure.of(
        f"deliveries of {BURST} messages at once", "a second", {n: w.per_second for n, w in watched.items()}
    )
    rate.at_least(80_000).must("0 lost", watched[OURS].lost == 0)
    yield rate.note(", ".join(f"{name}: {one.lost} lost" for name, one in watched.items()))
    for what, key in (("paced", "paced_cpu"), ("in a burst", "burst_cpu")):
        used = {name: getattr(one, key) for name, one in watched.items() if name != DIRECT}
        yield Figure.of(f"CPU a delivery, {what} (ours: the keeper; P: the server)", "µs", used).at_most(12)
    yield Figure("memory a viewer", "KB", costs[OURS][0], peer=costs[PEER][0]).at_most(40)
    files = Figure("descriptors a viewer", "", costs[OURS][1], peer=costs[PEER][1])
    yield files.must("≤ 1", costs[OURS][1] <= 1)
