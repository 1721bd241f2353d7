"""Half an hour of four actors by four ways in, with random operations and random deaths: the record must be whole.

`CMDOP_SOAK_SEED` repeats a run's choices (not its timing); `CMDOP_SOAK_SECONDS` is how long it takes.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from dataclasses import dataclass, field

import psutil
import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.core.state import REMEMBERED_OPERATIONS
from jupyter_cmdop.keeper.history import KEPT_LINES
from jupyter_cmdop.keeper.runner import KEPT_ORIGINS
from jupyter_cmdop.keeper.websocket_seat import SILENCE_SECONDS
from tests.faults.attacks import keeper_of, wait_until
from tests.soak.actors import Actor, CliActor, LinkActor, PageActor, ZmqActor, reach
from tests.soak.rules import Rules, slope
from tests.support import Home, Sessions, TooLate, wait_for_status

SEED = os.environ.get("CMDOP_SOAK_SEED") or secrets.token_hex(4)
SECONDS = float(os.environ.get("CMDOP_SOAK_SECONDS") or 1800)
SHORT_SECONDS = 20.0
FILL_BATCH = 64
OPENED_ONCE = 20
MIB = 1024 * 1024
WARM_UP = 1 / 3
"""Of the whole time: until then caches, bounded memories of operations and the allocator fill up."""
MOST_PER_TEN_MINUTES = 1 * MIB
LONG_ENOUGH_SECONDS = 400.0
"""A shorter run says nothing about a slope."""


@dataclass
class Meter:
    """The keeper's memory and descriptors, once a second."""

    keeper: psutil.Process
    begun: float = field(default_factory=time.monotonic)
    memory: list[tuple[float, float]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def read(self) -> None:
        now = time.monotonic() - self.begun
        self.memory.append((now, float(self.keeper.memory_info().rss)))
        self.descriptors.append(self.keeper.num_fds())

    def slope_per_ten_minutes(self) -> float:
        last = self.memory[-1][0]
        return 600 * slope([point for point in self.memory if point[0] >= last * WARM_UP])


def kill_the_kernel(session_id: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess), reach(session_id) as session:
        for process in session.status().processes[:1]:
            psutil.Process(process.pid).kill()
            return True
    return False


def fill_up(session: Session) -> None:
    """Let the keeper remember as many operations, requests and cells as it ever does: what comes after must not cost
    memory."""
    for _ in range(max(REMEMBERED_OPERATIONS, KEPT_ORIGINS, KEPT_LINES) // FILL_BATCH + 1):
        streams = [session.start(calls.run("pass")) for _ in range(FILL_BATCH)]
        for stream in streams:
            with stream:
                for _ in stream:
                    pass


def soak(home: Home, session: Session, seconds: float) -> tuple[Rules, Meter, list[Actor]]:
    print(f"\nsoak: seed {SEED}, {seconds:.0f} s")
    chance = random.Random(SEED)
    meter = Meter(keeper_of(home, session))
    actors: list[Actor] = [make(session.id, SEED) for make in (LinkActor, ZmqActor, PageActor, CliActor)]
    for actor in actors:
        actor.start()
    until = time.monotonic() + seconds
    next_kill = time.monotonic() + chance.uniform(5, 15)
    kills = 0
    while time.monotonic() < until:
        meter.read()
        if time.monotonic() >= next_kill:
            kills += kill_the_kernel(session.id)
            # Five deaths in a row end a session, as in Jupyter; a kernel that lived ten seconds is no such row.
            next_kill = time.monotonic() + chance.uniform(20, 60)
        time.sleep(1.0)  # the duration is what is asked for here
    for actor in actors:
        actor.stop()
    for actor in actors:
        actor.join()
    with reach(session.id) as link:
        with contextlib.suppress(TooLate):  # what then has no outcome is reported below
            wait_for_status(link, lambda s: s.state == "open" and not s.running and not s.queue)
        meter.read()
        report = link.verify()
        rules = Rules().follow(link.log()).finish()
        if not report.ok:
            rules.broken.append(f"the chain: {report}")
    say(rules, meter, actors, kills)
    return rules, meter, actors


def say(rules: Rules, meter: Meter, actors: list[Actor], kills: int) -> None:
    low, high = (f(m for _, m in meter.memory) / MIB for f in (min, max))
    print(f"operations {len(rules.admitted)}: {dict(rules.outcomes)}; kernels killed {kills}")
    print(f"entries {sum(rules.types.values())}: {dict(rules.types.most_common(12))}")
    print(
        f"memory {low:.1f} to {high:.1f} MiB, at the end {meter.memory[-1][1] / MIB:.1f}, "
        f"slope {meter.slope_per_ten_minutes() / MIB:+.2f} MiB / 10 min; "
        f"descriptors {meter.descriptors[0]} to {max(meter.descriptors)}, at the end {meter.descriptors[-1]}"
    )
    for actor in actors:
        print(f"{actor.name}: {dict(actor.done.most_common(14))} {actor.faults or ''}")


def check(rules: Rules, actors: list[Actor]) -> None:
    assert not rules.broken, rules.broken[:10]
    assert not {a.name: a.faults[:5] for a in actors if a.faults}
    assert len(rules.actors) >= 3, f"only {rules.actors} got anything done"
    assert rules.outcomes["ok"]


@pytest.fixture(autouse=True)
def memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is freed leaves the keeper at once: what it holds is measured, and not what its allocator keeps."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "16000")  # below the smallest block of a libzmq queue
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")


@pytest.mark.timeout(300)
def test_a_short_one(home: Home, session: Sessions) -> None:
    made = session()
    rules, meter, actors = soak(home, made, SHORT_SECONDS)
    check(rules, actors)
    # A page that was cut off says nothing: its connection is given up when it has been silent for long enough.
    # What is opened once is not counted: the journal's reader, and a libzmq context that jupyter_client makes when a
    # kernel ends at certain moments. That nothing is kept for each coming and going is tested by itself.
    few = meter.descriptors[0] + OPENED_ONCE
    wait_until(
        lambda: meter.keeper.num_fds() <= few,
        "its descriptors are few again",
        limit_seconds=SILENCE_SECONDS + 30,
    )


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
def test_half_an_hour(home: Home, session: Sessions) -> None:
    made = session()
    fill_up(made)
    rules, meter, actors = soak(home, made, SECONDS)
    check(rules, actors)
    wait_until(lambda: meter.keeper.num_fds() <= meter.descriptors[0] + 8, "its descriptors are few again")
    if SECONDS >= LONG_ENOUGH_SECONDS:
        assert meter.slope_per_ten_minutes() < MOST_PER_TEN_MINUTES
