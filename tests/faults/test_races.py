"""Many at once for one name: one gets it, the others are told, and nothing is left of their attempts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.client.spawn import spawn
from tests.faults.attacks import make_spec, null_spec
from tests.support import Home, Sessions, end_session, run_cli

PROCESSES = 10
THREADS = 10

_RACER = """
import json, sys, threading
from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.client.spawn import spawn

name, spec, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.read()
start, lock = threading.Barrier(threads), threading.Lock()

def race():
    start.wait()
    try:
        outcome = {"made": spawn(name, spec=spec).id}
    except ClientError as error:
        outcome = {"code": error.code, "message": error.message}
    with lock:
        print(json.dumps(outcome), flush=True)

racers = [threading.Thread(target=race) for _ in range(threads)]
for racer in racers: racer.start()
for racer in racers: racer.join()
"""


def test_a_hundred_make_one_session(home: Home) -> None:
    """Ten processes of ten threads: one session, ninety-nine times `name_taken`, and not a directory more."""
    spec = null_spec(home)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, "contended", spec, str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    outcomes: list[dict[str, Any]] = []
    for racer in racers:
        assert racer.stdout is not None
        with racer.stdout:
            outcomes += [json.loads(line) for line in racer.stdout]
        assert racer.wait(60) == 0
    made = [outcome["made"] for outcome in outcomes if "made" in outcome]
    assert len(outcomes) == PROCESSES * THREADS
    assert len(made) == 1
    assert {outcome["code"] for outcome in outcomes if "made" not in outcome} == {"name_taken"}
    try:
        assert [item["id"] for item in run_cli("ls", "--all").data] == made
        assert os.listdir(home.state / "sessions") == made
        assert {p.stem for p in (home.runtime / "cmdop").iterdir()} == {made[0], "registry"}
        assert len(home.socket_dirs()) == 1
        keepers = [p for p in home.processes() if "jupyter_cmdop.keeper" in p.cmdline()]
        assert len(keepers) == 1
    finally:
        end_session(home, made[0])


def test_names_that_differ_in_case_race_as_one(home: Home) -> None:
    spec = null_spec(home, "null-case")
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def race(name: str) -> None:
        start.wait()
        try:
            outcomes.append(spawn(name, spec=spec).id)
        except ClientError as error:
            outcomes.append(error.code)

    names = ["Case", "case", "CASE", "cAse", "caSe", "casE", "CaSe", "cAsE"]
    racers = [threading.Thread(target=race, args=(name,)) for name in names]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    (made,) = [outcome for outcome in outcomes if outcome != "name_taken"]
    end_session(home, made)


def test_one_of_two_renames_to_one_name_wins(home: Home, session: Sessions) -> None:
    spec = null_spec(home, "null-rename")
    sessions = [session(kernel=spec) for _ in range(4)]
    codes: list[str] = []
    start = threading.Barrier(4)

    def race(made: Session) -> None:
        with Session.open(made.id) as link:
            start.wait()
            try:
                link.rename("the-name")
                codes.append("ok")
            except ClientError as error:
                codes.append(error.code)

    racers = [threading.Thread(target=race, args=(made,)) for made in sessions]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(codes) == ["name_taken"] * 3 + ["ok"]
    assert [item["name"] for item in run_cli("ls").data].count("the-name") == 1


def test_whoever_ends_while_he_makes_a_session_leaves_a_whole_one_or_none(home: Home) -> None:
    """`new` is killed while its keeper starts: the name is usable at once, and nothing of the attempt stays."""
    flag = home.root / "started"
    program = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(1000)"
    make_spec(home, "slow", [sys.executable, "-c", program, "{connection_file}"])
    maker = subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", "new", "halfway", "--kernel", "slow"],
        stderr=subprocess.DEVNULL,
    )
    _wait_for(flag)
    starting = next(item for item in run_cli("ls").data if item["name"] == "halfway")
    assert starting["state"] == "starting"
    maker.kill()
    maker.wait()
    listed = [item for item in run_cli("ls").data if item["name"] == "halfway"]
    assert [item["state"] for item in listed] in ([], ["starting"])
    assert run_cli("close", "halfway", "--force", code=None).code in (0, 1, 4)
    end_session(home, starting["id"])


def test_ctrl_c_while_a_session_is_made_leaves_nothing(home: Home) -> None:
    flag = home.root / "begun"
    program = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(1000)"
    make_spec(home, "slower", [sys.executable, "-c", program, "{connection_file}"])
    maker = subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", "new", "cut-short", "--kernel", "slower"],
        stderr=subprocess.PIPE,
    )
    _wait_for(flag)
    maker.send_signal(2)
    _, said = maker.communicate(timeout=30)
    assert maker.returncode == 130, said
    assert b"Traceback" not in said
    assert not [item for item in run_cli("ls", "--all").data if item["name"] == "cut-short"]
    home.check_nothing_left()


def _wait_for(file: Path) -> None:
    from tests.faults.attacks import wait_until

    wait_until(file.exists, f"{file} is there")
