"""The command line as it is used from somewhere else: no session is found but by URL and credential."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import CliResult, finish_cli, start_cli
from tests.websocket.front import Network


@dataclass(frozen=True)
class Far:
    """Calls verbs in a home of another machine, so to say: its registry and its state are empty."""

    url: str
    grant_file: Path | None
    env: Mapping[str, str] = field(default_factory=dict)

    def start(self, verb: str, *arguments: str, json_output: bool = True) -> subprocess.Popen[str]:
        return start_cli(verb, *arguments, env=self.environment(), json_output=json_output)

    def __call__(
        self,
        verb: str,
        *arguments: str,
        code: int | None = 0,
        json_output: bool = True,
        input: str | None = None,
    ) -> CliResult:
        result = finish_cli(self.start(verb, *arguments, json_output=json_output), input=input)
        assert code is None or result.code == code, (
            f"{verb} {arguments} gave {result.code}: {result.out!r} {result.err!r}"
        )
        return result

    def environment(self) -> dict[str, str]:
        elsewhere = Path(os.environ["HOME"]).parent / "elsewhere"
        said = {
            "CMDOP_URL": self.url,
            "JUPYTER_RUNTIME_DIR": str(elsewhere / "runtime"),
            "CMDOP_STATE_DIR": str(elsewhere / "state"),
            **self.env,
        }
        if self.grant_file is not None:
            said["CMDOP_GRANT_FILE"] = str(self.grant_file)
        return said


class Cable(Network):
    """A network that can be cut: what is open is closed at both ends, and new connections work."""

    def cut(self) -> None:
        def close() -> None:
            for end in self._open:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
                end.close()
            self._open.clear()

        self._do(close)
