"""One event being handled: the state it meets, the moment, and what comes of it, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from . import effects as fx
from .actor import Actor
from .effects import Effect
from .events import Event
from .grants import Attachment, Right
from .operations import Operation
from .refusal import Refusal
from .state import State

Author = Attachment | Operation | Actor | None
"""Who an entry names: a connection that acts, an operation (its author's), or an actor alone."""


@dataclass(slots=True)
class Turn:
    """Lives as long as one call of `Session.handle`."""

    state: State
    now: float
    effects: list[Effect] = field(default_factory=list)

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def note(
        self,
        entry: str,
        author: Author,
        *,
        operation: str | None = None,
        attachment: str | None = None,
        grant: str | None = None,
        request_id: str | None = None,
        basis: Literal["intended", "attempted", "observed", "reported"] = "observed",
        durable: bool = False,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Add an entry. What is known of its author's way in comes from `author`."""
        actor, via, facts = author, None, dict(data or {})
        if isinstance(author, Attachment):
            actor, attachment, via = author.actor, author.id, author.via
            grant = grant or author.grant
            if author.client and not author.persistent:
                facts.setdefault("client", author.client)  # it has no entry `attached` that says so
        elif isinstance(author, Operation):
            actor, attachment, operation = author.actor, author.attachment, author.id
            grant = grant or author.grant
        self.do(
            fx.Record(
                entry,
                actor if isinstance(actor, Actor) else None,
                operation,
                attachment,
                grant,
                request_id,
                basis,
                via,
                durable,
                facts,
                self.state.floor.generation,
            )
        )

    # ------------------------------------------------------------------ refusing

    def attachment(self, event: Event) -> Attachment | None:
        """The attachment that an event names; None when it has ended, and the event has been refused."""
        found = self.state.attachments.get(getattr(event, "attachment", ""))
        if found is None:
            self.reject(None, event, "revoked", "this connection has ended", next_=("attach again",))
        return found

    def attachment_with(self, event: Event, right: Right) -> Attachment | None:
        """The same, when it has the right."""
        attachment = self.attachment(event)
        if attachment is None or right in attachment.rights:
            return attachment
        message = f"{attachment.actor.id} has not the right {right!r} here"
        self.reject(attachment, event, "forbidden", message, next_=("ask the owner",))
        return None

    def reject(
        self,
        attachment: Attachment | None,
        event: Event,
        code: str,
        message: str,
        *,
        next_: tuple[str, ...] = (),
    ) -> None:
        self.refuse(attachment, event, self.state.refusal(code, message, next_=next_))

    def refuse(self, attachment: Attachment | None, event: Event, refusal: Refusal) -> None:
        """A refused attempt is an entry of its own, and no operation."""
        data = {
            "code": refusal.code,
            "message": refusal.message,
            "what": getattr(event, "message_type", type(event).__name__.lower()),
        }
        self.note(
            "refused",
            attachment,
            attachment=getattr(
                event, "attachment", None
            ),  # also when it has ended, and nobody knows whose it was
            request_id=getattr(event, "request_id", None),
            basis="intended",
            data=data,
        )
        self.do(fx.Reject(refusal))
