"""A kernel that dies: everybody is told what became of his input, and the session goes on or says why it cannot."""

from __future__ import annotations

import signal
import time

from jupyter_cmdop.client import calls
from tests.faults.attacks import call_cli, kernel_of, null_spec, wait_ready
from tests.support import (
    Clients,
    Home,
    Sessions,
    finish_cli,
    flush,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    start_cli,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

TOLD_SECONDS = 2.0


def test_a_killed_kernel_ends_the_running_input_as_unknown_and_the_waiting_ones_as_aborted(
    session: Sessions, clients: Clients
) -> None:
    """Three actors, two of them on the kernel protocol: each learns of his own input's outcome at once."""
    made = session()
    anna, ben = clients(made, "anna"), clients(made, "ben")
    floor = made.take("mine")
    made.policy("open")
    made.release()
    generation = made.status().generation or 0
    assert floor.driver == made.actor
    running = anna.execute("import time; print('begun', flush=True); time.sleep(600)")
    wait_for_running(made, "anna")
    iopub_until(anna, lambda m: m["msg_type"] == "stream")
    waiting = [ben.execute("1"), anna.execute("2")]
    wait_for_status(made, lambda s: len(s.queue) == 2)
    cli = start_cli("run", made.name, "3")
    wait_for_status(made, lambda s: len(s.queue) == 3)

    kernel = kernel_of(made)
    killed = time.monotonic()
    kernel.kill()
    with made.start(calls.wait("o1")) as stream:
        for _ in stream:
            pass
        assert stream.outcome()["status"] == "unknown"
    told = [reply_of(anna, running), reply_of(ben, waiting[0]), reply_of(anna, waiting[1])]
    assert time.monotonic() - killed < TOLD_SECONDS
    assert [reply["content"]["status"] for reply in told] == ["error", "aborted", "aborted"]
    assert told[0]["content"]["ename"] == "cmdop.unknown"
    iopub_until(anna, is_idle_of(running))
    iopub_until(ben, is_idle_of(waiting[0]))
    result = finish_cli(cli)
    assert (result.code, result.data["status"]) == (1, "aborted")
    assert result.data["reason"]

    after = wait_ready(made, 2)
    assert (after.generation, after.incarnation) == (generation + 1, 2)
    died = wait_for_entry(made, "backend_died")
    assert "SIGKILL" in died["data"]["reason"]
    assert died["actor"] == "keeper"
    ended = {e["operation"]: e["data"]["outcome"] for e in journal(made, "ended")}
    assert list(ended.values()) == ["unknown", "aborted", "aborted", "aborted"]

    assert reply_of(ben, ben.execute("40 + 2"))["content"]["status"] == "ok"
    assert call_cli("run", made.name, "'works'").data["status"] == "ok"
    assert made.verify().ok


def test_the_cli_says_unknown_with_its_exit_code(session: Sessions) -> None:
    made = session()
    cli = start_cli("run", made.name, "import time; print('begun', flush=True); time.sleep(600)")
    operation = wait_for_running(made)
    wait_for_entry(
        made, "output", operation=operation, where=lambda e: e.get("data", {}).get("message") == "stream"
    )
    kernel_of(made).kill()
    result = finish_cli(cli)
    assert (result.code, result.data["status"], result.data["operation"]) == (5, "unknown", operation)
    assert "SIGKILL" in result.data["reason"]
    assert "".join(output.get("text", "") for output in result.data["outputs"]) == "begun\n"


def test_the_floor_survives_a_dead_kernel(session: Sessions, clients: Clients) -> None:
    """Who drives is a matter between people, not of the process: generation + 1 fences the old input off."""
    made = session(policy="turns")
    bot = clients(made, "bot")
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"
    before = made.status()
    assert before.driver == "bot"
    flush(bot)
    kernel_of(made).kill()
    after = wait_ready(made, 2)
    assert (after.driver, after.generation) == ("bot", (before.generation or 0) + 1)
    assert reply_of(bot, bot.execute("2"))["content"]["status"] == "ok"
    refused = call_cli("run", made.name, "3", code=3)
    assert refused.data["refusal"]["code"] == "not_driver"


def test_a_cell_that_ends_its_own_process_is_unknown(session: Sessions, clients: Clients) -> None:
    made = session()
    bot = clients(made, "bot")
    reply = reply_of(bot, bot.execute("import os; os._exit(3)"))
    assert reply["content"]["ename"] == "cmdop.unknown"
    assert "3" in wait_for_entry(made, "backend_died")["data"]["reason"]
    wait_ready(made, 2)


def test_input_during_the_restart_waits_for_the_new_kernel(session: Sessions, clients: Clients) -> None:
    made = session()
    bot = clients(made, "bot")
    kernel_of(made).kill()
    wait_for_entry(made, "backend_died")
    sent = bot.execute("1 + 1")
    assert reply_of(bot, sent)["content"]["status"] == "ok"
    assert made.status().incarnation == 2


def test_a_kernel_that_dies_again_and_again_is_given_up(home: Home, session: Sessions) -> None:
    """Five tries, as in Jupyter; then the session is lost, says so, and the record of it is whole."""
    made = session(kernel=null_spec(home))
    for incarnation in range(2, 7):
        kernel_of(made).send_signal(signal.SIGKILL)
        wait_ready(made, incarnation)
    kernel_of(made).send_signal(signal.SIGKILL)
    status = wait_for_status(made, lambda s: s.state == "lost")
    assert "5 times" in (status.reason or "")
    refused = call_cli("run", made.name, "1", code=3)
    assert refused.data["refusal"]["code"] == "backend_lost"
    assert refused.data["refusal"]["next"]
    assert len(journal(made, "backend_died")) >= 6
    assert len(journal(made, "restarted")) == 5
    assert all(entry["actor"] == "keeper" for entry in journal(made, "restarted"))
    listed = next(item for item in call_cli("ls").data if item["id"] == made.id)
    assert (listed["state"], bool(listed["reason"])) == ("lost", True)
    assert made.verify().ok

    assert call_cli("restart", made.name).data["incarnation"] == 7
    assert made.run("say put right by hand").status == "ok"
    assert made.status().state == "open"
