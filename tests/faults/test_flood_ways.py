"""Floods through each way in: the kernel protocol, the websocket, the link.

Nothing is lost for a reader that keeps up; one that stands still costs its cap and gets all that it missed; whoever
began the flood can interrupt it; others are answered meanwhile. The sizes are full ones in the soak, with the numbers
printed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import keeper_of, link_path, rss_of
from tests.faults.flood_reader import Count
from tests.faults.flooding import END_CODE, FULL, SHORT, Flood, Helper, Memory, Probe, p99
from tests.support import (
    Clients,
    Home,
    Sessions,
    control_reply_of,
    reply_of,
    wait_for_entry,
    wait_for_running,
)
from tests.websocket.front import Front
from tests.websocket.viewer import Viewer, is_reply_to, is_type

MIB = 2**20
WAYS = ("zmq", "websocket", "link")
MEMORY_BYTES = 256 * MIB
"""What a keeper may have above its idle under any flood, with one stopped reader on each way."""
COPIES = 8
"""Of one long output, at any moment."""
STATUS_SECONDS = 3.0
"""Of `status` on another link, on a machine that has other work; what it was is printed."""
INTERRUPT_SECONDS = 2.0
"""On a machine that has other work; on one of its own it is below one second."""


@dataclass
class Readers:
    """One reader of each way that keeps up, and one that is stopped in each flood."""

    session: Session
    home: Home
    keeping: dict[str, Helper]
    stopped: dict[str, Helper]

    def others(self) -> dict[str, Helper]:
        """Those that would be stopped, when they are not."""
        return {f"another {way}": helper for way, helper in self.stopped.items()}


@pytest.fixture(scope="module")
def readers(home: Home, module_session: Sessions) -> Iterator[Readers]:
    made = module_session()
    front = Front(made)
    started: list[Helper] = []

    def start(way: str, name: str) -> Helper:
        target = {
            "zmq": lambda: made.invite(name).connection_file,
            "websocket": lambda: "{}:{}".format(*front.address),
        }.get(way, lambda: name)()
        started.append(Helper("-m", "tests.faults.flood_reader", way, str(target), made.id, name))
        return started[-1]

    try:
        keeping = {way: start(way, f"{way}-keeps-up") for way in WAYS}
        stopped = {way: start(way, f"{way}-stops") for way in WAYS}
        for helper in started:
            assert helper.says() == {"ready": True}
        assert made.run(END_CODE).status == "ok"
        for helper in started:  # what was shown before is not of any flood
            assert helper.says()["displays"] == 0
        yield Readers(made, home, keeping, stopped)
    finally:
        for helper in started:
            helper.close()
        front.close()


def play(flood: Flood, readers: Readers, *, with_stopped: bool = True) -> str:
    """One flood, and everything that is promised of it; returns the numbers."""
    made = readers.session
    stopped = readers.stopped if with_stopped else {}
    keeping = readers.keeping if with_stopped else readers.keeping | readers.others()
    for helper in stopped.values():
        helper.stop()
    keeper = keeper_of(readers.home, made)
    before = rss_of(keeper)
    seen = Count()
    begun = time.monotonic()
    with Memory(keeper) as memory, contextlib.closing(Probe(link=link_path(readers.home, made))) as probe:
        with (
            Session.open(made.id) as author,
            author.start(calls.run(flood.code, stream=True, max_bytes=1)) as run,
        ):
            for item in run:
                output = item.data.get("output")
                if output is None:  # that it was let in
                    continue
                if output["output_type"] == "stream":
                    if output["name"] == "stdout":  # a kernel may warn of something on the other
                        seen.stream(output["text"])
                else:
                    seen.display(output["data"]["text/plain"], 0)
            assert run.outcome()["status"] == "ok"
        took = time.monotonic() - begun
        summaries = {f"{way} keeps up": helper.says() for way, helper in keeping.items()}
        statuses = probe.seconds()
    for helper in stopped.values():
        helper.go_on()
    summaries |= {f"{way} was stopped": helper.says() for way, helper in stopped.items()}
    summaries["run"] = seen.summary()
    expected = flood.expected()
    for who, summary in summaries.items():
        buffers = summary.pop("buffers")
        assert summary == expected, who
        if flood.name == "buffers" and who in ("zmq keeps up", "websocket keeps up", "websocket was stopped"):
            assert buffers == flood.n * 32 * 1024, who
    grown = memory.most - before
    # One output may be larger than all that may wait: it is then there once for each step and each reader.
    allowed = MEMORY_BYTES + (COPIES * flood.n if flood.name == "one" else 0)
    assert grown <= allowed, f"{grown / MIB:.0f} MiB"
    assert max(statuses) <= STATUS_SECONDS
    return (
        f"{flood.name}{'' if with_stopped else ' (all keep up)'}: {took:.1f} s, keeper +{grown / MIB:.0f} MiB, "
        f"status max {max(statuses) * 1000:.0f} ms, p99 {p99(statuses) * 1000:.1f} ms of {len(statuses)}"
    )


@pytest.mark.parametrize("name", SHORT)
def test_a_flood(name: str, readers: Readers) -> None:
    print(play(SHORT[name], readers))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("with_stopped", [False, True], ids=["keep-up", "stopped"])
@pytest.mark.parametrize("name", FULL)
def test_a_full_flood(
    name: str, with_stopped: bool, readers: Readers, capsys: pytest.CaptureFixture[str]
) -> None:
    said = play(FULL[name], readers, with_stopped=with_stopped)
    with capsys.disabled():
        print(f"\n{said}")


# ---------------------------------------------------------------------- the author interrupts


def interrupt_zmq(made: Session, clients: Clients, code: str) -> float:
    bot = clients(made, "bot")
    asked = bot.execute(code)
    _flowing(made, wait_for_running(made, "bot"))
    begun = time.monotonic()
    message = bot.session.msg("interrupt_request", {})
    bot.session.send(bot.control_channel.socket, message)
    control_reply_of(bot, message["header"]["msg_id"])
    assert reply_of(bot, asked)["content"]["ename"] == "KeyboardInterrupt"
    return begun


def interrupt_websocket(made: Session, clients: Clients, code: str) -> float:
    front = Front(made)
    viewer = Viewer(front.address, "client-author", actor="eve")
    try:
        asked = viewer.execute(code)
        _flowing(made, wait_for_running(made, "eve"))
        begun = time.monotonic()
        viewer.send("interrupt_request", {}, channel="control")
        viewer.until(is_type("interrupt_reply"), is_reply_to(asked), limit_seconds=60)
        return begun
    finally:
        viewer.leave(1001)
        viewer.abandon()
        front.close()


def interrupt_link(made: Session, clients: Clients, code: str) -> float:
    with Session.open(made.id) as author, author.start(calls.run(code, max_bytes=1)) as run:
        # Not whatever runs: the cell before may just be at its end.
        operation = next(iter(run)).data["accepted"]["operation"]
        _flowing(made, operation)
        begun = time.monotonic()
        author.interrupt(operation)
        for _ in run:
            pass
        assert run.outcome()["status"] == "interrupted"
        return begun


def _flowing(made: Session, operation: str) -> None:
    wait_for_entry(
        made,
        "output",
        operation=operation,
        where=lambda e: e["data"].get("message") in ("stream", "display_data"),
    )


def arrivals(flood: Flood, made: Session, clients: Clients, folder: Path) -> dict[str, float]:
    """The seconds from each author's interrupt until his cell had it (the monotonic clock is that of the machine)."""
    took = {}
    for way, interrupt in INTERRUPTS.items():
        arrived = folder / way
        begun = interrupt(made, clients, flood.endless(arrived))
        took[way] = float(arrived.read_text()) - begun
    return took


INTERRUPTS = {"zmq": interrupt_zmq, "websocket": interrupt_websocket, "link": interrupt_link}


@pytest.mark.parametrize("name", ["prints", "buffers", "one"])
def test_its_author_interrupts_it(name: str, session: Sessions, clients: Clients, tmp_path: Path) -> None:
    made = session()
    took = arrivals(SHORT[name], made, clients, tmp_path)
    assert max(took.values()) < INTERRUPT_SECONDS, took
    assert made.run("1").status == "ok"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FULL)
def test_its_author_interrupts_a_full_one(
    name: str, session: Sessions, clients: Clients, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    took = arrivals(FULL[name], session(), clients, tmp_path)
    with capsys.disabled():
        print(
            f"\n{name} interrupted: " + ", ".join(f"{way} {seconds:.2f} s" for way, seconds in took.items())
        )
    assert max(took.values()) < INTERRUPT_SECONDS


# ---------------------------------------------------------------------- the neighbour


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FULL)
def test_another_session_is_not_disturbed(
    name: str, session: Sessions, capsys: pytest.CaptureFixture[str]
) -> None:
    """Round trips of a cell in another session, beside nothing and beside a flood that nobody but its author reads."""
    made, neighbour = session(), session()
    with contextlib.closing(Probe(session=neighbour.id)) as quiet:
        assert made.run("import time; time.sleep(5)").status == "ok"
        before = quiet.seconds()
    code = "import time\nuntil = time.monotonic() + 5\nwhile time.monotonic() < until:\n" + "".join(
        f"    {line}\n" for line in SHORT[name].template.format(n=SHORT[name].n // 10).splitlines()
    )
    with contextlib.closing(Probe(session=neighbour.id)) as probe:
        assert made.run(code, max_bytes=1).status == "ok"
        during = probe.seconds()
    with capsys.disabled():
        print(
            f"\nbeside {name}: p99 {p99(during) * 1000:.1f} ms of {len(during)}, "
            f"quiet {p99(before) * 1000:.1f} ms of {len(before)}"
        )
    assert p99(during) <= 4 * p99(before)
