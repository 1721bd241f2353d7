"""A page that is loaded again while its kernel works."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import Gate, run_cli


def test_reload_while_a_cell_runs(server: Server, pages: Pages, gate: Gate) -> None:
    """The page comes back to the same kernel, which is busy with the cell of the page that was.

    What a person sees is stock JupyterLab's: the cells have lost their stars and what they print from now on goes to
    no cell. But the kernel's sign says busy, what waited runs on, and the journal has every line.
    """
    write_notebook(
        server.root / "reload.ipynb", f"kept = 1\n{gate.code}\nprint('behind the gate')", "kept += 1", "kept"
    )
    lab = pages.lab(server, "reload.ipynb")
    before = lab.kernel()
    lab.start(0)
    lab.start(1)
    expect(lab.output(0)).to_contain_text("waiting")
    lab.save()
    lab.reload()
    assert lab.kernel()["kernel"] == before["kernel"]
    assert lab.kernel()["session"] == before["session"]
    # The debugger's button can be pressed when what a page asks while it opens has been answered.
    expect(lab.page.locator(".jp-DebuggerBugButton")).to_have_attribute("title", "Enable Debugger")
    lab.wait_status("busy")
    expect(lab.prompt(0)).to_have_text("[ ]:")
    expect(lab.output(0)).to_contain_text("waiting")  # as it was saved

    lab.start(2)
    lab.wait_started(2)
    gate.open()
    lab.wait_ended(2, 3)
    assert lab.text(2) == "2"
    lab.wait_status("idle")
    assert "behind the gate" not in lab.text(0)
    assert "behind the gate" in run_cli("read", "reload").out


def test_reload_while_a_cell_asks(server: Server, pages: Pages) -> None:
    """The question belongs to the page that was; it is answered, or interrupted, from outside or from the new page."""
    write_notebook(server.root / "asks.ipynb", "name = input('who? ')", "name")
    lab = pages.lab(server, "asks.ipynb")
    lab.start(0)
    expect(lab.output(0)).to_contain_text("who?")
    lab.reload()
    assert run_cli("status", "asks").data["pending_input"]["prompt"] == "who? "
    run_cli("answer", "asks", "Ada")
    lab.run(1, 2)
    assert lab.text(1) == "'Ada'"

    lab.start(0)
    expect(lab.output(0)).to_contain_text("who?")
    lab.reload()
    lab.start(1)
    lab.wait_started(1)
    lab.menu("Kernel", "Interrupt Kernel")
    lab.wait_ended(1)
    assert lab.text(1) == "'Ada'"


@pytest.mark.soak
def test_reload_again_and_again(server: Server, pages: Pages) -> None:
    """Twenty times in the middle of a stream of output: the same kernel, no hang, nothing left of the old pages."""
    write_notebook(
        server.root / "stream.ipynb",
        "import threading, time\nstop = threading.Event()\n"
        "def tell():\n    while not stop.wait(0.01):\n        print('tick')\n"
        "teller = threading.Thread(target=tell)\nteller.start()",
        "1 + 1",
    )
    lab = pages.lab(server, "stream.ipynb")
    kernel = lab.kernel()["kernel"]
    lab.run(0, 1)
    for count in range(2, 22):
        lab.reload()
        assert lab.kernel()["kernel"] == kernel
        lab.run(1, count)
    presence = run_cli("status", "stream").data["presence"]
    assert [p["transport"] for p in presence] == ["websocket"]
    run_cli("run", "stream", "stop.set(); teller.join()")
