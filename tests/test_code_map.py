"""The map of the code in CONTRIBUTING.md is the tree's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import code_map

PACKAGE = code_map.ROOT / "jupyter_cmdop"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_each_module_says_what_it_is_responsible_for(path: Path) -> None:
    sentence = code_map.first_sentence(path)
    assert sentence.endswith((".", ")")), f"the first line of the docstring is no sentence: {sentence!r}"
    assert len(sentence) <= 200


def test_map_is_that_of_the_tree() -> None:
    """A file that was added, moved or re-purposed is in the map: run `make docs`."""
    assert code_map.code_map() in code_map.PAGE.read_text(encoding="utf-8")


def test_check_tells_an_old_map(tmp_path: Path) -> None:
    page = f"above\n{code_map.BEGIN}\nold\n{code_map.END}\nbelow\n"
    new = code_map.with_map(page, "new")
    assert new == f"above\n{code_map.BEGIN}\n\nnew\n{code_map.END}\nbelow\n"
    with pytest.raises(ValueError, match="lost its marks"):
        code_map.with_map("no marks", "new")


def test_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, str(code_map.ROOT / "tools" / "code_map.py"), "--help"],
        capture_output=True,
        check=True,
    )
    assert b"--check" in done.stdout
