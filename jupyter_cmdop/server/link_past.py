"""The link of a session that has ended: its journal answers in its keeper's place, to the owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from jupyter_cmdop._version import __version__
from jupyter_cmdop.client import past
from jupyter_cmdop.client.census import describe_past, status_of
from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.client.registry import Found, Registry
from jupyter_cmdop.core.refusal import Refusal
from jupyter_cmdop.wire.link import PROTOCOL

from .identity import Person

Say = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends one frame, and returns when there is room for another."""


class _ReadArgs(msgspec.Struct):
    after: str | None = None


class _LogArgs(msgspec.Struct):
    after: int | None = None
    actor: str | None = None
    operation: str | None = None
    types: list[str] | None = None
    limit: int | None = None


class _VerifyArgs(msgspec.Struct):
    receipt: str | None = None


class PastLink:
    """Answers `status`, `read`, `log` and `verify`; nothing else can be asked of what has ended."""

    def __init__(self, found: Found, say: Say) -> None:
        if found.record is None:
            raise AssertionError("a session that has ended is known by its record")
        self._found = found
        self._record = found.record
        self._say = say
        self._directory = Registry.of_user().sessions / found.id

    def hello(self, person: Person) -> dict[str, Any]:
        """A keeper's first frame, as far as there is something to say."""
        return {
            "hello": {
                "protocol": PROTOCOL,
                "session": {"id": self._found.id, "name": self._found.name, "state": self._record.state},
                "attachment": None,
                "actor": person.actor_fields(),
                "rights": ["observe"],
                "level": "cooperative",
                "version": __version__,
            }
        }

    async def ask(self, number: int, verb: str, args: object) -> None:
        """Answer one request."""
        try:
            answer = await self._answer(number, verb, args)
        except (ClientError, msgspec.ValidationError) as error:
            code = error.code if isinstance(error, ClientError) else "bad_request"
            answer = {"error": {"code": code, "message": str(error)}}
        await self._say({"id": number, **answer})

    async def _answer(self, number: int, verb: str, args: object) -> dict[str, Any]:
        match verb:
            case "status":
                status = status_of(describe_past(self._record), self._found.liveness.reason)
                return {"result": msgspec.to_builtins(status)}
            case "verify":
                wanted = msgspec.convert(args, _VerifyArgs)
                report = await asyncio.to_thread(past.verify, self._directory, wanted.receipt)
                return {"result": msgspec.to_builtins(report)}
            case "read":
                after = msgspec.convert(args, _ReadArgs).after
                last = await self._send_all(number, lambda: self._outputs(after))
                cursor = after if last is None else f"{last['incarnation'] or 0}:{last['seq']}"
                return {"result": {"cursor": cursor, "more": False}}
            case "log":
                asked = msgspec.convert(args, _LogArgs)
                await self._send_all(number, lambda: self._entries(asked))
                return {"result": {}}
            case _:
                name, reason = self._found.name, self._found.liveness.reason
                refusal = Refusal(
                    "unknown_session",
                    f"{name} is not there any more: {reason}",
                    next=(f"jupyter cmdop log {name}", f"jupyter cmdop new {name}"),
                )
                return {"refusal": refusal.to_dict()}

    def _outputs(self, after: str | None) -> Iterator[dict[str, Any]]:
        for item in past.outputs(self._directory, after=after):
            yield msgspec.to_builtins(item)

    def _entries(self, asked: _LogArgs) -> Iterator[dict[str, Any]]:
        lines = past.log(
            self._directory,
            after=asked.after,
            actor=asked.actor,
            operation=asked.operation,
            types=asked.types,
        )
        for count, entry in enumerate(lines):
            if asked.limit is not None and count >= asked.limit:
                return
            yield {"entry": entry}

    async def _send_all(
        self, number: int, items: Callable[[], Iterator[dict[str, Any]]]
    ) -> dict[str, Any] | None:
        """Send what a thread reads, no faster than it is taken; the last of it."""
        loop = asyncio.get_running_loop()

        def read() -> dict[str, Any] | None:
            last = None
            for last in items():
                said = self._say({"id": number, "item": last})
                asyncio.run_coroutine_threadsafe(_awaited(said), loop).result()
            return last

        return await asyncio.to_thread(read)


async def _awaited(saying: Awaitable[None]) -> None:
    await saying
