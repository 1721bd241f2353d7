"""`run`, `wait`, `interrupt`, `answer`: output as it comes, Ctrl-C once and twice, prompts, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import resources
from typing import Any

import jsonschema
import pytest

from tests.cli.terminal import exit_code, on_terminal
from tests.client.fake_keeper import LIMIT_SECONDS, Call, FakeKeeper


def valid(data: Any, name: str) -> Any:
    schema = json.loads(resources.files("jupyter_cmdop").joinpath("schemas", f"{name}.json").read_text())
    jsonschema.validate(data, schema)
    return data


def accept(call: Call, operation: str = "o1", *, duplicate: bool = False) -> None:
    call.item(accepted={"operation": operation, "duplicate": duplicate})


def show(call: Call, text: str, name: str = "stdout") -> None:
    call.item(output={"output_type": "stream", "name": name, "text": text}, seq=1)


def ok(call: Call) -> None:
    accept(call)
    show(call, "hello\n")
    call.item(output={"output_type": "execute_result", "data": {"text/plain": "42"}}, seq=2)
    call.result(status="ok", operation="o1", outputs=[{"output_type": "stream", "text": "hello\n"}])


# --- what is sent


def test_run_sends_what_was_said(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("run", ok)
    cli(
        *("run", "analysis", "x = 1", "--request-id", "r1", "--wait", "2m", "--generation", "3"),
        *("--if-busy", "refuse"),
    )
    args = keeper.args_of("run")
    assert args["code"] == "x = 1"
    assert (args["request_id"], args["generation"], args["if_busy"]) == ("r1", 3, "refuse")
    assert (args["wait_seconds"], args["stream"]) == (120.0, True)
    cli("run", "analysis", "x", "--no-wait")
    assert keeper.args_of("run")["wait_seconds"] == 0
    cli("run", "analysis", "x")
    assert keeper.args_of("run")["wait_seconds"] is None


def test_code_from_standard_input(keeper: FakeKeeper) -> None:
    keeper.on("run", ok)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_cmdop.cli", "run", "analysis", "-"],
        input="x = 'é'\nx\n".encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == b"hello\n42\n"
    assert keeper.args_of("run")["code"] == "x = 'é'\nx\n"


def test_bytes_that_are_no_text_are_a_mistake(keeper: FakeKeeper) -> None:
    keeper.on("run", ok)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_cmdop.cli", "run", "analysis", "-"],
        input=b"\xff\xfe",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1
    assert keeper.calls.empty()


# --- what is shown


def test_output_comes_as_it_is_made(keeper: FakeKeeper) -> None:
    held: list[Call] = []
    keeper.on("run", lambda call: (held.append(call), accept(call), show(call, "first\n")))
    child = subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", "run", "analysis", "x"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "first\n"
    show(held[0], "second\n")
    held[0].result(status="ok", operation="o1")
    assert child.communicate(timeout=60)[0] == "second\n"
    assert child.returncode == 0


def test_run_shows_output_and_nothing_else(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("run", ok)
    done = cli("run", "analysis", "x")
    assert (done.code, done.out, done.err) == (0, "hello\n42\n", "")


def test_run_json(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("run", ok)
    result = valid(cli("run", "analysis", "x", "--json").json, "run")
    assert (result["status"], result["operation"]) == ("ok", "o1")
    assert result["outputs"][0]["text"] == "hello\n"


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        ({"status": "error", "ename": "E", "evalue": "v"}, 1, "E: v\n"),
        ({"status": "interrupted"}, 1, "o1 was interrupted\n"),
        (
            {"status": "superseded", "by": "b\x1b", "reason": "r\x1b"},
            1,
            "o1 was superseded by b\\x1b: r\\x1b\n",
        ),
        ({"status": "withdrawn"}, 1, "o1 was withdrawn\n"),
        ({"status": "aborted", "reason": "an error before it"}, 1, "o1 was aborted: an error before it\n"),
        (
            {"status": "unknown"},
            5,
            "what became of o1 is not known; next: jupyter cmdop log analysis --operation o1\n",
        ),
        ({"status": "queued"}, 6, "o1 waits for its turn; next: jupyter cmdop wait analysis o1\n"),
        ({"status": "running"}, 6, "o1 is running; next: jupyter cmdop wait analysis o1\n"),
        ({"status": "awaiting_input"}, 6, "o1 waits for input; next: jupyter cmdop answer analysis\n"),
        (
            {"status": "awaiting_approval"},
            6,
            "o1 is awaiting approval; next: jupyter cmdop wait analysis o1\n",
        ),
    ],
    ids=lambda value: value["status"] if isinstance(value, dict) else None,
)
def test_every_status_is_said(
    cli: Any, keeper: FakeKeeper, result: dict[str, Any], code: int, said: str
) -> None:
    for verb in ("run", "wait"):
        keeper.result(verb, operation="o1", **result)
        argv = [verb, "analysis", "x"]
        done = cli(*argv)
        assert (done.code, done.out, done.err) == (code, "", said)
        as_json = cli(*argv, "--json")
        assert as_json.code == code
        assert as_json.err == ""
        assert valid(as_json.json, "run")["status"] == result["status"]


def test_traceback_is_shown_once_and_without_colours(cli: Any, keeper: FakeKeeper) -> None:
    def fail(call: Call) -> None:
        accept(call)
        traceback = ["\x1b[0;31mZeroDivisionError\x1b[0m: division by zero"]
        error = {"ename": "ZeroDivisionError", "evalue": "division by zero", "traceback": traceback}
        call.item(output={"output_type": "error", **error})
        call.result(status="error", operation="o1", **error)

    keeper.on("run", fail)
    done = cli("run", "analysis", "1/0")
    assert (done.code, done.out) == (1, "")
    assert done.err == "ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize("as_result", [True, False], ids=["in the result", "as a refusal"])
def test_refused_run(cli: Any, keeper: FakeKeeper, as_result: bool) -> None:
    refusal = {
        "code": "not_driver",
        "message": "bob drives",
        "driver": "bob",
        "generation": 4,
        "next": ["take"],
    }
    if as_result:
        keeper.result("run", status="refused", refusal=refusal)
    else:
        keeper.on("run", lambda call: call.refuse(**refusal))
    done = cli("run", "analysis", "x")
    assert (done.code, done.out) == (3, "")
    assert done.err == "error: bob drives; next: jupyter cmdop take analysis\n"
    done = cli("run", "analysis", "x", "--json")
    assert done.code == 3
    result = valid(done.json, "run")
    assert result["status"] == "refused"
    assert result["refusal"]["driver"] == "bob"


def test_duplicate_shows_the_first_result(cli: Any, keeper: FakeKeeper) -> None:
    def again(call: Call) -> None:
        accept(call, duplicate=True)
        outputs = [{"output_type": "stream", "name": "stdout", "text": "from then\n"}]
        call.result(status="ok", operation="o1", duplicate=True, outputs=outputs)

    keeper.on("run", again)
    done = cli("run", "analysis", "x", "--request-id", "r1")
    assert done.out == "from then\n"
    assert done.err == "note: this request ran before; this is what became of it\n"


def test_what_was_left_out_is_said(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("run", status="ok", operation="o1", truncated={"bytes": 5000, "read_after": "1:7"})
    assert cli("run", "analysis", "x").err == (
        "note: 5000 bytes of output were left out; next: jupyter cmdop read analysis --after 1:7\n"
    )


def test_keeper_that_ends_meanwhile_leaves_the_outcome_unknown(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("run", lambda call: (accept(call), show(call, "half"), keeper.drop_links()))
    done = cli("run", "analysis", "x")
    assert (done.code, done.out) == (5, "half")
    assert "what became of o1 is not known" in done.err
    done = cli("run", "analysis", "x", "--json")
    assert done.code == 5
    assert (done.json["status"], done.json["operation"]) == ("unknown", "o1")


def test_idle(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("wait", status="idle")
    done = cli("wait", "analysis")
    assert (done.code, done.err) == (0, "analysis is idle\n")
    assert keeper.args_of("wait") == {"operation": None, "request_id": None, "wait_seconds": None}
    cli("wait", "analysis", "o1", "--wait", "1.5")
    assert keeper.args_of("wait") == {"operation": "o1", "request_id": None, "wait_seconds": 1.5}
    cli("wait", "analysis", "--request-id", "r1")
    assert keeper.args_of("wait")["request_id"] == "r1"


def test_wait_shows_the_outputs(cli: Any, keeper: FakeKeeper) -> None:
    outputs = [{"output_type": "stream", "name": "stdout", "text": "done\n"}]
    keeper.result("wait", status="ok", operation="o1", outputs=outputs)
    assert cli("wait", "analysis", "o1").out == "done\n"


# --- Ctrl-C


def start(*argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_first_ctrl_c_interrupts_the_own_operation(keeper: FakeKeeper, form: tuple[str, ...]) -> None:
    held: list[Call] = []
    keeper.on("run", lambda call: (held.append(call), accept(call, "o7")))

    def interrupt(call: Call) -> None:
        call.result(interrupted="o7", withdrawn=[])
        held[0].result(status="interrupted", operation="o7")

    keeper.on("interrupt", interrupt)
    child = start("run", "analysis", "x", *form)
    keeper.args_of("run")
    child.send_signal(signal.SIGINT)
    assert keeper.args_of("interrupt") == {"operation": "o7"}
    out, err = child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 1
    assert err.startswith("interrupting o7; Ctrl-C again leaves it running\n")
    if form:
        assert json.loads(out)["status"] == "interrupted"
    else:
        assert err.endswith("o7 was interrupted\n")


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_second_ctrl_c_leaves_it_running_and_says_how_to_wait(
    keeper: FakeKeeper, form: tuple[str, ...]
) -> None:
    keeper.on("run", lambda call: accept(call, "o7"))
    keeper.on("interrupt", lambda call: call.result(interrupted="o7"))
    keeper.result("wait", status="running", operation="o7")
    child = start("run", "analysis", "x", *form)
    keeper.args_of("run")
    child.send_signal(signal.SIGINT)
    keeper.args_of("interrupt")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 6
    assert keeper.args_of("wait") == {"operation": "o7", "request_id": None, "wait_seconds": 0.0}
    if form:
        assert json.loads(out)["status"] == "running"
    else:
        assert err.splitlines()[-1] == "o7 is running; next: jupyter cmdop wait analysis o7"


def test_ctrl_c_before_it_is_accepted_is_kept_until_then(keeper: FakeKeeper) -> None:
    held: list[Call] = []
    keeper.on("run", held.append)
    keeper.on("interrupt", lambda call: (call.result(interrupted="o7"), held[0].result(status="interrupted")))
    child = start("run", "analysis", "x")
    keeper.args_of("run")
    child.send_signal(signal.SIGINT)
    keeper.on("ping", lambda call: None)
    accept(held[0], "o7")
    assert keeper.args_of("interrupt") == {"operation": "o7"}
    child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 1


def test_interrupt_that_is_refused_is_said_and_the_output_goes_on(keeper: FakeKeeper) -> None:
    held: list[Call] = []
    keeper.on("run", lambda call: (held.append(call), accept(call)))

    def refuse(call: Call) -> None:
        call.refuse("unsupported", "a subshell cannot be interrupted")
        show(held[0], "all the same\n")
        held[0].result(status="ok", operation="o1")

    keeper.on("interrupt", refuse)
    child = start("run", "analysis", "x")
    keeper.args_of("run")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT_SECONDS)
    assert (child.returncode, out) == (0, "all the same\n")
    assert "error: a subshell cannot be interrupted" in err


# --- prompts


def ask(call: Call, prompt: str, *, password: bool = False, prompt_id: str = "p1") -> None:
    call.item(
        input_request={"prompt": prompt, "password": password, "prompt_id": prompt_id, "operation": "o1"}
    )


def test_prompt_without_a_terminal_says_how_to_answer(cli: Any, keeper: FakeKeeper) -> None:
    def answer(call: Call) -> None:
        accept(call)
        ask(call, "Name\x1b[2J? ")
        ask(call, "secret", password=True)
        call.result(status="ok", operation="o1")

    keeper.on("run", answer)
    assert cli("run", "analysis", "input()").err == (
        "waiting for 'Name\\x1b[2J? '; next: jupyter cmdop answer analysis\n"
        "waiting for a password; next: jupyter cmdop answer analysis\n"
    )


def asking(keeper: FakeKeeper, *, password: bool = False) -> list[Call]:
    """A run that asks, shows what it was told, and ends."""
    held: list[Call] = []
    keeper.on("run", lambda call: (held.append(call), accept(call), ask(call, "Name? ", password=password)))

    def answered(call: Call) -> None:
        call.result(operation="o1", prompt_id=call.args["prompt_id"])
        show(held[0], f"<{call.args['text']!r}>\n")
        held[0].result(status="ok", operation="o1")

    keeper.on("answer", answered)
    return held


def test_prompt_on_a_terminal_is_answered_there(keeper: FakeKeeper) -> None:
    asking(keeper)
    with on_terminal("run", "analysis", "input()") as child:
        child.expect_exact("Name? ")
        child.sendline("Bób")
        child.expect_exact("<'Bób'>")
        assert exit_code(child) == 0
    assert keeper.args_of("answer") == {"text": "Bób", "prompt_id": "p1"}


def test_password_is_not_echoed(keeper: FakeKeeper) -> None:
    asking(keeper, password=True)
    with on_terminal("run", "analysis", "getpass()") as child:
        child.expect_exact("Name? ")
        assert child.waitnoecho(20)
        child.sendline("hunter2")
        child.expect_exact("\r\n")
        assert "hunter2" not in child.before
        assert exit_code(child) == 0
        assert child.before.count("hunter2") == 1, "only what the cell itself shows"
    assert keeper.args_of("answer")["text"] == "hunter2"


def test_end_of_file_at_a_prompt(keeper: FakeKeeper) -> None:
    asking(keeper)
    with on_terminal("run", "analysis", "input()") as child:
        child.expect_exact("Name? ")
        child.sendeof()
        assert exit_code(child) == 0
    assert keeper.args_of("answer")["text"] == "\x04"


def test_ctrl_c_at_a_prompt_interrupts_and_echo_comes_back(keeper: FakeKeeper) -> None:
    held = asking(keeper, password=True)
    keeper.on("interrupt", lambda call: (call.result(interrupted="o1"), held[0].result(status="interrupted")))
    with on_terminal("run", "analysis", "getpass()") as child:
        child.expect_exact("Name? ")
        assert child.waitnoecho(20)
        child.sendintr()
        child.expect_exact("interrupting o1")
        assert child.getecho()
        assert exit_code(child) == 1
    assert keeper.args_of("interrupt") == {"operation": "o1"}


def test_prompt_that_somebody_else_answers(keeper: FakeKeeper) -> None:
    """Output comes while we wait for a line, and the end is not held up by it."""
    held = asking(keeper)
    with on_terminal("run", "analysis", "input()") as child:
        child.expect_exact("Name? ")
        show(held[0], "bob answered\n")
        held[0].result(status="ok", operation="o1")
        child.expect_exact("bob answered")
        assert exit_code(child) == 0


# --- interrupt and answer


def test_interrupt(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("interrupt", interrupted="o1", withdrawn=["o2"])
    assert valid(cli("interrupt", "analysis", "--json").json, "interrupt")["interrupted"] == "o1"
    assert keeper.args_of("interrupt") == {"operation": None}
    assert cli("interrupt", "analysis", "o1").out == "o1 is being interrupted\no2 is withdrawn\n"
    assert keeper.args_of("interrupt") == {"operation": "o1"}
    keeper.result("interrupt", interrupted=None, withdrawn=[])
    done = cli("interrupt", "analysis")
    assert (done.code, done.out) == (0, "nothing was running or waiting\n")


def pending(keeper: FakeKeeper, *, password: bool = False) -> None:
    keeper.status["pending_input"] = {
        "prompt": "Name? ",
        "password": password,
        "prompt_id": "p9",
        "operation": "o1",
    }
    keeper.result("answer", operation="o1", prompt_id="p9")


def test_answer(cli: Any, keeper: FakeKeeper) -> None:
    pending(keeper)
    done = cli("answer", "analysis", "yes", "--prompt", "p1", "--json")
    assert valid(done.json, "answer") == {"operation": "o1", "prompt_id": "p9"}
    assert keeper.args_of("answer") == {"text": "yes", "prompt_id": "p1"}
    assert cli("answer", "analysis", "yes").out == "o1 has its answer\n"
    assert keeper.args_of("answer") == {"text": "yes", "prompt_id": None}


@pytest.mark.parametrize(("argv", "text"), [((), "a b"), (("-",), "a b\nc")])
def test_answer_from_standard_input(keeper: FakeKeeper, argv: tuple[str, ...], text: str) -> None:
    pending(keeper)
    command = [sys.executable, "-m", "jupyter_cmdop.cli", "answer", "analysis", *argv]
    subprocess.run(command, input="a b\nc\n", text=True, capture_output=True, check=True, timeout=60)
    assert keeper.args_of("answer")["text"] == text


@pytest.mark.parametrize("password", [False, True])
def test_answer_asks_on_a_terminal(keeper: FakeKeeper, password: bool) -> None:
    pending(keeper, password=password)
    with on_terminal("answer", "analysis") as child:
        child.expect_exact("Name? ")
        if password:
            assert child.waitnoecho(20)
        child.sendline("hunter2")
        assert exit_code(child) == 0
        assert ("hunter2" in child.before) is not password
    assert keeper.args_of("answer") == {"text": "hunter2", "prompt_id": "p9"}


def test_nothing_to_answer(cli: Any, keeper: FakeKeeper) -> None:
    done = cli("answer", "analysis")
    assert done.code == 3
    assert "does not wait for input; next: jupyter cmdop status analysis" in done.err
    assert os.environ.get("CMDOP_DEBUG") is None
