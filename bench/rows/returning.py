"""A client that comes back, on its own connection's terms or on another's, and one that joins late.

A client is known by its header session: it goes on behind the last mark whose answer the keeper has. One that names a
cursor goes on there. One that is new is shown what runs now from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.doors import Message, WebsocketDoor
from bench.figures import Figure, median
from bench.probes import wait_until
from bench.servers import Bench, ServedKernel
from jupyter_cmdop.client.session import Session

SIZE = 100
PACE_MS = 2
QUIET_SECONDS = 1.5


@dataclass(slots=True)
class Received:
    """What a client has of one run.

    Attributes:
        begin: time.monotonic_ns before the run; the kernel stamps its messages with the same clock.
        seqs: the numbers of the run's messages, in the order in which they came.
        others: stream messages that are not of the run: an older one's, or what the keeper says itself.
    """

    begin: int

    seqs: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    octets: int = 0
    first_ms: float = 0.0

    def note(self, message: Message) -> bool:
        if message.kind != "stream":
            return False
        content = message.content
        if content["name"] != "stdout" or int(content["text"]) < self.begin:
            self.others.append(content["text"])
            return False
        self.seqs.append(int(message.metadata["cmdop"]["seq"]))
        self.octets += message.size
        return True

    def read(self, door: WebsocketDoor, *, until: int | None = None, since: float | None = None) -> Received:
        """Read `until` so many are there, or until no more come."""
        while until is None or len(self.seqs) < until:
            message = door.recv(QUIET_SECONDS)
            if message is None:
                break
            if self.note(message) and since is not None and not self.first_ms:
                self.first_ms = (time.perf_counter() - since) * 1000
        return self


@dataclass(frozen=True, slots=True)
class Outcome:
    lost: int
    twice: int
    first_ms: float
    limit_ms: float
    others: list[str]


def _outcome(total: int, before: list[int], after: Received, confirmed: int) -> Outcome:
    """Twice: what is repeated although its client had confirmed it, or comes out of order on one connection."""
    known = set(before)
    twice = sum(seq in known and seq <= confirmed for seq in after.seqs)
    twice += len(after.seqs) - len(set(after.seqs)) + (after.seqs != sorted(after.seqs))
    return Outcome(
        total - len(known | set(after.seqs)),
        twice,
        after.first_ms,
        10 + 20 * after.octets / 1_000_000,
        after.others,
    )


def _come_back(kernel: ServedKernel, total: int, case: str) -> Outcome:
    """A client leaves in the middle of a run and returns when it is over; with a cursor as another client."""
    door = kernel.door()
    other = kernel.connect() if case == "another client stayed" else None
    if other is not None:
        other.drain(0.3)
    begin = time.monotonic_ns()
    door.request(f"pace {total} {SIZE} {PACE_MS}")
    before = Received(begin).read(door, until=total // 5)
    door.websocket.hang_up()
    marks = [int(mark.split(b".")[0]) for mark in door.websocket.marks]
    with Session.open(kernel.id) as link:
        wait_until("the run is over", lambda: not link.status().running)
        incarnation = link.status().incarnation
    if other is not None:
        seen = Received(begin).read(other)
        other.close()
        if len(seen.seqs) != total:
            raise RuntimeError(f"the client that stayed got {len(seen.seqs)} of {total}")
    start = time.perf_counter()
    if case == "a second device, by its cursor":
        again = kernel.connect(cursor=f"{incarnation}:{before.seqs[-1]}")
        confirmed = before.seqs[-1]
    else:
        again = kernel.connect(session=door.session)
        confirmed = marks[-1] if marks else 0
    after = Received(begin).read(again, since=start)
    again.close()
    return _outcome(total, before.seqs, after, confirmed)


def _join_late(kernel: ServedKernel, total: int, case: str) -> Outcome:
    """In the middle of a run: a page that was loaded anew, whose old connection is gone, or one more client."""
    door = kernel.door()
    begin = time.monotonic_ns()
    door.request(f"pace {total} {SIZE} {PACE_MS}")
    Received(begin).read(door, until=total // 2)
    if case == "a reloaded page":
        door.websocket.hang_up()
    start = time.perf_counter()
    late = kernel.connect()
    after = Received(begin).read(late, since=start)
    late.close()
    door.close()
    return _outcome(total, [], after, 0)


def returning(bench: Bench) -> Iterator[Figure]:
    total = bench.count(500)
    kernel = bench.server().start_kernel("null")
    cases = {
        "the same client": _come_back,
        "another client stayed": _come_back,
        "a second device, by its cursor": _come_back,
        "a reloaded page": _join_late,
        "a late joiner": _join_late,
    }
    for case, what in cases.items():
        outcomes = [what(kernel, total, case) for _ in range(2 if bench.quick else 7)]
        firsts = [one.first_ms for one in outcomes]
        figure = Figure(f"{case}: the first message", "ms", median(firsts), samples={"ours": firsts})
        lost, twice = sum(one.lost for one in outcomes), sum(one.twice for one in outcomes)
        figure.must(f"all {total}, in order", lost == 0).must("none twice", twice == 0)
        figure.must("≤ 10 ms + 20 ms a MB", figure.ours <= median([one.limit_ms for one in outcomes]))
        others = [text for one in outcomes for text in one.others]
        if others:
            figure.note(f"{len(others)} messages that are not of the run: {others[0]!r:.80}")
        yield figure.note(f"{lost} lost, {twice} twice, in {len(outcomes)} times")
