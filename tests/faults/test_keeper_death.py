"""A keeper that dies, ends or stands still: no kernel without a keeper, and the truth in `ls`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from jupyter_cmdop.client import places, spawn
from tests.faults.attacks import call_cli, keeper_of, kernel_of, null_spec, pointer_of, wait_gone, wait_until
from tests.support import (
    Clients,
    Home,
    Sessions,
    connect_client,
    finish_cli,
    reply_of,
    start_cli,
    wait_for_entry,
    wait_for_running,
)

GONE_SECONDS = 2.0
UNRESPONSIVE_SECONDS = 1.5
"""What `ls` may take when a keeper stands still: half a second of waiting, and a loaded machine."""


def test_a_killed_keeper_leaves_no_process_and_its_session_can_be_read_and_made_again(
    home: Home, session: Sessions
) -> None:
    """The kernel ends with it, also while a cell runs: never an orphan that holds memory and devices."""
    made = session()
    cli = start_cli("run", made.name, "import time; print('begun', flush=True); time.sleep(600)")
    operation = wait_for_running(made)
    wait_for_entry(made, "output", operation=operation, where=lambda e: e["data"].get("message") == "stream")
    keeper, kernel = keeper_of(home, made), kernel_of(made)
    sockets = pointer_of(home, made.id)["sockets"]
    keeper.kill()
    wait_gone(keeper, kernel, limit_seconds=GONE_SECONDS)
    result = finish_cli(cli)
    assert (result.code, result.data["status"], result.data["operation"]) == (5, "unknown", operation)
    assert f"jupyter cmdop log {made.name}" in result.err

    item = next(item for item in call_cli("ls").data if item["id"] == made.id)
    assert item["state"] == "lost"
    assert str(keeper.pid) in item["reason"]
    assert "lost" in call_cli("ls", json_output=False).out
    assert call_cli("verify", made.name).data["ok"] is True
    types = [line["type"] for line in call_cli("log", made.name).lines]
    assert "admitted" in types
    assert "delivered" in types
    assert call_cli("status", made.name).data["state"] == "lost"
    for verb in (("run", made.name, "1"), ("take", made.name), ("close", made.name)):
        gone = call_cli(*verb, code=4)
        assert "next:" in gone.err
    assert call_cli("read", made.name).data["items"]

    doctor = call_cli("doctor", code=None)
    assert any(made.name in check["text"] and check["advice"] for check in doctor.data["checks"])
    swept = call_cli("doctor", "--sweep", code=None)
    assert any(made.name in check["text"] and check["check"] == "sweep" for check in swept.data["checks"])
    assert not os.path.exists(sockets)
    assert home.pointers() == []
    assert call_cli("log", made.name).lines[0]["type"] == "opened"

    again = session(made.name)
    assert again.id != made.id
    assert again.run("1 + 1").text.strip() == "2"


def test_the_name_of_a_killed_keepers_session_needs_no_sweep(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    keeper = keeper_of(home, made)
    keeper.kill()
    wait_gone(keeper)
    again = session(made.name)
    assert again.id != made.id
    past = call_cli("status", f"{made.name}@{made.id[:8]}").data
    assert (past["state"], past["id"]) == ("lost", made.id)
    assert past["reason"]


def test_a_terminated_keeper_closes_its_session_properly(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    keeper, kernel = keeper_of(home, made), kernel_of(made)
    sockets = pointer_of(home, made.id)["sockets"]
    keeper.terminate()
    wait_gone(keeper, kernel)
    record = json.loads((home.session_dir(made.id) / "session.json").read_bytes())
    assert record["state"] == "closed"
    assert record["closed"]
    assert home.pointers() == []
    assert not os.path.exists(sockets)
    types = [line["type"] for line in call_cli("log", made.name).lines]
    assert "closed" in types
    assert call_cli("verify", made.name).data["ok"] is True
    assert all(item["id"] != made.id for item in call_cli("ls").data)


def test_a_session_that_stands_still_is_called_unresponsive_and_loses_nothing(
    home: Home, session: Sessions, clients: Clients
) -> None:
    """`ls` never waits for it; what was sent meanwhile arrives when it goes on, in order."""
    made, other = session(), session(kernel=null_spec(home))
    bot = clients(made, "bot")
    assert reply_of(bot, bot.execute("values = []"))["content"]["status"] == "ok"
    keeper = keeper_of(home, made)
    keeper.suspend()
    try:
        wait_until(lambda: keeper.status() == psutil.STATUS_STOPPED, "the keeper stands still")
        begun = time.monotonic()
        listed = {item["id"]: item for item in call_cli("ls").data}
        taken = time.monotonic() - begun
        assert listed[made.id]["state"] == "unresponsive"
        assert listed[made.id]["reason"]
        assert listed[other.id]["state"] == "open"
        assert taken < UNRESPONSIVE_SECONDS, taken
        asking = start_cli("status", made.name, json_output=False)
        sent = [bot.execute(f"values.append({n})") for n in range(20)]
        assert any(
            check["level"] == "problem" and made.name in check["text"]
            for check in call_cli("doctor", code=1).data["checks"]
        )
        silent = finish_cli(asking)
        assert silent.code == 0
        assert "unresponsive" in silent.out
        assert "did not answer" in silent.out
        late = start_cli("run", made.name, "values")
    finally:
        keeper.resume()
    assert all(reply_of(bot, msg_id)["content"]["status"] == "ok" for msg_id in sent)
    assert finish_cli(late).code == 0
    assert made.run("values == list(range(20))").text.strip() == "True"
    assert made.verify().ok
    assert next(item for item in call_cli("ls").data if item["id"] == made.id)["state"] == "open"


def test_a_keeper_survives_the_end_of_the_terminal_it_was_started_in(home: Home, session: Sessions) -> None:
    """Closing the window (SIGHUP to the whole session of the shell) and Ctrl-C in it do not reach it."""
    name = f"from-a-window-{os.getpid()}"
    shell = subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", "new", name, "--kernel", null_spec(home), "--json"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    out, _ = shell.communicate(timeout=30)
    made = json.loads(out)
    try:
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(made["pid"], number)
        keeper = psutil.Process(made["pid"])
        assert os.getsid(keeper.pid) != os.getsid(0)
        assert keeper.terminal() is None
        opened = {os.path.realpath(f"/proc/{keeper.pid}/fd/{n}") for n in (0, 1, 2)}
        assert opened == {"/dev/null", str(home.session_dir(made["id"]) / "keeper.log")}
        assert call_cli("run", name, "say on").data["status"] == "ok"
    finally:
        call_cli("close", name)


def test_connection_files_and_sockets_of_a_killed_keeper_are_of_no_use(
    home: Home, session: Sessions, clients: Clients
) -> None:
    made = session(kernel=null_spec(home))
    bot = clients(made, "bot")
    file = bot.cmdop_invite.connection_file  # type: ignore[attr-defined]
    keeper = keeper_of(home, made)
    keeper.kill()
    wait_gone(keeper)
    lonely = clients.add(connect_client(file, ready=False))
    sent = lonely.kernel_info()
    refused = call_cli("run", made.name, "1", env={"CMDOP_GRANT_FILE": file}, code=4)
    assert "next:" in refused.err
    call_cli("doctor", "--sweep", code=None)
    assert not os.path.exists(file)
    assert sent
    assert not [e for e in journal_on_disk(made.name) if e["type"] == "admitted"]
    assert places.socket_root().exists()


def journal_on_disk(name: str) -> list[dict[str, object]]:
    return call_cli("log", name).lines


_PLANTED = """#!{python}
import runpy, sys
from jupyter_cmdop.core import events
from jupyter_cmdop.core.session import Session

handle = Session.handle

def handle_badly(self, event, now):
    if isinstance(event, events.Release):
        raise RuntimeError("planted")
    return handle(self, event, now)

Session.handle = handle_badly
sys.argv = sys.argv[2:]
runpy.run_module("jupyter_cmdop.keeper", run_name="__main__", alter_sys=True)
"""


def test_a_fault_of_ours_ends_one_session_and_says_so_in_its_record(
    home: Home, session: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a keeper is not hidden: its kernel ends with it, `ls` shows it lost, and the record names the fault."""
    program = home.root / "planted"
    program.write_text(_PLANTED.format(python=sys.executable))
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(spawn, "KEEPER", (str(program), *spawn.KEEPER[1:]))
        made = session(kernel=null_spec(home))
    keeper, kernel = keeper_of(home, made), kernel_of(made)
    assert made.run("say on").status == "ok"
    ended = call_cli("release", made.name, code=5)
    assert "next:" in ended.err
    wait_gone(keeper, kernel)
    listed = next(item for item in call_cli("ls").data if item["id"] == made.id)
    assert listed["state"] == "lost"
    assert json.loads((home.session_dir(made.id) / "session.json").read_bytes())["reason"] == (
        "its keeper failed: RuntimeError: planted"
    )
    assert "planted" in (home.session_dir(made.id) / "keeper.log").read_text()
    assert call_cli("verify", made.name).data["ok"]
    call_cli("doctor", "--sweep", code=None)
    assert "its keeper failed" in call_cli("status", made.name).data["reason"]
