"""Directories of ours are private, and nothing prepared by somebody else is ever used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_cmdop.client import places
from jupyter_cmdop.client.errors import PlaceError
from jupyter_cmdop.client.registry import Registry

ENVIRONMENTS = {
    "defaults": {},
    "data dir": {"JUPYTER_DATA_DIR": "/somewhere/data"},
    "runtime dir": {"JUPYTER_RUNTIME_DIR": "/somewhere/run", "JUPYTER_DATA_DIR": "/somewhere/data"},
    "xdg": {"XDG_DATA_HOME": "/somewhere/xdg"},
    "empty xdg": {"XDG_DATA_HOME": ""},
    "platform dirs": {"JUPYTER_PLATFORM_DIRS": "1", "XDG_DATA_HOME": "/somewhere/xdg"},
    "platform dirs set to nothing": {"JUPYTER_PLATFORM_DIRS": ""},
    "platform dirs off": {"JUPYTER_PLATFORM_DIRS": "Off"},
    "home": {"HOME": "/somewhere/home"},
    "xdg runtime dir is ignored": {"XDG_RUNTIME_DIR": "/run/user/1"},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_directories_are_those_of_jupyter_core(environment: dict[str, str]) -> None:
    code = (
        "from jupyter_core import paths; from jupyter_cmdop.client import places; import sys\n"
        "assert str(places.jupyter_data_dir()) == paths.jupyter_data_dir(), paths.jupyter_data_dir()\n"
        "assert str(places.jupyter_runtime_dir()) == paths.jupyter_runtime_dir(), paths.jupyter_runtime_dir()\n"
    )
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER_", "XDG_", "CMDOP_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_home_behind_a_link_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_PLATFORM_DIRS", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert places.jupyter_data_dir().is_relative_to(tmp_path / "real")


def test_state_dir_follows_the_variable_and_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("CMDOP_STATE_DIR", str(tmp_path / "link"))
    assert places.sessions_dir() == tmp_path / "real" / "sessions"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_made_directories_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = places.private_dir(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    for path in (made, made.parent, made.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777, 0o770])
def test_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(PlaceError, match="others may look into it") as caught:
        places.private_dir(path)
    assert f"chmod 700 {path}" in str(caught.value)
    assert stat.S_IMODE(path.stat().st_mode) == mode, "it is never repaired: whoever made it may have it open"


def test_link_is_refused_even_to_a_safe_directory(tmp_path: Path) -> None:
    places.private_dir(tmp_path / "safe")
    (tmp_path / "link").symlink_to(tmp_path / "safe")
    with pytest.raises(PlaceError, match="symbolic link"):
        places.private_dir(tmp_path / "link")


def test_dangling_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PlaceError, match="symbolic link"):
        places.private_dir(tmp_path / "link")


def test_file_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match="not a directory"):
        places.private_dir(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a directory of somebody else")
def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(PlaceError, match="belongs to user id 65534"):
        places.private_dir(path)


def test_directory_that_cannot_be_made_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CMDOP_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(PlaceError, match="set CMDOP_STATE_DIR"):
        places.private_dir(places.state_dir())


def test_socket_dirs_are_fresh_private_and_ignore_tmpdir(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 30)))
    first, second = places.make_socket_dir(), places.make_socket_dir()
    assert first != second
    assert first.parent == places.SOCKET_PARENT / f"cmdop-{os.geteuid()}"
    assert len(first.name) == 8
    assert stat.S_IMODE(first.stat().st_mode) == 0o700


@pytest.mark.parametrize("prepared", ["link", "open", "file"])
def test_prepared_socket_root_is_refused(registry: Registry, tmp_path: Path, prepared: str) -> None:
    """/tmp is everybody's: whoever comes first could wait for us there."""
    root = places.socket_root()
    if prepared == "link":
        root.symlink_to(tmp_path)
    elif prepared == "open":
        root.mkdir(mode=0o777)
        root.chmod(0o777)
    else:
        root.touch()
    with pytest.raises(PlaceError):
        places.make_socket_dir()


def test_socket_dir_that_exists_is_never_taken(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["00000000", "00000000", "11111111"])
    monkeypatch.setattr(places, "random_name", lambda: next(names))
    assert places.make_socket_dir().name == "00000000"
    assert places.make_socket_dir().name == "11111111"


def test_longest_socket_path_is_the_systems(tmp_path: Path) -> None:
    import socket
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        fits = f"{short}/".ljust(places.SOCKET_PATH_BYTES, "x")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(places.check_socket_path(fits))
        with pytest.raises(PlaceError, match="too long"):
            places.check_socket_path(fits + "x")
        with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="too long"):
            listener.bind(fits + "x")


def test_only_direct_children_of_the_socket_root_are_ours_to_remove(registry: Registry) -> None:
    root = places.socket_root()
    assert places.is_in_socket_root(root / "0a1b2c3d")
    for path in (root, root / "a" / "b", root / "..", Path("/etc"), root.with_name(root.name + "x") / "a"):
        assert not places.is_in_socket_root(path)


def test_private_file_replaces_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    before = os.umask(0)
    try:
        places.write_private_file(path, b"one")
        places.write_private_file(path, b"two")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_private_file_does_not_follow_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "record.json").symlink_to(victim)
    places.write_private_file(tmp_path / "record.json", b"new")
    assert victim.read_bytes() == b"mine"
    assert not (tmp_path / "record.json").is_symlink()
