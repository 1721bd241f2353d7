"""The command: which rows, how much of them, and where the tables go."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from bench.figures import Figure, as_markdown, as_text, host_facts
from bench.rows import ROWS
from bench.servers import bench

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def run_row(name: str, *, quick: bool, transport: str) -> tuple[list[Figure], str]:
    """The figures of a row, and its failure; those from before a failure stand."""
    figures: list[Figure] = []
    try:
        with bench(quick=quick, transport=transport) as given:
            for figure in ROWS[name].run(given):
                figure.load = os.getloadavg()[0]
                figures.append(figure)
                print("  " + as_text(figure), flush=True)
    except Exception:  # noqa: BLE001 (a row that fails is reported, and the others go on)
        return figures, traceback.format_exc()
    return figures, ""


def write_markdown(path: Path, text: str) -> None:
    """Fill the block between the marks where the file has one; make the file otherwise."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        text = f"{before}{BEGIN}\n\n{text}\n{END}{after}"
    path.write_text(text, encoding="utf-8")


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main(about: str) -> int:
    parser = argparse.ArgumentParser(
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] [ROW ...]",
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="rows to measure; all of them when none is named"
    )
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and samples")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument(
        "--direct",
        choices=["tcp", "ipc"],
        default="tcp",
        help="how D reaches its kernel; tcp, as Jupyter does",
    )
    options = parser.parse_args()
    if options.list:
        for name, row in ROWS.items():
            print(f"{name:20} {row.about}")
        return 0
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; --list shows them")
    signal.signal(signal.SIGTERM, _terminated)
    host = host_facts(quick=options.quick)
    done: dict[str, list[Figure]] = {}
    failures: dict[str, str] = {}
    for name in dict.fromkeys(options.rows or ROWS):
        start = time.monotonic()
        print(f"{name}: {ROWS[name].about}", flush=True)
        try:
            done[name], failure = run_row(name, quick=options.quick, transport=options.direct)
        except KeyboardInterrupt:
            print("\nInterrupted; everything that was started has ended.")
            return 130
        if failure:
            failures[name] = failure
            print(f"  FAILED\n{failure}", flush=True)
        print(f"  ({time.monotonic() - start:.0f} s)", flush=True)
        _write(options, host, done, failures)
    missed = sum(not met for figures in done.values() for figure in figures for _, met in figure.musts)
    print(
        f"{len(done)} rows, {missed} limits missed, {len(failures)} rows failed{': ' if failures else ''}",
        end="",
    )
    print(", ".join(failures))
    return 1 if failures else 0


def _write(
    options: argparse.Namespace,
    host: dict[str, Any],
    done: dict[str, list[Figure]],
    failures: dict[str, str],
) -> None:
    """After each row, so that a run that is stopped has what it measured."""
    if options.json:
        rows = {name: [figure.as_json() for figure in figures] for name, figures in done.items()}
        options.json.write_text(
            json.dumps({"host": host, "rows": rows, "failures": failures}, indent=1), encoding="utf-8"
        )
    if options.markdown:
        abouts = {name: row.about for name, row in ROWS.items()}
        write_markdown(options.markdown, as_markdown(done, abouts, failures, host))
