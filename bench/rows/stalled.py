"""A viewer stops reading while the kernel prints: the others, the keeper's memory, and that viewer afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.fan import Fan
from bench.figures import OURS, Figure
from bench.probes import MIB, peak_mib, reset_peak, rss_mib, wait_quiet
from bench.servers import Bench, ServedKernel
from jupyter_cmdop.keeper.websocket_connection import OUTBOX_BYTES

SIZE = 10_000
ROOM_MIB = 32
PACE_MS = 5
RECEIVE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """What the others got, what it took, what the keeper had, and which messages the stalled one has in the end."""

    got: float
    megabytes_per_second: float
    peak_above_mib: float
    missed: int
    repeated: int


def _part(kernel: ServedKernel, code: str, idle_mib: float, *, stalls: bool) -> Part:
    count, size = [int(word) for word in code.split()[1:3]]
    driver = kernel.door()
    healthy = kernel.connect()
    stalled = kernel.connect(receive_buffer=RECEIVE_BYTES) if stalls else None
    fan = Fan([healthy.websocket, driver.websocket])
    try:
        if stalled is not None:
            stalled.drain(0.3)
        wait_quiet([kernel.pid], fan.drop_ready)
        fan.reset()
        reset_peak(kernel.pid)
        start = time.perf_counter()
        driver.request(code)
        got = fan.pump(count)
        took = time.perf_counter() - start
        peak = peak_mib(kernel.pid) - idle_mib
        seen = []
        while stalled is not None and (message := stalled.recv(10)) is not None:
            if message.kind == "stream":
                seen.append(int(message.metadata["cmdop"]["seq"]))
                fan.drop_ready()  # they go on reading
            if len(seen) >= count:
                break
        peak = max(peak, peak_mib(kernel.pid) - idle_mib)
    finally:
        fan.close()
        for door in (driver, healthy, *([stalled] if stalled else [])):
            door.close()
    repeated = len(seen) - len(set(seen)) + (seen != sorted(seen))
    missed = count - len(set(seen)) if stalls else 0
    return Part(min(got) / count, count * size * min(got) / count / took / 1e6, peak, missed, repeated)


def stalled(bench: Bench) -> Iterator[Figure]:
    count = bench.count(20_000)
    burst = f"burst {count} {SIZE}"
    # As fast as the others read, so that what the keeper reads ahead of them from the kernel is not in the picture.
    paced = f"pace {count // 10} {SIZE * 10} {PACE_MS}"
    kernel = bench.server().start_kernel("null, hwm 0")
    wait_quiet([kernel.pid])
    idle_mib = rss_mib(kernel.pid)
    calm = [_part(kernel, paced, idle_mib, stalls=stalls) for stalls in (False, True)]
    alone: list[Part] = []
    beside: list[Part] = []
    for at in range(1 if bench.quick else 3):
        # One after the other in changing order.
        for stalls in (False, True) if at % 2 == 0 else (True, False):
            (beside if stalls else alone).append(_part(kernel, burst, idle_mib, stalls=stalls))
    megabytes = count * SIZE // 1_000_000
    share = Figure("what the others get", "%", 100 * min(part.got for part in beside)).at_least(100)
    yield share.note(f"nobody stalled: {100 * min(part.got for part in alone):.1f} %")
    rates = [[part.megabytes_per_second for part in parts] for parts in (alone, beside)]
    rate = Figure.of(f"their rate of {megabytes} MB", "MB/s", {OURS: rates[1]})
    without = Figure.of("", "", {OURS: rates[0]}).ours
    rate.must("≥ 0.9 of that without a stalled viewer", rate.ours >= 0.9 * without)
    yield rate.note(f"nobody stalled: {without:.0f} MB/s, so {rate.ours / without:.2f}")
    limit = OUTBOX_BYTES / MIB + ROOM_MIB
    speed = SIZE * 10 / PACE_MS / 1000
    for what, without_any, with_one in (
        (f"output at {speed:g} MB/s", calm[:1], calm[1:]),
        ("output as fast as it comes", alone, beside),
    ):
        peaks = [part.peak_above_mib for part in with_one]
        memory = Figure.of(f"the keeper's memory, peak above idle, {what}", "MiB", {OURS: peaks})
        memory.must(f"≤ {limit:g} MiB, each time", max(peaks) <= limit)
        yield memory.note(f"nobody stalled: {max(part.peak_above_mib for part in without_any):.0f} MiB")
    missed = sum(part.missed + part.repeated for part in (calm[1], *beside))
    caught = Figure("messages that the stalled one misses, or gets twice or out of order", "", missed)
    yield caught.must("none", missed == 0)
