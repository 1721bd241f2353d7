"""A journal on a disk that can fail, fill up, be late, and lose what was not synced: the interface of `JournalStore`.

The chain is the real one (`journal.entry`), so that what survives can be verified from the bytes. A batch is a
transaction: after a loss of power the journal ends behind the last whole batch that reached the disk, which is one that
was synced or a later one. The death of the process loses nothing that was appended.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from jupyter_cmdop.journal.entry import (
    GENESIS,
    SALT_BYTES,
    Entry,
    Sealed,
    admission_digest,
    check,
    seal,
)
from jupyter_cmdop.journal.errors import DuplicateRequest, JournalUnavailable
from jupyter_cmdop.journal.store import Conflict, Head, JournalStore, Prepared

LOG_ID = "simulated"
Fault = Literal["full", "error"]


class Crash(BaseException):
    """The keeper is gone, at this very point."""


class Disk:
    """The journal of one seed.

    Args:
        tick: called before and after each step that a crash can fall between.

    Attributes:
        rows: what was appended, and survives the death of the process.
        durable: seq up to which it survives a loss of power.
        ends: seqs at which a batch ended.
        failing: what the next appends fail with. failing_reads: whether look-ups fail.
        fails_at_sync: the next sync fails, and with it the store for good.
        gaps, lost: how many entries say that output was lost in an outage, and how much that was.
        at: (type, operation) -> seq; for inputs that are no operation ("input", message id).
    """

    wal = True

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self.rows: list[Sealed] = []
        self.durable = 0
        self.ends: list[int] = [0]
        self.failing: Fault | None = None
        self.failing_reads = False
        self.fails_at_sync = False
        self._failure: JournalUnavailable | None = None
        self.at: dict[tuple[str, str], int] = {}
        self.highest_durable = 0
        self.gaps = 0
        self.lost = 0
        self._requests: dict[tuple[str, str], tuple[str | None, str]] = {}
        self._head = Head()

    @property
    def head(self) -> Head:
        return self._head

    @property
    def failure(self) -> str | None:
        return None if self._failure is None else self._failure.reason

    def prepare(self, bodies: Sequence[bytes]) -> list[Prepared]:
        raise AssertionError("a recorder that is given no `post` has no thread to prepare anything")

    def append(
        self,
        expected_seq: int,
        generation: int,
        entries: Sequence[Entry],
        prepared: Mapping[int, Prepared] | None = None,
    ) -> Head | Conflict:
        assert not prepared
        self._check_usable()
        head = self._head
        if expected_seq != head.seq or generation < head.generation:
            return Conflict(head)
        if not entries:
            return head
        seq, highest, incarnation = head.seq, head.generation, head.incarnation
        previous = bytes.fromhex(head.hash)
        sealed: list[Sealed] = []
        requests: dict[tuple[str, str], tuple[str | None, str]] = {}
        for entry in entries:
            if entry.generation < highest:
                return Conflict(head)
            highest, incarnation, seq = entry.generation, max(incarnation, entry.incarnation), seq + 1
            row = seal(LOG_ID, seq, previous, entry, seq.to_bytes(SALT_BYTES, "big"))
            previous = row.hash
            sealed.append(row)
            if entry.request_id is not None and entry.type == "admitted":
                assert entry.actor is not None, "an admission with a request id needs an actor"
                key = (entry.actor, entry.request_id)
                if key in self._requests or key in requests:
                    raise DuplicateRequest(*key, self._requests.get(key, (None, ""))[0])
                requests[key] = (entry.operation, admission_digest(entry.body))
        self._tick()  # the transaction is not committed: nothing of it is left
        if self.failing is not None:
            number = errno.ENOSPC if self.failing == "full" else errno.EIO
            raise JournalUnavailable(f"simulated: {self.failing}", number)
        self.rows.extend(sealed)
        self.ends.append(seq)
        self._requests.update(requests)
        for row in sealed:
            self._index(row)
        self._head = Head(seq, previous.hex(), max(highest, generation), incarnation)
        self._tick()
        return self._head

    def _index(self, row: Sealed) -> None:
        entry = row.entry
        if entry.type == "input":
            self.at["input", str(_decode(entry.body)["msg_id"])] = row.seq
        elif entry.type == "gap" and OUTAGE in entry.body:
            self.gaps += 1
            self.lost += int(_decode(entry.body)["lost"])
        elif entry.operation is not None and entry.form == "json":
            key = (entry.type, entry.operation)
            assert key not in self.at or entry.type not in ONCE, f"{key} is recorded a second time"
            self.at[key] = row.seq

    def find_request(self, actor: str, request_id: str) -> tuple[str | None, str] | None:
        if self.failing_reads:
            raise JournalUnavailable("simulated: it cannot be read", errno.EIO)
        return self._requests.get((actor, request_id))

    def sync(self) -> None:
        self._check_usable()
        if self.durable == self._head.seq:
            return
        self._tick()
        if self.fails_at_sync:
            self._failure = JournalUnavailable("simulated: the sync failed", errno.EIO)
            raise self._failure
        self.durable = self._head.seq
        self.highest_durable = self.rows[-1].entry.generation
        self._tick()

    def maintenance(self) -> bool:
        return False

    def close(self) -> None:
        return

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------ looking

    def is_on_disk(self, kind: str, name: str, *, durable: bool) -> bool:
        """Whether it would survive the loss of power (`durable`), or the death of the process."""
        seq = self.at.get((kind, name))
        return seq is not None and (not durable or seq <= self.durable)

    def surviving(self) -> list[Sealed]:
        """What the death of the process leaves, verified entry by entry; the loss of power leaves a beginning of it."""
        previous = GENESIS
        for row in self.rows:
            problem = check(LOG_ID, row.seq, previous, row.envelope, row.hash, row.salt, row.entry.body)
            assert problem is None, f"entry {row.seq}: {problem}"
            previous = row.hash
        return self.rows


OUTAGE = b"the journal could not be written"
ONCE = frozenset({"admitted", "delivered", "ended"})
_decode = msgspec.json.Decoder().decode


class Mirrored(Disk):
    """Does everything with a real journal too, and compares."""

    def __init__(self, tick: Callable[[], None], directory: Path) -> None:
        super().__init__(tick)
        self.real = JournalStore.open(directory, LOG_ID)

    def append(
        self,
        expected_seq: int,
        generation: int,
        entries: Sequence[Entry],
        prepared: Mapping[int, Prepared] | None = None,
    ) -> Head | Conflict:
        said = super().append(expected_seq, generation, entries, prepared)
        head = self.real.append(expected_seq, generation, entries)
        assert type(said) is type(head)
        # The salts differ, and so the hashes.
        assert self._place(self.head) == self._place(self.real.head)
        return said

    @staticmethod
    def _place(head: Head) -> tuple[int, int, int]:
        return head.seq, head.generation, head.incarnation

    def find_request(self, actor: str, request_id: str) -> tuple[str | None, str] | None:
        found = super().find_request(actor, request_id)
        assert found == self.real.find_request(actor, request_id)
        return found

    def sync(self) -> None:
        super().sync()
        self.real.sync()
        assert self.real.durable_seq == self.durable


class Syncer:
    """The thread that syncs, without the thread: the simulation says when it gets to run."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.is_woken = False

    def wake(self, maintain: bool) -> None:
        self.is_woken = True

    def run(self) -> None:
        """As the thread does: a failed sync is met again by the next append."""
        self.is_woken = False
        try:
            self._disk.sync()
        except JournalUnavailable:
            return

    def stop(self) -> None:
        self.is_woken = False
