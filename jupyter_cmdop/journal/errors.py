"""What can go wrong with a journal.

JournalError
 +-- JournalUnavailable   it cannot be written or read now: a full disk, an I/O error, no such journal
 +-- JournalLocked        another process writes it
 +-- JournalDamaged       what is stored contradicts itself or cannot be decoded
 +-- DuplicateRequest     an admission repeats a request id; the caller should have asked `find_request`
"""

from __future__ import annotations


class JournalError(Exception):
    """Every error of this package."""


class JournalUnavailable(JournalError):
    """The journal cannot be used now.

    Attributes:
        reason: one sentence for a person.
        errno: the operating system's number where there is one.
    """

    def __init__(self, reason: str, errno: int | None = None) -> None:
        super().__init__(reason, errno)
        self.reason = reason
        self.errno = errno

    def __str__(self) -> str:
        return self.reason


class JournalLocked(JournalError):
    """Another process is the writer of this journal.

    Attributes:
        pid: who, or None when the lock file does not say.
    """

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid

    def __str__(self) -> str:
        return f"the journal is being written by {f'process {self.pid}' if self.pid else 'another process'}"


class JournalDamaged(JournalError):
    """What is stored is not what was written.

    Attributes:
        problem: what was found, one sentence.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class DuplicateRequest(JournalError):
    """An admission carries a request id that its actor has used before; nothing of the batch was written.

    Attributes:
        actor: who.
        request_id: which.
        operation: the first operation admitted under it, None when both are in the refused batch.
    """

    def __init__(self, actor: str, request_id: str, operation: str | None) -> None:
        super().__init__(actor, request_id, operation)
        self.actor = actor
        self.request_id = request_id
        self.operation = operation

    def __str__(self) -> str:
        first = self.operation or "part of this batch"
        return f"request {self.request_id!r} of {self.actor} was admitted already as {first}"
