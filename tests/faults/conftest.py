from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.attacks import lone_session
from tests.support import clients, closing, gate, home, module_session, session

__all__ = ["clients", "closing", "gate", "home", "lone_session", "module_session", "session"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a kernel or shares one."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kernel)
