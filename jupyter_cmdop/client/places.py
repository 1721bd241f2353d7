"""Where things live on this machine, and whether what is there can be trusted.

Three places, each a directory of mode 0700 that belongs to the user and is no symbolic link:

pointers   <jupyter runtime dir>/cmdop        which keepers there should be
state      <jupyter data dir>/cmdop           records and journals, or CMDOP_STATE_DIR
sockets    /tmp/cmdop-<uid>                   links and kernel sockets

TMPDIR has no say over the sockets: paths of Unix sockets end at 107 bytes, and the temporary directories of macOS and
of many clusters are longer than that alone. An existing directory is only ever used after its owner, kind and mode
have been looked at; it is never repaired, because whoever could prepare it can also have it open.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from .errors import PlaceError

SOCKET_PARENT = Path("/tmp")  # noqa: S108 (short, and checked: see the module's text)
SOCKET_PATH_BYTES = 107 if sys.platform.startswith("linux") else 103
"""Longest path of a Unix socket: sun_path has 108 bytes on Linux, 104 on the BSDs, with the final zero."""

SOCKET_NAME_BYTES = 16
"""Room for the name of a socket in a session's directory, of which `k<incarnation>-forks` is the longest."""

_OTHERS = 0o077
_FALSE = ("no", "n", "false", "off", "0", "0.0")


def jupyter_data_dir() -> Path:
    """What `jupyter_core.paths.jupyter_data_dir()` answers, without its import."""
    environment = os.environ.get("JUPYTER_DATA_DIR")
    if environment:
        return Path(environment)
    if os.environ.get("JUPYTER_PLATFORM_DIRS", "0").lower() not in _FALSE:
        import platformdirs

        return Path(platformdirs.user_data_dir(_application(), appauthor=False))
    home = Path(os.path.realpath(os.path.expanduser("~")))
    if sys.platform == "darwin":
        return home / "Library" / "Jupyter"
    xdg = os.environ.get("XDG_DATA_HOME")
    return (Path(xdg) if xdg else home / ".local" / "share") / "jupyter"


def jupyter_runtime_dir() -> Path:
    """What `jupyter_core.paths.jupyter_runtime_dir()` answers, without its import."""
    environment = os.environ.get("JUPYTER_RUNTIME_DIR")
    return Path(environment) if environment else jupyter_data_dir() / "runtime"


def _application() -> str:
    if sys.platform == "darwin" and not sys.prefix.startswith("/opt/homebrew"):
        return "Jupyter"
    return "jupyter"


def pointers_dir() -> Path:
    return Path(os.path.abspath(jupyter_runtime_dir())) / "cmdop"


def state_dir() -> Path:
    """CMDOP_STATE_DIR with its links resolved (its user chose it), else below Jupyter's data directory."""
    environment = os.environ.get("CMDOP_STATE_DIR")
    if environment:
        return Path(os.path.realpath(os.path.expanduser(environment)))
    return Path(os.path.abspath(jupyter_data_dir())) / "cmdop"


def sessions_dir() -> Path:
    return state_dir() / "sessions"


def socket_root() -> Path:
    return SOCKET_PARENT / f"cmdop-{os.geteuid()}"


def private_dir(path: Path) -> Path:
    """Make `path` (0700) when it is missing, check it when it is there, return it.

    Raises:
        PlaceError: it cannot be made, or what is there is not ours alone.
    """
    try:
        _make_parents(path)
        made = _make(path)
    except OSError as error:
        raise PlaceError(path, f"cannot be made ({error.strerror})", _elsewhere(path)) from error
    if not made:
        check_private_dir(path)
    return path


def check_private_dir(path: Path) -> None:
    """Raise PlaceError unless `path` is a directory of this user that nobody else can read or write."""
    try:
        facts = os.lstat(path)
    except OSError as error:
        raise PlaceError(path, f"cannot be looked at ({error.strerror})", _elsewhere(path)) from error
    if stat.S_ISLNK(facts.st_mode):
        raise PlaceError(path, "is a symbolic link, which somebody else could redirect", _elsewhere(path))
    if not stat.S_ISDIR(facts.st_mode):
        raise PlaceError(path, "is not a directory", "move it away")
    if facts.st_uid != os.geteuid():
        raise PlaceError(path, f"belongs to user id {facts.st_uid}, not to you", _elsewhere(path))
    if facts.st_mode & _OTHERS:
        mode = stat.S_IMODE(facts.st_mode)
        raise PlaceError(
            path, f"others may look into it (mode {mode:04o})", f"see what is in it, then: chmod 700 {path}"
        )


def make_socket_dir() -> Path:
    """Make a fresh directory for the sockets of one session: /tmp/cmdop-<uid>/<8 hex>.

    Raises:
        PlaceError: /tmp/cmdop-<uid> is not a directory of this user alone, or its path leaves no room for sockets.
    """
    root = private_dir(socket_root())
    longest = len(os.fsencode(root)) + len("/01234567/") + SOCKET_NAME_BYTES
    if longest > SOCKET_PATH_BYTES:
        problem = f"is too long for a Unix socket in it ({longest} bytes, {SOCKET_PATH_BYTES} are allowed)"
        raise PlaceError(root, problem, _elsewhere(root))
    while True:
        path = root / random_name()
        try:
            if _make(path):
                return path
        except OSError as error:
            raise PlaceError(path, f"cannot be made ({error.strerror})", "free space in /tmp") from error


def check_socket_path(path: str | Path) -> str:
    """Return `path` as text when a Unix socket can have it.

    Raises:
        PlaceError: it is longer than the system allows.
    """
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES:
        raise PlaceError(
            path,
            f"is too long for a Unix socket ({size} bytes, {SOCKET_PATH_BYTES} are allowed)",
            "close the session and make it again",
        )
    return os.fspath(path)


def is_in_socket_root(path: str | Path) -> bool:
    """Whether `path` is a direct child of our socket root: the only places that a sweep may remove."""
    candidate = Path(path)
    return candidate.parent == socket_root() and candidate.name not in ("", ".", "..")


def write_private_file(path: Path, content: bytes) -> None:
    """Replace `path` by a file of mode 0600 with `content`, at once or not at all."""
    temporary = path.with_name(f".{path.name}.{random_name()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def random_name() -> str:
    """Eight hex digits; `secrets` would import half of the cryptography that `ls` never needs."""
    return os.urandom(4).hex()


def _make(path: Path) -> bool:
    """Make the directory; False when something is there already."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    os.chmod(path, 0o700)  # a umask such as 0o277 has taken bits away from ourselves
    return True


def _make_parents(path: Path) -> None:
    """Make what is missing above `path`, 0700 as Jupyter does: never what the umask happens to say."""
    missing = []
    for parent in path.parents:
        if parent.exists():
            break
        missing.append(parent)
    for parent in reversed(missing):
        _make(parent)


def _elsewhere(path: Path) -> str:
    if path.parent == SOCKET_PARENT or path.parent.parent == SOCKET_PARENT:
        return f"ask an administrator to remove {path}"
    if os.environ.get("CMDOP_STATE_DIR") and path.is_relative_to(state_dir()):
        return "set CMDOP_STATE_DIR to a directory of your own"
    if path == pointers_dir():
        return "move it away, or set JUPYTER_RUNTIME_DIR to a directory of your own"
    return "move it away, or set CMDOP_STATE_DIR to a directory of your own"
