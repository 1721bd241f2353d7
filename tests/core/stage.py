"""A session on a stage: a clock that is moved by hand, actors with connections, a backend that obeys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.grants import Attachment, Grant, Role, attachment_of_grant
from jupyter_cmdop.core.operations import Operation, ReplyStatus
from jupyter_cmdop.core.policy import InputClass, PolicyName
from jupyter_cmdop.core.refusal import Refusal
from jupyter_cmdop.core.session import Session
from tests.core.contract import Contract

ACTORS = {
    "ann": Actor("ann", "human", "Ann"),
    "bob": Actor("bob", "human", "Bob"),
    "bot": Actor("bot", "agent", "Bot", on_behalf_of="ann"),
    "eve": Actor("eve", "human", "Eve"),
}
"""ann is the owner; bob and bot are peers; eve observes."""
ROLES: dict[str, Role] = {"ann": "owner", "bob": "peer", "bot": "peer", "eve": "observer"}


class Effects(list[fx.Effect]):
    """What came of one event."""

    def of(self, *kinds: type) -> list[Any]:
        return [effect for effect in self if isinstance(effect, kinds)]

    @property
    def entries(self) -> list[str]:
        return [record.type for record in self.of(fx.Record)]

    def entry(self, kind: str) -> fx.Record:
        (found,) = [record for record in self.of(fx.Record) if record.type == kind]
        return found

    @property
    def refusal(self) -> Refusal | None:
        return next((effect.refusal for effect in self.of(fx.Reject)), None)

    @property
    def code(self) -> str | None:
        return None if self.refusal is None else self.refusal.code

    @property
    def admitted(self) -> str:
        (found,) = self.of(fx.Admitted)
        return str(found.operation)

    @property
    def delivered(self) -> list[str]:
        return [effect.operation for effect in self.of(fx.Deliver)]

    @property
    def ends(self) -> dict[str, str]:
        return {effect.operation: effect.outcome for effect in self.of(fx.End)}


class Stage:
    """Every event passes `do`, which checks the contract."""

    def __init__(self, policy: PolicyName = "turns", *, is_ready: bool = True) -> None:
        self.session = Session(owner=ACTORS["ann"], policy=policy)
        self.contract = Contract(self.session)
        self.now = 1000.0
        self.last = Effects()
        self._count = 0
        if is_ready:
            self.do(ev.BackendReady(1))

    def do(self, event: ev.Event) -> Effects:
        effects = self.session.handle(event, self.now)
        self.contract.check(event, effects, self.now)
        self.last = Effects(effects)
        return self.last

    def wait(self, seconds: float) -> Effects:
        """Let time pass; timers run when they are due, as in the keeper's loop."""
        until, effects = self.now + seconds, Effects()
        while (due := self.session.next_timer()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.session.handle_timer(self.now)
        self.now = until
        self.contract.check(None, effects, self.now)
        return effects

    # ------------------------------------------------------------------ connections

    def attach(
        self, actor: str, name: str = "", *, role: Role | None = None, grant: str | None = None, **fields: Any
    ) -> str:
        """Connect an actor.

        Returns:
            The attachment's id: `name`, or the actor's.
        """
        made = Attachment(name or actor, ACTORS[actor], role or ROLES[actor], "link", grant, **fields)
        self.do(ev.Attach(made))
        return made.id

    def act_as(self, actor: str, **fields: Any) -> str:
        """The connection of one command line call: an act, and no presence."""
        self._count += 1
        return self.attach(actor, f"{actor}-call-{self._count}", persistent=False, client="cli", **fields)

    def invite(self, actor: str, grant: str, *, by: str, expires: float | None = None) -> str:
        """Give an actor a grant and let his first client of it connect."""
        given = Grant(grant, ACTORS[actor], ROLES[actor], "ipc", expires)
        assert self.do(ev.Invite(by, given)).code is None
        return self.attach(actor, attachment_of_grant(grant), grant=grant)

    # ------------------------------------------------------------------ input

    def send(
        self,
        attachment: str,
        message_type: str,
        input_class: InputClass,
        *,
        executes: bool = False,
        client: str = "",
        msg_id: str = "",
        **fields: Any,
    ) -> Effects:
        self._count += 1
        return self.do(
            ev.Submit(
                attachment,
                client or f"client-of-{attachment}",
                msg_id or f"m{self._count}",
                message_type,
                input_class,
                executes,
                **fields,
            )
        )

    def run(self, attachment: str, code: str = "1", **fields: Any) -> Effects:
        """A cell."""
        return self.send(
            attachment, "execute_request", InputClass.EXPLICIT, executes=True, digest=f"sha:{code}", **fields
        )

    def silent(self, attachment: str, code: str = "1", **fields: Any) -> Effects:
        """A silent execute: implicit, and an operation."""
        return self.send(
            attachment, "execute_request", InputClass.IMPLICIT, executes=True, digest=f"sha:{code}", **fields
        )

    def move_slider(self, attachment: str, **fields: Any) -> Effects:
        return self.send(attachment, "comm_msg", InputClass.IMPLICIT, **fields)

    def look(self, attachment: str) -> Effects:
        return self.send(attachment, "is_complete_request", InputClass.READING)

    def complete(self, attachment: str) -> Effects:
        return self.send(attachment, "complete_request", InputClass.PEER_READING)

    # ------------------------------------------------------------------ the backend

    def finish(self, operation: str, status: ReplyStatus = "ok") -> Effects:
        effects = self.do(ev.Replied(operation, status, None if status == "ok" else "ValueError"))
        return Effects(effects + self.do(ev.Idle(operation)))

    def finish_all(self) -> list[str]:
        """Let the backend work off what it has and gets.

        Returns:
            The operations in the order in which they were delivered.
        """
        done: list[str] = []
        while running := self.session.running():
            done.append(running[0].id)
            self.finish(running[0].id)
        return done

    def ask(
        self, operation: str, prompt: str = "p1", text: str = "name? ", *, password: bool = False
    ) -> Effects:
        return self.do(ev.Prompted(operation, prompt, text, password))

    # ------------------------------------------------------------------ looking

    def op(self, operation: str) -> Operation:
        return self.session.operations[operation]

    @property
    def floor(self) -> tuple[str, str | None]:
        return self.session.floor.state.value, self.session.floor.driver

    @property
    def generation(self) -> int:
        return self.session.floor.generation

    def authors_of_queue(self) -> Sequence[str]:
        return [op.actor.id for op in self.session.queued()]
