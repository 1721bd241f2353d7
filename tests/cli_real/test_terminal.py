"""The command line in a terminal: Ctrl-C, prompts, passwords, `attach`, and what is left when a window closes."""

from __future__ import annotations

import os
import signal
import sys

import pexpect
import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, wait_until
from tests.support import (
    LIMIT_SECONDS,
    Closing,
    Console,
    Sessions,
    journal,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)


@pytest.fixture
def terminal(closing: Closing) -> object:
    """`terminal("run", name, code)` is that command in a pty."""

    def start(*arguments: str) -> Console:
        return closing(Console([sys.executable, "-m", "jupyter_cmdop.cli", *arguments]))  # type: ignore[no-any-return]

    return start


def _type(console: Console, key: str) -> None:
    console.child.sendcontrol(key)


def test_the_first_ctrl_c_interrupts_the_own_operation(lone_session: Session, terminal) -> None:
    typed = terminal("run", lone_session.name, "import time; print('begun', flush=True); time.sleep(600)")
    typed.expect("begun")
    operation = wait_for_running(lone_session)
    _type(typed, "c")
    typed.expect(f"interrupting {operation}; Ctrl-C again leaves it running")
    typed.expect("KeyboardInterrupt")
    assert typed.ended() == 1
    ended = wait_for_entry(lone_session, "ended", operation=operation)
    assert ended["data"]["outcome"] == "interrupted"


def test_the_second_ctrl_c_leaves_it_running(lone_session: Session, terminal) -> None:
    code = (
        "import time\n"
        "print('begun', flush=True)\n"
        "for _ in range(2):\n"
        "    try: time.sleep(600)\n"
        "    except KeyboardInterrupt: print('not now', flush=True)"
    )
    typed = terminal("run", lone_session.name, code)
    typed.expect("begun")
    operation = wait_for_running(lone_session)
    _type(typed, "c")
    typed.expect("not now")
    _type(typed, "c")
    typed.expect(f"{operation} is running; next: jupyter cmdop wait {lone_session.name} {operation}")
    assert typed.ended() == 6
    assert [op.operation for op in lone_session.status().running] == [operation]
    lone_session.interrupt(operation)
    assert lone_session.wait(operation).status == "ok"
    assert len([e for e in journal(lone_session, "interrupted") if e["operation"] == operation]) == 2


def test_ctrl_c_while_waiting_withdraws_only_the_own_input(lone_session: Session, terminal) -> None:
    with Session.open(lone_session.id) as other:
        invited = lone_session.invite("other")
        call_cli(
            "run",
            lone_session.name,
            "import time; time.sleep(600)",
            "--no-wait",
            env={"CMDOP_GRANT_FILE": str(invited.connection_file)},
            code=6,
        )
        running = wait_for_running(other, "other")
        typed = terminal("run", lone_session.name, "'never'")
        status = wait_for_status(other, lambda s: s.queue)
        _type(typed, "c")
        typed.expect("was withdrawn")
        assert typed.ended() == 1
        assert [op.operation for op in other.status().running] == [running]
        assert (
            wait_for_entry(other, "ended", operation=status.queue[0].operation)["data"]["outcome"]
            == "withdrawn"
        )
        other.interrupt(running)
        lone_session.revoke("other")


def test_a_prompt_is_answered_in_place(lone_session: Session, terminal) -> None:
    typed = terminal("run", lone_session.name, "name = input('who are you? '); print('hello', name.upper())")
    typed.expect(r"who are you\? ")
    typed.type("anna")
    typed.expect("hello ANNA")
    assert typed.ended() == 0


def test_a_password_is_neither_echoed_nor_kept(lone_session: Session, terminal) -> None:
    secret = "correct horse battery"
    typed = terminal("run", lone_session.name, "import getpass; print(len(getpass.getpass('key: ')))")
    typed.expect("key: ")
    wait_until(lambda: not typed.child.getecho(), "the terminal does not echo")
    typed.type(secret)
    typed.expect(str(len(secret)))
    assert typed.ended() == 0
    assert secret not in typed._text
    assert "withheld" in str(journal(lone_session, "input_answered")[-1])
    directory = lone_session.status().journal
    assert directory is not None
    for folder, _, files in os.walk(directory.path or ""):
        for file in files:
            with open(os.path.join(folder, file), "rb") as opened:
                assert secret.encode() not in opened.read(), file


def test_ctrl_c_at_a_prompt_interrupts_the_input(lone_session: Session, terminal) -> None:
    typed = terminal("run", lone_session.name, "input('waiting: ')")
    typed.expect("waiting: ")
    _type(typed, "c")
    typed.expect("KeyboardInterrupt")
    assert typed.ended() == 1
    assert lone_session.status().pending_input is None


def test_ctrl_d_at_a_prompt_is_the_end_of_the_input(lone_session: Session, terminal) -> None:
    typed = terminal("run", lone_session.name, "input('waiting: ')")
    typed.expect("waiting: ")
    _type(typed, "d")
    typed.expect("EOFError")
    assert typed.ended() == 1


def test_a_window_that_closes_leaves_the_operation_running(lone_session: Session, terminal) -> None:
    typed = terminal("run", lone_session.name, "import time; print('begun', flush=True); time.sleep(600)")
    typed.expect("begun")
    operation = wait_for_running(lone_session)
    typed.child.kill(signal.SIGHUP)  # pexpect's own `close` would send an interrupt as well
    typed.child.expect(pexpect.EOF)
    assert [op.operation for op in lone_session.status().running] == [operation]
    lone_session.interrupt(operation)
    assert lone_session.wait(operation).status == "interrupted"


def test_attach_is_a_console_whose_ctrl_c_interrupts_and_whose_exit_leaves_the_session(
    lone_session: Session, terminal
) -> None:
    lone_session.run("shared = 41")
    typed = terminal("attach", lone_session.name)
    typed.expect("jupyter console --existing")
    typed.run("shared + 1")
    typed.expect("42")
    (present,) = [p for p in lone_session.status().presence if p.transport != "link"]
    assert present.actor == lone_session.actor
    typed.run("import time; print('be' + 'gun'); time.sleep(600)")
    typed.expect("begun")
    operation = wait_for_running(lone_session)
    _type(typed, "c")
    typed.expect("KeyboardInterrupt")
    assert wait_for_entry(lone_session, "ended", operation=operation)["data"]["outcome"] == "interrupted"
    typed.run("exit")
    typed.expect(f"{lone_session.name} goes on")
    typed.expect(f"jupyter cmdop close {lone_session.name}")
    assert typed.ended() == 0
    assert lone_session.run("shared").text.strip() == "41"
    assert lone_session.grants() == ()


def test_ctrl_c_in_attach_reaches_nobody_elses_cell(lone_session: Session, terminal) -> None:
    typed = terminal("attach", lone_session.name)
    typed.expect(r"In \[\d+\]: ")
    invited = lone_session.invite("other")
    call_cli(
        "run",
        lone_session.name,
        "import time; time.sleep(600)",
        "--no-wait",
        env={"CMDOP_GRANT_FILE": str(invited.connection_file)},
        code=6,
    )
    operation = wait_for_running(lone_session, "other")
    _type(typed, "c")
    _type(typed, "d")
    typed.expect(r"exit|goes on|\[y\]/n|In \[")
    assert [op.operation for op in lone_session.status().running] == [operation]
    typed.child.send("y\r")
    typed.expect("goes on")
    typed.ended()
    lone_session.interrupt(operation)
    lone_session.revoke("other")
    assert lone_session.wait(operation).status == "interrupted"


def test_attach_read_only_shows_what_comes_and_ends_with_ctrl_c(lone_session: Session, terminal) -> None:
    typed = terminal("attach", "--read-only", lone_session.name)
    wait_for_status(lone_session, lambda s: s.state == "open")
    lone_session.run("print('seen ' + 'here')")
    typed.expect("seen here")
    typed.child.send("print('typed')\r")
    _type(typed, "c")
    typed.expect("goes on")
    assert typed.ended() == 0


def test_a_killed_attach_leaves_no_console(lone_session: Session, terminal) -> None:
    typed = terminal("attach", lone_session.name)
    typed.expect(r"In \[\d+\]: ")
    typed.child.kill(signal.SIGTERM)
    typed.child.expect(pexpect.EOF, timeout=LIMIT_SECONDS)
    wait_until(lambda: not lone_session.grants(), "the grant is revoked")
    wait_for_status(lone_session, lambda s: not s.presence)


def test_answer_asks_for_what_is_wanted(session: Sessions, terminal) -> None:
    made = session()
    call_cli("run", made.name, "import getpass; len(getpass.getpass('code: '))", "--no-wait", code=6)
    wait_for_status(made, lambda s: s.pending_input)
    typed = terminal("answer", made.name)
    typed.expect("code: ")
    wait_until(lambda: not typed.child.getecho(), "the terminal does not echo")
    typed.type("12345")
    typed.expect("has its answer")
    assert "12345" not in typed._text
    assert typed.ended() == 0
    assert made.wait("o1").text.strip() == "5"
