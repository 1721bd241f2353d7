"""The benchmark runs: its rows are known by name, a row gives figures, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.command import BEGIN, END, write_markdown
from bench.figures import Figure, percentile
from bench.rows import ROWS
from bench.servers import MARKER
from tests.support import LIMIT_SECONDS

RUN = Path(__file__).resolve().parents[2] / "bench" / "run.py"


def start(*arguments: str, tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(RUN), *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_by(tmp_path: Path) -> list[psutil.Process]:
    """Processes with the marker of a run below this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER, "").startswith(str(tmp_path)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_list_names_every_row(tmp_path: Path) -> None:
    process = start("--list", tmp_path=tmp_path)
    listed, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert [line.split()[0] for line in listed.splitlines()] == list(ROWS)


@pytest.mark.kernel
def test_a_quick_row_gives_figures_and_leaves_nothing(tmp_path: Path) -> None:
    process = start("--quick", "--json", str(tmp_path / "out.json"), "floor", tmp_path=tmp_path)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert not written["failures"]
    figures = written["rows"]["floor"]
    assert all(figure["ours"] > 0 and figure["musts"] for figure in figures)
    assert len(figures[-1]["samples"]["ours"]) == 30, "one sample a take-over"
    assert not left_by(tmp_path)
    assert not list(tmp_path.glob("cmdop-bench-*"))


@pytest.mark.kernel
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    process = start("execute-zmq", tmp_path=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()  # the row begins
    while not re.match(r"\s+\S.*µs", process.stdout.readline()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert not left_by(tmp_path)
    assert not list(tmp_path.glob("cmdop-bench-*"))


def test_the_block_of_a_page_is_filled_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    for text in ("first", "second"):
        write_markdown(page, text)
    assert page.read_text(encoding="utf-8").split() == [
        "before",
        *BEGIN.split(),
        "second",
        *END.split(),
        "after",
    ]


def test_a_limit_that_nothing_can_be_said_of_is_not_met() -> None:
    figure = Figure("x", "µs", 1.0).at_most_direct(2)
    assert figure.musts == [("≤ 2 D", False)]
    assert percentile([1, 2, 3, 4], 50) == 2.5
