"""Run the command line on a terminal of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pexpect

LIMIT_SECONDS = 30


@contextmanager
def on_terminal(*argv: str, **environment: str) -> Iterator[Any]:
    """A pexpect child; it is ended and collected whatever happens."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_cmdop.cli", *argv],
        env=dict(os.environ) | {"TERM": "xterm", **environment},
        encoding="utf-8",
        timeout=LIMIT_SECONDS,
        dimensions=(24, 120),
    )
    try:
        yield child
    finally:
        child.close(force=True)


def exit_code(child: Any) -> int:
    """Wait for its end; the exit code."""
    child.expect(pexpect.EOF)
    child.close()
    assert child.signalstatus is None, child.signalstatus
    code: int = child.exitstatus
    return code
