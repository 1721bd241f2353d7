"""What a kernel has said and nobody has heard is counted, and what is merely late is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_cmdop.keeper.losses import MAX_MISSING, MessageNumbers


def ids(numbers: list[int], prefix: str = "0f-1b_77") -> list[str]:
    return [f"{prefix}_{number}" for number in numbers]


def counted(*msg_ids: str) -> int:
    numbers = MessageNumbers()
    for at, msg_id in enumerate(msg_ids):
        numbers.note(msg_id, float(at))
    return numbers.lost(float(len(msg_ids)))


@given(st.integers(0, 1000), st.permutations(range(12)), st.sets(st.integers(1, 10)))
def test_exactly_what_does_not_come_is_lost(start: int, order: list[int], dropped: set[int]) -> None:
    """The first and the last number come: what is behind the last one that came cannot be known to be missing."""
    middle = [start + number for number in order if 0 < number < 11 and number not in dropped]
    assert counted(*ids([start, *middle, start + 11])) == len(dropped)


@given(st.permutations(range(12)))
def test_what_is_overtaken_is_not_lost(order: list[int]) -> None:
    assert counted(*ids([0, *[number + 1 for number in order]])) == 0


def test_it_has_time_to_come() -> None:
    numbers = MessageNumbers()
    for msg_id, now in zip(ids([1, 4, 9]), (10.0, 11.0, 12.0), strict=True):
        numbers.note(msg_id, now)
    assert numbers.due == 11.0
    assert numbers.lost(10.5) == 0
    assert numbers.lost(11.5) == 2
    assert numbers.due == 12.0
    numbers.note(ids([6])[0], 12.5)
    assert numbers.lost(12.5) == 3
    assert numbers.due is None
    assert numbers.lost(99.0) == 0


def test_other_processes_and_other_ids_are_not_counted() -> None:
    assert counted(*ids([1, 2]), *ids([90], "0f-1b_78"), "made-by-hand", "", "_", "x_9", *ids([3])) == 0
    assert counted("5f3a", "99", "a_1", "a_7") == 0  # no numbers that count all that one process says
    assert counted("a_77_1", "a_77_" + "9" * 30, "a_77_٣", "a_77_2") == 0


def test_memory_is_bounded() -> None:
    numbers = MessageNumbers()
    for number in range(0, 4 * MAX_MISSING, 2):
        numbers.note(f"a_1_{number}", 0.0)
    assert numbers.lost(1.0) == MAX_MISSING
