"""The command line as a person and a program use it, with real sessions: shapes, exit codes, and what to do next."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from importlib import resources
from typing import Any

import jsonschema
import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, keeper_of, kernel_of, make_spec, null_spec, wait_gone
from tests.support import (
    CliResult,
    Home,
    Sessions,
    finish_cli,
    run_cli,
    start_cli,
    wait_for_running,
    wait_for_status,
)

VERBS = [
    *(
        "new",
        "ls",
        "status",
        "attach",
        "invite",
        "grants",
        "revoke",
        "take",
        "hand-back",
        "release",
        "policy",
        "run",
    ),
    *("read", "wait", "interrupt", "answer", "log", "verify", "rename", "restart", "close", "doctor", "demo"),
    "completion",
]


def _valid(shape: str, result: CliResult) -> Any:
    """The JSON of a result, checked against the schema that the package documents."""
    schema = json.loads(resources.files("jupyter_cmdop").joinpath(f"schemas/{shape}.json").read_text())
    documents = result.lines if shape == "log" else [result.data]
    for document in documents:
        jsonschema.validate(document, schema)
    return documents if shape == "log" else documents[0]


# ---------------------------------------------------------------------- help


def test_the_list_of_verbs_is_whole() -> None:
    shown = call_cli("--help", json_output=False).out
    for verb in VERBS:
        assert re.search(rf"^    {verb}\b", shown, re.MULTILINE), verb
    listed = re.findall(r"^    ([a-z-]+) {2,}\S", shown, re.MULTILINE)
    assert sorted(set(listed) - {"VERB"}) == sorted(VERBS)
    assert "exit codes" in shown


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_says_what_it_does_and_shows_an_example(verb: str) -> None:
    shown = call_cli(verb, "--help", json_output=False).out
    assert f"usage: jupyter cmdop {verb}" in shown
    examples = shown.partition("examples:\n")[2]
    assert f"jupyter cmdop {verb}" in examples
    assert all(len(line) <= 120 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("typed", "meant"), [("statsu", "status"), ("runn", "run"), ("hand_back", "hand-back")]
)
def test_a_verb_with_a_typo_is_answered_with_the_one_that_was_meant(typed: str, meant: str) -> None:
    wrong = call_cli(typed, "x", code=2, json_output=False)
    assert f"did you mean {meant}?" in wrong.err
    assert "next: jupyter cmdop --help" in wrong.err


def test_both_spellings_of_the_program_are_the_same(lone_session: Session) -> None:
    """`jupyter cmdop` is what the documentation says; `jupyter-cmdop` is what that runs."""
    printed = []
    for program in (["jupyter", "cmdop"], ["jupyter-cmdop"]):
        done = subprocess.run(
            [*program, "run", lone_session.name, "1 + 1", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        printed.append(json.loads(done.stdout)["text"])
    assert printed == ["2\n", "2\n"]


# ---------------------------------------------------------------------- a day with everything in it


def test_every_shape_is_as_documented(home: Home) -> None:
    """A session's whole life by the command line, each answer checked against its schema."""
    made = _valid("new", run_cli("new", "day", "--policy", "open"))
    assert made["created"] is True
    try:
        assert _valid("new", call_cli("new", "day", "--if-exists", "attach"))["created"] is False
        listed = next(item for item in _valid("ls", call_cli("ls")) if item["name"] == "day")
        assert (listed["name"], listed["state"], listed["execution_state"]) == ("day", "open", "idle")
        cells = ["1 + 1", "print('x' * 10)", "1/0", "import os; os.write(1, b'raw')"]
        for code in (*cells, "display({'a/b': 1}, raw=True)"):
            _valid("run", call_cli("run", "day", code, code=None))
        _valid("run", call_cli("run", "day", "print('y' * 1_100_000)"))
        _valid("run", call_cli("run", "day", "1", "--no-wait", code=None))
        _valid("run", call_cli("wait", "day"))
        invited = _valid("invite", call_cli("invite", "day", "--as", "bot", "--expires", "1h"))
        assert invited["expires"]
        env = {"CMDOP_GRANT_FILE": invited["connection_file"]}
        assert [g["actor"] for g in _valid("grants", call_cli("grants", "day"))["grants"]] == ["bot"]
        floor = _valid("floor", call_cli("take", "day", "--reason", "mine", env=env))
        assert floor["driver"] == "bot"
        refused = call_cli("run", "day", "1", code=3)
        assert _valid("run", refused)["refusal"]["code"] == "not_driver"
        _valid("failure", call_cli("rename", "day", "other", env=env, code=3))
        status = _valid("status", call_cli("status", "day"))
        assert status["driver"] == "bot"
        _valid("floor", call_cli("hand-back", "day", env=env))
        _valid("floor", call_cli("take", "day"))
        _valid("floor", call_cli("release", "day"))
        _valid("floor", call_cli("policy", "day", "turns"))
        _valid("floor", call_cli("policy", "day", "open"))
        asking = start_cli("run", "day", "input('who? ')")
        with Session.open("day") as link:
            wait_for_status(link, lambda s: s.pending_input)
        assert _valid("status", call_cli("status", "day"))["pending_input"]["prompt"] == "who? "
        _valid("answer", call_cli("answer", "day", "me"))
        assert _valid("run", finish_cli(asking))["text"].strip() == "'me'"
        _valid("interrupt", call_cli("interrupt", "day"))
        _valid("read", call_cli("read", "day"))
        _valid("read", call_cli("read", "day", "--view", "stream"))
        assert len(_valid("log", call_cli("log", "day"))) > 50
        _valid("log", call_cli("log", "day", "--type", "refused", "--actor", "root"))
        _valid("verify", call_cli("verify", "day"))
        _valid("verify", call_cli("verify", "day", "--receipt", "1:ab", code=1))
        _valid("restart", call_cli("restart", "day"))
        _valid("rename", call_cli("rename", "day", "evening"))
        _valid("revoke", call_cli("revoke", "evening", "bot"))
        report = _valid("doctor", call_cli("doctor", code=None))
        assert any("alive" in check["text"] for check in report["checks"])
        _valid("failure", call_cli("status", "nobody", code=4))
    finally:
        closed = _valid("close", run_cli("close", "evening", "--force", code=None))
    assert closed["closed"] is True
    assert made["id"] not in [item["id"] for item in call_cli("ls").data]
    past = next(item for item in _valid("ls", call_cli("ls", "--all")) if item["id"] == made["id"])
    assert past["state"] == "closed"
    _valid("status", call_cli("status", "evening"))
    _valid("read", call_cli("read", "evening"))
    _valid("log", call_cli("log", "evening"))
    _valid("verify", call_cli("verify", "evening"))


# ---------------------------------------------------------------------- exit codes


def test_exit_codes_of_run_and_wait(lone_session: Session) -> None:
    name = lone_session.name
    assert call_cli("run", name, "1").code == 0
    assert call_cli("run", name, "1/0", code=1).data["status"] == "error"
    assert call_cli("run", name, "import sys; sys.exit(3)", code=1).data["ename"] == "SystemExit"
    assert call_cli("run", name, "a b", code=1).data["ename"] == "SyntaxError"
    assert call_cli("run", name, "1", "--no-wait", "--wait", "5", code=2)
    assert call_cli("run", "nobody", "1", code=4)
    slow = call_cli("run", name, "import time; time.sleep(600)", "--no-wait", code=6, json_output=False)
    assert f"next: jupyter cmdop wait {name} o" in slow.err
    operation = lone_session.status().running[0].operation
    assert call_cli("wait", name, operation, "--wait", "0.1s", code=6).data["status"] == "running"
    assert call_cli("wait", name, "--wait", "0.1s", code=6).data["operation"] == operation
    busy = call_cli("run", name, "2", "--if-busy", "refuse", code=3)
    assert busy.data["refusal"]["code"] == "busy"
    queued = call_cli("run", name, "2", "--wait", "0.1s", code=6)
    assert queued.data["status"] == "queued"
    withdrawn = call_cli("interrupt", name, queued.data["operation"]).data
    assert withdrawn["withdrawn"] == [queued.data["operation"]]
    assert call_cli("wait", name, queued.data["operation"], code=1).data["status"] == "withdrawn"
    assert call_cli("interrupt", name).data["interrupted"] == operation
    ended = call_cli("wait", name, operation, code=1)
    assert ended.data["status"] == "interrupted"
    assert call_cli("wait", name).data["status"] == "idle"


def test_exit_code_5_when_the_keeper_dies_meanwhile(home: Home, session: Sessions) -> None:
    made = session()
    running = start_cli("run", made.name, "import time; time.sleep(600)", json_output=False)
    operation = wait_for_running(made)
    keeper = keeper_of(home, made)
    keeper.kill()
    result = finish_cli(running)
    assert result.code == 5
    assert f"what became of {operation} is not known" in result.err
    assert f"jupyter cmdop log {made.name}" in result.err
    wait_gone(keeper)


def test_a_refusal_says_who_drives_and_what_to_do(lone_session: Session) -> None:
    invited = lone_session.invite("driver")
    env = {"CMDOP_GRANT_FILE": str(invited.connection_file)}
    call_cli("take", lone_session.name, env=env)
    try:
        refused = call_cli("run", lone_session.name, "1", code=3, json_output=False)
        assert "driver drives this session" in refused.err
        assert f"jupyter cmdop take {lone_session.name}" in refused.err
        assert refused.out == ""
        closing = call_cli("close", lone_session.name, env=env, code=3, json_output=False)
        assert "next:" in closing.err
    finally:
        lone_session.revoke("driver")
    assert call_cli("run", lone_session.name, "1").code == 0


def test_what_goes_wrong_is_one_line_with_a_next_step(home: Home, lone_session: Session) -> None:
    lone_session.run("1")
    for arguments, code in (
        (("status", "nobody"), 4),
        (("run", lone_session.name, "1", "--generation", "99"), None),
        (("new", lone_session.name), 3),
        (("new", "x", "--cwd", "/nowhere"), 1),
        (("new", "x", "--setup", "/nowhere"), 1),
        (("new", "x", "--kernel", "nothing-like-it"), 1),
        (("hand-back", lone_session.name), 3),
        (("wait", lone_session.name, "o999999"), 3),
        (("read", lone_session.name, "--after", "x"), 2),
        (("verify", "/nowhere"), 1),
        (("run", lone_session.name, "1", "--grant-file", "/nowhere"), 1),
    ):
        result = call_cli(*arguments, code=code, json_output=False)
        if result.code == 0:
            continue
        first = result.err.splitlines()[0]
        assert first.startswith("error: "), arguments
        assert "; next: " in first, (arguments, first)
        assert "Traceback" not in result.err


# ---------------------------------------------------------------------- new


def test_new_takes_directory_setup_and_policy(home: Home, session: Sessions) -> None:
    folder = home.root / "a folder"
    folder.mkdir()
    setup = home.root / "setup.py"
    setup.write_text("import os\nready = os.getcwd()\nprint('set up')\n")
    run_cli("new", "custom", "--cwd", str(folder), "--setup", str(setup), "--policy", "turns", "--group", "g")
    try:
        status = call_cli("status", "custom").data
        assert (status["policy"], status["group"], status["cwd"]) == ("turns", "g", str(folder))
        assert call_cli("run", "custom", "ready").data["text"].strip() == repr(str(folder))
        assert any(
            "set up" in line for line in call_cli("read", "custom", json_output=False).out.splitlines()
        )
    finally:
        run_cli("close", "custom", "--force")


def test_close_leaves_the_name_free_at_once(home: Home) -> None:
    pids = set()
    for _ in range(2):
        made = run_cli("new", "again-and-again", "--kernel", null_spec(home))
        pids.add(made.data["pid"])
        closed = run_cli("close", "again-and-again")
        assert closed.data["ended"]
    assert len(pids) == 2
    older = [item["id"] for item in call_cli("ls", "--all").data if item["name"] == "again-and-again"]
    for session_id in older:
        assert call_cli("status", f"again-and-again@{session_id[:8]}").data["id"] == session_id
        assert call_cli("log", session_id).lines[0]["type"] == "opened"


def test_close_asks_for_force_when_somebody_elses_work_runs(session: Sessions) -> None:
    made = session()
    invited = made.invite("worker")
    env = {"CMDOP_GRANT_FILE": str(invited.connection_file)}
    call_cli("run", made.name, "import time; time.sleep(600)", "--no-wait", env=env, code=6)
    wait_for_running(made, "worker")
    refused = call_cli("close", made.name, code=3, json_output=False)
    assert "worker" in refused.err
    assert "--force" in refused.err
    kernel = kernel_of(made)
    assert run_cli("close", made.name, "--force").data["ended"]
    wait_gone(kernel)
    told = call_cli("log", made.name, "--type", "ended").lines[-1]
    assert (told["actor"], told["data"]["outcome"]) == ("worker", "interrupted")


def test_a_kernel_of_another_language(home: Home, session: Sessions) -> None:
    made = session(kernel="bash")
    shown = call_cli("run", made.name, "echo $((6 * 7)); echo wrong >&2")
    assert "42" in shown.data["text"]
    assert (
        call_cli("run", made.name, "false || exit_code=$?; echo code $exit_code").data["text"].strip()
        == "code 1"
    )
    assert call_cli("status", made.name).data["spec"] == "bash"


def test_ls_is_quick(home: Home, session: Sessions, record_property: pytest.RecordProperty) -> None:
    """A figure to report, bounded only by what would be noticed on any machine."""
    for _ in range(3):
        session(kernel=null_spec(home))
    taken = []
    for _ in range(5):
        begun = time.monotonic()
        assert len(run_cli("ls").data) >= 3
        taken.append(time.monotonic() - begun)
    record_property("ls_seconds_median", statistics.median(taken))
    print(f"ls with three sessions: median {statistics.median(taken):.3f} s, best {min(taken):.3f} s")
    assert min(taken) < 2


def test_a_slow_kernel_can_be_waited_for(home: Home) -> None:
    """`new` of a kernel that takes its time returns when it is ready, and a second `new` attaches to it."""
    program = (
        "import os, sys, time; time.sleep(1); "
        "os.execv(sys.executable, [sys.executable, '-m', 'ipykernel_launcher', '-f', sys.argv[1]])"
    )
    make_spec(home, "late", [sys.executable, "-c", program, "{connection_file}"])
    first = start_cli("new", "late", "--kernel", "late")
    second = start_cli("new", "late", "--kernel", "late", "--if-exists", "attach")
    results = [finish_cli(first), finish_cli(second)]
    codes = sorted(result.code for result in results)
    made = [result.data for result in results if result.code == 0]
    assert codes in ([0, 0], [0, 3]), results
    assert len({item["id"] for item in made}) == 1
    assert call_cli("run", "late", "1").code == 0
    run_cli("close", "late")
