"""The command line between other programs: standard input, pipes that close early, followers, completion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, null_spec
from tests.support import LIMIT_SECONDS, Home, Sessions, run_cli, start_cli, wait_for_entry, wait_for_running

CLI = [sys.executable, "-m", "jupyter_cmdop.cli"]


def _shell(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", "set -o pipefail; " + script],
        env={**os.environ, "CLI": " ".join(CLI), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_run_reads_its_code_from_standard_input(lone_session: Session) -> None:
    done = run_cli("run", lone_session.name, "-", input="x = 6\nx * 7\n")
    assert done.data["text"].strip() == "42"
    empty = run_cli("run", lone_session.name, "-", input="")
    assert empty.data["status"] == "ok"
    unicode = run_cli("run", lone_session.name, "-", input="print('héllo 名前 🎉')")
    assert unicode.data["text"] == "héllo 名前 🎉\n"
    windows = run_cli("run", lone_session.name, "-", input="a = 1\r\nprint(a)\r\n")
    assert windows.data["text"] == "1\n"


def test_code_that_is_no_text_is_refused_in_words(lone_session: Session) -> None:
    done = _shell(r"printf 'print(\"\xff\")' | $CLI run $NAME -", NAME=lone_session.name)
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr
    done = _shell(r"$CLI run $NAME $'print(\"\xff\")'", NAME=lone_session.name)
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr


def test_output_goes_where_it_belongs_and_nothing_else_with_it(lone_session: Session) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); 'value'"
    done = run_cli("run", lone_session.name, code, json_output=False)
    assert done.out == "out\n'value'\n"
    assert done.err == "err\n"


def test_a_reader_that_stops_reading_ends_nothing(lone_session: Session) -> None:
    """`| head`: the command ends as a shell expects; the operation goes on, because it has an author and a record."""
    done = _shell("$CLI run $NAME 'for n in range(50000): print(n)' | head -n 3", NAME=lone_session.name)
    assert done.stdout == "0\n1\n2\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert done.returncode == 141
    assert lone_session.wait().status == "idle"
    assert call_cli("log", lone_session.name, "--type", "ended").lines[-1]["data"]["outcome"] == "ok"
    for verb in ("log", "read", "ls", "status"):
        more = "" if verb == "ls" else "$NAME"
        done = _shell(f"$CLI {verb} {more} | true", NAME=lone_session.name)
        assert "Traceback" not in done.stderr, verb
        assert done.returncode in (0, 141), verb


def test_without_standard_streams(lone_session: Session) -> None:
    """Started by a service manager with everything closed: no crash, and the right exit code."""
    assert _shell("$CLI run $NAME 1 <&-", NAME=lone_session.name).stdout == "1\n"
    assert _shell("$CLI run $NAME 1 >&-", NAME=lone_session.name).returncode in (0, 1, 120)
    assert _shell("$CLI run $NAME 1/0 >/dev/null 2>&-", NAME=lone_session.name).returncode == 1
    assert _shell("$CLI run $NAME 'print(1)' >/dev/full", NAME=lone_session.name).returncode == 1


def test_any_locale_will_do(lone_session: Session) -> None:
    for locale in ("C", "POSIX", "C.UTF-8", "en_US.ISO-8859-1"):
        done = _shell(
            "$CLI run $NAME \"print('h\u00e9 \u540d \U0001f389')\"",
            NAME=lone_session.name,
            LC_ALL=locale,
            PYTHONUTF8="0",
            PYTHONCOERCECLOCALE="0",
        )
        assert done.returncode == 0, (locale, done.stderr)
        done = _shell("$CLI status $NAME --json", NAME=lone_session.name, LC_ALL=locale, PYTHONUTF8="0")
        assert json.loads(done.stdout)["name"] == lone_session.name


def test_no_colours_in_a_pipe_and_none_from_the_kernel(lone_session: Session) -> None:
    done = run_cli("run", lone_session.name, "1/0", json_output=False, code=1)
    assert "\x1b" not in done.out + done.err
    assert "ZeroDivisionError" in done.err


def test_log_follow_shows_what_comes_and_ends_with_its_reader_or_the_session(session: Sessions) -> None:
    made = session()
    follower = start_cli("log", made.name, "--follow", "--type", "admitted")
    assert follower.stdout is not None
    try:
        made.run("'first'")
        assert json.loads(follower.stdout.readline())["data"]["code"] == "'first'"
        made.run("'second'")
        assert json.loads(follower.stdout.readline())["data"]["code"] == "'second'"
        made.close()
        out, err = follower.communicate(timeout=LIMIT_SECONDS)
        assert (follower.returncode, out) == (0, "")
        assert "does not go on" in err
    finally:
        follower.kill()


def test_read_follow_is_ended_by_ctrl_c(lone_session: Session) -> None:
    follower = start_cli("read", lone_session.name, "--follow", json_output=False)
    assert follower.stdout is not None
    lone_session.run("print('seen')")
    while "seen" not in follower.stdout.readline():
        pass
    follower.send_signal(2)
    _, err = follower.communicate(timeout=LIMIT_SECONDS)
    assert follower.returncode == 130
    assert "KeyboardInterrupt" not in err


def test_a_prompt_without_a_terminal_says_how_to_answer(session: Sessions) -> None:
    made = session()
    asking = start_cli("run", made.name, "input('who? ')", json_output=False)
    operation = wait_for_running(made)
    wait_for_entry(made, "input_requested", operation=operation)
    assert call_cli("answer", made.name, "me", json_output=False).out == f"{operation} has its answer\n"
    out, err = asking.communicate(timeout=LIMIT_SECONDS)
    assert "'me'" in out
    assert f"jupyter cmdop answer {made.name}" in err
    asking = start_cli("run", made.name, "input('more? ')", json_output=False)
    wait_for_entry(made, "input_requested", operation=wait_for_running(made))
    assert run_cli("answer", made.name, "-", input="from a pipe\n", json_output=False)
    out, _ = asking.communicate(timeout=LIMIT_SECONDS)
    assert "'from a pipe'" in out


def test_a_result_is_the_same_live_and_afterwards(lone_session: Session) -> None:
    code = (
        "for n in range(3): print(n)\n"
        "import sys; print('e', file=sys.stderr)\n"
        "display({'text/plain': 'd'}, raw=True)\n"
        "'r'"
    )
    live = run_cli("run", lone_session.name, code)
    again = run_cli("wait", lone_session.name, live.data["operation"])
    for key in ("status", "outputs", "text", "execution_count", "generation", "incarnation"):
        assert again.data[key] == live.data[key], key


COMPLETE = r"""
eval "$($CLI completion bash)"
COMP_LINE="$LINE"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
read -ra COMP_WORDS <<< "$COMP_LINE"
[[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
compopt() { :; }
function=$(complete -p "${COMP_WORDS[0]}" | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
"$function" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_names_of_live_sessions_operations_and_grants(home: Home, session: Sessions) -> None:
    made, other = session("alpha-one"), session("beta", kernel=null_spec(home))
    invited = made.invite("guest")
    call_cli("run", "alpha-one", "import time; time.sleep(600)", "--no-wait", code=6)
    operation = wait_for_running(made)

    def tab(line: str) -> list[str]:
        done = _shell(COMPLETE, LINE=line)
        return [offer.strip() for offer in done.stdout.splitlines() if offer.strip()]

    names = tab("jupyter-cmdop status ")
    assert {"alpha-one", "beta"} <= set(names)
    assert not [name for name in names if name.startswith("-")]
    assert tab("jupyter cmdop run al") == ["alpha-one"]
    assert tab("jupyter cmdop hand") == ["hand-back"]
    assert tab("jupyter-cmdop interrupt alpha-one ") == [operation]
    assert sorted(tab("jupyter-cmdop revoke alpha-one ")) == sorted(["guest", str(invited.grant)])
    other.close()
    assert "beta" not in tab("jupyter-cmdop status ")
