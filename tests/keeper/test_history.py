"""History answered from the session's own cells (messaging specification, "History")."""

from __future__ import annotations

import pytest

from jupyter_cmdop.keeper.history import KEPT_BYTES, KEPT_LINES, REQUEST, History
from jupyter_cmdop.wire.kernel import encode_json


@pytest.fixture
def history() -> History:
    history = History()
    for session, number, source in ((1, 1, "a = 1"), (1, 2, "b = 2"), (2, 1, "a = 1"), (2, 2, "print(a)")):
        history.add(session, number, source)
    return history


def ask(history: History, **content: object) -> list[object]:
    return list(history.answer(REQUEST.decode(encode_json(content)), 2)["history"])


def test_tail_gives_the_latest(history: History) -> None:
    assert ask(history, hist_access_type="tail", n=2) == [(2, 1, "a = 1"), (2, 2, "print(a)")]
    assert ask(history, hist_access_type="tail", n=0) == []


def test_range_counts_sessions_back_from_the_current_one(history: History) -> None:
    assert ask(history, hist_access_type="range", session=0, start=1, stop=2) == [(2, 1, "a = 1")]
    assert ask(history, hist_access_type="range", session=-1) == [(1, 1, "a = 1"), (1, 2, "b = 2")]
    assert ask(history, hist_access_type="range", session=1, start=2) == [(1, 2, "b = 2")]


def test_search_matches_globs_and_can_be_unique(history: History) -> None:
    assert len(ask(history, hist_access_type="search", pattern="a*")) == 2
    assert ask(history, hist_access_type="search", pattern="a*", unique=True) == [(2, 1, "a = 1")]
    assert ask(history, hist_access_type="search", pattern="*(a)", n=5) == [(2, 2, "print(a)")]


def test_with_outputs_each_line_is_a_pair(history: History) -> None:
    assert ask(history, hist_access_type="tail", n=1, output=True) == [(2, 2, ("print(a)", None))]


def test_it_is_bounded_by_lines_and_by_bytes() -> None:
    history = History()
    for number in range(KEPT_LINES + 5):
        history.add(1, number, "x")
    assert len(history.lines) == KEPT_LINES
    history.add(1, 1, "y" * KEPT_BYTES)
    assert [line.source[0] for line in history.lines] == ["y"]
    assert history.size == KEPT_BYTES
