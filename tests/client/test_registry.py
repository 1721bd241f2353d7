"""Names are given once; what is lost is recognised by facts and tidied away; what may live is left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client import places, processes
from jupyter_cmdop.client.errors import IdTaken, PlaceError, Refused, UnknownSession
from jupyter_cmdop.client.registry import (
    Pointer,
    ProcessRef,
    Record,
    Registry,
    facts,
    now_iso,
)

ME = os.getpid()


def pointer(**fields: Any) -> Pointer:
    known: dict[str, Any] = {
        "id": "12345678-1234-1234-1234-123456789abc",
        "name": "analysis",
        "pid": ME,
        "start_time": processes.start_time(ME),
        "boot_id": processes.boot_id(),
        "host": processes.host_name(),
        "link": "/nowhere/link.sock",
    }
    return Pointer(**(known | fields))


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def lose(registry: Registry, session_id: str) -> None:
    """Make the pointer name a process that is not there any more."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    registry.update(session_id, pid=gone.pid, start_time="1", link="/nowhere")


def closed_record(registry: Registry, name: str, number: int, *, closed: str) -> Record:
    record = Record(
        id=f"{number:08d}-0000-4000-8000-000000000000",
        name=name,
        created="2026-01-01T00:00:00Z",
        closed=closed,
        state="closed",
    )
    places.private_dir(registry.sessions.parent)
    registry.write_record(record)
    return record


# --- liveness


def test_nothing_speaks_against_a_running_process() -> None:
    assert facts(pointer()).state == "alive"


@pytest.mark.parametrize("written", [str, int, float])
def test_start_time_may_be_written_in_any_way(written: Any) -> None:
    assert facts(pointer(start_time=written(processes.start_time(ME) or "0"))).state == "alive"


def test_process_that_is_gone_is_lost() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    verdict = facts(pointer(pid=gone.pid, start_time=None))
    assert verdict.state == "lost"
    assert f"(process {gone.pid}) is gone" in verdict.reason


def test_pid_that_is_used_again_is_lost() -> None:
    verdict = facts(pointer(start_time="1"))
    assert verdict.state == "lost"
    assert "another one now" in verdict.reason


def test_zombie_is_lost() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    verdict = facts(pointer(pid=child.pid, start_time=processes.start_time(child.pid)))
    child.wait()
    assert verdict.state == "lost"
    assert "has ended" in verdict.reason


def test_other_boot_is_lost() -> None:
    verdict = facts(pointer(boot_id="0" * 36))
    assert verdict.state == "lost"
    assert "started again" in verdict.reason


def test_session_of_another_host_is_not_ours_to_judge() -> None:
    """Home directories are shared: the same pid on this host proves nothing about that one."""
    verdict = facts(pointer(host="elsewhere", boot_id="0" * 36, pid=2**22 + 1))
    assert verdict.state == "unresponsive"
    assert "elsewhere" in verdict.reason


def test_reserved_name_is_starting_while_its_spawner_lives() -> None:
    spawner = ProcessRef(pid=ME, start_time=processes.start_time(ME))
    assert (
        facts(pointer(pid=None, link=None, spawner=spawner, created="2020-01-01T00:00:00Z")).state
        == "starting"
    )


def test_reserved_name_outlives_its_spawner_for_a_while() -> None:
    """A client killed between spawning and waiting leaves a keeper that is about to report."""
    spawner = ProcessRef(pid=ME, start_time="1")
    assert facts(pointer(pid=None, link=None, spawner=spawner, created=now_iso())).state == "starting"
    assert (
        facts(pointer(pid=None, link=None, spawner=spawner, created="2020-01-01T00:00:00Z")).state == "lost"
    )
    assert facts(pointer(pid=None, link=None, spawner=spawner, created="nonsense")).state == "lost"


def test_keeper_without_a_link_yet_is_starting() -> None:
    assert facts(pointer(link=None)).state == "starting"


def test_process_facts_survive_a_hostile_command_name(tmp_path: Path) -> None:
    """The command in /proc/<pid>/stat may hold spaces and parentheses, which shifts fields for a naive parser."""
    program = tmp_path / "a) Z 0 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "1000"])
    try:
        assert processes.process_state(child.pid) == "running"
        assert int(processes.start_time(child.pid) or 0) >= int(processes.start_time(ME) or 0)
    finally:
        child.kill()
        child.wait()


# --- names


def test_reserved_pointer_is_private_and_complete(registry: Registry) -> None:
    made = registry.reserve("analysis", spec="python3", workspace="/w")
    path = registry.pointer_path(made.id)
    assert path.stat().st_mode & 0o777 == 0o600
    assert registry.list_pointers() == [made]
    assert json.loads(path.read_text())["state"] == "starting"


@pytest.mark.parametrize("second", ["analysis", "Analysis", "ANALYSIS"])
def test_name_is_taken_whatever_its_case(registry: Registry, second: str) -> None:
    registry.reserve("analysis")
    with pytest.raises(Refused) as caught:
        registry.reserve(second)
    assert caught.value.refusal.code == "name_taken"
    assert "attach analysis" in caught.value.refusal.next[0]


def test_name_of_another_hosts_session_is_taken(registry: Registry) -> None:
    made = registry.reserve("analysis")
    registry.update(made.id, host="elsewhere", pid=1, link="/l")
    with pytest.raises(Refused, match="elsewhere"):
        registry.reserve("analysis")


def test_name_of_a_lost_session_can_be_used_again(registry: Registry) -> None:
    places.private_dir(registry.sessions.parent)
    lost = registry.reserve("analysis", sockets=str(places.make_socket_dir()))
    registry.write_record(Record(id=lost.id, name="analysis", created=lost.created))
    lose(registry, lost.id)
    fresh = registry.reserve("Analysis")
    assert [item.id for item in registry.list_pointers()] == [fresh.id]
    record = registry.record(lost.id)
    assert record is not None
    assert (record.state, bool(record.reason), bool(record.closed)) == ("lost", True, True)


def test_name_of_a_removed_session_can_be_used_again(registry: Registry) -> None:
    first = registry.reserve("analysis")
    registry.remove(first.id)
    assert registry.reserve("analysis").id != first.id


def test_id_of_a_live_or_a_past_session_is_not_given_again(registry: Registry) -> None:
    """Whoever chooses an id would write over the pointer of the one, and over the journal of the other."""
    places.private_dir(registry.sessions.parent)
    live = registry.reserve("live")
    with pytest.raises(IdTaken, match=live.id):
        registry.reserve("other", session_id=live.id)
    assert registry.list_pointers() == [live]
    registry.write_record(Record(id=live.id, name="live", created=live.created))
    registry.remove(live.id)
    with pytest.raises(IdTaken, match=live.id):
        registry.reserve("other", session_id=live.id)
    assert registry.list_pointers() == []
    assert registry.record(live.id) is not None


def _try_to_reserve(directories: tuple[str, str], barrier: Any, answers: Any) -> None:
    own = Registry(*map(Path, directories))
    barrier.wait(60)
    for name in ("analysis", "Analysis", "aNalysis"):
        try:
            answers.put(("made", own.reserve(name).id))
        except Refused as refused:
            answers.put((refused.refusal.code, None))
    barrier.wait(60)  # the spawner of a reserved name must live until all have tried


def test_hundred_reservations_at_once_make_one_session(registry: Registry) -> None:
    context = multiprocessing.get_context("spawn")
    count = 6
    barrier, answers = context.Barrier(count), context.Queue()
    directories = (str(registry.pointers), str(registry.sessions))
    children = [
        context.Process(target=_try_to_reserve, args=(directories, barrier, answers)) for _ in range(count)
    ]
    for child in children:
        child.start()
    got = [answers.get(timeout=60) for _ in range(3 * count)]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted({code for code, _ in got}) == ["made", "name_taken"]
    assert len([code for code, _ in got if code == "made"]) == 1


def test_threads_reserve_one_after_the_other(registry: Registry) -> None:
    made: list[str] = []

    def reserve(number: int) -> None:
        made.append(registry.reserve(f"s{number}").name)

    threads = [threading.Thread(target=reserve, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(made) == sorted(item.name for item in registry.list_pointers())


def test_lock_that_is_never_given_back_is_an_error_with_a_hint(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_cmdop.client.registry.LOCK_SECONDS", 0.05)
    with registry.locked(), pytest.raises(PlaceError, match="fuser"):
        registry.reserve("analysis")


# --- reading


def test_update_keeps_fields_of_a_newer_version(registry: Registry) -> None:
    made = registry.reserve("analysis")
    registry.update(made.id, wonder="of tomorrow")
    registry.update(made.id, pid=ME)
    data = json.loads(registry.pointer_path(made.id).read_text())
    assert data["wonder"] == "of tomorrow"
    assert data["pid"] == ME


def test_changes_of_a_removed_pointer_do_not_bring_it_back(registry: Registry) -> None:
    made = registry.reserve("analysis")
    registry.remove(made.id)
    registry.update(made.id, pid=ME)
    assert registry.list_pointers() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"id": 1}', b"\xff\xfe", b'{"name": "x"}'])
def test_file_that_is_no_pointer_is_skipped(registry: Registry, content: bytes) -> None:
    made = registry.reserve("analysis")
    (registry.pointers / "12345678-1234-1234-1234-123456789abc.json").write_bytes(content)
    assert [item.id for item in registry.list_pointers()] == [made.id]


def test_pointer_under_another_id_or_behind_a_link_is_skipped(registry: Registry, tmp_path: Path) -> None:
    made = registry.reserve("analysis")
    raw = registry.pointer_path(made.id).read_bytes()
    (registry.pointers / "12345678-1234-1234-1234-123456789abc.json").write_bytes(raw)
    (tmp_path / "foreign.json").write_bytes(raw.replace(made.id.encode(), b"1" * 36))
    (registry.pointers / f"{'1' * 36}.json").symlink_to(tmp_path / "foreign.json")
    os.mkfifo(registry.pointers / "fifo.json")
    assert [item.id for item in registry.list_pointers()] == [made.id]


def test_pointers_in_an_open_directory_prove_nothing(registry: Registry) -> None:
    registry.reserve("analysis")
    registry.pointers.chmod(0o755)
    with pytest.raises(PlaceError):
        registry.list_pointers()


def test_no_directory_means_no_sessions_and_none_is_made(registry: Registry) -> None:
    assert registry.list_pointers() == []
    assert registry.list_records() == []
    assert not registry.pointers.exists()


# --- resolving


def test_live_session_comes_before_past_ones(registry: Registry) -> None:
    closed_record(registry, "analysis", 1, closed="2099-01-01T00:00:00Z")
    made = registry.reserve("analysis")
    found = registry.resolve("ANALYSIS")
    assert (found.id, found.is_live) == (made.id, True)


def test_without_a_live_one_the_last_closed_is_meant(registry: Registry) -> None:
    closed_record(registry, "analysis", 1, closed="2026-01-03T00:00:00Z")
    closed_record(registry, "analysis", 2, closed="2026-01-02T00:00:00Z")
    found = registry.resolve("analysis")
    assert found.id.startswith("00000001")
    assert not found.is_live
    assert "closed" in found.liveness.reason


def test_older_one_is_named_by_its_prefix(registry: Registry) -> None:
    closed_record(registry, "analysis", 1, closed="2026-01-03T00:00:00Z")
    older = closed_record(registry, "analysis", 2, closed="2026-01-02T00:00:00Z")
    assert registry.resolve("analysis@00000002").id == older.id
    assert registry.resolve(older.id).id == older.id
    assert registry.resolve(older.id.replace("-", "").upper()).id == older.id


def test_prefix_that_fits_several_is_refused_with_the_choices(registry: Registry) -> None:
    closed_record(registry, "analysis", 1, closed="2026-01-03T00:00:00Z")
    closed_record(registry, "analysis", 2, closed="2026-01-02T00:00:00Z")
    with pytest.raises(UnknownSession, match="give more") as caught:
        registry.resolve("analysis@0000")
    assert caught.value.next == ("analysis@00000001-0000", "analysis@00000002-0000")


def test_lost_session_is_found_with_its_reason(registry: Registry) -> None:
    places.private_dir(registry.sessions.parent)
    made = registry.reserve("analysis")
    registry.write_record(Record(id=made.id, name="analysis", created=made.created))
    lose(registry, made.id)
    found = registry.resolve("analysis")
    assert not found.is_live
    assert found.liveness.state == "lost"
    assert "is gone" in found.liveness.reason


def test_unknown_name_comes_with_what_looks_like_it(registry: Registry) -> None:
    registry.reserve("analysis")
    with pytest.raises(UnknownSession) as caught:
        registry.resolve("anlysis")
    assert caught.value.next == ("did you mean analysis?",)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "@", "..", "\x00", "x" * 5000])
def test_hostile_names_are_only_unknown(registry: Registry, name: str) -> None:
    closed_record(registry, "analysis", 1, closed="2026-01-03T00:00:00Z")
    with pytest.raises(UnknownSession):
        registry.resolve(name)


# --- sweeping


def test_sweep_takes_the_lost_and_leaves_the_living(registry: Registry) -> None:
    places.private_dir(registry.sessions.parent)
    alive = registry.reserve("alive", sockets=str(places.make_socket_dir()))
    registry.update(alive.id, pid=ME, start_time=processes.start_time(ME), link="/l")
    foreign = registry.reserve("foreign", sockets=str(places.make_socket_dir()))
    registry.update(foreign.id, host="elsewhere", pid=2**22 + 1, link="/l")
    lost = registry.reserve("lost", sockets=str(places.make_socket_dir()))
    registry.write_record(Record(id=lost.id, name="lost", created=lost.created))
    connections = places.private_dir(registry.connections_dir(lost.id))
    (connections / "grant.json").write_text("{}")
    lose(registry, lost.id)

    swept = registry.sweep()

    assert [item.name for item in swept] == ["lost"]
    assert [item.name for item in registry.list_pointers()] == ["alive", "foreign"]
    assert not Path(lost.sockets or "").exists()
    assert not connections.exists()
    assert Path(alive.sockets or "").exists()
    assert Path(foreign.sockets or "").exists()
    record = registry.record(lost.id)
    assert record is not None
    assert record.state == "lost"
    assert registry.sweep() == []


def test_sweep_removes_connection_files_of_nobody(registry: Registry) -> None:
    alive = registry.reserve("alive")
    kept = places.private_dir(registry.connections_dir(alive.id))
    gone = places.private_dir(registry.connections_dir("12345678-1234-1234-1234-123456789abc"))
    (gone / "bot.json").write_text("{}")
    other = places.private_dir(registry.pointers / "something else")
    registry.sweep()
    assert kept.exists()
    assert not gone.exists()
    assert other.exists()


def test_sweep_of_nothing_makes_nothing(registry: Registry) -> None:
    assert registry.sweep() == []
    assert not registry.pointers.exists()


def test_sweep_removes_nothing_outside_our_sockets(registry: Registry, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "file").touch()
    made = registry.reserve("analysis", sockets=str(victim))
    lose(registry, made.id)
    registry.sweep()
    assert (victim / "file").exists()


def test_sweep_does_not_follow_a_link_among_our_sockets(registry: Registry, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "file").touch()
    places.private_dir(places.socket_root())
    link = places.socket_root() / "0a1b2c3d"
    link.symlink_to(victim)
    made = registry.reserve("analysis", sockets=str(link))
    lose(registry, made.id)
    registry.sweep()
    assert (victim / "file").exists()


def test_sweep_keeps_sockets_that_a_living_session_uses_too(registry: Registry) -> None:
    sockets = places.make_socket_dir()
    alive = registry.reserve("alive", sockets=str(sockets))
    registry.update(alive.id, pid=ME, start_time=processes.start_time(ME), link="/l")
    lost = registry.reserve("lost", sockets=str(sockets))
    lose(registry, lost.id)
    registry.sweep()
    assert sockets.exists()


def test_closed_record_of_a_lost_pointer_stays_closed(registry: Registry) -> None:
    """A keeper killed between closing its record and removing its pointer did close the session."""
    places.private_dir(registry.sessions.parent)
    made = registry.reserve("analysis")
    registry.write_record(Record(id=made.id, name="analysis", state="closed", closed="2026-01-01T00:00:00Z"))
    lose(registry, made.id)
    registry.sweep()
    record = registry.record(made.id)
    assert record is not None
    assert record.state == "closed"


def test_killed_keeper_is_lost_once_it_is_reaped(registry: Registry) -> None:
    child = sleeper()
    made = registry.reserve("analysis")
    registry.update(made.id, pid=child.pid, start_time=processes.start_time(child.pid), link="/l")
    assert registry.sweep() == []
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert [item.name for item in registry.sweep()] == ["analysis"]
