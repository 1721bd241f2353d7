"""The connection is lost in the middle of something: it goes on where it was, or says what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.remote.far import Cable, Far
from tests.server.jupyter import Servers
from tests.support import (
    LIMIT_SECONDS,
    CliResult,
    Gate,
    Sessions,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

LINES = 120
SLOW = f"import time\nfor n in range({LINES}): print(n, flush=True); time.sleep(0.02)"


@pytest.fixture(scope="module")
def lone(module_session: Sessions) -> Session:
    return module_session("cut-off")


@pytest.fixture
def behind(network: Cable, token_file: Path) -> Far:
    return Far(f"http://127.0.0.1:{network.address[1]}", token_file)


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before {text!r}: {lines}"
    return lines


def rest_of(process: subprocess.Popen[str]) -> CliResult:
    """What it says until its end. (`communicate` would leave out what `readline` has read ahead.)"""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        out, err = process.stdout.read(), process.stderr.read()
    assert process.stdin is not None
    process.stdin.close()
    return CliResult(process.wait(LIMIT_SECONDS), out, err)


def test_run_is_asked_again_and_runs_once(behind: Far, network: Cable, lone: Session) -> None:
    """Cut twice while it prints: every line once, in order, and one operation."""
    running = behind.start("run", lone.name, SLOW, json_output=False)
    lines = until(running, "20")
    network.cut()
    lines += until(running, "60")
    network.cut()
    result = rest_of(running)
    assert result.code == 0, result.err
    assert "".join([*lines, result.out]).split() == [str(n) for n in range(LINES)]
    assert "connected again" in result.err
    assert len([e for e in lone.log(types=["admitted"]) if e["data"]["code"] == SLOW]) == 1


def test_run_that_ended_while_the_server_was_away(
    servers: Servers, token_file: Path, lone: Session, gate: Gate
) -> None:
    """The server is killed with SIGKILL; the cell ends; another server is started on the same port."""
    first = servers()
    far = Far(first.url, token_file)
    code = f"print('before', flush=True)\n{gate.code}\nprint('at the end')"
    running = far.start("run", lone.name, code, json_output=False)
    lines = until(running, "before")
    first.kill()
    gate.open()
    wait_for_status(lone, lambda s: not s.running)
    servers.add(first.again())
    result = rest_of(running)
    assert (result.code, "".join(lines) + result.out) == (0, "before\nwaiting\nat the end\n"), result.err
    asked = far.start("run", lone.name, "2 + 3")
    assert rest_of(asked).data["duplicate"] is False


def test_following_goes_on_behind_the_last_that_was_seen(
    behind: Far, network: Cable, lone: Session, gate: Gate
) -> None:
    start = len(list(lone.log()))
    last = list(lone.log())[-1]["seq"]
    reading = behind.start("read", lone.name, "--follow", "--after", f"0:{last}")
    logging = behind.start("log", lone.name, "--follow", "--after", str(last))
    lone.run("print('first')")
    seen_output, seen_log = until(reading, "first"), until(logging, '"ended"')
    network.cut()
    lone.run("print('second')")
    seen_output += until(reading, "second")
    seen_log += until(logging, '"ended"')
    for process in (reading, logging):
        process.send_signal(signal.SIGINT)
        assert rest_of(process).code == 130
    seqs = [json.loads(line)["seq"] for line in seen_log]
    wanted = [e["seq"] for e in list(lone.log())[start:] if e["seq"] <= seqs[-1]]
    assert seqs == wanted
    texts = [json.loads(line)["output"]["text"] for line in seen_output if '"stream"' in line]
    assert texts == ["first\n", "second\n"]


def test_following_ends_with_the_session(behind: Far, session: Sessions) -> None:
    made = session()
    reading = behind.start("read", made.name, "--follow", json_output=False)
    made.run("print('here')")
    until(reading, "here")
    made.close()
    result = rest_of(reading)
    assert result.code == 0
    assert "does not go on" in result.err


def test_ctrl_c_while_it_connects_again(
    servers: Servers, token_file: Path, lone: Session, gate: Gate
) -> None:
    """Nobody answers any more, and whoever waits has had enough: the outcome is unknown, the cell runs on."""
    server = servers()
    running = Far(server.url, token_file).start("run", lone.name, gate.code, json_output=False)
    operation = wait_for_running(lone)
    server.kill()
    assert running.stderr is not None
    while "connecting again" not in running.stderr.readline():
        pass
    os.kill(running.pid, signal.SIGINT)
    result = rest_of(running)
    assert result.code == 5
    gate.open()
    wait_for_entry(lone, "ended", operation=operation)


@pytest.mark.soak
def test_a_black_hole_is_noticed(behind: Far, network: Cable, lone: Session, gate: Gate) -> None:
    """Nothing comes and nothing is closed: the pings have no answer, and the run is found over another connection."""
    running = behind.start(
        "run", lone.name, f"print('before')\n{gate.code}\nprint('after')", json_output=False
    )
    lines = until(running, "before")
    network.go_dark()
    gate.open()
    result = rest_of(running)
    assert (result.code, "".join(lines) + result.out) == (0, "before\nwaiting\nafter\n"), result.err
    assert "connected again" in result.err
