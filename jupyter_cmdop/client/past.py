"""What is left of a session that has ended: its journal, read without its keeper and without writing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_cmdop.journal.errors import JournalError
from jupyter_cmdop.journal.outputs import output_of
from jupyter_cmdop.journal.query import JournalReader, StoredEntry, log_line
from jupyter_cmdop.journal.verify import verify as verify_journal
from jupyter_cmdop.wire.errors import WireError

from .errors import JournalProblem, RequestFailed
from .shapes import OutputItem, VerifyReport


@contextmanager
def _reading(directory: Path) -> Iterator[JournalReader]:
    try:
        with JournalReader(directory) as reader:
            yield reader
    except JournalError as error:
        raise JournalProblem(
            f"the journal in {directory} cannot be read: {error}", next=(f"jupyter cmdop verify {directory}",)
        ) from error


def log(
    directory: Path,
    *,
    after: int | None = None,
    actor: str | None = None,
    operation: str | None = None,
    types: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Entries as `log` prints them, oldest first.

    Raises:
        JournalProblem: there is no journal, or it is damaged; what comes before the damage has been yielded.
    """
    with _reading(directory) as reader:
        for entry in reader.entries(after or 0, types=types, actor=actor, operation=operation):
            yield log_line(entry)


def outputs(directory: Path, *, after: str | None = None) -> Iterator[OutputItem]:
    """Outputs behind the cursor `after`, oldest first.

    Raises:
        RequestFailed: `after` is no cursor.
        JournalProblem: as for `log`.
    """
    seq = sequence_of(after)
    with _reading(directory) as reader:
        for entry in reader.entries(seq, types=("output",)):
            item = _output_item(entry)
            if item is not None:
                yield item


def sequence_of(cursor: str | None) -> int:
    """The place in the journal that a cursor `<incarnation>:<seq>` means; a bare seq will do."""
    try:
        return int((cursor or "0").rpartition(":")[2])
    except ValueError as error:
        raise RequestFailed(
            "bad_request", f"{cursor!r} is no cursor", next=("use the `cursor` of an earlier answer",)
        ) from error


def _output_item(entry: StoredEntry) -> OutputItem | None:
    if entry.body is None:
        return None
    try:
        output = output_of(entry.body)
    except WireError as error:
        raise JournalProblem(f"entry {entry.seq} holds no kernel message: {error}") from error
    if output is None:
        return None
    incarnation = entry.envelope.get("incarnation")
    return OutputItem(
        output=output,
        seq=entry.seq,
        operation=entry.operation,
        actor=entry.actor,
        relation="by" if output["output_type"] in ("error", "execute_result") else "during",
        incarnation=incarnation if isinstance(incarnation, int) else None,
    )


def verify(directory: Path, receipt: str | None = None) -> VerifyReport:
    """Check a journal; what is wrong is in the report.

    Raises:
        RequestFailed: `receipt` is not `SEQ:HASH`.
    """
    report = verify_journal(directory, None if receipt is None else receipt_of(receipt))
    return VerifyReport(
        ok=report.ok,
        entries=report.entries,
        head_seq=report.head_seq,
        head_hash=report.head_hash,
        first_bad=report.first_bad,
        problem=report.problem,
        pruned=report.pruned,
    )


def receipt_of(text: str) -> tuple[int, str]:
    seq, _, digest = text.partition(":")
    if not seq.isdecimal() or not digest or set(digest.lower()) - set("0123456789abcdef"):
        raise RequestFailed(
            "bad_request", f"{text!r} is no receipt", next=("write SEQ:HASH as `status` shows it",)
        )
    return int(seq), digest.lower()
