"""`read`, `log`, `verify`: from a keeper while it lives, from the journal afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jupyter_cmdop.client import places
from jupyter_cmdop.client.registry import Record, Registry
from jupyter_cmdop.journal.entry import Entry
from jupyter_cmdop.journal.store import JournalStore
from jupyter_cmdop.wire.websocket import encode_v1
from tests.client.fake_keeper import Call, FakeKeeper

OLD = "00000000-0000-4000-8000-000000000000"


def valid(data: Any, name: str) -> Any:
    schema = json.loads(resources.files("jupyter_cmdop").joinpath("schemas", f"{name}.json").read_text())
    jsonschema.validate(data, schema)
    return data


def entry(kind: str, **fields: Any) -> Entry:
    return Entry(
        type=kind, time_ns=time.time_ns(), mono_ns=time.monotonic_ns(), incarnation=1, generation=1, **fields
    )


@pytest.fixture
def old(registry: Registry) -> Path:
    """A closed session with a short journal; its directory."""
    places.private_dir(registry.sessions.parent)
    registry.write_record(Record(id=OLD, name="old", state="closed", closed="2026-01-01T00:00:00Z"))
    header = json.dumps({"msg_id": "m", "msg_type": "stream"}).encode()
    content = json.dumps({"name": "stdout", "text": "said \x1b[2J\n"}).encode()
    body = encode_v1("iopub", header, b"{}", b"{}", content, [])
    store = JournalStore.open(registry.sessions / OLD, OLD)
    store.append(
        store.head.seq,
        1,
        [
            entry("opened", actor="alice", body=b'{"name": "old"}'),
            entry(
                "refused", actor="bot", body=json.dumps({"code": "busy", "message": "\x1b[2J\nx"}).encode()
            ),
            entry("output", operation="o1", body=body, form="v1"),
        ],
    )
    store.close()
    return registry.sessions / OLD


def stream(text: str, seq: int, operation: str = "o1", name: str = "stdout") -> dict[str, Any]:
    return {
        "output": {"output_type": "stream", "name": name, "text": text},
        "seq": seq,
        "operation": operation,
        "actor": "bot",
        "relation": "during",
        "incarnation": 1,
    }


def three_outputs(call: Call) -> None:
    call.item(**stream("one\n", 1))
    call.item(**stream("err\x1b[2J\n", 2, name="stderr"))
    call.item(**stream("two", 3, operation="o2"))
    call.result(cursor="1:3", more=True)


def test_read(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("read", three_outputs)
    done = cli("read", "analysis", "--after", "1:0", "--view", "stream")
    assert keeper.args_of("read") == {"view": "stream", "after": "1:0", "limit_bytes": None, "follow": False}
    assert done.code == 0
    assert done.out == "one\ntwo"
    assert done.err == "err\\x1b[2J\nnote: there is more; next: jupyter cmdop read analysis --after 1:3\n"


def test_read_json(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("read", three_outputs)
    got = valid(cli("read", "analysis", "--json").json, "read")
    assert (len(got["items"]), got["cursor"], got["more"]) == (3, "1:3", True)


def test_read_follow_ends_with_the_session(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("read", lambda call: (call.item(**stream("one\n", 1)), keeper.drop_links()))
    done = cli("read", "analysis", "--follow")
    assert (done.code, done.out) == (0, "one\n")
    assert done.err.startswith("note: analysis does not go on")
    assert [item["seq"] for item in cli("read", "analysis", "--follow", "--json").lines] == [1]


def test_read_follow_ends_with_ctrl_c(keeper: FakeKeeper) -> None:
    keeper.on("read", lambda call: call.item(**stream("one\n", 1)))
    child = subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", "read", "analysis", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "one\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "")


def test_read_the_past(cli: Any, old: Path) -> None:
    done = cli("read", "old")
    assert (done.code, done.out) == (0, "said \\x1b[2J\n")
    got = valid(cli("read", "old", "--json").json, "read")
    assert got["cursor"] == f"1:{got['items'][0]['seq']}"
    assert cli("read", "old", "--after", got["cursor"], "--json").json["items"] == []
    assert cli("read", "old", "--after", "x").code == 2


ENTRIES = [
    {"seq": 1, "time": "2026-01-01T00:00:00.000001Z", "type": "opened", "actor": "alice", "hash": "aa"},
    {
        "seq": 2,
        "time": "2026-01-01T00:00:00.000002Z",
        "type": "refused",
        "actor": "bot\x1b[2J",
        "operation": "o1",
        "generation": 1,
        "on_behalf_of": "alice",
        "data": {"code": "busy", "message": "a\nb", "digest": "dd", "n": [1]},
        "unheard_of": 1,
    },
    {"seq": 3, "type": "input_answered", "actor": "bot", "withheld": True},
    {"seq": 4, "type": "output", "pruned": True},
]


def four_entries(call: Call) -> None:
    for one in ENTRIES:
        call.item(entry=one)
    call.result(head={"seq": 4, "hash": "bb"})


def test_log_json_is_one_object_a_line(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("log", four_entries)
    done = cli("log", "analysis", "--json")
    assert done.lines == ENTRIES
    for line in done.lines:
        valid(line, "log")


def test_log_text_is_one_harmless_line_an_entry(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("log", four_entries)
    done = cli(
        "log", "analysis", "--actor", "bot", "--operation", "o1", "--type", "a", "--type", "b", "--after", "0"
    )
    assert keeper.args_of("log") == {
        "after": 0,
        "actor": "bot",
        "operation": "o1",
        "types": ["a", "b"],
        "limit": None,
        "follow": False,
    }
    lines = done.out.splitlines()
    assert len(lines) == 4
    assert "bot\\x1b[2J" in lines[1]
    assert lines[1].endswith("for alice code=busy message=a\\nb n=[1]")
    assert lines[2].endswith("(withheld)")
    assert lines[3].endswith("(dropped since)")
    assert "\x1b" not in done.out


def test_log_follow_goes_on_until_the_session_ends(cli: Any, keeper: FakeKeeper) -> None:
    keeper.on("log", lambda call: (call.item(entry=ENTRIES[0]), keeper.drop_links()))
    done = cli("log", "analysis", "--follow", "--json")
    assert keeper.args_of("log")["follow"] is True
    assert (done.code, len(done.lines)) == (0, 1)


def test_log_of_the_past(cli: Any, old: Path) -> None:
    done = cli("log", "old", "--json")
    assert [line["type"] for line in done.lines] == ["opened", "refused", "output"]
    for line in done.lines:
        valid(line, "log")
    assert [line["type"] for line in cli("log", "old", "--type", "refused", "--json").lines] == ["refused"]
    text = cli("log", f"old@{OLD[:8]}").out
    assert "message=\\x1b[2J\\nx" in text
    assert text.count("\n") == 3


def test_log_of_a_past_without_a_journal(cli: Any, old: Path) -> None:
    (old / "journal.sqlite").unlink()
    done = cli("log", "old")
    assert done.code == 1
    assert "cannot be read" in done.err


def test_verify_live(cli: Any, keeper: FakeKeeper) -> None:
    report = {"ok": True, "entries": 3, "head_seq": 3, "head_hash": "aa", "pruned": 1}
    keeper.result("verify", **report)
    assert valid(cli("verify", "analysis", "--json").json, "verify")["ok"]
    done = cli("verify", "analysis", "--receipt", "2:bb")
    assert done.out == "whole: 3 entries, the bodies of 1 dropped since; receipt 3:aa\n"
    keeper.args_of("verify")
    assert keeper.args_of("verify") == {"receipt": "2:bb"}
    keeper.result("verify", ok=False, entries=1, first_bad=2, problem="changed \x1b[2J")
    done = cli("verify", "analysis")
    assert done.code == 1
    assert done.out == "NOT whole at entry 2: changed \\x1b[2J (1 entries before it are good)\n"


def test_verify_the_past_by_name_and_by_directory(
    cli: Any, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = valid(cli("verify", "old", "--json").json, "verify")
    assert report["ok"]
    receipt = f"{report['head_seq']}:{report['head_hash']}"
    assert cli("verify", str(old), "--receipt", receipt).code == 0
    assert cli("verify", str(old), "--receipt", f"{report['head_seq'] + 1}:{report['head_hash']}").code == 1
    assert cli("verify", "old", "--receipt", "nonsense").code == 2
    monkeypatch.chdir(old.parent)
    assert cli("verify", old.name).code == 0
    assert cli("verify", "./nowhere").code == 1


def test_verify_names_the_damage(cli: Any, old: Path) -> None:
    database = old / "journal.sqlite"
    raw = bytearray(database.read_bytes())
    at = raw.index(b"alice")
    raw[at : at + 5] = b"mallo"
    database.write_bytes(raw)
    done = cli("verify", "old", "--json")
    assert done.code == 1
    assert done.json["first_bad"] == 1
