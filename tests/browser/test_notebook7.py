"""Notebook 7 over the same sessions."""

from __future__ import annotations

from playwright.sync_api import expect

from jupyter_cmdop.client.session import Session
from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import Gate, run_cli


def test_notebook_from_opening_to_restart(server: Server, pages: Pages, gate: Gate) -> None:
    write_notebook(server.root / "seven.ipynb", "kept = 41", "kept + 1", gate.code)
    page = pages.notebook7(server, "seven.ipynb")
    page.run(0, 1)
    page.run(1, 2)
    assert page.text(1) == "42"
    page.start(2)
    expect(page.output(2)).to_contain_text("waiting")
    page.menu("Kernel", "Interrupt Kernel")
    page.wait_ended(2, 3)
    expect(page.output(2)).to_contain_text("KeyboardInterrupt")

    page.menu("Kernel", "Restart Kernel…")
    page.accept("Restart Kernel?")
    page.wait_restarted()
    page.run(1, 1)
    expect(page.output(1)).to_contain_text("NameError")
    assert page.kernel()["kernel"] == page.kernel_id
    [listed] = run_cli("ls").data
    assert (listed["name"], listed["incarnation"]) == ("seven", 2)


def test_notebook_that_is_loaded_again(server: Server, pages: Pages, gate: Gate) -> None:
    write_notebook(server.root / "again.ipynb", f"{gate.code}\nkept = 'by the first page'", "kept")
    page = pages.notebook7(server, "again.ipynb")
    before = page.kernel()["kernel"]
    page.start(0)
    expect(page.output(0)).to_contain_text("waiting")
    page.save()
    page.reload()
    assert page.kernel()["kernel"] == before
    page.start(1)
    page.wait_started(1)
    gate.open()
    page.wait_ended(1, 2)
    assert page.text(1) == "'by the first page'"


def test_lab_and_notebook_have_one_kernel(server: Server, pages: Pages) -> None:
    """The same document in both: one kernel, one session, one numbering."""
    write_notebook(server.root / "both.ipynb", "shared = ['lab']", "shared.append('notebook'); shared")
    lab = pages.lab(server, "both.ipynb")
    page = pages.notebook7(server, "both.ipynb")
    assert page.kernel()["kernel"] == lab.kernel()["kernel"]
    lab.run(0, 1)
    page.run(1, 2)
    assert page.text(1) == "['lab', 'notebook']"
    with Session.open(lab.kernel_id) as session:
        assert [p.transport for p in session.status().presence] == ["websocket", "websocket"]
