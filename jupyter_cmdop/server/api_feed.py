"""The feed: what happens in one session, or in all that somebody may know of, each record once and in order.

It is the journal, followed over the link and reduced to what a person or a program wants to be told. A record's cursor
says how far each session has been told; whoever comes back with the cursor of his last record goes on behind it, so it
does not matter how often he is cut off, or when. Nothing waits in memory for a slow reader: nothing more is read for
him, and when he takes nothing for a while he is closed with a code that says so, and resumes.

    FeedHandler        accepts the websocket; owns one task for it
    Feed               merges sessions into one stream of records with a cursor
    _Source            follows one session to its end, over as many links as that takes
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import msgspec
from jupyter_core.utils import ensure_async
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import websocket
from tornado.iostream import StreamClosedError

from jupyter_cmdop.client import calls, past, places
from jupyter_cmdop.client.aio_session import AsyncSession
from jupyter_cmdop.client.errors import ClientError, KeeperGone, LinkTimeout, Refused, UnknownSession
from jupyter_cmdop.client.registry import Registry, facts
from jupyter_cmdop.client.session import BEAT_SECONDS

from .api_base import Guarded, OfOneSession, Verb
from .api_errors import ApiError, api_error
from .api_reach import Api, Known
from .api_shapes import FeedQuery, FeedRecord
from .identity import Person
from .session_kernel import why_gone

log = logging.getLogger(__name__)

CLOSE_ENDED = 4000
"""The session has ended; there is nothing to come back for."""
CLOSE_CREDENTIAL = 4403
"""The grant or the login has ended."""
CLOSE_SLOW = 4408
"""Nothing was read for a while: come back with the cursor of your last record."""
CLOSE_TRY_AGAIN = 1013
"""It cannot be told at the moment: come back with the cursor of your last record."""
WAITING_RECORDS = 64
"""Records of all sessions that are read and not yet written."""
LOOK_SECONDS = 0.5
"""How often it is looked whether there is a new session; one `stat` when there is none."""
AGAIN_SECONDS = 0.5
LONG_CHARACTERS = 2000
PREVIEW_CHARACTERS = 200
ID_CHARACTERS = 12
"""Of a session's UUID in a cursor over several sessions."""

KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("opened", "renamed", "restarted", "closed", "granted", "revoked", "expired"), "session"),
    **dict.fromkeys(
        ("backend_ready", "backend_died", "backend_mute", "backend_ended", "keeper_ended"), "session"
    ),
    **dict.fromkeys(("unresponsive", "responsive", "stood_still", "idle", "clock"), "session"),
    **dict.fromkeys(("attached", "detached"), "presence"),
    **dict.fromkeys(("taken", "claimed", "handed_back", "released", "freed", "stale", "resumed"), "floor"),
    "policy": "floor",
    **dict.fromkeys(("admitted", "adopted", "started", "ended", "interrupted"), "operation"),
    **dict.fromkeys(("input_requested", "input_answered"), "input-waiting"),
    "refused": "refusal",
    "note": "note",
    "gap": "gap",
}
"""Type of a journal entry -> kind of the record. What is not here is not told."""
# What was typed, and what a client calls itself in its messages, is in the journal and not in the feed.
_NOT_TOLD: Final = frozenset({"value", "digest", "msg_id", "client_session"})
_KEPT: Final = (
    "seq",
    "time",
    "actor",
    "on_behalf_of",
    "operation",
    "generation",
    "incarnation",
    "request_id",
    "grant",
)


def record_of(entry: Mapping[str, Any], *, session: str, session_id: str) -> dict[str, Any]:
    """An entry as `log` gives it, as a record without its cursor."""
    kind = str(entry.get("type"))
    record: dict[str, Any] = {"kind": KINDS.get(kind, "session"), "type": kind}
    record |= {"session": session, "id": session_id}
    record |= {key: entry[key] for key in _KEPT if entry.get(key) is not None}
    data = entry.get("data")
    if isinstance(data, Mapping):
        told = {key: _short(value) for key, value in data.items() if key not in _NOT_TOLD}
        if kind == "admitted" and isinstance(data.get("code"), str):
            told["preview"] = told.pop("code")[:PREVIEW_CHARACTERS]
        record["data"] = told
    return record


def _short(value: Any) -> Any:
    return f"{value[:LONG_CHARACTERS]}…" if isinstance(value, str) and len(value) > LONG_CHARACTERS else value


# ---------------------------------------------------------------------- cursors


def encode_cursor(seen: Mapping[str, int]) -> str:
    """How far each session was told, as text without a meaning for others."""
    return ".".join(
        f"{session_id[:ID_CHARACTERS].replace('-', '')}:{seq}" for session_id, seq in seen.items()
    )


def decode_cursor(text: str) -> dict[str, int]:
    """Beginning of an id (without hyphens) -> seq.

    Raises:
        ApiError: it is no cursor.
    """
    found = {}
    for part in text.split(".") if text else ():
        prefix, _, seq = part.partition(":")
        if not (prefix.isalnum() and seq.isdecimal() and len(seq) <= 18):
            raise ApiError("bad_request", f"{part[:80]!r} is no part of a feed's cursor")
        found[prefix] = int(seq)
    return found


def _prefix(session_id: str) -> str:
    return session_id[:ID_CHARACTERS].replace("-", "")


# ---------------------------------------------------------------------- one session


class _Source:
    """Follows one session.

    Attributes:
        seq: of the last entry that was given out.
    """

    def __init__(
        self, api: Api, person: Person, known: Known, seq: int | None, client: str, *, is_present: bool
    ) -> None:
        self.id = known.id
        self.name = known.name
        self.seq = seq
        self._api = api
        self._person = person
        self._client = client
        self._is_present = is_present
        self._session: AsyncSession | None = None

    async def beat(self) -> None:
        """Pass on that the reader is there."""
        if self._is_present and self._session is not None:
            await self._session.connection.beat()

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        """Each record once, then the one that says how the session ended.

        Raises:
            Refused: this person may not follow it, or may no longer.
        """
        loop = asyncio.get_running_loop()
        short = 0  # links in a row that did not hold
        while True:
            begun = loop.time()
            try:
                async for record in self._over_one_link():
                    yield record
            except (KeeperGone, LinkTimeout) as error:
                log.debug("the feed of %s lost its link: %s", self.name, error)
            except UnknownSession:
                pass  # how it ended is asked below
            ended = await self._api.in_thread(why_gone, self.id)
            if ended is not None:
                async for record in self._the_rest():
                    yield record
                how, why = ended
                yield {
                    "kind": "session",
                    "type": "ended",
                    "session": self.name,
                    "id": self.id,
                    "data": {"how": how, "reason": why},
                }
                return
            short = 0 if loop.time() - begun >= AGAIN_SECONDS else short + 1
            if (
                short > 1
            ):  # the first time it is asked again at once: the link may have ended because the grant did
                await asyncio.sleep(AGAIN_SECONDS)

    async def _over_one_link(self) -> AsyncIterator[dict[str, Any]]:
        async with await AsyncSession.open(
            self.id,
            identity=self._person.identity(),
            client=self._client,
            persistent=self._is_present,
        ) as session:
            self._session = session
            self.name = session.name
            head = head_of(session)
            if self.seq is None:
                self.seq = head
            elif self.seq > head:
                # A cursor of another journal, or of one whose end was lost with the machine.
                yield self._gap(head)
            call = calls.log(after=self.seq, types=tuple(KINDS), follow=True)
            async with await session.start(call) as stream:
                async for item in stream:
                    yield self._take(item.data.get("entry") or {})

    async def _the_rest(self) -> AsyncIterator[dict[str, Any]]:
        """What a session recorded last, from its journal."""
        directory = places.sessions_dir() / self.id
        after = self.seq or 0
        try:
            entries = await self._api.in_thread(
                lambda: list(past.log(directory, after=after, types=tuple(KINDS)))
            )
        except ClientError as error:
            log.warning("the end of the journal of %s cannot be read: %s", self.name, error)
            return
        for entry in entries:
            yield self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        seq = entry.get("seq")
        if isinstance(seq, int):
            self.seq = seq
        data = entry.get("data")
        if entry.get("type") == "renamed" and isinstance(data, Mapping):
            self.name = str(data.get("name") or self.name)
        return record_of(entry, session=self.name, session_id=self.id)

    def _gap(self, head: int) -> dict[str, Any]:
        data = {"after": self.seq, "head": head, "reason": "the journal is shorter than this cursor says"}
        self.seq = head
        return {"kind": "gap", "type": "gap", "session": self.name, "id": self.id, "seq": head, "data": data}


def head_of(session: AsyncSession) -> int:
    journal = session.connection.welcome.session.get("journal")
    seq = journal.get("seq") if isinstance(journal, Mapping) else None
    return seq if isinstance(seq, int) else 0


# ---------------------------------------------------------------------- all of them


class Feed:
    """Merges sessions into one stream of records.

    Args:
        only: the one session that is told of; None for all that this person may know of, also those to come.
            Who follows it is there, and others see him; who looks at all of them is in none.
        after: how far each session was told, by `decode_cursor`; None for from now on.
    """

    def __init__(
        self,
        api: Api,
        person: Person,
        *,
        only: Known | None,
        after: Mapping[str, int] | None,
        client: str,
    ) -> None:
        self._api = api
        self._person = person
        self._only = only
        self._after = after
        self._client = client
        self._seen: dict[str, int] = {}
        self._queue: asyncio.Queue[tuple[_Source, dict[str, Any] | None, ClientError | None]] = asyncio.Queue(
            WAITING_RECORDS
        )
        self._sources: dict[str, asyncio.Task[None]] = {}
        self._present: _Source | None = None
        self._changed_at = -1

    async def beat(self) -> None:
        """The reader has given a sign of life."""
        if self._present is not None:
            await self._present.beat()

    async def records(self) -> AsyncGenerator[dict[str, Any], None]:
        """Whole records; the first one is the `hello` with the cursor from which this begins."""
        try:
            await self._begin()
            yield {"kind": "hello", "type": "hello", "cursor": encode_cursor(self._seen)}
            looking = (
                asyncio.create_task(self._keep_looking(), name="cmdop feed") if self._only is None else None
            )
            try:
                while True:
                    source, record, failure = await self._queue.get()
                    if record is not None:
                        yield self._told(source, record)
                        continue
                    self._sources.pop(source.id, None)
                    if self._only is not None:
                        if failure is not None:
                            raise failure
                        return
                    if failure is not None:
                        log.info("the feed leaves out %s: %s", source.name, failure)
                        self._seen.pop(source.id, None)
            finally:
                if looking is not None:
                    looking.cancel()
                    await asyncio.gather(looking, return_exceptions=True)
        finally:
            for task in self._sources.values():
                task.cancel()
            await asyncio.gather(*self._sources.values(), return_exceptions=True)

    def _told(self, source: _Source, record: dict[str, Any]) -> dict[str, Any]:
        if record["type"] == "ended" and record["kind"] == "session" and "seq" not in record:
            self._seen.pop(source.id, None)
        else:
            self._seen[source.id] = int(record.get("seq") or self._seen.get(source.id, 0))
        return {**record, "cursor": encode_cursor(self._seen)}

    # --- which

    async def _begin(self) -> None:
        if self._only is not None:
            after = None if self._after is None else self._after.get(_prefix(self._only.id), 0)
            await self._start(self._only, after)
            return
        known = await self._api.in_thread(self._live)
        for session in known:
            await self._start(
                session, None if self._after is None else self._after.get(_prefix(session.id), 0)
            )
        for session in await self._api.in_thread(self._ended_meanwhile, known):
            await self._start(session, (self._after or {}).get(_prefix(session.id), 0))

    async def _start(self, known: Known, after: int | None) -> None:
        """Follow a session; where it begins is known when this returns, so that the first cursor can name it."""
        source = _Source(
            self._api, self._person, known, after, self._client, is_present=self._only is not None
        )
        if self._only is not None:
            self._present = source
        if after is None:
            with contextlib.suppress(ClientError):
                async with await AsyncSession.open(
                    known.id, identity=self._person.identity(), client=self._client
                ) as session:
                    source.seq = head_of(session)
        self._seen[known.id] = source.seq or 0
        self._sources[known.id] = asyncio.create_task(self._read(source), name=f"cmdop feed {known.name}")

    async def _read(self, source: _Source) -> None:
        failure: ClientError | None = None
        try:
            async for record in source.records():
                await self._queue.put((source, record, None))
        except ClientError as error:
            failure = error
        await self._queue.put((source, None, failure))

    async def _keep_looking(self) -> None:
        told = set(self._sources)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            changed_at = await self._api.in_thread(_pointers_changed_at)
            if changed_at == self._changed_at:
                continue
            known = await self._api.in_thread(self._live)
            self._changed_at = changed_at
            told &= {session.id for session in known}
            for session in known:
                if session.id not in told and session.id not in self._sources:
                    told.add(session.id)
                    await self._start(session, 0)

    def _live(self) -> list[Known]:
        return [
            Known(pointer.id, pointer.name)
            for pointer in self._api.pointers(self._person)
            if pointer.link is not None and facts(pointer).state == "alive"
        ]

    def _ended_meanwhile(self, live: list[Known]) -> list[Known]:
        """Sessions of the cursor that are no longer there: their rest is told, and their end."""
        wanted = set(self._after or ()) - {_prefix(session.id) for session in live}
        if not wanted:
            return []
        return [
            Known(record.id, record.name)
            for record in Registry.of_user().list_records()
            if _prefix(record.id) in wanted
            and self._api.workspace.may_know(self._person, record.id, record.workspace)
        ]


def _pointers_changed_at() -> int:
    try:
        return Registry.of_user().pointers.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


# ---------------------------------------------------------------------- the websocket


class FeedHandler(WebSocketMixin, websocket.WebSocketHandler, Guarded):
    """`feed`: all sessions that somebody may know of."""

    feed: Feed
    _task: asyncio.Task[None] | None = None
    _beats: asyncio.Task[None] | None = None
    _passing: asyncio.Task[None] | None = None
    _counted: str | None = None

    async def prepare(self) -> None:  # type: ignore[override]  # as Jupyter's
        self.check_first()
        await JupyterHandler.prepare(self, _redirect_to_login=False)
        if not self.check_origin():
            raise ApiError("foreign_origin", "a page of another origin may not open this in somebody's name")

    async def get(self, *args: str, **kwargs: str) -> None:
        if self.current_user is None:
            raise ApiError("unauthenticated", "nobody is known by the credential of this request")
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, "read", "kernels")):
            raise ApiError("not_authorized", "this server's authorizer does not let you read sessions")
        query = self.read_query(FeedQuery)
        after = None if query.after is None else decode_cursor(query.after)
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise ApiError("upgrade_required", "this is a websocket")
        try:
            only = await self.only(kwargs)
            self.api.feed_opened(self.person.actor.id)
        except ClientError as error:
            raise api_error(error) from error
        self._counted = self.person.actor.id
        self.feed = Feed(self.api, self.person, only=only, after=after, client=self.client)
        await super().get(*args, **kwargs)

    get.__verb__ = Verb(  # type: ignore[attr-defined]  # as `api_base.verb` does
        "feed",
        "Websocket: what happens in all sessions, from a cursor on; each message is one record",
        {101: FeedRecord},
        query=FeedQuery,
    )

    async def only(self, path: Mapping[str, str]) -> Known | None:
        """The one session that it is about; None for all of them.

        Raises:
            ClientError: there is none, or this person may not see it.
        """
        return None

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        self.api.websockets.feed_opened(self, self._logged_out)
        self._task = asyncio.create_task(self._tell(), name="cmdop feed of a websocket")
        self._beats = asyncio.create_task(self._ask_whether_there(), name="cmdop pings of a feed")

    async def _ask_whether_there(self) -> None:
        """Each pong of the reader is a sign of life in the session: Jupyter's own pings come too seldom for that."""
        with contextlib.suppress(StreamClosedError, websocket.WebSocketClosedError):
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                self.ping(b"")

    def on_pong(self, data: bytes) -> None:
        super().on_pong(data)
        if self._passing is None or self._passing.done():
            self._passing = asyncio.create_task(self.feed.beat(), name="cmdop sign of life of a feed")

    async def _tell(self) -> None:
        """Write records until there are no more, or nobody reads them."""
        code, reason = CLOSE_ENDED, "the session has ended"
        records = self.feed.records()
        try:
            async for record in records:
                async with asyncio.timeout(self.api.patience_seconds):
                    await self.write_message(msgspec.json.encode(record).decode())
        except TimeoutError:
            self.log.info("A reader of the feed reads too slowly: it is closed, and resumes with its cursor")
            code, reason = CLOSE_SLOW, "you read too slowly: resume with your last cursor"
        except (StreamClosedError, websocket.WebSocketClosedError):
            return
        except Refused as refused:
            code, reason = CLOSE_CREDENTIAL, refused.code
        except ClientError as error:
            self.log.warning("A feed ends: %s", error)
            code, reason = CLOSE_TRY_AGAIN, "resume with your last cursor"
        finally:
            await records.aclose()
        self.close(code, reason)

    def _logged_out(self) -> None:
        self.close(CLOSE_CREDENTIAL, "the login has ended")

    def on_finish(self) -> None:
        """The request has its answer; a websocket that was not opened by it has no `on_close`."""
        if self.get_status() != 101:
            self._uncount()
        super().on_finish()

    def _uncount(self) -> None:
        if self._counted is not None:
            self.api.feed_closed(self._counted)
            self._counted = None

    def on_message(self, message: str | bytes) -> None:
        """Nothing is taken here; a client that talks is not answered."""

    def on_close(self) -> None:
        self.api.websockets.feed_closed(self)
        self._uncount()
        for task in (self._task, self._beats, self._passing):
            if task is not None:
                task.cancel()


class SessionFeedHandler(OfOneSession, FeedHandler):
    """`sessions/{name}/feed`."""

    async def only(self, path: Mapping[str, str]) -> Known | None:
        async with self.api.open(path["name"], self.person, client=self.client) as session:
            return Known(session.id, session.name)

    async def get(self, *args: str, **kwargs: str) -> None:
        await super().get(*args, **kwargs)

    get.__verb__ = Verb(  # type: ignore[attr-defined]  # as `api_base.verb` does
        "feed_of_session",
        "Websocket: what happens in one session, from a cursor on; each message is one record",
        {101: FeedRecord},
        query=FeedQuery,
    )
