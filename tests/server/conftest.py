from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.jupyter import Server, Servers, end_all_sessions
from tests.support import Home, clients, closing, gate, home, session

__all__ = ["clients", "closing", "gate", "home", "module_server", "server", "servers", "session"]


@pytest.fixture
def servers(home: Home) -> Iterator[Servers]:
    """Makes servers (`servers()`); at the end they are gone, and so are all sessions."""
    made = Servers(home)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def module_server(home: Home) -> Iterator[Server]:
    made = Servers(home)
    try:
        yield made()
    finally:
        made.close()


@pytest.fixture
def server(module_server: Server, home: Home) -> Iterator[Server]:
    """The module's server, without kernels."""
    yield module_server
    end_all_sessions(home)
    for kernel_id in module_server.kernels():  # it hears of their ends a moment later
        module_server.wait_for_end(kernel_id)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nearly every test in this folder starts a kernel."""
    for item in items:
        if "tests/server/" in item.nodeid:
            item.add_marker(pytest.mark.kernel)
