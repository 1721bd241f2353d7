"""Plays a scenario file: commands, `----`, all that came of them.

A block is one or more commands, a line `----`, and the output, up to an empty line. Lines that begin with `#` are for
the reader. Commands (an argument in brackets may be left out; `key=value` sets one of the rest):

    session POLICY                      begin; ann is the owner, bob and bot are peers, eve observes
    attach ACTOR [as=NAME] [grant=G]    a connection that stays; its name is the actor's, if no other is given
    call ACTOR as=NAME                  a connection of one command line call: no presence
    detach NAME
    invite ACTOR grant=G by=NAME [expires=SECONDS]
    run NAME CODE [client=C] [msg=M] [request=R] [generation=N] [lane=L] [act=yes] [composed=before]
    slider NAME                         a widget is moved: implicit input
    take NAME [reason=R] [running=interrupt] [queue=adopt] [lease=SECONDS]
    hand-back NAME [to=ACTOR]           release NAME
    policy NAME POLICY                  interrupt NAME [OPERATION]
    answer NAME [prompt=P] [client=C]   with a client: as a stock client does, for its own cell
    revoke NAME G                       restart NAME        close NAME [force=yes]
    ready INCARNATION                   died REASON [restarts=no]
    ok OPERATION                        error OPERATION     the backend has answered and is idle
    reply OPERATION STATUS              idle OPERATION      one without the other
    ask OPERATION PROMPT                a cell calls input()
    wait SECONDS                        time passes
    status                              who drives, what runs, what waits

One line of output is one effect, in order; `.` stands for none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.grants import attachment_of_grant
from tests.core.stage import Stage

SEPARATOR = "----"
OPTION = re.compile(
    "(as|grant|by|expires|client|msg|request|generation|lane|act|composed|reason|running|queue|lease|to|prompt"
    "|force|restarts)="
)


@dataclass
class Block:
    """Comments and commands, and what they are said to give."""

    commands: list[str]
    expected: list[str]
    is_closed: bool = False

    def text(self, output: list[str]) -> str:
        return "\n".join([*self.commands, SEPARATOR, *output] if self.is_closed else self.commands)


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    for chunk in text.strip().split("\n\n"):
        lines = chunk.splitlines()
        if SEPARATOR in lines:
            at = lines.index(SEPARATOR)
            blocks.append(Block(lines[:at], lines[at + 1 :], is_closed=True))
        else:
            blocks.append(Block(lines, []))
    return blocks


def play(path: Path) -> tuple[str, str]:
    """Play a file.

    Returns:
        Its text as it is, and as it should be.
    """
    text = path.read_text(encoding="utf-8")
    player, blocks = Player(), []
    for block in parse(text):
        output: list[str] = []
        for line in block.commands:
            if not line.startswith("#"):
                output += player.do(line)
        blocks.append(block.text(output or ["."]))
    return text, "\n\n".join(blocks) + "\n"


class Player:
    """Carries out the commands of one scenario."""

    stage: Stage

    def do(self, line: str) -> list[str]:
        verb, *words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words if OPTION.match(word))
        method: Callable[..., list[str] | Iterable[fx.Effect]] = getattr(self, "_" + verb.replace("-", "_"))
        result = method(*[word for word in words if not OPTION.match(word)], **options)
        return [shown for item in result for shown in ([item] if isinstance(item, str) else show(item))]

    def _session(self, policy: Any) -> list[str]:
        self.stage = Stage(policy)
        return []

    def _attach(self, actor: str, **options: str) -> list[fx.Effect]:
        grant = options.get("grant")
        name = options.get("as") or (attachment_of_grant(grant) if grant else actor)
        return self._attached(actor, name, grant=grant)

    def _call(self, actor: str, **options: str) -> list[fx.Effect]:
        return self._attached(actor, options["as"], persistent=False, client="cli")

    def _attached(self, actor: str, name: str, **fields: Any) -> list[fx.Effect]:
        self.stage.attach(actor, name, **fields)
        return self.stage.last

    def _detach(self, name: str) -> list[fx.Effect]:
        return self.stage.do(ev.Detach(name))

    def _invite(self, actor: str, *, grant: str, by: str, expires: str = "") -> list[fx.Effect]:
        self.stage.invite(actor, grant, by=by, expires=self.stage.now + float(expires) if expires else None)
        return []

    def _run(self, name: str, code: str, **options: str) -> list[fx.Effect]:
        fields: dict[str, Any] = {"client": options.get("client", ""), "msg_id": options.get("msg", "")}
        if "generation" in options:
            fields["generation"] = int(options["generation"])
        fields["request_id"] = options.get("request")
        fields["lane"] = options.get("lane", "")
        fields["act"] = "act" in options
        fields["composed_before"] = "composed" in options
        return self.stage.run(name, code, **fields)

    def _slider(self, name: str) -> list[fx.Effect]:
        return self.stage.move_slider(name)

    def _take(self, name: str, *, lease: str = "", **options: Any) -> list[fx.Effect]:
        return self.stage.do(ev.Take(name, lease_seconds=float(lease) if lease else None, **options))

    def _hand_back(self, name: str, **options: Any) -> list[fx.Effect]:
        return self.stage.do(ev.HandBack(name, **options))

    def _release(self, name: str) -> list[fx.Effect]:
        return self.stage.do(ev.Release(name))

    def _policy(self, name: str, policy: Any) -> list[fx.Effect]:
        return self.stage.do(ev.SetPolicy(name, policy))

    def _interrupt(self, name: str, operation: str | None = None) -> list[fx.Effect]:
        return self.stage.do(ev.Interrupt(name, operation))

    def _answer(self, name: str, *, prompt: str | None = None, client: str | None = None) -> list[fx.Effect]:
        return self.stage.do(ev.Answer(name, prompt, client_session=client, stock=client is not None))

    def _revoke(self, name: str, grant: str) -> list[fx.Effect]:
        return self.stage.do(ev.Revoke(name, grant))

    def _restart(self, name: str) -> list[fx.Effect]:
        return self.stage.do(ev.Lifecycle(name, "restart"))

    def _close(self, name: str, *, force: str = "") -> list[fx.Effect]:
        return self.stage.do(ev.Lifecycle(name, "close", force=bool(force)))

    def _ready(self, incarnation: str) -> list[fx.Effect]:
        return self.stage.do(ev.BackendReady(int(incarnation)))

    def _died(self, reason: str, *, restarts: str = "yes") -> list[fx.Effect]:
        return self.stage.do(ev.BackendDied(reason, will_restart=restarts == "yes"))

    def _ok(self, operation: str) -> list[fx.Effect]:
        return self.stage.finish(operation)

    def _error(self, operation: str) -> list[fx.Effect]:
        return self.stage.finish(operation, "error")

    def _reply(self, operation: str, status: Any) -> list[fx.Effect]:
        return self.stage.do(ev.Replied(operation, status))

    def _idle(self, operation: str) -> list[fx.Effect]:
        return self.stage.do(ev.Idle(operation))

    def _ask(self, operation: str, prompt: str) -> list[fx.Effect]:
        return self.stage.ask(operation, prompt)

    def _wait(self, seconds: str) -> list[fx.Effect]:
        return self.stage.wait(float(seconds))

    def _status(self) -> list[str]:
        session, floor = self.stage.session, self.stage.session.floor
        driver = f" by {floor.driver}" if floor.driver else ""
        lines = [
            f"{session.policy}, {floor.state.value}{driver}, generation {floor.generation}, {session.backend}"
        ]
        for operation in (*session.running(), *session.queued()):
            adopted = f", adopted by {operation.adopted_by}" if operation.adopted_by else ""
            lines.append(f"{operation.id} of {operation.actor.id}: {operation.state}{adopted}")
        return lines


# ---------------------------------------------------------------------- output


def show(effect: fx.Effect) -> list[str]:
    """One effect as a line. An announcement says again, to those who watch, what its entry says: it is left out."""
    match effect:
        case fx.Announce():
            return []
        case fx.Record():
            return [_show_record(effect)]
        case fx.Reject():
            return [f"refused: {effect.refusal.code}: {effect.refusal.message}"]
        case fx.Deliver():
            lane = f" in {effect.lane}" if effect.lane else ""
            return [f"-> backend: {effect.operation}{lane} under generation {effect.generation}"]
        case fx.Fence():
            return [f"-> backend: nothing below generation {effect.generation}"]
        case fx.Forward():
            return [f"-> backend: passed on under generation {effect.generation}"]
        case fx.InterruptBackend():
            return [f"-> backend: interrupt {effect.operation}"]
        case fx.SendAnswer():
            return [f"-> backend: answer to {effect.prompt} of {effect.operation}"]
        case fx.RestartBackend() | fx.StopBackend():
            return [f"-> backend: {type(effect).__name__.removesuffix('Backend').lower()}"]
        case fx.Admitted():
            return [f"admitted: {effect.operation}"]
        case fx.Duplicate():
            return [f"duplicate: the result of {effect.operation}"]
        case fx.End():
            by, why = f" by {effect.by}" if effect.by else "", f" ({effect.reason})" if effect.reason else ""
            return [f"-> author: {effect.operation} {effect.outcome}{by}{why}"]
        case fx.ShowPrompt():
            where = "its author and all" if effect.to_author else "all but its author"
            return [f"-> {where}: {effect.operation} asks {effect.prompt}"]
        case fx.Tell():
            why = f" ({effect.reason})" if effect.reason else ""
            return [f"-> {effect.actor}: lost the floor to {effect.by or 'nobody'}{why}"]
        case fx.OpenGrant() | fx.CloseGrant():
            return [f"-> grant {effect.grant}: {'open' if isinstance(effect, fx.OpenGrant) else 'close'}"]
        case _:
            raise AssertionError(f"a scenario does not know {effect}")


def _show_record(record: fx.Record) -> str:
    """`entry! actor operation key=value …`; `!` where it must be on disk before what follows."""
    left_out = {"message", "class", "digest", "lane", "msg_id", "client_session", "kind", "transport", "what"}
    facts = [
        f"{key}={value}"
        for key, value in record.data.items()
        if key not in left_out and value not in ("", None)
    ]
    if record.attachment and record.actor and record.attachment != record.actor.id:
        facts.insert(0, f"through={record.attachment}")
    who = record.actor.id if record.actor else "?"
    words = [record.type + ("!" if record.durable else ""), who, record.operation or "", *facts]
    return "entry: " + " ".join(word for word in words if word)
