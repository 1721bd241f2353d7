"""Two pages of unmodified JupyterLab on one shared document: whoever runs a cell, both show what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from jupyter_cmdop.client.session import Session
from tests.beside.promises import check_no_exception
from tests.browser.conftest import LAB, chromium, pages, person, settled
from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Servers
from tests.support import Home

__all__ = ["chromium", "pages", "person", "settled"]

# JupyterLab itself is the project's; what the other package adds to it is in that package's environment.
APPLICATION = f"--LabApp.app_dir={sys.prefix}/share/jupyter/lab"


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "requirement", ["jupyter-collaboration>=5,<6", "jupyter_server_documents>=0.3.3,<0.4"]
)
def test_two_pages_show_each_others_outputs(
    requirement: str, python_with: Callable[[str], Path], settled: Home, servers: Servers, pages: Pages
) -> None:
    server = servers(*LAB, APPLICATION, python=python_with(requirement))
    write_notebook(server.root / "two.ipynb", "words = ['one']; words", "words.append('two'); words")
    one = pages.lab(server, "two.ipynb")
    two = pages.lab(server, "two.ipynb", elsewhere=True)
    [kernel_id] = server.kernels()
    one.run(0, 1)
    expect(two.output(0)).to_contain_text("['one']")
    two.run(1, 2)
    expect(one.output(1)).to_contain_text("['one', 'two']")
    with Session.open(kernel_id) as session:
        authors = [entry["actor"] for entry in session.log(types=["admitted"])]
        owner = session.actor
    assert len(authors) >= 2
    assert set(authors) == {owner}
    if "documents" in requirement:
        assert f"200 POST /api/kernels/{kernel_id}/execute" in server.text(), "the server executes the cells"
    check_no_exception(server)
