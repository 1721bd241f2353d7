"""Records a turn before its sends: many entries, one commit, then what they justify, in order.

While the journal cannot be written nothing that acts is carried out: entries and sends wait, in order, and are tried
again. What only shows (output of what already runs) goes out at once; its entries wait with the others.

A body of many megabytes takes long to hash and to write. A thread does that (`Preparation`); the turn that has it waits
for it as a whole, with everything behind it, and the loop goes on with what needs no record.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..journal.entry import Entry
from ..journal.errors import JournalError
from ..journal.layout import INLINE_BYTES
from ..journal.store import Conflict, Head, Prepared
from .clients import LONG_BYTES
from .clock import SYSTEM, Clock

log = logging.getLogger(__name__)

SYNC_SECONDS = 0.05  # entries that are not durable at once are on disk within 100 ms
RETRY_SECONDS = 0.1
MAINTENANCE_SECONDS = 5.0
# Of what waits for a journal that cannot be written. Beyond it output is recorded as a gap, and beyond twice as much
# what else comes without end and justifies nothing. The rest is bounded by the queue: nothing new is let in.
BACKLOG_BYTES = 64 * 1024 * 1024
ENDLESS = frozenset({"attached", "detached", "refused", "unattributed", "backend_output"})
ENTRY_BYTES = 512  # that an entry takes in memory beside its body

TRY_BYTES = (
    256 * 1024
)  # of what waits, in one try: a try on a disk that is still full must cost next to nothing

Send = tuple[bool, Callable[..., object], tuple[Any, ...]]


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

    def prepare(self, bodies: Sequence[bytes]) -> list[Prepared]: ...
    def append(
        self,
        expected_seq: int,
        generation: int,
        entries: Sequence[Entry],
        prepared: Mapping[int, Prepared] | None = None,
    ) -> Head | Conflict: ...
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
        post: has something called in the loop's thread. Without it no thread prepares long bodies.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock = SYSTEM,
        helper: Helper | None = None,
        *,
        post: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self._post = post
        self._unavailable: str | None = None
        self._entries: list[Entry] = []
        self._sends: list[Send] = []
        self._urgent: list[Send] = []
        self._durable = False
        self._long: list[tuple[int, Callable[[], None] | None]] = []
        self._preparation: Preparation | None = None
        self._worker: Worker | None = None
        self._held_entries: list[Entry] = []
        self._held_sends: list[Send] = []
        self._held_bytes = 0
        self._turn_bytes = 0
        self._lost = 0
        self._given_up = 0
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
        preparing = 0 if self._preparation is None else len(self._preparation.entries)
        return self._base + preparing + self._given_up + len(self._held_entries) + len(self._entries)

    @property
    def next_seq(self) -> int:
        """The seq of the output that is noted next; that of the entry before, if it will be lost."""
        return self.last_seq + (0 if self._is_full else 1)

    @property
    def is_backed_up(self) -> bool:
        """Whether so much waits behind a long body that no more output should be read."""
        return self._preparation is not None and self._turn_bytes > BACKLOG_BYTES

    @property
    def _is_full(self) -> bool:
        return self.unavailable is not None and (
            self._held_bytes > BACKLOG_BYTES or self.store.failure is not None
        )

    def _is_given_up(self, entry: Entry) -> bool:
        if self._is_full and (entry.form == "v1" or self.store.failure is not None):
            return True
        return entry.type in ENDLESS and self._held_bytes > 2 * BACKLOG_BYTES

    def note(self, entry: Entry, *, durable: bool = False, prepare: Callable[[], None] | None = None) -> int:
        """Add an entry to the turn.

        Args:
            prepare: what else takes long with a body like this; a thread calls it before the turn is recorded.

        Returns:
            Its sequence number, which it will have whatever becomes of the journal; that for which there is no room
            while the journal cannot be written is counted instead, and has that of the entry before.
        """
        if self.unavailable is not None and self._is_given_up(entry):
            self._lost += 1
            return self.last_seq
        if self._post is not None and len(entry.body) > LONG_BYTES and not entry.withheld:
            self._long.append((len(self._entries), prepare))
        self._entries.append(entry)
        self._turn_bytes += len(entry.body) + ENTRY_BYTES
        self._durable = self._durable or durable
        return self.last_seq

    def send(self, act: Callable[..., object], *args: Any) -> None:
        """Carry `act` out once everything noted so far is recorded."""
        self._sends.append((False, act, args))

    def show(self, act: Callable[..., object], *args: Any) -> None:
        """The same for what only shows: it is not kept back by a journal that cannot be written."""
        self._sends.append((True, act, args))

    def at_once(self, act: Callable[..., object], *args: Any) -> None:
        """The same for what waits for no record: an interrupt, or a word on how things are."""
        if self._preparation is not None or self._long:
            self._urgent.append((True, act, args))
        else:
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
        if self._preparation is not None:
            if not self._preparation.done:
                return self._carry_out_urgent()
            self._end_preparation(self._preparation, now)
            return True
        if self.unavailable is not None:
            self._prepare_nothing()
            return self._commit_while_unavailable(now)
        if not self._entries and not self._sends:
            return False
        if self._long and self._post is not None:
            self._begin_preparation(self._post)
            return self._carry_out_urgent()
        if self._entries:
            try:
                self._append(self._entries, generation)
                self._entries = []  # they are in the journal now, whatever becomes of the sync
                self._make_durable(self._durable)
            except JournalError as error:
                self._fail(str(error), now)
                return self._commit_while_unavailable(now)
        sends, self._sends, self._durable, self._turn_bytes = self._sends, [], False, 0
        self._carry_out(sends)
        return True

    def _begin_preparation(self, post: Callable[[Callable[[], None]], None]) -> None:
        if self._worker is None:
            self._worker = Worker("journal-bodies")
        preparation = Preparation(self.store, self._entries, self._sends, self._durable, self._long)
        self._preparation = preparation
        self._entries, self._sends, self._durable, self._long, self._turn_bytes = [], [], False, [], 0
        self._worker.do(preparation.run, lambda: post(lambda: None))

    def _prepare_nothing(self) -> None:
        """What is long is recorded with the turn, and what did not want to wait for it need not."""
        self._long.clear()
        self._sends[:0], self._urgent = self._urgent, []

    def _end_preparation(self, preparation: Preparation, now: float) -> None:
        """Record what has been prepared, and carry out what it justifies."""
        self._preparation = None
        self._carry_out_urgent()
        entries = preparation.entries
        try:
            if preparation.problem is not None:
                raise preparation.problem
            self._append(entries, entries[-1].generation, preparation.prepared)
            entries = []  # they are in the journal now, whatever becomes of the sync
            self._make_durable(preparation.durable)
        except JournalError as error:
            # The turn in hand is held back, and this one with it: before it.
            self._fail(str(error), now)
            self._entries = entries + self._entries
            self._sends = preparation.sends + self._sends
            return
        self._carry_out(preparation.sends)

    def _carry_out_urgent(self) -> bool:
        urgent, self._urgent = self._urgent, []
        self._carry_out(urgent)
        return bool(urgent)

    def _make_durable(self, at_once: bool) -> None:
        if at_once:
            self.store.sync()
        elif self._sync_at is None:
            self._sync_at = self.clock.monotonic() + SYNC_SECONDS

    def _append(
        self, entries: list[Entry], generation: int, prepared: Mapping[int, Prepared] | None = None
    ) -> None:
        """Put entries into the journal.

        Args:
            generation: that in force. Where others wait behind these it is that of the last of them: the journal takes
                no entry of a generation below the one that it has been told.
        """
        head = self.store.append(self._base, generation, entries, prepared)
        if isinstance(head, Conflict):
            raise LostTheJournal(
                f"the journal has moved on to entry {head.head.seq}, behind this keeper's back"
            )
        self._base = head.seq

    def _carry_out(self, sends: list[Send]) -> None:
        for _, act, args in sends:
            act(*args)

    def _fail(self, reason: str, now: float) -> None:
        log.error("the journal cannot be written: %s", reason)
        self._unavailable = reason
        self._retry_at = now + RETRY_SECONDS

    def _commit_while_unavailable(self, now: float) -> bool:
        """Hold back the turn, show its output, and try again when it is time."""
        self._held_entries.extend(self._entries)
        self._held_bytes += sum(map(_size, self._entries))
        shown = [send for send in self._sends if send[0]]
        self._held_sends.extend(send for send in self._sends if not send[0])
        self._entries, self._sends, self._durable, self._turn_bytes = [], [], False, 0
        if self.store.failure is not None:
            self._give_up()
        self._carry_out(shown)
        if self._retry_at is None or now < self._retry_at or self.store.failure is not None:
            return bool(shown)
        self._retry_at = now + RETRY_SECONDS
        waiting = len(self._held_entries)
        try:
            while self._held_entries or self._lost:
                some = self._some_held()
                self._append(some, some[-1].generation)
                self._held_bytes -= sum(map(_size, some))
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

    def _give_up(self) -> None:
        """The store refuses for good: what waits will never be recorded, so it never acts, and need not be kept."""
        self._given_up += len(self._held_entries)
        self._held_bytes = 0
        self._held_entries.clear()
        self._held_sends.clear()

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
            self._held_bytes += _size(self._held_entries[-1])
        size = 0
        for count, entry in enumerate(self._held_entries):
            size += len(entry.body)
            if count and size > TRY_BYTES:
                return self._held_entries[:count]
        return list(self._held_entries)

    @property
    def is_preparing(self) -> bool:
        """Whether a turn waits for its long bodies."""
        return self._preparation is not None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._helper.stop()
        self.store.close()


def _size(entry: Entry) -> int:
    return len(entry.body) + ENTRY_BYTES


class Preparation:
    """A turn with long bodies, while a thread hashes and writes them."""

    def __init__(
        self,
        store: Store,
        entries: list[Entry],
        sends: list[Send],
        durable: bool,
        long: Sequence[tuple[int, Callable[[], None] | None]],
    ) -> None:
        self._store = store
        self.entries = entries
        self.sends = sends
        self.durable = durable
        self._long = long
        self.prepared: dict[int, Prepared] = {}
        self.problem: JournalError | None = None
        self.finished = threading.Event()

    @property
    def done(self) -> bool:
        return self.finished.is_set()

    def run(self) -> None:
        try:
            for _, prepare in self._long:
                if prepare is not None:
                    prepare()
            # Long bodies are in one order in the file: those that are not so long are written in between.
            indices = [i for i, e in enumerate(self.entries) if len(e.body) > INLINE_BYTES and not e.withheld]
            bodies = [self.entries[index].body for index in indices]
            self.prepared = dict(zip(indices, self._store.prepare(bodies), strict=True))
        except JournalError as error:
            self.problem = error
        finally:
            self.finished.set()


class Worker:
    """A thread that does one thing after the other, for a loop that must not wait."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """`done` is called in the same thread, whatever becomes of the job."""
        self._jobs.put((job, done))

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, done = work
            try:
                job()
            except Exception:  # the next job is not to blame, and whoever waits is told in any case
                log.exception("a job of the thread %s failed", threading.current_thread().name)
            done()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join(timeout=10)


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
