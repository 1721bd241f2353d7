"""`new`, `rename`, `restart`, `close`: the life of a session."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.errors import (
    ClientError,
    KeeperGone,
    Refused,
    RequestFailed,
    SpawnFailed,
    UnknownSession,
)
from jupyter_cmdop.client.registry import Found, Registry
from jupyter_cmdop.client.spawn import READY_SECONDS, Progress, Spawned, spawn

from . import exits, render
from .opening import open_session, server_of
from .output import note, show, wants_json

if TYPE_CHECKING:
    from jupyter_cmdop.client.remote import Server

_POLL_SECONDS = 0.05


def new(args: argparse.Namespace) -> int:
    server = server_of(args)
    if server is not None:
        made = _made_there(server, args)
        show(args, made, _welcome(made))
        return exits.DONE
    try:
        made = _created(_spawn(args), args)
    except Refused as refused:
        if refused.refusal.code != "name_taken" or args.if_exists != "attach":
            raise
        made = _existing(args.name)
    show(args, made, _welcome(made))
    return exits.DONE


def _made_there(server: Server, args: argparse.Namespace) -> shapes.NewSession:
    if args.group is not None or args.setup is not None:
        raise RequestFailed(
            "bad_request",
            "--group and --setup are for sessions of this machine",
            next=("leave them out, and `run` the setup afterwards",),
        )
    return server.create(
        args.name,
        kernel=args.kernel,
        policy=args.policy,
        cwd=args.cwd,
        attach=args.if_exists == "attach" or None,
    )


def _spawn(args: argparse.Namespace) -> Spawned:
    return spawn(
        args.name,
        spec=args.kernel,
        policy=args.policy,
        cwd=args.cwd,
        group=args.group,
        setup=None if args.setup is None else _read_setup(args.setup),
        progress=_progress(args),
    )


def _read_setup(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpawnFailed(
            f"{path} cannot be read ({error.strerror})", next=("give --setup a file",)
        ) from error
    except UnicodeDecodeError as error:
        raise SpawnFailed(f"{path} is not UTF-8 text", next=("give --setup a file of code",)) from error


def _progress(args: argparse.Namespace) -> Progress | None:
    if wants_json(args) or not sys.stderr.isatty():
        return None
    return lambda passed_seconds: note(f"starting {args.kernel}: {passed_seconds:.0f} s")


def _created(spawned: Spawned, args: argparse.Namespace) -> shapes.NewSession:
    return shapes.NewSession(
        name=spawned.name,
        id=spawned.id,
        created=True,
        kernel_id=spawned.id,
        pid=spawned.pid,
        spec=args.kernel,
    )


def _existing(name: str) -> shapes.NewSession:
    """The session that has the name, once it has started: somebody else may be making it this moment."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        found = Registry.of_user().resolve(name)
        starting = found.pointer is not None and found.pointer.state == "starting"
        if not found.is_live or not starting:
            break
        if time.monotonic() > deadline:
            raise SpawnFailed(f"{name} is starting and did not become ready", next=("jupyter cmdop doctor",))
        time.sleep(_POLL_SECONDS)
    if found.pointer is None or not found.is_live:
        raise UnknownSession(
            name, reason=f"{name} ended while it started", next=(f"jupyter cmdop new {name}",)
        )
    return _of_pointer(found)


def _of_pointer(found: Found) -> shapes.NewSession:
    pointer = found.pointer
    if pointer is None:
        raise AssertionError("a live session has a pointer")
    return shapes.NewSession(
        name=pointer.name,
        id=pointer.id,
        kind=pointer.kind,
        created=False,
        kernel_id=pointer.id if pointer.kind == "kernel" else None,
        pid=pointer.pid,
        spec=pointer.spec,
    )


def _welcome(made: shapes.NewSession) -> str:
    name = render.one_line(made.name)
    process = f", process {made.pid}" if made.pid is not None else ""
    what = "is running" if made.created else "was there already"
    return (
        f"{name} {what} ({render.one_line(made.spec or made.kind)}{process})\n"
        f"  jupyter cmdop attach {name}              talk to it\n"
        f"  jupyter cmdop invite {name} --as ID      let somebody in\n"
        f"  jupyter cmdop close {name}               end it\n"
    )


def rename(args: argparse.Namespace) -> int:
    from jupyter_cmdop.core.actor import check_session_name

    check_session_name(args.new_name)
    with open_session(args) as session:
        shape = session.rename(args.new_name)
    show(args, shape, f"{render.one_line(args.name)} is called {render.one_line(shape.name)} now")
    return exits.DONE


def restart(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        shape = session.restart()
        name = session.name
    show(args, shape, f"{render.one_line(name)} has a new kernel (incarnation {shape.incarnation})")
    return exits.DONE


def close(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        name, session_id = session.name, session.id
        shape = session.close(force=args.force)
    _await_end(session_id, server_of(args))
    ended = ", ".join(str(pid) for pid in shape.ended)
    text = f"{render.one_line(name)} is closed" + (f" (ended: {ended})" if ended else "")
    show(args, shape, f"{text}\n  jupyter cmdop log {render.one_line(name)}    what happened in it")
    return exits.DONE


def _await_end(session_id: str, server: Server | None) -> None:
    """Wait until the name is free: the keeper removes its pointer after it has answered."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            if not _is_live(session_id, server):
                return
        except KeeperGone:
            pass  # it is about to end
        except ClientError:
            return
        time.sleep(_POLL_SECONDS)


def _is_live(session_id: str, server: Server | None) -> bool:
    if server is None:
        return Registry.of_user().resolve(session_id).is_live
    from jupyter_cmdop.client.remote_session import RemoteSession

    with RemoteSession.reach(server, session_id) as session:
        return not session.has_ended
