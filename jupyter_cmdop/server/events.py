"""What the server's event bus (`/api/events/subscribe`) tells of sessions: the schemas, and their emission.

`session` is told by the kernel manager. `floor` and `operation` are told from the journal: each is an entry that a
keeper has recorded, reduced to the keys below. What is typed and what comes out is never among them.

Beside them there is Jupyter's own `kernel_actions`, which tells of what is done to kernels through this server.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException
from jupyter_server import DEFAULT_EVENTS_SCHEMA_PATH

from jupyter_cmdop.client.errors import ClientError, Refused

from .errors import http_error

if TYPE_CHECKING:
    from .session_kernel import SessionKernel

log = logging.getLogger(__name__)

REASON_CHARACTERS: Final = 500
FLOOR_TYPES: Final = ("taken", "claimed", "handed_back", "released", "freed", "stale", "resumed")
OPERATION_TYPES: Final = ("admitted", "ended", "refused")
JOURNAL_TYPES: Final = (*FLOOR_TYPES, *OPERATION_TYPES)
"""The entries that are told."""
_WORD = re.compile(r"[a-z_]{1,64}", re.ASCII)

_OF_A_SESSION: dict[str, Any] = {
    "session": {"title": "Its name", "type": "string"},
    "kernel_id": {"title": "Its id, which is the id of its kernel as well", "type": "string"},
}
_OF_AN_ENTRY: dict[str, Any] = {
    "seq": {"title": "Number of the entry in the session's journal", "type": "integer"},
    "actor": {
        "title": "Id of the actor who did it; for `ended`, of the operation's author",
        "type": "string",
    },
    "generation": {"title": "The generation in force", "type": "integer"},
}

SESSION_SCHEMA_ID = "https://events.jupyter.org/jupyter_cmdop/session/v1"
SESSION_SCHEMA: dict[str, Any] = {
    "$id": SESSION_SCHEMA_ID,
    "version": "1",
    "title": "A session began, ended, or does not answer",
    "description": "A session that this Jupyter server shows was started, was closed, was lost, or "
    "does not answer (its kernel or its keeper) or answers again.",
    "personal-data": False,
    "type": "object",
    "required": ["action", "session", "kernel_id"],
    "properties": {
        "action": {
            "title": "What happened",
            "enum": ["started", "closed", "lost", "unresponsive", "responsive"],
        },
        **_OF_A_SESSION,
        "kernel_name": {"title": "Name of the kernel specification", "type": "string"},
        "message": {"title": "Why, in words", "type": "string"},
    },
}

FLOOR_SCHEMA_ID = "https://events.jupyter.org/jupyter_cmdop/floor/v1"
FLOOR_SCHEMA: dict[str, Any] = {
    "$id": FLOOR_SCHEMA_ID,
    "version": "1",
    "title": "The floor of a session moved",
    "description": "The right to send input was taken, claimed or given up, or its driver was away or came back.",
    "personal-data": True,
    "type": "object",
    "required": ["action", "session", "kernel_id", "seq"],
    "properties": {
        "action": {"title": "What happened, in the journal's word", "enum": list(FLOOR_TYPES)},
        **_OF_A_SESSION,
        **_OF_AN_ENTRY,
        "from": {"title": "Id of the actor who drove before; absent when nobody did", "type": "string"},
        "to": {"title": "Id of the actor who drives now; absent when nobody does", "type": "string"},
        "reason": {
            "title": "Why, in the actor's words",
            "type": "string",
            "maxLength": REASON_CHARACTERS,
        },
    },
}

OPERATION_SCHEMA_ID = "https://events.jupyter.org/jupyter_cmdop/operation/v1"
OPERATION_SCHEMA: dict[str, Any] = {
    "$id": OPERATION_SCHEMA_ID,
    "version": "1",
    "title": "An input was admitted, ended or refused",
    "description": "An operation was admitted or ended, or an attempt was refused. Code and output are never in it.",
    "personal-data": True,
    "type": "object",
    "required": ["status", "session", "kernel_id", "seq"],
    "properties": {
        "status": {"title": "What happened", "enum": list(OPERATION_TYPES)},
        **_OF_A_SESSION,
        **_OF_AN_ENTRY,
        "operation": {"title": "Its id; a refused attempt has none", "type": "string"},
        "outcome": {"title": "How it ended", "type": "string"},
        "code": {"title": "Why it was refused: a refusal code", "type": "string"},
        "what": {
            "title": "What was refused: a message type of the kernel protocol, or a verb",
            "type": "string",
        },
    },
}
SCHEMAS: Final = (SESSION_SCHEMA, FLOOR_SCHEMA, OPERATION_SCHEMA)

ACTIONS_SCHEMA_ID: Final = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
Action = Literal["start", "interrupt", "restart", "shutdown"]
_DONE: Final[Mapping[Action, str]] = {
    "start": "started",
    "interrupt": "interrupted",
    "restart": "restarted",
    "shutdown": "shutdown",
}


def register(logger: EventLogger) -> None:
    for schema in (*SCHEMAS, DEFAULT_EVENTS_SCHEMA_PATH / "kernel_actions" / "v1.yaml"):
        try:
            logger.register_event_schema(schema)
        except SchemaRegistryException:
            pass  # another server in this process has done it


def emit(logger: EventLogger, session: SessionKernel, action: str, message: str) -> None:
    logger.emit(
        schema_id=SESSION_SCHEMA_ID,
        data={
            "action": action,
            "session": session.name,
            "kernel_id": session.kernel_id,
            "kernel_name": session.kernel_name,
            "message": message,
        },
    )


def emit_action(
    logger: EventLogger, kernel_id: str, kernel_name: str, action: Action, error: ClientError | None
) -> None:
    """Tell what was done to a kernel as Jupyter's own kernel manager tells it, in its schema and its words.

    Of a refusal the code is told and not the text, which may have somebody's reason in it.
    """
    data: dict[str, Any] = {"action": action, "kernel_id": kernel_id, "kernel_name": kernel_name}
    if error is None:
        data |= {"status": "success", "msg": f"Kernel {kernel_id} was {_DONE[action]}."}
    else:
        data |= {"status": "error", "status_code": http_error(error).status_code}
        data["msg"] = error.refusal.code if isinstance(error, Refused) else error.message
    try:
        logger.emit(schema_id=ACTIONS_SCHEMA_ID, data=data)
    except Exception as failure:  # noqa: BLE001 (modifiers and handlers are other people's code)
        log.warning("%s of %s is not told: %r", action, kernel_id, failure)


def emit_entry(logger: EventLogger, session: SessionKernel, entry: Mapping[str, Any]) -> None:
    """Tell of an entry, if it is one to tell of. Whoever follows a journal must not fail by what is in it."""
    event = event_of(entry)
    if event is None:
        return
    schema_id, data = event
    try:
        logger.emit(
            schema_id=schema_id, data={"session": session.name, "kernel_id": session.kernel_id, **data}
        )
    except Exception as error:  # noqa: BLE001 (modifiers and handlers are other people's code)
        log.warning("entry %r of %s is not told: %r", entry.get("seq"), session.kernel_id, error)


def event_of(entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The schema's id and the data for a line of `log`; None when it is not told. Nothing is copied but named keys."""
    kind, data = entry.get("type"), entry.get("data")
    body = data if isinstance(data, Mapping) else {}
    said = {key: entry.get(key) for key in _OF_AN_ENTRY}
    if kind in FLOOR_TYPES:
        reason = body.get("reason")
        said |= {"action": kind, "from": body.get("from"), "to": body.get("to")}
        said["reason"] = reason[:REASON_CHARACTERS] if isinstance(reason, str) else None
        schema_id = FLOOR_SCHEMA_ID
    elif kind in OPERATION_TYPES:
        said |= {"status": kind, "operation": entry.get("operation")}
        said |= {key: _word(body.get(key)) for key in _KEYS.get(kind, ())}
        schema_id = OPERATION_SCHEMA_ID
    else:
        return None
    return schema_id, {key: value for key, value in said.items() if value is not None}


_KEYS: Final[Mapping[str, tuple[str, ...]]] = {"ended": ("outcome",), "refused": ("code", "what")}


def _word(value: object) -> str | None:
    """A word of a closed set. A client chooses its message types: what is no word may be anything, and is left out."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None
