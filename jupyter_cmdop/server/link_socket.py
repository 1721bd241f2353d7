"""A session's link over a websocket: what the command line says locally to a keeper, said from somewhere else.

`<base_url>cmdop/api/sessions/<name>/link` is authenticated, authorised and checked for its Origin as a kernel's
websocket is. Then the frames of the link pass in binary messages, cut wherever that is convenient. The server reads
what the client says, and passes on what a client may say: it makes the hello itself, from whom it has authenticated,
and leaves out the verbs that are for servers. What the keeper says is passed on unread. Nothing is stored between the
two: a side that does not read stops the other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_cmdop.client.aio import AsyncConnection
from jupyter_cmdop.client.errors import ClientError, Refused, UnknownSession
from jupyter_cmdop.client.identity import OWNER, Identity
from jupyter_cmdop.client.reach import find_live, link_of
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.sockets import open_link
from jupyter_cmdop.core.actor import ACTOR_KINDS, BadName, check_session_name
from jupyter_cmdop.core.refusal import Refusal
from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.link import FrameDecoder, FrameWatch, encode_frame, encode_spilling, unspill

from .errors import http_error, problem, refuse_token_in_url
from .identity import GrantUser, People, Person
from .link_past import PastLink

if TYPE_CHECKING:
    from .websockets_open import OpenWebsockets

log = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
"""As a keeper gives a link: who has not said anything by then makes room."""
OPEN_SECONDS = 5.0
PIECE_BYTES = 256 * 1024
MESSAGE_BYTES = 1024 * 1024
"""Of one websocket message. Frames may be longer: they come in pieces."""
FRAME_BYTES = 72 * 1024 * 1024
"""Of one frame from a client: the longest code that a keeper takes, written as JSON, and a little."""
LINKS_OF_ONE = 64
"""Open links of one actor, so that one guest does not take the places of all the others."""
CLIENT_CHARACTERS = 150

VERBS = frozenset(
    {
        "status",
        "invite",
        "grants",
        "revoke",
        "take",
        "hand_back",
        "release",
        "policy",
        "run",
        "wait",
        "read",
        "interrupt",
        "answer",
        "log",
        "verify",
        "rename",
        "restart",
        "close",
        "ping",
    }
)
"""What a client may ask from afar. `adopt`, `renew`, `drop` and `activity` are a server's own."""

# RFC 6455, 7.4.1
GOING_AWAY, PROTOCOL_ERROR, WRONG_DATA, NOT_ALLOWED = 1001, 1002, 1003, 1008


class _Hello(msgspec.Struct):
    """What a client may say of itself; everything else is refused or ignored."""

    protocol: int = 0
    oldest: int = 0
    client: str = ""
    persistent: bool = False
    actor: str | None = None
    kind: str | None = None
    token: str | None = None
    verified: Any = None


class LinkSocketHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """One link of one client."""

    auth_resource = "kernels"
    username = ""

    def initialize(self) -> None:
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._decoder = FrameDecoder(max_payload=FRAME_BYTES)
        self._watch = FrameWatch()
        self._answers: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_greeted = False
        self._is_ending = False
        self._no_hello: asyncio.TimerHandle | None = None
        self._session_id = ""
        self._past: PastLink | None = None
        self._saying = asyncio.Lock()

    def set_default_headers(self) -> None:
        """What Jupyter sets for pages means nothing here."""

    @property
    def max_message_size(self) -> int:
        return MESSAGE_BYTES

    def get_compression_options(self) -> dict[str, Any] | None:
        # Without it a message costs what it says; outputs that are large are mostly compressed already.
        return None

    @property
    def websockets(self) -> OpenWebsockets:
        found: OpenWebsockets = self.settings["cmdop_websockets"]
        return found

    # ------------------------------------------------------------------ before the upgrade

    @ws_authenticated
    async def get(self, name: str) -> None:
        refuse_token_in_url(self)
        user = self.current_user
        if not await ensure_async(self.authorizer.is_authorized(self, user, "execute", "kernels")):
            raise problem(403, "this server's authorizer does not let you use kernels")
        person = self._person
        self.username = person.username
        with self.websockets.links.opened(self, person.actor.id):
            try:
                found = await self.websockets.find(name, person)
                path = link_of(found)
                connection = await asyncio.to_thread(open_link, path, OPEN_SECONDS)
            except UnknownSession as error:
                self._past = await self._find_past(name)
                if self._past is None:
                    raise http_error(error) from error
            except ClientError as error:
                raise http_error(error) from error
            else:
                self._session_id = found.id
                self._reader, self._writer = await asyncio.open_unix_connection(sock=connection)
            try:
                await super().get(name=name)
            finally:
                await self._let_go()

    async def _find_past(self, name: str) -> PastLink | None:
        """What is left of a session that has ended, for the owner; others were let in by what has ended too."""
        if not self._person.owns:
            return None
        try:
            found = await asyncio.to_thread(Registry.of_user().resolve, name)
        except ClientError:
            return None
        return None if found.is_live or found.record is None else PastLink(found, self._say)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What is refused before the upgrade, as a program can read it: code, message, what to do next."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        said = error.log_message if isinstance(error, web.HTTPError) else None
        cause = None if error is None else error.__cause__
        shape: dict[str, Any] = {"code": _CODES.get(status_code, "error"), "message": said or self._reason}
        if isinstance(cause, ClientError):
            shape |= {"code": cause.code, "next": list(cause.next)}
        if isinstance(cause, Refused):
            shape["refusal"] = cause.refusal.to_dict()
        self.set_header("Content-Type", "application/json")
        self._run(_done(self.finish(msgspec.json.encode(shape))))

    # ------------------------------------------------------------------ what the client says

    def open(self, *args: Any, **kwargs: Any) -> None:
        super().open()
        self.set_nodelay(True)
        self._no_hello = asyncio.get_running_loop().call_later(
            HELLO_SECONDS, self._end, NOT_ALLOWED, "it did not say who it is"
        )

    async def on_message(self, message: str | bytes) -> None:
        # tornado reads the next one when this is done: a keeper that does not read stops its client.
        if self._is_ending:
            return
        if isinstance(message, str):
            self._end(WRONG_DATA, "a link has binary messages")
            return
        try:
            for header, payload in self._decoder.feed(message):
                await self._take(header, payload)
        except WireError as error:
            self._answer({"error": {"code": "bad_frame", "message": str(error)}})
            self._end(PROTOCOL_ERROR, f"no frame of a link: {error}")
        except OSError as error:
            log.debug("a link over HTTP broke at the keeper's side: %s", error)

    async def _take(self, header: dict[str, Any], payload: bytes) -> None:
        if self._is_ending:
            return
        if not self._is_greeted:
            await self._greet(header)
        elif "beat" in header:
            await self._pass(encode_frame({"beat": 1}))
        elif "cancel" in header:
            if isinstance(header["cancel"], int):
                await self._pass(encode_frame({"cancel": header["cancel"]}))
        else:
            await self._ask(header, payload)

    async def _ask(self, header: dict[str, Any], payload: bytes) -> None:
        number, verb = header.get("id"), header.get("verb")
        if self._past is not None:
            if isinstance(number, int) and isinstance(verb, str):
                args = unspill(header, payload).get("args", {})
                self._run(_done(self._past.ask(number, verb, args)))
            return
        if not isinstance(number, int) or not isinstance(verb, str) or verb in VERBS - {"rename", "invite"}:
            await self._pass(encode_frame(header, payload))  # the keeper says what is wrong with it
            return
        if verb not in VERBS:
            self._refuse(number, Refusal("unsupported", f"{verb[:80]!r} is not asked over HTTP"))
            return
        args = unspill(header, payload).get("args")
        if verb == "invite" and isinstance(args, dict) and args.get("held"):
            self._refuse(number, Refusal("forbidden", "only programs of the owner hold grants for others"))
        elif verb == "rename" and isinstance(args, dict):
            self._run(self._rename(number, str(args.get("name", ""))))
        else:
            await self._pass(encode_frame(header, payload))

    async def _rename(self, number: int, name: str) -> None:
        """Rename while nobody else can take the name: who is not on this machine cannot keep it himself."""
        registry, identity = Registry.of_user(), self._identity(None, None)
        try:
            check_session_name(name)
            holding = registry.holding(name, session_id=self._session_id)
            await asyncio.to_thread(holding.__enter__)
            try:
                found = await asyncio.to_thread(find_live, self._session_id, OWNER, registry)
                async with await AsyncConnection.connect(link_of(found), identity=identity) as connection:
                    answer: Mapping[str, Any] = {"result": await connection.request("rename", {"name": name})}
            finally:
                await asyncio.to_thread(holding.__exit__, None, None, None)
        except Refused as refused:
            answer = {"refusal": refused.refusal.to_dict()}
        except (ClientError, BadName) as error:
            answer = {"error": {"code": getattr(error, "code", "bad_request"), "message": str(error)}}
        self._answer({"id": number, **answer})

    # ------------------------------------------------------------------ who it is

    async def _greet(self, header: dict[str, Any]) -> None:
        try:
            hello = msgspec.convert(header.get("hello"), _Hello)
        except msgspec.ValidationError as error:
            self._turn_away(Refusal("unsupported", f"the first frame must be a hello: {error}"))
            return
        if hello.token is not None or hello.verified is not None:
            message = "over HTTP a credential stands in the Authorization header, and nowhere else"
            self._turn_away(Refusal("forbidden", message))
            return
        person = self._person
        if hello.actor not in (None, person.actor.id) and not person.owns:
            message = f"you came in as {person.actor.id}, and not as {str(hello.actor)[:128]!r}"
            self._turn_away(Refusal("forbidden", message))
            return
        said = {
            "protocol": hello.protocol,
            "oldest": hello.oldest,
            "client": f"{hello.client[:CLIENT_CHARACTERS]} over HTTP",
            "persistent": hello.persistent,
            **self._identity(hello.actor, hello.kind).hello_fields(),
        }
        self._is_greeted = True
        if self._no_hello is not None:
            self._no_hello.cancel()
        if self._past is not None:
            self._answer(self._past.hello(person))
            return
        await self._pass(encode_frame({"hello": said}))
        self._run(self._pump())

    @property
    def _person(self) -> Person:
        return self.websockets.people.of(self)

    def _identity(self, actor: str | None, kind: str | None) -> Identity:
        """Whom this link is for: the owner, who may name an actor as he may locally; else whom we have verified."""
        person = self._person
        if person.owns:
            return Identity(actor=actor, kind=next((k for k in ACTOR_KINDS if k == kind), None))
        return person.identity()

    # ------------------------------------------------------------------ what the keeper says

    async def _pump(self) -> None:
        reader = self._reader
        if reader is None:
            raise AssertionError("a link is greeted when it is open")
        try:
            while data := await reader.read(PIECE_BYTES):
                end = self._watch.pass_by(data)
                if self._answers and end is not None:
                    data = b"".join((data[:end], *self._answers, data[end:]))
                    self._answers.clear()
                await self.write_message(data, binary=True)  # its future is the back pressure
        except (WebSocketClosedError, StreamClosedError):
            return  # the client has gone
        except OSError as error:
            log.debug("a link over HTTP broke at the keeper's side: %s", error)
        self._end(GOING_AWAY, "the keeper closed the link")

    def _answer(self, header: Mapping[str, Any]) -> None:
        """Say something in the keeper's place, behind the frame that is passing."""
        frame = encode_frame(header)
        if not self._watch.is_between:
            self._answers.append(frame)
            return
        try:
            # It is in its place among the others when this returns; only its way out is waited for.
            written = self.write_message(frame, binary=True)
        except WebSocketClosedError:
            return  # nobody is left who could be told
        self._run(_done(written))

    async def _say(self, header: Mapping[str, Any]) -> None:
        """Say something of a session that has ended, when there is room for it."""
        frame = encode_spilling(header, "item" if "item" in header else "result")
        async with self._saying:
            for start in range(0, len(frame), PIECE_BYTES):
                await self.write_message(frame[start : start + PIECE_BYTES], binary=True)

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self._answer({"id": number, "refusal": refusal.to_dict()})

    def _turn_away(self, refusal: Refusal) -> None:
        self._answer({"refusal": refusal.to_dict()})
        self._end(NOT_ALLOWED, refusal.message)

    # ------------------------------------------------------------------ its end

    def end_login(self, reason: str) -> None:
        """The credential that opened it is good no more."""
        self._end(NOT_ALLOWED, reason)

    def _end(self, code: int, reason: str) -> None:
        self._is_ending = True
        self.close(code, _short(reason))

    def end_with_server(self) -> None:
        self._end(GOING_AWAY, "the server stops")

    async def _pass(self, frame: bytes) -> None:
        if self._writer is not None:
            self._writer.write(frame)
            await self._writer.drain()

    def _run(self, doing: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self) -> None:
        if self._no_hello is not None:
            self._no_hello.cancel()
        if self._writer is not None:
            self._writer.close()  # before the first wait: whoever is here may be cancelled
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class OpenLinks:
    """The links that clients of this server have now."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._links: set[LinkSocketHandler] = set()
        self._counts: Counter[str] = Counter()

    def opened(self, link: LinkSocketHandler, actor: str) -> _Place:
        """A place for as long as it is entered.

        Raises:
            HTTPError: 429, this actor has too many.
        """
        if self._counts[actor] >= LINKS_OF_ONE:
            raise problem(429, f"{actor} has {LINKS_OF_ONE} links open at this server: close some")

        def leave() -> None:
            self._links.discard(link)
            self._counts[actor] -= 1
            if not self._counts[actor]:
                del self._counts[actor]

        self._links.add(link)
        self._counts[actor] += 1
        return _Place(leave)

    def that_can_end(self) -> Iterator[LinkSocketHandler]:
        """Those whose credential may end without the keeper's knowing it: a cookie's, or a Hub's word."""
        for link in list(self._links):
            if not isinstance(link.current_user, GrantUser) and not self._people.came_with_the_token(link):
                yield link

    def close(self) -> None:
        for link in list(self._links):
            link.end_with_server()


class _Place:
    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._leave()


_CODES = {
    400: "bad_request",
    401: "forbidden",
    403: "forbidden",
    404: UnknownSession.code,
    429: "rate_limited",
    503: "keeper_gone",
}


async def _done(writing: Awaitable[None]) -> None:
    try:
        await writing
    except (WebSocketClosedError, StreamClosedError):
        pass  # nobody is left who could read it


def _short(reason: str) -> str:
    """What fits in a close frame."""
    return reason.encode()[:120].decode(errors="ignore")


__all__ = ["LinkSocketHandler", "OpenLinks"]
