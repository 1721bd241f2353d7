"""The TypeScript types of the HTTP API are those of its description; seen without Node.js and without a network."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tools import typescript


def test_types_are_up_to_date() -> None:
    assert typescript.problem() is None, "run `make types`"


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Path, Path]:
    return (
        Path(shutil.copy(typescript.OPENAPI, tmp_path)),
        Path(shutil.copy(typescript.TYPES, tmp_path)),
    )


def test_a_changed_description_is_seen(copies: tuple[Path, Path]) -> None:
    openapi, types = copies
    assert typescript.problem(openapi, types) is None
    openapi.write_text(openapi.read_text().replace("wait_seconds", "wait_minutes", 1))
    assert typescript.problem(openapi, types) == "openapi.json has changed since"


def test_a_changed_file_is_seen(copies: tuple[Path, Path]) -> None:
    openapi, types = copies
    text = types.read_text()
    types.write_text(text.replace("string;", "number;", 1))
    assert typescript.problem(openapi, types) == "it was changed by hand"
    types.write_text(text.replace("openapi-typescript@", "something-else@", 1))
    assert typescript.problem(openapi, types) == "another generator made it"
    types.write_text("".join(text.splitlines(keepends=True)[:2]))
    assert typescript.problem(openapi, types) is not None
    types.unlink()
    assert typescript.problem(openapi, types) == "it is missing"


def test_every_operation_and_every_shape_is_there() -> None:
    document = json.loads(typescript.OPENAPI.read_text())
    text = typescript.TYPES.read_text()
    operations = {
        described["operationId"] for path in document["paths"].values() for described in path.values()
    }
    assert set(re.findall(r'operations\["(\w+)"\]', text)) == operations
    for shape in document["components"]["schemas"]:
        assert re.search(rf"^        {shape}: ", text, re.MULTILINE), shape


def test_nothing_names_a_place_to_download_from() -> None:
    """The registry is the one that is configured where `make types` runs."""
    assert not re.search(r"https?://", typescript.TYPES.read_text())
    folder = typescript.TYPES.parents[1]
    locks = [path for name in ("package-lock.json", "yarn.lock") for path in folder.rglob(name)]
    assert not [path for path in locks if "resolved" in path.read_text() and "http" in path.read_text()]
