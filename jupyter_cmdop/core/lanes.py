"""What happens to an operation once it is admitted: it waits in its lane, is delivered, and ends once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import effects as fx
from .floor import ACT_LEASE_SECONDS, SIGN_OF_LIFE_SECONDS
from .operations import MAIN_LANE, Lane, Operation, Outcome, Step, next_in_turn
from .turn import Turn


def pump(turn: Turn, lane_name: str) -> None:
    """Deliver the next operation of a lane that is free."""
    state = turn.state
    lane = state.lanes.get(lane_name)
    if lane is None or state.backend != "ready" or lane.running is not None:
        return
    chosen = next_in_turn([(name, state.operations[name].holder) for name in lane.queue], lane.served)
    if chosen is None:
        return _tidy(turn, lane_name)
    operation = state.operations[chosen]
    lane.queue.remove(chosen)
    lane.running = chosen
    lane.note_served(operation.holder)
    operation.generation = state.floor.generation
    operation.incarnation = state.incarnation
    operation.since = turn.now
    operation.step(Step.DELIVER)
    turn.note("delivered", operation, basis="attempted")
    turn.do(fx.Deliver(chosen, lane_name, operation.generation))
    turn.do(fx.Announce("operation", {"operation": chosen, "status": "running"}))


def mark_aborted(turn: Turn, operation: Operation) -> None:
    """An error aborts what the same client session has queued behind it by now, and nothing of anybody else.

    What that client sends after it has seen the reply was never behind it, though the backend is not idle yet.
    """
    if operation.reported in ("error", "interrupted") and operation.stop_on_error:
        waiting = [turn.state.operations[name] for name in turn.state.lanes[operation.lane].queue]
        operation.aborts = tuple(op.id for op in waiting if op.connection == operation.connection)


def finish(turn: Turn, operation: Operation) -> None:
    """End what the backend has answered and is done with; its lane goes on."""
    outcome = operation.reported
    if outcome is None or not operation.idle:
        return
    lane = turn.state.lanes[operation.lane]
    if lane.running != operation.id:
        raise AssertionError(f"{operation.id} finished, but lane {operation.lane!r} runs {lane.running}")
    lane.running = None
    _end(turn, operation, Step.FINISH, outcome, by=operation.interrupted_by)
    for name in operation.aborts:
        if name in lane.queue:
            reason = f"operation {operation.id} failed before it"
            drop(turn, turn.state.operations[name], "aborted", reason=reason)
    pump(turn, operation.lane)


def drop(
    turn: Turn, operation: Operation, outcome: Outcome, *, by: str | None = None, reason: str = ""
) -> None:
    """End what waits."""
    turn.state.lanes[operation.lane].queue.remove(operation.id)
    _end(turn, operation, Step.DROP, outcome, by=by, reason=reason)
    _tidy(turn, operation.lane)


def supersede(turn: Turn, chosen: Callable[[Operation], bool], *, by: str | None, reason: str) -> None:
    """Give queued operations back to their authors: the right under which they waited has gone."""
    for operation in turn.state.queued():
        if chosen(operation):
            drop(turn, operation, "superseded", by=by, reason=reason)


def clear(turn: Turn, lost: Outcome, *, by: str | None = None, reason: str) -> None:
    """The backend is gone or going.

    What it had and had not answered ends as `lost`; what it had answered, as it answered; what waited is aborted.
    """
    state = turn.state
    lanes, state.lanes = state.lanes, {MAIN_LANE: Lane()}
    for lane in lanes.values():
        if lane.running is not None:
            operation = state.operations[lane.running]
            if operation.reported is None:
                _end(turn, operation, Step.LOSE, lost, by=by, reason=reason)
            else:
                _end(turn, operation, Step.FINISH, operation.reported, by=operation.interrupted_by)
        for name in lane.queue:
            _end(turn, state.operations[name], Step.DROP, "aborted", by=by, reason=reason)


def _end(
    turn: Turn, operation: Operation, step: Step, outcome: Outcome, *, by: str | None = None, reason: str = ""
) -> None:
    state = turn.state
    operation.step(step, outcome)
    state.prompts.pop(operation.id, None)
    if state.floor.driver in (operation.holder, operation.actor.id):
        state.floor.renew_act(turn.now, ACT_LEASE_SECONDS if operation.act else SIGN_OF_LIFE_SECONDS)
    data: dict[str, Any] = {"outcome": outcome}
    if by:
        data["by"] = by
    if reason:
        data["reason"] = reason
    turn.note("ended", operation, request_id=operation.request_id, data=data)
    turn.do(fx.End(operation.id, outcome, step is not Step.DROP, by, reason))
    turn.do(fx.Announce("operation", {"operation": operation.id, "status": outcome}))


def _tidy(turn: Turn, lane_name: str) -> None:
    """A subshell's lane exists while something is in it."""
    lane = turn.state.lanes[lane_name]
    if lane_name != MAIN_LANE and lane.running is None and not lane.queue:
        del turn.state.lanes[lane_name]
