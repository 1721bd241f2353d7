"""The recorder with bodies so long that a thread hashes and writes them: order, what does not wait, a full disk."""

from __future__ import annotations

import collections
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.journal.errors import JournalUnavailable
from jupyter_cmdop.journal.query import JournalReader, verify
from jupyter_cmdop.journal.store import JournalStore
from jupyter_cmdop.keeper.clients import LONG_BYTES
from jupyter_cmdop.keeper.clock import Clock
from jupyter_cmdop.keeper.kernel_talk import KernelTalk
from jupyter_cmdop.keeper.recorder import RETRY_SECONDS, TRY_BYTES, Recorder
from jupyter_cmdop.keeper.runner import NoHand, Runner
from tests.journal.making import LOG, entry, message

LONG = message("stream", {"name": "stdout", "text": "x" * (LONG_BYTES + 1)})
LIMIT_SECONDS = 30.0


class Loop:
    """The part of the keeper's loop that a recorder knows."""

    def __init__(self, directory: Path) -> None:
        self.posted: queue.Queue[Callable[[], None]] = queue.Queue()
        self.now = 0.0
        self.recorder = Recorder(
            JournalStore.open(directory, LOG), Clock(monotonic=lambda: self.now), post=self.posted.put
        )
        self.done: list[str] = []

    def commit(self, generation: int = 0) -> None:
        while self.recorder.commit(generation):
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
    loop.now += RETRY_SECONDS
    loop.commit()
    assert recorder.unavailable is None
    assert loop.done == ["shown", "acted"]
    assert kinds(loop) == ["output", "behind"]
    assert verify(recorder.store.directory).ok


@pytest.mark.parametrize("delivered", [True, False])
def test_an_interrupt_waits_for_no_record_and_does_not_overtake_the_delivery(
    loop: Loop, delivered: bool
) -> None:
    """While a long output is prepared a cell may be let in, not delivered yet, and interrupted: it does not run."""
    core = mock.Mock(is_active=True, interrupted_by="somebody", revoked=False)
    live = mock.Mock(id="op", message=None if delivered else object(), facts={})
    process = mock.Mock()
    process.interrupt = lambda: loop.done.append("interrupted")
    runner = object.__new__(Runner)
    runner.recorder, runner.endpoints = loop.recorder, None
    runner.session, runner.operations = mock.Mock(operations={"op": core}), collections.OrderedDict(op=live)
    runner.submit = lambda event, hand=None: loop.done.append(type(event).__name__)
    talk = KernelTalk(runner, mock.Mock(channels=mock.Mock()), process)
    runner.backend = mock.Mock(interrupt=talk.interrupt)
    loop.recorder.note(entry(form="v1", body=LONG))
    loop.commit()
    if not delivered:
        loop.recorder.send(talk.deliver, live, "", 0)
    runner._perform([fx.InterruptBackend("op")], NoHand())
    loop.commit()
    assert loop.done == (["interrupted"] if delivered else [])
    loop.wait()
    loop.commit()
    assert loop.done == (["interrupted"] if delivered else ["Replied", "Idle"])


def test_the_floor_moves_while_a_turn_is_prepared(loop: Loop) -> None:
    """What was said between is of the generation before; the journal must not take that for another writer."""
    recorder = loop.recorder
    recorder.note(entry(form="v1", body=LONG, generation=1))
    loop.commit(1)
    recorder.note(entry("between", data={}, generation=1))
    recorder.note(entry("claimed", data={}, generation=2))
    loop.commit(2)
    loop.wait()
    loop.commit(2)
    assert kinds(loop) == ["output", "between", "claimed"]
    assert recorder.store.head.generation == 2


def test_the_floor_moves_while_more_waits_than_is_tried_at_once(loop: Loop) -> None:
    recorder = loop.recorder
    with mock.patch.object(recorder.store, "append", side_effect=JournalUnavailable("full", 28)):
        for _ in range(3):
            recorder.note(entry(body=b"y" * TRY_BYTES, generation=1))
        loop.commit(1)
        recorder.note(entry("claimed", data={}, generation=2))
        loop.commit(2)
    loop.now += RETRY_SECONDS
    loop.commit(2)
    assert recorder.unavailable is None
    assert kinds(loop) == ["output"] * 3 + ["claimed"]


def test_numbers_count_what_is_prepared_and_a_failure_keeps_them(loop: Loop) -> None:
    recorder = loop.recorder
    with mock.patch("os.pwrite", side_effect=OSError(28, os.strerror(28))):
        assert recorder.next_seq == recorder.note(entry(form="v1", body=LONG)) == 1
        loop.commit()
        assert recorder.next_seq == recorder.note(entry("behind", data={})) == 2
        loop.wait()
        loop.commit()
        assert recorder.next_seq == recorder.note(entry("later", data={})) == 3
        loop.commit()
    loop.now += RETRY_SECONDS
    loop.commit()
    assert recorder.committed_seq == recorder.last_seq == 3
    assert kinds(loop) == ["output", "behind", "later"]


def test_what_waits_for_no_record_goes_out_with_a_long_body_that_is_held_back(loop: Loop) -> None:
    recorder = loop.recorder
    with mock.patch.object(recorder.store, "append", side_effect=JournalUnavailable("full", 28)):
        recorder.note(entry("first", data={}))
        loop.commit()
        assert recorder.unavailable is not None
        recorder.note(entry(form="v1", body=LONG))
        recorder.at_once(loop.done.append, "at once")
        loop.commit()
    assert loop.done == ["at once"]


def test_a_sync_that_fails_while_a_body_is_written_ends_the_record_for_good(loop: Loop) -> None:
    """Nobody knows what of the file is on disk then, and the next sync may wrongly succeed."""
    recorder = loop.recorder
    recorder.note(entry(form="v1", body=LONG))
    recorder.send(loop.done.append, "acted")
    with mock.patch("jupyter_cmdop.journal.store.sync_file", side_effect=OSError(5, os.strerror(5))):
        loop.commit()
        loop.wait()
        loop.commit()
    loop.now += RETRY_SECONDS
    loop.commit()
    assert recorder.store.failure is not None
    assert recorder.unavailable is not None
    assert loop.done == []


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


def test_after_a_failure_for_good_nothing_is_kept_that_can_never_be_recorded(loop: Loop) -> None:
    recorder = loop.recorder
    with mock.patch("jupyter_cmdop.journal.store.sync_file", side_effect=OSError(5, os.strerror(5))):
        recorder.note(entry("first", data={}), durable=True)
        recorder.send(loop.done.append, "acted")
        loop.commit()
    seq = recorder.last_seq
    for _ in range(100):
        assert recorder.note(entry("attached", data={})) == seq  # numbers never go back, and none is promised
        recorder.send(loop.done.append, "told")
        recorder.show(loop.done.append, "shown")
        loop.now += RETRY_SECONDS
        loop.commit()
    assert loop.done == ["shown"] * 100
    assert (len(recorder._held_entries), len(recorder._held_sends)) == (0, 0)


def test_what_waits_for_room_is_bounded_and_told_as_a_gap(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_cmdop.keeper.recorder.BACKLOG_BYTES", 10_000)
    recorder = loop.recorder
    with mock.patch.object(recorder.store, "append", side_effect=JournalUnavailable("full", 28)):
        for _ in range(100):
            recorder.note(entry(form="v1", body=b"x" * 100))
            loop.commit()
        outputs = recorder.last_seq
        assert outputs < 50
        for _ in range(100):
            recorder.note(entry("attached", data={}))
            loop.commit()
        assert outputs < recorder.last_seq < 100
        recorder.note(entry("delivered", data={}))  # what justifies an act is kept, whatever waits
        assert kinds(loop) == []
        loop.commit()
        waiting = recorder.last_seq
    loop.now += RETRY_SECONDS
    loop.commit()
    assert kinds(loop).count("output") == outputs
    assert "delivered" in kinds(loop)
    with JournalReader(recorder.store.directory) as reader:
        gap = list(reader.entries())[-1]
    assert gap.type == "gap"
    assert gap.body is not None
    assert msgspec.json.decode(gap.body)["lost"] == 201 - waiting


def test_too_much_behind_a_long_body_asks_for_a_pause(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_cmdop.keeper.recorder.BACKLOG_BYTES", 10_000)
    recorder = loop.recorder
    recorder.note(entry(form="v1", body=LONG))
    loop.commit()
    assert recorder.is_preparing
    assert not recorder.is_backed_up
    while not recorder.is_backed_up:
        recorder.note(entry(form="v1", body=b"x" * 100))
    assert recorder.last_seq < 50
    loop.wait()
    loop.commit()
    assert not recorder.is_backed_up
    assert kinds(loop).count("output") == recorder.last_seq
