"""`ls` and `status`: what there is, and how one session stands."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.census import ask_all, describe, describe_past, status_of, take_census
from jupyter_cmdop.client.errors import RequestFailed
from jupyter_cmdop.client.registry import Found, Registry

from . import exits, render
from .opening import find, open_session, server_of
from .output import print_json, print_text, wants_json

_STATE_COLOURS = {"lost": "red", "unresponsive": "yellow", "starting": "yellow"}


def ls(args: argparse.Namespace) -> int:
    server = server_of(args)
    if server is None:
        items = take_census(Registry.of_user(), past=args.all)
    elif args.all:
        raise RequestFailed("bad_request", "past sessions are listed on their own machine only", next=("ls",))
    else:
        items = server.sessions()
    if wants_json(args):
        print_json(items)
    elif items:
        print_text(_table(items))
    else:
        print_text("no sessions; next: jupyter cmdop new NAME")
    return exits.DONE


def _table(items: list[shapes.LsItem]) -> str:
    rows = [
        (
            item.name,
            item.state,
            item.driver or ("-" if item.generation is None else "free"),
            item.policy,
            item.spec,
            _work(item),
            "" if item.attached is None else item.attached,
            _remark(item),
        )
        for item in items
    ]
    headings = ("NAME", "STATE", "DRIVER", "POLICY", "KERNEL", "WORK", "HERE", "")
    text = render.table(headings, rows, sys.stdout)
    if not render.has_colours(sys.stdout):
        return text
    lines = text.splitlines()
    for at, item in enumerate(items, start=1):
        colour = _STATE_COLOURS.get(item.state)
        if colour:
            lines[at] = render.paint(lines[at], colour, sys.stdout)
    return "\n".join(lines) + "\n"


def _work(item: shapes.LsItem) -> str:
    if item.running is None:
        return ""
    if not item.running and not item.queued:
        return item.execution_state or "idle"
    return f"{item.running} running" + (f", {item.queued} waiting" if item.queued else "")


def _remark(item: shapes.LsItem) -> str:
    if item.reason:
        return item.reason
    return "waits for input" if item.input_pending else ""


def status(args: argparse.Namespace) -> int:
    found = None if server_of(args) is not None else find(args)
    silent = None if found is None else _silent(found)
    if found is not None and not found.is_live and found.record is not None:
        shape = _past_status(found)
    elif silent is not None:
        shape = status_of(silent, silent.reason)
    else:
        with open_session(args) as session:
            shape = session.status()
    if wants_json(args):
        print_json(shape)
    else:
        print_text(_describe(shape))
    return exits.DONE


def _past_status(found: Found) -> shapes.Status:
    if found.record is None:
        raise AssertionError("a session that is not live was found by its record")
    return status_of(describe_past(found.record), found.liveness.reason)


def _silent(found: Found) -> shapes.LsItem | None:
    """What `ls` says of a session whose keeper is there and does not answer."""
    if not found.is_live or found.pointer is None or found.pointer.link is None:
        return None
    [answer] = ask_all([found.pointer])
    return describe(answer) if answer.liveness.state == "unresponsive" else None


def _describe(status: shapes.Status) -> str:
    lines: list[tuple[str, object]] = [
        ("state", _state(status)),
        ("driver", _driver(status)),
        ("policy", status.policy),
    ]
    lines += [
        ("running", _operation(item.operation, item.actor, item.preview, item.since))
        for item in status.running
    ]
    lines += [
        ("waiting", _operation(item.operation, item.actor, item.preview, item.since)) for item in status.queue
    ]
    if status.pending_input is not None:
        lines.append(("input", _prompt(status.pending_input)))
    lines += [("here", _presence(item)) for item in status.presence]
    lines += [
        ("kernel", f"{status.spec or status.kind} {status.kernel_id or ''}".strip()),
        ("processes", ", ".join(f"{item.pid} {item.name}".strip() for item in status.processes) or None),
        ("directory", status.cwd),
        ("workspace", status.workspace),
        ("group", status.group),
        ("journal", _journal(status.journal)),
        ("trust", status.level),
    ]
    return render.paint(render.one_line(status.name), "bold", sys.stdout) + "\n" + render.facts(lines)


def _state(status: shapes.Status) -> str:
    parts = [status.state, status.execution_state or "", f"({status.reason})" if status.reason else ""]
    text = " ".join(part for part in parts if part)
    if status.incarnation is not None and status.incarnation > 1:
        text += f", incarnation {status.incarnation}"
    return text


def _driver(status: shapes.Status) -> str | None:
    if status.generation is None:
        return None
    text = status.driver or "nobody: the floor is free"
    if status.driver and status.since is not None:
        text += f" since {when(status.since)}"
    text += f" (generation {status.generation}"
    if status.driver and status.lease is not None and status.lease.until_seconds is not None:
        text += f", lease {status.lease.until_seconds:.0f} s"
    return text + ")"


def _operation(operation: str, actor: str, preview: str, since: shapes.Time) -> str:
    text = f"{operation} by {actor}"
    if since is not None:
        text += f" since {when(since)}"
    return f"{text}: {render.one_line(preview, limit=60)}" if preview else text


def _prompt(prompt: shapes.Prompt) -> str:
    text = f"{prompt.operation} by {prompt.actor} waits for"
    return f"{text} a password" if prompt.password else f"{text} {prompt.prompt!r}"


def _presence(item: shapes.Presence) -> str:
    behalf = f" on behalf of {item.on_behalf_of}" if item.on_behalf_of else ""
    return f"{item.actor} ({item.kind}, {item.role}){behalf} by {item.transport} {item.client}".rstrip()


def _journal(head: shapes.JournalHead | None) -> str | None:
    if head is None:
        return None
    return f"{head.seq}:{head.hash}" + (f" in {head.path}" if head.path else "")


def when(moment: shapes.Time) -> str:
    """A time of the wire as a person reads it: local, with the date only when that is not today's."""
    try:
        if isinstance(moment, int | float):
            instant = datetime.fromtimestamp(moment, UTC)
        else:
            instant = datetime.fromisoformat(str(moment))
    except (ValueError, OverflowError, OSError):
        return str(moment)
    local = instant.astimezone()
    today = datetime.now(UTC).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")
