"""Routes that act in a session or read it: each decodes, asks the keeper as whoever asks, and answers."""

from __future__ import annotations

import contextlib
import itertools
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, cast

import msgspec
from jupyter_server.utils import url_path_join
from tornado.iostream import StreamClosedError

from jupyter_cmdop.client import calls, past, shapes
from jupyter_cmdop.client.aio_session import AsyncSession
from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.core.refusal import HTTP_STATUS, Refusal

from .api_base import ApiHandler, OfOneSession, Verb, verb
from .api_errors import ApiError, refused
from .api_shapes import (
    PAGE_BYTES,
    Answer,
    Approval,
    Interrupt,
    JournalPage,
    JournalQuery,
    MoveFloor,
    Note,
    Nothing,
    ReadQuery,
    Run,
    Send,
    SetPolicy,
    Signal,
    WaitQuery,
)

UNDER_WAY = frozenset({"queued", "awaiting_approval", "running", "awaiting_input"})
"""Statuses of an operation that has no outcome yet."""
_FLUSH_BYTES = 256 * 1024


class VerbHandler(OfOneSession, ApiHandler):
    """Base of the routes that one verb of a session answers."""

    async def answer_run(
        self, session: AsyncSession, result: shapes.RunResult, *, sent: bool = False
    ) -> None:
        """An operation that has ended is 200, one that goes on 202 with where to ask again."""
        if result.refusal is not None:
            raise _refused(msgspec.to_builtins(result.refusal))
        if result.operation is not None and (sent or result.status in UNDER_WAY):
            query = urllib.parse.urlencode({"operation": result.operation})
            place = url_path_join(self.base_url, "cmdop", "api", "sessions", session.id, "wait")
            self.set_header("Location", f"{place}?{query}")
        await self.answer(result, status=202 if sent or result.status in UNDER_WAY else 200)

    def request_id(self, given: str | None) -> str | None:
        """The request id of the body, or that of the header `Idempotency-Key`."""
        header = self.request.headers.get("Idempotency-Key")
        if header is None:
            return given
        header = header.strip().strip('"')
        if not 1 <= len(header) <= 256 or given not in (None, header):
            raise ApiError("bad_request", "Idempotency-Key: 1 to 256 characters, and the same as request_id")
        return header


class RunHandler(VerbHandler):
    @verb(
        Verb(
            "run",
            "Execute code and wait for its outcome, for a while",
            {200: shapes.RunResult, 202: shapes.RunResult},
            body=Run,
            action="execute",
            is_limited=True,
        )
    )
    async def post(self, name: str, body: Run) -> None:
        request_id = self.request_id(body.request_id)
        async with self.api.open(name, self.person, client=self.client) as session:
            result = await session.run(
                body.code,
                request_id=request_id,
                generation=body.generation,
                silent=body.silent,
                stop_on_error=body.stop_on_error,
                if_busy=body.if_busy,
                wait_seconds=body.wait_seconds,
                max_bytes=body.max_bytes,
            )
            await self.answer_run(session, result)


class SendHandler(VerbHandler):
    @verb(
        Verb(
            "send",
            "Send input and wait for nothing",
            {202: shapes.RunResult},
            body=Send,
            action="execute",
            is_limited=True,
        )
    )
    async def post(self, name: str, body: Send) -> None:
        request_id = self.request_id(body.request_id)
        async with self.api.open(name, self.person, client=self.client) as session:
            if body.keys is not None:
                raise _unsupported("a kernel takes no keys", "send text")
            if body.text is None:
                raise ApiError("bad_request", "the body: `text` is missing")
            result = await session.run(
                body.text,
                request_id=request_id,
                generation=body.generation,
                wait_seconds=0,
            )
            await self.answer_run(session, result, sent=True)


class WaitHandler(VerbHandler):
    @verb(
        Verb(
            "wait",
            "Wait for an operation, or until nothing runs, for a while",
            {200: shapes.RunResult, 202: shapes.RunResult},
            query=WaitQuery,
        )
    )
    async def get(self, name: str, query: WaitQuery) -> None:
        args = {
            "operation": query.operation,
            "request_id": query.request_id,
            "wait_seconds": query.wait_seconds,
            "max_bytes": query.max_bytes,
        }
        patience = query.wait_seconds + calls.WAIT_MARGIN_SECONDS
        async with self.api.open(name, self.person, client=self.client) as session:
            found = await session.connection.request("wait", args, timeout_seconds=patience)
            await self.answer_run(session, shapes.read_as(shapes.RunResult, found))


class ReadHandler(VerbHandler):
    @verb(
        Verb(
            "read",
            "What was shown, oldest first, page by page",
            {200: shapes.ReadResult},
            query=ReadQuery,
        )
    )
    async def get(self, name: str, query: ReadQuery) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            if query.view == "screen":
                raise _unsupported("a kernel has no screen", "read the view outputs")
            await self.answer(
                await session.read(query.view, after=query.after, limit_bytes=query.limit_bytes)
            )


class FloorHandler(VerbHandler):
    @verb(Verb("read_floor", "Who drives", {200: shapes.Floor}))
    async def get(self, name: str) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            status = await session.status()
        await self.answer(
            shapes.Floor(
                driver=status.driver,
                generation=status.generation,
                policy=status.policy,
                since=status.since,
                running=tuple([operation.operation for operation in status.running]),
            )
        )

    @verb(
        Verb(
            "move_floor",
            "Take the floor, hand it back, or release it",
            {200: shapes.Floor},
            body=MoveFloor,
            action="execute",
        )
    )
    async def post(self, name: str, body: MoveFloor) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            match body.action:
                case "take":
                    floor = await session.take(
                        body.reason, running=body.running, queue=body.queue, lease_seconds=body.lease_seconds
                    )
                case "hand_back":
                    floor = await session.hand_back(body.to, note=body.note)
                case "release":
                    floor = await session.release()
                case _:
                    raise _unsupported("no policy of this version moves the floor on request", "take")
        await self.answer(floor)


class PolicyHandler(VerbHandler):
    @verb(
        Verb("set_policy", "Change how the floor moves", {200: shapes.Floor}, body=SetPolicy, action="write"),
    )
    async def put(self, name: str, body: SetPolicy) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            await self.answer(await session.policy(body.policy))


class AnswerHandler(VerbHandler):
    @verb(
        Verb(
            "answer",
            "Answer a pending prompt",
            {200: shapes.Answered},
            body=Answer,
            action="execute",
        )
    )
    async def post(self, name: str, body: Answer) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            await self.answer(await session.answer(body.text, prompt_id=body.prompt_id))


class InterruptHandler(VerbHandler):
    @verb(
        Verb(
            "interrupt",
            "Interrupt an operation, or withdraw it; without a name, what is most likely meant",
            {200: shapes.Interrupted},
            body=Interrupt,
            action="execute",
        )
    )
    async def post(self, name: str, body: Interrupt) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            try:
                hit = await session.interrupt(body.operation)
            except ClientError as error:
                self.api.manager.tell_done(session.id, "interrupt", error)
                raise
            self.api.manager.tell_done(session.id, "interrupt")
        await self.answer(hit)


class NoteHandler(VerbHandler):
    @verb(
        Verb(
            "note",
            "Write a remark into the record; it reaches no backend",
            {201: shapes.Noted},
            body=Note,
            action="execute",
            is_limited=True,
        )
    )
    async def post(self, name: str, body: Note) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            await self.answer(await session.note(body.text), status=201)


class JournalHandler(VerbHandler):
    @verb(
        Verb(
            "read_journal",
            "The record, oldest first: a page, or all of it as a file; also of a session that has ended",
            {200: JournalPage},
            query=JournalQuery,
            files=("application/x-ndjson",),
        )
    )
    async def get(self, name: str, query: JournalQuery) -> None:
        types = None if query.types is None else [word.strip() for word in query.types.split(",")]
        wanted: dict[str, Any] = {
            "after": query.after,
            "actor": query.actor,
            "operation": query.operation,
            "types": types,
        }
        ended = await self.api.in_thread(self.api.find_ended, name, self.person)
        if ended is not None:
            reading = cast("Generator[dict[str, Any], None, None]", past.log(ended.directory, **wanted))
            with contextlib.closing(reading) as entries:
                await self._answer(ended.name, self._in_threads(entries), query, wanted)
            return
        async with self.api.open(name, self.person, client=self.client) as session:
            limit = None if query.format == "jsonl" else query.limit
            await self._answer(session.name, session.log(**wanted, limit=limit), query, wanted)

    async def _in_threads(self, entries: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        """What is read from a disk, some at a time, beside the loop."""
        while found := await self.api.in_thread(lambda: list(itertools.islice(entries, 100))):
            for entry in found:
                yield entry

    async def _answer(
        self,
        name: str,
        entries: AsyncIterator[dict[str, Any]],
        query: JournalQuery,
        wanted: Mapping[str, Any],
    ) -> None:
        async with contextlib.aclosing(cast("AsyncGenerator[dict[str, Any], None]", entries)) as found:
            if query.format == "jsonl":
                await self._export(name, found)
            else:
                await self._page(found, wanted, query.limit)

    async def _page(
        self, found: AsyncIterator[dict[str, Any]], wanted: Mapping[str, Any], limit: int
    ) -> None:
        entries: list[msgspec.Raw] = []
        after, size, is_cut = int(wanted["after"]), 0, False
        async for entry in found:
            raw = msgspec.json.encode(entry)
            size += len(raw)
            is_cut = size > PAGE_BYTES and bool(entries)
            if is_cut:
                break
            entries.append(msgspec.Raw(raw))
            after = int(entry.get("seq", after))
            if len(entries) == limit:
                break
        await self.answer({"entries": entries, "after": after, "more": is_cut or len(entries) == limit})

    async def _export(self, name: str, found: AsyncIterator[dict[str, Any]]) -> None:
        self.set_header("Content-Type", "application/x-ndjson")
        self.set_header("Content-Disposition", f'attachment; filename="{name}.jsonl"')
        waiting = 0
        try:
            async for entry in found:
                raw = msgspec.json.encode(entry)
                self.write(raw + b"\n")
                waiting += len(raw)
                if waiting > _FLUSH_BYTES:
                    await self.flush()
                    waiting = 0
        except StreamClosedError:
            return  # its reader has gone
        except ClientError:
            if not self._headers_written:
                self.clear_header("Content-Disposition")
                raise
            # A file that ends early must not look like a whole one.
            connection: Any = self.request.connection  # tornado's type leaves `stream` to its HTTP/1 class
            connection.stream.close()
            return
        await self.finish(set_content_type="application/x-ndjson")


# ---------------------------------------------------------------------- what no session of this version can do


class ApproveHandler(VerbHandler):
    @verb(Verb("approve", "Approve or reject an operation", {}, body=Approval, action="execute"))
    async def post(self, name: str, body: Approval) -> None:
        async with self.api.open(name, self.person, client=self.client):
            raise _unsupported("no policy of this version asks for approval", "policy turns")


class SignalHandler(VerbHandler):
    @verb(Verb("signal", "Signal a process of a terminal", {}, body=Signal, action="execute"))
    async def post(self, name: str, body: Signal) -> None:
        async with self.api.open(name, self.person, client=self.client):
            raise _unsupported("processes of a kernel are not signalled", "interrupt")


class ReviveHandler(VerbHandler):
    @verb(Verb("revive", "Begin again where a session was lost", {}, body=Nothing, action="write"))
    async def post(self, name: str, body: Nothing) -> None:
        async with self.api.open(name, self.person, client=self.client):
            raise _unsupported("this session lives: there is nothing to revive", "restart")


def _refused(refusal: Mapping[str, Any]) -> ApiError:
    """A refusal within a result; a code that only a newer keeper knows is `forbidden`, as on the link."""
    code = str(refusal.get("code"))
    return refused({**refusal, "code": code if code in HTTP_STATUS else "forbidden"})


def _unsupported(message: str, *following: str) -> ApiError:
    return refused(Refusal("unsupported", message, next=following).to_dict())
