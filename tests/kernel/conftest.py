from __future__ import annotations

import pytest

from tests.support import clients, closing, gate, home, module_session, session

__all__ = ["clients", "closing", "gate", "home", "module_session", "session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a kernel or shares one."""
    for item in items:
        if "tests/kernel/" in item.nodeid:
            item.add_marker(pytest.mark.kernel)
