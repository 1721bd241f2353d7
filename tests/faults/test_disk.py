"""The disk below a journal fills up, or fails: new input is refused, what runs is seen, nothing is unrecorded."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.journal.outputs import output_of
from jupyter_cmdop.journal.query import JournalReader
from tests.faults.attacks import call_cli, is_root, keeper_of, null_spec, wait_gone, wait_until
from tests.faults.strace import fail_each, needs_strace
from tests.support import (
    Clients,
    Gate,
    Home,
    Sessions,
    iopub_until,
    is_idle_of,
    is_stream_of,
    reply_of,
    wait_for_entry,
    wait_for_running,
)

DISK_BYTES = 64 * 1024 * 1024
LINE_BYTES = 250_000
REFUSED_SECONDS = 0.1
"""The promise; a median keeps it on a loaded machine."""
COUNTING = """
import itertools, time
for n in itertools.count():
    print(n, flush=True)
    time.sleep(0.005)
"""


@pytest.fixture(scope="module")
def small_disk(home: Home) -> Iterator[Path]:
    """The state directory is a file system of its own, and a small one."""
    if not is_root():
        pytest.skip("only root may mount a file system")
    home.state.mkdir(mode=0o700)
    options = f"size={DISK_BYTES},mode=700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "cmdop-test", str(home.state)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield home.state
    finally:
        subprocess.run(["umount", str(home.state)], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Take the last byte of a file system, and give all of them back."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    try:
        assert os.statvfs(disk).f_bavail == 0
        yield
    finally:
        filler.unlink()


def unavailable(session: Session) -> str | None:
    facts = session.status().journal
    assert facts is not None
    return facts.unavailable


def fill_until_known(session: Session) -> None:
    """A small entry may still fit into a page that is there: ask until one does not."""
    wait_until(lambda: unavailable(session), "the keeper knows that it cannot record")


def refusal_seconds(session: Session, *, count: int = 21) -> float:
    """The median of how long a refusal takes."""
    taken = []
    for _ in range(count):
        begun = time.monotonic()
        result = session.run("ran.append('refused')")
        taken.append(time.monotonic() - begun)
        assert result.refusal is not None
        assert result.refusal.code == "journal_unavailable"
    print(f"refused in {statistics.median(taken) * 1000:.1f} ms (the slowest in {max(taken) * 1000:.1f} ms)")
    return statistics.median(taken)


def numbers(session: Session, operation: str) -> list[int]:
    """What a counting cell has printed, as it is recorded."""
    return [int(line) for line in "".join(texts(session, operation)).split()]


def texts(session: Session, operation: str) -> list[str]:
    """What a cell has printed, as it is recorded."""
    with JournalReader(Path(session.status().journal.path)) as reader:  # type: ignore[union-attr]
        found = reader.entries(types=("output",), operation=operation)
        outputs = [output_of(entry.body) for entry in found if entry.body is not None]
    return [str(output["text"]) for output in outputs if output and output["output_type"] == "stream"]


def test_a_full_file_system(home: Home, small_disk: Path, session: Sessions, clients: Clients) -> None:
    """Refused within 100 ms; a running cell is seen and recorded without a gap; all goes on when there is room."""
    made = session()
    bot, viewer = clients(made, "bot"), clients(made, "viewer", role="observer")
    assert made.run("ran = []").status == "ok"
    counting = bot.execute(COUNTING)
    operation = wait_for_running(made, "bot")
    wait_until(lambda: numbers(made, operation), "its output is recorded")
    keeper = keeper_of(home, made)
    with full(small_disk):
        fill_until_known(made)
        assert refusal_seconds(made) < REFUSED_SECONDS
        told = call_cli("run", made.name, "ran.append('refused')", code=3)
        assert told.data["refusal"]["code"] == "journal_unavailable"
        assert "free some space" in told.err
        seen = [int(m["content"]["text"].split()[-1]) for m in _streams(viewer, 3)]
        later = [int(m["content"]["text"].split()[-1]) for m in _streams(viewer, 3)]
        assert later[-1] > seen[0]
        held = len(numbers(made, operation))
        assert refusal_seconds(made) < REFUSED_SECONDS
        assert len(numbers(made, operation)) == held, "what cannot be recorded is not in the record"
    wait_until(lambda: not unavailable(made), "it can record again, without anybody's help")
    assert made.interrupt(operation).interrupted == operation
    iopub_until(bot, is_idle_of(counting))
    made.wait(operation)
    recorded = numbers(made, operation)
    assert recorded == list(range(len(recorded)))
    assert recorded[-1] >= later[-1]
    assert made.run("ran").text.strip() == "[]"
    assert keeper_of(home, made) == keeper
    assert made.verify().ok


def _streams(client: object, count: int) -> list[dict[str, object]]:
    return [iopub_until(client, lambda m: m["msg_type"] == "stream")[-1] for _ in range(count)]  # type: ignore[arg-type]


def test_refusals_are_quick_with_much_waiting_to_be_recorded(
    home: Home, small_disk: Path, session: Sessions, clients: Clients, gate: Gate
) -> None:
    """Tens of megabytes of output wait; a try whether the disk has room again costs next to nothing."""
    made = session()
    bot = clients(made, "bot")
    assert made.run("ran = []").status == "ok"
    code = f"{gate.code}\nfor n in range(100):\n    print('x' * {LINE_BYTES - 1}, flush=True)\nprint('end', flush=True)"
    sent = bot.execute(f"{code}\n{gate.code}")
    iopub_until(bot, is_stream_of(sent))
    with full(small_disk):
        gate.open()
        fill_until_known(made)
        iopub_until(bot, lambda m: m["msg_type"] == "stream" and m["content"]["text"].endswith("waiting\n"))
        assert refusal_seconds(made) < REFUSED_SECONDS
    gate.open()
    assert reply_of(bot, sent)["content"]["status"] == "ok"
    wait_until(lambda: not unavailable(made), "it can record again")
    recorded = sum(
        text.count("x") for text in texts(made, wait_for_entry(made, "ended", actor="bot")["operation"])
    )
    assert recorded == 100 * (LINE_BYTES - 1)
    assert made.run("ran").text.strip() == "[]"
    assert made.verify().ok


def test_closed_on_a_full_file_system(home: Home, small_disk: Path, session: Sessions) -> None:
    """Its files are whole or as they were, nothing half-written lies beside them, and its record gets its end."""
    made = session(kernel=null_spec(home))
    keeper = keeper_of(home, made)
    directory = home.session_dir(made.id)
    before = sorted(path.name for path in directory.iterdir())
    with full(small_disk):
        with made.start(calls.run("say held")):
            fill_until_known(made)
            with Session.open(made.id) as link:
                assert link.close(force=True).ended
            wait_gone(keeper)
        record = json.loads((directory / "session.json").read_bytes())
        assert record["id"] == made.id
        assert {p.name for p in directory.iterdir()} <= {*before, "journal.sqlite-wal", "journal.sqlite-shm"}
    call_cli("doctor", "--sweep", code=None)
    settled(made.name)
    lines = call_cli("log", made.name).lines
    assert "say held" not in [line["data"].get("code") for line in lines if line["type"] == "delivered"]


@needs_strace
def test_a_sync_that_fails_ends_all_input_for_good(
    home: Home, session: Sessions, clients: Clients, tmp_path: Path
) -> None:
    """After an error nobody knows what is on disk, and the next sync may wrongly succeed: it is not believed.

    Here it is a cell's output that cannot be synced, in the background: the next input is refused all the same.
    """
    made = session()
    bot, viewer = clients(made, "bot"), clients(made, "viewer", role="observer")
    counting = bot.execute(COUNTING)
    operation = wait_for_running(made, "bot")
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w').close()"
    keeper = keeper_of(home, made)
    with fail_each(keeper, "fdatasync", "EIO", tmp_path / "trace"):
        wait_until(lambda: unavailable(made), "the keeper knows that it cannot record")
        assert "Input/output error" in str(unavailable(made))
        assert call_cli("run", made.name, code, code=3).data["refusal"]["code"] == "journal_unavailable"
        assert refusal_seconds(made) < REFUSED_SECONDS
    # The disk seems well again.
    refused = call_cli("run", made.name, code, code=3)
    assert refused.data["refusal"]["code"] == "journal_unavailable"
    assert "any more" in refused.err
    assert f"jupyter cmdop close {made.name} --force" in refused.err
    for look in ("status", "grants", "read", "log", "verify"):
        call_cli(look, made.name)
    _streams(viewer, 5)
    assert made.interrupt(operation).interrupted == operation
    assert reply_of(bot, counting)["content"]["ename"] == "KeyboardInterrupt"
    iopub_until(viewer, is_idle_of(counting))
    assert call_cli("run", made.name, code, code=3).data["refusal"]["code"] == "journal_unavailable"
    with Session.open(made.id) as link:
        assert link.close(force=True).ended
    wait_gone(keeper)
    assert not mark.exists()
    assert settled(made.name) == {operation: "unknown"}, "nobody recorded how it ended"


@needs_strace
def test_what_cannot_be_synced_does_not_run(home: Home, session: Sessions, tmp_path: Path) -> None:
    """It is in the file and nobody knows whether it is on disk: it was not sent to the kernel, and never will be."""
    made = session(kernel=null_spec(home))
    mark = tmp_path / "mark"
    keeper = keeper_of(home, made)
    with Session.open(made.id) as first:
        first.status()
        with fail_each(keeper, "fdatasync", "EIO", tmp_path / "trace"):
            held = first.start(calls.run(f"write {mark}"))
            fill_until_known(made)
        assert (
            call_cli("run", made.name, f"write {mark}", code=3).data["refusal"]["code"]
            == "journal_unavailable"
        )
        assert not held.is_ended
        with Session.open(made.id) as link:
            assert link.close(force=True).ended
        wait_gone(keeper)
    assert not mark.exists()
    assert list(settled(made.name).values()) == ["unknown"], "the record says that it was about to be sent"


def settled(name: str) -> dict[str, str]:
    """The outcome of each admitted operation, in a record that holds."""
    assert call_cli("verify", name).data["ok"]
    lines = call_cli("log", name).lines
    outcomes = {line["operation"]: line["data"]["outcome"] for line in lines if line["type"] == "ended"}
    assert {line["operation"] for line in lines if line["type"] == "admitted"} == set(outcomes)
    return outcomes
