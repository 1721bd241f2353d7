"""Those who wait on the link: for an operation's end, for a quiet session, for what is recorded next.

Readers take the journal page by page, at their own pace; a slow one holds up nobody and keeps nothing in memory but
its cursor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.refusal import Refusal
from ..journal.errors import JournalError
from .journal_desk import DEFAULT_RESULT_BYTES, Item, LongItem, Page, Wanted, page, result_of
from .link_calls import Call

if TYPE_CHECKING:
    from .journal_desk import JournalDesk
    from .link_endpoint import LinkConnection
    from .runner import Runner


PACE_SECONDS = 0.025
"""Between two pages of one reader while the journal grows: what comes first is told at once, what follows together."""


@dataclass(slots=True)
class Follow:
    """A reader of the journal: page by page, at its own pace.

    Attributes:
        limit, limit_bytes: how much to send at the most.
        cut: whether that stopped it.
        until: the seq after which it is complete; None follows for ever.
        finish: called when it is complete.
        next_at: before which it gets no further page of a journal that grows.
    """

    call: Call
    wanted: Wanted
    after: int
    until: int | None
    finish: Callable[[int], None]
    limit: int | None = None
    limit_bytes: int | None = None
    in_flight: bool = False
    items: int = 0
    size: int = 0
    cut: bool = False
    next_at: float = 0.0

    def is_full(self, item: Item | LongItem) -> bool:
        """Whether this item is beyond what was asked for; the first one never is."""
        if self.limit is not None:
            return self.items >= self.limit
        if self.limit_bytes is None:
            return False
        self.size += len(item.raw) if isinstance(item, LongItem) else len(json.dumps(item))
        return self.items > 0 and self.size > self.limit_bytes


@dataclass(slots=True)
class Waiter:
    """A `run` or `wait` that has not been answered yet."""

    call: Call
    operation: str | None
    duplicate: bool
    request_id: str | None
    max_bytes: int | None
    due: float | None
    follow: Follow | None = None
    answering: bool = False


def refuse_unknown(call: Call, message: str) -> None:
    call.refuse(Refusal("unknown_operation", message, next=("log", "status")))


class LinkWaiting:
    """Waiters and readers of all link connections."""

    def __init__(self, runner: Runner, journal: JournalDesk) -> None:
        self._runner = runner
        self._journal = journal
        self._follows: list[Follow] = []
        self._waiters: list[Waiter] = []
        runner.loop.add_timer(self._next_timer)

    def answer_when_ended(self, waiter: Waiter, stream: bool) -> None:
        """Answer when the operation has ended, or the time is over."""
        live = self._runner.operations.get(waiter.operation or "")
        if stream and live is not None:
            waiter.follow = Follow(
                waiter.call,
                Wanted("run", operation=live.id),
                max(0, live.first_seq - 1),
                None,
                lambda seq: None,
            )
            self._follows.append(waiter.follow)
        self._waiters.append(waiter)
        waiter.call.connection.on_close.append(lambda: self._drop(waiter))
        if waiter.operation is not None and (live is None or live.outcome is not None):
            self._operation_ended(waiter)
        elif live is not None:
            live.ended.append(lambda _, __: self._operation_ended(waiter))
        self._check_idle()
        if waiter.follow is not None:
            self._pump(waiter.follow)

    def _operation_ended(self, waiter: Waiter) -> None:
        if waiter.answering or waiter.call.done:
            return
        waiter.answering = True
        if waiter.follow is None:
            self.answer_from_journal(waiter)
            return
        # First everything that was shown, then the result.
        follow = waiter.follow
        follow.until = self._runner.recorder.committed_seq
        follow.finish = lambda seq: self.answer_from_journal(waiter)
        if not follow.in_flight:
            self._pump(follow)

    def answer_from_journal(self, waiter: Waiter) -> None:
        operation = waiter.operation
        if operation is None:
            return
        live = self._runner.operations.get(operation)
        first = 0 if live is None else live.first_seq

        def told(result: Item | JournalError) -> None:
            self._drop(waiter)
            if isinstance(result, JournalError):
                waiter.call.fail("journal", str(result))
                return
            if result["generation"] is None:
                refuse_unknown(waiter.call, f"no operation {operation!r} is known here")
                return
            core = self._runner.session.operations.get(operation)
            if core is not None and core.is_active:
                result["status"] = core.state
            result["duplicate"] = waiter.duplicate
            result["request_id"] = waiter.request_id or result["request_id"]
            waiter.call.result(result)

        limit = DEFAULT_RESULT_BYTES if waiter.max_bytes is None else waiter.max_bytes
        self._journal.ask(lambda reader: result_of(reader, operation, max_bytes=limit, first_seq=first), told)

    def _drop(self, waiter: Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.follow is not None and waiter.follow in self._follows:
            self._follows.remove(waiter.follow)

    def _check_idle(self) -> None:
        """Answer those who wait for a session in which nothing runs or waits."""
        session = self._runner.session
        if (
            any(lane.running or lane.queue for lane in session.lanes.values())
            or session.backend == "starting"
        ):
            return
        for waiter in [w for w in self._waiters if w.operation is None]:
            self._drop(waiter)
            waiter.call.result(self.idle_result("idle"))

    def idle_result(self, status: str) -> Item:
        session = self._runner.session
        return {
            "status": status,
            "operation": None,
            "generation": session.floor.generation,
            "incarnation": session.incarnation,
            "cursor": f"{session.incarnation}:{self._runner.recorder.committed_seq}",
            "basis": "observed",
            "outputs": [],
        }

    def start(self, follow: Follow) -> None:
        self._follows.append(follow)
        follow.call.connection.on_close.append(lambda: self._stop(follow))
        self._pump(follow)

    def _stop(self, follow: Follow) -> None:
        if follow in self._follows:
            self._follows.remove(follow)

    def _pump(self, follow: Follow) -> None:
        """Fetch the next page for a reader, unless it still has something to read."""
        if follow.in_flight or follow not in self._follows:
            return
        if follow.call.connection.is_backed_up:
            follow.in_flight = True

            def resume() -> None:
                follow.in_flight = False
                self._pump(follow)

            follow.call.connection.on_drain.append(resume)
            return
        follow.in_flight = True
        follow.next_at = time.monotonic() + PACE_SECONDS
        until = follow.until

        def told(result: Page | JournalError) -> None:
            follow.in_flight = False
            self._page(follow, result)

        self._journal.ask(lambda reader: page(reader, follow.wanted, follow.after, until), told)

    def _page(self, follow: Follow, result: Page | JournalError) -> None:
        if follow not in self._follows:
            return
        if isinstance(result, JournalError):
            self._stop(follow)
            follow.call.fail("journal", str(result))
            return
        for item in result.items:
            if follow.is_full(item):
                follow.cut = True
                self._stop(follow)
                follow.finish(follow.after)
                return
            follow.items += 1
            if isinstance(item, LongItem):
                follow.call.long_item(item.raw)
                follow.after = item.seq
                continue
            follow.call.item(item)
            follow.after = int(item.get("seq") or follow.after)
        follow.after = max(follow.after, result.after)
        if follow.until is not None and follow.after >= follow.until and not result.more:
            self._stop(follow)
            follow.finish(follow.after)
        elif result.more or follow.until is not None:
            self._pump(follow)

    def after_commit(self) -> None:
        """Something may have been recorded: readers that follow get their next page, waiters their answer."""
        if self._follows:
            now = time.monotonic()
            for follow in list(self._follows):
                if self._has_news(follow) and now >= follow.next_at:
                    self._pump(follow)
        if self._waiters:
            self._check_idle()

    def _has_news(self, follow: Follow) -> bool:
        return not follow.in_flight and follow.after < self._runner.recorder.committed_seq

    def _next_timer(self) -> float | None:
        due = [w.due for w in self._waiters if w.due is not None]
        due.extend(follow.next_at for follow in self._follows if self._has_news(follow))
        return min(due, default=None)

    def run_timers(self) -> None:
        now = time.monotonic()
        for waiter in [w for w in self._waiters if w.due is not None and w.due <= now]:
            waiter.due = None
            if waiter.operation is None:
                self._drop(waiter)
                session = self._runner.session
                busy = next((lane.running for lane in session.lanes.values() if lane.running), None)
                state = session.operations[busy].state if busy else "queued"
                waiter.call.result({**self.idle_result(state), "operation": busy})
            else:
                self._operation_ended(waiter)

    def cancel(self, connection: LinkConnection, number: int) -> None:
        for waiter in [
            w for w in self._waiters if w.call.connection is connection and w.call.number == number
        ]:
            self._drop(waiter)
            waiter.call.result(
                {**self.idle_result("cancelled"), "cancelled": True, "operation": waiter.operation}
            )
        for follow in [
            f for f in self._follows if f.call.connection is connection and f.call.number == number
        ]:
            self._stop(follow)
            incarnation = self._runner.session.incarnation
            follow.call.result({"cancelled": True, "cursor": f"{incarnation}:{follow.after}", "more": False})

    def session_ended(self) -> None:
        """Those who wait for quiet have it."""
        for waiter in [w for w in self._waiters if w.operation is None]:
            self._drop(waiter)
            waiter.call.result(self.idle_result("idle"))

    @property
    def is_quiet(self) -> bool:
        """Whether no answer is owed any more."""
        return not self._waiters and not any(follow.until is not None for follow in self._follows)
