"""Refusals as data: the closed set of reasons why an actor may not, each with what he can do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HTTP_STATUS: dict[str, int] = {
    "not_driver": 409,
    "stale_generation": 409,
    "busy": 409,
    "dirty_line": 409,
    "input_pending": 409,
    "no_prompt": 409,
    "request_id_conflict": 409,
    "name_taken": 409,
    "read_only": 403,
    "forbidden": 403,
    "awaiting_approval": 403,
    "revoked": 403,
    "expired": 403,
    "frozen": 423,
    "paused": 423,
    "draining": 423,
    "journal_unavailable": 423,
    "queue_full": 429,
    "rate_limited": 429,
    "backend_lost": 410,
    "moved": 410,
    "unknown_session": 404,
    "unknown_operation": 404,
    "unknown_grant": 404,
    "too_large": 413,
    "unsupported": 501,
}
"""Every refusal code with the HTTP status that carries it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an input was not admitted.

    Attributes:
        code: one of `HTTP_STATUS`.
        message: one sentence for a person.
        driver: actor id of who drives, when that is the reason.
        since: seconds (session clock) since when, as in `Floor.since`.
        generation: the generation in force.
        retry_after: seconds after which the same input may pass, when known.
        next: verbs or sentences that help.
    """

    code: str
    message: str
    driver: str | None = None
    since: float | None = None
    generation: int | None = None
    retry_after: float | None = None
    next: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.code not in HTTP_STATUS:
            raise AssertionError(f"{self.code!r} is not in the closed set of refusal codes")

    def to_dict(self) -> dict[str, Any]:
        """The JSON shape `{code, message, driver, since, generation, retry_after, next}`."""
        return {
            "code": self.code,
            "message": self.message,
            "driver": self.driver,
            "since": self.since,
            "generation": self.generation,
            "retry_after": self.retry_after,
            "next": list(self.next),
        }
