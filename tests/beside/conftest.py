"""A real server with another extension of Jupyter beside ours, as a user installs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beside import environment
from tests.server.jupyter import Servers
from tests.support import Home, closing, gate, home

__all__ = ["closing", "gate", "home"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a kernel, and the first one of a package may have to install it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kernel)
            item.add_marker(pytest.mark.timeout(environment.INSTALL_SECONDS + 120))


@pytest.fixture(scope="session")
def python_with(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """`python_with("package>=1")`: the Python of an environment that has this package beside the project's."""
    cache = request.config.cache
    assert cache is not None
    folder = Path(cache.mkdir("beside"))
    return lambda requirement: environment.make(folder, requirement)


@pytest.fixture
def servers(home: Home) -> Iterator[Servers]:
    (home.root / "data").mkdir(exist_ok=True)  # jupyter_server_fileid does not make it, and a user has it
    made = Servers(home)
    try:
        yield made
    finally:
        made.close()
