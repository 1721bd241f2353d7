"""Coming and going: joining a busy kernel, and leaving without taking the kernel along."""

from __future__ import annotations

import time

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Closing,
    Gate,
    Sessions,
    control_reply_of,
    iopub_until,
    is_idle_of,
    journal,
    open_console,
    reply_of,
    request,
    run_cli,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def test_a_newcomer_is_ready_while_a_cell_runs(shared: Session, clients: Clients, gate: Gate) -> None:
    """A stock client's `wait_for_ready` takes less than two seconds although the kernel is busy, the client
    learns that it is, and nothing of the joining reaches the kernel.
    """
    alice = clients(shared, "alice")
    running = alice.execute(gate.code)
    wait_for_running(shared, "alice")
    begun = time.monotonic()
    newcomer = clients(shared, "newcomer")
    assert time.monotonic() - begun < 2.0
    looker = clients.again(newcomer, ready=False)
    # Its question is answered once its subscription has arrived; a stock client asks until then.
    while True:
        info = looker.kernel_info()
        reply = reply_of(looker, info, limit_seconds=2)
        try:
            seen = iopub_until(looker, lambda m: m["parent_header"].get("msg_id") == running, limit_seconds=1)
        except AssertionError:
            continue
        break
    assert reply["content"]["implementation"] == "ipython"
    states = [m["content"]["execution_state"] for m in seen if m["msg_type"] == "status"]
    assert states[-1] == "busy"
    assert seen[-1]["metadata"]["cmdop"]["actor"]["id"] == "alice"
    gate.open()
    iopub_until(looker, is_idle_of(running))
    assert reply_of(alice, running)["content"]["status"] == "ok"
    assert {e["actor"] for e in journal(shared, "attached")} >= {"alice", "newcomer"}


@pytest.mark.parametrize("word", ["exit", "quit", "exit()", "%quit"])
def test_leaving_a_console_leaves_the_kernel(shared: Session, closing: Closing, word: str) -> None:
    """A person types exit in the stock console: the console ends, and the kernel and everybody's variables
    stay. On a bare kernel that word ends it for all.
    """
    shared.run("treasure = 'still here'")
    incarnation = shared.status().incarnation
    console = closing(open_console(shared.invite("alice", kind="human").connection_file))
    console.expect(r"In \[\d+\]: ")
    wait_for_status(shared, lambda s: any(p.actor == "alice" for p in s.presence))
    console.type(word)
    assert console.ended() == 0
    wait_for_status(shared, lambda s: not any(p.actor == "alice" for p in s.presence))
    assert shared.run("treasure").text == "'still here'\n"
    assert shared.status().incarnation == incarnation
    how = journal(shared, "detach_requested", actor="alice")[-1]["data"]["how"]
    assert how == "exit"
    for grant in shared.grants():
        if grant.actor == "alice":
            shared.revoke(grant.grant)


def test_shutdown_request_detaches(shared: Session, clients: Clients) -> None:
    """A client that ends "its" kernel when it goes ends only its attachment; a restart by it is refused with
    the verb.
    """
    bot = clients(shared, "bot")
    incarnation = shared.status().incarnation
    content = control_reply_of(bot, request(bot, "shutdown_request", {"restart": False}, channel="control"))
    assert content["content"] == {"status": "ok", "restart": False}
    assert journal(shared, "detach_requested", actor="bot")[-1]["data"]["how"] == "shutdown_request"
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"

    restart = control_reply_of(bot, request(bot, "shutdown_request", {"restart": True}, channel="control"))
    assert restart["content"]["ename"] == "cmdop.forbidden"
    assert "jupyter cmdop restart" in restart["content"]["evalue"]
    assert shared.status().incarnation == incarnation


def test_code_that_only_mentions_exit_runs(shared: Session, clients: Clients) -> None:
    """Only a cell that is just that word is a farewell."""
    bot = clients(shared, "bot")
    assert reply_of(bot, bot.execute("exit_code = 3; exit_code"))["content"]["status"] == "ok"
    assert shared.run("exit_code").text == "3\n"


def test_presence_comes_and_goes_with_clients(shared: Session, clients: Clients) -> None:
    """`status` shows who is there now, once for an actor's connection file however many clients use it, and the
    journal when they came and went.
    """
    bot = clients(shared, "visitor")
    status = wait_for_status(shared, lambda s: any(p.actor == "visitor" for p in s.presence))
    here = [p for p in status.presence if p.actor == "visitor"]
    assert [(p.kind, p.role, p.transport, p.on_behalf_of) for p in here] == [
        ("agent", "peer", "ipc", shared.actor)
    ]
    second = clients.again(bot)
    bot.stop_channels()
    assert reply_of(second, second.execute("1"))["content"]["status"] == "ok"
    assert any(p.actor == "visitor" for p in shared.status().presence)
    second.stop_channels()
    wait_for_status(shared, lambda s: not any(p.actor == "visitor" for p in s.presence))
    assert [e["type"] for e in journal(shared, "attached", "detached", actor="visitor")] == [
        "attached",
        "detached",
    ]
    # The connection file goes on to be good.
    again = clients.again(bot)
    assert reply_of(again, again.execute("1"))["content"]["status"] == "ok"
    wait_for_entry(
        shared, "attached", actor="visitor", after=journal(shared, "detached", actor="visitor")[-1]["seq"]
    )


def test_restart_keeps_clients_and_journal(session: Sessions, clients: Clients) -> None:
    """`restart` gives the same session a new kernel: connected clients go on with the same connection file,
    what ran has an outcome, and the variables are gone.
    """
    made = session()
    bot = clients(made, "bot")
    reply_of(bot, bot.execute("old = 1"))
    running = bot.execute("import time; time.sleep(60)")
    wait_for_running(made, "bot")
    queued = bot.execute("queued = 1")
    wait_for_status(made, lambda s: s.queue)
    assert run_cli("restart", made.name).data == {"incarnation": 2}
    assert reply_of(bot, running)["content"]["status"] == "error"
    assert reply_of(bot, queued)["content"]["status"] in ("error", "aborted")
    bot.wait_for_ready(timeout=20)
    reply = reply_of(bot, bot.execute("'old' in globals()"))
    assert reply["content"]["execution_count"] == 1
    assert reply["metadata"]["cmdop"]["incarnation"] == 2
    assert made.run("'old' in globals()").text == "False\n"
    outcomes = [e["data"]["outcome"] for e in journal(made, "ended", actor="bot")]
    assert outcomes == ["ok", "interrupted", "aborted", "ok"]
    assert [e["actor"] for e in journal(made, "restarted")] == [made.actor]
