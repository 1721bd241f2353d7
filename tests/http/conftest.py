from __future__ import annotations

import pytest

from tests.server.conftest import module_server, server, servers
from tests.support import clients, closing, gate, home, session

__all__ = ["clients", "closing", "gate", "home", "module_server", "server", "servers", "session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nearly every test in this folder starts a kernel."""
    for item in items:
        if "tests/http/" in item.nodeid:
            item.add_marker(pytest.mark.kernel)
