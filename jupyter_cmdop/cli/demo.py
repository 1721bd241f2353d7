"""The story with real processes: a person and an agent in one kernel, a take-over, and who did what."""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.client.session import Session

from . import render
from .exits import DONE, FAILED

PATIENCE_SECONDS = 45.0
STUCK_SECONDS = 1.5  # how long the person watches the agent's cell before she steps in
PERSON, AGENT, KEEPER = "person", "agent", "keeper"
_COLOURS = {PERSON: "green", AGENT: "cyan", KEEPER: "yellow"}
_FLOOR = ("claimed", "taken", "handed_back", "released", "freed", "stale", "resumed", "policy")


def run(args: argparse.Namespace) -> int:
    """Play the story; 0 when it went as told and the journal verifies."""
    name = f"demo-{secrets.token_hex(2)}"
    say(KEEPER, f"$ jupyter cmdop new {name} --policy turns")
    session = Session.create(name, policy="turns", client="jupyter cmdop demo")
    try:
        with session:
            return _play(session, name)
    finally:
        _close(name)


def _close(name: str) -> None:
    try:
        with Session.open(name, client="jupyter cmdop demo") as session:
            session.close(force=True)
    except ClientError as error:
        say(KEEPER, f"{name} had ended already: {error.message}")


def _play(session: Session, name: str) -> int:
    say(PERSON, "readings = [21.0, 21.4, None, 22.1]; calibration = None")
    session.run("readings = [21.0, 21.4, None, 22.1]\ncalibration = None")
    invite = session.invite("agent", kind="agent")
    say(KEEPER, f"$ jupyter cmdop invite {name} --as agent")
    floor = session.hand_back("agent", note="the mean, please")
    say(PERSON, f"hands over to the agent (generation {floor.generation})")
    agent = _start_agent(Path(invite.connection_file or ""))
    try:
        stuck = _wait_until_stuck(session)
        say(
            PERSON,
            f"the agent's cell {stuck} has run for {STUCK_SECONDS:.1f} s: it waits for what only I know",
        )
        taken = session.take("the calibration is mine to give", running="interrupt")
        gone = f"; superseded: {', '.join(taken.superseded)}" if taken.superseded else ""
        say(PERSON, f"takes over (generation {taken.generation}), interrupts {stuck}{gone}")
        session.wait(stuck, wait_seconds=PATIENCE_SECONDS)
        say(PERSON, "calibration = 1.02; readings[2] = 21.7")
        session.run("calibration = 1.02\nreadings[2] = 21.7")
        floor = session.hand_back("agent", note="calibration is there, and the gap is filled")
        say(PERSON, f"hands back (generation {floor.generation})")
        code = agent.wait(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        say(KEEPER, "the agent did not finish")
        code = 1
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
    session.wait(wait_seconds=PATIENCE_SECONDS)
    print()
    _print_story(session)
    report = session.verify()
    print()
    say(
        KEEPER,
        f"the journal is whole: {report.entries} entries, receipt {report.head_seq}:{(report.head_hash or '')[:16]}…"
        if report.ok
        else f"the journal is NOT whole: entry {report.first_bad}: {report.problem}",
    )
    return DONE if code == 0 and report.ok else FAILED


def _start_agent(connection_file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jupyter_cmdop.cli.demo_agent", str(connection_file)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def relay() -> None:
        if agent.stdout is not None:
            for line in agent.stdout:
                say(AGENT, line.rstrip())

    threading.Thread(target=relay, name="agent's output", daemon=True).start()
    return agent


def _wait_until_stuck(session: Session) -> str:
    """The agent's operation that does not end: the one behind which another of his waits."""
    for line in _follow(session):
        data = line.get("data") or {}
        if line["type"] == "delivered" and line.get("actor") == "agent":
            operation = str(line["operation"])
            result = session.wait(operation, wait_seconds=STUCK_SECONDS)
            if result.status == "running":
                return operation
        elif (
            line["type"] == "ended"
            and line.get("actor") == "agent"
            and data.get("outcome") not in ("ok", None)
        ):
            break
    raise ClientError("the agent did not get as far as the story says")


def _follow(session: Session) -> Iterator[Mapping[str, Any]]:
    with Session.open(session.id, client="jupyter cmdop demo") as other:
        yield from other.log(types=["delivered", "ended"], follow=True)


def _print_story(session: Session) -> None:
    """Who did what, from the journal alone."""
    entries = list(session.log(types=["admitted", "ended", "refused", "granted", *_FLOOR]))
    outcomes = {
        entry["operation"]: (entry.get("data") or {}).get("outcome", "")
        for entry in entries
        if entry["type"] == "ended"
    }
    rows: list[tuple[object, ...]] = []
    for entry in entries:
        data = entry.get("data") or {}
        if entry["type"] == "admitted":
            code = str(data.get("code", "")).strip().splitlines()
            what = code[0] + (" …" if len(code) > 1 else "") if code else ""
            rows.append(
                (entry["seq"], entry["actor"], entry["operation"], what, outcomes.get(entry["operation"], ""))
            )
        elif entry["type"] == "refused":
            rows.append((entry["seq"], entry["actor"] or "?", "", f"refused: {data.get('message', '')}", ""))
        elif entry["type"] != "ended":
            reason = f": {data['reason']}" if data.get("reason") else ""
            to = f" to {data['to']}" if data.get("to") not in (None, entry["actor"]) else ""
            to = f" {data.get('actor')}" if entry["type"] == "granted" else to
            word = "invited" if entry["type"] == "granted" else entry["type"].replace("_", " ")
            generation = f"generation {entry.get('generation')}"
            rows.append((entry["seq"], entry["actor"], "", f"{word}{to}{reason}", generation))
    cells = [[render.one_line(cell, limit=72) for cell in row] for row in rows]
    print(render.table(("SEQ", "WHO", "OPERATION", "WHAT", "OUTCOME"), cells, sys.stdout), end="")


def say(who: str, text: str) -> None:
    mark = render.paint(f"{who:>7} |", _COLOURS[who], sys.stdout)
    print(f"{mark} {render.several_lines(text)}", flush=True)
