"""What holds in every server with our extension, whatever else is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import KernelSocket, Server, text_of
from tests.server.test_identity import xsrf_headers
from tests.support import Closing, run_cli

PROVIDER = "--ServerApp.identity_provider_class=tests.server.providers.ExampleIdentityProvider"
IMPORTS = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def as_user(server: Server, name: str) -> dict[str, Any]:
    """Options of a request that this user's browser makes."""
    return {"token": None, "headers": xsrf_headers(server, {"X-User": name})}


def write_notebook(root: Path, name: str, *sources: str) -> list[str]:
    """A notebook with these cells; the ids of the cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    root.mkdir(exist_ok=True)
    (root / name).write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)), encoding="utf-8")
    return [cell["id"] for cell in cells]


def run(tab: KernelSocket, code: str) -> str:
    """Execute; what came of this cell, and of no other tab's."""
    msg_id = tab.execute(code)
    return text_of([m for m in tab.until_idle(msg_id) if m["parent_header"].get("msg_id") == msg_id])


def check_kernels_are_shared(server: Server, notebook: str, closing: Closing) -> str:
    """Two tabs and the command line on one kernel; the kernel's id."""
    opened = server.open_notebook(notebook)
    kernel_id = str(opened["kernel"]["id"])
    first, second = (closing(server.connect(kernel_id)) for _ in range(2))
    assert run(first, "x = 20; print('one')") == "one\n"
    assert run(second, "print(x + 1)") == "21\n"
    assert run(first, "print(x + 2)") == "22\n", "the second websocket does not take the first one's replies"
    [listed] = [item for item in run_cli("ls").data if item["id"] == kernel_id]
    name = listed["name"]
    assert run_cli("run", name, "print(x)").data["status"] == "ok"
    with Session.open(kernel_id) as session:
        admitted = list(session.log(types=["admitted"]))
    assert len(admitted) == 4
    assert len({entry["actor"] for entry in admitted}) == 1, admitted
    assert len({entry["attachment"] for entry in admitted}) == 3, "two tabs and one call of the command line"
    assert [line for line in run_cli("log", name).lines if line["type"] == "ended"]
    return kernel_id


def answering(server: Server) -> dict[str, Any]:
    """What the server says of who answers; our websocket must be the one."""
    answer = server.get("/cmdop/api/server")
    assert answer.status == 200, (answer.status, answer.body)
    data: dict[str, Any] = answer.data
    assert data["routes"] == {
        "/api/kernels/<id>/channels": "jupyter_cmdop.server.websocket.SessionWebsocketHandler",
        "/api/kernels/<id>/interrupt": "jupyter_cmdop.server.handlers.SessionActionHandler",
        "/api/kernels/<id>/restart": "jupyter_cmdop.server.handlers.SessionActionHandler",
    }
    return {slot["slot"]: slot for slot in data["slots"]}


def taken(server: Server) -> str:
    """The one line that says what was taken over from whom."""
    [line] = [line for line in server.text().splitlines() if "Kernels are sessions: " in line]
    return line


def check_no_exception(server: Server) -> None:
    text = server.text()
    assert "Traceback" not in text, text[-6000:]
    # A 503 before the sessions are adopted is logged as an error, with the headers of the request.
    said = re.findall(r"^\[[EC] \S+ \S+ \w+\] (?!\{$|503 GET /api/kernels )(.*)$", text, re.MULTILINE)
    assert not said, said
