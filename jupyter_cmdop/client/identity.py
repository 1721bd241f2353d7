"""Who the caller says he is: the owner, a name he was invited under, or the bearer of a grant file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import GrantFileError

if TYPE_CHECKING:
    from jupyter_cmdop.core.actor import ActorKind

GRANT_FILE_BYTES = 1 << 20
"""A connection file has a few hundred bytes; more is not one."""

_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._@:/+-]")


@dataclass(frozen=True, slots=True)
class Identity:
    """What goes into the link's hello; everything None means the owner.

    Attributes:
        session: id of the only session in which the token means something.
        file: absolute path of the grant file that said so.
        verified: for a Jupyter server alone: the user whom it has verified, `{id, kind, name, on_behalf_of, role,
            grant}`, in whose name it asks.
    """

    actor: str | None = None
    kind: ActorKind | None = None
    token: str | None = None
    session: str | None = None
    file: str | None = None
    verified: Mapping[str, Any] | None = None

    def hello_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"actor": self.actor, "kind": self.kind, "token": self.token}
        if self.verified is not None:
            fields["verified"] = dict(self.verified)
        return fields


OWNER = Identity()


def owner_name() -> tuple[str, str]:
    """Id and display name of the person who owns sessions made here."""
    hub_user = os.environ.get("JUPYTERHUB_USER")
    if hub_user:
        return _as_actor_id(hub_user), hub_user
    import pwd

    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        # A container may run under a uid that no user database knows.
        user = f"uid-{os.geteuid()}"
        return user, user
    full_name = entry.pw_gecos.split(",")[0].strip()
    return _as_actor_id(entry.pw_name), full_name or entry.pw_name


def _as_actor_id(name: str) -> str:
    cleaned = _NOT_IN_AN_ID.sub("_", name)[:128]
    return cleaned if cleaned[:1].isalnum() or cleaned[:1] == "_" else f"_{cleaned}"[:128]


def identify(
    *, actor: str | None = None, kind: ActorKind | None = None, grant_file: str | None = None
) -> Identity:
    """Combine `--as`, `--kind`, `--grant-file` and CMDOP_GRANT_FILE; what is said by hand wins.

    Raises:
        GrantFileError: the file is missing, open to others, or holds no grant; or `actor` is not whom it names.
    """
    path = grant_file or (None if actor else os.environ.get("CMDOP_GRANT_FILE"))
    if not path:
        return Identity(actor=actor, kind=kind)
    granted = read_grant_file(Path(path).expanduser())
    if actor is not None and actor != granted.actor:
        raise GrantFileError(
            f"{path} is a grant for {granted.actor}, not for {actor}",
            next=(f"--as {granted.actor}", "leave --as out"),
        )
    return Identity(granted.actor, kind, granted.token, granted.session, granted.file)


def read_grant_file(path: Path) -> Identity:
    """Read the grant of a connection file that `invite` wrote.

    Raises:
        GrantFileError: as its message says.
    """
    import msgspec

    raw = read_private_file(path)
    try:
        data = msgspec.json.decode(raw)
        grant = data["cmdop"]
        return Identity(
            actor=str(grant["actor"]),
            token=str(grant["token"]),
            session=str(grant["session"]),
            file=os.path.abspath(path),
        )
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError) as error:
        raise GrantFileError(
            f"{path} holds no grant: it is no connection file made by `jupyter cmdop invite`",
            next=("jupyter cmdop invite NAME",),
        ) from error


def read_private_file(path: Path) -> bytes:
    """The bytes of a file that holds a secret.

    Raises:
        GrantFileError: it cannot be read, or others can.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            raw = file.read(GRANT_FILE_BYTES)
    except OSError as error:
        raise GrantFileError(
            f"the grant file {path} cannot be read ({error.strerror})", next=("jupyter cmdop invite NAME",)
        ) from error
    if stat.S_ISREG(mode) and mode & 0o077:
        raise GrantFileError(
            f"the grant file {path} is open to other users, so its token may be known to them",
            next=(f"chmod 600 {path}", "jupyter cmdop revoke NAME GRANT, and invite again"),
        )
    return raw
