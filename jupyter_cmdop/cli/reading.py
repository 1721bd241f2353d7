"""`read`, `log`, `verify`: what happened, from a keeper while it lives and from the journal afterwards."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jupyter_cmdop.client import calls, shapes
from jupyter_cmdop.client.errors import ClientError, KeeperGone
from jupyter_cmdop.client.registry import Found, Registry

from . import exits, render
from .listing import when
from .opening import find_past, open_session
from .output import note, print_json, print_text, show, wants_json

T = TypeVar("T")
_SUMMARY_CHARS = 100
# What a line shows first of an entry's data, and what only a program wants to know; `--json` has everything.
_TELLING = ("code", "outcome", "from", "to", "reason", "note", "name", "ename", "evalue", "prompt")
_MUTE = frozenset({"digest", "size", "msg_id", "class", "client_session", "keeper"})
_NOTHING: tuple[object, ...] = (None, "", [], {})


def _journal_directory(found: Found) -> Path:
    return Registry.of_user().sessions / found.id


def read(args: argparse.Namespace) -> int:
    found = find_past(args)
    if found is not None:
        from jupyter_cmdop.client import past

        return _read_past(args, past.outputs(_journal_directory(found), after=args.after))
    with open_session(args) as session:
        if args.follow:
            following = _while_it_lives(session.follow(args.view, after=args.after), args)
            show_outputs(following, as_json=wants_json(args))
        elif wants_json(args):
            print_json(session.read(args.view, after=args.after))
        else:
            call = calls.read(args.view, after=args.after)
            with session.start(call) as stream:
                show_outputs(shapes.read_as(shapes.OutputItem, item.data) for item in stream)
                _note_more(stream.outcome(), args)
    return exits.DONE


def _while_it_lives(items: Iterable[T], args: argparse.Namespace) -> Iterator[T]:
    """Follow until the keeper goes away, which is how following ends when nobody interrupts it."""
    try:
        yield from items
    except KeeperGone as gone:
        note(render.one_line(f"note: {args.name} does not go on: {gone.message}"))


def _read_past(args: argparse.Namespace, items: Iterator[shapes.OutputItem]) -> int:
    if wants_json(args) and not args.follow:
        kept = tuple(items)
        last = kept[-1] if kept else None
        cursor = args.after if last is None else f"{last.incarnation or 0}:{last.seq}"
        print_json(shapes.ReadResult(items=kept, cursor=cursor, more=False))
    else:
        show_outputs(items, as_json=wants_json(args))
    return exits.DONE


def _note_more(end: Mapping[str, Any], args: argparse.Namespace) -> None:
    if end.get("more"):
        cursor = render.one_line(end.get("cursor"))
        note(f"note: there is more; next: jupyter cmdop read {render.one_line(args.name)} --after {cursor}")


def show_outputs(items: Iterable[shapes.OutputItem], *, as_json: bool = False) -> None:
    """Print outputs as they come; on a terminal with a line that says whose they are."""
    printer = render.OutputPrinter()
    heading = None
    for item in items:
        if as_json:
            print_json(item)
            continue
        if sys.stdout.isatty() and (item.operation, item.actor) != heading:
            heading = (item.operation, item.actor)
            printer.end_line()
            print_text(render.paint(_heading(item), "dim", sys.stdout))
        printer.show(item.output)
    printer.end_line()


def _heading(item: shapes.OutputItem) -> str:
    parts = [item.relation or "during", item.operation or "no operation"]
    if item.actor:
        parts.append(f"of {item.actor}")
    return render.one_line("-- " + " ".join(parts))


def log(args: argparse.Namespace) -> int:
    found = find_past(args)
    if found is None:
        with open_session(args) as session:
            entries = session.log(
                after=args.after,
                actor=args.actor,
                operation=args.operation,
                types=args.type,
                follow=args.follow,
            )
            _show_log(_while_it_lives(entries, args) if args.follow else entries, as_json=wants_json(args))
    else:
        from jupyter_cmdop.client import past

        lines = past.log(
            _journal_directory(found),
            after=args.after,
            actor=args.actor,
            operation=args.operation,
            types=args.type,
        )
        _show_log(lines, as_json=wants_json(args))
    return exits.DONE


def _show_log(entries: Iterable[dict[str, Any]], *, as_json: bool) -> None:
    for entry in entries:
        if as_json:
            print_json(entry)
        else:
            print_text(_log_text(shapes.read_as(shapes.LogLine, entry)))


def _log_text(line: shapes.LogLine) -> str:
    cells = (
        f"{line.seq:>6}",
        when(line.time),
        f"{line.type:<14}",
        f"{line.actor or '-':<12}",
        f"{line.operation or '':<8}",
        _summary(line),
    )
    return render.one_line("  ".join(cells)).rstrip()


def _summary(line: shapes.LogLine) -> str:
    parts = [f"via {line.via}" if line.via else "", f"for {line.on_behalf_of}" if line.on_behalf_of else ""]
    if line.withheld:
        parts.append("(withheld)")
    elif line.pruned:
        parts.append("(dropped since)")
    elif isinstance(line.data, dict):
        told = {key: value for key, value in line.data.items() if key not in _MUTE and value not in _NOTHING}
        parts += [f"{key}={_value(told[key])}" for key in sorted(told, key=_rank)]
    return render.one_line(" ".join(part for part in parts if part), limit=_SUMMARY_CHARS)


def _rank(key: str) -> int:
    return _TELLING.index(key) if key in _TELLING else len(_TELLING)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def verify(args: argparse.Namespace) -> int:
    report = _verify(args)
    show(args, report, _describe(report))
    return exits.DONE if report.ok else exits.FAILED


def _verify(args: argparse.Namespace) -> shapes.VerifyReport:
    if "/" in args.name or os.path.exists(os.path.join(args.name, "journal.sqlite")):
        return _verify_directory(Path(args.name), args.receipt)
    found = find_past(args)
    if found is not None:
        return _verify_directory(_journal_directory(found), args.receipt)
    with open_session(args) as session:
        return session.verify(args.receipt)


def _verify_directory(directory: Path, receipt: str | None) -> shapes.VerifyReport:
    from jupyter_cmdop.client import past

    if not directory.exists():
        raise ClientError(f"there is no journal in {directory}", next=("jupyter cmdop ls --all",))
    return past.verify(directory, receipt)


def _describe(report: shapes.VerifyReport) -> str:
    if report.ok:
        pruned = f", the bodies of {report.pruned} dropped since" if report.pruned else ""
        return render.one_line(
            f"whole: {report.entries} entries{pruned}; receipt {report.head_seq}:{report.head_hash}"
        )
    where = f" at entry {report.first_bad}" if report.first_bad is not None else ""
    return render.one_line(
        f"NOT whole{where}: {report.problem} ({report.entries} entries before it are good)"
    )
