"""Write docs/reference and the JSON schemas from the code: commands, shapes, refusals, the table of the floor.

The commands come from the argument parser, the shapes from the types that `--json` prints, everything else from the
tables of the core. Nothing here depends on the width of a terminal or on how a Python version prints help, so that
everybody generates the same text.

    python tools/reference.py            write the files
    python tools/reference.py --check    exit 1 when a file is out of date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
SCHEMAS = ROOT / "jupyter_cmdop" / "schemas"
DIFFERENCES = ROOT / "tests" / "stock" / "differences.toml"
NOTICE = "<!-- written by tools/reference.py, do not edit: change the code and run `make docs` -->"

# What each refusal means, for a person. A code without a line here fails the generator.
REFUSALS = {
    "not_driver": "Somebody else has the floor. `driver` and `since` say who and since when.",
    "stale_generation": "The floor has moved since you last looked. Look again; the same input sent again may pass.",
    "busy": "Something is running or waiting, and you asked not to be queued.",
    "no_prompt": "There is no prompt to answer, or not this one any more.",
    "request_id_conflict": "You have used this request id for other content.",
    "name_taken": "A live session has this name already. Names that differ only in case are the same.",
    "read_only": "The policy is `readonly`, so nobody may input; or you are an observer, who sees and does not act.",
    "forbidden": "Your grant does not have the right that this needs.",
    "revoked": "Your grant has ended, and your connection with it.",
    "journal_unavailable": "The journal cannot be written (a full disk, for example). Nothing goes on unrecorded.",
    "rate_limited": "You act more often than this Jupyter server allows over HTTP; `retry_after` says when again.",
    "queue_full": "You have as much waiting as one actor may have.",
    "backend_lost": "The kernel is gone and does not come back by itself.",
    "unknown_session": "There is no session of this name.",
    "unknown_operation": "The session has no operation of this id.",
    "unknown_grant": "The session has no grant of this id, and none of an actor of this id.",
    "too_large": "The message is larger than the limit.",
    "unsupported": "What you asked for cannot be done here.",
}
# Who prints a shape, where that is not the verb of its name.
PRINTED_BY = {
    "floor": "`take`, `hand-back`, `release`, `policy`",
    "run": "`run`, `wait`",
    "log": "`log`, one a line",
    "failure": "every verb that did not succeed",
}
# Codes of the closed set that no part of this version gives.
RESERVED = (
    "awaiting_approval",
    "dirty_line",
    "draining",
    "expired",
    "frozen",
    "input_pending",
    "moved",
    "paused",
)


def cli_page() -> str:
    from jupyter_cmdop.cli.parser import build_parser

    parser = build_parser()
    commands = dict(_subcommands(parser))
    common = _visible(parser)
    lines = [f"# Commands of `{_prog(parser)}`", "", NOTICE, ""]
    lines += [*_prose(parser.description), *_literal(parser.epilog)]
    lines += ["| command | what it does |", "|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {_cell(_summary(command))} |" for name, command in commands.items()]
    lines += ["", "Every command has these as well:", "", *_table(parser, common), ""]
    for name, command in commands.items():
        actions = [action for action in _visible(command) if not _is_among(action, common)]
        lines += [f"## {name}", "", "```", *_usage(command, actions), "```", ""]
        lines += _prose(command.description)
        lines += [*_table(command, actions), ""] if actions else []
        lines += _literal(command.epilog)
    return _text(lines)


def shapes_page() -> str:
    from jupyter_cmdop.client import shapes

    lines = [
        "# What `--json` prints",
        "",
        NOTICE,
        "",
        "A shape only grows: ignore the keys you do not know. A key that is not required may be absent or null. The",
        "same as JSON Schema is in the package, `jupyter_cmdop/schemas/<name>.json`.",
        "",
        "| name | printed by | shape |",
        "|---|---|---|",
    ]
    definitions: dict[str, Any] = {}
    for name in shapes.SCHEMAS:
        schema = _schema(name)
        definitions |= schema["$defs"]
        shape = _type(schema)
        lines.append(f"| `{name}` | {PRINTED_BY.get(name, f'`{name}`')} | {shape} |")
    for name in sorted(definitions):
        definition = definitions[name]
        lines += ["", f"## {name}", ""]
        lines += _prose(definition.get("description", "").partition("\n\nAttributes:")[0])
        lines += ["| key | type | required |", "|---|---|---|"]
        required = definition.get("required", ())
        for key, value in definition["properties"].items():
            lines.append(f"| `{key}` | {_cell(_type(value))} | {'yes' if key in required else ''} |")
    return _text([*lines, ""])


def schema_file(name: str) -> str:
    """The JSON Schema (draft 2020-12) of one shape."""
    return json.dumps(_schema(name), indent=1, ensure_ascii=False) + "\n"


def _schema(name: str) -> dict[str, Any]:
    import msgspec

    from jupyter_cmdop.client import shapes

    schema = msgspec.json.schema(shapes.SCHEMAS[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}


def refusals_page() -> str:
    from jupyter_cmdop.core.refusal import HTTP_STATUS

    documented = set(REFUSALS) | set(RESERVED)
    if documented != set(HTTP_STATUS):
        raise ValueError(
            "REFUSALS in tools/reference.py and HTTP_STATUS in core/refusal.py name different codes: "
            f"{sorted(documented ^ set(HTTP_STATUS))}"
        )
    lines = [
        "# Refusals",
        "",
        NOTICE,
        "",
        "A refusal is an answer, not a failure: the session is as it was, and the attempt is in the journal. It has",
        "the same shape everywhere:",
        "",
        "| key | meaning |",
        "|---|---|",
        "| `code` | one of the codes below |",
        "| `message` | one sentence for a person |",
        "| `driver` | who has the floor, when that is the reason |",
        "| `since` | since when |",
        "| `generation` | the generation in force |",
        "| `retry_after` | seconds after which the same input may pass, when that is known |",
        "| `next` | what helps: commands or sentences |",
        "",
        "The command line exits with 3. An unmodified kernel client gets it as an error reply, with all the messages",
        "of a cell that ended, so that it does not hang.",
        "",
        "| code | HTTP status | meaning |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{code}` | {HTTP_STATUS[code]} | {REFUSALS[code]} |" for code in HTTP_STATUS if code in REFUSALS
    ]
    lines += [
        "",
        "Reserved, and not given by this version: " + ", ".join(f"`{code}`" for code in RESERVED) + ".",
        "",
    ]
    return _text(lines)


def floor_page() -> str:
    from jupyter_cmdop.core import floor

    events, states = _comments(floor.FloorEvent), list(floor.FloorState)
    rows = sorted(floor.TRANSITIONS.items(), key=lambda item: (states.index(item[0][0]), item[0][1].value))
    lines = [
        "# The floor",
        "",
        NOTICE,
        "",
        "Every allowed transition. An event that has no row for the present state changes nothing.",
        "",
        "| state | event | next state | generation | entry in the journal |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {state.value} | {event.value} | {row.to.value} | {'+1' if row.new_generation else 'same'} | `{row.entry}` |"
        for (state, event), row in rows
    ]
    lines += ["", "## Events", "", "| event | meaning |", "|---|---|"]
    lines += [f"| {event.value} | {_cell(events[event.name])} |" for event in floor.FloorEvent]
    lines += ["", "## Times", "", "| what | seconds |", "|---|---|"]
    lines += [
        f"| an attachment's sign of life holds for | {floor.SIGN_OF_LIFE_SECONDS:g} |",
        f"| the lease of an act, unless another was asked for | {floor.ACT_LEASE_SECONDS:g} |",
        f"| the longest lease that can be asked for | {floor.MAX_LEASE_SECONDS:g} |",
        f"| a stale driver may resume for this long | {floor.STALE_GRACE_SECONDS:g} |",
        "",
        "## Diagram",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> free",
    ]
    lines += [f"    {state.value} --> {row.to.value}: {event.value}" for (state, event), row in rows]
    lines += ["```", ""]
    return _text(lines)


def server_page() -> str:
    from jupyter_cmdop.server.events import SCHEMAS as EVENTS
    from jupyter_cmdop.server.metrics import METRICS

    lines = [
        "# Metrics and events of the Jupyter server",
        "",
        NOTICE,
        "",
        "Why they are as they are: [the Jupyter server](../explanation/jupyter-server.md#what-others-can-watch).",
        "",
        "## Metrics",
        "",
        "On `/metrics`, beside Jupyter's own.",
        "",
        "| metric | type | meaning |",
        "|---|---|---|",
    ]
    for [metric] in (collector.describe() for collector in METRICS):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines.append(f"| `{name}` | {metric.type} | {_cell(metric.documentation)} |")
    lines += ["", "## Events", "", "On `/api/events/subscribe`, and for every handler of Jupyter Events."]
    for schema in EVENTS:
        lines += ["", f"### {schema['$id'].partition('/jupyter_cmdop/')[2]}", ""]
        lines += [f"`{schema['$id']}`", "", *_prose(schema["description"])]
        lines += ["| key | meaning | type | required |", "|---|---|---|---|"]
        for key, value in schema["properties"].items():
            kind = ", ".join(f"`{word}`" for word in value["enum"]) if "enum" in value else value["type"]
            required = "yes" if key in schema["required"] else ""
            lines.append(f"| `{key}` | {_cell(value['title'])} | {kind} | {required} |")
    return _text([*lines, ""])


def http_page() -> str:
    """The HTTP API, from its OpenAPI document alone."""
    from jupyter_cmdop.server import api_openapi, api_routes

    document = api_openapi.document(api_routes.ROUTES)
    schemas = document["components"]["schemas"]
    lines = ["# HTTP API", "", NOTICE, ""]
    lines += [*_prose(document["info"]["description"])]
    lines += [
        "Paths are below `<base_url>cmdop/api` of a Jupyter server. The same as OpenAPI 3.1 is in the package,",
        "`jupyter_cmdop/server/openapi.json`, and at `cmdop/api/openapi.json`. How it is used:",
        "[from a script over HTTP](../how-to/use-from-a-script-over-http.md).",
        "",
        "| | path | what it does | body | answers |",
        "|---|---|---|---|---|",
    ]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for method, path, operation in operations:
        body = _cell(_type(_json_of(operation.get("requestBody", {}))))
        answers = "; ".join(
            f"{status}: {_cell(_type(_json_of(answer)))}"
            for status, answer in operation["responses"].items()
            if status.isdecimal()
        )
        shown = body if "requestBody" in operation else ""
        link = f"[`{path}`](#{operation['operationId']})"
        lines.append(f"| {method} | {link} | {_cell(operation['summary'])} | {shown} | {answers} |")
    lines += ["", "## Parameters", ""]
    for method, path, operation in operations:
        lines += [f"### {operation['operationId']}", "", f"`{method} {path}`: {operation['summary']}.", ""]
        if "description" in operation:
            lines += [operation["description"], ""]
        rows = [p for p in operation.get("parameters", ()) if p["in"] != "path"]
        if rows:
            lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
            for row in rows:
                meaning = _cell(row.get("description", ""))
                lines.append(
                    f"| `{row['name']}` | {row['in']} | {_cell(_limits(row['schema']))} | {meaning} |"
                )
            lines.append("")
    lines += [
        "## Codes",
        "",
        "Those of [refusals](refusals.md), and:",
        "",
        "| code | HTTP status |",
        "|---|---|",
    ]
    from jupyter_cmdop.server.api_errors import HTTP_CODES

    lines += [f"| `{code}` | {status} |" for code, status in HTTP_CODES.items()]
    lines += ["", "## Closing codes of the feed", "", "| code | meaning |", "|---|---|"]
    from jupyter_cmdop.server import api_feed

    lines += [
        f"| {api_feed.CLOSE_ENDED} | the session has ended; there is nothing to come back for |",
        f"| {api_feed.CLOSE_CREDENTIAL} | the grant or the login has ended |",
        (
            f"| {api_feed.CLOSE_SLOW} | nothing was read for a while: come back with the cursor of your last record. "
            "Who does not read even this is cut off after five seconds |"
        ),
        f"| {api_feed.CLOSE_TRY_AGAIN} | it cannot be told now: come back with the cursor of your last record |",
    ]
    lines += ["", "## Shapes", ""]
    for name, schema in schemas.items():
        lines += [f"### {name}", "", *_prose(schema.get("description"))]
        lines += ["| key | type | required | meaning |", "|---|---|---|---|"]
        for key, value in schema["properties"].items():
            required = "yes" if key in schema.get("required", ()) else ""
            meaning = value.get("description", "") or next(
                (option["description"] for option in value.get("anyOf", ()) if "description" in option), ""
            )
            lines.append(f"| `{key}` | {_cell(_limits(value))} | {required} | {_cell(meaning)} |")
        lines.append("")
    return _text(lines)


def _json_of(content: dict[str, Any]) -> dict[str, Any]:
    found = content.get("content", {}).get("application/json", {}).get("schema", {})
    return dict(found)


def _limits(schema: dict[str, Any]) -> str:
    """The type with its limits and its default."""
    if "enum" in schema:
        text = ", ".join(f"`{word}`" for word in schema["enum"] if word is not None)
    else:
        text = _type(schema)
    bounds = [
        f"{word} {schema[key]:g}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("minLength", "from"),
            ("maxLength", "to"),
        )
        if key in schema
    ]
    default = schema.get("default")
    if default not in (None, "", False, [], ()):
        bounds.append(f"default {default}")
    return f"{text} ({', '.join(bounds)})" if bounds else text


def stock_page() -> str:
    differences = tomllib.loads(DIFFERENCES.read_text(encoding="utf-8"))["difference"]
    lines = [
        "# What jupyter_server's own tests see differently",
        "",
        NOTICE,
        "",
        "jupyter_server comes with tests of its own, for kernels (`tests/services/kernels`) and for notebook sessions",
        "(`tests/services/sessions`). `tests/stock` runs those of the installed version against servers that have this",
        "extension. All of them pass but the ones below, each on purpose. The list is checked both ways: a test that",
        "fails and is not here fails ours, and so does one that is here and passes.",
        "",
        "Many of these tests name Jupyter's kernel manager in their configuration. Where it is the default one, the",
        "name is taken away, as the extension respects a choice; where it is another, the extension leaves kernels as",
        "they are, and the test passes because of that.",
    ]
    for difference in differences:
        lines += ["", f"## {difference['title']}", "", *textwrap.wrap(difference["reason"], 120), ""]
        lines += [f"- `{test}`" for test in difference["tests"]]
    return _text([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "shapes.md": shapes_page,
    "refusals.md": refusals_page,
    "floor.md": floor_page,
    "server.md": server_page,
    "http.md": http_page,
    "stock-server-tests.md": stock_page,
}


def files() -> dict[Path, str]:
    """Every generated file with its text."""
    from jupyter_cmdop.client import shapes
    from jupyter_cmdop.server import api_openapi, api_routes

    pages = {FOLDER / name: page() for name, page in PAGES.items()}
    pages[api_routes.OPENAPI_FILE] = api_openapi.written(api_routes.ROUTES)
    return pages | {SCHEMAS / f"{name}.json": schema_file(name) for name in shapes.SCHEMAS}


def stale_files(made: dict[Path, str]) -> list[Path]:
    """Schemas of shapes that are gone."""
    return sorted(set(SCHEMAS.glob("*.json")) - set(made))


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001 (argparse has no public way to list them)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield from action.choices.items()


def _summary(command: argparse.ArgumentParser) -> str:
    return (command.description or "").strip().split("\n\n", 1)[0]


def _prog(parser: argparse.ArgumentParser) -> str:
    return parser.prog.replace("jupyter-cmdop", "jupyter cmdop")


def _visible(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)  # noqa: SLF001
    return [
        action
        for action in parser._actions  # noqa: SLF001
        if action.help != argparse.SUPPRESS and not isinstance(action, hidden)
    ]


def _is_among(action: argparse.Action, common: list[argparse.Action]) -> bool:
    """`invite --as` is another option than the `--as` of every command: it is kept somewhere else."""
    return any((action.option_strings, action.dest) == (other.option_strings, other.dest) for other in common)


def _usage(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> list[str]:
    parts = [_prog(parser)]
    parts += [_value(action) for action in actions if not action.option_strings]
    for action in actions:
        if action.option_strings:
            parts.append(_form(action) if action.required else f"[{_form(action)}]")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) > 100:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return lines


def _form(action: argparse.Action) -> str:
    """The longest spelling of an option, with its value."""
    name = max(action.option_strings, key=len)
    return name if action.nargs == 0 else f"{name} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        name = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        name = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    else:
        name = action.dest.upper()
    if action.nargs == "?":
        return f"[{name}]"
    if action.nargs in ("*", argparse.REMAINDER):
        return f"[{name} …]"
    return f"{name} [{name} …]" if action.nargs == "+" else name


def _table(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> list[str]:
    rows = ["| argument | meaning |", "|---|---|"]
    for action in sorted(actions, key=lambda action: bool(action.option_strings)):
        forms = list(action.option_strings) or [_value(action)]
        if action.option_strings and action.nargs != 0:
            forms[-1] = _form(action)
        names = ", ".join(f"`{_cell(form, code=True)}`" for form in forms)
        rows.append(f"| {names} | {_cell(_help(action, parser))} |")
    return rows


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    values = {name: value for name, value in vars(action).items() if value is not argparse.SUPPRESS}
    values["prog"] = _prog(parser)
    if action.choices is not None:
        values["choices"] = ", ".join(str(choice) for choice in action.choices)
    text = " ".join(((action.help or "") % values).split())
    default = action.default
    said = "default" in text or f"({default})" in text or text == str(default)
    if said or action.nargs == 0 or default in (None, argparse.SUPPRESS, []):
        return text
    return f"{text} ({default})"


def _comments(members: type[Enum]) -> dict[str, str]:
    """The trailing comment of each member of an enumeration."""
    source = inspect.getsource(members)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]  # the one class of this source
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = lines[node.lineno - 1].partition("#")[2].strip()
    return found


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _cell(text: str, *, code: bool = False) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if code else text.replace("<", "&lt;")


def _prose(text: str | None) -> list[str]:
    return [*text.strip().replace("<", "&lt;").splitlines(), ""] if text else []


def _literal(text: str | None) -> list[str]:
    """Text whose line breaks and indents mean something."""
    return ["```text", *text.strip("\n").splitlines(), "```", ""] if text else []


def _text(lines: list[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference and the JSON schemas from the code.")
    parser.add_argument(
        "--check", action="store_true", help="only compare; exit 1 when a file is out of date"
    )
    options = parser.parse_args(argv)
    made = files()
    gone = stale_files(made)
    old = [
        path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if options.check:
        if old or gone:
            names = ", ".join(path.relative_to(ROOT).as_posix() for path in [*old, *gone])
            print(f"does not match the code: {names}: run `make docs`", file=sys.stderr)
        return int(bool(old or gone))
    SCHEMAS.mkdir(exist_ok=True)
    for path in old:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT).as_posix()}")
    for path in gone:
        path.unlink()
        print(f"removed {path.relative_to(ROOT).as_posix()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
