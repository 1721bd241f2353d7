"""Messages that the kernel would have sent, where the keeper answers in its place.

A client that is refused, superseded or answered from a cache must see what it would see from a kernel: busy, perhaps an
error, its reply, idle; all with the kernel's own header session, because clients drop what bears another one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core.refusal import Refusal
from ..wire.kernel import encode_json

PROTOCOL_VERSION = "5.4"

Parts = list[bytes]
"""Header, parent, metadata, content."""


def make_header(
    message_type: str, *, session: str, username: str, msg_id: str | None = None, lane: str = ""
) -> bytes:
    return encode_json(
        {
            **({"subshell_id": lane} if lane else {}),
            "msg_id": msg_id or f"{session}_{uuid.uuid4().hex[:12]}",
            "msg_type": message_type,
            "session": session,
            "username": username,
            "date": datetime.now(UTC).isoformat(),
            "version": PROTOCOL_VERSION,
        }
    )


@dataclass(slots=True)
class Voice:
    """Speaks as the kernel of one incarnation."""

    session: str

    def say(
        self, message_type: str, parent: bytes, content: dict[str, Any] | bytes, metadata: bytes
    ) -> Parts:
        raw = content if isinstance(content, bytes) else encode_json(content)
        return [make_header(message_type, session=self.session, username="kernel"), parent, metadata, raw]

    def status(self, state: str, parent: bytes, metadata: bytes) -> Parts:
        return self.say("status", parent, {"execution_state": state}, metadata)


def refusal_content(refusal: Refusal) -> dict[str, Any]:
    """A refusal as the content of an error reply: any client shows its sentence."""
    return error_content(refusal.code, _sentence(refusal))


def error_content(code: str, sentence: str, *, status: str = "error") -> dict[str, Any]:
    return {
        "status": status,
        "ename": f"cmdop.{code}",
        "evalue": sentence,
        "traceback": [f"cmdop.{code}: {sentence}"],
    }


def _sentence(refusal: Refusal) -> str:
    hint = f" (next: {'; '.join(refusal.next)})" if refusal.next else ""
    return refusal.message + hint


def detach_content(execution_count: int) -> dict[str, Any]:
    """The reply to a cell that is just `exit`: the client leaves, the kernel stays (payload of the messaging spec)."""
    return {
        "status": "ok",
        "execution_count": execution_count,
        "user_expressions": {},
        "payload": [{"source": "ask_exit", "keepkernel": True}],
    }
