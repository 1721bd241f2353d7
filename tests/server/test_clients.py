"""Unmodified programs that start kernels through a Jupyter server, and the session that each finds there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import Server, Servers
from tests.support import Clients, open_console, run_cli

CELLS = ("x = 20", "print(x + 1)", "x * 2 + 2")


def notebook() -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])


def test_nbclient_executes_a_notebook_through_the_server(servers: Servers, tmp_path: Path) -> None:
    """Its kernel manager is Jupyter's own client of a remote server: REST to start, a websocket to execute.

    That client sends no credential with its websocket, so the server is one without authentication.
    """
    server = servers("--ServerApp.disable_check_xsrf=True", token="")
    program = textwrap.dedent(
        """
        import sys
        import nbformat
        from jupyter_server.gateway.gateway_client import GatewayClient
        from jupyter_server.gateway.managers import GatewayKernelManager
        from nbclient import NotebookClient

        url, path = sys.argv[1:]
        GatewayClient.instance().url = url
        book = nbformat.read(path, 4)
        NotebookClient(
            book, timeout=60, kernel_name="python3", kernel_manager_class=GatewayKernelManager
        ).execute()
        nbformat.write(book, path)
        """
    )
    path = tmp_path / "book.ipynb"
    nbformat.write(notebook(), path)
    done = subprocess.run(
        [sys.executable, "-c", program, server.url, str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stderr[-3000:], server.text()[-2000:])
    book = nbformat.read(path, 4)
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3]
    assert book.cells[1].outputs[0].text == "21\n"
    assert book.cells[2].outputs[0].data["text/plain"] == "42"
    [past] = run_cli("ls", "--all").data[:1]
    entries = run_cli("log", past["name"]).lines
    assert [
        e["data"]["code"] for e in entries if e["type"] == "admitted" and e["data"].get("code") in CELLS
    ] == list(CELLS)


def test_agent_command_line_browser_and_console_share_one_state(server: Server, clients: Clients) -> None:
    kernel_id = server.open_notebook("shared.ipynb")["kernel"]["id"]
    with Session.open(kernel_id) as session:
        agent = clients(session, "bot")
        agent.execute_interactive("x = 'the agent'", output_hook=lambda message: None, timeout=60)
        assert run_cli("run", "shared", "y = x + ' and the command line'").data["status"] == "ok"
        ws = server.connect(kernel_id)
        assert ws.run("print(y)") == "the agent and the command line\n"
        invited = session.invite("person", kind="human")
        assert invited.connection_file is not None
        console = open_console(invited.connection_file)
        try:
            console.run("y.upper()")
            console.expect("THE AGENT AND THE COMMAND LINE")
        finally:
            console.close()
        authors = {entry["actor"] for entry in session.log(types=["admitted"])}
        assert authors == {session.actor, "bot", "person"}
        server.wait_for_kernel(kernel_id)
        ws.close()
