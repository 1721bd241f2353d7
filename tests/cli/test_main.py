"""Every ending has an exit code and at most one line; nothing but CMDOP_DEBUG=1 shows a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from jupyter_cmdop.cli import exits, main
from jupyter_cmdop.client.errors import (
    BadAnswer,
    ClientError,
    FellBehind,
    GrantFileError,
    IdTaken,
    JournalProblem,
    KeeperGone,
    LinkTimeout,
    PlaceError,
    Refused,
    RequestFailed,
    ServerProblem,
    SpawnFailed,
    UnknownSession,
)
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.core.actor import BadName
from jupyter_cmdop.core.operations import OUTCOMES
from jupyter_cmdop.core.refusal import HTTP_STATUS, Refusal
from tests.client.fake_keeper import FakeKeeper

ERRORS: list[tuple[Exception, int, int]] = [
    (Refused(Refusal("not_driver", "bob drives")), 3, 3),
    (Refused(Refusal("unknown_session", "none")), 4, 4),
    (UnknownSession("x"), 4, 4),
    (KeeperGone("gone", asked=True), 5, 1),
    (KeeperGone("gone"), 1, 1),
    (LinkTimeout("late", asked=True), 5, 1),
    (LinkTimeout("late"), 1, 1),
    (RequestFailed("bad_request", "no"), 2, 2),
    (BadAnswer("what"), 1, 1),
    (PlaceError("/p", "is bad", "chmod it"), 1, 1),
    (SpawnFailed("no"), 1, 1),
    (IdTaken("it was used"), 1, 1),
    (GrantFileError("no"), 1, 1),
    (ServerProblem("nobody there", may_pass=True), 1, 1),
    (JournalProblem("no"), 1, 1),
    (FellBehind("no"), 1, 1),
    (BadName("no"), 2, 2),
    (ValueError("a bug"), 1, 1),
]


@pytest.mark.parametrize(
    ("error", "code", "reading_code"), ERRORS, ids=[f"{type(e).__name__}-{c}" for e, c, _ in ERRORS]
)
def test_error_has_its_code_and_one_line(
    error: Exception, code: int, reading_code: int, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: Any) -> int:
        raise error

    monkeypatch.setattr("jupyter_cmdop.cli.floor.take", fail)
    monkeypatch.setattr("jupyter_cmdop.cli.listing.status", fail)
    for verb, expected in (("take", code), ("status", reading_code)):
        done = cli(verb, "analysis")
        assert done.code == expected
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("code", sorted(set(HTTP_STATUS) - {"unknown_session"}))
def test_every_refusal_is_three(code: str) -> None:
    assert exits.of_error(Refused(Refusal(code, "m")), reads_only=False) == 3


def test_statuses_have_their_codes() -> None:
    codes = {
        status: exits.of_status(status) for status in (*OUTCOMES, "queued", "running", "refused", "idle")
    }
    assert codes == {
        "ok": 0,
        "idle": 0,
        "error": 1,
        "interrupted": 1,
        "aborted": 1,
        "superseded": 1,
        "withdrawn": 1,
        "refused": 3,
        "unknown": 5,
        "queued": 6,
        "running": 6,
    }
    assert exits.of_status("awaiting_input") == exits.of_status("awaiting_approval") == 6
    assert exits.of_status("of the future") == 6


def test_line_says_what_helps_as_commands(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on(
        "take",
        lambda call: call.refuse(
            "busy", "it is busy", next=["hand_back", "jupyter cmdop ls", "ask Bob\x1b[2J"]
        ),
    )
    done = cli("take", "analysis")
    assert done.err == (
        "error: it is busy; next: jupyter cmdop hand-back analysis or jupyter cmdop ls or ask Bob\\x1b[2J\n"
    )


def test_json_failure_is_a_shape(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("take", lambda call: call.refuse("not_driver", "bob drives", driver="bob", next=["take"]))
    done = cli("take", "analysis", "--json")
    assert done.code == 3
    assert done.json["error"] == {"code": "not_driver", "message": "bob drives", "next": ["take"]}
    assert done.json["refusal"]["driver"] == "bob"
    done = cli("take", "nobody", "--json")
    assert (done.code, done.json["error"]["code"], done.json["refusal"]) == (4, "unknown_session", None)


def test_log_of_a_keeper_that_did_not_start_is_shown_harmlessly(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise SpawnFailed("it failed", log=("a\x1b[2J", "b"), next=("try again",))

    monkeypatch.setattr("jupyter_cmdop.cli.lifecycle.spawn", fail)
    done = cli("new", "analysis")
    assert done.err == "error: it failed; next: try again\n  keeper.log: a\\x1b[2J\n  keeper.log: b\n"


def test_debugging_shows_the_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMDOP_DEBUG", "1")
    with pytest.raises(UnknownSession):
        cli("status", "nobody")
    monkeypatch.setenv("CMDOP_DEBUG", "0")
    assert cli("status", "nobody").code == 4


def test_unsafe_directory_says_what_to_do(cli: Any, registry: Registry) -> None:
    registry.reserve("analysis")
    registry.pointers.chmod(0o777)
    done = cli("ls")
    assert done.code == 1
    assert f"chmod 700 {registry.pointers}" in done.err


def test_ctrl_c_is_130_and_silent(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("jupyter_cmdop.cli.listing.ls", interrupted)
    done = cli("ls")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_windows_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main.sys, "platform", "win32")
    assert main.main(["ls"]) == 2
    assert "needs Linux or macOS" in capsys.readouterr().err


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "jupyter_cmdop.cli", *argv]


def test_reader_that_goes_away_is_no_error(registry: Registry) -> None:
    """`jupyter cmdop … | head -1`: neither a traceback nor Python's complaint at exit."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("completion", "bash"), stdout=write, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_closed_output_is_no_error(keeper: FakeKeeper) -> None:
    script = f"{sys.executable} -m jupyter_cmdop.cli ls >&- 2>&-"
    assert subprocess.run(script, shell=True, check=False, timeout=60).returncode == 0


def test_interrupted_process_leaves_no_traceback(keeper: FakeKeeper) -> None:
    keeper.on("wait", lambda call: None)
    child = subprocess.Popen(command("wait", "analysis"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    keeper.args_of("wait")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, b"", b"")


def test_characters_that_the_terminal_lacks(keeper: FakeKeeper) -> None:
    """A session named by a UTF-8 user is listed on an ASCII terminal."""
    keeper.status |= {"name": "analysis", "workspace": "/home/jürgen/日本", "policy": "öpen"}
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    text = subprocess.run(command("ls"), env=environment, capture_output=True, check=True, timeout=60)
    assert b"\\xf6pen" in text.stdout
    as_json = subprocess.run(
        command("ls", "--json"), env=environment, capture_output=True, check=True, timeout=60
    )
    assert as_json.stdout.isascii()
    assert json.loads(as_json.stdout)[0]["workspace"] == "/home/jürgen/日本"


def test_every_client_error_is_tested() -> None:
    def below(kind: type[ClientError]) -> set[type[ClientError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    tested = {type(error) for error, _, _ in ERRORS}
    assert below(ClientError) - tested == {ClientError}
