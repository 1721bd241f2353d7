"""Code that runs inside a session and turns back on it: it is the author of its own operation, never the owner."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import Clients, Sessions, journal, reply_of, wait_for_entry


def _cli(*arguments: str) -> str:
    """Code of a cell that runs the command line and shows its exit code and JSON."""
    command = [sys.executable, "-m", "jupyter_cmdop.cli", *arguments, "--json"]
    return (
        "import subprocess\n"
        f"done = subprocess.run({command!r}, capture_output=True, text=True)\n"
        "print(done.returncode); print(done.stdout or done.stderr)"
    )


def _answer(text: str) -> tuple[int, Any]:
    code, _, rest = text.partition("\n")
    return int(code), json.loads(rest)


@pytest.fixture
def pair(module_session: Sessions) -> tuple[Session, Session]:
    """Two sessions of one owner, shared by this module."""
    while len(_pair) < 2:
        _pair.append(module_session())
    return _pair[0], _pair[1]


_pair: list[Session] = []


def test_in_its_own_session_it_acts_as_the_author_of_the_operation(pair: tuple[Session, Session]) -> None:
    made, _ = pair
    code, answer = _answer(made.run(_cli("status", made.name)).text)
    assert (code, answer["name"]) == (0, made.name)
    operation = answer["running"][0]["operation"]
    code, floor = _answer(made.run(_cli("take", made.name, "--reason", "from inside")).text)
    assert code == 0
    assert floor["driver"] == made.actor
    taken = wait_for_entry(made, "taken")
    assert taken["actor"] == made.actor
    assert taken["via"].startswith("o")
    assert taken["via"] != operation
    made.release()


def test_a_guests_code_is_the_guest(pair: tuple[Session, Session], clients: Clients) -> None:
    """He runs code with the owner's Unix rights, and does not become the owner by it."""
    made, _ = pair
    bot = clients(made, "bot")
    seen: dict[str, Any] = {}
    for name, arguments in {
        "run": ("run", made.name, "'queued behind me'", "--no-wait"),
        "take": ("take", made.name),
        "policy": ("policy", made.name, "turns"),
        "restart": ("restart", made.name),
        "close": ("close", made.name, "--force"),
        "invite": ("invite", made.name, "--as", "friend"),
        "rename": ("rename", made.name, "mine"),
        "as another": ("--as", "root", "run", made.name, "1"),
        "as somebody": ("--as", "somebody", "run", made.name, "1", "--no-wait"),
    }.items():
        sent = bot.execute(_cli(*arguments))
        assert reply_of(bot, sent)["content"]["status"] == "ok"
        seen[name] = _answer(made.wait(_operation_of(made, sent)).text)
    assert seen["run"][0] == 6
    assert seen["take"][1]["driver"] == "bot"
    for refused in ("policy", "restart", "close", "invite", "rename", "as another", "as somebody"):
        code, answer = seen[refused]
        assert code == 3, (refused, answer)
        refusal = answer.get("refusal")
        assert refusal["code"] == "forbidden", (refused, answer)
    entries = journal(made, "admitted", "taken", "refused")
    inside = [e for e in entries if e.get("via")]
    assert {e["actor"] for e in inside[-5:]} == {"bot"}
    assert not [e for e in entries if e["actor"] == "somebody"]
    with Session.open(made.id) as link:
        link.take("back")
        link.release()


def _operation_of(made: Session, msg_id: str) -> str:
    return str(
        wait_for_entry(made, "admitted", where=lambda e: e["data"].get("msg_id") == msg_id)["operation"]
    )


def test_in_another_session_it_acts_as_the_session_it_comes_from(pair: tuple[Session, Session]) -> None:
    made, other = pair
    code, answer = _answer(made.run(_cli("run", other.name, "'hello from next door'")).text)
    assert (code, answer["status"]) == (0, "ok")
    admitted = wait_for_entry(other, "admitted", operation=answer["operation"])
    assert admitted["actor"] == f"session:{made.name}"
    assert made.name in admitted["via"]
    for arguments in (("close", other.name), ("policy", other.name, "readonly"), ("invite", other.name)):
        code, answer = _answer(made.run(_cli(*arguments)).text)
        assert (code, answer["refusal"]["code"]) == (3, "forbidden")
    code, answer = _answer(made.run(_cli("--as", "somebody", "run", other.name, "1")).text)
    assert (code, answer["refusal"]["code"]) == (3, "forbidden")
    assert f"session:{made.name}" in answer["refusal"]["message"]
    assert other.status().policy == "open"


def test_a_session_made_from_inside_has_its_own_keeper(pair: tuple[Session, Session]) -> None:
    """Agents make sessions for their own work; what they make does not end with the cell, or the session."""
    made, _ = pair
    name = f"{made.name}-child"
    code, answer = _answer(made.run(_cli("new", name)).text)
    assert (code, answer["name"]) == (0, name)
    try:
        with Session.open(name) as child:
            assert child.run("1 + 1").text.strip() == "2"
            code, inner = _answer(child.run(_cli("run", made.name, "'up'")).text)
            assert (code, inner["status"]) == (0, "ok")
            admitted = wait_for_entry(made, "admitted", operation=inner["operation"])
            assert admitted["actor"] == f"session:{name}"
    finally:
        with Session.open(name) as child:
            child.close(force=True)


def test_a_background_process_is_the_session_and_nobody_in_it(pair: tuple[Session, Session]) -> None:
    """Started by a cell that has ended: whoever runs something then is not its author."""
    made, _ = pair
    command = [sys.executable, "-m", "jupyter_cmdop.cli", "run", made.name, "'late'", "--json"]
    code = (
        "import subprocess\n"
        f"later = subprocess.Popen(['sh', '-c', 'read line; exec \"$@\"', 'sh', *{command!r}],\n"
        "    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)"
    )
    assert made.run(code).status == "ok"
    after = made.status().journal
    # The cell that lets it go ends before the process has even connected.
    assert made.run("later.stdin.write(b'go\\n'); later.stdin.close()").status == "ok"
    admitted = wait_for_entry(
        made, "admitted", after=after.seq if after else 0, where=lambda e: e["data"].get("code") == "'late'"
    )
    assert admitted["actor"] == f"session:{made.name}"
    assert admitted["via"] == "background"
    assert made.run("later.wait()").text.strip() == "0"


def test_the_environment_of_a_kernel_holds_nobodys_grant(
    session: Sessions, pair: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMDOP_GRANT_FILE", "/nowhere")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    made = session()
    shown = made.run("import os; sorted(k for k in os.environ if k.startswith(('CMDOP_GRANT', 'JPY_')))").text
    assert "CMDOP_GRANT_FILE" not in shown
    assert "JPY_PARENT_PID" not in shown
