"""What the extension is on Windows: one line in the log, and Jupyter as it was."""

from __future__ import annotations

from typing import Any


def _load_jupyter_server_extension(serverapp: Any) -> None:
    serverapp.log.info("jupyter_cmdop does nothing on Windows: kernels are plain kernels")
