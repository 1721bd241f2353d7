"""The checker of the soak finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.rules import Rules, slope


def entry(seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"seq": seq, "type": kind, "generation": 1, "incarnation": 1, "actor": "ann", **fields}


def life(operation: str, seq: int, *, outcome: str = "ok") -> list[dict[str, Any]]:
    return [
        entry(seq, "admitted", operation=operation),
        entry(seq + 1, "delivered", operation=operation),
        entry(seq + 2, "ended", operation=operation, data={"outcome": outcome}),
    ]


def test_whole_lives_break_nothing() -> None:
    rules = Rules().follow([*life("o1", 1), *life("o2", 4, outcome="interrupted")]).finish()
    assert rules.broken == []
    assert dict(rules.outcomes) == {"ok": 1, "interrupted": 1}


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (life("o1", 1)[:2], "has no outcome"),
        ([*life("o1", 1), life("o1", 2)[2]], "ended unadmitted or twice"),
        ([*life("o1", 1)[:2], *life("o2", 3)], "while o1 ran"),
        ([entry(1, "opened", generation=2), entry(2, "note")], "generation 1 after 2"),
        ([entry(1, "opened"), entry(3, "note")], "comes after 1"),
        (
            [entry(1, "taken", data={"from": None, "to": "bob"}), entry(2, "admitted", operation="o1")],
            "while bob drives",
        ),
        ([entry(1, "taken", data={"from": "eve", "to": "bob"})], "is from eve, and None drove"),
        (
            [entry(n, "admitted", operation=f"o{n}", request_id="r") for n in (1, 2)],
            "has the request id of o1",
        ),
    ],
)
def test_what_is_broken_is_found(entries: list[dict[str, Any]], said: str) -> None:
    assert said in " ".join(Rules().follow(entries).finish().broken)


def test_slope() -> None:
    assert slope([(0.0, 5.0), (1.0, 7.0), (2.0, 9.0)]) == pytest.approx(2.0)
    assert slope([(1.0, 1.0)]) == 0.0
