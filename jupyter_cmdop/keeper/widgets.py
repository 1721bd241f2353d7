"""The last state of each widget, so that a change that is not let in can be taken back where it was made.

Front ends show a change before the kernel has it. When it is refused, its author is sent what the kernel holds, as
the kernel would echo it: the slider jumps back (Jupyter widget messaging protocol, version 2.1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from ..wire.errors import WireError
from ..wire.kernel import decode_as

WIDGET_TARGET = "jupyter.widget"
KEPT_WIDGETS = 4096
KEPT_STATE_BYTES = 64 * 1024  # of one widget; what is larger (images, tables) is not taken back


class _Comm(msgspec.Struct):
    comm_id: str = ""
    target_name: str = ""
    data: dict[str, Any] = {}


_COMM = msgspec.json.Decoder(_Comm)


class WidgetStates:
    """What the kernel last said, or was last told, of each widget's state."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def note(self, message_type: str, content: bytes) -> None:
        """Take a comm message of the kernel, or one that was let in to it."""
        comm = _decode(content)
        if comm is None or not comm.comm_id:
            return
        if message_type == "comm_close":
            self._states.pop(comm.comm_id, None)
        elif message_type == "comm_open" and comm.target_name == WIDGET_TARGET:
            self._states[comm.comm_id] = {}
            self._merge(comm)
            if len(self._states) > KEPT_WIDGETS:
                self._states.popitem(last=False)
        elif message_type == "comm_msg" and comm.comm_id in self._states:
            self._merge(comm)

    def _merge(self, comm: _Comm) -> None:
        state = comm.data.get("state")
        if not isinstance(state, dict):
            return
        known = self._states[comm.comm_id]
        known.update(state)
        if len(msgspec.json.encode(known)) > KEPT_STATE_BYTES:
            known.clear()

    def take_back(self, content: bytes) -> dict[str, Any] | None:
        """The content of the message that undoes a refused change; None where nothing is known to go back to."""
        comm = _decode(content)
        state = None if comm is None else comm.data.get("state")
        if comm is None or not isinstance(state, dict):
            return None
        known = self._states.get(comm.comm_id, {})
        before = {key: known[key] for key in state if key in known}
        if not before:
            return None
        return {
            "comm_id": comm.comm_id,
            "data": {"method": "echo_update", "state": before, "buffer_paths": []},
        }

    def forget(self) -> None:
        """The kernel is gone, and its widgets with it."""
        self._states.clear()


def _decode(content: bytes) -> _Comm | None:
    try:
        return decode_as(_COMM, content, what="comm")
    except WireError:
        return None
