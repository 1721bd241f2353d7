"""What a session stands on is pulled away while it lives: files, directories, room on the disk. It says so."""

from __future__ import annotations

import contextlib
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, keeper_of, null_spec, pointer_of, wait_gone, wait_until
from tests.support import (
    Clients,
    Home,
    Sessions,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    wait_for_running,
)

AT_ONCE_SECONDS = 2.0
"""Generous for a loaded machine: what is refused does not wait for the disk."""


@contextlib.contextmanager
def full_disk(keeper: psutil.Process) -> Iterator[None]:
    """Let no file of a process grow: each write fails as it does on a full disk."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(keeper.pid, resource.RLIMIT_FSIZE, unlimited)


def test_a_full_disk_stops_new_input_and_nothing_else(
    home: Home, session: Sessions, clients: Clients
) -> None:
    """Refused at once with the reason; looking goes on; what could not be recorded has not been run."""
    made = session()
    bot = clients(made, "bot")
    assert made.run("ran = []").status == "ok"
    with Session.open(made.id) as first:
        with full_disk(keeper_of(home, made)):
            held = first.start(calls.run("ran.append('held')"))
            wait_until(lambda: made.status().journal.unavailable, "the keeper knows")  # type: ignore[union-attr]
            begun = time.monotonic()
            refused = call_cli("run", made.name, "ran.append('refused')", code=3)
            assert refused.data["refusal"]["code"] == "journal_unavailable"
            assert "free some space" in refused.err
            reply = reply_of(bot, bot.execute("ran.append('by a client')"))["content"]
            assert (reply["status"], reply["ename"]) == ("error", "cmdop.journal_unavailable")
            for verb in (("take",), ("policy", "turns"), ("invite",), ("rename", "other"), ("release",)):
                told = call_cli(verb[0], made.name, *verb[1:], code=3)
                assert told.data["refusal"]["code"] == "journal_unavailable", verb
            for look in ("status", "grants", "read", "log", "verify"):
                call_cli(look, made.name)
            assert time.monotonic() - begun < 10 * AT_ONCE_SECONDS
            assert call_cli("status", made.name).data["journal"]["unavailable"]
            assert not held.is_ended
        for _ in held:
            pass
        assert held.outcome()["status"] == "ok"
    assert made.run("ran").text.strip() == "['held']"
    assert made.verify().ok
    refusals = [e["data"]["code"] for e in journal(made, "refused")]
    assert refusals == [] or set(refusals) == {"journal_unavailable"}


def test_what_runs_on_a_full_disk_is_shown_and_can_be_stopped(
    home: Home, session: Sessions, clients: Clients
) -> None:
    """The cell that fills the disk must be stoppable: an interrupt waits for no record, which follows."""
    made = session()
    bot = clients(made, "bot")
    endless = bot.execute("import time\nwhile True:\n    print('still here', flush=True); time.sleep(0.01)")
    operation = wait_for_running(made, "bot")
    with full_disk(keeper_of(home, made)):
        wait_until(lambda: made.status().journal.unavailable, "the keeper knows")  # type: ignore[union-attr]
        iopub_until(bot, lambda m: m["msg_type"] == "stream")
        assert made.interrupt(operation).interrupted == operation
        assert reply_of(bot, endless)["content"]["ename"] == "KeyboardInterrupt"
    iopub_until(bot, is_idle_of(endless))
    assert made.wait(operation).status == "interrupted"
    assert journal(made, "interrupted")[-1]["operation"] == operation
    assert made.verify().ok


def test_a_grant_is_revoked_and_a_session_closed_on_a_full_disk(
    home: Home, session: Sessions, clients: Clients
) -> None:
    made = session(kernel=null_spec(home))
    bot = clients(made, "bot")
    keeper = keeper_of(home, made)
    with full_disk(keeper), made.start(calls.run("say held")):
        wait_until(lambda: made.status().journal.unavailable, "the keeper knows")  # type: ignore[union-attr]
        with made.start(calls.revoke("bot")):
            wait_until(lambda: not Path(bot.cmdop_invite.connection_file).exists(), "the grant is gone")  # type: ignore[attr-defined]
        with Session.open(made.id) as link:
            assert link.close(force=True).ended
        wait_gone(keeper)
    assert call_cli("verify", made.name).data["ok"]


def test_a_keeper_on_a_full_disk_ends_when_it_is_told_to(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    keeper = keeper_of(home, made)
    with full_disk(keeper), Session.open(made.id) as link, link.start(calls.run("say held")):
        wait_until(lambda: made.status().journal.unavailable, "the keeper knows")  # type: ignore[union-attr]
        keeper.terminate()
        wait_gone(keeper)


def test_a_removed_runtime_directory_is_made_again(home: Home, session: Sessions) -> None:
    """Logout removes it on many systems: names, invitations and restarts still work for whoever holds a link."""
    made = session(kernel=null_spec(home))
    pointer = pointer_of(home, made.id)
    shutil.rmtree(home.runtime / "cmdop")
    assert made.run("say on").text == "on\n"
    invited = made.invite("guest")
    assert Path(invited.connection_file or "").stat().st_mode & 0o077 == 0
    assert made.restart().incarnation == 2
    assert pointer_of(home, made.id)["pid"] == pointer["pid"]
    assert call_cli("status", made.name).data["incarnation"] == 2
    assert (home.runtime / "cmdop").stat().st_mode & 0o077 == 0


def test_a_restart_makes_removed_sockets_again(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    shutil.rmtree(pointer_of(home, made.id)["sockets"])
    assert made.run("say on").text == "on\n"
    assert made.restart().incarnation == 2
    assert made.run("say again").text == "again\n"
    assert call_cli("run", made.name, "say by a new link").data["text"] == "by a new link\n"


def test_a_removed_journal_stops_input_and_the_session_can_be_closed(home: Home, session: Sessions) -> None:
    """Nothing goes on unrecorded, also when the record is taken away; and it ends without a trace of running on."""
    made = session(kernel=null_spec(home))
    keeper = keeper_of(home, made)
    shutil.rmtree(home.session_dir(made.id))
    with Session.open(made.id) as other, other.start(calls.run("say lost")):
        wait_until(lambda: made.status().journal.unavailable, "the keeper knows")  # type: ignore[union-attr]
        with pytest.raises(Refused) as refused:
            made.take("mine")
        assert refused.value.refusal.code == "journal_unavailable"
        assert made.run("say refused").refusal.code == "journal_unavailable"  # type: ignore[union-attr]
        spent = sum(keeper.cpu_times()[:2])
        begun = time.monotonic()
        while time.monotonic() - begun < 0.5:
            made.status()
        assert keeper.is_running()
        assert sum(keeper.cpu_times()[:2]) - spent < 2
        assert made.close(force=True).ended
    wait_gone(keeper)
