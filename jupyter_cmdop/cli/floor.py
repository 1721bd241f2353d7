"""`take`, `hand-back`, `release`, `policy`: who may type."""

from __future__ import annotations

import argparse

from jupyter_cmdop.client import shapes

from . import exits, render
from .opening import open_session
from .output import show


def take(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        floor = session.take(args.reason, running=args.running, queue=args.queue, lease_seconds=args.lease)
    show(args, floor, _describe(floor))
    return exits.DONE


def hand_back(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        floor = session.hand_back(args.to, note=args.note)
    show(args, floor, _describe(floor))
    return exits.DONE


def release(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        floor = session.release()
    show(args, floor, _describe(floor))
    return exits.DONE


def policy(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        floor = session.policy(args.policy)
    show(args, floor, _describe(floor))
    return exits.DONE


def _describe(floor: shapes.Floor) -> str:
    who = f"{floor.driver} drives" if floor.driver else "the floor is free"
    lines = [f"{who} (generation {floor.generation}, policy {floor.policy})"]
    for what, operations in (
        ("given back to their authors", floor.superseded),
        ("taken over", floor.adopted),
        ("still running", floor.running),
    ):
        if operations:
            lines.append(f"  {what}: {', '.join(operations)}")
    return "\n".join(render.one_line(line) for line in lines)
