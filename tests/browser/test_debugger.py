"""JupyterLab's debugger through the session."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import run_cli


def test_breakpoint_holds_a_cell_and_continue_lets_it_go(server: Server, pages: Pages) -> None:
    """The panel opens on the kernel's answer to `initialize`; the cell stops at a breakpoint with its variables."""
    write_notebook(server.root / "debug.ipynb", "start = 20\nmiddle = start + 1\nlast = middle * 2\nlast")
    lab = pages.lab(server, "debug.ipynb")
    bug = lab.page.locator(".jp-DebuggerBugButton")
    expect(bug).to_have_attribute("title", "Enable Debugger")
    bug.click()
    expect(bug).to_have_attribute("aria-pressed", "true")
    panel = lab.page.locator(".jp-DebuggerSidebar")
    expect(panel).to_contain_text("special variables")

    # The first element of a gutter is no line: it holds its width.
    lab.cell(0).locator(".cm-breakpoint-gutter .cm-gutterElement").nth(3).click()
    expect(panel.locator(".jp-DebuggerBreakpoint")).to_have_count(1)
    lab.start(0)
    expect(lab.cell(0).locator(".jp-DebuggerEditor-highlight")).to_contain_text("last = middle * 2")
    expect(panel.get_by_role("treeitem", name="middle: 21")).to_be_visible()
    assert run_cli("status", "debug").data["execution_state"] == "busy"
    panel.locator("[title^=Continue]").click()
    lab.wait_ended(0, 1)
    assert lab.text(0) == "42"
