"""Open the Unix socket of a keeper, and look at who listens there before anything is said."""

from __future__ import annotations

import os
import socket
import struct
import sys

from . import places
from .errors import KeeperGone, LinkTimeout, PlaceError

# <sys/un.h> and <sys/ucred.h> of macOS; Python has no names for them.
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED = 0, 1, struct.Struct("=IIh")


def peer_uid(connection: socket.socket) -> int | None:
    """User id of the process at the other end, None where the system does not say."""
    if sys.platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 128)
        return int(_XUCRED.unpack_from(raw)[1])
    if hasattr(socket, "SO_PEERCRED"):
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("=iII", raw)[1])
    return None


def check_peer(connection: socket.socket, link: str) -> None:
    """Refuse to talk to a socket of another user: the hello may hold a token.

    Raises:
        PlaceError: somebody else listens there.
    """
    uid = peer_uid(connection)
    if uid not in (None, os.geteuid(), 0):
        raise PlaceError(link, f"user id {uid} listens on it, not you", "tell your administrator")


def open_link(link: str, timeout_seconds: float) -> socket.socket:
    """Connect, check the peer, and return a non-blocking socket.

    Raises:
        KeeperGone: nobody listens there.
        LinkTimeout: whoever listens does not accept.
        PlaceError: the path cannot be a socket's, or somebody else listens.
    """
    path = places.check_socket_path(link)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect(path)
        check_peer(connection, link)
        connection.setblocking(False)
    except (TimeoutError, BlockingIOError) as error:
        connection.close()
        raise LinkTimeout(f"the keeper does not accept on {link}") from error
    except OSError as error:
        connection.close()
        raise KeeperGone(f"nobody listens on {link} ({error.strerror})") from error
    except BaseException:
        connection.close()
        raise
    return connection
