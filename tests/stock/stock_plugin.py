"""Loaded into the pytest that runs jupyter_server's own tests: their servers have our extension, and are watched.

This module is imported by its bare name in that other process, where `tests` is jupyter_server's package. It must not
import anything of ours but `jupyter_cmdop`.

Environment:
    CMDOP_STOCK_REPORT: a file that gets a JSON object a line, the outcome of each phase of each test.
    CMDOP_STOCK_PLAIN: when set, servers stay as they are and only outcomes are reported.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_server.serverapp import ServerApp

from jupyter_cmdop.client.errors import KeeperGone, UnknownSession
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session

STOCK_MANAGER = "jupyter_server.services.kernels.kernelmanager.AsyncMappingKernelManager"

_seen = {"manager": ""}
"""The kernel manager of the present test's server: that the extension is there has to be seen, not believed."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "flaky: belongs to a plugin that is not needed here")
    if not os.environ.get("CMDOP_STOCK_PLAIN"):
        _extend_servers()


def _extend_servers() -> None:
    initialize, start_app = ServerApp.initialize, ServerApp.start_app

    def extended_initialize(app: ServerApp, *args: Any, **kwargs: Any) -> Any:
        app.jpserver_extensions = {**app.jpserver_extensions, "jupyter_cmdop": True}
        # Many of these tests spell the default out. The extension respects a class that somebody has chosen, so it
        # would not be there; where a test chooses another class than the default, this must stay.
        if app.config.ServerApp.get("kernel_manager_class") == STOCK_MANAGER:
            del app.config.ServerApp["kernel_manager_class"]
        return initialize(app, *args, **kwargs)

    def extended_start_app(app: ServerApp) -> None:
        start_app(app)
        _seen["manager"] = type(app.kernel_manager).__name__
        # `start_ioloop` would do it; these servers run in the test's loop and never come to it.
        loop = app.io_loop.asyncio_loop
        if loop.is_running():
            app.io_loop.add_callback(app._post_start)
        else:
            loop.run_until_complete(app._post_start())

    ServerApp.initialize = extended_initialize
    ServerApp.start_app = extended_start_app


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End the sessions that a server was told to leave, or could not end."""
    try:
        return (yield)
    finally:
        runtime = item.funcargs.get("jp_runtime_dir")  # type: ignore[attr-defined]
        if runtime is not None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("JUPYTER_RUNTIME_DIR", str(runtime))
                _end_sessions()
        gc.collect()  # what a test has left open is found in its own teardown, not in that of another


def _end_sessions() -> None:
    """A keeper that was told to end has a moment for it; one that was not is told."""
    registry = Registry.of_user()
    for pointer in registry.list_pointers():
        keeper = _process(pointer.pid)
        if keeper is None or not psutil.wait_procs([keeper], timeout=0.5)[1]:
            continue
        try:
            with Session.open(pointer.id) as session:
                session.close(force=True)
        except (KeeperGone, UnknownSession):
            pass  # it has just ended by itself
        assert not psutil.wait_procs([keeper], timeout=10)[1], f"the keeper of {pointer.name} does not end"
    registry.sweep()
    assert not registry.list_pointers()


def _process(pid: int | None) -> psutil.Process | None:
    try:
        return None if pid is None else psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    line = {"test": report.nodeid, "when": report.when, "outcome": report.outcome, "why": "", **_seen}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        line["why"] = crash.message if crash is not None else str(report.longrepr)
    with Path(os.environ["CMDOP_STOCK_REPORT"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if report.when == "teardown":
        _seen["manager"] = ""
