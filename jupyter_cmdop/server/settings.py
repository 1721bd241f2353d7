"""What the configuration says, as one value that the rest of the extension is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jupyter_cmdop.core.grants import Role

Share = Literal["all", "asked"]
Keep = Literal["all", "shared", "none"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The traits of `CmdopApp`, read once.

    Attributes:
        workspace: real path of the directory that this server shows.
        owner_is_hub_user: whether a JupyterHub started this server for one user.
    """

    workspace: str
    share: Share = "all"
    keep_sessions: Keep = "shared"
    user_role: Role = "peer"
    issuer: str = ""
    owner_is_hub_user: bool = False
