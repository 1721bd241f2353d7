"""A restart that an actor asks for: everybody's input has an outcome, and everybody goes on with what he holds."""

from __future__ import annotations

import threading
import time

import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, kernel_of, null_spec, wait_gone
from tests.support import (
    Clients,
    Home,
    Sessions,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)


def test_restart_interrupts_what_runs_aborts_what_waits_and_keeps_the_connections(
    session: Sessions, clients: Clients
) -> None:
    made = session()
    anna, ben = clients(made, "anna"), clients(made, "ben")
    assert reply_of(anna, anna.execute("x = 1"))["content"]["status"] == "ok"
    before = made.status()
    old = kernel_of(made)
    running = anna.execute("import time; time.sleep(600)")
    wait_for_running(made, "anna")
    waiting = ben.execute("'never'")
    wait_for_status(made, lambda s: s.queue)
    answer = call_cli("restart", made.name)
    assert answer.data["incarnation"] == 2

    told, dropped = reply_of(anna, running)["content"], reply_of(ben, waiting)["content"]
    assert (told["status"], told["ename"]) == ("error", "cmdop.interrupted")
    assert dropped["status"] == "aborted"
    iopub_until(anna, is_idle_of(running))
    iopub_until(ben, is_idle_of(waiting))
    ended = [(e["actor"], e["data"]["outcome"], e["data"].get("by")) for e in journal(made, "ended")][1:]
    assert ended == [("anna", "interrupted", made.actor), ("ben", "aborted", made.actor)]

    after = made.status()
    assert (after.incarnation, after.generation) == (2, (before.generation or 0) + 1)
    wait_gone(old)
    assert kernel_of(made).pid != old.pid
    for client in (anna, ben):
        reply = reply_of(client, client.execute("x"))["content"]
        assert (reply["status"], reply["ename"]) == ("error", "NameError")
    entry = wait_for_entry(made, "restarted")
    assert entry["actor"] == made.actor
    assert made.verify().ok


def test_two_restarts_at_once_are_one(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    answers: list[int] = []

    def ask() -> None:
        with Session.open(made.id) as link:
            answers.append(link.restart().incarnation or 0)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status = made.status()
    # A link that was opened after the first restart was complete has asked for another one.
    assert sorted(answers) == sorted(answers)[:1] * 4 or status.incarnation == max(answers)
    assert len(journal(made, "restarted")) == (status.incarnation or 0) - 1
    with (
        made.start(calls.restart()) as first,
        Session.open(made.id) as link,
        link.start(calls.restart()) as second,
    ):
        for stream in (first, second):
            for _ in stream:
                pass
    assert first.outcome() == second.outcome() == {"incarnation": (status.incarnation or 0) + 1}
    assert len(made.status().processes) == 1


def test_input_during_a_restart_waits_and_runs(session: Sessions, clients: Clients) -> None:
    made = session()
    bot = clients(made, "bot")
    with made.start(calls.restart()) as restart:
        wait_for_entry(made, "restarted")  # two ways in have no order but the session's
        sent = bot.execute("6 * 7")
        with made.start(calls.run("'by link'")) as run:
            for _ in run:
                pass
            assert run.outcome()["status"] == "ok"
        assert reply_of(bot, sent)["content"]["status"] == "ok"
        for _ in restart:
            pass
        assert restart.outcome() == {"incarnation": 2}


def test_interrupts_during_a_restart_do_no_harm(session: Sessions, clients: Clients) -> None:
    made = session()
    bot = clients(made, "bot")
    with made.start(calls.restart()) as restart, Session.open(made.id) as other:
        while not restart.is_ended:
            other.interrupt()
            bot.session.send(bot.control_channel.socket, bot.session.msg("interrupt_request", {}))
            made.connection.pump(0.01)
        assert restart.outcome() == {"incarnation": 2}
    assert made.run("'fine'").status == "ok"
    assert len(journal(made, "backend_died")) == 0


def test_a_peer_may_not_restart_and_is_told_who_may(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    invited = made.invite("bot")
    refused = call_cli("restart", made.name, env={"CMDOP_GRANT_FILE": str(invited.connection_file)}, code=3)
    assert refused.data["refusal"]["code"] == "forbidden"
    assert refused.data["refusal"]["next"]
    assert made.status().incarnation == 1


def test_a_cell_that_ignores_everything_does_not_hold_up_the_restart(session: Sessions) -> None:
    """Asked politely first, then killed."""
    made = session()
    code = (
        "import signal, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "while True: time.sleep(1)"
    )
    with Session.open(made.id) as other, other.start(calls.run(code, stream=True)) as stream:
        operation = wait_for_running(made)
        wait_for_entry(
            made, "output", operation=operation, where=lambda e: e["data"].get("message") == "stream"
        )
        begun = time.monotonic()
        assert made.restart().incarnation == 2
        assert time.monotonic() - begun < 15
        for _ in stream:
            pass
        assert stream.outcome()["status"] == "interrupted"
    assert made.run("1").status == "ok"


def test_a_name_that_somebody_bears_is_not_given_twice(home: Home, session: Sessions) -> None:
    spec = null_spec(home)
    first, second = session(kernel=spec), session(kernel=spec)
    for wanted in (first.name, first.name.upper(), first.name.title()):
        with pytest.raises(Refused) as refused:
            second.rename(wanted)
        assert refused.value.refusal.code == "name_taken"
        assert refused.value.refusal.next
    assert second.status().name == second.name
    second.rename(second.name.upper())  # his own name, in other letters, is his
    second.rename(f"{second.name}-2")
    first.rename(second.name)
    assert call_cli("status", second.name).data["id"] == first.id
