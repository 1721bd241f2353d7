"""Reads the journal for those who ask, in a thread of its own, so that the loop never waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..journal.errors import JournalDamaged, JournalError
from ..journal.outputs import collect, for_notebook, long_output_of, output_of, text_of
from ..journal.query import JournalReader, StoredEntry, log_line
from ..journal.verify import VerifyReport, verify
from ..wire.errors import WireError
from ..wire.kernel import Message, decode_json, encode_json, parse_parent
from ..wire.websocket import decode_v1
from .clients import LONG_BYTES
from .loop import Loop
from .stamps import relation_of

log = logging.getLogger(__name__)
T = TypeVar("T")

PAGE_ENTRIES = 500
PAGE_BYTES = 4 * 1024 * 1024
ECHO_BYTES = 64 * 1024
OTHERS = 5
DEFAULT_RESULT_BYTES = 1024 * 1024
QUIET_TYPES = frozenset({"output", "reply", "started", "delivered", "backend_output", "input"})

Item = dict[str, Any]


class LongItem(NamedTuple):
    """An item as JSON: one so long that the loop must not be kept with writing it."""

    raw: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries as items for the link.

    Attributes:
        after: the last seq that was looked at: where the next page begins.
        more: whether the journal had more at that moment.
    """

    items: list[Item | LongItem]
    after: int
    more: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants to see.

    Attributes:
        view: `outputs` (notebook outputs), `stream` (their text), `log` (entries), `run` (outputs and prompts of one
            operation).
    """

    view: str
    actor: str | None = None
    operation: str | None = None
    types: frozenset[str] | None = None


class JournalDesk:
    """Takes jobs from the loop's thread and answers there."""

    def __init__(self, directory: Path, loop: Loop) -> None:
        self._directory = directory
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reader: JournalReader | None = None
        self._thread = threading.Thread(target=self._run, name="journal-reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        if self._reader is not None:
            self._reader.close()

    def ask(self, read: Callable[[JournalReader], T], done: Callable[[T | JournalError], None]) -> None:
        """Run `read` in the reading thread; `done` gets its result, or the journal's fault, in the loop's thread."""

        def job() -> None:
            result: T | JournalError
            try:
                if self._reader is None:
                    self._reader = JournalReader(self._directory)
                result = read(self._reader)
            except JournalError as error:
                result = error
            except Exception as error:  # a fault of ours: whoever asked is told, and the next one is read for
                log.exception("the journal could not be read for somebody")
                result = JournalDamaged(f"it cannot be read: {type(error).__name__}: {error}")
            self._loop.post(lambda: done(result))

        self._jobs.put(job)

    def verify(self, receipt: tuple[int, str] | None, done: Callable[[VerifyReport], None]) -> None:
        """Verify in yet another thread: it may take long, and other readers go on."""

        def job() -> None:
            report = verify(self._directory, receipt)
            self._loop.post(lambda: done(report))

        threading.Thread(target=job, name="journal-verify", daemon=True).start()

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join(timeout=10)


def page(reader: JournalReader, wanted: Wanted, after: int, until: int | None = None) -> Page:
    """The next page of what a reader wants, beginning behind `after`."""
    types: Collection[str] | None = wanted.types
    if wanted.view in ("outputs", "stream"):
        types = ("output", "backend_output") if wanted.view == "stream" else ("output",)
    elif wanted.view == "run":
        types = ("output", "input_requested")
    items: list[Item | LongItem] = []
    size = 0
    head = reader.head().seq if until is None else min(until, reader.head().seq)
    last = after
    found = reader.entries(after, types=types, actor=wanted.actor, operation=wanted.operation, until=head)
    for count, entry in enumerate(found, start=1):
        last = entry.seq
        item = _item(entry, wanted.view)
        if item is not None:
            items.append(item)
            size += len(entry.body or b"")
        if count >= PAGE_ENTRIES or size >= PAGE_BYTES:
            return Page(items, last, True)
    return Page(items, head, False)


def _item(entry: StoredEntry, view: str) -> Item | LongItem | None:
    if view == "log":
        return {"entry": log_line(entry)}
    if entry.type == "input_requested":
        return {"input_request": {**(log_line(entry).get("data") or {}), "operation": entry.operation}}
    if entry.type == "backend_output":
        data = log_line(entry).get("data") or {}
        return _shown(
            entry, {"output_type": "stream", "name": data.get("stream"), "text": data.get("text", "")}
        )
    if entry.body is None:
        return None
    try:
        if len(entry.body) > LONG_BYTES and view != "stream" and (long := long_output_of(entry.body)):
            return LongItem(encode_json(_shown(entry, long)), entry.seq)
        output = output_of(entry.body)
    except WireError as error:
        output = {
            "output_type": "stream",
            "name": "stderr",
            "text": f"[an output that cannot be read: {error}]\n",
        }
    if output is None:
        return None
    if view == "stream":
        output = {"output_type": "stream", "name": output.get("name", "stdout"), "text": text_of([output])}
    return _shown(entry, output)


def _shown(entry: StoredEntry, output: dict[str, Any]) -> Item:
    kind = str(output["output_type"])
    return {
        "output": output,
        "seq": entry.seq,
        "operation": entry.operation,
        "actor": entry.actor,
        "relation": relation_of(kind),
        "incarnation": entry.envelope.get("incarnation"),
    }


def result_of(reader: JournalReader, operation: str, *, max_bytes: int | None, first_seq: int) -> Item:
    """The result of an operation, from the journal alone.

    Args:
        first_seq: a seq at or before its admission, from which to look (0 looks through everything).
    """
    limit = DEFAULT_RESULT_BYTES if max_bytes is None else max_bytes
    outputs: list[StoredEntry] = []
    size = dropped = 0
    cut_at: int | None = None
    admitted: StoredEntry | None = None
    ended: StoredEntry | None = None
    reply: StoredEntry | None = None
    last = first_seq
    for entry in reader.entries(max(0, first_seq - 1), operation=operation):
        last = entry.seq
        if entry.type == "admitted":
            admitted = entry
        elif entry.type == "ended":
            ended = entry
        elif entry.type == "reply":
            reply = entry
        elif entry.type == "output" and not _is_long_echo(entry):
            size += len(entry.body or b"")
            # The first one is whole, unless writing it would keep everybody waiting.
            if size > limit and (outputs or len(entry.body or b"") > LONG_BYTES):
                dropped += len(entry.body or b"")
                cut_at = entry.seq - 1 if cut_at is None else cut_at
            else:
                outputs.append(entry)
    shown = for_notebook(collect(outputs))
    data: dict[str, Any] = (log_line(ended).get("data") or {}) if ended else {}
    newest = ended or admitted
    result: Item = {
        "status": data.get("outcome", "running"),
        "operation": operation,
        "request_id": admitted.envelope.get("request_id") if admitted else None,
        "duplicate": False,
        "generation": newest.envelope.get("generation") if newest else None,
        "incarnation": newest.envelope.get("incarnation") if newest else None,
        "cursor": f"{newest.envelope.get('incarnation') if newest else 0}:{last}",
        "basis": "observed",
        "execution_count": data.get("execution_count"),
        "ename": data.get("ename"),
        "evalue": data.get("evalue"),
        "traceback": _traceback(reply),
        "reason": data.get("reason"),
        "by": data.get("by"),
        "outputs": shown,
        "text": text_of(shown),
        "truncated": None if cut_at is None else {"bytes": dropped, "read_after": f"0:{cut_at}"},
        "others": _others(reader, admitted, last),
        "receipt": _receipt(reader),
        "refusal": None,
    }
    return result


def _receipt(reader: JournalReader) -> str:
    head = reader.head()
    return f"{head.seq}:{head.hash}"


def _is_long_echo(entry: StoredEntry) -> bool:
    """Whether it is the execute_input of a long cell: no output, so it takes no room from those."""
    if len(entry.body or b"") < ECHO_BYTES or entry.body is None:
        return False
    try:
        return output_of(entry.body) is None
    except WireError:
        return False


def _traceback(reply: StoredEntry | None) -> list[str]:
    if reply is None or reply.body is None:
        return []
    try:
        content = decode_json(decode_v1(reply.body).content)
    except WireError:
        return []
    lines = content.get("traceback") if isinstance(content, dict) else None
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _others(reader: JournalReader, admitted: StoredEntry | None, until: int) -> list[Item]:
    """What other actors did while it was under way: at most a few, the latest."""
    if admitted is None:
        return []
    known = {admitted.actor or "", "keeper", "kernel"}
    rows = reader.last_of_others(OTHERS, after=admitted.seq, until=until, actors=known, types=QUIET_TYPES)
    return [dict(zip(("seq", "type", "actor", "operation"), row, strict=True)) for row in rows]


def messages_of(reader: JournalReader, operation: str, first_seq: int) -> list[tuple[str, Message]]:
    """The kernel's messages of an operation, as they were shown: (channel, message)."""
    found: list[tuple[str, Message]] = []
    for entry in reader.entries(max(0, first_seq - 1), operation=operation, types=("output", "reply")):
        if entry.body is None:
            continue
        channel, header, parent, metadata, content, buffers = decode_v1(entry.body)
        found.append((channel, Message([], b"", header, parent, metadata, content, list(buffers))))
    return found


@dataclass(frozen=True, slots=True)
class Frames:
    """Recorded kernel messages as websocket v1 bodies, up to and including the seq `after`."""

    bodies: list[bytes]
    after: int


def frames_after(reader: JournalReader, after: int, actor: str, sessions: Collection[str]) -> Frames:
    """The next kernel messages behind `after` that a client of this actor, with these header sessions, sees."""
    head = reader.head().seq
    bodies: list[bytes] = []
    size = 0
    for count, entry in enumerate(reader.entries(after, types=("output", "reply"), until=head), start=1):
        is_seen = entry.type == "output" or entry.actor == actor
        if (
            is_seen
            and entry.body is not None
            and (entry.type == "output" or _asked_by(entry.body) in sessions)
        ):
            bodies.append(entry.body)
            size += len(entry.body)
        if count >= PAGE_ENTRIES or size >= PAGE_BYTES:
            return Frames(bodies, entry.seq)
    return Frames(bodies, head)


def _asked_by(body: bytes) -> str:
    try:
        return parse_parent(decode_v1(body).parent).session
    except WireError:
        return ""


def parse_cursor(cursor: str | None) -> int:
    """The seq of a cursor `INCARNATION:SEQ`; None and "" are the beginning.

    Raises:
        ValueError: it is no cursor; the message shows what one looks like.
    """
    if not cursor:
        return 0
    incarnation, separator, seq = str(cursor).rpartition(":")
    if not seq.isdecimal() or (separator and not incarnation.isdecimal()) or len(seq) > 18:
        raise ValueError(f"{cursor!r} is no cursor; a cursor looks like 1:1234")
    return int(seq)
