"""The recorder with bodies so long that a thread hashes and writes them: order, what does not wait, a full disk."""

from __future__ import annotations

import collections
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.journal.query import JournalReader, verify
from jupyter_cmdop.journal.store import JournalStore
from jupyter_cmdop.keeper.clients import LONG_BYTES
from jupyter_cmdop.keeper.recorder import Recorder
from jupyter_cmdop.keeper.runner import NoHand, Runner
from tests.journal.making import LOG, entry, message

LONG = message("stream", {"name": "stdout", "text": "x" * (LONG_BYTES + 1)})
LIMIT_SECONDS = 30.0


class Loop:
    """The part of the keeper's loop that a recorder knows."""

    def __init__(self, directory: Path) -> None:
        self.posted: queue.Queue[Callable[[], None]] = queue.Queue()
        self.recorder = Recorder(JournalStore.open(directory, LOG), self.posted.put)
        self.done: list[str] = []

    def commit(self) -> None:
        while self.recorder.commit(0):
            pass

    def wait(self) -> None:
        """Until the thread has said that it is ready."""
        self.posted.get(timeout=LIMIT_SECONDS)()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path / "journal")
    yield made
    made.recorder.close()


def kinds(loop: Loop) -> list[str]:
    with JournalReader(loop.recorder.store.directory) as reader:
        return [found.type for found in reader.entries()]


def test_a_long_body_is_recorded_before_it_is_shown_and_in_its_place(loop: Loop) -> None:
    recorder = loop.recorder
    prepared: list[str] = []
    recorder.note(entry("first", data={}))
    assert recorder.note(entry(form="v1", body=LONG), prepare=lambda: prepared.append("signed")) == 2
    recorder.show(loop.done.append, "shown")
    loop.commit()
    assert loop.done == []
    assert recorder.note(entry("behind", data={})) == 3
    recorder.send(loop.done.append, "behind")
    recorder.at_once(loop.done.append, "at once")
    loop.commit()
    assert loop.done == ["at once"]
    assert recorder.committed_seq == 0
    loop.wait()
    loop.commit()
    assert loop.done == ["at once", "shown", "behind"]
    assert prepared == ["signed"]
    assert kinds(loop) == ["first", "output", "behind"]
    assert verify(recorder.store.directory).ok


def test_bodies_of_all_sizes_share_a_turn(loop: Loop) -> None:
    """One that is only just too long for the database lies between two very long ones in the file."""
    bodies = [LONG, b"y" * 70_000, b"z", LONG[:-9] + b'longest"}']
    for body in bodies:
        loop.recorder.note(entry(body=body))
    loop.commit()
    loop.wait()
    loop.commit()
    with JournalReader(loop.recorder.store.directory) as reader:
        assert [found.body for found in reader.entries()] == bodies
    assert verify(loop.recorder.store.directory).ok


def test_a_disk_that_fails_meanwhile_holds_back_the_turn(loop: Loop) -> None:
    recorder = loop.recorder
    recorder.note(entry(form="v1", body=LONG))
    recorder.send(loop.done.append, "acted")
    recorder.show(loop.done.append, "shown")
    with mock.patch("os.pwrite", side_effect=OSError(28, os.strerror(28))):
        loop.commit()
        loop.wait()
        recorder.note(entry("behind", data={}))
        loop.commit()
        assert recorder.unavailable is not None
    assert loop.done == ["shown"]
    with mock.patch("time.monotonic", return_value=1e9):
        loop.commit()
    assert recorder.unavailable is None
    assert loop.done == ["shown", "acted"]
    assert kinds(loop) == ["output", "behind"]
    assert verify(recorder.store.directory).ok


@pytest.mark.parametrize("delivered", [True, False])
def test_an_interrupt_waits_for_no_record_but_for_the_delivery(loop: Loop, delivered: bool) -> None:
    """While a long output is prepared a cell may be let in, not delivered yet, and interrupted."""
    runner = object.__new__(Runner)
    runner.recorder, runner.endpoints, runner.backend = loop.recorder, None, mock.Mock()
    runner.backend.interrupt = loop.done.append
    live = mock.Mock(message=None if delivered else object())
    runner.operations = collections.OrderedDict(op=live)
    loop.recorder.note(entry(form="v1", body=LONG))
    loop.commit()
    loop.recorder.send(loop.done.append, "delivered")
    runner._perform([fx.InterruptBackend("op")], NoHand())
    loop.commit()
    assert loop.done == (["op"] if delivered else [])
    loop.wait()
    loop.commit()
    assert loop.done == (["op", "delivered"] if delivered else ["delivered", "op"])


def test_what_else_goes_wrong_in_the_thread_loses_nothing(loop: Loop) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    loop.recorder.note(entry(form="v1", body=LONG), prepare=fails)
    loop.recorder.show(loop.done.append, "shown")
    loop.commit()
    loop.wait()
    loop.commit()
    assert loop.done == ["shown"]
    assert kinds(loop) == ["output"]
