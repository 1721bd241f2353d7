"""A network that passes nothing in either direction for a while, and tells nobody, in the middle of numbered lines.

Where the network goes on by itself, each line comes once: nothing was closed. Where the client gives up and comes back
on a new connection, the lines that it has read and whose pong is lost in the hole come again, under their ids; nobody
can know that they were read. With nothing of that kind on the way, each line comes once here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import wait_until
from tests.support import LIMIT_SECONDS, Gate
from tests.websocket.front import Network
from tests.websocket.viewer import (
    Viewer,
    check_connections,
    confirmed,
    is_idle_of,
    is_reply_to,
    recorded,
    reply_in,
    says,
    seq_of,
    text_in,
)

View = Callable[..., Viewer]
BEFORE, AFTER = 100, 100


@dataclass
class Cell:
    """Lines at a hundred a second: `BEFORE`, a gate if it is to be quiet, those of the dark, a gate, `AFTER` more."""

    gate: Gate
    folder: Path
    seconds: float
    quiet: bool = False

    @property
    def lines(self) -> int:
        return BEFORE + int(self.seconds * 100) + AFTER

    @property
    def code(self) -> str:
        def part(first: int, end: int) -> str:
            return f"for n in range({first}, {end}):\n    print(n, flush=True)\n    time.sleep(0.01)"

        silently = self.gate.code.split(";", 1)[1].strip()  # without a line that says so
        return "\n".join(
            (
                "import time",
                part(0, BEFORE),
                f"open({str(self.folder / 'quiet')!r}, 'w').close()\n{silently}" if self.quiet else "",
                part(BEFORE, self.lines - AFTER),
                f"open({str(self.folder / 'dark')!r}, 'w').close()",
                silently,
                part(self.lines - AFTER, self.lines),
            )
        )

    def wait(self, mark: str) -> None:
        """Wait until the cell is at one of its gates; nobody's connection is needed for that."""
        limit = self.seconds + LIMIT_SECONDS
        wait_until((self.folder / mark).exists, f"the cell is at {mark}", limit_seconds=limit)


SECONDS = [
    pytest.param(1.0, id="1s"),
    pytest.param(30.0, id="30s", marks=[pytest.mark.soak, pytest.mark.timeout(180)]),
]
others = pytest.mark.parametrize("others", [0, 1], ids=["alone", "watched"])
seconds = pytest.mark.parametrize("seconds", SECONDS)


def check_watchers(watchers: list[Viewer], msg_id: str, lines: int) -> None:
    """Another client's trouble is not seen."""
    for watcher in watchers:
        watcher.until(is_idle_of(msg_id))
        assert text_in(watcher.received).split() == [str(n) for n in range(lines)]


def give_up_in_the_middle(viewer: Viewer, network: Network, cell: Cell) -> str:
    """It goes dark while the lines come, all of the dark passes, and the client drops its connection."""
    msg_id = viewer.execute(cell.code)
    viewer.until(says(f"{BEFORE // 2}\n"))
    network.go_dark()
    cell.wait("dark")
    viewer.abandon()
    return msg_id


def check_each_once(viewer: Viewer, lines: int) -> None:
    """What it has been shown is every line, in order, and no message twice."""
    assert text_in(viewer.received).split() == [str(n) for n in range(lines)]
    ids = [m["msg_id"] for m in recorded(viewer.received)]
    assert len(ids) == len(set(ids))


@others
@seconds
def test_the_same_connection_goes_on(
    view: View, network: Network, gate: Gate, tmp_path: Path, shared: Session, seconds: float, others: int
) -> None:
    """Each line once, and what was sent into the hole runs once."""
    cell = Cell(gate, tmp_path, seconds)
    viewer = view(f"goes-on-{seconds}-{others}", address=network.address)
    watchers = [view(f"watcher-goes-on-{seconds}", actor="dan") for _ in range(others)]
    msg_id = viewer.execute(cell.code)
    viewer.until(says(f"{BEFORE // 2}\n"))
    network.go_dark()
    cell.wait("dark")
    into_the_hole = viewer.execute("runs = globals().get('runs', 0) + 1; runs")
    network.go_light()
    gate.open()
    viewer.until(is_reply_to(msg_id), is_reply_to(into_the_hole), is_idle_of(into_the_hole))
    check_each_once(viewer, cell.lines)
    [result] = [m for m in viewer.received if m["msg_type"] == "execute_result"]
    assert result["content"]["data"]["text/plain"] == "1"
    check_watchers(watchers, msg_id, cell.lines)
    assert viewer.run("del runs")
    assert viewer.is_open


@others
@seconds
def test_it_comes_back_on_a_new_connection(
    view: View, network: Network, gate: Gate, tmp_path: Path, seconds: float, others: int
) -> None:
    """In the middle of the lines: none is missing, and only what the lost pong would have confirmed comes again."""
    cell = Cell(gate, tmp_path, seconds)
    viewer = view(f"comes-back-{seconds}-{others}", address=network.address)
    watchers = [view(f"watcher-comes-back-{seconds}", actor="dan") for _ in range(others)]
    msg_id = give_up_in_the_middle(viewer, network, cell)
    floor, first = confirmed(viewer, clean=False), list(viewer.received)
    gate.open()
    viewer.connect()
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    check_connections(viewer, [first, viewer.received[len(first) :]], [0, floor], cell.lines)
    assert reply_in(viewer.received)["content"]["status"] == "ok"
    read = [m["msg_id"] for m in recorded(viewer.received)]
    print(f"came twice, under its id: {len(read) - len(set(read))} of {cell.lines} lines")
    check_watchers(watchers, msg_id, cell.lines)


@others
@seconds
def test_nothing_comes_twice_when_no_pong_is_on_the_way(
    view: View, network: Network, gate: Gate, tmp_path: Path, seconds: float, others: int
) -> None:
    """It goes dark in a quiet moment; all lines of the dark are new to the client, and each comes once."""
    cell = Cell(gate, tmp_path, seconds, quiet=True)
    viewer = view(f"quiet-{seconds}-{others}", address=network.address)
    watchers = [view(f"watcher-quiet-{seconds}", actor="dan") for _ in range(others)]
    msg_id = viewer.execute(cell.code)
    viewer.until(says(f"{BEFORE - 1}\n"))
    place = seq_of(recorded(viewer.received)[-1])
    while confirmed(viewer, clean=False) < place:
        viewer.catch_up()
    cell.wait("quiet")
    network.go_dark()
    gate.open()
    cell.wait("dark")
    viewer.abandon()
    gate.open()
    viewer.connect()
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    check_each_once(viewer, cell.lines)
    check_watchers(watchers, msg_id, cell.lines)


@others
@seconds
def test_a_client_that_says_its_place_gets_each_line_once(
    view: View, network: Network, gate: Gate, tmp_path: Path, seconds: float, others: int
) -> None:
    """In the middle of the lines, whatever pong was lost: the cursor of the last message is proof enough."""
    cell = Cell(gate, tmp_path, seconds)
    viewer = view(f"place-{seconds}-{others}", address=network.address)
    watchers = [view(f"watcher-place-{seconds}", actor="dan") for _ in range(others)]
    msg_id = give_up_in_the_middle(viewer, network, cell)
    gate.open()
    viewer.connect(cursor=f"1:{max(seq_of(m) for m in recorded(viewer.received))}")
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    check_each_once(viewer, cell.lines)
    check_watchers(watchers, msg_id, cell.lines)
