from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import home, session

__all__ = ["home", "session"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs here starts kernels; the checks of the checkers do not."""
    for item in items:
        if HERE in item.path.parents and "rules" not in item.path.name:
            item.add_marker(pytest.mark.kernel)
