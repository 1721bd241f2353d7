"""The connection between a page and its kernel breaks, and the page connects again by itself."""

from __future__ import annotations

import contextlib
import copy
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import run_cli
from tests.websocket.front import Network

LINES = 400


class Wire(Network):
    """A TCP proxy between the page and the server, whose connections can be cut.

    Attributes:
        refuses_websockets: whether those of kernels are cut at once, too, while the rest of the server answers.
    """

    refuses_websockets = False

    def _forward(self, source: socket.socket, sink: socket.socket) -> Callable[[], None]:
        forward = super()._forward(source, sink)

        def checked() -> None:
            if self.refuses_websockets and b"/channels?" in source.recv(16384, socket.MSG_PEEK):
                self._reset(source, sink)
            else:
                forward()

        return checked

    def _reset(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
            self._open.remove(end)

    def cut(self) -> None:
        self._do(lambda: self._reset(*self._open))


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    made = Wire(("127.0.0.1", server.port))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def distant(server: Server, wire: Wire) -> Server:
    """The server at the other end of the wire."""
    seen = copy.copy(server)
    seen.port = wire.address[1]
    return seen


def test_connection_that_breaks_in_mid_cell(distant: Server, wire: Wire, pages: Pages) -> None:
    """No line is missing, and all are in their order; what was on its way in a proxy may be shown twice."""
    write_notebook(
        distant.root / "cut.ipynb",
        f"import time\nfor n in range({LINES}):\n    print('line', n)\n    time.sleep(0.01)",
        "n",
    )
    lab = pages.lab(distant, "cut.ipynb")
    lab.start(0)
    expect(lab.output(0)).to_contain_text("line 50")
    wire.cut()
    lab.wait_ended(0, 1)
    assert list(dict.fromkeys(lab.text(0).splitlines())) == [f"line {n}" for n in range(LINES)]
    assert sum("Starting WebSocket" in line for line in pages.said) == 2
    lab.run(1, 2)


def test_cell_that_is_started_while_the_connection_is_away(distant: Server, wire: Wire, pages: Pages) -> None:
    """JupyterLab keeps it, and sends it when it is back. Somebody else has worked meanwhile: it is not run unseen."""
    write_notebook(distant.root / "away.ipynb", "value = 1", "value += 1; value")
    lab = pages.lab(distant, "away.ipynb")
    lab.run(0, 1)
    wire.refuses_websockets = True
    wire.cut()
    lab.start(1)
    lab.wait_started(1)
    run_cli("run", "away", "value = 100")
    wire.refuses_websockets = False
    expect(lab.output(1)).to_contain_text("made while its connection was away")
    lab.wait_not_running(1)
    assert run_cli("run", "away", "print(value)").data["text"] == "100\n"
    lab.start(1)
    expect(lab.output(1)).to_contain_text("101")
    lab.wait_not_running(1)
