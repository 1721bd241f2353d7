"""Subshells: lanes beside the main shell with the same rules and the same record; a kernel is not wedged
through one.
"""

from __future__ import annotations

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Sessions,
    control_reply_of,
    execute_request,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    request,
    run_cli,
    text_of,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def create_subshell(client: BlockingKernelClient) -> str:
    msg_id = request(client, "create_subshell_request", {}, channel="control")
    content = control_reply_of(client, msg_id)["content"]
    assert content["status"] == "ok"
    return str(content["subshell_id"])


def delete_subshell(client: BlockingKernelClient, subshell: str) -> dict[str, str]:
    msg_id = request(client, "delete_subshell_request", {"subshell_id": subshell}, channel="control")
    return dict(control_reply_of(client, msg_id)["content"])


def execute_in(client: BlockingKernelClient, subshell: str, code: str) -> str:
    return request(client, "execute_request", execute_request(code), header={"subshell_id": subshell})


def test_a_subshell_runs_while_the_main_shell_is_busy(shared: Session, clients: Clients, gate: Gate) -> None:
    """The agent looks at a variable in a subshell while Alice's cell runs in the main shell: both are recorded,
    each with its lane, and status shows both.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    reply_of(alice, alice.execute("progress = 7"))
    subshell = create_subshell(bot)
    running = alice.execute(gate.code)
    wait_for_running(shared, "alice")
    msg_id = execute_in(bot, subshell, "print(progress)")
    assert reply_of(bot, msg_id)["content"]["status"] == "ok"
    seen = iopub_until(bot, is_idle_of(msg_id))
    assert text_of(seen, msg_id) == "7\n"
    assert {
        m["metadata"]["cmdop"]["actor"]["id"] for m in seen if m["parent_header"]["msg_id"] == msg_id
    } == {"bot"}
    assert wait_for_running(shared, "alice")
    admitted = journal(shared, "admitted", actor="bot")[-1]
    assert admitted["data"]["lane"] == subshell
    gate.open()
    assert reply_of(alice, running)["content"]["status"] == "ok"
    assert delete_subshell(bot, subshell) == {"status": "ok"}


def test_deleting_a_busy_subshell_is_refused(shared: Session, clients: Clients, gate: Gate) -> None:
    """A bare ipykernel stops answering anybody for ever when a busy subshell is deleted: here it is refused
    `busy`, the main shell goes on, and when it is idle it can be deleted.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    subshell = create_subshell(bot)
    msg_id = execute_in(bot, subshell, gate.code)
    status = wait_for_status(shared, lambda s: any(op.lane == subshell for op in s.running))
    operation = next(op.operation for op in status.running if op.lane == subshell)
    refused = delete_subshell(bot, subshell)
    assert (refused["status"], refused["ename"]) == ("error", "cmdop.busy")
    assert subshell in refused["evalue"]
    assert journal(shared, "refused")[-1]["data"]["code"] == "busy"
    assert reply_of(alice, alice.execute("1"))["content"]["status"] == "ok"
    unsupported = run_cli("interrupt", shared.name, operation, code=3).data["refusal"]
    assert unsupported["code"] == "unsupported"
    gate.open()
    assert reply_of(bot, msg_id)["content"]["status"] == "ok"
    iopub_until(bot, is_idle_of(msg_id))
    wait_for_entry(shared, "ended", operation=operation)
    assert delete_subshell(bot, subshell) == {"status": "ok"}
    assert reply_of(alice, alice.execute("1"))["content"]["status"] == "ok"


def test_a_subshell_that_does_not_exist_blocks_nobody(shared: Session, clients: Clients) -> None:
    """A cell for an unknown subshell ends as an error, and the client's next cell runs."""
    bot = clients(shared, "bot")
    msg_id = execute_in(bot, "no-such-subshell", "1")
    assert reply_of(bot, msg_id)["content"]["status"] == "error"
    iopub_until(bot, is_idle_of(msg_id))
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"
    assert shared.wait(wait_seconds=10).status == "idle"


def test_subshells_keep_the_rules_of_the_floor(session: Sessions, clients: Clients) -> None:
    """A subshell is no way around the driver: under `turns` another's cell is refused there too, and making one
    as well.
    """
    made = session(policy="turns")
    alice, bot = clients(made, "alice"), clients(made, "bot")
    subshell = create_subshell(bot)
    assert made.status().driver is None
    assert reply_of(alice, alice.execute("1"))["content"]["status"] == "ok"
    msg_id = execute_in(bot, subshell, "1")
    assert reply_of(bot, msg_id)["content"]["ename"] == "cmdop.not_driver"
    iopub_until(bot, is_idle_of(msg_id))
    asked = request(bot, "create_subshell_request", {}, channel="control")
    assert control_reply_of(bot, asked)["content"]["ename"] == "cmdop.not_driver"


def test_one_cell_at_a_time_in_a_subshell(shared: Session, clients: Clients) -> None:
    """Two actors' cells in the same subshell take turns there as in the main shell; none is aborted."""
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    subshell = create_subshell(bot)
    sent = [
        (c, execute_in(c, subshell, "1 / 0" if c is bot else "pass")) for _ in range(5) for c in (alice, bot)
    ]
    outcomes = [(c is bot, reply_of(c, m)["content"]["status"]) for c, m in sent]
    assert [status for his, status in outcomes if not his] == ["ok"] * 5
    assert next(status for his, status in outcomes if his) == "error"
    iopub_until(bot, is_idle_of(sent[-1][1]))
    wait_for_status(shared, lambda s: not s.running and not s.queue)
    assert delete_subshell(bot, subshell) == {"status": "ok"}
