"""The kind of an actor decides nothing: the same run with all kinds swapped has the same effects but for the kind."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_cmdop import core
from jupyter_cmdop.core import admission
from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core.actor import ACTOR_KINDS, ActorKind
from tests.core.world import ACTIONS, KINDS, SMALL_QUEUE, World

STEPS = 60
SWAPPED: dict[str, ActorKind] = {
    actor: ACTOR_KINDS[(ACTOR_KINDS.index(kind) + 1) % len(ACTOR_KINDS)] for actor, kind in KINDS.items()
}


def run(seed: int, kinds: dict[str, ActorKind]) -> World:
    dice = random.Random(seed)
    world = World(dice.choice, kinds)
    for _ in range(STEPS):
        dice.choice([*ACTIONS, World.run_cells, World.go_on, World.go_on])(world)
    world.close()
    return world


def without_kind(effect: fx.Effect) -> fx.Effect:
    if not isinstance(effect, fx.Record):
        return effect
    actor = effect.actor and replace(effect.actor, kind="human")
    return replace(effect, actor=actor, data={**effect.data, "kind": None})


@pytest.mark.parametrize("seed", range(12))
def test_kinds_swapped_give_the_same_effects_but_for_the_kind(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_QUEUED_OPERATIONS", SMALL_QUEUE)
    first, second = run(seed, KINDS), run(seed, SWAPPED)
    assert first.trace != second.trace, "the kinds were swapped, and are recorded"
    assert len(first.trace) == len(second.trace)
    for (_, one), (_, other) in zip(first.trace, second.trace, strict=True):
        assert [without_kind(effect) for effect in one] == [without_kind(effect) for effect in other]


def test_kind_is_read_only_where_it_is_recorded() -> None:
    """The twin run shows it for what it meets; the source says it for all."""
    reads = [
        path.name
        for path in sorted(Path(core.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "kind"
    ]
    assert reads == ["access.py", "presence.py"], "one each, for the entries `granted` and `attached`"
