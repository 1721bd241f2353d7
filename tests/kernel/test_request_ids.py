"""Asked twice, done once: request ids on the kernel protocol and the command line."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Sessions,
    execute_request,
    finish_cli,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    request,
    run_cli,
    start_cli,
    text_of,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

COUNT = "ran = globals().get('ran', 0) + 1; print('run', ran); ran"


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def ask(client: BlockingKernelClient, request_id: str, code: str) -> str:
    return request(
        client, "execute_request", execute_request(code), metadata={"cmdop": {"request_id": request_id}}
    )


def result_of(client: BlockingKernelClient, msg_id: str) -> tuple[dict[str, Any], str]:
    """Reply content and text of one request."""
    reply = reply_of(client, msg_id)
    seen = iopub_until(client, is_idle_of(msg_id))
    assert reply["parent_header"]["msg_id"] == msg_id
    return reply["content"], text_of(seen, msg_id)


def test_the_same_request_id_twice_on_the_kernel_protocol(shared: Session, clients: Clients) -> None:
    """An agent that does not know whether its cell arrived sends it again under the same request id: it is
    executed once, and the second time gets the first reply and outputs. Also after it has reconnected. Other
    content is refused.
    """
    bot, other = clients(shared, "bot"), clients(shared, "other")
    first = result_of(bot, ask(bot, "step-1", COUNT))
    second = result_of(bot, ask(bot, "step-1", COUNT))
    assert first[1] == "run 1\n1"
    assert second == first
    conflict, _ = result_of(bot, ask(bot, "step-1", COUNT + "  # other"))
    assert conflict["ename"] == "cmdop.request_id_conflict"
    # A request id is an actor's own.
    assert result_of(other, ask(other, "step-1", COUNT))[1] == "run 2\n2"

    bot.stop_channels()
    other.stop_channels()
    wait_for_status(shared, lambda s: not s.presence)
    returned = clients.again(bot)
    assert result_of(returned, ask(returned, "step-1", COUNT)) == first
    assert shared.run("ran").text == "2\n"
    duplicates = journal(shared, "duplicate", actor="bot")
    assert [e["request_id"] for e in duplicates] == ["step-1", "step-1"]
    assert len({e["operation"] for e in duplicates}) == 1
    assert [e["data"]["code"] for e in journal(shared, "refused", actor="bot")] == ["request_id_conflict"]


def test_a_repeated_request_waits_for_the_first(shared: Session, clients: Clients, gate: Gate) -> None:
    """Asked again while it still runs, both get the one result when it is there."""
    bot = clients(shared, "bot")
    first = ask(bot, "slow", f"{gate.code}; 'done'")
    wait_for_running(shared, "bot")
    second = ask(bot, "slow", f"{gate.code}; 'done'")
    wait_for_entry(shared, "duplicate", request_id="slow")
    gate.open()
    answers = [reply_of(bot, m)["content"] for m in (first, second)]
    assert answers[0] == answers[1]
    assert answers[0]["status"] == "ok"


def test_the_same_request_id_twice_on_the_command_line(shared: Session) -> None:
    """`run --request-id` from a script that was restarted: the first result again, marked as a duplicate."""
    code = "cli = globals().get('cli', 0) + 1; print('once'); cli"
    first = run_cli("run", shared.name, code, "--request-id", "deploy").data
    second = run_cli("run", shared.name, code, "--request-id", "deploy").data
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    for key in ("status", "operation", "request_id", "execution_count", "outputs", "text", "generation"):
        assert second[key] == first[key], key
    assert first["text"] == "once\n1\n"
    conflict = run_cli("run", shared.name, "other", "--request-id", "deploy", code=3).data
    assert (conflict["status"], conflict["refusal"]["code"]) == ("refused", "request_id_conflict")
    waited = run_cli("wait", shared.name, "--request-id", "deploy").data
    assert (waited["operation"], waited["status"], waited["text"]) == (first["operation"], "ok", "once\n1\n")
    assert shared.run("cli").text == "1\n"


def test_many_at_once_with_one_request_id(shared: Session) -> None:
    """Ten scripts start at the same moment with the same request id: one runs, all have its result."""
    code = "many = globals().get('many', 0) + 1; many"
    started = [start_cli("run", shared.name, code, "--request-id", "cron") for _ in range(10)]
    results = [finish_cli(process).data for process in started]
    assert {r["text"] for r in results} == {"1\n"}
    assert len({r["operation"] for r in results}) == 1
    assert sum(not r["duplicate"] for r in results) == 1
    assert shared.run("many").text == "1\n"


def test_a_failed_request_is_not_run_again_either(shared: Session, clients: Clients) -> None:
    """The first result is the result, also when it is an error: whoever wants another try takes another request id."""
    first = run_cli("run", shared.name, "1 / 0", "--request-id", "fails", code=1).data
    second = run_cli("run", shared.name, "1 / 0", "--request-id", "fails", code=1).data
    assert (first["ename"], second["ename"]) == ("ZeroDivisionError",) * 2
    assert (second["duplicate"], second["operation"]) == (True, first["operation"])
    bot = clients(shared, "bot")
    content, _ = result_of(bot, ask(bot, "fails", "1 / 0"))
    again, _ = result_of(bot, ask(bot, "fails", "1 / 0"))
    assert again == content
    assert content["ename"] == "ZeroDivisionError"


def test_the_same_message_twice_is_one_operation(shared: Session, clients: Clients) -> None:
    """Without a request id the message itself is one: a client library that sends its message again, byte for
    byte, gets the first result.
    """
    bot = clients(shared, "bot")
    message = bot.session.msg(
        "execute_request", execute_request("resent = globals().get('resent', 0) + 1; resent")
    )
    frames = bot.session.serialize(message)
    socket = bot.shell_channel.socket
    for _ in range(2):
        socket.send_multipart(frames)
    msg_id = message["header"]["msg_id"]
    replies = [reply_of(bot, msg_id)["content"] for _ in range(2)]
    assert replies[0] == replies[1]
    assert shared.run("resent").text == "1\n"
    duplicate = wait_for_entry(shared, "duplicate", actor="bot", where=lambda e: "request_id" not in e)
    assert duplicate["operation"]


def test_request_ids_survive_a_restart_of_the_kernel(session: Sessions) -> None:
    """A new incarnation forgets variables, not what has been done."""
    made = session()
    first = run_cli("run", made.name, "'once'", "--request-id", "r").data
    made.restart()
    second = run_cli("run", made.name, "'once'", "--request-id", "r").data
    assert second["duplicate"]
    assert (second["operation"], second["text"]) == (first["operation"], "'once'\n")


@pytest.mark.parametrize("request_id", ["", "x" * 257, 7, ["list"]])
def test_a_request_id_that_is_none_is_refused_readably(
    shared: Session, clients: Clients, request_id: object
) -> None:
    """A wrong type or length is a refusal with a sentence, not a silent second execution."""
    bot = clients(shared, "bot")
    msg_id = request(
        bot, "execute_request", execute_request("1"), metadata={"cmdop": {"request_id": request_id}}
    )
    content = reply_of(bot, msg_id)["content"]
    assert content["status"] == "error"
    assert content["evalue"]
    iopub_until(bot, is_idle_of(msg_id))
