"""The loop hears everything, whatever was sent and received between two waits, and lets one socket rest."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from jupyter_cmdop.backends.zmq_frames import drain, has_input, receive, send
from jupyter_cmdop.keeper.loop import Loop
from tests.support import LIMIT_SECONDS

LONG_REST_SECONDS = 3600.0


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def pair(context: zmq.Context[zmq.Socket[bytes]], name: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    for socket in (ours, theirs):
        socket.linger = 0
    ours.bind(f"inproc://{name}")
    theirs.connect(f"inproc://{name}")
    return ours, theirs


def turn_until(loop: Loop, is_done: object) -> None:
    """Turns, each of which waits for something to happen."""
    assert callable(is_done)
    end = time.monotonic() + LIMIT_SECONDS
    while not is_done():
        assert time.monotonic() < end
        loop.turn()


def test_a_wake_up_that_was_eaten_by_a_send_is_not_missed(
    loop: Loop, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """libzmq clears its descriptor while it sends: what had come by then would never be heard of again."""
    ours, theirs = pair(context, "eaten")
    heard: list[list[bytes]] = []

    def read() -> bool:
        heard.extend(drain(ours, 64))
        return False

    loop.add_socket(ours, read)
    for number in range(200):
        send(theirs, [b"to us", b"%d" % number])
        send(ours, [b"to them"])
        assert has_input(ours)  # this, too, clears the descriptor
        loop.touch(ours)
        turn_until(loop, lambda number=number: len(heard) > number)
    assert [frames[1] for frames in heard] == [b"%d" % number for number in range(200)]
    loop.remove_socket(ours)
    ours.close(), theirs.close()


def test_what_a_handler_leaves_is_read_in_the_next_turn(
    loop: Loop, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    ours, theirs = pair(context, "left")
    heard: list[bytes] = []

    def read() -> bool:
        taken = [frames[0] for frames in drain(ours, 3)]
        heard.extend(taken)
        return len(taken) == 3

    loop.add_socket(ours, read)
    for number in range(10):
        send(theirs, [b"%d" % number])
    turn_until(loop, lambda: len(heard) == 10)
    assert heard == [b"%d" % number for number in range(10)]
    assert receive(ours) is None
    loop.remove_socket(ours)
    ours.close(), theirs.close()


def test_others_are_heard_at_once_while_one_rests(
    loop: Loop, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """An interrupt must not wait for the moment that a flood is given."""
    flood, kernel = pair(context, "flood")
    inputs, client = pair(context, "inputs")
    heard: list[str] = []

    def read(name: str, socket: zmq.Socket[bytes]) -> bool:
        heard.extend(name for _ in drain(socket, 64))
        return False

    loop.add_socket(flood, lambda: read("flood", flood))
    loop.add_socket(inputs, lambda: read("input", inputs))
    loop.turn()
    loop.rest(flood, LONG_REST_SECONDS)
    send(kernel, [b"printed"])
    threading.Timer(0.05, send, (client, [b"interrupt"])).start()
    turn_until(loop, lambda: "input" in heard)
    # What comes ends the rest, too.
    turn_until(loop, lambda: "flood" in heard)
    for socket in (flood, inputs):
        loop.remove_socket(socket)
    for socket in (flood, kernel, inputs, client):
        socket.close()


def test_a_rest_ends_by_itself_and_is_short(loop: Loop, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    ours, theirs = pair(context, "short")
    heard: list[bytes] = []

    def read() -> bool:
        heard.extend(frames[0] for frames in drain(ours, 64))
        return False

    loop.add_socket(ours, read)
    for number in range(20):
        loop.rest(ours, 0.0005)
        loop.rest(ours, LONG_REST_SECONDS)  # it rests already
        send(theirs, [b"x"])
        turn_until(loop, lambda number=number: len(heard) > number)
    loop.rest(ours, 0.0005)
    loop.remove_socket(ours)  # while it rests
    ours.close(), theirs.close()
    assert len(heard) == 20


def test_timers_are_looked_at_also_when_there_is_no_end_of_messages(loop: Loop) -> None:
    reading, writing = os.pipe()
    loop.add_reader(reading, lambda: None)  # it stays readable: the loop never sleeps
    os.write(writing, b"x")
    seen = []
    turn_until(loop, lambda: seen.append(loop.is_time) or seen.count(True) >= 3)
    assert seen.count(False) > 0
    loop.remove_reader(reading)
    os.close(reading), os.close(writing)


def test_an_idle_loop_sleeps_until_the_first_timer(loop: Loop) -> None:
    begun = time.monotonic()
    due = begun + 0.1
    loop.add_timer(lambda: due)
    loop.add_timer(lambda: None)
    turns = 0
    while time.monotonic() < due:
        loop.turn()
        turns += 1
    assert turns <= 3
    assert loop.is_time


def test_calls_from_other_threads_are_made_in_their_order(loop: Loop) -> None:
    made: list[int] = []

    def post() -> None:
        for number in range(100):
            loop.post(lambda number=number: made.append(number))

    thread = threading.Thread(target=post)
    thread.start()
    turn_until(loop, lambda: len(made) == 100)
    thread.join()
    assert made == list(range(100))


def test_frames_are_what_pyzmq_sends_and_receives(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    ours, theirs = pair(context, "frames")
    for frames in ([b""], [b"one"], [b"", b"two", b""], [b"x" * 1_000_000, b"y"], [b"f"] * 1000):
        send(ours, frames)
        assert theirs.recv_multipart() == frames
        theirs.send_multipart(frames)
        assert receive(ours) == frames
    big = b"z" * 500_000
    send(ours, [b"head", zmq.Frame(big, copy=False), b"tail"], copy=False)
    assert theirs.recv_multipart() == [b"head", big, b"tail"]
    assert receive(ours) is None
    assert list(drain(ours, 5)) == []
    ours.close(), theirs.close()


def test_what_cannot_be_sent_says_so(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with context.socket(zmq.PUSH) as alone:
        with pytest.raises(zmq.Again):
            send(alone, [b"nobody", b"is there"])


def test_who_posts_while_the_loop_wakes_takes_no_later_wake_up_with_him(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His byte is read with the one that woke the loop: then whoever posts next must write one again."""
    made: list[str] = []
    really_read = os.read

    def read(descriptor: int, size: int) -> bytes:
        loop.post(lambda: made.append("before"))
        data = really_read(descriptor, size)
        loop.post(lambda: made.append("behind"))
        return data

    loop.post(lambda: made.append("first"))
    with monkeypatch.context() as patch:
        patch.setattr("jupyter_cmdop.keeper.loop.os.read", read)
        loop.turn()
    assert made == ["first", "before", "behind"]
    loop.post(lambda: made.append("next"))
    assert select.select([loop._wake_read], [], [], 0)[0], "nobody would hear of it"
    loop.turn()
    assert made[-1] == "next"
