"""Clients that come and go by every way in leave the keeper no descriptor and next to no memory.

Websockets have the same test in `tests/websocket/test_slow.py`.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import RawLink, keeper_of, null_spec, pointer_of, rss_of, wait_until
from tests.support import LIMIT_SECONDS, Home, Sessions, reply_of, wait_for_status

MIB = 1024 * 1024
KEPT_BYTES = 5 * MIB
WARM_UP = 100
"""Until the allocator has what comings and goings need: libzmq frees what a connection had some time after its end."""


@pytest.fixture(autouse=True)
def memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is freed leaves the process at once: else the allocator keeps what the most connections at a time needed,
    and how many that are depends on how quickly libzmq clears up behind the last."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "16000")  # below the smallest block of a libzmq queue
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")


def come_and_go(home: Home, session: Session, rounds: int, attach: Callable[[int], None]) -> None:
    """Attach and detach; afterwards the keeper has the descriptors that it had, and no more than 5 MiB more than it
    had at most after the same in the beginning."""
    keeper = keeper_of(home, session)
    memory = 0
    for n in range(max(WARM_UP, rounds // 4)):
        attach(n)
        memory = max(memory, rss_of(keeper))
    descriptors, _ = settled(session, keeper)
    for n in range(rounds):
        attach(n)
    wait_until(
        # A second connection to the journal is opened once, when it is first written back.
        lambda: settled(session, keeper)[0] <= descriptors + 1,
        f"its descriptors are those {descriptors} again",
    )
    after, kept = settled(session, keeper)[0], settled(session, keeper)[1] - memory
    print(
        f"{rounds} rounds: descriptors {descriptors} -> {after}, memory {memory / MIB:.1f} MiB {kept / MIB:+.1f}"
    )
    assert kept <= KEPT_BYTES, f"{kept / MIB:.1f} MiB are kept after {rounds} rounds"


def settled(session: Session, keeper: psutil.Process) -> tuple[int, int]:
    wait_for_status(session, lambda s: not [p for p in s.presence if p.client != "stays"])
    return keeper.num_fds(), rss_of(keeper)


def reset(connection: socket.socket) -> None:
    """Close without a farewell; over a Unix socket the peer finds what it still writes refused."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def over_the_link(home: Home, session: Session) -> Callable[[int], None]:
    """Persistent ones; one in ten is cut while answers are on their way to it."""
    link = pointer_of(home, session.id)["link"]

    def attach(n: int) -> None:
        client = RawLink(link, hello={"persistent": True, "client": f"link-{n}"})
        if n % 10:
            client.socket.close()
            return
        for number in range(3):
            client.send({"id": number + 1, "verb": "log", "args": {"follow": True}})
        reset(client.socket)

    return attach


def over_zmq(session: Session) -> Callable[[int], None]:
    """Stock clients on one grant; one in ten vanishes with a request under way."""
    invited = session.invite("bot")
    assert invited.connection_file is not None
    file = invited.connection_file

    def attach(n: int) -> None:
        client = BlockingKernelClient(connection_file=file)
        client.load_connection_file()
        client.session.session = f"zmq-{n}"
        client.start_channels(hb=n % 10 != 0)
        try:
            msg_id = client.kernel_info()
            if n % 10:
                reply_of(client, msg_id)
                # Its thread may be about to open a socket, which would outlive the client.
                wait_until(lambda: client.hb_channel.socket is not None, "its heartbeat has begun")
        finally:
            client.stop_channels()
            client.context.destroy(linger=0)

    return attach


def over_grants(session: Session) -> Callable[[int], None]:
    """Each client has a grant of its own, which ends with it."""

    def attach(n: int) -> None:
        invited = session.invite(f"bot-{secrets.token_hex(3)}")
        assert invited.connection_file is not None
        client = BlockingKernelClient(connection_file=invited.connection_file)
        client.load_connection_file()
        client.start_channels(hb=False)
        try:
            reply_of(client, client.kernel_info())
        finally:
            client.stop_channels()
            client.context.destroy(linger=0)
            session.revoke(str(invited.grant))

    return attach


def over_tcp(session: Session) -> Callable[[int], None]:
    """What dials the ports of a grant for the network and resets its connections: after nothing, after half a greeting
    and after a whole one."""
    invited = session.invite("far", transport="tcp")
    assert invited.connection_file is not None
    ports = json.loads(Path(invited.connection_file).read_bytes())
    greeting = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE".ljust(64, b"\0")

    def attach(n: int) -> None:
        for channel in ("shell", "iopub", "stdin", "control", "hb"):
            connection = socket.create_connection(
                ("127.0.0.1", ports[f"{channel}_port"]), timeout=LIMIT_SECONDS
            )
            connection.sendall((b"", greeting[:10], greeting)[n % 3])
            if n % 3 == 2:
                connection.recv(10)
            reset(connection)

    return attach


def attacher(way: str, home: Home, session: Session) -> Callable[[int], None]:
    if way == "link":
        return over_the_link(home, session)
    if way == "tcp":
        return over_tcp(session)
    return over_zmq(session) if way == "zmq" else over_grants(session)


@pytest.mark.parametrize("way", ["link", "zmq", "grants", "tcp"])
def test_a_hundred(home: Home, session: Sessions, way: str) -> None:
    made = session(kernel=null_spec(home))
    come_and_go(home, made, 100, attacher(way, home, made))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["link", "zmq", "grants", "tcp"])
def test_a_thousand(home: Home, session: Sessions, way: str) -> None:
    made = session(kernel=null_spec(home))
    come_and_go(home, made, 1000, attacher(way, home, made))
