"""The whole state of a session as JSON values, and back."""

from __future__ import annotations

from typing import Any

from .actor import Actor
from .floor import Floor
from .grants import Attachment, Grant
from .operations import Lane, Operation
from .state import Loss, State


def dump(state: State) -> dict[str, Any]:
    return {
        "owner": _fields(state.owner),
        "policy": state.policy,
        "floor": state.floor.to_dict(),
        "incarnation": state.incarnation,
        "backend": state.backend,
        "lanes": {name: lane.to_dict() for name, lane in state.lanes.items()},
        "operations": [operation.to_dict() for operation in state.operations.values()],
        "attachments": [{**_fields(a), "actor": _fields(a.actor)} for a in state.attachments.values()],
        "grants": [{**_fields(g), "actor": _fields(g.actor)} for g in state.grants.values()],
        "prompts": {name: dict(prompt) for name, prompt in state.prompts.items()},
        "lost": [[*connection, _fields(loss)] for connection, loss in state.lost.items()],
        "away": dict(state.away),
        "connections": {name: list(sessions) for name, sessions in state.connections.items()},
        "alive_until": dict(state.alive_until),
        "counter": state.counter,
    }


def fill(state: State, snapshot: dict[str, Any]) -> None:
    """Bring a new state to where `snapshot` was taken."""
    state.owner, state.policy = Actor(**snapshot["owner"]), snapshot["policy"]
    state.floor = Floor.from_dict(snapshot["floor"])
    state.incarnation, state.backend = snapshot["incarnation"], snapshot["backend"]
    state.lanes = {name: Lane.from_dict(lane) for name, lane in snapshot["lanes"].items()}
    for data in snapshot["operations"]:
        state.remember(Operation.from_dict(data))
    for data in snapshot["attachments"]:
        state.attachments[data["id"]] = Attachment(**{**data, "actor": Actor(**data["actor"])})
    for data in snapshot["grants"]:
        state.grants[data["id"]] = Grant(**{**data, "actor": Actor(**data["actor"])})
    state.prompts = {name: dict(prompt) for name, prompt in snapshot["prompts"].items()}
    state.lost = {(attachment, client): Loss(**loss) for attachment, client, loss in snapshot["lost"]}
    state.away = dict(snapshot["away"])
    state.connections = {name: list(sessions) for name, sessions in snapshot["connections"].items()}
    state.alive_until, state.counter = dict(snapshot["alive_until"]), snapshot["counter"]


def _fields(value: Actor | Attachment | Grant | Loss) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
