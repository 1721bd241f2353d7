"""The backend's lives: what it reports, and what actors do to it and to the session as a whole."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .actor import KEEPER
from .grants import Attachment
from .lanes import clear, finish, mark_aborted, pump
from .moves import raise_generation, renew
from .operations import Operation, Status
from .turn import Turn

# ---------------------------------------------------------------------- what the backend reports


def ready(turn: Turn, event: ev.BackendReady) -> None:
    state = turn.state
    if event.incarnation <= state.incarnation:
        raise AssertionError(f"incarnation {event.incarnation} after {state.incarnation}")
    if state.backend == "closed":
        return
    state.incarnation, state.backend = event.incarnation, "ready"
    turn.note("backend_ready", KEEPER, data={"incarnation": event.incarnation})
    turn.do(fx.Announce("backend", {"state": "ready", "incarnation": event.incarnation}))
    for lane in list(state.lanes):
        pump(turn, lane)


def died(turn: Turn, event: ev.BackendDied) -> None:
    state = turn.state
    if state.backend in ("lost", "closed"):
        return
    state.backend = "starting" if event.will_restart else "lost"
    data = {"reason": event.reason, "incarnation": state.incarnation}
    raise_generation(turn, "backend_died", KEEPER, data=data)
    clear(turn, "unknown", reason=event.reason)
    turn.do(fx.Announce("backend", {"state": state.backend, "reason": event.reason}))


def mute(turn: Turn, event: ev.BackendMute) -> None:
    """Until it is restarted nothing more is let in: whatever it did could not be seen."""
    state = turn.state
    if state.backend != "ready":
        return
    state.backend = "mute"
    data = {"reason": event.reason, "incarnation": state.incarnation}
    raise_generation(turn, "backend_mute", KEEPER, data=data)
    clear(turn, "unknown", reason=event.reason)
    turn.do(fx.Announce("backend", {"state": "unresponsive", "reason": event.reason}))


def replied(turn: Turn, event: ev.Replied) -> None:
    operation = _in_backend(turn, event.operation)
    if operation is not None and operation.replied is None:
        operation.replied, operation.error_name = event.status, event.error_name
        mark_aborted(turn, operation)
        finish(turn, operation)


def idle(turn: Turn, event: ev.Idle) -> None:
    operation = _in_backend(turn, event.operation)
    if operation is not None:
        operation.idle = True
        finish(turn, operation)


def _in_backend(turn: Turn, name: str) -> Operation | None:
    operation = turn.state.operations.get(name)
    if operation is None or operation.status not in (Status.RUNNING, Status.AWAITING_INPUT):
        return None
    return operation


# ---------------------------------------------------------------------- what actors do to it

_ENTRIES = {"restart": "restarted", "close": "closed", "rename": "renamed"}


def lifecycle(turn: Turn, event: ev.Lifecycle) -> None:
    attachment, state = turn.attachment_with(event, "lifecycle"), turn.state
    if attachment is None or _is_over(turn, attachment, event):
        return
    actor = attachment.actor.id
    others = [op for op in (*state.running(), *state.queued()) if op.actor.id != actor]
    if event.verb == "close" and others and not event.force:
        first = others[0]
        message = f"operation {first.id} of {first.actor.id} is {first.state}: closing would end it"
        return turn.reject(attachment, event, "busy", message, next_=("wait", "close --force"))
    renew(turn, attachment)
    data = {} if event.name is None else {"name": event.name}
    if event.verb == "rename":
        if event.name is None:
            raise AssertionError("rename needs a name")
        turn.note(_ENTRIES[event.verb], attachment, durable=True, basis="intended", data=data)
        return turn.do(fx.Renamed(event.name))
    state.backend = "starting" if event.verb == "restart" else "closed"
    raise_generation(turn, _ENTRIES[event.verb], attachment, basis="intended", data=data)
    clear(turn, "interrupted", by=actor, reason=event.verb)
    turn.do(fx.Announce("backend", {"state": state.backend, "by": actor}))
    turn.do(fx.RestartBackend() if event.verb == "restart" else fx.StopBackend())


def _is_over(turn: Turn, attachment: Attachment, event: ev.Lifecycle) -> bool:
    """A closed session stays closed: closing it again changes nothing, and there is nothing to restart."""
    if turn.state.backend != "closed" or event.verb == "rename":
        return False
    if event.verb == "restart":
        turn.reject(attachment, event, "backend_lost", "this session is closed", next_=("new",))
    return True
