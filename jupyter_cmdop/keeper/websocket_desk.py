"""Websockets that a Jupyter server has handed over: adopted, kept, renewed, closed."""

from __future__ import annotations

import heapq
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from websockets.exceptions import WebSocketException
from websockets.frames import CloseCode

from ..clocks import session_seconds
from ..core.actor import Actor
from ..core.grants import Role
from ..core.prompts import may_answer
from .websocket_connection import NOT_ALLOWED, SESSION_OVER, Leaving, WebsocketConnection
from .websocket_seat import MARK_SECONDS, MARK_SHARE_SECONDS, PING_SECONDS, Seat

if TYPE_CHECKING:
    from .journal_desk import JournalDesk
    from .kernel_requests import KernelRequests
    from .kernel_side import KernelSide
    from .runner import Runner

MAX_CONNECTIONS = 1024
KEPT_SEATS = 256  # of clients that are away
KEPT_SECONDS = 24 * 3600.0
TICK_SECONDS = 2.0


class AdoptActor(msgspec.Struct):
    """The user whom the Jupyter server has verified."""

    id: str
    kind: str = "human"
    name: str = ""
    on_behalf_of: str | None = None


class AdoptArgs(msgspec.Struct):
    """Arguments of the verb `adopt`; the socket comes beside them (SCM_RIGHTS), the leftover bytes as payload."""

    path: str
    headers: list[tuple[str, str]]
    actor: AdoptActor
    session_id: str = ""
    role: Role = "peer"
    grant: str | None = None
    valid_until_seconds: float | None = None
    client: str = ""
    origin: str | None = None
    cursor: str | None = None
    spliced: bool = False


class NotAdopted(Exception):
    """The socket was not taken; the Jupyter server answers the request itself."""


class WebsocketDesk:
    """All websocket clients of this session, present or expected back."""

    def __init__(
        self, runner: Runner, kernel: KernelSide, requests: KernelRequests, journal: JournalDesk
    ) -> None:
        self._runner = runner
        self._kernel = kernel
        self._requests = requests
        self._journal = journal
        self._seats: OrderedDict[tuple[str, str], Seat] = OrderedDict()
        self._count = 0
        self._stirred: dict[Seat, None] = {}
        self._owed: list[tuple[float, int, Seat]] = []  # a heap: who is to mark when
        self._owed_count = 0
        self._leaving = Leaving()
        self._ticked_at = time.monotonic()
        self._tick_at = self._ticked_at + TICK_SECONDS
        runner.loop.add_timer(self._next_timer)

    def _next_timer(self) -> float | None:
        if not self._seats and not self._leaving:
            return None
        return min(self._next_tick, self._owed[0][0]) if self._owed else self._next_tick

    @property
    def _next_tick(self) -> float:
        return min(self._tick_at, self._ticked_at + TICK_SECONDS) if self._leaving else self._tick_at

    def clients(self) -> Iterator[Seat]:
        return (seat for seat in list(self._seats.values()) if seat.connection is not None)

    @property
    def count(self) -> int:
        return sum(1 for _ in self.clients())

    def adopt(self, args: AdoptArgs, connection: socket.socket, leftover: bytes, after: int | None) -> str:
        """Take over an accepted socket and answer its handshake.

        Args:
            after: the seq behind which its client wants to read on, where it says so itself.

        Returns:
            The attachment's id.

        Raises:
            NotAdopted: it was not taken, and nothing has been written to it.
        """
        if self.count >= MAX_CONNECTIONS:
            raise NotAdopted(f"this session has {MAX_CONNECTIONS} websockets already")
        actor = Actor(args.actor.id, args.actor.kind, args.actor.name, args.actor.on_behalf_of)  # type: ignore[arg-type]  # shown, never decided on
        session_id = args.session_id or f"anonymous-{self._count}"
        seat = self._seats.get((actor.id, session_id))
        is_new = seat is None
        if seat is None:
            seat = self._make_seat(actor, args, session_id)
        websocket = self._open(seat, connection, args.headers)
        seat.settle()
        if not seat.is_open:  # what came last on its old connection was that it goes for good
            is_new = True
            seat = self._make_seat(actor, args, session_id)
            websocket = self._open(seat, connection, args.headers)
        if after is None:
            after = self._newcomer_from() if is_new else seat.settled
        seat.client = args.client
        self._look_soon()
        seat.valid_until = (
            None if args.valid_until_seconds is None else session_seconds() + args.valid_until_seconds
        )
        self._seats[(actor.id, session_id)] = seat
        self._seats.move_to_end((actor.id, session_id))
        seat.connect(websocket, role=args.role, grant=args.grant, after=after)
        if leftover and seat.connection is websocket:
            websocket.take(leftover)
        return seat.attachment

    def _open(
        self, seat: Seat, connection: socket.socket, headers: list[tuple[str, str]]
    ) -> WebsocketConnection:
        try:
            websocket = WebsocketConnection(
                self._runner.loop,
                connection,
                headers=headers,
                leaving=self._leaving,
                received=lambda data: seat.received(websocket, data),
                ponged=lambda payload: seat.ponged(websocket, payload),
                closed=lambda code, reason: seat.closed(websocket, code, reason),
                drained=seat.drained,
                stirred=lambda: self._stir(seat),
            )
        except (WebSocketException, OSError, ValueError) as error:
            raise NotAdopted(f"the handshake failed: {error}") from error
        return websocket

    def _make_seat(self, actor: Actor, args: AdoptArgs, session_id: str) -> Seat:
        self._count += 1
        return Seat(
            self._runner,
            self._requests,
            self._journal,
            attachment=f"w{self._count}",
            actor=actor,
            role=args.role,
            grant=args.grant,
            session_id=session_id,
            gone=self._gone,
            caught_up=self._show_prompts_again,
            stirred=self._stir,
            owes_mark=self._owe_mark,
        )

    def _newcomer_from(self) -> int:
        """A newcomer is shown the operations that run now from their beginning, then what comes."""
        session = self._runner.session
        running = [lane.running for lane in session.lanes.values() if lane.running is not None]
        firsts = [live.delivered_seq for name in running if (live := self._runner.operations.get(name))]
        return max(0, min(firsts, default=self._runner.recorder.committed_seq))

    def _show_prompts_again(self, seat: Seat) -> None:
        """A prompt of its own that waits, and that it may not have read, is shown to a client that has come back."""
        session = self._runner.session
        for name, prompt in session.prompts.items():
            live = self._runner.operations.get(name)
            if live is None or live.origin.endpoint is not seat:
                continue
            if seat.has_lost_prompt:
                live.shown_prompt = None
            may = may_answer(session, seat.actor.id, session.operations[name]) is None
            self._kernel.show_prompt(live, prompt["prompt"], to_author=may)

    def _gone(self, seat: Seat, code: int | None) -> None:
        """Its connection has ended. One that closes by itself (a closed page, RFC 6455: 1001) is not expected back."""
        if code in (CloseCode.GOING_AWAY, CloseCode.NORMAL_CLOSURE):
            self._drop(seat)
        away = [s for s in self._seats.values() if s.connection is None]
        for oldest in away[: max(0, len(away) - KEPT_SEATS)]:
            self._drop(oldest)

    def _drop(self, seat: Seat) -> None:
        seat.forget()
        self._seats.pop((seat.actor.id, seat.session_id), None)
        self._requests.forget(seat)
        self._runner.forget_client(seat)

    def renew(self, attachment: str, seconds: float | None) -> bool:
        """The credential behind a websocket is still good."""
        seat = self._find(attachment)
        if seat is None:
            return False
        seat.valid_until = None if seconds is None else session_seconds() + seconds
        self._look_soon()
        known = self._runner.session.attachments.get(attachment)
        if known is not None and known.role != seat.role:
            seat.attach_again()
        return True

    def drop(self, *, attachment: str | None, actor: str | None, grant: str | None, reason: str) -> int:
        """Close websockets, for good: their credential has ended."""
        chosen = [
            seat
            for seat in self._seats.values()
            if attachment == seat.attachment
            or (actor is not None and actor == seat.actor.id)
            or (grant is not None and grant == seat.grant_id)
        ]
        for seat in chosen:
            seat.close(NOT_ALLOWED, reason)
            self._drop(seat)
        return len(chosen)

    def _find(self, attachment: str) -> Seat | None:
        return next((s for s in self._seats.values() if s.attachment == attachment), None)

    def excuse(self) -> None:
        for seat in self.clients():
            seat.excuse()
        self._tick_at = self._ticked_at

    def run_timers(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._ticked_at = now
        self._leaving.run_timers(now)
        for seat in list(self._seats.values()):
            seat.run_timer(now)
            if seat.has_run_out(session_seconds()):
                seat.valid_until = None
                seat.observe_only()
            if seat.left_at is not None and now - seat.left_at > KEPT_SECONDS:
                self._drop(seat)
        self._tick_at = now + min(
            (seat.needs_look_in(now, session_seconds()) for seat in self.clients()), default=PING_SECONDS
        )

    def _look_soon(self) -> None:
        """Somebody is new, or is to be looked at by another time than was thought."""
        self._tick_at = min(self._tick_at, self._ticked_at + TICK_SECONDS)

    def _stir(self, seat: Seat) -> None:
        self._stirred[seat] = None

    def _owe_mark(self, seat: Seat, due: float) -> None:
        self._owed_count += 1
        heapq.heappush(self._owed, (due, self._owed_count, seat))

    def after_commit(self) -> None:
        """End the turn of those whom it concerned: an answered mark is a turn of its own, and there may be many."""
        now = time.monotonic()
        while self._owed and self._owed[0][0] <= now:
            seat = heapq.heappop(self._owed)[2]
            seat.waits_to_mark = False
            self._stirred[seat] = None
        if not self._stirred:
            return
        stirred, self._stirred = self._stirred, {}
        pace = max(MARK_SECONDS, len(self._seats) * MARK_SHARE_SECONDS)
        for seat in stirred:
            seat.end_turn(pace)

    def close_all(self, reason: str) -> None:
        for seat in list(self._seats.values()):
            seat.close(SESSION_OVER, reason)
        self._seats.clear()
        self._leaving.release_all()
