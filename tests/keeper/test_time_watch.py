"""What the keeper's clocks say of a stopped process, a suspended machine and a wall clock that was set."""

from __future__ import annotations

from jupyter_cmdop.keeper.time_watch import Finding, TimeWatch


class Machine:
    """Its clocks, and a loop that sleeps on it."""

    def __init__(self) -> None:
        self.monotonic, self.session, self.wall = 100.0, 5000.0, 1_800_000_000.0
        self.watch = TimeWatch(
            monotonic=lambda: self.monotonic, session=lambda: self.session, wall=lambda: self.wall
        )

    def pass_(self, seconds: float) -> None:
        self.monotonic += seconds
        self.session += seconds
        self.wall += seconds

    def suspend(self, seconds: float) -> None:
        """The monotonic clock stands still, the others do not."""
        self.session += seconds
        self.wall += seconds

    def sleep(self, seconds: float, *, late: float = 0.0) -> list[Finding]:
        due = self.monotonic + seconds
        self.pass_(seconds + late)
        return self.watch.look(due)


def test_nothing_is_odd_about_a_loop_that_sleeps_and_a_machine_that_is_slow() -> None:
    machine = Machine()
    assert [machine.sleep(seconds, late=late) for seconds in (0.0, 0.5, 60.0) for late in (0.0, 1.5)] == [
        []
    ] * 6


def test_process_that_was_stopped_until_after_it_meant_to_wake() -> None:
    machine = Machine()
    assert machine.sleep(5.0, late=60.0) == [Finding("stopped", 60.0)]
    assert machine.sleep(5.0) == []


def test_process_that_was_stopped_within_a_long_sleep_knows_it_by_the_signal() -> None:
    """What came meanwhile wakes it before it is late."""
    machine = Machine()
    machine.pass_(6.0)
    machine.watch.continued()
    assert machine.watch.look(machine.monotonic + 54.0) == [Finding("stopped", 6.0)]


def test_process_that_is_told_to_go_on_and_was_not_stopped() -> None:
    machine = Machine()
    machine.pass_(0.2)
    machine.watch.continued()
    assert machine.watch.look(machine.monotonic) == []


def test_suspended_machine_is_no_wall_clock_that_was_set() -> None:
    machine = Machine()
    machine.suspend(8 * 3600.0)
    assert machine.sleep(1.0) == [Finding("suspended", 8 * 3600.0)]
    assert machine.sleep(1.0) == []


def test_wall_clock_that_is_set_back_and_ahead() -> None:
    machine = Machine()
    machine.wall -= 3600.0
    assert machine.sleep(1.0) == [Finding("clock", -3600.0)]
    machine.wall += 2 * 3600.0
    assert machine.sleep(1.0) == [Finding("clock", 7200.0)]
    assert machine.sleep(1.0) == []


def test_wall_clock_that_is_slewed_is_told_once_it_is_off() -> None:
    machine = Machine()
    found = []
    for _ in range(12):
        machine.wall += 0.5
        found += machine.sleep(60.0)
    assert found == [Finding("clock", 5.5)]


def test_wall_clock_that_was_set_while_the_process_stood_still() -> None:
    machine = Machine()
    machine.wall += 7200.0
    assert machine.sleep(1.0, late=10.0) == [Finding("stopped", 10.0), Finding("clock", 7200.0)]
