"""The record of a session whose keeper has died gets an end: what can be known, once, and nothing that cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_cmdop.client import past
from jupyter_cmdop.journal.entry import Entry
from jupyter_cmdop.journal.errors import JournalDamaged, JournalLocked
from jupyter_cmdop.journal.store import Head, JournalStore
from jupyter_cmdop.journal.verify import verify
from jupyter_cmdop.keeper.settle import settle
from tests.journal.making import LOG, admitted, entry, stream, tamper, write


def ended(operation: str, outcome: str = "ok") -> Entry:
    return entry("ended", actor="ada", operation=operation, data={"outcome": outcome})


def delivered(operation: str) -> Entry:
    return entry("delivered", operation=operation, form="none", basis="attempted")


STORY = [
    entry("opened", actor="ada", data={"name": "analysis"}, generation=0),
    admitted("r-1", operation="o1"),
    delivered("o1"),
    ended("o1"),
    admitted("r-2", operation="o2"),
    delivered("o2"),
    stream("half of it\n", operation="o2", generation=3, incarnation=2),
    entry("admitted", actor="bot", on_behalf_of="ada", operation="o3", generation=3, data={"code": "2"}),
]


def test_each_operation_gets_the_outcome_that_can_be_known(tmp_path: Path) -> None:
    head = write(tmp_path, [STORY])
    assert settle(tmp_path, LOG) == 2
    assert verify(tmp_path, (head.seq, head.hash)).ok
    added = list(past.log(tmp_path, after=head.seq))
    assert [(e["type"], e.get("operation"), e["data"].get("outcome")) for e in added] == [
        ("ended", "o2", "unknown"),
        ("ended", "o3", "aborted"),
        ("keeper_ended", None, None),
    ]
    assert [e["actor"] for e in added] == ["ada", "bot", "keeper"]
    assert {e["basis"] for e in added} == {"inferred"}
    assert {e["generation"] for e in added} == {3}
    assert added[0]["request_id"] == "r-2"
    assert added[1]["on_behalf_of"] == "ada"
    assert all(e["data"]["reason"] for e in added)


def test_a_second_time_adds_nothing(tmp_path: Path) -> None:
    write(tmp_path, [STORY])
    settle(tmp_path, LOG)
    first = verify(tmp_path)
    assert settle(tmp_path, LOG) == 0
    assert verify(tmp_path) == first


@pytest.mark.parametrize("rest", [[], [entry("closed", actor="ada", data={})]], ids=["nothing", "closed"])
def test_a_record_that_has_its_end_is_left_alone(tmp_path: Path, rest: list[Entry]) -> None:
    write(tmp_path, [[*STORY[:4], *rest]] if rest else [])
    before = verify(tmp_path)
    assert settle(tmp_path, LOG) == 0
    assert verify(tmp_path) == before


def test_a_death_with_nothing_under_way_is_told(tmp_path: Path) -> None:
    write(tmp_path, [STORY[:4]])
    assert settle(tmp_path, LOG) == 0
    assert [e["type"] for e in past.log(tmp_path)][-1] == "keeper_ended"


def test_a_journal_in_use_is_left_alone(tmp_path: Path) -> None:
    with JournalStore.open(tmp_path, LOG) as store:
        assert isinstance(store.append(0, 0, STORY), Head)
        done = subprocess.run(
            [sys.executable, "-m", "jupyter_cmdop.keeper.settle", str(tmp_path), LOG],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr
        with pytest.raises(JournalLocked):
            settle(tmp_path, LOG)
        assert store.head.seq == len(STORY)


def test_a_damaged_journal_and_another_sessions_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, [STORY])
    with pytest.raises(JournalDamaged):
        settle(tmp_path, "another")
    tamper(tmp_path, "DELETE FROM entries WHERE seq = 8")
    with pytest.raises(JournalDamaged):
        settle(tmp_path, LOG)
    assert [e["type"] for e in past.log(tmp_path)][-1] == "output"
