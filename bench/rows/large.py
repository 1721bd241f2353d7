"""One message of 64 MB, and how long a question over the link takes meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from bench.doors import Door, Flood, code_for, flood
from bench.figures import OURS, Figure, interleave
from bench.rows.floods import add_losses
from bench.servers import Bench


def large(bench: Bench) -> Iterator[Figure]:
    size = (8 if bench.quick else 64) << 20
    ours, peer = bench.server(), bench.server(is_ours=False)
    for word in ("big", "display"):
        code = code_for("ipykernel", word, size)
        direct = bench.plain("ipykernel").door()
        endpoint = bench.session("ipykernel")
        served = ours.start_kernel("ipykernel")
        ways: list[tuple[str, list[Door], str]] = [
            ("over the endpoint", [direct, endpoint.door()], endpoint.session.id),
            ("over the websocket", [direct, peer.start_kernel("ipykernel").door(), served.door()], served.id),
        ]
        for way, doors, session in ways:
            bench.keep(doors)
            what = f"{size >> 20} MB of {'stream' if word == 'big' else 'display'} {way}"
            yield from _one_way(bench, what, doors, session, code)


def _one_way(bench: Bench, what: str, doors: list[Door], session: str, code: str) -> Iterator[Figure]:
    floods: dict[str, list[Flood]] = {door.name: [] for door in doors}
    spans: list[tuple[float, float]] = []
    helper = bench.beside("status", session)
    for door in interleave(doors, 2 if bench.quick else 5):
        begin = time.monotonic()
        # Reading begins when the message is whole, so the wait is for the first byte as well.
        floods[door.name].append(flood(door, code, 1, quiet_seconds=20))
        if door.name == OURS:
            spans.append((begin, time.monotonic()))
    answers, _ = helper.communicate("", timeout=60)
    calls: list[list[float]] = json.loads(answers)
    during = [
        seconds * 1000
        for at, seconds in calls
        if any(begin < at + seconds and at < end for begin, end in spans)
    ]
    speeds = {name: [one.megabytes_per_second for one in ones] for name, ones in floods.items()}
    yield add_losses(Figure.of(what, "MB/s", speeds).at_least_direct(0.5), floods)
    if not during:
        raise RuntimeError("no call of `status` fell into the time of the message")
    waited = Figure.of(f"{what}: a `status` call meanwhile", "ms", {OURS: during}, tails=True)
    yield waited.note(f"the longest {max(during):.1f} ms of {len(during)}")
