"""Every state of the floor that three actors can reach, and as many with cells as a few seconds allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jupyter_cmdop.core import admission, driving, floor, session, state
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.floor import FloorEvent, FloorState
from tests.simulation.explore import Broken, Found, explore

LIMIT_SECONDS = 240.0  # it takes 10 to 25; more where other work slows it down
CELLS_SECONDS = 6.0
SOAK_SECONDS = 600.0
FAULT_SECONDS = 30.0


def tell(what: str, found: Found) -> None:
    print(
        f"{what}: {found.states} states, {found.transitions} transitions, {found.depth} steps and "
        f"{found.generations} generations deep, {found.seconds:.1f} s "
        f"({found.cpu_seconds:.1f} s of a core), complete: {found.is_complete}"
    )


@pytest.mark.timeout(300)
def test_every_state_of_the_floor() -> None:
    """Nothing is left out: the search ends because nothing new is found, whatever the generation."""
    found = explore(LIMIT_SECONDS, operations=0)
    tell("the floor", found)
    assert found.is_complete
    assert found.generations >= 2
    assert found.floors == {state.value for state in FloorState}
    assert {"not_driver", "stale_generation", "read_only", "forbidden"} <= found.refusals


def test_states_with_cells() -> None:
    """With operations that wait and run there are too many for all; the shortest ways are all looked at."""
    found = explore(CELLS_SECONDS, operations=2)
    tell("with cells", found)
    assert found.generations >= 2
    assert found.depth >= 3


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_states_with_cells() -> None:
    tell("with cells", explore(SOAK_SECONDS, operations=2))


def lets_the_stale_in(patch: pytest.MonkeyPatch) -> None:
    """A generation is not compared."""
    patch.setattr(admission, "_stale", lambda *_: None)


def tells_nobody(patch: pytest.MonkeyPatch) -> None:
    """Who lost the floor may claim it again, and does not know."""
    patch.setattr(state.State, "note_loss", lambda *_: None)


def keeps_the_generation(patch: pytest.MonkeyPatch) -> None:
    """A take-over raises no generation."""
    row = (FloorState.HELD, FloorEvent.TAKE)
    patch.setitem(floor.TRANSITIONS, row, replace(floor.TRANSITIONS[row], new_generation=False))


def obeys_the_owner(patch: pytest.MonkeyPatch) -> None:
    """Nobody takes the floor from the owner of the session."""

    def exclusive(turn: Any, event: ev.Take) -> None:
        if turn.state.floor.driver == "ann" and event.attachment != "ann":
            turn.reject(turn.state.attachments[event.attachment], event, "forbidden", "it is the owner's")
            return
        driving.take(turn, event)

    patch.setitem(session._HANDLERS, ev.Take, exclusive)


@pytest.mark.parametrize(
    ("fault", "most"),
    [(lets_the_stale_in, 3), (tells_nobody, 5), (keeps_the_generation, 3), (obeys_the_owner, 2)],
)
def test_a_planted_fault_has_a_short_trace(
    fault: Callable[[pytest.MonkeyPatch], None], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Broken) as broken:
        explore(FAULT_SECONDS, operations=1)
    message = str(broken.value)
    print(message)
    assert message.count(" > ") + 1 <= most
