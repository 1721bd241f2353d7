"""`attach`: a console on a grant that ends with it; Ctrl-C reaches what the caller runs, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import LIMIT_SECONDS, exit_code, on_terminal
from tests.client.fake_keeper import Call, FakeKeeper

# Stands in for jupyter_console: says how it was started, survives Ctrl-C as a console does, ends on a line.
CONSOLE = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: print("console got SIGINT", flush=True))
print("console", *sys.argv[1:], flush=True)
for line in sys.stdin:
    if line.strip() == "exit":
        sys.exit(0)
    if line.strip() == "fail":
        sys.exit(7)
"""


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "stub" / "jupyter_console"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(CONSOLE)
    monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{os.getcwd()}")


@pytest.fixture
def attachable(keeper: FakeKeeper, console: None) -> FakeKeeper:
    keeper.result("invite", connection_file="/run/x y.json", token="t", actor="alice", grant="g1")
    keeper.result("revoke", grant="g1", actor="alice")
    return keeper


def test_console_runs_on_a_grant_that_ends_with_it(attachable: FakeKeeper) -> None:
    attachable.status["running"] = [{"operation": "o1", "actor": "bot\x1b"}]
    with on_terminal("attach", "analysis") as child:
        child.expect_exact("jupyter console --existing '/run/x y.json'")
        child.expect_exact("console --existing /run/x y.json")
        assert attachable.calls.qsize() == 1
        child.sendline("exit")
        child.expect_exact(
            "analysis goes on, running o1 of bot\\x1b; end it with: jupyter cmdop close analysis"
        )
        assert exit_code(child) == 0
    invite = attachable.args_of("invite")
    assert (invite["actor"], invite["role"]) == ("alice", "peer")
    assert invite["expires_seconds"] > 3600
    assert attachable.args_of("revoke") == {"grant": "g1"}
    assert attachable.hellos.get(timeout=10)["persistent"] is True


def test_exit_code_is_the_consoles(attachable: FakeKeeper) -> None:
    with on_terminal("attach", "analysis") as child:
        child.expect_exact("console --existing /run")
        child.sendline("fail")
        assert exit_code(child) == 7
    assert attachable.args_of("revoke") == {"grant": "g1"}


def test_ctrl_c_interrupts_what_the_caller_runs_and_only_that(attachable: FakeKeeper) -> None:
    attachable.status["running"] = [
        {"operation": "o1", "actor": "bot"},
        {"operation": "o2", "actor": "alice"},
    ]
    attachable.status["queue"] = [{"operation": "o3", "actor": "bot"}, {"operation": "o4", "actor": "alice"}]
    attachable.on("interrupt", lambda call: call.result(interrupted=call.args["operation"]))
    with on_terminal("attach", "analysis") as child:
        child.expect_exact("console --existing /run")
        child.sendintr()
        child.expect_exact("console got SIGINT")
        assert attachable.args_of("interrupt") == {"operation": "o2"}
        assert attachable.args_of("interrupt") == {"operation": "o4"}
        child.sendline("exit")
        assert exit_code(child) == 0
    assert attachable.args_of("revoke") == {"grant": "g1"}


def test_ctrl_c_at_an_idle_prompt_interrupts_nobody(attachable: FakeKeeper) -> None:
    attachable.status["running"] = [{"operation": "o1", "actor": "bot"}]
    with on_terminal("attach", "analysis") as child:
        child.expect_exact("console --existing /run")
        child.sendintr()
        child.expect_exact("console got SIGINT")
        attachable.args_of("status")
        child.sendline("exit")
        assert exit_code(child) == 0
    left = [attachable.next_call()[0] for _ in range(attachable.calls.qsize())]
    assert "interrupt" not in left


def test_ended_by_a_signal_the_console_and_the_grant_end_too(attachable: FakeKeeper) -> None:
    with on_terminal("attach", "analysis") as child:
        child.expect_exact("console --existing /run")
        os.kill(child.pid, signal.SIGTERM)
        assert exit_code(child) == 128 + signal.SIGTERM
    assert attachable.args_of("revoke") == {"grant": "g1"}


def test_keeper_that_ends_leaves_the_console_to_the_person(attachable: FakeKeeper) -> None:
    with on_terminal("attach", "analysis") as child:
        child.expect_exact("console --existing /run")
        attachable.drop_links()
        attachable.closed_links.get(timeout=LIMIT_SECONDS)
        child.expect_exact("note: the keeper closed the link; leave the console with Ctrl-D")
        child.sendintr()
        child.expect_exact("console got SIGINT")
        child.sendline("exit")
        child.expect_exact("analysis does not go on")
        assert exit_code(child) == 0


def test_bearer_of_a_grant_goes_in_with_it(attachable: FakeKeeper, tmp_path: Path) -> None:
    """He may not invite, and need not: his connection file is the one to go in with."""
    path = tmp_path / "bot.json"
    grant = {"session": attachable.session_id, "name": "analysis", "token": "t", "actor": "bot"}
    path.write_text(json.dumps({"cmdop": grant}))
    path.chmod(0o600)
    with on_terminal("attach", "analysis", CMDOP_GRANT_FILE=str(path)) as child:
        child.expect_exact(f"console --existing {path}")
        child.sendline("exit")
        assert exit_code(child) == 0
    left = [attachable.next_call()[0] for _ in range(attachable.calls.qsize())]
    assert left == ["status"]


def test_name_is_lent_by_the_owner(attachable: FakeKeeper) -> None:
    """`--as bot` has a peer's rights, and peers do not invite."""
    with on_terminal("--as", "bot", "--kind", "agent", "attach", "analysis") as child:
        child.expect_exact("console --existing /run")
        child.sendline("exit")
        assert exit_code(child) == 0
    hellos = [attachable.hellos.get(timeout=10) for _ in range(2)]
    assert [(hello["actor"], hello["persistent"]) for hello in hellos] == [("bot", True), (None, False)]
    invite = attachable.args_of("invite")
    assert (invite["actor"], invite["kind"]) == ("bot", "agent")
    assert attachable.args_of("revoke") == {"grant": "g1"}


def test_refused_invitation_starts_no_console(cli: Any, attachable: FakeKeeper) -> None:
    attachable.on("invite", lambda call: call.refuse("forbidden", "you may not invite"))
    done = cli("attach", "analysis")
    assert (done.code, done.err) == (3, "error: you may not invite\n")


def test_grant_without_a_file_is_given_back(cli: Any, attachable: FakeKeeper) -> None:
    attachable.result("invite", connection_file=None, actor="alice", grant="g1")
    assert cli("attach", "analysis").code == 1
    assert attachable.args_of("revoke") == {"grant": "g1"}


def test_read_only_is_a_live_view(keeper: FakeKeeper) -> None:
    def follow(call: Call) -> None:
        output = {"output_type": "stream", "name": "stdout", "text": "seen\x1b[2J\n"}
        call.item(output=output, seq=1, operation="o1", actor="bot", relation="during")

    keeper.on("read", follow)
    with on_terminal("attach", "analysis", "--read-only", NO_COLOR="1") as child:
        child.expect_exact("-- during o1 of bot")
        child.expect_exact("seen\\x1b[2J")
        child.sendintr()
        child.expect_exact("analysis goes on")
        assert exit_code(child) == 0
    left = [keeper.next_call()[0] for _ in range(keeper.calls.qsize())]
    assert left == ["read", "status"]
    assert sys.executable
