from __future__ import annotations

import itertools

import pytest

from jupyter_cmdop.core.floor import (
    ACT_LEASE_SECONDS,
    STALE_GRACE_SECONDS,
    TRANSITIONS,
    Floor,
    FloorEvent,
    FloorState,
    Transition,
)

NOW = 500.0
MISSING = [pair for pair in itertools.product(FloorState, FloorEvent) if pair not in TRANSITIONS]


def floor_in(state: FloorState) -> Floor:
    """A floor on which ann drove and bob drives, or drove."""
    floor = Floor()
    floor.apply(FloorEvent.CLAIM, now=1.0, actor="ann")
    floor.apply(FloorEvent.TAKE, now=2.0, actor="bob", reason="lunch")
    floor.renew_act(2.0, ACT_LEASE_SECONDS)
    if state is FloorState.FREE:
        floor.apply(FloorEvent.RELEASE, now=3.0)
    elif state is FloorState.STALE:
        floor.apply(FloorEvent.LAPSE, now=3.0)
    assert floor.state is state
    return floor


def test_new_floor_is_free_and_was_never_held() -> None:
    floor = Floor()
    assert (floor.state, floor.driver, floor.previous) == (FloorState.FREE, None, None)
    assert floor.generation == 0
    assert floor.since is None, "there was no change since which something is so"


@pytest.mark.parametrize(("pair", "row"), TRANSITIONS.items(), ids=str)
def test_row_is_followed(pair: tuple[FloorState, FloorEvent], row: Transition) -> None:
    state, event = pair
    floor = floor_in(state)
    before = floor.generation
    assert floor.apply(event, now=NOW, actor="eve", reason="why") == row.entry
    assert floor.state is row.to
    assert floor.generation == before + row.new_generation
    assert floor.reason == "why"


@pytest.mark.parametrize(("state", "event"), MISSING, ids=str)
def test_pair_without_a_row_changes_nothing(state: FloorState, event: FloorEvent) -> None:
    floor = floor_in(state)
    before = floor.to_dict()
    assert floor.apply(event, now=NOW, actor="eve", reason="why") is None
    assert floor.to_dict() == before


def test_generation_rises_exactly_when_somebody_else_may_input() -> None:
    """Lapsing and resuming change nobody's right."""
    kept = {event for (_, event), row in TRANSITIONS.items() if not row.new_generation}
    assert kept == {FloorEvent.LAPSE, FloorEvent.RESUME}


@pytest.mark.parametrize("state", FloorState)
def test_taking_is_possible_in_every_state(state: FloorState) -> None:
    assert TRANSITIONS[state, FloorEvent.TAKE].to is FloorState.HELD


@pytest.mark.parametrize(
    ("state", "event"),
    [pair for pair, row in TRANSITIONS.items() if row.to is FloorState.HELD and row.new_generation],
)
def test_new_driver_must_be_named(state: FloorState, event: FloorEvent) -> None:
    with pytest.raises(AssertionError, match="needs the actor"):
        floor_in(state).apply(event, now=NOW)


def test_new_driver_has_it_from_the_one_before() -> None:
    floor = floor_in(FloorState.HELD)
    assert (floor.driver, floor.previous, floor.since) == ("bob", "ann", 2.0)


def test_claim_of_a_free_floor_is_from_nobody() -> None:
    floor = floor_in(FloorState.FREE)
    assert floor.previous == "bob"
    floor.apply(FloorEvent.CLAIM, now=NOW, actor="eve")
    assert (floor.driver, floor.previous) == ("eve", None)


def test_leases_end_with_the_hold() -> None:
    floor = floor_in(FloorState.HELD)
    floor.apply(FloorEvent.RELEASE, now=NOW)
    assert floor.act_until == float("-inf")


def test_stale_floor_keeps_its_driver_for_the_grace_time() -> None:
    floor = floor_in(FloorState.HELD)
    floor.apply(FloorEvent.LAPSE, now=NOW)
    assert (floor.driver, floor.since, floor.stale_until) == ("bob", 2.0, NOW + STALE_GRACE_SECONDS)
    floor.apply(FloorEvent.RESUME, now=NOW + 1)
    assert (floor.driver, floor.since, floor.stale_until) == ("bob", 2.0, float("-inf"))


def test_renewing_never_shortens_a_lease() -> None:
    floor = floor_in(FloorState.HELD)
    floor.renew_act(NOW, 600.0)
    floor.renew_act(NOW, 30.0)
    assert floor.act_until == NOW + 600.0


@pytest.mark.parametrize("state", FloorState)
def test_held_against_others_only(state: FloorState) -> None:
    floor = floor_in(state)
    assert not floor.is_held_against("bob")
    assert floor.is_held_against("ann") == (state is not FloorState.FREE)


@pytest.mark.parametrize("state", FloorState)
def test_round_trip(state: FloorState) -> None:
    floor = floor_in(state)
    assert Floor.from_dict(floor.to_dict()) == floor
