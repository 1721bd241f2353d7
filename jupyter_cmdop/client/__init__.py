"""Reach a session from Python: find it, start it, ask its keeper.

`Session` blocks, `AsyncSession` awaits; their methods bear the names of the command line's verbs. Names are looked up
when they are used, so that a program which only lists sessions does not import asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aio_session import AsyncSession as AsyncSession
    from .errors import ClientError as ClientError
    from .errors import KeeperGone as KeeperGone
    from .errors import Refused as Refused
    from .errors import UnknownSession as UnknownSession
    from .identity import Identity as Identity
    from .session import Session as Session
    from .session import sessions as sessions

_HOMES = {
    "AsyncSession": "aio_session",
    "ClientError": "errors",
    "Identity": "identity",
    "KeeperGone": "errors",
    "Refused": "errors",
    "Session": "session",
    "UnknownSession": "errors",
    "sessions": "session",
}

__all__ = [
    "AsyncSession",
    "ClientError",
    "Identity",
    "KeeperGone",
    "Refused",
    "Session",
    "UnknownSession",
    "sessions",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{home}", __name__), name)
