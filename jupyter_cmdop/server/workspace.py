"""What a workspace remembers of its sessions beside them: who opened each, and which servers show it now.

A workspace is the real path of a server's root directory. Its folder in the state directory holds

    path             the workspace, for a person who looks
    notebooks.db     notebook sessions (`/api/sessions`), which must keep their ids when the server is started again
    opened/<uuid>    one small file for each session that a Jupyter server started or opened here
    websockets/      one small file for each websocket whose credential can end; no secret is in it
    servers.lock     held shared by each running server, so that the last one to stop knows that it is the last
    notebooks.lock   held by the one server that uses notebooks.db

A session without a file in `opened` was made by hand. Losing this folder therefore never ends a session.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from jupyter_cmdop.client import places

if TYPE_CHECKING:
    from .identity import Person

How = Literal["started", "opened"]
"""`started`: by this workspace's server, merely for a document. `opened`: it is another workspace's, shown here too."""
STOPPING_SECONDS = 10.0
"""How long a server that starts waits for one that is ending its kernels here."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Why a workspace shows a session.

    Attributes:
        name: its name at that time; a session that bears another one now was renamed by somebody.
    """

    how: How
    name: str = ""


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """Who opened a websocket: the actor, and the name under which the identity provider knows his credential."""

    session: str
    attachment: str
    actor: str
    username: str


class Workspace:
    """The folder of one workspace.

    Raises:
        PlaceError: it cannot be made or trusted.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        state = places.private_dir(places.state_dir())
        self._folder = places.private_dir(places.private_dir(state / "workspaces") / digest)
        self._opened = places.private_dir(self._folder / "opened")
        self._websockets = places.private_dir(self._folder / "websockets")
        places.write_private_file(self._folder / "path", os.fsencode(path) + b"\n")
        self._present: int | None = None
        self._notebooks: int | None = None

    # --- which sessions

    def opened(self, session_id: str) -> Opened | None:
        try:
            return msgspec.json.decode((self._opened / session_id).read_bytes(), type=Opened)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def may_know(self, person: Person, session_id: str, workspace: str | None) -> bool:
        """The owner knows all of his sessions; the bearer of a grant his; others those that are shown here."""
        if person.grant is not None:
            return person.session == session_id
        if person.owns:
            return True
        return workspace == self.path or self.opened(session_id) is not None

    def remember(self, session_id: str, how: How, name: str) -> None:
        places.write_private_file(self._opened / session_id, msgspec.json.encode(Opened(how=how, name=name)))

    def forget(self, session_id: str) -> None:
        (self._opened / session_id).unlink(missing_ok=True)

    def forget_all_but(self, session_ids: Iterable[str]) -> None:
        """Drop what is known of sessions that have ended, whoever ended them."""
        known = set(session_ids)
        for path in self._opened.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)
        for credential in self.credentials():
            if credential.session not in known:
                self.forget_websocket(credential.session, credential.attachment)

    # --- which websockets

    def credentials(self) -> list[Credential]:
        found = []
        for path in self._websockets.iterdir():
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Credential))
            except (OSError, msgspec.MsgspecError, RecursionError):
                continue
        return found

    def remember_websocket(self, credential: Credential) -> None:
        path = self._websockets / f"{credential.session}.{credential.attachment}"
        places.write_private_file(path, msgspec.json.encode(credential))

    def forget_websocket(self, session_id: str, attachment: str) -> None:
        (self._websockets / f"{session_id}.{attachment}").unlink(missing_ok=True)

    # --- which servers

    def enter(self) -> None:
        """Count this process among the servers of the workspace; waits for one that is just stopping."""
        self._present = _open_lock(self._folder / "servers.lock")
        deadline = time.monotonic() + STOPPING_SECONDS
        while not _try_lock(self._present, fcntl.LOCK_SH) and time.monotonic() < deadline:
            time.sleep(0.05)

    def is_last(self) -> bool:
        """Say at the end whether no other server shows this workspace.

        The own mark goes first: of two that stop at the same time one must find that it is the last.
        """
        if self._present is None:
            return True
        fcntl.flock(self._present, fcntl.LOCK_UN)
        return _try_lock(self._present, fcntl.LOCK_EX)

    def leave(self) -> None:
        for descriptor in (self._present, self._notebooks):
            if descriptor is not None:
                os.close(descriptor)
        self._present = self._notebooks = None

    def notebook_database(self) -> Path | None:
        """The database of notebook sessions, for the first server of the workspace; None for the others."""
        if self._notebooks is None:
            descriptor = _open_lock(self._folder / "notebooks.lock")
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return None
            self._notebooks = descriptor
        database = self._folder / "notebooks.db"
        descriptor = _open_lock(database)  # made here, because SQLite would ask the umask
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
        return database


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
