"""Starting a keeper: what it inherits, how long we wait, and that a failure leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client import places, processes, spawn
from jupyter_cmdop.client.errors import PlaceError, Refused, SpawnFailed
from jupyter_cmdop.client.registry import Registry, facts
from jupyter_cmdop.core.actor import BadName

FAKE = Path(__file__).with_name("fake_keeper_process.py")


@pytest.fixture(autouse=True)
def fake_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(spawn, "KEEPER", (sys.executable, str(FAKE)))
    monkeypatch.setattr(spawn, "END_SECONDS", 0.5)
    yield
    for child in spawn._children:
        child.kill()
        child.wait()
    spawn.reap()


def seen(registry: Registry, made: spawn.Spawned) -> dict[str, Any]:
    """What the fake keeper saw of its surroundings."""
    found: dict[str, Any] = json.loads((registry.sessions / made.id / "facts.json").read_text())
    return found


def nothing_left(registry: Registry) -> bool:
    left = [*registry.pointers.glob("*.json"), *registry.pointers.glob("*/"), *registry.sessions.glob("*")]
    return not left and not list(places.socket_root().glob("*"))


def test_started_keeper_is_registered(registry: Registry, tmp_path: Path) -> None:
    made = spawn.spawn("analysis", spec="python3", policy="turns", cwd=tmp_path, group="g", setup="x = 1")
    (pointer,) = registry.list_pointers()
    assert (pointer.id, pointer.name, pointer.pid, pointer.group) == (made.id, "analysis", made.pid, "g")
    assert facts(pointer).state == "alive"
    assert Path(made.link).exists()
    record = registry.record(made.id)
    assert record is not None
    assert (record.name, record.state, record.policy, record.spec) == ("analysis", "open", "turns", "python3")
    state = registry.sessions / made.id
    config = json.loads((state / "config.json").read_text())
    assert config["setup"] == "x = 1"
    assert config["cwd"] == config["workspace"] == str(tmp_path)
    assert config["owner"]["id"]
    assert Path(config["connections"]).is_dir()
    for path in (state, Path(config["sockets"]), Path(config["connections"])):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for name in ("config.json", "keeper.log", "session.json"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600


def test_keepers_config_is_what_the_keeper_reads(registry: Registry, tmp_path: Path) -> None:
    from jupyter_cmdop.keeper.config import read_config

    made = spawn.spawn("analysis", cwd=tmp_path)
    config = read_config(registry.sessions / made.id / "config.json")
    assert (config.id, config.policy, config.pointer) == (
        made.id,
        "open",
        str(registry.pointer_path(made.id)),
    )


def test_keeper_is_a_child_of_nobodys_terminal(registry: Registry) -> None:
    made = spawn.spawn("analysis")
    surroundings = seen(registry, made)
    assert surroundings["session"] == surroundings["pid"] == made.pid
    assert surroundings["cwd"] == "/"


def test_keeper_inherits_no_descriptor_but_the_one_it_reports_on(registry: Registry, tmp_path: Path) -> None:
    leaky = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaky, True)
    listener = socket.socket()
    listener.set_inheritable(True)
    try:
        made = spawn.spawn("analysis")
    finally:
        os.close(leaky)
        listener.close()
    surroundings = seen(registry, made)
    descriptors = {int(number): target for number, target in surroundings["descriptors"].items()}
    log = str(registry.sessions / made.id / "keeper.log")
    assert descriptors.pop(0) == "/dev/null"
    assert descriptors.pop(1) == descriptors.pop(2) == log
    assert descriptors.pop(surroundings["ready"]).startswith("pipe:")
    assert descriptors == {}


def test_keeper_keeps_the_users_environment_and_no_credential(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_OWN", "kept")
    monkeypatch.setenv("CMDOP_GRANT_FILE", "/secret")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    environment = seen(registry, spawn.spawn("analysis"))["environment"]
    assert environment["MY_OWN"] == "kept"
    assert environment["PATH"] == os.environ["PATH"]
    assert not {"CMDOP_GRANT_FILE", "JPY_PARENT_PID", "NOTIFY_SOCKET"} & set(environment)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("error", "no kernel spec is called julia"),
        ("crash", r"ended before it was ready \(exit status 1\)"),
        ("garbage", "something that is no report"),
        ("silent", r"ended before it was ready \(exit status 0\)"),
    ],
)
def test_failure_is_told_and_leaves_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, behaviour: str, message: str
) -> None:
    monkeypatch.setenv("FAKE_KEEPER", behaviour)
    with pytest.raises(SpawnFailed, match=message) as caught:
        spawn.spawn("analysis")
    assert caught.value.log[0] == f"fake keeper {behaviour}"
    if behaviour == "crash":
        assert caught.value.log[-1] == "RuntimeError: the fake crashed"
    assert nothing_left(registry)
    assert not spawn._children
    monkeypatch.setenv("FAKE_KEEPER", "ready")
    assert spawn.spawn("analysis").name == "analysis", "the name is free again"


def test_keeper_that_is_never_ready_is_ended(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEEPER", "stubborn")
    monkeypatch.setattr(spawn, "PROGRESS_SECONDS", 0.05)
    launched: list[subprocess.Popen[bytes]] = []
    launch = spawn._launch

    def remember(*args: Any) -> Any:
        launched.append(launch(*args))
        return launched[-1]

    monkeypatch.setattr(spawn, "_launch", remember)
    told: list[float] = []
    with pytest.raises(SpawnFailed, match="not ready after"):
        spawn.spawn("analysis", ready_seconds=0.5, progress=told.append)
    assert told == sorted(told)
    assert len(told) > 2
    assert launched[0].returncode in (-signal.SIGTERM, -signal.SIGKILL)
    assert nothing_left(registry)


def test_interrupted_wait_leaves_nothing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the keeper starts."""
    monkeypatch.setenv("FAKE_KEEPER", "stubborn")
    monkeypatch.setattr(spawn, "PROGRESS_SECONDS", 0.01)

    def interrupt(passed_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spawn.spawn("analysis", progress=interrupt)
    assert nothing_left(registry)


def test_taken_name_starts_nothing(registry: Registry) -> None:
    first = spawn.spawn("analysis")
    with pytest.raises(Refused) as caught:
        spawn.spawn("Analysis")
    assert caught.value.refusal.code == "name_taken"
    assert [item.id for item in registry.list_pointers()] == [first.id]
    assert len(list(places.socket_root().iterdir())) == 1


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "é", "a\n"])
def test_bad_name_touches_nothing(registry: Registry, name: str) -> None:
    with pytest.raises(BadName):
        spawn.spawn(name)
    assert not registry.pointers.exists()


def test_directory_that_does_not_exist(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(SpawnFailed, match="is no directory"):
        spawn.spawn("analysis", cwd=tmp_path / "nowhere")
    assert not registry.pointers.exists()


def test_working_directory_that_was_removed(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SpawnFailed, match="has been removed"):
        spawn.spawn("analysis")


def test_unsafe_state_directory_is_refused_and_the_name_is_free(registry: Registry) -> None:
    registry.sessions.parent.mkdir(parents=True)
    registry.sessions.parent.chmod(0o755)
    with pytest.raises(PlaceError):
        spawn.spawn("analysis")
    assert registry.list_pointers() == []
    assert not list(places.socket_root().iterdir())


def test_ended_children_do_not_stay_zombies(registry: Registry) -> None:
    made = spawn.spawn("analysis")
    os.kill(made.pid, signal.SIGKILL)
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
    assert processes.process_state(made.pid) == "zombie"
    spawn.reap()
    assert processes.process_state(made.pid) == "gone"


# --- systemd


@pytest.fixture
def user_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks as if a user manager ran, with a systemd-run in PATH that the test writes."""
    runtime = tmp_path / "xdg"
    (runtime / "systemd").mkdir(parents=True)
    (runtime / "systemd" / "private").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs / "systemd-run"


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_scope_is_used_where_a_user_manager_runs(registry: Registry, user_manager: Path) -> None:
    write_program(
        user_manager,
        'echo "$@" > "$0.args"; while [ "$1" != "--" ]; do shift; done; shift; exec "$@"',
    )
    made = spawn.spawn("analysis")
    args = Path(f"{user_manager}.args").read_text().split()
    assert args[: args.index("--") + 1] == [
        "--user",
        "--scope",
        "--quiet",
        "--collect",
        f"--unit=cmdop-{made.id[:8]}",
        "--",
    ]
    assert facts(registry.list_pointers()[0]).state == "alive"


def test_without_a_scope_the_keeper_starts_all_the_same(registry: Registry, user_manager: Path) -> None:
    write_program(user_manager, 'echo "Failed to connect to bus" >&2; exit 1')
    made = spawn.spawn("analysis")
    assert facts(registry.list_pointers()[0]).state == "alive"
    assert seen(registry, made)["pid"] == made.pid


def test_error_of_a_keeper_in_a_scope_is_not_tried_again(
    registry: Registry, user_manager: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEEPER", "error")
    write_program(
        user_manager, 'echo x >> "$0.count"; while [ "$1" != "--" ]; do shift; done; shift; exec "$@"'
    )
    with pytest.raises(SpawnFailed, match="no kernel spec"):
        spawn.spawn("analysis")
    assert Path(f"{user_manager}.count").read_text() == "x\n"


def test_no_scope_without_a_user_manager(registry: Registry, user_manager: Path) -> None:
    write_program(user_manager, "exit 1")
    (user_manager.parent.parent / "xdg" / "systemd" / "private").unlink()
    assert spawn.scope_prefix("12345678") == []
