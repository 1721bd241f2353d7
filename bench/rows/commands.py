"""What a person waits for at the command line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from bench.figures import OURS, Figure
from bench.probes import LIMIT_SECONDS
from bench.servers import Bench


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "jupyter_cmdop.cli", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_SECONDS)
    return time.perf_counter() - start


def commands(bench: Bench) -> Iterator[Figure]:
    new, listed, ran = [], [], []
    for at in range(bench.count(10, 2)):
        name = f"typed-{at}"
        new.append(_seconds("new", name))
        listed += [_seconds("ls") for _ in range(3)]
        ran += [_seconds("run", name, "1 + 1") for _ in range(3)]
        _seconds("close", name, "--force")
    yield Figure.of("`jupyter cmdop new NAME`, until ipykernel is ready", "s", {OURS: new}, tails=True)
    yield Figure.of("`jupyter cmdop ls`, one session", "s", {OURS: listed}, tails=True)
    yield Figure.of("`jupyter cmdop run NAME CODE`", "s", {OURS: ran}, tails=True)
