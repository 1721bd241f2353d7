"""What holds in every state that can be reached, whoever does what: a Hypothesis state machine.

The rules are biased: naive ones reach almost nothing (a random actor is nearly always refused). What was reached is
counted, and a row of a table, an outcome or a refusal that was never reached fails the test.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from jupyter_cmdop import core
from jupyter_cmdop.core import admission, floor, operations, state
from jupyter_cmdop.core.refusal import HTTP_STATUS
from tests.core.world import SMALL_MEMORY, SMALL_QUEUE, World

SETTINGS = settings(
    max_examples=80,
    stateful_step_count=50,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],  # shrinking would take minutes; a failing run is printed as it is
    suppress_health_check=list(HealthCheck),
)
CLOSING_AFTER = 35  # steps: a closed session has little left to reach


@dataclass
class Reached:
    """What the runs came by."""

    floor: set[Any] = field(default_factory=set)
    operations: set[Any] = field(default_factory=set)
    outcomes: set[Any] = field(default_factory=set)
    refusals: set[str] = field(default_factory=set)


def happens(action: Callable[[World], None]) -> Any:
    def step(self: SessionMachine) -> None:
        action(self.world)

    return rule()(step)


class SessionMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens; who does it, and how, follows from a seed that it chooses."""

    reached: Reached

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.world = World(random.Random(seed).choice)
        self.steps = 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.reached.refusals |= self.world.refusals
            self.reached.outcomes |= set(self.world.contract.ended.values())

    run_cells = happens(World.run_cells)
    crowd = happens(World.crowd)
    run_a_cell_or_send_keys = happens(World.run_a_cell_or_send_keys)
    move_a_slider_or_run_silently = happens(World.move_a_slider_or_run_silently)
    send_again = happens(World.send_again)
    observe = happens(World.observe)
    take = happens(World.take)
    give_away = happens(World.give_away)
    set_policy = happens(World.set_policy)
    interrupt = happens(World.interrupt)
    ask_and_answer = happens(World.ask_and_answer)
    answer = happens(World.answer)
    go_on = happens(World.go_on)
    go_on_more = happens(World.go_on)  # twice as likely
    come_or_go = happens(World.come_or_go)
    wait = happens(World.wait)
    wait_for_the_lease_to_end = happens(World.wait_for_the_lease_to_end)
    invite_or_revoke = happens(World.invite_or_revoke)
    end_the_backend = happens(World.end_the_backend)
    close = precondition(lambda self: self.steps > CLOSING_AFTER)(happens(World.close))

    @invariant()
    def anybody_can_take_over(self) -> None:
        """Each of the three in turn; the other invariants are checked by the world, with every event."""
        if hasattr(self, "world"):
            self.steps += 1
            self.world.check_take_over(["ann", "bob", "bot"][self.steps % 3])


def test_invariants_hold_and_everything_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = Reached()
    apply, step = floor.Floor.apply, operations.Operation.step

    def follow_floor(self: floor.Floor, event: floor.FloorEvent, **fields: Any) -> str | None:
        reached.floor.add((self.state, event))
        return apply(self, event, **fields)

    def follow_operation(
        self: operations.Operation, step_: operations.Step, outcome: operations.Outcome | None = None
    ) -> None:
        reached.operations.add((self.status, step_))
        step(self, step_, outcome)

    monkeypatch.setattr(floor.Floor, "apply", follow_floor)
    monkeypatch.setattr(operations.Operation, "step", follow_operation)
    monkeypatch.setattr(admission, "MAX_QUEUED_OPERATIONS", SMALL_QUEUE)
    monkeypatch.setattr(state, "REMEMBERED_OPERATIONS", SMALL_MEMORY)
    monkeypatch.setattr(SessionMachine, "reached", reached, raising=False)
    run(SessionMachine, settings=SETTINGS)
    assert reached.floor == set(floor.TRANSITIONS), "what was tried is the table: no more, no less"
    assert reached.operations == set(operations.TRANSITIONS)
    assert reached.outcomes == set(operations.OUTCOMES)
    assert reached.refusals == codes_in_the_core()


def codes_in_the_core() -> set[str]:
    """The refusal codes that its source gives."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in Path(core.__file__).parent.glob("*.py"))
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="reject" | "refusal"), args=args):
                found |= {arg.value for arg in args if isinstance(arg, ast.Constant)}
    return found & set(HTTP_STATUS)
