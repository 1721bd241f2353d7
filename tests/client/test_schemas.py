"""Shapes are tolerant, complete, and described by the schemas in the package."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import msgspec
import pytest

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.errors import BadAnswer

SHAPES = sorted(
    (
        shape
        for shape in vars(shapes).values()
        if isinstance(shape, type) and issubclass(shape, shapes.Shape) and shape is not shapes.Shape
    ),
    key=lambda shape: shape.__name__,
)
# Keys that other programs rely on.
PROMISED = {
    "LsItem": {"name", "id", "kind", "state", "driver", "generation", "incarnation", "policy", "kernel_id"},
    "Status": {
        *("name", "id", "kind", "state", "driver", "generation", "incarnation", "policy", "kernel_id"),
        *("presence", "queue", "running", "pending_input", "processes"),
    },
    "Invite": {"connection_file", "token", "actor", "expires"},
    "RunResult": {
        *("status", "operation", "request_id", "duplicate", "generation", "incarnation", "cursor", "basis"),
        *("ename", "evalue", "outputs", "text", "truncated", "others", "refusal"),
    },
    "LogLine": {"seq", "time", "type", "actor", "operation", "generation"},
    "RefusalShape": {"code", "message", "driver", "since", "generation", "retry_after", "next"},
}


def schema_of(name: str) -> dict[str, Any]:
    text = resources.files("jupyter_cmdop").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def least(shape: Any) -> dict[str, Any]:
    """The smallest object that is this shape."""
    required = [field.encode_name for field in msgspec.structs.fields(shape) if field.required]
    values = {"ok": True, "seq": 1, "pid": 1, "output": {}, "error": {"code": "c", "message": "m"}}
    return {name: values.get(name, "x") for name in required}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_promised_keys_are_always_printed(name: str) -> None:
    shape = getattr(shapes, name)
    printed = json.loads(shapes.to_json(shapes.read_as(shape, least(shape))))
    assert set(printed) >= PROMISED[name]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_unknown_fields_are_ignored(shape: Any) -> None:
    assert shapes.read_as(shape, least(shape) | {"from_the_future": [1]}) == shapes.read_as(
        shape, least(shape)
    )


def test_wrong_shape_is_a_bad_answer() -> None:
    for data in ([], None, "x", {"name": 7}, {}):
        with pytest.raises(BadAnswer):
            shapes.read_as(shapes.Status, data)


@pytest.mark.parametrize("name", sorted(shapes.SCHEMAS))
def test_schema_in_the_package_is_the_shapes_own(name: str) -> None:
    """Run `make docs` after a change of a shape."""
    made = json.loads(json.dumps(msgspec.json.schema(shapes.SCHEMAS[name])))
    kept = schema_of(name)
    assert {key: kept[key] for key in made} == made


@pytest.mark.parametrize("name", sorted(set(shapes.SCHEMAS) - {"ls"}))
def test_least_object_is_valid(name: str) -> None:
    shape = shapes.SCHEMAS[name]
    printed = json.loads(shapes.to_json(shapes.read_as(shape, least(shape))))
    jsonschema.validate(printed, schema_of(name))
