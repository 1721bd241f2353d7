"""A notebook in a browser's page as a person uses it: menus, keys, what is on the screen.

JupyterLab and Notebook 7 are made of the same parts, so one class drives both. What is done is done with the mouse
and the keyboard, and what is asserted is read from the page; the application object (`jupyterapp`) is asked only for
what no selector says: whether everything has loaded, and what cells off the screen hold.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, BrowserContext, Error, Locator, Page, TimeoutError, expect

from tests.server.jupyter import Server
from tests.support import LIMIT_SECONDS, TooLate

LIMIT_MS = LIMIT_SECONDS * 1000
TABS = 6
"""How often a person presses Tab before he gives up."""

_PANEL = """
const panel = Array.from(window.jupyterapp.shell.widgets('main')).find(w => w.context && w.content?.widgets);
"""
# The indicator on the page says idle before a first Shift+Enter would be taken: what it waits for is asked by name.
_READY = """async () => {
    await window.jupyterapp.restored;
    const until = async (get) => {
        for (;;) { const found = get(); if (found) return found; await new Promise(requestAnimationFrame); }
    };
    const panel = await until(() => Array.from(window.jupyterapp.shell.widgets('main')).find(
        w => w.context && w.content?.widgets));
    await panel.revealed;
    await panel.context.ready;
    await panel.sessionContext.ready;
    const session = await until(() => panel.sessionContext.session);
    await session.kernel.info;
    await until(() => session.kernel.connectionStatus === 'connected');
    for (const cell of panel.content.widgets) if (cell.isPlaceholder?.() === false) await cell.ready;
    return session.kernel.id;
}"""
_CELLS = f"""() => {{
    {_PANEL}
    return panel.content.widgets.map(cell => cell.model.toJSON());
}}"""
_KERNEL = f"""() => {{
    {_PANEL}
    const session = panel.sessionContext.session;
    return session && {{
        session: session.id, kernel: session.kernel?.id, status: session.kernel?.status,
        connection: session.kernel?.connectionStatus,
    }};
}}"""


def write_notebook(path: Path, *cells: str) -> Path:
    """A notebook of code cells on disk; its metadata name the kernel, so that no dialog asks for one."""
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code) for code in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        },
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


class Notebook:
    """One page that shows one notebook.

    Attributes:
        kernel_id: of the kernel that it had when it was last loaded.
    """

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server
        self.kernel_id = ""

    # --- opening

    def open(self, url: str) -> None:
        self.page.goto(self.server.url + url)
        self.wait_loaded()

    def reload(self) -> None:
        """The browser's own reload button."""
        self.page.reload()
        self.wait_loaded()

    def wait_loaded(self) -> None:
        self.page.wait_for_function("() => window.jupyterapp !== undefined")
        splash = self.page.locator("#jupyterlab-splash")
        splash.wait_for(state="detached")
        self.kernel_id = self.page.wait_for_function(_READY).json_value()

    # --- cells

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell")

    def cell(self, index: int) -> Locator:
        return self.cells.nth(index)

    def output(self, index: int) -> Locator:
        """Everything that is shown below a cell."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def prompt(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-InputArea .jp-InputPrompt")

    def model(self) -> list[dict[str, Any]]:
        """All cells as they would be saved now."""
        return list(self.page.evaluate(_CELLS))

    def text(self, index: int) -> str:
        """The text of a cell's outputs, whole: the page itself shows long output in pieces."""
        parts = []
        for output in self.model()[index]["outputs"]:
            if output["output_type"] == "stream":
                parts.append("".join(output["text"]))
            elif "data" in output:
                parts.append("".join(output["data"].get("text/plain", "")))
        return "".join(parts)

    def select(self, index: int) -> Locator:
        """Click into a cell's editor."""
        editor = self.cell(index).locator(".jp-InputArea-editor .cm-content")
        editor.click()
        return editor

    def write(self, index: int, code: str) -> None:
        """Replace what a cell holds, as a paste does."""
        self.select(index)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(code)

    def start(self, index: int) -> None:
        """Run a cell and do not wait for it."""
        self.select(index).press("Control+Enter")

    def run(self, index: int, count: int | None = None) -> None:
        """Run a cell and wait until it has ended (under this execution count)."""
        before = self.prompt(index).inner_text()
        self.start(index)
        self.wait_ended(index, count, before=before)

    def wait_started(self, index: int) -> None:
        expect(self.prompt(index)).to_have_text("[*]:")

    def wait_ended(self, index: int, count: int | None = None, *, before: str | None = None) -> None:
        if count is not None:
            expect(self.prompt(index)).to_have_text(f"[{count}]:")
            return
        numbered = re.compile(r"^\[\d+\]:$")
        if before is not None:
            expect(self.prompt(index)).not_to_have_text(before)
        expect(self.prompt(index)).to_have_text(numbered)

    def wait_not_running(self, index: int) -> None:
        """A cell has been answered: it ran, was refused, or was aborted."""
        expect(self.prompt(index)).not_to_have_text("[*]:")

    def run_code(self, index: int, code: str) -> str:
        """Write code into a cell, run it, and return the text that it gave."""
        self.write(index, code)
        self.run(index)
        return self.text(index)

    def complete(self, choice: str) -> None:
        """Press Tab, and choose: again, if the page has hidden the list because its layout still moved."""
        item = self.page.locator(".jp-Completer-item", has_text=choice)
        for _ in range(TABS):
            self.page.keyboard.press("Tab")
            try:
                item.click(timeout=LIMIT_MS / TABS)
            except TimeoutError:
                continue
            return
        raise TooLate(f"{choice} was not offered")

    # --- the rest of the page

    def menu(self, name: str, item: str) -> None:
        """Choose an item of the menu bar."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{name}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{re.escape(item)}$")).click()

    def accept(self, title: str) -> None:
        """Press the button of a dialog that does what was asked for."""
        dialog = self.page.locator(".jp-Dialog", has_text=title)
        dialog.locator("button.jp-mod-accept").click()
        dialog.wait_for(state="detached")

    def save(self) -> None:
        """Save, and wait until the page says that there is nothing left to save."""
        self.menu("File", "Save Notebook")
        self.page.wait_for_function(f"() => {{ {_PANEL} return !panel.context.model.dirty; }}")

    def wait_restarted(self) -> None:
        """The page has a new connection to its kernel and knows that it can be used."""
        self.page.wait_for_function(
            f"""() => {{
                {_PANEL}
                const kernel = panel.sessionContext.session?.kernel;
                return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
            }}"""
        )

    def close_notice(self, title: str) -> None:
        """Wait for a message in front of everything, and close it for good, as a person does who has read it."""
        dialog = self.page.locator(".jp-Dialog", has_text=title)
        dialog.locator("input[type=checkbox]").check()
        dialog.get_by_role("button", name="Close").click()
        dialog.wait_for(state="detached")

    def kernel(self) -> dict[str, Any]:
        """The notebook session, the kernel and their states as the page knows them."""
        return dict(self.page.evaluate(_KERNEL))

    def wait_status(self, status: str) -> None:
        """What the round sign in the notebook's toolbar shows."""
        expect(self.page.locator(f".jp-Notebook-ExecutionIndicator[data-status={status}]")).to_be_visible()


class Pages:
    """Opens pages of one person, in the module's browser profile or in a new one.

    Attributes:
        said: what the pages' consoles said, for a test that fails.
    """

    def __init__(self, person: BrowserContext, browser: Browser) -> None:
        self._person = person
        self._browser = browser
        self._others: list[BrowserContext] = []
        self._pages: list[Page] = []
        self.said: list[str] = []

    def lab(self, server: Server, path: str, *, elsewhere: bool = False) -> Notebook:
        """JupyterLab on a notebook; `elsewhere`: on another machine of the same person."""
        return self._open(server, f"/lab/tree/{path}?token={server.token}&reset", elsewhere=elsewhere)

    def notebook7(self, server: Server, path: str, *, elsewhere: bool = False) -> Notebook:
        return self._open(server, f"/notebooks/{path}?token={server.token}", elsewhere=elsewhere)

    def _open(self, server: Server, url: str, *, elsewhere: bool) -> Notebook:
        context = self._person
        if elsewhere:
            context = self._browser.new_context()
            context.set_default_timeout(LIMIT_MS)
            self._others.append(context)
        page = context.new_page()
        self._pages.append(page)
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"uncaught: {error}"))
        opened = Notebook(page, server)
        opened.open(url)
        return opened

    def photograph(self, folder: Path) -> str:
        """Save what the pages show; where, and what their consoles said."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for number, page in enumerate(self._pages):
            path = folder / f"{number}.png"
            try:
                page.screenshot(path=path, timeout=5000)
            except Error as error:
                lines.append(f"{path.name}: {error}")
            else:
                lines.append(str(path))
        return "\n".join([*lines, *self.said[-40:]])

    def close(self) -> None:
        for page in self._pages:
            # A page with unsaved changes would ask whether to leave it.
            page.close(run_before_unload=False)
        for context in self._others:
            context.close()
