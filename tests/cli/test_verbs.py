"""Floor, access and lifecycle verbs: what is asked of the keeper, what a person and a program read."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jupyter_cmdop.client import processes, spawn
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.spawn import Spawned
from tests.client.fake_keeper import Call, FakeKeeper, MakeKeeper

FLOOR = {
    "driver": "alice",
    "generation": 2,
    "policy": "turns",
    "since": None,
    "superseded": ["o1"],
    "adopted": ["o2"],
    "running": ["o3"],
}


def valid(data: Any, name: str) -> Any:
    schema = json.loads(resources.files("jupyter_cmdop").joinpath("schemas", f"{name}.json").read_text())
    jsonschema.validate(data, schema)
    return data


@pytest.mark.parametrize(
    ("argv", "verb", "sent"),
    [
        (
            ("take", "analysis"),
            "take",
            {"reason": None, "running": "let", "queue": "drop", "lease_seconds": None},
        ),
        (
            (
                "take",
                "analysis",
                "--reason",
                "r",
                "--running",
                "interrupt",
                "--queue",
                "adopt",
                "--lease",
                "2m",
            ),
            "take",
            {"reason": "r", "running": "interrupt", "queue": "adopt", "lease_seconds": 120.0},
        ),
        (("hand-back", "analysis"), "hand_back", {"to": None, "note": None}),
        (("hand-back", "analysis", "--to", "bob", "--note", "n"), "hand_back", {"to": "bob", "note": "n"}),
        (("release", "analysis"), "release", {}),
        (("policy", "analysis", "turns"), "policy", {"policy": "turns"}),
    ],
)
def test_floor(cli: Any, keeper: FakeKeeper, argv: tuple[str, ...], verb: str, sent: dict[str, Any]) -> None:
    keeper.result(verb, **FLOOR)
    assert valid(cli(*argv, "--json").json, "floor")["driver"] == "alice"
    assert keeper.args_of(verb) == sent
    done = cli(*argv)
    assert done.code == 0
    assert done.out == (
        "alice drives (generation 2, policy turns)\n"
        "  given back to their authors: o1\n  taken over: o2\n  still running: o3\n"
    )


def test_free_floor(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("release", driver=None, generation=3, policy="open")
    assert cli("release", "analysis").out == "the floor is free (generation 3, policy open)\n"


def test_caller_is_said_in_the_hello(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("take", **FLOOR)
    cli("--as", "bot", "take", "analysis", "--kind", "agent")
    hello = keeper.hellos.get(timeout=10)
    assert (hello["actor"], hello["kind"], hello["client"]) == ("bot", "agent", "jupyter cmdop take")


def test_grant_file_is_said_in_the_hello(
    cli: Any, keeper: FakeKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bot.json"
    grant = {"session": keeper.session_id, "name": "analysis", "token": "t", "actor": "bot"}
    path.write_text(json.dumps({"cmdop": grant}))
    path.chmod(0o600)
    keeper.result("take", **FLOOR)
    monkeypatch.setenv("CMDOP_GRANT_FILE", str(path))
    assert cli("take", "analysis").code == 0
    assert keeper.hellos.get(timeout=10)["token"] == "t"
    path.chmod(0o644)
    done = cli("take", "analysis")
    assert done.code == 1
    assert f"chmod 600 {path}" in done.err


# --- access


def invitation(**fields: Any) -> dict[str, Any]:
    return {
        "connection_file": "/run/a b/bot.json",
        "token": "secret",
        "actor": "bot",
        "kind": "agent",
        "role": "peer",
        "expires": None,
        "grant": "g1",
        "transport": "ipc",
    } | fields


def test_invite_prints_the_line_to_paste(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("invite", **invitation())
    done = cli("invite", "analysis", "--as", "bot", "--kind", "agent", "--expires", "8h")
    assert keeper.args_of("invite") == {
        "actor": "bot",
        "kind": "agent",
        "role": "peer",
        "expires_seconds": 28800.0,
        "transport": "ipc",
    }
    pasted = next(line.strip() for line in done.out.splitlines() if "jupyter console" in line)
    assert shlex.split(pasted) == ["jupyter", "console", "--existing", "/run/a b/bot.json"]
    assert "bot (agent, peer) may come in until it is revoked:" in done.out
    assert "secret" not in done.out
    assert keeper.hellos.get(timeout=10)["actor"] is None, "the guest is not the caller"


def test_invite_json(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result("invite", **invitation(expires="2026-01-01T00:00:00Z"))
    invite = valid(cli("invite", "analysis", "--json").json, "invite")
    assert {"connection_file", "token", "actor", "expires"} <= set(invite)
    assert keeper.args_of("invite")["actor"] is None
    assert "until 2026-01-01" in cli("invite", "analysis").out


def test_grants_and_revoke(cli: Any, keeper: FakeKeeper) -> None:
    keeper.result(
        "grants",
        grants=[
            {"grant": "g1", "actor": "b\x1b[2J", "kind": "agent", "role": "peer", "connected": True},
            {"grant": "g2", "actor": "carol", "expires": "2026-01-01", "connected": 0},
        ],
    )
    assert len(valid(cli("grants", "analysis", "--json").json, "grants")["grants"]) == 2
    text = cli("grants", "analysis").out
    assert "b\\x1b[2J" in text
    assert "\x1b" not in text
    keeper.result("grants", grants=[])
    assert "nobody has been let in" in cli("grants", "analysis").out
    keeper.result("revoke", grant="g1", actor="bot")
    assert valid(cli("revoke", "analysis", "bot", "--json").json, "revoke") == {"grant": "g1", "actor": "bot"}
    assert cli("revoke", "analysis", "bot").out == "g1 of bot is revoked\n"


# --- lifecycle


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Nothing is started; what would have been is noted."""
    calls: list[dict[str, Any]] = []

    def fake(name: str, **options: Any) -> Spawned:
        calls.append({"name": name} | options)
        return Spawned(id="i", name=name, link="/l", pid=42, spec=options["spec"])

    monkeypatch.setattr("jupyter_cmdop.cli.lifecycle.spawn", fake)
    return calls


def test_new(
    cli: Any, spawned: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text("x = 'é'\n", encoding="utf-8")
    done = cli(
        *("new", "analysis", "--kernel", "bash", "--policy", "turns", "--cwd", "/tmp", "--group", "g"),
        *("--setup", str(setup), "--json"),
    )
    assert done.code == 0
    assert valid(done.json, "new") == {
        "name": "analysis",
        "id": "i",
        "kind": "kernel",
        "created": True,
        "kernel_id": "i",
        "pid": 42,
        "spec": "bash",
    }
    (call,) = spawned
    assert (call["spec"], call["policy"], call["cwd"], call["group"]) == ("bash", "turns", "/tmp", "g")
    assert call["setup"] == "x = 'é'\n"
    assert call["progress"] is None
    monkeypatch.setattr(sys, "stdin", io.StringIO("y = 2"))
    assert "analysis is running (python3, process 42)" in cli("new", "analysis", "--setup", "-").out
    assert spawned[-1]["setup"] == "y = 2"


def test_setup_that_cannot_be_read(cli: Any, spawned: list[dict[str, Any]], tmp_path: Path) -> None:
    assert cli("new", "analysis", "--setup", str(tmp_path / "nowhere")).code == 1
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in cli("new", "analysis", "--setup", str(tmp_path / "binary")).err
    assert not spawned


def test_bad_name_is_usage(cli: Any, registry: Registry) -> None:
    done = cli("new", "a b\x1b[2J")
    assert done.code == 2
    assert "cannot name a session" in done.err
    assert "\x1b" not in done.err


def test_taken_name(cli: Any, keeper: FakeKeeper) -> None:
    done = cli("new", "ANALYSIS")
    assert done.code == 3
    assert "jupyter cmdop attach analysis" in done.err
    done = cli("new", "ANALYSIS", "--if-exists", "attach", "--json")
    assert done.code == 0
    made = valid(done.json, "new")
    assert (made["created"], made["id"], made["pid"]) == (False, keeper.session_id, os.getpid())
    assert "was there already" in cli("new", "analysis", "--if-exists", "attach").out


def test_session_that_is_being_made_is_waited_for(
    cli: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = registry.reserve("analysis")

    def ready(seconds: float) -> None:
        me = os.getpid()
        registry.update(made.id, state="open", pid=me, start_time=processes.start_time(me), link="/l")

    monkeypatch.setattr("jupyter_cmdop.cli.lifecycle.time.sleep", ready)
    assert cli("new", "analysis", "--if-exists", "attach", "--json").json["id"] == made.id


def test_session_that_fails_while_it_is_waited_for(
    cli: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = registry.reserve("analysis")
    monkeypatch.setattr("jupyter_cmdop.cli.lifecycle.time.sleep", lambda seconds: registry.remove(made.id))
    assert cli("new", "analysis", "--if-exists", "attach").code == 4


def test_rename_restart_close(cli: Any, keepers: MakeKeeper, registry: Registry) -> None:
    keeper = keepers("analysis")
    keeper.result("rename", name="other")
    assert valid(cli("rename", "analysis", "other", "--json").json, "rename") == {"name": "other"}
    assert cli("rename", "analysis", "other").out == "analysis is called other now\n"
    assert cli("rename", "analysis", "a b").code == 2
    keeper.result("restart", incarnation=2)
    assert valid(cli("restart", "analysis", "--json").json, "restart") == {"incarnation": 2}
    assert "incarnation 2" in cli("restart", "analysis").out

    def close(call: Call) -> None:
        registry.remove(keeper.session_id)
        call.result(closed=True, ended=[7, 8])

    keeper.on("close", close)
    done = cli("close", "analysis", "--force", "--json")
    assert valid(done.json, "close") == {"closed": True, "ended": [7, 8]}
    assert keeper.args_of("close") == {"force": True}
    other = keepers("more")
    other.on("close", lambda call: (registry.remove(other.session_id), call.result(closed=True, ended=[9])))
    assert cli("close", "more").out.startswith("more is closed (ended: 9)\n")


def test_close_returns_when_the_name_is_free(
    cli: Any, keeper: FakeKeeper, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.result("close", closed=True)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        registry.remove(keeper.session_id)

    monkeypatch.setattr("jupyter_cmdop.cli.lifecycle.time.sleep", wait)
    assert cli("close", "analysis").code == 0
    assert len(waits) == 1


def test_spawn_is_the_real_one() -> None:
    from jupyter_cmdop.cli import lifecycle

    assert lifecycle.spawn is spawn.spawn
