"""What a session costs: until it is ready, in memory, and in processor time when nothing happens."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil

from bench.doors import WebsocketDoor
from bench.fan import Fan
from bench.figures import OURS, Figure
from bench.probes import cpu_seconds, uss_mib, wait_quiet
from bench.servers import Bench, keeper_pid
from jupyter_cmdop.client.session import Session

VIEWERS_EACH = 4


def sessions(bench: Bench) -> Iterator[Figure]:
    took, pids, made = [], [], []
    for at in range(3 if bench.quick else 15):
        start = time.perf_counter()
        session = Session.create(f"new-{at}", kernel="benchnull")
        took.append(time.perf_counter() - start)
        pids.append(keeper_pid(session.id))
        made.append(session)
    yield Figure.of("a new session is ready, with the null kernel", "s", {OURS: took}, tails=True).at_most(
        0.45
    )
    wait_quiet(pids)
    yield Figure.of(
        "an idle keeper's own memory (USS)", "MiB", {OURS: [uss_mib(pid) for pid in pids]}
    ).at_most(30)
    for session in made:
        session.close(force=True)
        session.disconnect()
    yield from _idle(bench)


def _idle(bench: Bench) -> Iterator[Figure]:
    count, seconds = bench.count(32, 4), 2 if bench.quick else 15
    server = bench.server()
    kernels = [server.start_kernel("null") for _ in range(count)]
    doors: list[WebsocketDoor] = [kernel.connect() for kernel in kernels for _ in range(VIEWERS_EACH)]
    bench.keep(doors)
    fan = Fan([door.websocket for door in doors])
    bench.keep([fan])
    keepers = [kernel.pid for kernel in kernels]
    inside = [child.pid for pid in keepers for child in psutil.Process(pid).children(recursive=True)]
    wait_quiet([*keepers, server.pid], fan.drop_ready)
    settled = time.monotonic() + (1 if bench.quick else 20)
    while time.monotonic() < settled:
        fan.drop_ready()
        time.sleep(0.1)
    groups = {"keepers": keepers, "kernels": inside, "server": [server.pid]}
    before = {name: sum(map(cpu_seconds, pids)) for name, pids in groups.items()}
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        fan.drop_ready()  # a viewer answers the keeper's pings
        time.sleep(0.1)
    took = time.monotonic() - start
    used = {name: (sum(map(cpu_seconds, pids)) - before[name]) / took * 1000 for name, pids in groups.items()}
    figure = Figure(
        f"idle: all keepers of {count} sessions with {len(doors)} viewers", "ms/s", used["keepers"]
    )
    yield figure.at_most(0.5).note(
        f"their kernels {used['kernels']:.2f}, the server {used['server']:.2f} ms/s"
    )
