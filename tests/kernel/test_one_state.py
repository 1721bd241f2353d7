"""One kernel, one order, an author on everything: a person in a console, an agent and a script in one session."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Closing,
    Sessions,
    execute_request,
    finish_cli,
    flush,
    iopub_until,
    is_idle_of,
    journal,
    open_console,
    reply_of,
    request,
    run_cli,
    start_cli,
    text_of,
    wait_for_status,
)


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def inputs(messages: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """(author, code, execution count) of each execute_input, as a client saw them."""
    return [
        (m["metadata"]["cmdop"]["actor"]["id"], m["content"]["code"], m["content"]["execution_count"])
        for m in messages
        if m["msg_type"] == "execute_input"
    ]


def test_person_agent_and_script_share_one_state(
    session: Sessions, clients: Clients, closing: Closing
) -> None:
    """Alice types in the stock console, an agent uses a stock client, a script uses `run`: they work on the
    same variable under the same counter, everybody sees the same inputs in the same order, and the journal
    names all of them when they have gone and when the session is closed.
    """
    made = session()
    bot, watcher = clients(made, "bot"), clients(made, "watcher")
    alice = closing(open_console(made.invite("alice", kind="human").connection_file))

    alice.run("count = 1")
    alice.expect(r"In \[2\]: ")
    assert reply_of(bot, bot.execute("count += 10"))["content"]["execution_count"] == 2
    script = run_cli("run", made.name, "count += 100; count").data
    assert (script["status"], script["execution_count"], script["text"].strip()) == ("ok", 3, "111")
    # The console shows the next number that it knows of: its own cell's reply carries the session's counter.
    alice.type("print('count is', count)")
    alice.expect(r"count is 111")
    alice.expect(r"In \[5\]: ")

    background = [start_cli("run", made.name, f"script = {n}") for n in range(3)]
    sent = [bot.execute(f"agent = {n}") for n in range(10)]
    alice.type("person = 1")
    alice.expect(r"In \[\d+\]: ")
    counts = [reply_of(bot, msg_id)["content"]["execution_count"] for msg_id in sent]
    assert counts == sorted(counts)
    assert [finish_cli(process).data["status"] for process in background] == ["ok"] * 3
    wait_for_status(made, lambda s: not s.running and not s.queue)

    seen_by_bot, seen_by_watcher = inputs(flush(bot)), inputs(flush(watcher))
    assert seen_by_bot == seen_by_watcher
    assert [count for _, _, count in seen_by_bot] == list(range(1, 19))
    assert {author for author, _, _ in seen_by_bot} == {"alice", "bot", made.actor}
    started = [(e["actor"], e["data"]["execution_count"]) for e in journal(made, "started")]
    assert started == [(author, count) for author, _, count in seen_by_bot]

    alice.type("exit")
    assert alice.ended() == 0
    clients.close()
    wait_for_status(made, lambda s: not s.presence)
    assert said(run_cli("log", made.name).lines) == seen_by_bot
    made.close()
    assert said(run_cli("log", f"{made.name}@{made.id[:8]}").lines) == seen_by_bot
    assert run_cli("verify", made.name).data["ok"]


def said(lines: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """(author, code, execution count) in the order of execution, from the journal alone."""
    codes = {e["operation"]: e["data"]["code"] for e in lines if e["type"] == "admitted"}
    return [
        (e["actor"], codes[e["operation"]], e["data"]["execution_count"])
        for e in lines
        if e["type"] == "started"
    ]


def test_everything_carries_its_author(shared: Session, clients: Clients) -> None:
    """Whoever looks at a message on any channel can say which operation caused it and whose that is."""
    bot, other = clients(shared, "bot"), clients(shared, "other")
    flush(other)
    code = (
        "import sys\n"
        "from IPython.display import clear_output, display\n"
        "print('out'); print('err', file=sys.stderr); display('shown'); clear_output(); 1 + 1"
    )
    msg_id = bot.execute(code)
    reply = reply_of(bot, msg_id)
    seen = iopub_until(other, is_idle_of(msg_id))
    failing = other.execute("1 / 0")
    failure = reply_of(other, failing)
    seen_failing = iopub_until(bot, is_idle_of(failing))

    assert {m["msg_type"] for m in seen} >= {
        "status",
        "execute_input",
        "stream",
        "display_data",
        "clear_output",
        "execute_result",
    }
    operation = reply["metadata"]["cmdop"]["operation"]
    assert operation
    for message in [reply, *(m for m in seen if m["parent_header"].get("msg_id") == msg_id)]:
        stamp = message["metadata"]["cmdop"]
        assert stamp["actor"] == {"id": "bot", "kind": "agent", "name": "bot"}
        assert stamp["operation"] == operation
        assert (stamp["v"], stamp["session"], stamp["incarnation"]) == (1, shared.id, 1)
        assert isinstance(stamp["seq"], int)
        assert isinstance(stamp["generation"], int)
        by = message["msg_type"] in ("status", "execute_input", "execute_result", "execute_reply")
        assert stamp["relation"] == ("by" if by else "during")
    for message in [failure, *(m for m in seen_failing if m["parent_header"].get("msg_id") == failing)]:
        assert message["metadata"]["cmdop"]["actor"]["id"] == "other"
    sequence = [m["metadata"]["cmdop"]["seq"] for m in seen]
    assert sequence == sorted(sequence)

    for msg_type, channel in (
        ("kernel_info_request", "shell"),
        ("kernel_info_request", "control"),
        ("comm_info_request", "shell"),
    ):
        asked = request(bot, msg_type, {}, channel=channel)
        get = bot.get_control_msg if channel == "control" else bot.get_shell_msg
        stamp = get(timeout=10)["metadata"]["cmdop"]
        assert (stamp["actor"]["id"], stamp["operation"]) == ("bot", None)
        for message in iopub_until(bot, is_idle_of(asked)):
            assert message["metadata"]["cmdop"]["actor"]["id"] in ("bot", "other")


def test_a_client_cannot_say_who_it_is(shared: Session, clients: Clients) -> None:
    """The key that signed a message is its author: a name in the header, keys of ours in the header and a stamp of its
    own in the metadata are overwritten wherever they would be seen, the kernel included.
    """
    mallory, witness = clients(shared, "mallory-by-key"), clients(shared, "witness")
    flush(witness)
    msg_id = request(
        mallory,
        "execute_request",
        execute_request("get_ipython().get_parent()"),
        header={
            "username": "mallory",
            "cmdop_actor": "alice",
            "cmdop_operation": "o1",
            "cmdop_generation": 999,
            "cmdop_\u006eote": "mine",
        },
        metadata={
            "cmdop": {"v": 1, "actor": {"id": "alice", "kind": "human", "name": "Alice"}, "operation": "o1"},
            "kept": True,
        },
    )
    reply = reply_of(mallory, msg_id)
    seen = iopub_until(witness, is_idle_of(msg_id))
    operation = reply["metadata"]["cmdop"]["operation"]
    for message in [reply, *seen]:
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        parent = message["parent_header"]
        assert parent["username"] == "mallory-by-key"
        ours = {key: value for key, value in parent.items() if key.startswith("cmdop_")}
        assert ours == {
            "cmdop_actor": "mallory-by-key",
            "cmdop_operation": operation,
            "cmdop_generation": str(reply["metadata"]["cmdop"]["generation"]),
        }
        assert message["metadata"]["cmdop"]["actor"]["id"] == "mallory-by-key"
        assert message["metadata"]["cmdop"]["operation"] == operation
    in_the_kernel = text_of(seen, msg_id)
    assert "'cmdop_actor': 'mallory-by-key'" in in_the_kernel
    assert "'kept': True" in in_the_kernel
    assert "alice" not in in_the_kernel
    assert "cmdop_note" not in in_the_kernel
    entry = journal(shared, "admitted", operation=operation)[0]
    assert entry["actor"] == "mallory-by-key"


def test_output_of_a_thread_is_credited_to_nobody(shared: Session, clients: Clients) -> None:
    """A thread that Alice started prints under whatever cell runs: such output is *during* it, never *by* its
    author.
    """
    alice, bot = clients(shared, "alice"), clients(shared, "bot")
    started = alice.execute(
        "import threading\n"
        "go = threading.Event()\n"
        "def later():\n    go.wait(20); print('from the thread of alice', flush=True)\n"
        "thread = threading.Thread(target=later); thread.start()"
    )
    reply_of(alice, started)
    flush(bot)
    msg_id = bot.execute("go.set(); thread.join()")
    reply_of(bot, msg_id)
    streams = [m for m in iopub_until(bot, is_idle_of(msg_id)) if m["msg_type"] == "stream"]
    assert "".join(m["content"]["text"] for m in streams) == "from the thread of alice\n"
    assert {m["metadata"]["cmdop"]["relation"] for m in streams} == {"during"}
