from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jupyter_cmdop.cli.main import main
from tests.client.fake_keeper import keeper, keepers
from tests.client.places_fixture import registry

__all__ = ["cli", "keeper", "keepers", "registry"]


@dataclass(frozen=True)
class Done:
    """What a command left: exit code, standard output and error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def cli(
    registry: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run the command line in this process."""
    monkeypatch.delenv("CMDOP_DEBUG", raising=False)

    def run(*argv: str) -> Done:
        capsys.readouterr()
        code = main(argv)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run
