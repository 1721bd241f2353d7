"""Measure what a session costs beside a plain kernel: start-up, `ls`, round trips, output.

Everything runs in temporary folders, on this machine only, and ends with the program. A session and a plain ipykernel
are measured in turns in the same run, so compare the ratios: on a shared machine the absolute figures mean little.

    python bench/run.py                  a table
    python bench/run.py --json FILE      the samples as well
    python bench/run.py --quick          a tenth of the samples, to see that it works
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

NAME = "bench"
WAIT_SECONDS = 60


def cmdop(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("jupyter-cmdop")), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_SECONDS).stdout


def timed(action: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    action(*arguments)
    return (time.perf_counter() - start) * 1000


@contextmanager
def private_places() -> Iterator[None]:
    """Jupyter's and our folders are temporary ones: nothing of the user's is seen or touched."""
    with tempfile.TemporaryDirectory(prefix="cmdop-bench-") as folder:
        for variable in (
            "JUPYTER_RUNTIME_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_CONFIG_DIR",
            "IPYTHONDIR",
            "CMDOP_STATE_DIR",
        ):
            path = Path(folder, variable.lower())
            path.mkdir(mode=0o700)
            os.environ[variable] = str(path)
        yield


def client_of(connection_file: str) -> BlockingKernelClient:
    client = BlockingKernelClient(connection_file=connection_file)
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=WAIT_SECONDS)
    return client


@contextmanager
def session_client(samples: dict[str, list[float]]) -> Iterator[BlockingKernelClient]:
    samples["new, until ready [ms]"] = [timed(cmdop, "new", NAME)]
    try:
        invitation = json.loads(cmdop("invite", NAME, "--as", "bencher", "--kind", "service", "--json"))
        client = client_of(invitation["connection_file"])
        try:
            yield client
        finally:
            client.stop_channels()
    finally:
        cmdop("close", NAME, "--force")


@contextmanager
def direct_client(folder: str) -> Iterator[BlockingKernelClient]:
    """A client connected straight to an identical kernel, over Unix sockets as well."""
    manager = KernelManager(
        transport="ipc", connection_file=str(Path(folder, "direct.json")), ip=str(Path(folder, "k"))
    )
    manager.start_kernel()
    try:
        client = client_of(manager.connection_file)
        try:
            yield client
        finally:
            client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)


def round_trip(client: BlockingKernelClient) -> None:
    client.execute_interactive("pass", timeout=WAIT_SECONDS, output_hook=lambda message: None)


def print_lines(client: BlockingKernelClient, lines: int) -> None:
    """Every line is flushed, so that each one is a message of its own; all of them have to arrive."""
    seen: list[str] = []
    code = f"for _ in range({lines}): print('x' * 60, flush=True)"

    def hook(message: dict[str, Any]) -> None:
        seen.append(message["content"].get("text", ""))

    client.execute_interactive(code, timeout=WAIT_SECONDS, output_hook=hook)
    if (arrived := "".join(seen).count("\n")) != lines:
        raise SystemExit(f"{lines - arrived} of {lines} lines were lost")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    options = parser.parse_args()
    trips, floods, lists = (30, 1, 3) if options.quick else (300, 5, 10)
    samples: dict[str, list[float]] = {}
    with (
        private_places(),
        tempfile.TemporaryDirectory(prefix="cmdop-k-") as folder,
        session_client(samples) as session,
        direct_client(folder) as direct,
    ):
        doors = {"session": session, "direct": direct}
        samples["ls [ms]"] = [timed(cmdop, "ls") for _ in range(lists)]
        for _ in range(trips):
            for door, client in doors.items():
                samples.setdefault(f"round trip, {door} [ms]", []).append(timed(round_trip, client))
        for _ in range(floods):
            for door, client in doors.items():
                samples.setdefault(f"2,000 lines, {door} [ms]", []).append(timed(print_lines, client, 2000))
    width = max(map(len, samples))
    print(f"{'':{width}}  {'median':>8}  {'p95':>8}  n")
    for what, values in samples.items():
        p95 = sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]
        print(f"{what:{width}}  {statistics.median(values):8.2f}  {p95:8.2f}  {len(values)}")
    for what in ("round trip", "2,000 lines"):
        medians = [statistics.median(samples[f"{what}, {door} [ms]"]) for door in ("session", "direct")]
        print(f"{what}: {medians[0] / medians[1]:.2f} x direct")
    if options.json:
        options.json.write_text(json.dumps(samples, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
