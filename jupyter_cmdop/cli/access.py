"""`invite`, `grants`, `revoke`: who has been let in."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.errors import GrantFileError

from . import exits, render
from .opening import open_session, server_of
from .output import print_json, print_text, show, wants_json

if TYPE_CHECKING:
    from jupyter_cmdop.client.remote import Server
    from jupyter_cmdop.client.session import Session


def invite(args: argparse.Namespace) -> int:
    with open_session(args) as session, _grant_file(args.grant_file_out) as write:
        shape = session.invite(
            args.invitee,
            kind=args.invitee_kind,
            role=args.role,
            expires_seconds=args.expires,
            transport=args.transport,
        )
        name = session.name
        server = server_of(args)
        write(_grant_of(shape, session, None if server is None else server.url))
    if args.grant_file_out is None:
        show(args, shape, _describe(shape, name, is_here=server is None))
    elif args.grant_file_out != "-":
        show(args, shape, _describe_file(shape, name, args.grant_file_out, server))
    return exits.DONE


@contextmanager
def _grant_file(path: str | None) -> Iterator[Callable[[str], None]]:
    """A way to write the grant; the file is made before there is one, and is gone again when there is none."""
    if path is None:
        yield lambda text: None
        return
    if path == "-":
        yield print_text
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GrantFileError(
            f"{path} cannot be made ({error.strerror})",
            next=("--grant-file-out with the name of a new file",),
        ) from error
    with open(descriptor, "w", encoding="utf-8") as file:
        try:
            yield file.write  # type: ignore[misc]  # how much was written interests nobody
        except BaseException:
            os.unlink(path)
            raise


def _grant_of(invite: shapes.Invite, session: Session, url: str | None) -> str:
    """One line that can be pasted: the credential, and nothing that is of use only on this machine."""
    grant = {
        "session": session.id,
        "name": session.name,
        "grant": invite.grant,
        "actor": invite.actor,
        "kind": invite.kind,
        "role": invite.role,
        "token": invite.token,
    }
    return json.dumps({"cmdop": grant, **({} if url is None else {"url": url})}) + "\n"


def _describe_file(invite: shapes.Invite, name: str, path: str, server: Server | None) -> str:
    url = "URL" if server is None else server.url
    return "\n".join(
        (
            render.one_line(
                f"{invite.actor} ({invite.kind}, {invite.role}) may come in {_until(invite)}, with {path}:"
            ),
            render.one_line(f"  jupyter cmdop --url {url} --grant-file FILE status {name}"),
            render.one_line(f"  jupyter cmdop revoke {name} {invite.grant}    ends it"),
        )
    )


def _until(invite: shapes.Invite) -> str:
    return f"until {invite.expires}" if invite.expires else "until it is revoked"


def _describe(invite: shapes.Invite, name: str, *, is_here: bool) -> str:
    lines = [f"{invite.actor} ({invite.kind}, {invite.role}) may come in {_until(invite)}:"]
    if not is_here:
        lines.append(
            "  its connection file is on the server; --grant-file-out FILE writes what opens it by --url"
        )
    elif invite.connection_file:
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
