"""What the verbs print: a documented shape as JSON, text for a person, errors as one line."""

from __future__ import annotations

import argparse
import sys

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.errors import (
    ClientError,
    KeeperGone,
    LinkTimeout,
    Refused,
    RequestFailed,
    SpawnFailed,
)

from . import render


def wants_json(args: argparse.Namespace) -> bool:
    return bool(getattr(args, "json", False))


def print_json(shape: object) -> None:
    """One line, so that a stream of them can be read line by line."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    text = render.safe_json(shapes.to_json(shape), ascii_only=encoding not in ("utf8", "utf8sig"))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Text whose foreign parts are harmless already."""
    sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    sys.stdout.flush()


def note(line: str) -> None:
    """A line of ours beside the output."""
    print(line, file=sys.stderr, flush=True)


def refusal_shape(error: Refused) -> shapes.RefusalShape:
    return shapes.read_as(shapes.RefusalShape, error.refusal.to_dict())


def failure_shape(error: ClientError) -> shapes.Failure:
    return shapes.Failure(
        error=shapes.Problem(code=error.code, message=error.message, next=error.next),
        refusal=refusal_shape(error) if isinstance(error, Refused) else None,
    )


def error_line(message: str, following: tuple[str, ...] | list[str] = (), *, name: str | None = None) -> str:
    """The one line of an error: what is wrong, then what helps."""
    line = f"error: {render.one_line(message)}"
    if following:
        line += "; next: " + " or ".join(_as_command(item, name) for item in following)
    return line


def _as_command(item: str, name: str | None) -> str:
    """Refusals name verbs (`take`), which a person types as a command."""
    if item.replace("_", "").replace("-", "").isalpha() and item.islower() and name:
        return f"jupyter cmdop {item.replace('_', '-')} {render.one_line(name)}"
    return render.one_line(item)


def print_error(error: ClientError, args: argparse.Namespace | None = None) -> None:
    """Say what went wrong on standard error and, with `--json`, as a shape on standard output."""
    following = error.next
    name = getattr(args, "name", None)
    if not following and isinstance(error, RequestFailed) and args is not None:
        following = (f"jupyter cmdop {args.verb} --help",)
    elif not following and isinstance(error, KeeperGone | LinkTimeout) and name:
        following = ("log",)
    note(error_line(error.message, following, name=name))
    if isinstance(error, SpawnFailed):
        for line in error.log:
            note(f"  keeper.log: {render.one_line(line)}")
    if args is not None and wants_json(args):
        print_json(failure_shape(error))


def show(args: argparse.Namespace, shape: object, text: str) -> None:
    """Print one or the other."""
    if wants_json(args):
        print_json(shape)
    else:
        print_text(text)
