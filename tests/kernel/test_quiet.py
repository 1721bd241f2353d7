"""A keeper works when something happens, and only then."""

from __future__ import annotations

import os
import time

import psutil
import pytest

from tests.faults.attacks import keeper_of
from tests.support import Clients, Gate, Home, Sessions, iopub_until, is_idle_of, wait_for_running

LOOK_SECONDS = 1.0
WAKE_UPS = 200
"""Far more than timers need in that time, far less than a loop that looks again and again."""


def wake_ups(keeper: psutil.Process) -> int:
    before = keeper.num_ctx_switches().voluntary
    time.sleep(LOOK_SECONDS)  # the measure is what happens while nothing does
    return keeper.num_ctx_switches().voluntary - before


@pytest.mark.kernel
def test_a_keeper_sleeps_while_its_kernel_works_silently(
    home: Home, session: Sessions, clients: Clients, gate: Gate
) -> None:
    made = session()
    bot = clients(made, "bot")
    keeper = keeper_of(home, made)
    assert wake_ups(keeper) < WAKE_UPS
    waiting = bot.execute(f"print('begun', flush=True)\n{gate.code}")
    wait_for_running(made, "bot")
    iopub_until(bot, lambda m: m["msg_type"] == "stream")
    assert wake_ups(keeper) < WAKE_UPS
    gate.open()
    iopub_until(bot, is_idle_of(waiting))
    assert wake_ups(keeper) < WAKE_UPS


@pytest.mark.kernel
def test_what_the_keeper_gives_up_its_kernels_keep(session: Sessions) -> None:
    """It lets others have a core first; a kernel, and one that follows it, works as if it had been started by hand."""
    made = session()
    ours = str(os.getpriority(os.PRIO_PROCESS, 0))
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    assert made.run(code).text.strip() == ours
    made.restart()
    assert made.run(code).text.strip() == ours
