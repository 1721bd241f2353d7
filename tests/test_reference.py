"""The pages of docs/reference are those that the code gives."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jsonschema
import pytest

from tools import reference

MADE = reference.files()


@pytest.mark.parametrize("path", list(MADE), ids=lambda path: path.name)
def test_file_is_up_to_date(path: Path) -> None:
    """A command, a shape, a refusal or a row of the floor has changed: run `make docs`."""
    assert path.read_text(encoding="utf-8") == MADE[path]


def test_no_schema_is_left_of_a_shape_that_is_gone() -> None:
    assert not reference.stale_files(MADE)


@pytest.mark.parametrize("path", sorted(reference.SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_schemas_are_schemas(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_readme_lists_every_page() -> None:
    listed = (reference.FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in listed for name in reference.PAGES)


def test_every_command_says_what_it_does() -> None:
    from jupyter_cmdop.cli.parser import build_parser

    silent = [
        name for name, command in reference._subcommands(build_parser()) if not reference._summary(command)
    ]
    assert not silent, "add_parser(..., description=...) is missing"


def test_usage_and_arguments_do_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser(prog="jupyter-cmdop take", description="Take over.")
    parser.add_argument("name", metavar="NAME", help="the session")
    parser.add_argument(
        "--queue", choices=["drop", "adopt"], default="drop", help="what becomes of the queue"
    )
    parser.add_argument("--json", action="store_true", help="100%% JSON")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        actions = reference._visible(parser)
        assert reference._usage(parser, actions) == [
            "jupyter cmdop take NAME [--queue {drop,adopt}] [--json]"
        ]
        assert reference._table(parser, actions)[2:] == [
            "| `NAME` | the session |",
            "| `--queue {drop,adopt}` | what becomes of the queue (drop) |",
            "| `--json` | 100% JSON |",
        ]
