"""What a keeper is told at its start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..core.policy import PolicyName


class OwnerConfig(msgspec.Struct, frozen=True):
    """The actor to whom the session belongs."""

    id: str
    name: str = ""


class KeeperConfig(msgspec.Struct, frozen=True):
    """The keeper's start file.

    Attributes:
        sockets: directory (0700) of the link socket, the kernel's sockets and ipc endpoints of grants.
        state: directory of the journal, the session record and the keeper's log.
        connections: directory (0700) into which connection files of grants are written.
        pointer: file that tells clients where this keeper is; the client that spawned it made it.
        idle_hours: after which a session that nobody has touched ends; 0 keeps it for ever.
        opened_by: the actor who asked for it, where that is not its owner.
        setup: code of a file to run first, as an operation of the owner.
    """

    id: str
    name: str
    sockets: str
    state: str
    connections: str
    pointer: str
    owner: OwnerConfig
    kind: str = "kernel"
    spec: str = "python3"
    cwd: str = ""
    policy: PolicyName = "open"
    workspace: str | None = None
    group: str | None = None
    env: dict[str, str] = {}
    setup: str | None = None
    created: str | None = None
    idle_hours: float = 24.0
    opened_by: str | None = None


def read_config(path: Path) -> KeeperConfig:
    """Read the start file.

    Raises:
        msgspec.DecodeError: it is no JSON, or a field is missing or of the wrong type; the message names it.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeeperConfig)
    except RecursionError as error:
        raise msgspec.DecodeError("it nests too deep") from error
