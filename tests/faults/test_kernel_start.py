"""A kernel that does not start: `new` says why, with what the kernel itself said, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from jupyter_cmdop.client import places
from jupyter_cmdop.client.errors import SpawnFailed
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, make_spec, null_spec
from tests.support import Home, Sessions

FAULTS = {
    "exits": (
        [sys.executable, "-c", "import sys; print('no licence found', file=sys.stderr); sys.exit(1)"],
        ["code 1", "no licence found"],
    ),
    "raises": ([sys.executable, "-c", "import a_module_that_is_not_there"], ["a_module_that_is_not_there"]),
    "missing-program": (["/nowhere/to/be/found", "{connection_file}"], ["/nowhere/to/be/found"]),
    "killed": ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], ["SIGKILL"]),
    "not-executable": (["/etc/hostname", "{connection_file}"], ["could not be started"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_new_says_why_the_kernel_did_not_start_and_leaves_nothing(home: Home, fault: str) -> None:
    argv, words = FAULTS[fault]
    make_spec(home, f"broken-{fault}", argv)
    failed = call_cli("new", f"never-{fault}", "--kernel", f"broken-{fault}", code=1)
    for word in words:
        assert word in failed.err, failed.err
    assert "next:" in failed.err
    assert failed.data["error"]["message"]
    assert call_cli("ls", "--all").data == []
    assert home.left() == []
    assert os.listdir(home.state / "sessions") == []
    assert [p for p in (home.runtime / "cmdop").iterdir() if p.name != "registry.lock"] == []


def test_no_socket_directory_is_left_of_a_session_that_did_not_start(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    make = places.make_socket_dir

    def note() -> Path:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(places, "make_socket_dir", note)
    make_spec(home, "broken-here", [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(SpawnFailed, match="code 1"):
        Session.create("never", kernel="broken-here")
    assert made
    assert not any(path.exists() for path in made)
    assert home.left() == []


def test_an_unknown_kernelspec_is_named_with_those_that_there_are(home: Home) -> None:
    failed = call_cli("new", "never", "--kernel", "pyhton3", code=1)
    assert "pyhton3" in failed.err
    assert "python3" in failed.err
    assert home.left() == []


def test_the_name_of_a_session_that_did_not_start_is_free(home: Home, session: Sessions) -> None:
    make_spec(home, "broken", [sys.executable, "-c", "raise SystemExit(1)"])
    call_cli("new", "again", "--kernel", "broken", code=1)
    made = session("again", kernel=null_spec(home))
    assert made.run("say yes").text == "yes\n"


def test_a_kernel_that_no_longer_starts_when_it_is_restarted_loses_the_session_and_says_why(
    home: Home, session: Sessions
) -> None:
    """The record stays: what the kernel said last is in the journal, and `restart` is refused with the reason."""
    flag = home.root / "broken"
    program = (
        "import sys, pathlib\n"
        f"if pathlib.Path({str(flag)!r}).exists(): sys.exit('the disk is gone')\n"
        "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
    )
    make_spec(home, "sometimes", [sys.executable, "-c", program, "-f", "{connection_file}"])
    made = session(kernel="sometimes")
    assert made.run("1").status == "ok"
    flag.touch()
    refused = call_cli("restart", made.name, code=3)
    assert refused.data["refusal"]["code"] == "backend_lost"
    said = [e["data"]["text"] for e in made.log(types=["backend_output"]) if isinstance(e["data"], dict)]
    assert any("the disk is gone" in text for text in said)
    flag.unlink()
    assert json.loads(call_cli("status", made.name).out)["state"] == "lost"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_runs_in_a_kernel_can_be_interrupted(session: Sessions) -> None:
    """A keeper ignores Ctrl-C and hang-ups; a program that a cell starts must not do so by inheritance."""
    made = session()
    code = "import subprocess\nprint(subprocess.check_output(['grep', 'SigIgn', '/proc/self/status'], text=True))"
    ignored = int((made.run(code).text or "").split()[1], 16)
    assert not ignored & (1 << signal.SIGINT - 1)
    assert not ignored & (1 << signal.SIGHUP - 1)
