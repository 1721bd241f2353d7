"""Records a turn before its sends: many entries, one commit, then what they justify, in order.

While the journal cannot be written nothing that acts is carried out: entries and sends wait, in order, and are tried
again. What only shows (output of what already runs) goes out at once; its entries wait with the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..journal.entry import Entry
from ..journal.errors import JournalError
from ..journal.store import Conflict, Head
from .clock import SYSTEM, Clock

log = logging.getLogger(__name__)

SYNC_SECONDS = 0.05  # entries that are not durable at once are on disk within 100 ms
RETRY_SECONDS = 0.1
MAINTENANCE_SECONDS = 5.0
BACKLOG_BYTES = (
    64 * 1024 * 1024
)  # output waiting for a journal that cannot be written; more is recorded as a gap


TRY_BYTES = (
    256 * 1024
)  # of what waits, in one try: a try on a disk that is still full must cost next to nothing


class LostTheJournal(Exception):
    """Another writer has appended: this keeper must stop acting for the session."""


class Store(Protocol):
    """What is asked of a journal; see `JournalStore`."""

    @property
    def head(self) -> Head: ...
    @property
    def wal(self) -> bool: ...
    @property
    def failure(self) -> str | None: ...

    def append(self, expected_seq: int, generation: int, entries: Sequence[Entry]) -> Head | Conflict: ...
    def find_request(self, actor: str, request_id: str) -> tuple[str | None, str] | None: ...
    def sync(self) -> None: ...
    def maintenance(self) -> bool: ...
    def close(self) -> None: ...


class Helper(Protocol):
    """Who syncs behind the loop's back."""

    def wake(self, maintain: bool) -> None: ...
    def stop(self) -> None: ...


class Recorder:
    """The entries and sends of the turn in hand, and those that wait for the journal.

    Args:
        store: the journal.
        clock: where the time is read.
        helper: makes the sync and the checkpoint of `store` when it is woken; a thread, if not given.
    """

    def __init__(self, store: Store, clock: Clock = SYSTEM, helper: Helper | None = None) -> None:
        self.store = store
        self.clock = clock
        self._unavailable: str | None = None
        self._entries: list[Entry] = []
        self._sends: list[tuple[bool, Callable[..., object], tuple[Any, ...]]] = []
        self._durable = False
        self._held_entries: list[Entry] = []
        self._held_sends: list[tuple[bool, Callable[..., object], tuple[Any, ...]]] = []
        self._held_bytes = 0
        self._lost = 0
        self._retry_at: float | None = None
        self._sync_at: float | None = None
        self._maintain_at = self.clock.monotonic() + MAINTENANCE_SECONDS
        self._base = store.head.seq
        self._helper: Helper = helper or _Thread(store)

    @property
    def unavailable(self) -> str | None:
        """Why the journal cannot be written now, or None; also when only the helper has met the fault."""
        return self._unavailable or self.store.failure

    @property
    def committed_seq(self) -> int:
        """The last entry that is in the journal."""
        return self._base

    @property
    def last_seq(self) -> int:
        """The last entry that is in the journal or will be."""
        return self._base + len(self._held_entries) + len(self._entries)

    @property
    def next_seq(self) -> int:
        """The seq of the output that is noted next; that of the entry before, if it will be lost."""
        return self.last_seq + (0 if self._is_full else 1)

    @property
    def _is_full(self) -> bool:
        return self.unavailable is not None and self._held_bytes > BACKLOG_BYTES

    def note(self, entry: Entry, *, durable: bool = False) -> int:
        """Add an entry to the turn.

        Returns:
            Its sequence number, which it will have whatever becomes of the journal; output for which there is no
            room while the journal cannot be written is counted instead, and has that of the entry before.
        """
        if entry.form == "v1" and self._is_full:
            self._lost += 1
            return self.last_seq
        self._entries.append(entry)
        self._durable = self._durable or durable
        return self.last_seq

    def send(self, act: Callable[..., object], *args: Any) -> None:
        """Carry `act` out once everything noted so far is recorded."""
        self._sends.append((False, act, args))

    def show(self, act: Callable[..., object], *args: Any) -> None:
        """The same for what only shows: it is not kept back by a journal that cannot be written."""
        self._sends.append((True, act, args))

    def next_timer(self) -> float | None:
        due = [when for when in (self._retry_at, self._sync_at) if when is not None]
        return min(due, default=None)

    def commit(self, generation: int) -> bool:
        """End the turn.

        Args:
            generation: under which this keeper acts.

        Returns:
            Whether anything was recorded or sent.

        Raises:
            LostTheJournal: another writer has the journal; nothing was sent.
        """
        now = self.clock.monotonic()
        if self._sync_at is not None and now >= self._sync_at:
            self._sync_at = None
            self._helper.wake(now >= self._maintain_at)
            if now >= self._maintain_at:
                self._maintain_at = now + MAINTENANCE_SECONDS
        if self.unavailable is not None:
            return self._commit_while_unavailable(generation, now)
        if not self._entries and not self._sends:
            return False
        if self._entries:
            try:
                self._append(self._entries, generation)
                self._entries = []  # they are in the journal now, whatever becomes of the sync
                if self._durable:
                    self.store.sync()
                elif self._sync_at is None:
                    self._sync_at = self.clock.monotonic() + SYNC_SECONDS
            except JournalError as error:
                self._fail(str(error), now)
                return self._commit_while_unavailable(generation, now)
        sends, self._sends, self._durable = self._sends, [], False
        self._carry_out(sends)
        return True

    def _append(self, entries: list[Entry], generation: int) -> None:
        head = self.store.append(self._base, generation, entries)
        if isinstance(head, Conflict):
            raise LostTheJournal(
                f"the journal has moved on to entry {head.head.seq}, behind this keeper's back"
            )
        self._base = head.seq

    def _carry_out(self, sends: list[tuple[bool, Callable[..., object], tuple[Any, ...]]]) -> None:
        for _, act, args in sends:
            act(*args)

    def _fail(self, reason: str, now: float) -> None:
        log.error("the journal cannot be written: %s", reason)
        self._unavailable = reason
        self._retry_at = now + RETRY_SECONDS

    def _commit_while_unavailable(self, generation: int, now: float) -> bool:
        """Hold back the turn, show its output, and try again when it is time."""
        self._held_entries.extend(self._entries)
        self._held_bytes += sum(len(entry.body) for entry in self._entries)
        shown = [send for send in self._sends if send[0]]
        self._held_sends.extend(send for send in self._sends if not send[0])
        self._entries, self._sends, self._durable = [], [], False
        self._carry_out(shown)
        if self._retry_at is None or now < self._retry_at:
            return bool(shown)
        self._retry_at = now + RETRY_SECONDS
        waiting = len(self._held_entries)
        try:
            while self._held_entries or self._lost:
                some = self._some_held()
                self._append(some, generation)
                self._held_bytes -= sum(len(entry.body) for entry in some)
                del self._held_entries[: len(some)]
            self.store.sync()
        except JournalError as error:
            self._unavailable = str(error)
            return bool(shown)
        log.warning("the journal can be written again; %d entries were waiting", waiting)
        self._unavailable, self._retry_at, self._held_bytes = None, None, 0
        sends, self._held_sends = self._held_sends, []
        self._carry_out(sends)
        return True

    def _some_held(self) -> list[Entry]:
        """The first of what waits, up to `TRY_BYTES`; behind all of it, how much has been given up."""
        if not self._held_entries:
            lost, self._lost = self._lost, 0
            body = b'{"lost":%d,"reason":"the journal could not be written"}' % lost
            head = self.store.head
            self._held_entries.append(
                Entry(
                    type="gap",
                    actor="keeper",
                    generation=head.generation,
                    incarnation=head.incarnation,
                    body=body,
                    time_ns=self.clock.wall_ns(),
                    mono_ns=self.clock.monotonic_ns(),
                )
            )
            self._held_bytes += len(body)
        size = 0
        for count, entry in enumerate(self._held_entries):
            size += len(entry.body)
            if count and size > TRY_BYTES:
                return self._held_entries[:count]
        return list(self._held_entries)

    def close(self) -> None:
        self._helper.stop()
        self.store.close()


class _Thread:
    """The thread that syncs and checkpoints, so that the loop does not wait for the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._event = threading.Event()
        self._stopped = False
        self._maintain = False
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    def wake(self, maintain: bool) -> None:
        self._maintain = self._maintain or maintain
        self._event.set()

    def _run(self) -> None:
        while True:
            self._event.wait()
            self._event.clear()
            if self._stopped:
                return
            try:
                self._store.sync()
                if self._maintain:
                    self._maintain = False
                    self._store.maintenance()
            except JournalError as error:
                # The next append meets the same fault and holds the turn back; here it is only told.
                log.error("the journal could not be synced: %s", error)

    def stop(self) -> None:
        self._stopped = True
        self._event.set()
        self._thread.join(timeout=10)
