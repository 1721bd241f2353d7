"""From the arguments of a verb to a session, here or behind a server, or to what is left of one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_cmdop.client.errors import RequestFailed
from jupyter_cmdop.client.identity import Identity, identify
from jupyter_cmdop.client.registry import Found, Registry
from jupyter_cmdop.client.session import Session

from .output import note

if TYPE_CHECKING:
    from jupyter_cmdop.client.remote import Server


def identity_of(args: argparse.Namespace) -> Identity:
    return identify(actor=args.as_actor, kind=args.as_kind, grant_file=args.grant_file)


def server_of(args: argparse.Namespace) -> Server | None:
    """The server that `--url`, CMDOP_URL or the grant file name; None for the sessions of this machine."""
    if not hasattr(args, "server"):
        args.server = _find_server(args)  # once: a credential may come from a pipe
    server: Server | None = args.server
    return server


def _find_server(args: argparse.Namespace) -> Server | None:
    url = args.url or os.environ.get("CMDOP_URL")
    path = args.grant_file
    if path is None and (url or not args.as_actor):  # as `identify`: what is said by hand wins
        path = os.environ.get("CMDOP_GRANT_FILE")
    if not url and not args.ca_file and not (path and os.path.isfile(os.path.expanduser(path))):
        return None
    from jupyter_cmdop.client.remote import Server, checked_url, read_credential

    credential = read_credential(Path(path).expanduser()) if path else None
    url = url or (None if credential is None else credential.url)
    if not url:
        if args.ca_file:
            raise RequestFailed("bad_request", "--ca-file is for a server", next=("--url https://…",))
        return None
    return Server(checked_url(url), credential, args.ca_file or os.environ.get("CMDOP_CA_FILE"))


def open_session(args: argparse.Namespace, *, persistent: bool = False) -> Session:
    client = f"jupyter cmdop {args.verb}"
    server = server_of(args)
    if server is None:
        return Session.open(args.name, identity=identity_of(args), client=client, persistent=persistent)
    from jupyter_cmdop.client.remote_session import RemoteSession

    identity = Identity(actor=args.as_actor, kind=args.as_kind)
    session = RemoteSession.reach(server, args.name, identity=identity, client=client, persistent=persistent)
    session.tell = note
    return session


def find(args: argparse.Namespace) -> Found:
    """What NAME stands for, live or past."""
    return Registry.of_user().resolve(args.name)


def find_past(args: argparse.Namespace) -> Found | None:
    """What is left of a session of this machine that has ended; None where its keeper, or a server, is to be asked."""
    if server_of(args) is not None:
        return None
    found = find(args)
    return None if found.is_live else found
