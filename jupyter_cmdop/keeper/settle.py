"""Ends the record of a session whose keeper has died: what has no outcome gets one, and nothing is run again.

`python -m jupyter_cmdop.keeper.settle DIRECTORY SESSION` is started by whoever tidies a lost session away. The lock of
the journal keeps it off a session that lives; a second time it adds nothing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ..journal.entry import Entry
from ..journal.errors import JournalError
from ..journal.query import JournalReader, StoredEntry
from ..journal.store import Conflict, JournalStore
from ..wire.kernel import encode_json

NEVER_SENT = "its keeper ended before it was sent to the kernel: it has not run"
NOT_KNOWN = "its keeper ended while it ran: it may have had effects, and is not run again by itself"
GONE = "the keeper of this session was gone, and its kernel with it"


def settle(directory: Path, session: str) -> int:
    """Give each operation without an outcome one: `unknown` when it was delivered, else `aborted`.

    Returns:
        How many that were.

    Raises:
        JournalError: the journal is in use, damaged, or cannot be written.
    """
    with JournalStore.open(directory, session) as store:
        admitted: dict[str, StoredEntry] = {}
        delivered: set[str] = set()
        is_ended = store.head.seq == 0
        with JournalReader(directory) as reader:
            types = ("admitted", "delivered", "ended", "opened", "closed", "keeper_ended")
            for entry in reader.entries(types=types):
                name = entry.operation or ""
                if entry.type == "admitted":
                    admitted[name] = entry
                elif entry.type == "delivered":
                    delivered.add(name)
                elif entry.type == "ended":
                    admitted.pop(name, None)
                else:
                    is_ended = entry.type != "opened"
        entries = [_outcome(store, entry, name in delivered) for name, entry in admitted.items()]
        if entries or not is_ended:
            entries.append(_entry(store, "keeper_ended", {"reason": GONE}, actor="keeper"))
            if isinstance(store.append(store.head.seq, store.head.generation, entries), Conflict):
                raise AssertionError("somebody else writes a journal that is locked")
            store.sync()
        return len(admitted)


def _outcome(store: JournalStore, admitted: StoredEntry, was_delivered: bool) -> Entry:
    known = {
        key: str(admitted.envelope[key]) for key in ("on_behalf_of", "request_id") if key in admitted.envelope
    }
    data = {
        "outcome": "unknown" if was_delivered else "aborted",
        "by": "keeper",
        "reason": NOT_KNOWN if was_delivered else NEVER_SENT,
    }
    return _entry(store, "ended", data, actor=admitted.actor, operation=admitted.operation, **known)


def _entry(store: JournalStore, entry_type: str, data: dict[str, Any], **fields: str | None) -> Entry:
    return Entry(
        type=entry_type,
        generation=store.head.generation,
        incarnation=store.head.incarnation,
        basis="inferred",
        body=encode_json(data),
        time_ns=time.time_ns(),
        mono_ns=time.monotonic_ns(),
        **fields,  # type: ignore[arg-type]
    )


def main() -> int:
    """Settle what the command line names."""
    directory, session = sys.argv[1:]
    try:
        settle(Path(directory), session)
    except JournalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
