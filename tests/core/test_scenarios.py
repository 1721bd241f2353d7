"""The scenario files: what they say comes out, comes out. `pytest tests/core --rewrite-scenarios` writes them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.scenario import play

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text, played = play(path)
    if request.config.getoption("rewrite_scenarios", default=False):
        path.write_text(played, encoding="utf-8")
    else:
        assert text == played, "review the difference, then run: pytest tests/core --rewrite-scenarios"


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 6


def test_changed_output_is_noticed_and_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("# A comment.\nsession turns\nattach bob\n\nstatus\n----\nnonsense\n", encoding="utf-8")
    text, played = play(path)
    assert text != played
    assert played == (
        "# A comment.\nsession turns\nattach bob\n\nstatus\n----\nturns, free, generation 0, ready\n"
    )
