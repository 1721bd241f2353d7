"""`attach` by URL: an unmodified Jupyter console, and a websocket in between."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jupyter_cmdop.client.remote import Server, read_credential
from jupyter_cmdop.client.remote_console import RemoteConsole
from jupyter_cmdop.client.session import Session
from tests.remote.far import Cable, Far
from tests.server.jupyter import Server as JupyterServer
from tests.support import (
    Clients,
    Closing,
    Console,
    Sessions,
    connect_client,
    iopub_until,
    is_idle_of,
    reply_of,
    text_of,
    wait_for_status,
)


@pytest.fixture(scope="module")
def lone(module_session: Sessions) -> Session:
    return module_session("consoles")


def attach(far: Far, *arguments: str) -> Console:
    words = (f"{name}={value}" for name, value in far.environment().items())
    return Console(["env", *words, sys.executable, "-m", "jupyter_cmdop.cli", "attach", *arguments])


def test_a_console_runs_answers_interrupts_and_leaves(far: Far, lone: Session, closing: Closing) -> None:
    console = closing(attach(far, lone.name))
    console.run("print('in', 'the console')")
    console.expect("in the console")
    console.run("input('who? ') + '!'")
    console.expect(r"who\? ")
    console.type("ann")
    console.expect("ann!")
    console.run("import time; print('beg' + 'un', flush=True); time.sleep(600)")
    console.expect("begun")
    console.child.sendcontrol("c")
    console.expect("KeyboardInterrupt")
    console.expect(r"In \[\d+\]: ")
    console.child.sendcontrol("d")
    console.expect("(?i)do you really want to exit|goes on")
    console.type("y")
    console.expect(f"{lone.name} goes on")
    entry = next(iter(lone.log(types=["admitted"])))
    assert entry["actor"] == lone.actor
    wait_for_status(lone, lambda s: not s.presence or all(p.transport != "websocket" for p in s.presence))


def test_read_only_follows(far: Far, lone: Session) -> None:
    watching = far.start("attach", lone.name, "--read-only", json_output=False)
    lone.run("print('seen from afar')")
    assert watching.stdout is not None
    while "seen from afar" not in watching.stdout.readline():
        pass
    watching.terminate()
    watching.communicate()


def test_a_cut_loses_nothing_and_runs_nothing_twice(
    server: JupyterServer, network: Cable, token_file: Path, lone: Session, clients: Clients
) -> None:
    """The connection is cut while a cell prints, and again before a request, which is then of another time."""
    told: list[str] = []
    there = Server(f"http://127.0.0.1:{network.address[1]}/", read_credential(token_file))
    with RemoteConsole(there, lone.id, tell=told.append) as path:
        client = clients.add(connect_client(path))
        cell = client.execute("import time\nfor n in range(200): print(n, flush=True); time.sleep(0.01)")
        seen = iopub_until(client, lambda m: m["msg_type"] == "stream" and "50" in m["content"]["text"])
        network.cut()
        seen += iopub_until(client, is_idle_of(cell))
        assert text_of(seen, cell).split() == [str(n) for n in range(200)]
        assert reply_of(client, cell)["content"]["status"] == "ok"
        network.cut()
        away = client.execute("print('made while away')")
        assert reply_of(client, away)["content"]["ename"] == "cmdop.stale_generation"
        again = client.execute("print('after the cut')")
        assert text_of(iopub_until(client, is_idle_of(again)), again) == "after the cut\n"
        assert reply_of(client, again)["content"]["status"] == "ok"
        client.stop_channels()
    admitted = [e["data"]["code"] for e in lone.log(types=["admitted"])]
    assert admitted.count("print('after the cut')") == 1
    assert any("connected again" in line for line in told)
    assert not Path(path).parent.exists()
