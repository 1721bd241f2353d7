"""With jupyter-collaboration: documents are its, kernels are ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import websocket

from tests.beside.promises import (
    answering,
    check_kernels_are_shared,
    check_no_exception,
    taken,
    write_notebook,
)
from tests.server.jupyter import Server, Servers
from tests.support import LIMIT_SECONDS, Closing


@pytest.fixture
def server(servers: Servers, python_with: Callable[[str], Path]) -> Server:
    return servers(python=python_with("jupyter-collaboration>=5,<6"))


def open_room(server: Server, notebook: str) -> websocket.WebSocket:
    """A document's room as JupyterLab opens it; returns when its server has begun to synchronise."""
    asked = {"format": "json", "type": "notebook"}
    answer = server.request("PUT", f"/api/collaboration/session/{notebook}", asked)
    assert answer.status in (200, 201), (answer.status, answer.body)
    room = f"json:notebook:{answer.data['fileId']}"
    made = websocket.create_connection(
        f"{server.url.replace('http', 'ws', 1)}/api/collaboration/room/{room}?sessionId={answer.data['sessionId']}",
        header=[f"Authorization: token {server.token}"],
        timeout=LIMIT_SECONDS,
        http_no_proxy=["127.0.0.1"],
        suppress_origin=True,
    )
    opcode, data = made.recv_data()
    assert opcode == websocket.ABNF.OPCODE_BINARY
    assert data[0] == 0, "the first message of y-websocket is of the kind `sync`"
    return made


def test_kernels_are_sessions_and_documents_are_shared(server: Server, closing: Closing) -> None:
    write_notebook(server.root, "a.ipynb", "1 + 1")
    closing(open_room(server, "a.ipynb"))
    check_kernels_are_shared(server, "a.ipynb", closing)
    slots = answering(server)
    assert slots["session manager"]["serves"] == "jupyter_cmdop.server.notebooks.NotebookSessions"
    assert "kernel manager taken over from jupyter_server." in taken(server)
    assert "session manager taken over from jupyter_server." in taken(server)
    check_no_exception(server)


def test_notebook_session_and_room_survive_a_killed_server(
    server: Server, servers: Servers, closing: Closing
) -> None:
    write_notebook(server.root, "a.ipynb", "1 + 1")
    closing(open_room(server, "a.ipynb"))
    opened = server.open_notebook("a.ipynb")
    kernel_id = opened["kernel"]["id"]
    tab = closing(server.connect(kernel_id))
    assert tab.run("x = 7") == ""
    server.kill()
    again = servers.add(server.again())
    [found] = again.get("/api/sessions").data
    assert (found["id"], found["kernel"]["id"]) == (opened["id"], kernel_id)
    closing(open_room(again, "a.ipynb"))
    assert tab.run("print(x)") == "7\n", "the websocket of before"
    assert closing(again.connect(kernel_id)).run("print(x)") == "7\n"
    check_no_exception(again)
