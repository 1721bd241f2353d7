from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.operations import (
    DROP_OUTCOMES,
    FINISH_OUTCOMES,
    LOSE_OUTCOMES,
    OUTCOMES,
    SERVED_KEPT,
    TRANSITIONS,
    Lane,
    Operation,
    Outcome,
    Status,
    Step,
    next_in_turn,
)
from jupyter_cmdop.core.policy import InputClass

ENDING: dict[Step, frozenset[Outcome]] = {
    Step.DROP: DROP_OUTCOMES,
    Step.FINISH: FINISH_OUTCOMES,
    Step.LOSE: LOSE_OUTCOMES,
}
MISSING = [pair for pair in itertools.product(Status, Step) if pair not in TRANSITIONS]
ENDINGS = [(step, outcome) for step, outcomes in ENDING.items() for outcome in sorted(outcomes)]


def operation_in(status: Status) -> Operation:
    operation = Operation(
        id="o1",
        actor=Actor("bot", "agent", "Bot", "ann"),
        attachment="g-1",
        grant="1",
        client_session="s",
        msg_id="m",
        message_type="execute_request",
        lane="",
        input_class=InputClass.EXPLICIT,
        digest="d",
        size=3,
        generation=2,
        incarnation=1,
        since=9.0,
    )
    operation.status = status
    operation.outcome = "ok" if status is Status.ENDED else None
    return operation


@pytest.mark.parametrize(("pair", "following"), TRANSITIONS.items(), ids=str)
def test_step_is_followed(pair: tuple[Status, Step], following: Status) -> None:
    status, step = pair
    operation = operation_in(status)
    outcome = min(ENDING[step]) if step in ENDING else None
    operation.step(step, outcome)
    assert operation.status is following
    assert operation.outcome == outcome
    assert operation.is_active == (following is not Status.ENDED)


@pytest.mark.parametrize(("status", "step"), MISSING, ids=str)
def test_step_without_a_row_is_a_bug_and_changes_nothing(status: Status, step: Step) -> None:
    operation = operation_in(status)
    before = operation.to_dict()
    with pytest.raises(AssertionError, match="no step"):
        operation.step(step, min(ENDING[step]) if step in ENDING else None)
    assert operation.to_dict() == before


def test_ended_stays_ended() -> None:
    assert all(status is not Status.ENDED for status, _ in TRANSITIONS)


@pytest.mark.parametrize(("step", "outcome"), list(itertools.product(Step, [None, *OUTCOMES])), ids=str)
def test_outcome_comes_with_the_steps_that_end_it_and_only_with_those(
    step: Step, outcome: Outcome | None
) -> None:
    status = next(status for status, known in TRANSITIONS if known is step)
    operation = operation_in(status)
    if outcome in ENDING.get(step, {None}):
        operation.step(step, outcome)
        assert operation.outcome == outcome
    else:
        with pytest.raises(AssertionError, match="does not go with"):
            operation.step(step, outcome)
        assert operation.status is status


def test_each_outcome_can_be_reached() -> None:
    assert {outcome for _, outcome in ENDINGS} == set(OUTCOMES)


@pytest.mark.parametrize("status", Status)
def test_state_is_the_outcome_or_the_status(status: Status) -> None:
    operation = operation_in(status)
    assert operation.state == ("ok" if status is Status.ENDED else status.value)


def test_holder_is_the_author_or_who_adopted_it() -> None:
    operation = operation_in(Status.QUEUED)
    assert operation.holder == "bot"
    operation.adopted_by = "ann"
    assert operation.holder == "ann"


@pytest.mark.parametrize(
    ("replied", "interrupted_by", "expected"),
    [
        (None, None, None),
        (None, "ann", None),
        ("ok", None, "ok"),
        ("ok", "ann", "ok"),  # it caught the interrupt
        ("error", None, "error"),
        ("error", "ann", "interrupted"),
        ("aborted", "ann", "aborted"),
    ],
)
def test_reported_outcome(replied: object, interrupted_by: str | None, expected: str | None) -> None:
    operation = operation_in(Status.RUNNING)
    operation.replied, operation.interrupted_by = replied, interrupted_by
    assert operation.reported == expected


@pytest.mark.parametrize("status", Status)
def test_round_trip_as_json(status: Status) -> None:
    operation = operation_in(status)
    operation.adopted_by, operation.act, operation.aborts = "ann", True, ("o2", "o3")
    assert Operation.from_dict(json.loads(json.dumps(operation.to_dict()))) == operation


def test_lane_round_trip_shares_nothing() -> None:
    lane = Lane("o1", ["o2"], ["ann"])
    again = Lane.from_dict(lane.to_dict())
    assert again == lane
    again.queue.append("o3")
    assert lane.queue == ["o2"]


# ---------------------------------------------------------------------- whose turn it is


def serve(waiting: list[tuple[str, str]], lane: Lane) -> list[str]:
    """The holders in the order in which a lane serves what waits."""
    order = []
    while (chosen := next_in_turn(waiting, lane.served)) is not None:
        holder = next(holder for name, holder in waiting if name == chosen)
        waiting.remove((chosen, holder))
        lane.note_served(holder)
        order.append(holder)
    return order


def test_nobody_waits() -> None:
    assert next_in_turn([], ["ann"]) is None


def test_round_robin_is_fair_with_three_holders_of_unequal_load() -> None:
    """ann's hundred cells do not keep bob's two and bot's three waiting for more than a turn each."""
    load = {"ann": 100, "bob": 2, "bot": 3}
    waiting = [(f"{holder}{n}", holder) for holder, count in load.items() for n in range(count)]
    order = serve(waiting, Lane())
    assert order[:9] == ["ann", "bob", "bot", "ann", "bob", "bot", "ann", "bot", "ann"]
    assert Counter(order) == load


def test_arrival_order_holds_inside_one_holder() -> None:
    waiting = [("b1", "bob"), ("a1", "ann"), ("b2", "bob"), ("a2", "ann")]
    lane, order = Lane(), []
    while (chosen := next_in_turn(waiting, lane.served)) is not None:
        holder = dict(waiting)[chosen]
        waiting.remove((chosen, holder))
        lane.note_served(holder)
        order.append(chosen)
    assert order == ["b1", "a1", "b2", "a2"]


def test_newcomer_goes_before_those_who_were_served() -> None:
    waiting = [("a1", "ann"), ("b1", "bob"), ("n1", "new")]
    assert next_in_turn(waiting, ["ann", "bob"]) == "n1"


def test_among_newcomers_arrival_decides() -> None:
    assert next_in_turn([("x", "bob"), ("y", "ann")], []) == "x"


def test_served_holders_are_bounded() -> None:
    lane = Lane()
    for n in range(SERVED_KEPT * 2):
        lane.note_served(f"a{n}")
    lane.note_served("a300")
    assert len(lane.served) == SERVED_KEPT
    assert lane.served[-1] == "a300"
    assert lane.served.count("a300") == 1
