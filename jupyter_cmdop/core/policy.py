"""Policies of the floor, and the table that says what counts as input.

A message is one of four classes. *Explicit* input may claim a free floor. *Implicit* input (a widget moved, a silent
execute) needs the floor when somebody has it and never claims it. *Reading* never concerns the floor; *peer reading*
needs the role of a peer, because what it returns was typed by others. *Lifecycle* ends or interrupts and has verbs of
its own.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

PolicyName = Literal["open", "turns", "readonly"]
POLICIES: tuple[PolicyName, ...] = ("open", "turns", "readonly")


class InputClass(Enum):
    """How the floor treats a message."""

    EXPLICIT = "explicit"
    IMPLICIT = "implicit"
    READING = "reading"
    PEER_READING = "peer_reading"


SHELL_CLASSES: dict[str, InputClass] = {
    "execute_request": InputClass.EXPLICIT,  # silent or without history: IMPLICIT, see execute_class
    "comm_open": InputClass.IMPLICIT,
    "comm_msg": InputClass.IMPLICIT,
    "comm_close": InputClass.IMPLICIT,
    "kernel_info_request": InputClass.READING,
    "comm_info_request": InputClass.READING,
    "is_complete_request": InputClass.READING,
    "connect_request": InputClass.READING,
    "complete_request": InputClass.PEER_READING,
    "inspect_request": InputClass.PEER_READING,
    "history_request": InputClass.PEER_READING,
}
"""Class of each message type on the shell channel (https://jupyter-client.readthedocs.io/en/stable/messaging.html)."""

CONTROL_CLASSES: dict[str, InputClass] = {
    "kernel_info_request": InputClass.READING,
    "usage_request": InputClass.READING,
    "list_subshell_request": InputClass.READING,
    "create_subshell_request": InputClass.IMPLICIT,
    "delete_subshell_request": InputClass.IMPLICIT,
    "debug_request": InputClass.IMPLICIT,  # inspection only: READING, see debug_class
}
"""Class of each message type on the control channel; interrupt and shutdown are verbs, not input."""

# Requests of the Debug Adapter Protocol that look and do not touch.
_DEBUG_READING = frozenset(
    {
        "debugInfo",
        "dumpCell",
        "inspectVariables",
        "modules",
        "richInspectVariables",
        "scopes",
        "source",
        "stackTrace",
        "threads",
        "variables",
        "exceptionInfo",
        "loadedSources",
    }
)

UNKNOWN_CLASS = InputClass.IMPLICIT
"""What we do not know may act: it needs the floor when somebody has it, and never claims it."""


def execute_class(*, silent: bool, store_history: bool) -> InputClass:
    return InputClass.IMPLICIT if silent or not store_history else InputClass.EXPLICIT


def debug_class(command: str) -> InputClass:
    return InputClass.READING if command in _DEBUG_READING else InputClass.IMPLICIT
