"""`doctor`: what on this machine helps or hinders sessions, one line each, with advice where something is wrong.

Each check is a function that yields lines and changes nothing; `--sweep` is the only thing that acts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from jupyter_cmdop._version import __version__
from jupyter_cmdop.client import places, processes, shapes
from jupyter_cmdop.client.census import ask_all
from jupyter_cmdop.client.errors import ClientError, PlaceError
from jupyter_cmdop.client.registry import Pointer, Registry
from jupyter_cmdop.client.shapes import Check
from jupyter_cmdop.journal.files import detect_network_fs

from . import exits, render
from .output import print_json, print_text, wants_json

Checks = Iterator[Check]
PACKAGES = ("jupyter_client", "jupyter_server", "jupyter_console", "jupyterlab", "notebook", "pyzmq")
OLDEST_SQLITE = (3, 35, 0)
"""For RETURNING and for a WAL without known corruption bugs."""
FREE_BYTES_NEEDED = 256 * 1024 * 1024
"""What the outputs of one session may take."""
_MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "problem": ("PROBLEM", "red")}


def doctor(args: argparse.Namespace) -> int:
    """Exit code: 1 when there is a problem."""
    checks = list(_sweep()) if args.sweep else []
    for look in CHECKS:
        checks += look()
    problems = sum(check.level == "problem" for check in checks)
    if wants_json(args):
        print_json(shapes.DoctorReport(checks=tuple(checks), problems=problems))
    else:
        for check in checks:
            print_text(_line(check))
    return exits.FAILED if problems else exits.DONE


def _line(check: Check) -> str:
    mark, colour = _MARKS[check.level]
    text = f"{render.paint(f'{mark:<8}', colour, sys.stdout)}{check.check}: {render.one_line(check.text)}"
    return f"{text}; {render.one_line(check.advice)}" if check.advice else text


def _ok(check: str, text: str) -> Check:
    return Check(check=check, level="ok", text=text)


def _note(check: str, text: str, advice: str | None = None) -> Check:
    return Check(check=check, level="note", text=text, advice=advice)


def _problem(check: str, text: str, advice: str) -> Check:
    return Check(check=check, level="problem", text=text, advice=advice)


# --- programs


def check_versions() -> Checks:
    python = ".".join(str(part) for part in sys.version_info[:3])
    yield _ok("python", f"{python} ({sys.executable}), jupyter_cmdop {__version__}")
    found = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    yield _ok("jupyter", ", ".join(found))


def check_command() -> Checks:
    program = shutil.which("jupyter-cmdop")
    if program is None:
        yield _note(
            "command",
            "jupyter-cmdop is not on PATH, so `jupyter cmdop` does not find it",
            f"add {Path(sys.executable).parent} to PATH",
        )
    else:
        yield _ok("command", program)


def check_kernel() -> Checks:
    version = _version("ipykernel")
    if version is None:
        yield _problem(
            "ipykernel", "is not installed, so the default kernel does not start", "pip install ipykernel"
        )
    elif int(version.split(".")[0]) < 7:
        yield _note("ipykernel", f"{version} has no subshells", "pip install --upgrade ipykernel")
    else:
        yield _ok("ipykernel", version)


def check_sqlite() -> Checks:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        yield _problem("sqlite", f"{sqlite3.sqlite_version} is too old", "use a newer Python")
    else:
        yield _ok("sqlite", sqlite3.sqlite_version)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# --- places


def check_sockets() -> Checks:
    root = places.socket_root()
    longest = root / ("0" * 8) / "link.sock"
    try:
        places.check_socket_path(longest)
        if os.path.lexists(root):
            places.check_private_dir(root)
    except PlaceError as error:
        yield _problem("sockets", f"{error.path}: {error.problem}", error.advice)
        return
    mode = os.stat(places.SOCKET_PARENT).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield _problem(
            "sockets",
            f"anybody may rename what is in {places.SOCKET_PARENT}",
            f"chmod +t {places.SOCKET_PARENT}",
        )
    else:
        yield _ok("sockets", f"{root} is safe and short enough")


def check_state() -> Checks:
    yield from _check_place("state", places.state_dir(), "set CMDOP_STATE_DIR to a local directory")


def check_runtime() -> Checks:
    yield from _check_place("runtime", places.pointers_dir(), "set JUPYTER_RUNTIME_DIR to a local directory")


def _check_place(check: str, path: Path, elsewhere: str) -> Checks:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if existing == path:
        try:
            places.check_private_dir(path)
        except PlaceError as error:
            yield _problem(check, f"{error.path}: {error.problem}", error.advice)
            return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield _problem(check, f"{path} cannot be written", elsewhere)
        return
    free = shutil.disk_usage(existing).free
    if free < FREE_BYTES_NEEDED:
        yield _problem(
            check, f"{path} has {free >> 20} MiB left: a full disk stops new input", "free some space"
        )
    if detect_network_fs(existing):
        yield _note(
            check, f"{path} is on a network file system: slower, and locks depend on its server", elsewhere
        )
    else:
        yield _ok(check, f"{path} is ours, local and writable")


# --- what ends keepers


def check_scope() -> Checks:
    if not sys.platform.startswith("linux"):
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    has_manager = bool(runtime) and os.path.exists(os.path.join(runtime, "systemd", "private"))
    lingers = _lingers()
    if has_manager and lingers:
        yield _ok("logout", "sessions are scopes of your user manager, which goes on after logout (linger)")
    elif has_manager:
        yield _note(
            "logout", "your user manager ends at logout, and sessions with it", "loginctl enable-linger"
        )
    elif kills_user_processes():
        yield _problem(
            "logout", "logind ends your processes at logout (KillUserProcesses)", "loginctl enable-linger"
        )
    else:
        yield _ok("logout", "nothing here ends sessions at logout")


def _lingers() -> bool:
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return os.path.exists(f"/var/lib/systemd/linger/{user}")


def kills_user_processes(root: Path = Path("/")) -> bool:
    """What logind's configuration says; a later file wins, as for systemd."""
    files = [root / "etc/systemd/logind.conf"]
    for folder in ("usr/lib/systemd", "run/systemd", "etc/systemd"):
        files += sorted((root / folder / "logind.conf.d").glob("*.conf"))
    value = False
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, said = line.partition("=")
            if key.strip() == "KillUserProcesses":
                value = said.strip().lower() in ("yes", "true", "1", "on")
    return value


def check_container() -> Checks:
    if os.environ.get("JUPYTERHUB_USER"):
        yield _note(
            "hub",
            "a JupyterHub stop ends every session here",
            "the journal stays where CMDOP_STATE_DIR is kept",
        )
    if not is_container():
        return
    main = _main_process()
    yield _note(
        "container",
        f"when its main process ({main}) ends, every session ends",
        "keep CMDOP_STATE_DIR on a volume",
    )


def is_container(root: Path = Path("/")) -> bool:
    # systemd and podman set a variable in lower case.
    if os.environ.get("KUBERNETES_SERVICE_HOST") or os.environ.get("container"):  # noqa: SIM112
        return True
    return (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()


def _main_process() -> str:
    try:
        return Path("/proc/1/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "process 1"


def check_cgroup() -> Checks:
    unit = service_of(_own_cgroup())
    if unit is not None:
        yield _note(
            "cgroup",
            f"this shell is part of {unit}: stopping it ends the sessions that are started here",
            "start them from a login shell, or set KillMode=process in the unit",
        )


def _own_cgroup() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def service_of(cgroup: str) -> str | None:
    """The system service in the text of /proc/self/cgroup; user managers and login sessions are none."""
    for line in cgroup.splitlines():
        path = line.rpartition(":")[2]
        last = path.rstrip("/").rpartition("/")[2]
        if last.endswith(".service") and "/user.slice/" not in path and not last.startswith("user@"):
            return last
    return None


# --- sessions


def check_sessions() -> Checks:
    try:
        answers = ask_all(Registry.of_user().list_pointers())
    except PlaceError:
        return  # `check_runtime` has said it
    alive = sum(answer.liveness.state == "alive" for answer in answers)
    yield _ok("sessions", f"{alive} alive")
    for answer in answers:
        name, reason = answer.pointer.name, answer.liveness.reason
        if answer.liveness.state == "lost":
            yield _problem("sessions", f"{name} is lost: {reason}", "jupyter cmdop doctor --sweep")
            yield from _check_orphan(answer.pointer)
        elif answer.liveness.state == "unresponsive":
            yield _problem("sessions", f"{name} does not answer: {reason}", _end_hint(answer.pointer))


def _check_orphan(pointer: Pointer) -> Checks:
    backend = pointer.backend
    if backend is None or pointer.host != processes.host_name() or pointer.boot_id != processes.boot_id():
        return
    if backend.start_time is not None and processes.start_time(backend.pid) == str(backend.start_time):
        yield _problem(
            "sessions", f"the kernel of {pointer.name} still runs without its keeper", f"kill {backend.pid}"
        )


def _end_hint(pointer: Pointer) -> str:
    if pointer.host and pointer.host != processes.host_name():
        return f"look at it on {pointer.host}"
    return f"wait, or end its keeper: kill {pointer.pid}"


def _sweep() -> Checks:
    try:
        swept = Registry.of_user().sweep(put_away=True)
    except ClientError as error:
        yield _problem("sweep", error.message, " or ".join(error.next) or "see above")
        return
    for item in swept:
        yield _ok(
            "sweep", f"{item.name} tidied away: {item.reason}; jupyter cmdop log {item.name} has its journal"
        )
    if not swept:
        yield _ok("sweep", "nothing was lost")


def check_trust() -> Checks:
    yield _note(
        "trust",
        "cooperative: other users of this machine are kept out, programs under your own user name are trusted to "
        "say who they are",
    )
    grant = os.environ.get("CMDOP_GRANT_FILE")
    if grant:
        yield _note("grant", f"CMDOP_GRANT_FILE is set: you act with {grant}")


CHECKS: tuple[Callable[[], Checks], ...] = (
    check_versions,
    check_command,
    check_kernel,
    check_sqlite,
    check_sockets,
    check_state,
    check_runtime,
    check_scope,
    check_container,
    check_cgroup,
    check_sessions,
    check_trust,
)
