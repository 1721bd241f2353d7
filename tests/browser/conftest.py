"""Unmodified JupyterLab and Notebook in Debian's Chromium, each module with a server and a browser of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, expect, sync_playwright

from tests.browser.page import LIMIT_MS, Pages
from tests.server.jupyter import Server, Servers, end_all_sessions
from tests.support import Home, closing, gate, home

__all__ = ["closing", "gate", "home"]

HERE = Path(__file__).parent
LAB = (
    # What the tests of the server leave out, as an installation enables it.
    *(
        f"--ServerApp.jpserver_extensions={name}=True"
        for name in ("jupyterlab", "notebook", "notebook_shim", "jupyter_server_terminals")
    ),
    # The page names its application object, which says when everything has loaded; nothing else of it changes.
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
CHROMIUM = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
    *(("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a kernel, and a browser beside it, which takes its time on a busy machine."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kernel)
            if item.get_closest_marker("soak") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """When a test has failed its pages are photographed, while they are still there."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if report.failed and HERE in item.path.parents:
        pages = item.funcargs.get("pages") if hasattr(item, "funcargs") else None
        if isinstance(pages, Pages):
            folder = item.config.rootpath / "tmp" / re.sub(r"[^\w.-]+", "-", item.nodeid)
            report.sections.append(("pages", pages.photograph(folder)))
    return report  # type: ignore[return-value]


def chromium_path() -> str | None:
    """The distribution's Chromium, or a Chrome that is there already (as on GitHub's runners)."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name)) is not None), None)


@pytest.fixture(scope="module")
def chromium(home: Home) -> Iterator[Browser]:
    """One browser for a module; Playwright's loop must be gone before a test of another folder runs one."""
    path = chromium_path()
    if path is None:
        message = "there is no Chromium here (Debian, Ubuntu: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        expect.set_options(timeout=LIMIT_MS)
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def settled(home: Home) -> Home:
    """A home in which JupyterLab does not ask whether it may fetch the news."""
    settings = home.user_home / ".jupyter/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps({"fetchNews": "false"}))
    return home


@pytest.fixture
def servers(settled: Home) -> Iterator[Servers]:
    """Makes servers (`servers(*LAB)`), for tests that end them."""
    made = Servers(settled)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def module_server(settled: Home) -> Iterator[Server]:
    made = Servers(settled)
    try:
        yield made(*LAB)
    finally:
        made.close()


@pytest.fixture
def server(module_server: Server, home: Home) -> Iterator[Server]:
    """The module's server, without kernels."""
    yield module_server
    end_all_sessions(home)


@pytest.fixture(scope="module")
def person(chromium: Browser) -> Iterator[BrowserContext]:
    """One person's browser profile: its cache makes the second page quick."""
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    yield context
    try:
        context.close()
    except Error:
        pass  # the browser has gone, which its own fixture reports


@pytest.fixture
def pages(person: BrowserContext, chromium: Browser) -> Iterator[Pages]:
    """Opens pages, and closes them before the kernels end."""
    made = Pages(person, chromium)
    try:
        yield made
    finally:
        made.close()
