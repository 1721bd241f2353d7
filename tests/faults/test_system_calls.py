"""A keeper that dies at a system call of its own, whichever: nothing ran that is not recorded, nothing is in doubt.

One run is traced to learn which calls one admission (or one take-over) makes, in all threads. Then a fresh session is
killed at each of them: strace delivers SIGKILL instead of the call. A few of the points are tried in every run of the
tests, spread evenly; all of them under `soak`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client import past
from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import keeper_of, kernel_of, null_spec, wait_until
from tests.faults.strace import Call, calls_of, kill_at, needs_strace, threads_of, watch_calls
from tests.support import Clients, Home, Sessions, reply_of, wait_for_running, wait_for_status

pytestmark = needs_strace

POINTS = 8
GONE_SECONDS = 2.0
DEATH_SECONDS = 0.2
"""How long a keeper that has done what was asked may take for a call that it makes afterwards."""


@dataclass
class Scene:
    """A session at the moment before what is interrupted, and what is known of it afterwards.

    Attributes:
        code: of the operation that must not run unrecorded.
        mark: the file to which that adds a line.
        act: asks for it, over a connection that is there already; what the asker was told, None when nothing.
    """

    session_id: str
    keeper: psutil.Process
    kernel: psutil.Process
    code: str
    mark: Path
    act: Callable[[], Any]


Scenes = Callable[[], contextlib.AbstractContextManager[Scene]]


def _asked(link: Session, act: Callable[[Session], Any]) -> Any:
    try:
        return act(link)
    except ClientError:
        return None


def _replied(client: BlockingKernelClient, msg_id: str, keeper: psutil.Process) -> Any:
    """The reply to a request, None when the keeper dies before it comes."""
    while True:
        try:
            reply = client.get_shell_msg(timeout=0.02)
        except queue.Empty:
            if not keeper.is_running() or keeper.status() == psutil.STATUS_ZOMBIE:
                return None
            continue
        if reply["parent_header"]["msg_id"] == msg_id:
            return reply["content"]


@pytest.fixture
def admission_by_link(home: Home, tmp_path: Path) -> Scenes:
    @contextlib.contextmanager
    def make() -> Iterator[Scene]:
        sessions = Sessions(home)
        mark = tmp_path / f"mark-{time.monotonic_ns()}"
        try:
            made = sessions(kernel=null_spec(home))
            with Session.open(made.id) as link:
                link.status()
                code = f"write {mark}"

                def run() -> Any:
                    result = _asked(link, lambda s: s.run(code))
                    return None if result is None or result.status != "ok" else result

                yield Scene(made.id, keeper_of(home, made), kernel_of(made), code, mark, run)
        finally:
            sessions.close()

    return make


@pytest.fixture
def admission_by_protocol(home: Home, tmp_path: Path) -> Scenes:
    @contextlib.contextmanager
    def make() -> Iterator[Scene]:
        sessions, clients = Sessions(home), Clients()
        mark = tmp_path / f"mark-{time.monotonic_ns()}"
        try:
            made = sessions(kernel=null_spec(home))
            bot = clients(made, "bot")
            reply_of(bot, bot.execute("say ready"))
            keeper, code = keeper_of(home, made), f"write {mark}"
            yield Scene(
                made.id,
                keeper,
                kernel_of(made),
                code,
                mark,
                lambda: _replied(bot, bot.execute(code), keeper),
            )
        finally:
            clients.close()
            sessions.close()

    return make


@pytest.fixture
def take_over(home: Home, tmp_path: Path) -> Scenes:
    """Something of the old driver's runs, something of his waits."""

    @contextlib.contextmanager
    def make() -> Iterator[Scene]:
        sessions, clients = Sessions(home), Clients()
        mark = tmp_path / f"mark-{time.monotonic_ns()}"
        fifo = tmp_path / f"fifo-{time.monotonic_ns()}"
        os.mkfifo(fifo)
        try:
            made = sessions(kernel=null_spec(home), policy="turns")
            bot = clients(made, "bot")
            code = f"write {mark}"
            bot.execute(f"hold {fifo}")
            wait_for_running(made, "bot")
            bot.execute(code)
            wait_for_status(made, lambda s: len(s.queue) == 1)
            with Session.open(made.id) as link:
                link.status()
                yield Scene(
                    made.id,
                    keeper_of(home, made),
                    kernel_of(made),
                    code,
                    mark,
                    lambda: _asked(link, lambda s: s.take("I go on")),
                )
        finally:
            clients.close()
            sessions.close()

    return make


def learn(scenes: Scenes, tmp_path: Path) -> list[Call]:
    """The calls of one undisturbed run."""
    with scenes() as scene:
        threads = threads_of(scene.keeper)
        output = tmp_path / "trace"
        with watch_calls(scene.keeper, output):
            assert scene.act() is not None
        return calls_of(threads, output)


def some_of(calls: list[Call]) -> list[Call]:
    """So many, spread evenly, and the one on which everything hangs in any case: the sync."""
    step = len(calls) / POINTS
    chosen = {int(number * step) for number in range(POINTS)}
    chosen.add(next(index for index, call in enumerate(calls) if call.name == "fdatasync"))
    return [calls[index] for index in sorted(chosen)]


def die_at(scene: Scene, call: Call, tmp_path: Path) -> tuple[Any, bool]:
    """What the asker was told, and whether the keeper died of the call; if not (it came later), it is killed now."""
    with kill_at(scene.keeper, call, tmp_path / f"killed-{call}"):
        told = scene.act()
        _, alive = psutil.wait_procs([scene.keeper], timeout=DEATH_SECONDS)
        if alive:
            scene.keeper.kill()
    # Not `wait_gone`: the dead kernel is somebody else's child now, who takes his time to notice.
    wait_until(
        lambda: not any(is_at_work(p) for p in (scene.keeper, scene.kernel)),
        "the keeper and its kernel are dead",
        limit_seconds=GONE_SECONDS,
    )
    return told, not alive


def is_at_work(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def record_of(home: Home, scene: Scene) -> list[dict[str, Any]]:
    """What the journal says when the session has been tidied away, as the next person would find it."""
    directory = home.session_dir(scene.session_id)
    assert past.verify(directory).ok
    Registry.of_user().sweep()
    report = past.verify(directory)
    assert report.ok, report
    return list(past.log(directory))


def outcomes(record: list[dict[str, Any]]) -> dict[str, str]:
    """The outcome of each operation: exactly one."""
    found: dict[str, str] = {}
    for entry in record:
        if entry["type"] == "ended":
            assert entry["operation"] not in found, "a second outcome"
            found[entry["operation"]] = entry["data"]["outcome"]
    assert {e["operation"] for e in record if e["type"] == "admitted"} == set(found)
    return found


def check_admission(home: Home, scene: Scene, told: Any, call: Call) -> None:
    record = record_of(home, scene)
    lines = scene.mark.read_text().count("\n") if scene.mark.exists() else 0
    admitted = [e["operation"] for e in record if e["type"] == "admitted" and e["data"]["code"] == scene.code]
    ended = outcomes(record)
    assert lines <= 1, call
    assert len(admitted) <= 1, call
    if lines:
        assert admitted, f"executed and not journaled: killed at {call}"
        assert [e for e in record if e["type"] == "delivered" and e["operation"] == admitted[0]], call
        assert ended[admitted[0]] in ("ok", "unknown"), call
    elif admitted:
        assert ended[admitted[0]] in ("unknown", "aborted"), call
    if told is not None:
        assert lines, call
        assert admitted, call


def check_take_over(home: Home, scene: Scene, told: Any, call: Call) -> None:
    record = record_of(home, scene)
    ended = outcomes(record)
    taken = [e for e in record if e["type"] == "taken"]
    waited = next(
        e["operation"] for e in record if e["type"] == "admitted" and e["data"]["code"] == scene.code
    )
    running = next(op for op in ended if op != waited)
    assert not scene.mark.exists(), f"what was superseded ran: killed at {call}"
    assert ended[running] == "unknown", call
    assert ended[waited] == ("superseded" if taken else "aborted"), call
    if told is not None:
        assert [e["generation"] for e in taken] == [told.generation], call


CASES = {
    "admission_by_link": check_admission,
    "admission_by_protocol": check_admission,
    "take_over": check_take_over,
}


def try_all(home: Home, scenes: Scenes, check: Any, calls: list[Call], tmp_path: Path) -> None:
    died = 0
    for call in calls:
        with scenes() as scene:
            told, by_call = die_at(scene, call, tmp_path)
            died += by_call
            check(home, scene, told, call)
    assert died > len(calls) // 2, f"of {len(calls)} points only {died} were met"
    print(f"killed at {died} of {len(calls)} points")


@pytest.mark.parametrize("case", CASES)
def test_killed_at_some_calls(home: Home, case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    scenes = request.getfixturevalue(case)
    try_all(home, scenes, CASES[case], some_of(learn(scenes, tmp_path)), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_call(home: Home, case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    scenes = request.getfixturevalue(case)
    try_all(home, scenes, CASES[case], learn(scenes, tmp_path), tmp_path)
