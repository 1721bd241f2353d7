"""Unmodified programs that start kernels through a Jupyter server, and the session that each finds there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import nbformat

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import Server, Servers, text_of
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


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "run-a-notebook-as-a-job.md"


def program_of_the_guide(heading: str) -> str:
    """The Python program below a heading of the how-to guide: what it tells people to use is what is tested."""
    section = GUIDE.read_text(encoding="utf-8").split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    [program] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(program)


def run_papermill(program: str, *arguments: str, folder: Path, code: int = 0) -> tuple[Any, str]:
    """Execute a notebook with parameters by a program of the guide: what it wrote, and what it said."""
    parameters = nbformat.v4.new_code_cell("radius = 1", metadata={"tags": ["parameters"]})
    rest = [nbformat.v4.new_code_cell(code) for code in ("print(radius * 2)", "{'area': radius ** 2}")]
    book, result = folder / "book.ipynb", folder / "result.ipynb"
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(
        nbformat.v4.new_notebook(cells=[parameters, *rest], metadata={"kernelspec": kernelspec}), book
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, str(book), str(result)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:]
    return nbformat.read(result, 4), done.stderr


def check_result(book: Any) -> None:
    """papermill puts the given parameters in a cell of their own behind the default ones."""
    assert [cell.execution_count for cell in book.cells] == [1, 2, 3, 4]
    assert [cell.metadata.papermill.status for cell in book.cells] == ["completed"] * 4
    assert book.cells[1].metadata.tags == ["injected-parameters"]
    assert book.cells[2].outputs[0].text == "42\n"
    assert book.cells[3].outputs[0].data["text/plain"] == "{'area': 441}"


def cells_in_log(name: str) -> list[tuple[str, str]]:
    """(who, code) of each cell as `log` tells it; those that clients send for themselves have no history."""
    return [
        (e["actor"], e["data"]["code"])
        for e in run_cli("log", name).lines
        if e["type"] == "admitted" and e["data"].get("code")
    ]


def test_papermill_executes_a_notebook_through_the_server(servers: Servers, tmp_path: Path) -> None:
    """With the server's token, in a kernel that the server starts for it: a session, whose record is the owner's."""
    server = servers()
    book, _ = run_papermill(
        program_of_the_guide("In a new kernel of a Jupyter server"), server.url, server.token, folder=tmp_path
    )
    check_result(book)
    past = run_cli("ls", "--all").data[0]
    assert past["state"] == "closed"
    with_owner = run_cli("log", past["name"]).lines
    [owner] = {e["actor"] for e in with_owner if e["type"] == "opened"}
    told = cells_in_log(past["name"])
    for cell in book.cells:
        assert (owner, cell.source) in told
    assert {who for who, _ in told} == {owner}


def test_papermill_in_a_shared_session_runs_under_its_own_name(server: Server, tmp_path: Path) -> None:
    """In the kernel that a notebook has open: its state is there before and afterwards, and each has his own cells."""
    kernel_id = server.open_notebook("report.ipynb")["kernel"]["id"]
    ws = server.connect(kernel_id)
    invited = run_cli("invite", "report", "--as", "nightly", "--kind", "service").data
    book, _ = run_papermill(
        program_of_the_guide("In a session that is there, under a name of its own"),
        invited["connection_file"],
        folder=tmp_path,
    )
    check_result(book)
    own = ws.execute("print(radius)")
    seen = ws.until_idle(own)
    assert "42\n" in text_of(seen), "the page shows what the job printed"
    assert text_of([m for m in seen if m["parent_header"].get("msg_id") == own]) == "21\n"
    told = cells_in_log("report")
    assert [code for who, code in told if who == "nightly"] == [cell.source for cell in book.cells]
    assert told[-1] == (run_cli("status", "report").data["presence"][0]["actor"], "print(radius)")
    ws.close()


def test_papermill_that_lost_the_floor_writes_down_who_has_it(server: Server, tmp_path: Path) -> None:
    """Its cell is refused; it neither hangs nor goes on, and the notebook that it leaves says why."""
    kernel_id = server.open_notebook("taken.ipynb")["kernel"]["id"]
    with Session.open(kernel_id) as session:
        invited = run_cli("invite", "taken", "--as", "nightly", "--kind", "service").data
        session.take("the numbers are wrong")
        book, said = run_papermill(
            program_of_the_guide("In a session that is there, under a name of its own"),
            invited["connection_file"],
            folder=tmp_path,
            code=1,
        )
        assert "PapermillExecutionError" in said
        [refused] = [o for cell in book.cells for o in cell.get("outputs", []) if o.output_type == "error"]
        assert refused.ename == "cmdop.not_driver"
        assert session.actor in refused.evalue
        assert "the numbers are wrong" in refused.evalue
        assert [e["actor"] for e in session.log(types=["refused"])] == ["nightly"]


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
