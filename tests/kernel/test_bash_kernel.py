"""A kernel that is not ipykernel's own Python: the same stamps, order, interrupt and record."""

from __future__ import annotations

import time

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Home,
    Sessions,
    control_reply_of,
    execute_request,
    flush,
    iopub_until,
    is_idle_of,
    is_stream_of,
    journal,
    reply_of,
    request,
    run_cli,
    text_of,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

pytest.importorskip("bash_kernel")


@pytest.fixture(scope="module")
def shared(home: Home, module_session: Sessions) -> Session:
    return module_session(kernel="bash")


def test_run_and_protocol_share_one_shell(shared: Session, clients: Clients) -> None:
    """A script's `run` and an agent's client work in the same bash; every message carries its author."""
    bot, other = clients(shared, "bot"), clients(shared, "other")
    flush(other)
    assert bot.kernel_info(reply=True, timeout=20)["content"]["implementation"] == "bash_kernel"
    assert run_cli("run", shared.name, "place=here; echo set").data["text"] == "set\n"
    msg_id = bot.execute("echo $place by bot")
    reply = reply_of(bot, msg_id)
    assert reply["content"]["status"] == "ok"
    seen = [m for m in iopub_until(other, is_idle_of(msg_id)) if m["parent_header"].get("msg_id") == msg_id]
    assert text_of(seen) == "here by bot\n"
    for message in [reply, *seen]:
        stamp = message["metadata"]["cmdop"]
        assert (stamp["actor"]["id"], stamp["session"], stamp["incarnation"]) == ("bot", shared.id, 1)
        assert stamp["operation"] == reply["metadata"]["cmdop"]["operation"]
        assert message["parent_header"]["cmdop_actor"] == "bot"
        assert message["parent_header"]["username"] == "bot"
    read = "".join(i["output"].get("text", "") for i in run_cli("read", shared.name).data["items"])
    assert "here by bot\n" in read


def test_a_failing_command_is_an_error_with_its_exit_status(shared: Session) -> None:
    """The kernel's own error is the operation's outcome, and exit code 1 of `run`; cells of others go on."""
    failed = run_cli("run", shared.name, "false", code=1).data
    assert failed["status"] == "error"
    assert run_cli("run", shared.name, "echo on").data["text"] == "on\n"


def test_interrupt(shared: Session, clients: Clients, gate: Gate) -> None:
    """Interrupting stops the command that runs; what another actor had queued runs."""
    bot, alice = clients(shared, "bot"), clients(shared, "alice")
    running = bot.execute("echo started; sleep 60")
    operation = wait_for_running(shared, "bot")
    iopub_until(bot, is_stream_of(running))
    queued = alice.execute("echo after")
    wait_for_status(shared, lambda s: s.queue)
    begun = time.monotonic()
    control_reply_of(alice, request(alice, "interrupt_request", {}, channel="control"))
    # Alice's own waits: an unnamed interrupt takes that back, and only a named one reaches another's.
    assert reply_of(alice, queued)["content"]["status"] == "aborted"
    assert wait_for_running(shared) == operation
    queued = alice.execute("echo after")
    run_cli("interrupt", shared.name, operation)
    assert reply_of(bot, running)["content"]["status"] != "ok"
    assert time.monotonic() - begun < 30
    assert reply_of(alice, queued)["content"]["status"] == "ok"
    assert text_of(iopub_until(alice, is_idle_of(queued)), queued) == "after\n"
    ended = wait_for_entry(shared, "ended", operation=operation)
    assert (ended["data"]["outcome"], ended["data"]["by"]) == ("interrupted", shared.actor)


def test_the_same_message_and_request_id_run_once(shared: Session, clients: Clients) -> None:
    """Duplicates are recognised by the session, so that it works with any kernel."""
    bot = clients(shared, "bot")
    content = execute_request("n=$((n+1)); echo $n")
    for _ in range(2):
        msg_id = request(bot, "execute_request", content, metadata={"cmdop": {"request_id": "once"}})
        assert text_of(iopub_until(bot, is_idle_of(msg_id)), msg_id) == "1\n"
        reply_of(bot, msg_id)


def test_the_journal_tells_all_of_it(shared: Session) -> None:
    """Authors and outcomes are there for this kernel too, and what it cannot promise is said: whether output
    may be lost.
    """
    shared.run("echo 'the end'")
    entries = journal(shared)
    admitted = [e for e in entries if e["type"] == "admitted"]
    ended = {e["operation"]: e["data"]["outcome"] for e in entries if e["type"] == "ended"}
    assert admitted
    assert all(e["operation"] in ended for e in admitted)
    delivery = next(e["data"]["delivery"] for e in entries if e["type"] == "iopub")
    assert delivery == "may_drop"
    assert shared.status().iopub == "may_drop"
    assert shared.verify().ok


def test_history_of_a_kernel_without_one(shared: Session, clients: Clients) -> None:
    """The history is the session's, whatever the kernel keeps."""
    bot = clients(shared, "bot")
    reply_of(bot, bot.execute("echo remember"))
    past = reply_of(bot, bot.history(hist_access_type="tail", n=1))["content"]["history"]
    assert past[0][2] == "echo remember"
