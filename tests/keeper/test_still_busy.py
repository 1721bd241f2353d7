"""What a page is told of the kernel when something else than its cell has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from jupyter_cmdop.core.operations import MAIN_LANE
from jupyter_cmdop.keeper.kernel_talk import still_busy


@pytest.mark.parametrize(("idle", "is_told"), [(False, True), (True, False)])
def test_cell_that_is_idle_and_waits_for_its_reply_is_not_worked_on(idle: bool, is_told: bool) -> None:
    """The idle comes by another socket than the reply, and may be first. No other follows that would end a busy."""
    origin = SimpleNamespace(header=b"{}")
    runner: Any = SimpleNamespace(
        session=SimpleNamespace(
            lanes={MAIN_LANE: SimpleNamespace(running="o1")}, operations={"o1": SimpleNamespace(idle=idle)}
        ),
        operations={"o1": SimpleNamespace(outcome=None, origin=origin)},
        stamp_now=Mock(return_value=b"{}"),
    )
    told = still_busy(runner, Mock())
    assert (told is not None) == is_told
