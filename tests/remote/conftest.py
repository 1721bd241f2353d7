from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.far import Cable, Far
from tests.server.jupyter import TOKEN, Server, Servers
from tests.support import Home, clients, closing, gate, home, module_session, session

__all__ = ["clients", "closing", "gate", "home", "module_session", "servers", "session"]


@pytest.fixture(scope="module")
def servers(home: Home) -> Iterator[Servers]:
    made = Servers(home)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def server(servers: Servers) -> Server:
    return servers()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """What the owner has: the server's token alone in a file."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def far(server: Server, token_file: Path) -> Far:
    """The command line as the owner, by URL."""
    return Far(server.url, token_file)


@pytest.fixture
def network(server: Server) -> Iterator[Cable]:
    """What stands between a client and the server, and can be cut."""
    made = Cable(("127.0.0.1", server.port))
    try:
        yield made
    finally:
        made.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a server and a kernel."""
    for item in items:
        if "tests/remote/" in item.nodeid:
            item.add_marker(pytest.mark.kernel)
