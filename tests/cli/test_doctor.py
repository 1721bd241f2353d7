"""`doctor` names what is wrong with advice, changes nothing, and with `--sweep` tidies only what is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from jupyter_cmdop.cli import doctor
from jupyter_cmdop.client import places, processes
from jupyter_cmdop.client.registry import Record, Registry
from jupyter_cmdop.client.shapes import Check
from tests.client.fake_keeper import MakeKeeper


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.check: check for check in checks}


def only(checks: Iterator[Check]) -> Check:
    (check,) = checks
    return check


def lose(registry: Registry, name: str, **fields: Any) -> str:
    gone = subprocess.Popen(["true"])
    gone.wait()
    made = registry.reserve(name)
    registry.update(made.id, pid=gone.pid, link="/l", **fields)
    return made.id


def test_healthy_machine(cli: Any, registry: Registry) -> None:
    done = cli("doctor", "--json")
    schema = resources.files("jupyter_cmdop").joinpath("schemas", "doctor.json").read_text()
    jsonschema.validate(done.json, json.loads(schema))
    names = [check["check"] for check in done.json["checks"]]
    assert {
        "python",
        "jupyter",
        "ipykernel",
        "sqlite",
        "sockets",
        "state",
        "runtime",
        "sessions",
        "trust",
    } <= set(names)
    assert done.json["problems"] == len([c for c in done.json["checks"] if c["level"] == "problem"])
    assert done.code == (1 if done.json["problems"] else 0)
    assert cli("doctor").out.count("\n") == len(names), "one line each"
    assert not registry.pointers.exists(), "looking makes nothing"


def test_every_problem_has_advice(cli: Any, registry: Registry, keepers: MakeKeeper) -> None:
    keepers("silent").link.unlink()
    lose(registry, "lost")
    for check in cli("doctor", "--json").json["checks"]:
        assert check["level"] in ("ok", "note", "problem")
        assert check["level"] != "problem" or check["advice"]


def test_lost_session_and_sweep(cli: Any, registry: Registry) -> None:
    places.private_dir(registry.sessions.parent)
    lost = lose(registry, "lost")
    registry.write_record(Record(id=lost, name="lost"))
    done = cli("doctor")
    assert done.code == 1
    assert "lost is lost: its keeper" in done.out
    assert "jupyter cmdop doctor --sweep" in done.out
    assert "lost tidied away" in cli("doctor", "--sweep").out
    assert registry.list_pointers() == []
    assert "nothing was lost" in cli("doctor", "--sweep").out
    assert "is lost" not in cli("doctor").out


def test_kernel_without_its_keeper_is_named(registry: Registry) -> None:
    me = {"pid": os.getpid(), "start_time": processes.start_time(os.getpid())}
    lose(registry, "lost", backend=me)
    found = [check.text for check in doctor.check_sessions() if check.level == "problem"]
    assert "the kernel of lost still runs without its keeper" in found
    lose(registry, "other", backend={"pid": os.getpid(), "start_time": "1"})
    found = [check.text for check in doctor.check_sessions() if check.level == "problem"]
    assert "the kernel of other still runs without its keeper" not in found


def test_unresponsive_session_is_told_with_its_process(registry: Registry, keepers: MakeKeeper) -> None:
    keepers("silent").link.unlink()
    (problem,) = [check for check in doctor.check_sessions() if check.level == "problem"]
    assert "silent does not answer" in problem.text
    assert f"kill {os.getpid()}" in (problem.advice or "")


def test_session_of_another_host_is_never_to_be_killed_here(registry: Registry) -> None:
    registry.update(registry.reserve("far").id, pid=1, link="/l", host="elsewhere")
    (problem,) = [check for check in doctor.check_sessions() if check.level == "problem"]
    assert problem.advice == "look at it on elsewhere"


def test_unsafe_places(registry: Registry) -> None:
    places.private_dir(registry.pointers).chmod(0o755)
    places.private_dir(places.socket_root()).chmod(0o777)
    assert only(doctor.check_runtime()).level == "problem"
    assert "chmod 700" in (only(doctor.check_sockets()).advice or "")
    assert list(doctor.check_sessions()) == [], "it has been said once"


def test_parent_of_the_sockets_without_a_sticky_bit(registry: Registry) -> None:
    places.SOCKET_PARENT.chmod(0o777)
    assert "chmod +t" in (only(doctor.check_sockets()).advice or "")
    places.SOCKET_PARENT.chmod(0o1777)
    assert only(doctor.check_sockets()).level == "ok"


def test_socket_root_that_is_too_deep(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SOCKET_PARENT", Path("/tmp") / ("x" * 100))
    assert "too long" in only(doctor.check_sockets()).text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_state_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sealed").mkdir(mode=0o500)
    monkeypatch.setenv("CMDOP_STATE_DIR", str(tmp_path / "sealed" / "state"))
    assert "cannot be written" in only(doctor.check_state()).text


def test_network_file_system_and_full_disk(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "detect_network_fs", lambda path: True)
    assert only(doctor.check_state()).level == "note"
    monkeypatch.setattr(doctor, "detect_network_fs", lambda path: False)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    assert any("full disk" in check.text for check in doctor.check_state() if check.level == "problem")


@pytest.mark.parametrize(
    ("version", "level"), [(None, "problem"), ("6.29.5", "note"), ("7.4.0", "ok"), ("8.0.0a1", "ok")]
)
def test_ipykernel(monkeypatch: pytest.MonkeyPatch, version: str | None, level: str) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: version)
    assert only(doctor.check_kernel()).level == level


def test_command_that_jupyter_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert str(Path(sys.executable).parent) in (only(doctor.check_command()).advice or "")


# --- what ends keepers


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, False),
        ({"etc/systemd/logind.conf": "#KillUserProcesses=yes\n"}, False),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": " KillUserProcesses = no \n"}, False),
        (
            {
                "etc/systemd/logind.conf": "KillUserProcesses=no\n",
                "etc/systemd/logind.conf.d/10.conf": "KillUserProcesses=1\n",
            },
            True,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/10.conf": "KillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/20.conf": "KillUserProcesses=no\n",
            },
            False,
        ),
    ],
)
def test_logind(tmp_path: Path, files: dict[str, str], kills: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert doctor.kills_user_processes(tmp_path) is kills


@pytest.mark.parametrize(
    ("has_manager", "lingers", "kills", "level"),
    [
        (True, True, True, "ok"),
        (True, False, False, "note"),
        (False, False, True, "problem"),
        (False, False, False, "ok"),
    ],
)
def test_logout(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_manager: bool,
    lingers: bool,
    kills: bool,
    level: str,
) -> None:
    (tmp_path / "systemd").mkdir()
    if has_manager:
        (tmp_path / "systemd" / "private").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(doctor, "_lingers", lambda: lingers)
    monkeypatch.setattr(doctor, "kills_user_processes", lambda: kills)
    assert only(doctor.check_scope()).level == level


@pytest.mark.parametrize(
    ("cgroup", "service"),
    [
        ("0::/system.slice/jupyterhub.service\n", "jupyterhub.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n", None),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", None),
        ("12:cpu:/\n0::/\n", None),
        ("", None),
    ],
)
def test_service_of_a_cgroup(cgroup: str, service: str | None) -> None:
    assert doctor.service_of(cgroup) == service


def test_cgroup_of_a_service_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_own_cgroup", lambda: "0::/system.slice/jupyter.service\n")
    assert "jupyter.service" in only(doctor.check_cgroup()).text
    monkeypatch.setattr(doctor, "_own_cgroup", lambda: "0::/\n")
    assert list(doctor.check_cgroup()) == []


def test_container_and_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "container", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    assert not doctor.is_container(tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert doctor.is_container(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("JUPYTERHUB_USER", "alice")
    assert set(by_name(doctor.check_container())) == {"hub", "container"}


def test_grant_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMDOP_GRANT_FILE", "/g")
    assert "/g" in by_name(doctor.check_trust())["grant"].text
