"""`invite`, `grants`, `revoke`: who has been let in."""

from __future__ import annotations

import argparse
import shlex
import sys

from jupyter_cmdop.client import shapes

from . import exits, render
from .opening import open_session
from .output import print_json, print_text, show, wants_json


def invite(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        shape = session.invite(
            args.invitee,
            kind=args.invitee_kind,
            role=args.role,
            expires_seconds=args.expires,
            transport=args.transport,
        )
        name = session.name
    show(args, shape, _describe(shape, name))
    return exits.DONE


def _describe(invite: shapes.Invite, name: str) -> str:
    until = f"until {invite.expires}" if invite.expires else "until it is revoked"
    lines = [f"{invite.actor} ({invite.kind}, {invite.role}) may come in {until}:"]
    if invite.connection_file:
        path = shlex.quote(invite.connection_file)
        lines.append(f"  jupyter console --existing {path}")
        lines.append(f"  CMDOP_GRANT_FILE={path} jupyter cmdop run {name} CODE")
    lines.append(f"  jupyter cmdop revoke {name} {invite.grant}    ends it")
    return "\n".join(render.one_line(line) for line in lines)


def grants(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        items = session.grants()
    if wants_json(args):
        print_json(shapes.Grants(grants=items))
    elif items:
        rows = [
            (
                item.grant,
                item.actor,
                item.kind,
                item.role,
                item.transport,
                item.expires or "never",
                _connected(item.connected),
            )
            for item in items
        ]
        headings = ("GRANT", "ACTOR", "KIND", "ROLE", "BY", "EXPIRES", "CONNECTED")
        print_text(render.table(headings, rows, sys.stdout))
    else:
        print_text("nobody has been let in; next: jupyter cmdop invite NAME --as ID")
    return exits.DONE


def _connected(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def revoke(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        shape = session.revoke(args.grant)
    ended = ", ".join(shape.grant) if isinstance(shape.grant, list) else shape.grant
    show(args, shape, render.one_line(f"{ended} of {shape.actor} is revoked"))
    return exits.DONE
