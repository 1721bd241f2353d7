from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import Sessions, clients, closing, gate, home, module_session, session
from tests.websocket.front import Front, Network
from tests.websocket.viewer import Viewer

__all__ = ["clients", "closing", "gate", "home", "module_session", "session"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a kernel or shares one, but those that say otherwise."""
    for item in items:
        if HERE in item.path.parents and "pure" not in item.path.name:
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


@pytest.fixture(scope="module")
def front(shared: Session) -> Iterator[Front]:
    """The Jupyter server in front of the shared session."""
    made = Front(shared)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def view(front: Front) -> Iterator[Callable[..., Viewer]]:
    """Makes clients of the shared session; those that are still open at the end close as a page does."""
    made: list[Viewer] = []

    def make(*args: Any, **options: Any) -> Viewer:
        made.append(Viewer(options.pop("address", front.address), *args, **options))
        return made[-1]

    try:
        yield make
    finally:
        for viewer in made:
            if viewer.is_open and viewer.socket is not None:
                viewer.leave(1001)
            viewer.abandon()


@pytest.fixture
def network(front: Front) -> Iterator[Network]:
    made = Network(front.address)
    try:
        yield made
    finally:
        made.close()
