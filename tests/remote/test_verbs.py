"""Every verb by URL does what it does on the machine itself, and prints the same shapes."""

from __future__ import annotations

import pytest

from jupyter_cmdop.client.session import Session
from tests.remote.far import Far
from tests.support import (
    Gate,
    Sessions,
    finish_cli,
    run_cli,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)


@pytest.fixture(scope="module")
def lone(module_session: Sessions) -> Session:
    return module_session("far-away")


def test_run_read_and_log_are_those_of_the_machine_itself(far: Far, lone: Session) -> None:
    result = far("run", lone.name, "print('from afar')\n6 * 7").data
    assert (result["status"], result["text"]) == ("ok", "from afar\n42\n")
    here = lone.wait(result["operation"], wait_seconds=0)
    assert (here.operation, here.status) == (result["operation"], "ok")
    assert far("read", lone.name).data == run_cli("read", lone.name).data
    assert far("log", lone.name).lines == run_cli("log", lone.name).lines
    assert far("verify", lone.name).data["ok"]
    [entry] = [
        e for e in far("log", lone.name, "--type", "admitted").lines if e["operation"] == result["operation"]
    ]
    assert entry["actor"] == lone.actor
    there, here_status = far("status", lone.name).data, run_cli("status", lone.name).data
    assert set(there) == set(here_status)


def test_the_id_and_a_prefix_of_it_are_names_too(far: Far, lone: Session) -> None:
    assert far("status", lone.id).data["name"] == lone.name
    assert far("status", f"{lone.name}@{lone.id[:8]}").data["id"] == lone.id
    assert far("status", lone.name.upper()).data["id"] == lone.id


def test_an_error_of_the_code_is_exit_code_1(far: Far, lone: Session) -> None:
    assert far("run", lone.name, "1/0", code=1).data["ename"] == "ZeroDivisionError"


def test_take_and_hand_back(far: Far, lone: Session) -> None:
    floor = far("take", lone.name, "--reason", "from afar").data
    assert floor["driver"] == lone.actor
    assert far("hand-back", lone.name).data["generation"] > floor["generation"]
    assert far("policy", lone.name, "turns").data["policy"] == "turns"
    far("policy", lone.name, "open")
    wait_for_entry(lone, "taken")


def test_the_owner_names_an_agent_as_he_does_here(far: Far, lone: Session) -> None:
    operation = far("run", lone.name, "1", "--as", "helper").data["operation"]
    [entry] = [e for e in lone.log(types=["admitted"]) if e["operation"] == operation]
    assert (entry["actor"], entry["on_behalf_of"]) == ("helper", lone.actor)
    assert far("close", lone.name, "--as", "helper", code=3).data["refusal"]["code"] == "forbidden"


def test_interrupt(far: Far, lone: Session) -> None:
    running = far.start(
        "run", lone.name, "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)"
    )
    operation = wait_for_running(lone)
    wait_for_entry(lone, "output", operation=operation)
    assert far("interrupt", lone.name).data["interrupted"] == operation
    assert finish_cli(running).data["status"] == "interrupted"


def test_answer(far: Far, lone: Session) -> None:
    running = far.start("run", lone.name, "print(input('name? '))", json_output=False)
    wait_for_status(lone, lambda s: s.pending_input is not None)
    far("answer", lone.name, "bob")
    result = finish_cli(running)
    assert (result.code, result.out) == (0, "bob\n")
    assert "jupyter cmdop answer" in result.err


def test_a_long_output_and_long_code(far: Far, lone: Session) -> None:
    """More than any buffer, queue or frame between the two takes at once, in both directions."""
    result = far(
        "run", lone.name, "for n in range(300): print('y' * 100_000, end='', flush=True)", json_output=False
    )
    assert result.out == "y" * 30_000_000
    text = "z" * 12_000_000
    sent = far("run", lone.name, "-", input=f"print(len('{text}'))", json_output=False)
    assert sent.out == "12000000\n"


def test_rename_restart_and_close(far: Far, session: Sessions, lone: Session) -> None:
    made = session("first-name")
    assert far("rename", "first-name", lone.name, code=3).data["refusal"]["code"] == "name_taken"
    assert far("rename", "first-name", "no/name", code=2).code == 2
    assert far("rename", "first-name", "second-name").data == {"name": "second-name"}
    assert far("restart", "second-name").data["incarnation"] == 2
    assert far("close", "second-name").data["closed"]
    assert far("status", "second-name").data["state"] == "closed"
    assert made.id in {item["id"] for item in run_cli("ls", "--all").data}


def test_no_such_session(far: Far, lone: Session) -> None:
    result = far("run", "nobody", "1", code=4)
    assert result.data["error"]["code"] == "unknown_session"


def test_wait_and_no_wait(far: Far, lone: Session, gate: Gate) -> None:
    code = far("run", lone.name, gate.code, "--no-wait", "--request-id", "far-1", code=6).data
    assert (
        far("wait", lone.name, "--request-id", "far-1", "--wait", "0", code=6).data["operation"]
        == code["operation"]
    )
    gate.open()
    assert far("wait", lone.name, "--request-id", "far-1").data["status"] == "ok"
    again = far("run", lone.name, gate.code, "--request-id", "far-1").data
    assert (again["operation"], again["duplicate"]) == (code["operation"], True)


def test_a_session_that_is_made_and_listed_by_url(far: Far, lone: Session) -> None:
    assert lone.name in {item["name"] for item in far("ls").data}
    made = far("new", "made-afar").data
    assert (made["name"], made["created"]) == ("made-afar", True)
    assert far("new", "made-afar", code=3).data["refusal"]["code"] == "name_taken"
    assert far("new", "made-afar", "--if-exists", "attach").data["created"] is False
    assert far("run", "made-afar", "2 + 2").data["text"] == "4\n"
    far("close", "made-afar")


def test_what_is_left_of_a_session_that_has_ended(far: Far, session: Sessions) -> None:
    made = session("ended-by-now")
    made.run("print('last words' * 100_000, end='')")
    far("close", made.name)
    for verb in ("read", "log", "verify", "status"):
        assert far(verb, made.name).data if verb != "log" else far(verb, made.name).lines
        assert far(verb, made.name).out == run_cli(verb, made.name).out
    assert far("read", made.name, "--follow", json_output=False).out == "last words" * 100_000
    assert (
        far("log", made.name, "--type", "admitted").lines
        == run_cli("log", made.name, "--type", "admitted").lines
    )
    assert far("run", made.name, "1", code=4).data["error"]["code"] == "unknown_session"
