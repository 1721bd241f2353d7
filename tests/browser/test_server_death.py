"""The Jupyter server ends while a page looks on, and comes back."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from jupyter_cmdop.client.session import Session
from tests.browser.conftest import LAB
from tests.browser.page import Notebook, Pages, write_notebook
from tests.server.jupyter import Server, Servers, wait_gone
from tests.support import Gate, run_cli

LINES = 400
PRINTING = f"import time\nfor n in range({LINES}):\n    print('line', n)\n    time.sleep(0.01)"
ALL_LINES = [f"line {n}" for n in range(LINES)]


AWAY = "Server Connection Error"
"""What JupyterLab says of a server that does not answer, in front of everything and with each new try."""


def sockets(pages: Pages) -> int:
    """How often a page has opened a websocket to a kernel."""
    return sum("Starting WebSocket" in line for line in pages.said)


def kill_in_mid_cell(server: Server, lab: Notebook) -> None:
    lab.start(0)
    expect(lab.output(0)).to_contain_text("line 50")
    server.kill()
    assert 50 < len(lab.text(0).splitlines()) < LINES


def test_page_works_on_without_its_server_and_with_the_next_one(servers: Servers, pages: Pages) -> None:
    """SIGKILL in the middle of a cell: each line arrives once, a cell that asks is answered, the next server has it."""
    server = servers(*LAB)
    path = write_notebook(
        server.root / "lives.ipynb", PRINTING, "kept = n + int(input('more? ')); kept", "kept + 1"
    )
    lab = pages.lab(server, "lives.ipynb")
    before = lab.kernel()
    kill_in_mid_cell(server, lab)
    lab.wait_ended(0, 1)
    assert lab.text(0).splitlines() == ALL_LINES

    lab.close_notice(AWAY)
    lab.start(1)
    question = lab.cell(1).locator(".jp-Stdin-input")
    question.fill("2")
    question.press("Enter")
    lab.wait_ended(1, 2)
    assert lab.text(1).endswith(str(LINES + 1))
    assert server.get("/api").status == 0  # nobody has started another one

    again = servers.add(server.again(*LAB))
    assert list(again.kernels()) == [before["kernel"]]
    again.wait_for_kernel(before["kernel"], connections=1)
    assert [n["id"] for n in again.get("/api/sessions").data] == [before["session"]]
    lab.save()
    saved = json.loads(path.read_text())["cells"]
    assert "".join(saved[0]["outputs"][0]["text"]).splitlines() == ALL_LINES
    lab.run(2, 3)
    assert lab.text(2) == str(LINES + 2)
    now = lab.kernel()
    assert {**now, "status": ""} == {**before, "status": ""}
    assert sockets(pages) == 1  # the one that the first server handed over

    lab.reload()
    assert lab.kernel()["session"] == before["session"]
    lab.run(2, 4)


def test_asked_to_stop_a_server_ends_what_was_merely_opened(
    servers: Servers, pages: Pages, gate: Gate
) -> None:
    """SIGTERM: the kernel that somebody was invited to works on, also for its page; the other one has ended."""
    server = servers(*LAB)
    write_notebook(server.root / "invited.ipynb", f"{gate.code}\nprint('through')", "6 * 7")
    write_notebook(server.root / "opened.ipynb", "1 + 1", "2 + 2")
    invited = pages.lab(server, "invited.ipynb")
    opened = pages.lab(server, "opened.ipynb")
    opened.run(0, 1)
    run_cli("invite", "invited", "--as", "bot")
    with Session.open(opened.kernel_id) as session:
        pid = session.status().processes[0].pid
    invited.start(0)
    expect(invited.output(0)).to_contain_text("waiting")
    text = server.stop()
    wait_gone(pid)
    assert "shared with bot" in text
    assert [item["name"] for item in run_cli("ls").data] == ["invited"]
    gate.open()
    invited.wait_ended(0, 1)
    assert "through" in invited.text(0)
    invited.close_notice(AWAY)
    invited.run(1, 2)
    opened.close_notice(AWAY)
    expect(opened.page.locator("#jp-main-statusbar")).to_contain_text("Disconnected")

    again = servers.add(server.again(*LAB))
    assert list(again.kernels()) == [invited.kernel_id]
    invited.run(1, 3)
    # The page of the other one learns that it has no kernel; the next cell starts a fresh one.
    expect(opened.page.locator(".jp-NotebookPanel-toolbar")).to_contain_text("No Kernel")
    opened.run(1, 1)
    assert opened.kernel()["kernel"] not in (opened.kernel_id, invited.kernel_id)


@pytest.mark.soak
def test_killed_again_and_again(servers: Servers, pages: Pages) -> None:
    """Ten servers die under one page: each time all lines are there, in one kernel, over one websocket."""
    server = servers(*LAB)
    write_notebook(server.root / "often.ipynb", PRINTING)
    lab = pages.lab(server, "often.ipynb")
    for count in range(1, 11):
        kill_in_mid_cell(server, lab)
        lab.wait_ended(0, count)
        if count == 1:
            lab.close_notice(AWAY)
        assert lab.text(0).splitlines() == ALL_LINES
        server = servers.add(server.again(*LAB))
    assert sockets(pages) == 1
