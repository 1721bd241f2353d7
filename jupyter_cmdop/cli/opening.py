"""From the arguments of a verb to a session, or to what is left of one."""

from __future__ import annotations

import argparse

from jupyter_cmdop.client.identity import Identity, identify
from jupyter_cmdop.client.registry import Found, Registry
from jupyter_cmdop.client.session import Session


def identity_of(args: argparse.Namespace) -> Identity:
    return identify(actor=args.as_actor, kind=args.as_kind, grant_file=args.grant_file)


def open_session(args: argparse.Namespace, *, persistent: bool = False) -> Session:
    return Session.open(
        args.name, identity=identity_of(args), client=f"jupyter cmdop {args.verb}", persistent=persistent
    )


def find(args: argparse.Namespace) -> Found:
    """What NAME stands for, live or past."""
    return Registry.of_user().resolve(args.name)
