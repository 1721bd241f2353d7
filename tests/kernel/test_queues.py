"""Several people's cells in one kernel: an error or an interrupt of one leaves the others' alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Sessions,
    control_reply_of,
    flush,
    iopub_until,
    is_idle_of,
    is_stream_of,
    journal,
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


def operation_of(session: Session, msg_id: str) -> str:
    """The operation that a client's message became."""
    entry = wait_for_entry(session, "admitted", where=lambda e: e["data"]["msg_id"] == msg_id)
    return str(entry["operation"])


def test_errors_of_one_never_abort_cells_of_others(shared: Session, clients: Clients) -> None:
    """300 runs: while Alice's cells fail one after the other, a hundred of the agent's and a hundred of
    Carol's, all sent at once, are executed in their order. With a bare kernel each error aborts whatever others
    have queued.
    """
    alice, bot, carol = clients(shared, "alice"), clients(shared, "bot"), clients(shared, "carol")
    reply_of(bot, bot.execute("done = []"))
    mine = [bot.execute(f"done.append({n})") for n in range(100)]
    hers = [carol.execute(f"done.append({n + 1000})") for n in range(100)]
    for _ in range(100):
        failing = alice.execute("1 / 0")
        assert reply_of(alice, failing)["content"]["status"] == "error"
        iopub_until(alice, is_idle_of(failing))
    assert [reply_of(bot, m)["content"]["status"] for m in mine] == ["ok"] * 100
    assert [reply_of(carol, m)["content"]["status"] for m in hers] == ["ok"] * 100
    in_order = shared.run(
        "[n for n in done if n < 1000] == [n - 1000 for n in done if n >= 1000] == list(range(100))"
    )
    assert in_order.text is not None
    assert in_order.text.strip() == "True"
    outcomes = [e["data"]["outcome"] for e in journal(shared, "ended") if e["actor"] in ("bot", "carol")]
    assert "aborted" not in outcomes


def test_interrupts_of_one_never_abort_cells_of_others(shared: Session, clients: Clients, gate: Gate) -> None:
    """Alice interrupts her own cell again and again; what others have queued behind it runs."""
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    for _ in range(10):
        running = alice.execute(gate.code)
        wait_for_running(shared, "alice")
        queued = [bot.execute("pass") for _ in range(5)]
        wait_for_status(shared, lambda s: len(s.queue) == 5)
        iopub_until(alice, is_stream_of(running))
        answer = control_reply_of(alice, request(alice, "interrupt_request", {}, channel="control"))
        assert answer["content"]["status"] == "ok"
        assert reply_of(alice, running)["content"]["ename"] == "KeyboardInterrupt"
        assert [reply_of(bot, m)["content"]["status"] for m in queued] == ["ok"] * 5
        entry = wait_for_entry(shared, "ended", operation=operation_of(shared, running))
        assert (entry["data"]["outcome"], entry["data"]["by"]) == ("interrupted", "alice")


def test_an_error_aborts_what_its_own_client_queued(shared: Session, clients: Clients) -> None:
    """As with a kernel of one's own: the rest of a *Run all* does not run after an error; another client of the same
    person is not concerned, nor is a cell that asked not to be.
    """
    alice = clients(shared, "alice")
    second = clients.again(alice)
    gated = alice.execute("import time; 1 / 0")
    rest = [alice.execute(f"never = {n}") for n in range(3)]
    other = second.execute("fine = 1")
    assert reply_of(alice, gated)["content"]["status"] == "error"
    assert {reply_of(alice, m)["content"]["status"] for m in rest} <= {"aborted"}
    for m in rest:
        iopub_until(alice, is_idle_of(m))
    assert reply_of(second, other)["content"]["status"] == "ok"
    tolerant = [alice.execute("1 / 0", stop_on_error=False), alice.execute("after = 1")]
    assert [reply_of(alice, m)["content"]["status"] for m in tolerant] == ["error", "ok"]


def test_a_cell_sent_after_an_error_was_seen_is_executed(shared: Session, clients: Clients) -> None:
    """An agent that reads only replies sends its next cell as soon as it has the error: that cell was never
    queued behind the failed one, and runs.
    """
    bot = clients(shared, "bot")
    statuses = [reply_of(bot, bot.execute("1 / 0"))["content"]["status"] for _ in range(100)]
    assert statuses == ["error"] * 100


def test_a_hundred_cells_sent_at_once_run_in_order(shared: Session, clients: Clients) -> None:
    """JupyterLab's *Run all* sends every cell at once."""
    alice = clients(shared, "alice")
    sent = [alice.execute(f"cells = {'[]' if n == 0 else 'cells'} + [{n}]") for n in range(100)]
    replies = [reply_of(alice, m)["content"] for m in sent]
    assert {r["status"] for r in replies} == {"ok"}
    counts = [r["execution_count"] for r in replies]
    assert counts == list(range(counts[0], counts[0] + 100))
    result = shared.run("cells == list(range(100))")
    assert result.text == "True\n"


def test_a_named_interrupt_withdraws_a_queued_operation_and_touches_nothing_else(
    shared: Session, clients: Clients, gate: Gate
) -> None:
    """`interrupt NAME OPERATION` on a cell that has not begun takes it back; the cell that runs is not hit."""
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    running = alice.execute(gate.code)
    wait_for_running(shared, "alice")
    first, second = bot.execute("first = 1"), bot.execute("second = 2")
    target = operation_of(shared, first)
    answer = run_cli("interrupt", shared.name, target).data
    assert (answer["interrupted"], answer["withdrawn"]) == (None, [target])
    reply = reply_of(bot, first)
    assert reply["content"]["status"] == "aborted"
    assert shared.actor in reply["content"]["evalue"]
    iopub_until(bot, is_idle_of(first))
    assert wait_for_running(shared) == operation_of(shared, running)
    gate.open()
    assert reply_of(alice, running)["content"]["status"] == "ok"
    assert reply_of(bot, second)["content"]["status"] == "ok"
    ended = wait_for_entry(shared, "ended", operation=target)
    assert ended["data"] == {"outcome": "withdrawn", "by": shared.actor, "reason": "interrupt"}
    assert shared.run("'first' in globals()").text == "False\n"


def test_an_unnamed_interrupt_withdraws_ones_own_queue_before_it_hits_anybody(
    shared: Session, clients: Clients, gate: Gate
) -> None:
    """An agent that stops itself (control channel, no name) while Alice's cell runs takes only his own cells
    back. Carol, who has nothing there, stops what runs: any peer may.
    """
    alice, bot, carol = clients(shared, "alice"), clients(shared, "bot"), clients(shared, "carol")
    flush(carol)
    running = alice.execute(gate.code)
    behind = alice.execute("behind = 1")
    wait_for_running(shared, "alice")
    queued = [bot.execute("pass") for _ in range(3)]
    wait_for_status(shared, lambda s: len(s.queue) == 4)
    answer = control_reply_of(bot, request(bot, "interrupt_request", {}, channel="control"))
    assert answer["content"]["status"] == "ok"
    assert [reply_of(bot, m)["content"]["status"] for m in queued] == ["aborted"] * 3
    status = shared.status()
    assert [op.operation for op in status.running] == [operation_of(shared, running)]
    assert [op.operation for op in status.queue] == [operation_of(shared, behind)]

    iopub_until(carol, is_stream_of(running))
    control_reply_of(carol, request(carol, "interrupt_request", {}, channel="control"))
    assert reply_of(alice, running)["content"]["ename"] == "KeyboardInterrupt"
    entry = wait_for_entry(shared, "ended", operation=operation_of(shared, running))
    assert (entry["data"]["outcome"], entry["data"]["by"]) == ("interrupted", "carol")
    # What Alice had queued behind her own cell goes with it, as her own error would have it.
    assert reply_of(alice, behind)["content"]["status"] == "aborted"


def test_an_interrupt_that_comes_too_late_hits_nobody(shared: Session, clients: Clients, gate: Gate) -> None:
    """An interrupt for an operation that has ended does not stop the next one's innocent author."""
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    first = alice.execute("1")
    reply_of(alice, first)
    ended = operation_of(shared, first)
    wait_for_entry(shared, "ended", operation=ended)
    running = bot.execute(gate.code)
    wait_for_running(shared, "bot")
    late = run_cli("interrupt", shared.name, ended).data
    assert (late["interrupted"], late["withdrawn"]) == (None, [])
    gate.open()
    assert reply_of(bot, running)["content"]["status"] == "ok"
    assert run_cli("interrupt", shared.name, "o999999", code=3).data["refusal"]["code"] == "unknown_operation"


def test_round_robin_between_actors(shared: Session, clients: Clients, gate: Gate) -> None:
    """An agent that has queued fifty cells does not make Alice wait for all of them: actors take turns."""
    alice, bot, carol = clients(shared, "alice"), clients(shared, "bot"), clients(shared, "carol")
    running = carol.execute(gate.code)
    wait_for_running(shared, "carol")
    many = [bot.execute("pass") for _ in range(50)]
    wait_for_status(shared, lambda s: len(s.queue) == 50)
    one = alice.execute("pass")
    wait_for_status(shared, lambda s: len(s.queue) == 51)
    gate.open()
    reply_of(carol, running)
    hers = reply_of(alice, one)["content"]["execution_count"]
    his = [reply_of(bot, m)["content"]["execution_count"] for m in many]
    assert sum(count < hers for count in his) <= 1


def test_a_cell_that_runs_is_shown_with_its_author_and_what_waits(
    shared: Session, clients: Clients, gate: Gate, tmp_path: Path
) -> None:
    """`status` and `ls` say whose cell runs, what waits, and who is there; at once, while the kernel is busy."""
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    running = alice.execute(f"# the long one\n{gate.code}")
    wait_for_running(shared, "alice")
    waiting = bot.execute("and_this = 'waits'")
    wait_for_status(shared, lambda s: s.queue)
    status = run_cli("status", shared.name).data
    assert (status["execution_state"], status["state"]) == ("busy", "open")
    assert [(op["actor"], op["preview"]) for op in status["running"]] == [("alice", "# the long one")]
    assert [(op["actor"], op["preview"]) for op in status["queue"]] == [("bot", "and_this = 'waits'")]
    assert {p["actor"] for p in status["presence"]} == {"alice", "bot"}
    listed = next(item for item in run_cli("ls").data if item["id"] == shared.id)
    assert (listed["execution_state"], listed["running"], listed["queued"], listed["attached"]) == (
        "busy",
        1,
        1,
        2,
    )
    gate.open()
    reply_of(alice, running)
    reply_of(bot, waiting)
