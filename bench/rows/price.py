"""What the Jupyter server pays: for each message of a websocket, and for the extension at its start."""

from __future__ import annotations

from collections.abc import Iterator

from bench.doors import code_for, flood
from bench.figures import OURS, Figure, interleave
from bench.probes import cpu_seconds, uss_mib, wait_quiet
from bench.servers import Bench, Server, certificate


def _cpu_a_message(bench: Bench, server: Server) -> tuple[list[float], float]:
    """Microseconds of the server, and of what serves the websocket."""
    kernel = server.start_kernel("null, hwm 0")
    door = kernel.door()
    bench.keep([door])
    count = bench.count(20_000)
    used: list[float] = []
    beyond = 0.0
    for _ in range(1 if bench.quick else 5):
        wait_quiet([server.pid])
        before = cpu_seconds(server.pid), cpu_seconds(kernel.pid)
        one = flood(door, code_for("null", "flood", count, 100), count)
        used.append((cpu_seconds(server.pid) - before[0]) / max(1, one.messages) * 1e6)
        beyond = (cpu_seconds(kernel.pid) - before[1]) / max(1, one.messages) * 1e6
    return used, beyond


def server_cpu(bench: Bench) -> Iterator[Figure]:
    peer, _ = _cpu_a_message(bench, bench.server(is_ours=False))
    ways = (
        ("handed over", None, 0.5),
        ("spliced (TLS, whose cost is in it)", certificate(bench.home), 10.0),
    )
    for what, tls, limit in ways:
        used, keeper = _cpu_a_message(bench, bench.server(tls=tls))
        figure = Figure.of(
            f"the server, a message on a websocket that is {what}", "µs", {OURS: used, "peer": peer}
        )
        if tls is None:
            # Nothing a message; what the loop does anyway is divided by the messages that passed meanwhile.
            figure.must("0 (< 0.5 µs)", figure.ours < limit)
        else:
            figure.at_most(limit)
        yield figure.note(f"the keeper {keeper:.1f} µs")


def extension(bench: Bench) -> Iterator[Figure]:
    """The same server as shipped, with our extension and without it, in turns."""
    starts: dict[bool, list[float]] = {True: [], False: []}
    memory: dict[bool, list[float]] = {True: [], False: []}
    for is_ours in interleave([True, False], 2 if bench.quick else 11):
        server = Server(bench.home, is_ours=is_ours, as_shipped=True)
        try:
            starts[is_ours].append(server.start_seconds)
            wait_quiet([server.pid])
            memory[is_ours].append(uss_mib(server.pid))
        finally:
            server.stop()
    for what, unit, samples, limit in (
        ("start, until the server answers", "s", starts, 0.15),
        ("memory of the server (USS)", "MiB", memory, 12.0),
    ):
        figure = Figure.of(what, unit, {OURS: samples[True], "peer": samples[False]})
        added = figure.ours - (figure.peer or 0)
        figure.must(f"the extension adds ≤ {limit:g} {unit}", added <= limit)
        yield figure.note(f"P is the same server without the extension: it adds {added:.3f} {unit}")
