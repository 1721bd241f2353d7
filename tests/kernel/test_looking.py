"""What is no cell: background code, widgets, completion, history. It never takes the floor, and never waits for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Home,
    Sessions,
    TooLate,
    execute_request,
    flush,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    request,
    text_of,
    wait_for_entry,
    wait_for_running,
)

ECHO = """
def echo(comm, opening):
    @comm.on_msg
    def received(message):
        comm.send({"got": message["content"]["data"]}, buffers=[bytes(b)[::-1] for b in message["buffers"]])
    comm.send({"opened": opening["content"]["data"]}, buffers=[bytes(b) for b in opening["buffers"]])
get_ipython().kernel.comm_manager.register_target("echo", echo)
"""
AT_ONCE_SECONDS = 2.0


@pytest.fixture(scope="module")
def made(module_session: Sessions) -> Session:
    return module_session(policy="turns")


@pytest.fixture
def shared(made: Session) -> Iterator[Session]:
    """The module's session with a free floor."""
    yield made
    if made.status().driver is not None:
        made.take()
        made.release()


def is_comm(message: dict[str, Any]) -> bool:
    return message["msg_type"] == "comm_msg"


def open_comm(client: BlockingKernelClient, comm_id: str, data: dict[str, Any], buffers: list[bytes]) -> None:
    content = {"comm_id": comm_id, "target_name": "echo", "data": data}
    request(client, "comm_open", content, buffers=buffers)


def test_looking_and_background_code_never_take_a_free_floor(shared: Session, clients: Clients) -> None:
    """A variable inspector's silent execute, a comm, completion, inspection, is_complete and history of a
    client that only looks leave the floor free for whoever types first.
    """
    bot = clients(shared, "bot")
    generation = shared.status().generation
    silent = bot.execute("background = 1", silent=True)
    assert reply_of(bot, silent)["content"]["status"] == "ok"
    unstored = bot.execute("background += 1", store_history=False)
    assert reply_of(bot, unstored)["content"]["status"] == "ok"
    for msg_id in (
        bot.complete("backgr"),
        bot.inspect("background"),
        bot.is_complete("if True:"),
        bot.history(),
        bot.comm_info(),
        bot.kernel_info(),
    ):
        assert reply_of(bot, msg_id)["content"]["status"] in ("ok", "incomplete")
    request(bot, "comm_open", {"comm_id": "c0", "target_name": "nobody", "data": {}})
    iopub_until(bot, lambda m: m["msg_type"] == "comm_close")
    status = shared.status()
    assert (status.driver, status.generation) == (None, generation)
    types = {e["type"] for e in journal(shared)}
    assert not types & {"claimed", "taken"}
    assert reply_of(bot, bot.execute("background"))["content"]["status"] == "ok"
    assert shared.status().driver == "bot"


def test_background_code_of_another_needs_the_floor_once_somebody_has_it(
    shared: Session, clients: Clients
) -> None:
    """While Alice drives, the agent's silent execute is refused like a cell, and his client does not hang; his
    looking is not refused.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    reply_of(alice, alice.execute("hers = 1"))
    msg_id = bot.execute("hers = 2", silent=True)
    assert reply_of(bot, msg_id)["content"]["ename"] == "cmdop.not_driver"
    iopub_until(bot, is_idle_of(msg_id))
    assert "hers" in reply_of(bot, bot.complete("her"))["content"]["matches"]
    assert reply_of(bot, bot.inspect("hers"))["content"]["found"]
    assert reply_of(alice, alice.execute("assert hers == 1"))["content"]["status"] == "ok"


def test_comms_carry_binary_buffers_both_ways(shared: Session, clients: Clients) -> None:
    """A widget's traffic passes byte for byte in both directions, and others see it with its author."""
    bot, other = clients(shared, "bot"), clients(shared, "other")
    assert reply_of(bot, bot.execute(ECHO, silent=True))["content"]["status"] == "ok"
    flush(other)
    buffers = [bytes(range(256)), b"", b"<IDS|MSG>", b"x" * 100_000]
    open_comm(bot, "c1", {"hello": True}, buffers)
    seen = iopub_until(other, is_comm)
    assert seen[-1]["content"] == {"comm_id": "c1", "data": {"opened": {"hello": True}}}
    assert [bytes(b) for b in seen[-1]["buffers"]] == buffers
    assert seen[-1]["metadata"]["cmdop"]["actor"]["id"] == "bot"

    request(bot, "comm_msg", {"comm_id": "c1", "data": {"n": 1}}, buffers=buffers)
    answer = iopub_until(other, is_comm)[-1]
    assert answer["content"]["data"] == {"got": {"n": 1}}
    assert [bytes(b) for b in answer["buffers"]] == [b[::-1] for b in buffers]
    mine = iopub_until(bot, is_comm)
    assert [bytes(b) for b in mine[-1]["buffers"]] == buffers

    inputs = [e for e in journal(shared, "input", actor="bot") if e["data"]["message"].startswith("comm_")]
    assert [e["data"]["message"] for e in inputs[-2:]] == ["comm_open", "comm_msg"]
    info = reply_of(other, other.comm_info())["content"]
    assert info["comms"] == {"c1": {"target_name": "echo"}}
    assert shared.status().driver is None


def test_a_widget_of_another_is_refused_while_somebody_drives(shared: Session, clients: Clients) -> None:
    """Moving somebody else's slider is input: refused under a held floor, and nothing hangs."""
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    reply_of(bot, bot.execute(ECHO, silent=True))
    open_comm(bot, "c2", {}, [])
    iopub_until(bot, is_comm)
    reply_of(alice, alice.execute("pass"))
    flush(bot)
    msg_id = request(bot, "comm_msg", {"comm_id": "c2", "data": {"n": 2}})
    seen = iopub_until(bot, is_idle_of(msg_id))
    assert not any(is_comm(m) for m in seen)
    entry = wait_for_entry(shared, "refused", actor="bot", where=lambda e: "comm" in repr(e["data"]))
    assert entry["data"]["code"] == "not_driver"


def test_looking_while_the_kernel_is_busy(shared: Session, clients: Clients, gate: Gate) -> None:
    """kernel_info and history are answered at once while a cell runs; what only the kernel knows waits for it,
    and comes.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    running = alice.execute(gate.code)
    wait_for_entry(shared, "started", operation=wait_for_running(shared, "alice"))
    begun = time.monotonic()
    assert reply_of(bot, bot.kernel_info(), limit_seconds=AT_ONCE_SECONDS)["content"]["status"] == "ok"
    past = reply_of(bot, bot.history(n=1), limit_seconds=AT_ONCE_SECONDS)["content"]
    assert past["history"][-1][2].startswith("print('waiting'")
    assert time.monotonic() - begun < AT_ONCE_SECONDS
    later = [bot.complete("gat"), bot.is_complete("1"), bot.comm_info(), bot.inspect("print")]
    gate.open()
    assert reply_of(alice, running)["content"]["status"] == "ok"
    assert [reply_of(bot, m)["content"]["status"] for m in later] == ["ok", "complete", "ok", "ok"]


def test_history_is_that_of_this_session(session: Sessions, home: Home, clients: Clients) -> None:
    """The history holds this session's cells, all actors', none of another kernel; and the user's own IPython
    history file is not written by sessions that agents use too.
    """
    made, elsewhere = session(), session()
    alice, bot = clients(made, "alice"), clients(made, "bot")
    stranger = clients(elsewhere, "bot")
    reply_of(stranger, stranger.execute("elsewhere = 'secret of another session'"))
    reply_of(alice, alice.execute("import math"))
    reply_of(bot, bot.execute("math.pi"))
    reply_of(bot, bot.execute("unseen = 1", store_history=False))
    reply_of(bot, bot.execute("silent = 1", silent=True))
    made.run("math.tau")
    lines = ["import math", "math.pi", "math.tau"]

    def history(**options: Any) -> list[Any]:
        return list(reply_of(bot, bot.history(**options))["content"]["history"])

    assert [line[2] for line in history(hist_access_type="tail", n=10)] == lines
    assert [line[2] for line in history(hist_access_type="tail", n=1)] == lines[-1:]
    assert [line[2] for line in history(hist_access_type="search", pattern="math.*")] == lines[1:]
    assert [line[2] for line in history(hist_access_type="range", session=0, start=1, stop=3)] == lines[:2]
    assert [line[:2] for line in history(hist_access_type="tail", n=10)] == [[1, 1], [1, 2], [1, 3]]
    assert history(hist_access_type="tail", n=1, output=True)[0][2] == ["math.tau", None]
    # IPython's own bookkeeping in the kernel goes on: `In`, `_`, `%history`.
    assert "'math.pi'" in (made.run("In[1:3]").text or "")

    for database in home.root.rglob("history.sqlite"):
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            assert connection.execute("SELECT source FROM history").fetchall() == []
        connection.close()


def test_silent_code_of_the_keeper_is_nobodys_business(session: Sessions, clients: Clients) -> None:
    """What the keeper does to prepare a kernel counts for nothing: the first cell is number 1, and no client sees more
    than its own messages.
    """
    made = session()
    bot = clients(made, "bot")
    seen = flush(bot)
    assert {m["msg_type"] for m in seen} == {"status"}
    first = bot.execute("In, Out, _i")
    assert reply_of(bot, first)["content"]["execution_count"] == 1
    assert text_of(iopub_until(bot, is_idle_of(first)), first) == "(['', 'In, Out, _i'], {}, '')"
    with pytest.raises(TooLate):
        iopub_until(bot, lambda m: True, limit_seconds=0.3)
    request(bot, "execute_request", execute_request("1"))
    assert wait_for_entry(made, "ended", actor="bot")["data"]["outcome"] == "ok"
