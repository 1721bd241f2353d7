"""Behind a reverse proxy that buffers: what it has taken from the keeper, the browser may never get.

nginx and the systems on both its sides acknowledge megabytes that nobody has read. So TCP's word says nothing of the
client; only the pong to a mark does, which the client itself sends.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import Server
from tests.server.nginx import Nginx, running_nginx
from tests.support import Closing, wait_for_status
from tests.websocket.front import Network
from tests.websocket.viewer import (
    Message,
    Viewer,
    check_connections,
    confirmed,
    is_idle_of,
    is_reply_to,
    recorded,
    reply_in,
    says,
    seq_of,
    text_in,
)

LINES = 300
WIDE = f"import time\nfor n in range({LINES}):\n    print(n, 'y' * 20_000, flush=True)\n    time.sleep(0.005)"
"""Fifty lines are more than a client's system takes when it does not read: the rest is with the proxy."""


@pytest.fixture
def behind(module_server: Server, closing: Closing) -> Network:
    """The network between the proxy and the server."""
    made: Network = closing(Network(("127.0.0.1", module_server.port)))
    return made


@pytest.fixture
def nginx(behind: Network, tmp_path: Path) -> Iterator[Nginx]:
    with running_nginx(tmp_path / "nginx", upstream=behind.address[1]) as made:
        yield made


def through(server: Server, nginx: Nginx) -> Server:
    """The same server at the proxy's address."""
    seen = copy.copy(server)
    seen.port = nginx.port
    return seen


def test_rest_and_a_long_run_through_the_proxy(server: Server, nginx: Nginx, closing: Closing) -> None:
    """1,000 lines, then 20 MB in one output, then 20 MB in two hundred: all of it, in order, nothing twice."""
    kernel_id = through(server, nginx).start_kernel()
    assert kernel_id in through(server, nginx).kernels()
    viewer = closing(Viewer(nginx.address, kernel_id=kernel_id, token=server.token))
    assert text_in(viewer.run("for n in range(1000): print(n, flush=True)")).split() == [
        str(n) for n in range(1000)
    ]
    wanted = hashlib.sha256(b"y" * 20_000_000).hexdigest()
    for code in (
        "print('y' * 20_000_000, end='')",
        "for n in range(200): print('y' * 100_000, end='', flush=True)",
    ):
        text = text_in(viewer.run(code))
        assert (len(text), hashlib.sha256(text.encode()).hexdigest()) == (20_000_000, wanted)
    seqs = [seq_of(m) for m in recorded(viewer.received)]
    assert seqs == sorted(set(seqs))
    assert len({m["msg_id"] for m in viewer.received}) == len(viewer.received)
    server.wait_for_kernel(kernel_id, connections=1)


class Cuts:
    """How the way to the client is lost while the proxy has output for it."""

    def __init__(self, viewer: Viewer, nginx: Nginx, before: Network, behind: Network) -> None:
        self.viewer, self.nginx, self.before, self.behind = viewer, nginx, before, behind

    def client_resets(self) -> None:
        self.viewer.reset()

    def client_hangs_up(self) -> None:
        self.viewer.hang_up()

    def proxy_dies(self) -> None:
        self.nginx.kill()
        self.viewer.abandon()
        self.nginx.start()

    def black_hole_before_the_proxy(self) -> None:
        """The proxy goes on reading for a client that it does not reach, and nobody is told."""
        self.before.go_dark()
        self.viewer.abandon()

    def black_hole_behind_the_proxy(self) -> None:
        """The client sees a connection on which nothing comes; the keeper writes into buffers."""
        self.behind.go_dark()
        self.viewer.abandon()


@pytest.mark.parametrize(
    "cut",
    [
        "client_resets",
        "client_hangs_up",
        "proxy_dies",
        "black_hole_before_the_proxy",
        "black_hole_behind_the_proxy",
    ],
)
def test_what_the_proxy_had_taken_is_not_lost(
    server: Server, behind: Network, nginx: Nginx, closing: Closing, cut: str
) -> None:
    """The client stops reading, and the proxy takes many lines more; then the way is cut. Three times in one cell."""
    kernel_id = server.start_kernel()
    before = closing(Network(nginx.address))
    viewer = closing(
        Viewer(before.address, "returning", kernel_id=kernel_id, token=server.token, receive_buffer=65_536)
    )
    watcher = closing(Viewer(("127.0.0.1", server.port), "watching", kernel_id=kernel_id, token=server.token))
    msg_id = viewer.execute(WIDE)
    parts: list[list[Message]] = []
    floors = [0]
    begin = 0
    for stop in (20, 120, 220):
        viewer.until(says(f"{stop - 10} "))
        watcher.until(says(f"{stop + 50} "))  # so many lines the keeper has written, and nobody has read
        getattr(Cuts(viewer, nginx, before, behind), cut)()
        floors.append(max(floors[-1], confirmed(viewer, clean=False)))
        parts.append(viewer.received[begin:])
        begin = len(viewer.received)
        viewer.connect()
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    parts.append(viewer.received[begin:])
    check_connections(viewer, parts, floors, LINES)
    assert reply_in(viewer.received)["content"]["status"] == "ok"
    assert len({m["msg_id"] for m in viewer.received if m["msg_type"] == "execute_reply"}) == 1
    watcher.until(is_idle_of(msg_id))
    seen = [m["msg_id"] for m in recorded(watcher.received)]
    assert len(seen) == len(set(seen))


def test_output_of_the_time_without_a_proxy(server: Server, nginx: Nginx, closing: Closing) -> None:
    """The proxy is gone for half of the cell, and for its end."""
    kernel_id = server.start_kernel()
    viewer = closing(Viewer(nginx.address, "away", kernel_id=kernel_id, token=server.token))
    msg_id = viewer.execute(WIDE)
    viewer.until(says("100 "))
    nginx.kill()
    viewer.abandon()
    floor = confirmed(viewer, clean=False)
    first = list(viewer.received)
    with Session.open(kernel_id) as session:
        wait_for_status(session, lambda s: not s.running)
    nginx.start()
    viewer.connect()
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    check_connections(viewer, [first, viewer.received[len(first) :]], [0, floor], LINES)
    assert reply_in(viewer.received)["content"]["status"] == "ok"
