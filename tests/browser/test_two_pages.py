"""Two pages of one person, on two machines, on one notebook's kernel."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import Gate, run_cli


def test_two_pages_share_a_kernel(server: Server, pages: Pages, gate: Gate) -> None:
    """One state and one numbering; each page gets the output of its own cells, and sees that the other one works."""
    write_notebook(server.root / "two.ipynb", "words = ['one']", gate.code, "words.append('two'); words")
    one = pages.lab(server, "two.ipynb")
    two = pages.lab(server, "two.ipynb", elsewhere=True)
    assert {**two.kernel(), "status": ""} == {**one.kernel(), "status": ""}
    one.run(0, 1)
    two.run(2, 2)
    assert two.text(2) == "['one', 'two']"
    one.run(2, 3)
    assert one.text(2) == "['one', 'two', 'two']"

    one.start(1)
    expect(one.output(1)).to_contain_text("waiting")
    two.wait_status("busy")
    two.start(2)
    two.wait_started(2)
    gate.open()
    one.wait_ended(1, 4)
    two.wait_ended(2, 5)
    assert "waiting" not in two.text(1)


def test_other_page_interrupts_and_restarts(server: Server, pages: Pages, gate: Gate) -> None:
    """What one page starts the other one may stop: both are the same person, and none of them hangs afterwards."""
    write_notebook(server.root / "stop.ipynb", gate.code, "'here'")
    one = pages.lab(server, "stop.ipynb")
    two = pages.lab(server, "stop.ipynb", elsewhere=True)
    one.start(0)
    expect(one.output(0)).to_contain_text("waiting")
    two.wait_status("busy")
    two.menu("Kernel", "Interrupt Kernel")
    one.wait_ended(0, 1)
    expect(one.output(0)).to_contain_text("KeyboardInterrupt")

    one.start(0)
    expect(one.output(0)).not_to_contain_text("KeyboardInterrupt")
    expect(one.output(0)).to_contain_text("waiting")
    two.menu("Kernel", "Restart Kernel…")
    two.accept("Restart Kernel?")
    two.wait_restarted()
    # The cell of the other page is answered: it does not wait for a kernel that is no more.
    one.wait_not_running(0)
    expect(one.page.locator(".jp-Dialog")).to_have_count(0)
    one.run(1, 1)
    two.run(1, 2)
    assert run_cli("status", "stop").data["incarnation"] == 2


def test_page_that_is_closed_leaves_the_other_one(server: Server, pages: Pages) -> None:
    write_notebook(server.root / "close.ipynb", "1 + 1")
    one = pages.lab(server, "close.ipynb")
    two = pages.lab(server, "close.ipynb", elsewhere=True)
    one.run(0, 1)
    one.page.close()
    two.run(0, 2)
    server.wait_for_kernel(two.kernel_id, connections=1)
