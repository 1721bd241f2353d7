"""The verbs as data: what each sends and what shape answers it; `session` and `aio_session` only perform them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from . import shapes
from .blocking import REQUEST_SECONDS

T = TypeVar("T")
WAIT_MARGIN_SECONDS = 30.0
"""How much later than the agreed wait an answer may come before the keeper counts as silent."""

ActorKindName = Literal["human", "agent", "service", "device"]
RunningChoice = Literal["let", "interrupt"]
QueueChoice = Literal["drop", "adopt"]
BusyChoice = Literal["queue", "refuse"]
View = Literal["outputs", "stream"]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, the shape of its result, and how long that may take (None: as long as it takes)."""

    verb: str
    args: Mapping[str, Any]
    shape: type[T]
    timeout_seconds: float | None = REQUEST_SECONDS

    def read(self, result: Mapping[str, Any]) -> T:
        return shapes.read_as(self.shape, result)


def status() -> Call[shapes.Status]:
    return Call("status", {}, shapes.Status)


def invite(
    actor: str | None,
    *,
    kind: ActorKindName | None = None,
    role: Literal["peer", "observer"] = "peer",
    expires_seconds: float | None = None,
    transport: Literal["ipc", "tcp"] = "ipc",
) -> Call[shapes.Invite]:
    args = {
        "actor": actor,
        "kind": kind,
        "role": role,
        "expires_seconds": expires_seconds,
        "transport": transport,
    }
    return Call("invite", args, shapes.Invite)


def grants() -> Call[shapes.Grants]:
    return Call("grants", {}, shapes.Grants)


def revoke(grant: str) -> Call[shapes.Revoked]:
    return Call("revoke", {"grant": grant}, shapes.Revoked)


def take(
    reason: str | None = None,
    *,
    running: RunningChoice = "let",
    queue: QueueChoice = "drop",
    lease_seconds: float | None = None,
) -> Call[shapes.Floor]:
    args = {"reason": reason, "running": running, "queue": queue, "lease_seconds": lease_seconds}
    return Call("take", args, shapes.Floor)


def hand_back(to: str | None = None, *, note: str | None = None) -> Call[shapes.Floor]:
    return Call("hand_back", {"to": to, "note": note}, shapes.Floor)


def release() -> Call[shapes.Floor]:
    return Call("release", {}, shapes.Floor)


def policy(name: str) -> Call[shapes.Floor]:
    return Call("policy", {"policy": name}, shapes.Floor)


def run(
    code: str,
    *,
    request_id: str | None = None,
    generation: int | None = None,
    silent: bool = False,
    stop_on_error: bool = True,
    if_busy: BusyChoice = "queue",
    wait_seconds: float | None = None,
    stream: bool = False,
    max_bytes: int | None = None,
) -> Call[shapes.RunResult]:
    args = {
        "code": code,
        "request_id": request_id,
        "generation": generation,
        "silent": silent,
        "stop_on_error": stop_on_error,
        "if_busy": if_busy,
        "wait_seconds": wait_seconds,
        "stream": stream,
        "max_bytes": max_bytes,
    }
    return Call("run", args, shapes.RunResult, _patience(wait_seconds))


def wait(
    operation: str | None = None, *, request_id: str | None = None, wait_seconds: float | None = None
) -> Call[shapes.RunResult]:
    args = {"operation": operation, "request_id": request_id, "wait_seconds": wait_seconds}
    return Call("wait", args, shapes.RunResult, _patience(wait_seconds))


def read(
    view: View = "outputs",
    *,
    after: str | None = None,
    limit_bytes: int | None = None,
    follow: bool = False,
) -> Call[shapes.ReadResult]:
    args = {"view": view, "after": after, "limit_bytes": limit_bytes, "follow": follow}
    return Call("read", args, shapes.ReadResult, None)


def interrupt(operation: str | None = None) -> Call[shapes.Interrupted]:
    return Call("interrupt", {"operation": operation}, shapes.Interrupted)


def answer(text: str, *, prompt_id: str | None = None) -> Call[shapes.Answered]:
    return Call("answer", {"text": text, "prompt_id": prompt_id}, shapes.Answered)


def note(text: str) -> Call[shapes.Noted]:
    return Call("note", {"text": text}, shapes.Noted)


def log(
    *,
    after: int | None = None,
    actor: str | None = None,
    operation: str | None = None,
    types: Sequence[str] | None = None,
    limit: int | None = None,
    follow: bool = False,
) -> Call[dict[str, Any]]:
    args = {
        "after": after,
        "actor": actor,
        "operation": operation,
        "types": None if types is None else list(types),
        "limit": limit,
        "follow": follow,
    }
    return Call("log", args, dict[str, Any], None)


def verify(receipt: str | None = None) -> Call[shapes.VerifyReport]:
    return Call("verify", {"receipt": receipt}, shapes.VerifyReport, None)


def rename(name: str) -> Call[shapes.Renamed]:
    return Call("rename", {"name": name}, shapes.Renamed)


def restart() -> Call[shapes.Restarted]:
    return Call("restart", {}, shapes.Restarted)


def close(*, force: bool = False) -> Call[shapes.Closed]:
    return Call("close", {"force": force}, shapes.Closed)


def _patience(wait_seconds: float | None) -> float | None:
    return None if wait_seconds is None else wait_seconds + WAIT_MARGIN_SECONDS
