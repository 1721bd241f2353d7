"""A machine of one's own: temporary runtime, state and socket directories."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client import places
from jupyter_cmdop.client.registry import Registry


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The user's registry, in a temporary directory; sockets in a short one."""
    short = Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    for name in ("CMDOP_STATE_DIR", "CMDOP_GRANT_FILE", "JUPYTERHUB_USER", "XDG_RUNTIME_DIR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "SOCKET_PARENT", short)
    yield Registry.of_user()
    shutil.rmtree(short)
