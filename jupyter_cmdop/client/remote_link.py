"""A link through a Jupyter server: its bytes in the binary messages of a websocket.

Two threads copy between the websocket and one end of a pair of sockets; the other end is what `blocking.Connection`
takes for a keeper's socket. So the protocol, its waiting and its back pressure are the same near and far: who does not
read stops his copier, which stops the server, which stops the keeper.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING

from .errors import ServerProblem
from .remote import Server

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

OPEN_SECONDS = 10.0
PING_SECONDS = 15.0
"""Between two pings; an answer that takes as long again is none, and the connection is lost."""
CLOSE_SECONDS = 2.0
PIECE_BYTES = 128 * 1024
MESSAGE_BYTES = 64 * 1024 * 1024
"""Of one message from the server. The keeper's frames come in pieces much smaller than this."""

_log = logging.getLogger(__name__)
_log.setLevel(
    logging.INFO
)  # the library's debug lines have the headers of the request, and so the credential


def open_websocket(
    server: Server, *path: str, name: str = "", query: str = "", subprotocols: tuple[str, ...] = ()
) -> ClientConnection:
    """Connect and be let in.

    Raises:
        Refused, UnknownSession, ServerProblem, RequestFailed: as their names say.
    """
    from websockets import exceptions
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    try:
        # Old releases connect when called, new ones when entered; leaving it is `close`, which its owner calls.
        return connect(
            server.address(*path, websocket=True) + query,
            additional_headers=server.headers,
            user_agent_header=server.user_agent,
            ssl=server.tls(),
            compression=None,
            subprotocols=[Subprotocol(each) for each in subprotocols] or None,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=CLOSE_SECONDS,
            max_size=MESSAGE_BYTES,
            logger=_log,
        ).__enter__()
    except exceptions.InvalidStatus as error:
        answer = error.response
        raise server.explain(
            answer.status_code, bytes(answer.body or b""), dict(answer.headers.raw_items()), name
        ) from error
    except (OSError, EOFError) as error:
        raise server.unreachable(error) from error
    except (exceptions.WebSocketException, ValueError) as error:
        raise ServerProblem(
            f"{server.url} does not answer as a websocket: {error}",
            next=("a proxy must pass websockets on (Upgrade and Connection headers)",),
        ) from error


class RemoteLink:
    """The copiers of one link.

    Attributes:
        socket: what to read and write as if a keeper were at its other end.
    """

    def __init__(self, websocket: ClientConnection, url: str) -> None:
        self._websocket = websocket
        self._url = url
        self._reason = ""
        self.socket, self._inner = socket.socketpair()
        self.socket.setblocking(False)
        self._threads = [
            threading.Thread(target=copy, name=f"cmdop link {what}", daemon=True)
            for copy, what in ((self._copy_up, "up"), (self._copy_down, "down"))
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def open(cls, server: Server, name: str) -> RemoteLink:
        """Reach the session called `name`, or of this id.

        Raises:
            Refused, UnknownSession, ServerProblem, RequestFailed: as their names say.
        """
        return cls(open_websocket(server, "cmdop", "api", "sessions", name, "link", name=name), server.url)

    def reason(self) -> str:
        return self._reason or f"the connection to {self._url} was lost"

    def close(self) -> None:
        """Called when `socket` is closed."""
        for thread in self._threads:
            thread.join(2 * CLOSE_SECONDS)
        self._inner.close()

    def _copy_up(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while data := self._inner.recv(PIECE_BYTES):
                self._websocket.send(data)
        except (OSError, ConnectionClosed) as error:
            _log.debug("a link ended while it was written: %s", type(error).__name__)
        self._websocket.close()

    def _copy_down(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            for message in self._websocket:
                self._inner.sendall(message if isinstance(message, bytes) else message.encode())
            self._note_end()
        except ConnectionClosed:
            self._note_end()
        except OSError:
            self._websocket.close()  # this side has closed
            return
        self._hang_up()

    def _note_end(self) -> None:
        reason = self._websocket.close_reason
        if reason and self._websocket.close_code != 1006:
            self._reason = f"the server at {self._url} closed the link: {reason}"

    def _hang_up(self) -> None:
        try:
            self._inner.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end is closed already
