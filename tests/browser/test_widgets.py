"""A slider of ipywidgets: it is one value for the kernel, for every page, and for who drives."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.page import Notebook, Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import run_cli

SLIDER = "import ipywidgets\nlevel = ipywidgets.IntSlider(value=10, description='level')\nlevel"


def readout(page: Notebook) -> Locator:
    """The number beside the slider."""
    return page.page.locator(".widget-readout")


def nudge(page: Notebook) -> None:
    """Move the slider by one, as the arrow key does."""
    page.page.locator(".noUi-handle").press("ArrowRight")


@pytest.fixture
def name(server: Server, request: pytest.FixtureRequest) -> str:
    name = request.node.name.removeprefix("test_")[:40]
    write_notebook(server.root / f"{name}.ipynb", SLIDER, "level.value = 55", "print(level.value)")
    return name


def test_slider_is_the_same_for_the_kernel_and_two_pages(server: Server, pages: Pages, name: str) -> None:
    """Under `open` anybody may move it: the other page and the kernel see it at once."""
    lab = pages.lab(server, f"{name}.ipynb")
    lab.run(0, 1)
    expect(readout(lab)).to_have_text("10")
    lab.save()
    other = pages.lab(server, f"{name}.ipynb", elsewhere=True)
    assert other.kernel_id == lab.kernel_id
    expect(readout(other)).to_have_text("10")

    lab.run(1, 2)
    expect(readout(lab)).to_have_text("55")
    expect(readout(other)).to_have_text("55")

    nudge(other)
    expect(readout(other)).to_have_text("56")
    expect(readout(lab)).to_have_text("56")
    nudge(lab)
    expect(readout(other)).to_have_text("57")
    lab.run(2, 3)
    assert lab.text(2) == "57\n"


def test_slider_jumps_back_under_a_foreign_floor(server: Server, pages: Pages, name: str) -> None:
    """While an agent drives, a moved slider is not let in and shows again what holds; afterwards it moves."""
    lab = pages.lab(server, f"{name}.ipynb")
    lab.run(0, 1)
    expect(readout(lab)).to_have_text("10")
    file = run_cli("invite", name, "--as", "bot", "--kind", "agent").data["connection_file"]
    bot = {"CMDOP_GRANT_FILE": file}
    run_cli("take", name, env=bot)
    readout(lab).evaluate(
        """element => {
            window.shown = [];
            const note = () => window.shown.push(element.textContent);
            new MutationObserver(note).observe(element, {childList: true, characterData: true, subtree: true});
        }"""
    )
    nudge(lab)
    lab.page.wait_for_function("() => window.shown.join() === '11,10'")
    assert run_cli("run", name, "print(level.value)", env=bot).data["text"] == "10\n"
    assert [entry["data"]["code"] for entry in run_cli("log", name).lines if entry["type"] == "refused"]
    run_cli("release", name, env=bot)
    nudge(lab)
    expect(readout(lab)).to_have_text("11")
    assert run_cli("run", name, "print(level.value)").data["text"] == "11\n"
