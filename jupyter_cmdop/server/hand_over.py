"""Hand an accepted websocket over to a keeper: ask, then give the descriptor away in one step that nothing interrupts.

Whoever calls may wait before the step and after it, never inside. Before it a refusal is a plain HTTP answer. After it
tornado knows nothing of the socket any more: the keeper has answered the handshake, or we write a bare 503 ourselves.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any, Self

from jupyter_cmdop.client.errors import ClientError, KeeperGone, LinkTimeout
from jupyter_cmdop.client.identity import OWNER
from jupyter_cmdop.client.protocol import LinkProtocol
from jupyter_cmdop.client.sockets import open_link

HELLO_SECONDS = 5.0
TAKEN_SECONDS = 10.0
_READ_BYTES = 64 * 1024
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)


class HandOverLink:
    """A link of its own for one hand-over: descriptors travel on a raw socket, which asyncio's streams hide."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._protocol = LinkProtocol()
        self._number = 0
        self._rest = b""

    @classmethod
    async def open(cls, path: str, *, client: str) -> Self:
        """Connect and be welcomed.

        Raises:
            ClientError: there is no keeper, or it does not want us.
        """
        made = cls(await asyncio.to_thread(open_link, path, HELLO_SECONDS))
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(HELLO_SECONDS):
                hello = made._protocol.hello(client=client, identity=OWNER, persistent=False)
                await loop.sock_sendall(made._link, hello)
                while made._protocol.welcome is None:
                    await made._receive()
        except TimeoutError as error:
            made.close()
            raise LinkTimeout("the keeper accepted the link and does not answer") from error
        except OSError as error:
            made.close()
            raise KeeperGone(f"the link broke ({error.strerror})") from error
        except BaseException:
            made.close()
            raise
        return made

    def give(self, descriptor: int, args: Mapping[str, Any], leftover: bytes) -> None:
        """Send the request and the descriptor. It does not wait, so that nothing can come in between.

        Raises:
            OSError: the keeper has nothing of it.
        """
        self._number, data = self._protocol.request("adopt", args, leftover)
        sent = socket.send_fds(self._link, [data], [descriptor])
        self._rest = data[sent:]  # the descriptor went with the first byte

    async def taken(self) -> str:
        """Wait until the keeper has answered the handshake; the attachment that the websocket is.

        Raises:
            ClientError: it has not, and nothing was written to the websocket.
        """
        try:
            async with asyncio.timeout(TAKEN_SECONDS):
                if self._rest:
                    await asyncio.get_running_loop().sock_sendall(self._link, self._rest)
                inbox = self._protocol.inbox(self._number)
                while not inbox.is_ended:
                    await self._receive()
        except TimeoutError as error:
            raise LinkTimeout("the keeper does not answer the hand-over", asked=True) from error
        except OSError as error:
            raise KeeperGone(f"the link broke ({error.strerror})", asked=True) from error
        return str(inbox.outcome()["attachment"])

    async def _receive(self) -> None:
        data = await asyncio.get_running_loop().sock_recv(self._link, _READ_BYTES)
        if data:
            self._protocol.feed(data)
        else:
            self._protocol.closed()
        if self._protocol.failure is not None and self._protocol.welcome is None:
            raise self._protocol.failure

    def close(self) -> None:
        self._link.close()


def refuse_bare(descriptor: int) -> None:
    """Answer a handshake that nobody else can answer any more, and close the socket."""
    with socket.socket(fileno=descriptor) as connection:
        try:
            connection.send(UNAVAILABLE)
        except OSError:
            pass  # its client has gone


def dup_of(connection: socket.socket) -> int:
    descriptor = os.dup(connection.fileno())
    os.set_inheritable(descriptor, False)
    return descriptor


__all__ = ["ClientError", "HandOverLink", "dup_of", "refuse_bare"]
