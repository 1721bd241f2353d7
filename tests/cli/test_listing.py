"""`ls` and `status`: the promised keys, foreign text made harmless, and an answer at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jupyter_cmdop.cli.listing import when
from jupyter_cmdop.client import places
from jupyter_cmdop.client.registry import Record, Registry
from tests.client.fake_keeper import FakeKeeper, MakeKeeper

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\r\nfake line\x00\x7f\u2028"
LS_SECONDS = 0.25
# What `ls` must never wait for.
HEAVY = {
    "asyncio",
    "jupyter_core",
    "traitlets",
    "zmq",
    "psutil",
    "tornado",
    "jupyter_client",
    "sqlite3",
    "argcomplete",
}


def valid(data: Any, name: str) -> Any:
    schema = json.loads(resources.files("jupyter_cmdop").joinpath("schemas", f"{name}.json").read_text())
    jsonschema.validate(data, schema)
    return data


def is_harmless(text: str) -> bool:
    return not any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2028" for c in text)


def test_ls_json_has_the_promised_keys(cli: Any, keeper: FakeKeeper) -> None:
    done = cli("ls", "--json")
    (item,) = valid(done.json, "ls")
    assert item["name"] == "analysis"
    assert item["kernel_id"] == keeper.session_id
    assert {"id", "kind", "state", "driver", "generation", "incarnation", "policy"} <= set(item)
    assert "from_the_future" not in item


def test_ls_without_sessions(cli: Any) -> None:
    assert cli("ls", "--json").json == []
    assert cli("ls").out == "no sessions; next: jupyter cmdop new NAME\n"


def test_ls_text(cli: Any, keepers: MakeKeeper) -> None:
    keeper = keepers("analysis")
    keeper.status |= {"driver": "bot", "running": [{"operation": "o1", "actor": "bot"}]}
    keepers("quiet")
    lines = [line.split() for line in cli("ls").out.splitlines()]
    assert lines == [
        ["NAME", "STATE", "DRIVER", "POLICY", "KERNEL", "WORK", "HERE"],
        ["analysis", "open", "bot", "open", "python3", "1", "running", "0"],
        ["quiet", "open", "free", "open", "python3", "idle", "0"],
    ]


def test_ls_all_shows_the_past_with_its_reason(cli: Any, registry: Registry) -> None:
    places.private_dir(registry.sessions.parent)
    registry.write_record(
        Record(
            id="00000000-0000-4000-8000-000000000000",
            name="old",
            state="lost",
            reason=f"its keeper {HOSTILE}",
            put_away=True,
        )
    )
    assert cli("ls", "--json").json == []
    (item,) = valid(cli("ls", "--all", "--json").json, "ls")
    assert (item["state"], item["reason"]) == ("lost", f"its keeper {HOSTILE}")
    text = cli("ls", "--all").out
    assert is_harmless(text)
    assert text.count("\n") == 2


def hostile(keeper: FakeKeeper) -> None:
    """Everything that a keeper could be made to say."""
    keeper.status = {
        key: f"{value} {HOSTILE}" if isinstance(value, str) else value for key, value in keeper.status.items()
    }
    keeper.status |= {
        "driver": HOSTILE,
        "cwd": HOSTILE,
        "workspace": HOSTILE,
        "reason": HOSTILE,
        "group": HOSTILE,
        "since": HOSTILE,
        "level": HOSTILE,
        "presence": [{"actor": HOSTILE, "client": HOSTILE, "kind": HOSTILE, "on_behalf_of": HOSTILE}],
        "queue": [{"operation": HOSTILE, "actor": HOSTILE, "preview": HOSTILE, "since": HOSTILE}],
        "running": [{"operation": HOSTILE, "actor": HOSTILE, "preview": HOSTILE}],
        "pending_input": {"operation": HOSTILE, "actor": HOSTILE, "prompt": HOSTILE},
        "processes": [{"pid": 1, "name": HOSTILE}],
        "journal": {"seq": 1, "hash": HOSTILE, "path": HOSTILE},
    }


@pytest.mark.parametrize(
    "argv", [("ls",), ("ls", "--json"), ("status", "analysis"), ("status", "analysis", "--json")]
)
def test_nothing_foreign_acts_on_the_terminal(cli: Any, keeper: FakeKeeper, argv: tuple[str, ...]) -> None:
    hostile(keeper)
    done = cli(*argv)
    assert done.code == 0
    assert is_harmless(done.out)
    assert "fake line" in done.out
    assert not any(line.startswith("fake line") for line in done.out.splitlines())


def test_json_still_means_what_was_said(cli: Any, keeper: FakeKeeper) -> None:
    hostile(keeper)
    assert cli("status", "analysis", "--json").json["driver"] == HOSTILE


def test_status_json(cli: Any, keeper: FakeKeeper) -> None:
    status = valid(cli("status", "analysis", "--json").json, "status")
    assert {"presence", "queue", "running", "pending_input", "processes"} <= set(status)


def test_status_text(cli: Any, keeper: FakeKeeper) -> None:
    keeper.status |= {
        "driver": "bot",
        "since": "2020-01-02T03:04:05Z",
        "generation": 4,
        "incarnation": 2,
        "lease": {"until_seconds": 110.4},
        "presence": [
            {"actor": "bot", "kind": "agent", "role": "peer", "transport": "zmq", "on_behalf_of": "alice"}
        ],
        "running": [{"operation": "o1", "actor": "bot", "preview": "train()"}],
        "pending_input": {"operation": "o1", "actor": "bot", "prompt": "secret: ", "password": True},
        "journal": {"seq": 9, "hash": "abc", "path": "/j"},
    }
    text = cli("status", "analysis").out
    assert "open idle, incarnation 2" in text
    assert "bot since 2020-01-0" in text
    assert "(generation 4, lease 110 s)" in text
    assert "o1 by bot: train()" in text
    assert "o1 by bot waits for a password" in text
    assert "bot (agent, peer) on behalf of alice by zmq" in text
    assert "9:abc in /j" in text


def test_status_of_a_past_session(cli: Any, registry: Registry) -> None:
    places.private_dir(registry.sessions.parent)
    record = Record(
        id="00000000-0000-4000-8000-000000000000", name="old", state="closed", closed="2026-01-01T00:00:00Z"
    )
    registry.write_record(record)
    done = cli("status", "old", "--json")
    assert done.code == 0
    assert valid(done.json, "status")["state"] == "closed"
    assert "it was closed 2026-01-01" in cli("status", "OLD").out


def test_times() -> None:
    assert when(None) == "None"
    assert when("nonsense\x1b") == "nonsense\x1b"
    assert when(1e300) == "1e+300"
    assert len(when(time.time())) == len("12:34:56")
    assert when("2020-01-02T03:04:05Z").startswith("2020-01-0")


def test_ls_imports_nothing_heavy_and_asks_no_one_else(keeper: FakeKeeper) -> None:
    code = (
        "import sys\n"
        "from jupyter_cmdop.cli.main import main\n"
        "assert main(['ls', '--json']) == 0\n"
        "print(' '.join(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)[0]["state"] == "open"
    assert not HEAVY & set(done.stderr.split())


def seconds_of_ls() -> float:
    """How long `ls` takes, without the time for which other processes had the processor."""
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "jupyter_cmdop.cli", "ls"], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    seconds = time.perf_counter() - begun
    schedule = Path(f"/proc/{child.pid}/schedstat")
    if schedule.exists():  # run time, time in the queue of the processor (ns), number of slices
        seconds -= int(schedule.read_text().split()[1]) / 1e9
    assert child.wait() == 0
    return seconds


def test_ls_answers_at_once(keeper: FakeKeeper) -> None:
    taken = []
    for _ in range(8):
        taken.append(seconds_of_ls())
        if taken[-1] <= LS_SECONDS:
            return
    pytest.fail(f"ls took {min(taken):.3f} s at best")
