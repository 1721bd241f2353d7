"""What the server's event bus (`/api/events/subscribe`) tells of sessions: a schema, and its emission."""

from __future__ import annotations

from typing import Any

from jupyter_events import EventLogger
from jupyter_events.schema_registry import SchemaRegistryException

from .session_kernel import SessionKernel

SESSION_SCHEMA_ID = "https://events.jupyter.org/jupyter_cmdop/session/v1"
SESSION_SCHEMA: dict[str, Any] = {
    "$id": SESSION_SCHEMA_ID,
    "version": "1",
    "title": "A session began or ended",
    "description": "A session that this Jupyter server shows was started, was closed, or was lost.",
    "personal-data": False,
    "type": "object",
    "required": ["action", "session", "kernel_id"],
    "properties": {
        "action": {
            "title": "What happened",
            "enum": ["started", "closed", "lost"],
        },
        "session": {"title": "Its name", "type": "string"},
        "kernel_id": {"title": "Its id, which is the id of its kernel as well", "type": "string"},
        "kernel_name": {"title": "Name of the kernel specification", "type": "string"},
        "message": {"title": "Why, in words", "type": "string"},
    },
}


def register(logger: EventLogger) -> None:
    try:
        logger.register_event_schema(SESSION_SCHEMA)
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
