"""Policies `turns` and `readonly`: who may type, how the floor moves, and that no unmodified client hangs."""

from __future__ import annotations

import time

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import Session
from tests.support import (
    AgentProcess,
    Clients,
    Closing,
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
def made(module_session: Sessions) -> Session:
    return module_session(policy="turns")


@pytest.fixture
def shared(made: Session) -> Session:
    """The module's session, at policy `turns` with a free floor."""
    if made.status().policy != "turns":
        made.policy("turns")
    if made.status().driver is not None:
        made.take()
        made.release()
    return made


def drive(session: Session, client: BlockingKernelClient) -> None:
    """Let a client claim the floor by its first cell."""
    assert reply_of(client, client.execute("pass"))["content"]["status"] == "ok"


def refusal_of(client: BlockingKernelClient, msg_id: str) -> dict[str, str]:
    """The refusal of a cell as a stock client sees it: error on iopub, error reply, idle."""
    reply = reply_of(client, msg_id)
    seen = [m for m in iopub_until(client, is_idle_of(msg_id)) if m["parent_header"].get("msg_id") == msg_id]
    assert [m["msg_type"] for m in seen] == ["status", "error", "status"]
    assert reply["content"]["status"] == "error"
    assert reply["content"]["ename"] == seen[1]["content"]["ename"]
    kernel_session = reply["header"]["session"]
    assert {m["header"]["session"] for m in seen} == {kernel_session}
    return {"code": reply["content"]["ename"], "text": reply["content"]["evalue"], "session": kernel_session}


def test_first_cell_takes_the_floor_and_others_are_refused(shared: Session, clients: Clients) -> None:
    """Alice's first cell makes her the driver. The agent's cell is refused with her name in it, is not
    executed, and no client hangs: neither one that reads the reply nor one that waits for idle on iopub.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    before = reply_of(alice, alice.execute("mine = 'alice'"))
    status = shared.status()
    assert (status.driver, status.policy) == ("alice", "turns")

    refused = refusal_of(bot, bot.execute("mine = 'bot'"))
    assert refused["code"] == "cmdop.not_driver"
    assert "alice drives this session" in refused["text"]
    # Clients drop messages with another session than the kernel's.
    assert refused["session"] == before["header"]["session"]

    reply = bot.execute_interactive("mine = 'bot'", timeout=20)
    assert reply["content"]["ename"] == "cmdop.not_driver"
    entry = journal(shared, "refused")[-1]
    assert (entry["actor"], entry["data"]["code"]) == ("bot", "not_driver")
    assert reply_of(alice, alice.execute("assert mine == 'alice'"))["content"]["status"] == "ok"
    assert journal(shared, "admitted", actor="bot") == []
    cli = run_cli("run", shared.name, "mine = 'root'", code=3)
    assert (cli.data["status"], cli.data["refusal"]["code"]) == ("refused", "not_driver")
    assert cli.data["refusal"]["driver"] == "alice"
    assert "take" in cli.err


def test_take_supersedes_the_queue_and_leaves_the_running_cell(
    shared: Session, clients: Clients, gate: Gate
) -> None:
    """Alice takes over while the agent works: his running cell goes on to its end, what he had queued is given back to
    him with her name and reason, his next cell is told so once, and hers run.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    flush(bot)
    running = bot.execute(f"{gate.code}; survived = True")
    queued = [bot.execute(f"never = {n}") for n in range(3)]
    wait_for_status(shared, lambda s: len(s.queue) == 3)
    generation = shared.status().generation
    by_alice = Session.open(shared.id, identity=Identity(token=alice.cmdop_invite.token))  # type: ignore[attr-defined]
    with by_alice:
        floor = by_alice.take("wrong data set")
    assert (floor.driver, floor.generation) == ("alice", (generation or 0) + 1)
    assert len(floor.superseded) == 3
    assert len(floor.running) == 1
    hers = alice.execute("assert survived; 'never' in globals()")
    gate.open()
    # In the order in which he asked: a stock client throws away a reply that overtakes the one it waits for.
    answers = [bot.get_shell_msg(timeout=20) for _ in range(4)]
    assert [m["parent_header"]["msg_id"] for m in answers] == [running, *queued]
    assert answers[0]["content"]["status"] == "ok"
    for answer in answers[1:]:
        assert answer["content"]["ename"] == "cmdop.superseded"
        assert "alice" in answer["content"]["evalue"]
        assert "wrong data set" in answer["content"]["evalue"]
    assert reply_of(alice, hers)["content"]["status"] == "ok"
    iopub_until(bot, is_idle_of(queued[-1]))
    refused = reply_of(bot, bot.execute("x = 1"))["content"]
    assert refused["ename"] in ("cmdop.stale_generation", "cmdop.not_driver")
    assert "alice" in refused["evalue"]
    superseded = [e for e in journal(shared, "ended", actor="bot") if e["data"]["outcome"] == "superseded"]
    assert {e["data"]["by"] for e in superseded} == {"alice"}


def test_take_can_adopt_the_queue(shared: Session, clients: Clients, gate: Gate) -> None:
    """With `--queue adopt` what the agent had queued runs under the taker's floor; both are named."""
    bot = clients(shared, "bot")
    running = bot.execute(gate.code)
    queued = [bot.execute(f"adopted_{n} = {n}") for n in range(2)]
    wait_for_status(shared, lambda s: len(s.queue) == 2)
    floor = run_cli("take", shared.name, "--queue", "adopt").data
    assert (len(floor["adopted"]), floor["superseded"]) == (2, [])
    gate.open()
    assert [reply_of(bot, m)["content"]["status"] for m in (running, *queued)] == ["ok"] * 3
    for msg_id in queued:
        seen = iopub_until(bot, is_idle_of(msg_id))
        stamp = seen[-1]["metadata"]["cmdop"]
        assert (stamp["actor"]["id"], stamp["adopted_by"]) == ("bot", shared.actor)
    adopted = journal(shared, "adopted")[-1]
    assert (adopted["actor"], adopted["data"]["author"]) == (shared.actor, "bot")
    assert shared.run("adopted_0 + adopted_1").text == "1\n"


def test_take_can_interrupt_what_runs(shared: Session, clients: Clients, gate: Gate) -> None:
    """With `--running interrupt` the running cell is stopped, and the journal says by whom."""
    bot = clients(shared, "bot")
    running = bot.execute(gate.code)
    iopub_until(bot, is_stream_of(running))
    floor = run_cli("take", shared.name, "--running", "interrupt", "--reason", "stop").data
    assert floor["driver"] == shared.actor
    assert reply_of(bot, running)["content"]["ename"] == "KeyboardInterrupt"
    operation = floor["running"][0]
    ended = wait_for_entry(shared, "ended", operation=operation)
    assert (ended["data"]["outcome"], ended["data"]["by"]) == ("interrupted", shared.actor)


def test_an_agent_frozen_through_a_take_over_is_told_before_it_drives_again(
    shared: Session, closing: Closing
) -> None:
    """An agent's process is stopped (a suspended laptop, a debugger), somebody takes over and goes again, and
    the floor is free when it wakes: what it sends then was decided before, so its first input is refused and
    its second drives.
    """
    agent = closing(AgentProcess(shared.invite("sleeper").connection_file or ""))
    assert agent.reply(agent.execute("drives = 'agent'"))["status"] == "ok"
    assert shared.status().driver == "sleeper"
    agent.freeze()
    shared.take("it does not answer")
    assert shared.run("drives = 'person'").status == "ok"
    shared.release()
    assert shared.status().driver is None
    agent.send("drives = 'agent, from before'")
    agent.thaw()
    first = agent.reply(agent.event(event="sent")["id"])
    assert first["ename"] == "cmdop.stale_generation"
    assert shared.actor in first["evalue"]
    assert "run it again" in first["evalue"]
    assert shared.status().driver is None
    second = agent.reply(agent.execute("drives += ', then agent'"))
    assert second["status"] == "ok"
    assert shared.status().driver == "sleeper"
    shared.take()
    assert shared.run("drives").text == "'person, then agent'\n"


def test_hand_back_and_release(shared: Session, clients: Clients) -> None:
    """The floor goes back to whoever had it, with a note, or to somebody by name, or is given up."""
    bot, alice = clients(shared, "bot"), clients(shared, "alice")
    drive(shared, bot)
    run_cli("take", shared.name, "--reason", "a look")
    floor = run_cli("hand-back", shared.name, "--note", "all yours").data
    assert floor["driver"] == "bot"
    entry = journal(shared, "handed_back")[-1]
    assert (entry["actor"], entry["data"]["to"], entry["data"]["reason"]) == (
        shared.actor,
        "bot",
        "all yours",
    )
    # Who gets it back need not be told that he had lost it.
    assert reply_of(bot, bot.execute("pass"))["content"]["status"] == "ok"

    shared.take()
    assert run_cli("hand-back", shared.name, "--to", "alice").data["driver"] == "alice"
    assert reply_of(alice, alice.execute("pass"))["content"]["status"] == "ok"
    refused = run_cli("release", shared.name, code=3).data
    assert refused["refusal"]["code"] == "not_driver"

    shared.take()
    assert run_cli("release", shared.name).data["driver"] is None
    with pytest.raises(Refused) as nobody:
        shared.release()
    assert nobody.value.refusal.code == "not_driver"
    shared.take()
    with pytest.raises(Refused) as stranger:
        shared.hand_back("nobody-of-that-name")
    assert stranger.value.refusal.code == "forbidden"


def test_readonly_refuses_everybody_and_interrupt_stays(
    shared: Session, clients: Clients, gate: Gate
) -> None:
    """Under `readonly` nobody types, the owner neither; what runs can still be stopped, and looking works."""
    bot, alice = clients(shared, "bot"), clients(shared, "alice")
    running = alice.execute(gate.code)
    behind = alice.execute("behind = 1")
    wait_for_running(shared, "alice")
    wait_for_status(shared, lambda s: s.queue)
    floor = run_cli("policy", shared.name, "readonly").data
    assert (floor["driver"], floor["policy"]) == (None, "readonly")
    assert len(floor["superseded"]) == 1
    assert refusal_of(bot, bot.execute("1"))["code"] == "cmdop.read_only"
    assert run_cli("run", shared.name, "1", code=3).data["refusal"]["code"] == "read_only"
    assert run_cli("take", shared.name, code=3).data["refusal"]["code"] == "read_only"
    control_reply_of(bot, request(bot, "interrupt_request", {}, channel="control"))
    assert reply_of(alice, running)["content"]["ename"] == "KeyboardInterrupt"
    assert reply_of(alice, behind)["content"]["ename"] == "cmdop.superseded"
    iopub_until(alice, is_idle_of(behind))
    assert refusal_of(alice, alice.execute("1"))["code"] == "cmdop.read_only"
    assert run_cli("read", shared.name).code == 0
    run_cli("policy", shared.name, "turns")
    assert shared.run("'behind' in globals()").text == "False\n"


def test_generation_fences_a_run(shared: Session) -> None:
    """`run --generation G` says: only if nobody else has taken over since I looked."""
    seen = shared.take().generation
    assert shared.run("1", generation=seen).status == "ok"
    with Session.open(shared.id, identity=Identity(actor="rival", kind="agent")) as rival:
        rival.take()
        rival.release()
    stale = shared.run("2", generation=seen)
    assert stale.status == "refused"
    assert stale.refusal is not None
    assert stale.refusal.code == "stale_generation"


def test_drive_takes_and_gives_back(shared: Session, clients: Clients) -> None:
    """`with session.drive(reason)` gives the floor back to whoever had it, also after an error in the block."""
    bot = clients(shared, "bot")
    drive(shared, bot)
    with shared.drive("a look", note="done") as floor:
        assert floor.driver == shared.actor
        assert shared.run("1 + 1").text == "2\n"
        assert reply_of(bot, bot.execute("1"))["content"]["ename"] == "cmdop.stale_generation"
    assert shared.status().driver == "bot"
    with pytest.raises(ZeroDivisionError), shared.drive():
        1 / 0  # noqa: B018
    assert shared.status().driver == "bot"


def test_switching_to_turns_gives_the_floor_to_who_runs(
    session: Sessions, clients: Clients, gate: Gate
) -> None:
    """From `open` to `turns` in the middle of work: whose cell runs drives; what others have queued goes back
    to them.
    """
    made = session()
    alice, bot = clients(made, "alice"), clients(made, "bot")
    running = alice.execute(gate.code)
    wait_for_running(made, "alice")
    queued = bot.execute("x = 1")
    wait_for_status(made, lambda s: s.queue)
    floor = made.policy("turns")
    assert floor.driver == "alice"
    assert reply_of(bot, queued)["content"]["ename"] == "cmdop.superseded"
    gate.open()
    assert reply_of(alice, running)["content"]["status"] == "ok"


def test_taking_over_takes_no_longer_than_a_blink(shared: Session, clients: Clients, gate: Gate) -> None:
    """A take-over does not wait for the cell that runs."""
    bot = clients(shared, "bot")
    running = bot.execute(gate.code)
    wait_for_running(shared, "bot")
    begun = time.monotonic()
    shared.take()
    assert time.monotonic() - begun < 1.0
    gate.open()
    assert reply_of(bot, running)["content"]["status"] == "ok"
