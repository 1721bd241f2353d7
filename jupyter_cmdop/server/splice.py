"""Copy bytes between a browser's TLS connection, whose keys cannot be handed over, and the keeper's end of a pair."""

from __future__ import annotations

import asyncio
import logging
import socket

from tornado.iostream import IOStream, StreamClosedError

log = logging.getLogger(__name__)

PIECE_BYTES = 256 * 1024


class Splices:
    """The splices that this server runs; each ends with either of its ends, all of them with the server."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, stream: IOStream, pair: socket.socket) -> None:
        """Begin to copy; both ends are ours from now on."""
        pair.setblocking(False)
        stream.set_nodelay(True)
        task = asyncio.create_task(_splice(stream, pair), name="cmdop splice")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _splice(stream: IOStream, pair: socket.socket) -> None:
    ways = [asyncio.create_task(_inwards(stream, pair)), asyncio.create_task(_outwards(stream, pair))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        pair.close()
        stream.close()


async def _inwards(stream: IOStream, pair: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    try:
        while True:
            await loop.sock_sendall(pair, await stream.read_bytes(PIECE_BYTES, partial=True))
    except (StreamClosedError, OSError) as error:
        log.debug("a spliced websocket ended at the browser's side: %s", error)


async def _outwards(stream: IOStream, pair: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(pair, PIECE_BYTES):
            await stream.write(data)  # its future is the back pressure
    except (StreamClosedError, OSError) as error:
        log.debug("a spliced websocket ended at the keeper's side: %s", error)
