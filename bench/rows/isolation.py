"""Round trips in one session while another one floods, through each door."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench.doors import Door
from bench.figures import Figure, interleave, percentile
from bench.servers import TOKEN, Bench

VISIT = 50


@contextmanager
def _flooding(bench: Bench, arguments: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    helper = bench.beside("flood", *arguments)
    try:
        yield helper
    finally:
        helper.communicate("", timeout=60)


def isolation(bench: Bench) -> Iterator[Figure]:
    kernels = [bench.plain("null") for _ in range(2)]
    endpoints = [bench.session("null") for _ in range(2)]
    ours, peer = bench.server(), bench.server(is_ours=False)
    served = {
        name: [server.start_kernel("null") for _ in range(2)] for name, server in (("w", ours), ("p", peer))
    }
    ways: dict[str, tuple[Door, tuple[str, ...]]] = {
        "ours over the endpoint": (endpoints[0].door(), ("zmq", endpoints[1].connection_file)),
        "ours over the websocket": (served["w"][0].door(), ("ws", _url(served["w"][1].id, ours.url), TOKEN)),
        "D": (kernels[0].door(), ("zmq", str(kernels[1].connection_file))),
        "P": (served["p"][0].door(), ("ws", _url(served["p"][1].id, peer.url), TOKEN)),
    }
    bench.keep([door for door, _ in ways.values()])
    quiet: dict[str, list[float]] = {name: [] for name in ways}
    noisy: dict[str, list[float]] = {name: [] for name in ways}
    for name in interleave(list(ways), bench.count(8, 2)):
        door, arguments = ways[name]
        door.drain(0.01)
        quiet[name] += [door.trip_us(silent=True) for _ in range(VISIT)]
        with _flooding(bench, arguments):
            noisy[name] += [door.trip_us(silent=True) for _ in range(VISIT)]
    ratios = {
        name: {q: percentile(noisy[name], q) / percentile(quiet[name], q) for q in (50, 99)} for name in ways
    }
    for name in ("ours over the endpoint", "ours over the websocket"):
        for q, limit in ((50, 1.15), (99, 4.0)):
            figure = Figure(f"{name}: p{q} beside a flood, in p{q} of quiet", "x", ratios[name][q])
            figure.direct, figure.peer = ratios["D"][q], ratios["P"][q]
            figure.samples = {"quiet": quiet[name], "noisy": noisy[name]}
            yield figure.must(f"≤ {limit:g} x", figure.ours <= limit)


def _url(kernel: str, server: str) -> str:
    return f"{server.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels"
