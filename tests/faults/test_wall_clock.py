"""The wall clock is set an hour back and two hours ahead: no right changes hands, nothing ends, and the record says so.

Everything that is started here has a time of day of its own, which the test sets. (libfaketime cannot be used: with a
monotonic clock that it leaves alone, Python's `time.sleep` fails.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import wait_until
from tests.server.jupyter import Servers
from tests.support import Home, Sessions, isolated_home, journal, wait_for_entry

SetClock = Callable[[float], None]
# Found by every interpreter at its start, before anything has asked for the time.
OWN_TIME = """
import datetime, time

def offset(real=time.time):
    with open({source!r}) as file:
        return float(file.read())

def wall(real=time.time):
    return real() + offset()

def wall_ns(real=time.time_ns):
    return real() + int(offset() * 1e9)

class OwnDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(wall(), tz)

time.time, time.time_ns, datetime.datetime = wall, wall_ns, OwnDatetime
"""


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Sets the wall clock of everything that is started from here on, by so many hours off the true one."""
    source = tmp_path / "offset"

    def set_to(hours: float) -> None:
        made = source.with_suffix(".new")
        made.write_text(str(hours * 3600))
        made.replace(source)

    set_to(0)
    folder = tmp_path / "own-time"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(OWN_TIME.format(source=str(source)))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([before] if before else [])]))
    return set_to


@pytest.fixture
def fake_home(set_clock: SetClock, tmp_path: Path) -> Iterator[Home]:
    with isolated_home(tmp_path / "home") as made:
        yield made


def hour_of(entry: dict[str, object]) -> float:
    return datetime.fromisoformat(str(entry["time"])).timestamp() / 3600


def test_lease_and_order_do_not_depend_on_it(fake_home: Home, set_clock: SetClock) -> None:
    sessions = Sessions(fake_home)
    try:
        made = sessions(policy="turns")
        floor = made.take("mine", lease_seconds=60)
        with Session.open(made.id) as bot:
            invited = bot.invite("bot", expires_seconds=600)
            for offset, hours in ((-1, -1), (1, 2)):
                before = journal(made)[-1]
                set_clock(offset)
                assert made.run("40 + 2").status == "ok"
                clock = wait_for_entry(made, "clock", after=before["seq"])
                assert clock["data"]["set_by_seconds"] == pytest.approx(hours * 3600, abs=60)
                assert hour_of(clock) - hour_of(before) == pytest.approx(hours, abs=0.05)
                status = made.status()
                assert (status.driver, status.generation) == (made.actor, floor.generation)
                assert status.lease is not None
                assert 50 < (status.lease.until_seconds or 0) <= 121
            assert [g.grant for g in made.grants()] == [invited.grant]
        entries = journal(made)
        assert [e["seq"] for e in entries] == list(range(1, len(entries) + 1))
        assert not [e for e in entries if e["type"] in ("stale", "freed", "expired", "closed", "stood_still")]
        report = made.verify()
        assert report.ok, report
    finally:
        sessions.close()


def test_idle_kernel_is_not_culled_for_it(fake_home: Home, set_clock: SetClock) -> None:
    """A culler that looks each second, and a limit of half an hour: two hours ahead are not two hours of silence."""
    servers = Servers(fake_home)
    try:
        server = servers(
            "--MappingKernelManager.cull_idle_timeout=1800", "--MappingKernelManager.cull_interval=1"
        )
        kernel_id = server.start_kernel()
        server.wait_for_kernel(kernel_id, execution_state="idle")
        before = server.kernels()[kernel_id]["last_activity"]
        with Session.open(kernel_id) as session:
            set_clock(2)
            wait_for_entry(session, "clock")
            looked = looks(server.text())
            wait_until(lambda: looks(server.text()) >= looked + 3, "the culler has looked")
            assert "Culling session" not in server.text()
            after = server.kernels()[kernel_id]["last_activity"]
            assert session.run("1").status == "ok"
        moved = datetime.fromisoformat(after) - datetime.fromisoformat(before)
        assert moved.total_seconds() == pytest.approx(7200, abs=60)
    finally:
        servers.close()


def looks(text: str) -> int:
    """How often the culler has looked so far."""
    return text.count("Polling every")
