"""A kernel that does not answer: noticed, said everywhere, and everything around it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil
import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, kernel_of, null_spec, wait_ready
from tests.support import (
    Clients,
    Home,
    Sessions,
    flush,
    journal,
    reply_of,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)
from tests.websocket.front import Front
from tests.websocket.viewer import Viewer, is_reply_to

T = TypeVar("T")
NOTICED_SECONDS = 10.0
ATTACH_SECONDS = 1.0
# It keeps the interpreter's lock while it is in C, so that no other thread of the kernel has a turn.
HOLDS_THE_LOCK = "import ctypes; ctypes.PyDLL(None).sleep(600)"


def noticed(session: Session, since: float) -> None:
    """Wait until the keeper says that the kernel does not answer."""
    entry = wait_for_entry(session, "unresponsive", limit_seconds=NOTICED_SECONDS + 5)
    assert time.monotonic() - since <= NOTICED_SECONDS
    assert entry["actor"] == "keeper"
    assert entry["data"]["asked"]
    status = session.status()
    assert (status.state, status.execution_state) == ("unresponsive", "unresponsive")
    assert "restart" in (status.reason or "")


def quickly(what: Callable[[], T]) -> T:
    begun = time.monotonic()
    result = what()
    took = time.monotonic() - begun
    assert took <= ATTACH_SECONDS, f"it took {took:.2f} s"
    return result


def check_every_way_in(session: Session, clients: Clients) -> None:
    """Attach, look and read while the kernel does not answer."""
    item = quickly(lambda: next(item for item in call_cli("ls").data if item["id"] == session.id))
    assert (item["state"], item["execution_state"]) == ("unresponsive", "unresponsive")
    assert quickly(lambda: call_cli("status", session.name).data)["state"] == "unresponsive"
    assert quickly(lambda: call_cli("log", session.name).lines)
    quickly(lambda: call_cli("read", session.name))
    invited = session.invite("late")
    assert invited.connection_file is not None
    quickly(lambda: clients(session, "later"))
    front = Front(session)
    try:
        viewer = quickly(lambda: Viewer(front.address, "late-page"))
        quickly(lambda: viewer.until(is_reply_to(viewer.send("kernel_info_request", {}))))
        viewer.leave(1001)
        viewer.abandon()
    finally:
        front.close()
    with Session.open(session.id) as link:
        quickly(link.status)


def test_stopped_kernel_is_noticed_and_comes_back(session: Sessions, clients: Clients) -> None:
    made = session()
    kernel = kernel_of(made)
    with Session.open(made.id, persistent=True) as watching:
        with made.start(calls.run("import time; print('begun', flush=True); time.sleep(600)")) as stream:
            operation = wait_for_running(made)
            wait_for_entry(made, "output", operation=operation)
            kernel.suspend()
            noticed(made, time.monotonic())
            check_every_way_in(made, clients)
            said = call_cli("interrupt", made.name).data
            assert said["interrupted"] == operation
            assert "restart" in said["next"]
            kernel.resume()
            back = wait_for_entry(made, "responsive")
            assert back["operation"] == operation
            for _ in stream:
                pass
            assert stream.outcome()["status"] == "interrupted"
        assert wait_for_status(made, lambda s: s.execution_state == "idle").state == "open"
        watching.connection.request("status", {})
        told = [event["state"] for event in watching.connection.events() if event["kind"] == "backend"]
        assert told == ["unresponsive", "ready"]
    assert made.run("40 + 2").status == "ok"
    assert [e["type"] for e in journal(made, "unresponsive", "responsive")] == ["unresponsive", "responsive"]
    assert made.verify().ok


def test_kernel_that_never_gives_back_its_lock_is_restarted_and_by_whom(
    session: Sessions, clients: Clients
) -> None:
    """It takes no interrupt: the ladder goes on to SIGKILL, in the name of who asked."""
    made = session()
    bot = clients(made, "bot")
    sent = bot.execute(HOLDS_THE_LOCK)
    operation = wait_for_running(made, "bot")
    noticed(made, time.monotonic())
    check_every_way_in(made, clients)
    refused = call_cli("interrupt", made.name, json_output=False)
    assert f"jupyter cmdop restart {made.name}" in refused.out
    before = kernel_of_any(made)
    assert call_cli("restart", made.name).data["incarnation"] == 2
    assert not before.is_running()
    assert reply_of(bot, sent)["content"]["status"] == "error"
    (ended,) = [e for e in journal(made, "ended") if e["operation"] == operation]
    assert (ended["data"]["outcome"], ended["data"]["by"]) == ("interrupted", made.actor)
    assert journal(made, "restarted")[0]["actor"] == made.actor
    assert wait_ready(made, 2).execution_state == "idle"
    flush(bot)
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"


def kernel_of_any(session: Session) -> psutil.Process:
    return psutil.Process(session.status().processes[0].pid)


def test_stopped_kernel_can_be_closed(home: Home, session: Sessions) -> None:
    made = session(kernel=null_spec(home))
    kernel = kernel_of(made)
    kernel.suspend()
    assert call_cli("close", made.name).data["closed"] is True
    assert not kernel.is_running()


def test_idle_kernel_that_is_asked_something_is_noticed(
    home: Home, session: Sessions, clients: Clients
) -> None:
    """Its heartbeat is what it is asked, as it is not ipykernel."""
    made = session(kernel=null_spec(home))
    bot = clients(made, "bot")
    kernel = kernel_of(made)
    kernel.suspend()
    bot.complete("x")
    noticed(made, time.monotonic())
    assert "heartbeat" in journal(made, "unresponsive")[0]["data"]["asked"]
    kernel.resume()
    wait_for_entry(made, "responsive")
    assert made.run("say yes").text == "yes\n"


def test_busy_kernels_are_not_suspected(session: Sessions) -> None:
    """One computes in Python, one sleeps in C without the lock, one is bash; each for longer than a hung one may."""
    python, bash = session(), session(kernel="bash")
    longer = NOTICED_SECONDS + 1
    with (
        bash.start(calls.run(f"sleep {longer:.0f}")) as second,
        python.start(
            calls.run(
                f"import ctypes, time\nend = time.time() + {longer / 2}\nwhile time.time() < end: pass\n"
                f"print(1, flush=True); ctypes.CDLL(None).usleep({int(longer * 1e6)})"
            )
        ) as first,
    ):
        for stream in (first, second):
            for _ in stream:
                pass
            assert stream.outcome()["status"] == "ok"
    for made in (python, bash):
        assert journal(made, "unresponsive") == []


def test_kernel_whose_publisher_is_stuck_is_mute_until_it_is_restarted(
    session: Sessions, clients: Clients
) -> None:
    """It answers, and nothing that it publishes arrives: what runs in it would never end for anybody."""
    made = session()
    bot = clients(made, "bot")
    sent = bot.execute(
        "import sys, time\nsys.stdout.flush_timeout = sys.stderr.flush_timeout = 0.05\n"
        "get_ipython().kernel.iopub_thread.schedule(lambda: time.sleep(3600))\ntime.sleep(3600)"
    )
    operation = wait_for_running(made, "bot")
    mute = wait_for_entry(made, "backend_mute")
    assert "publishes nothing" in mute["data"]["reason"]
    (gap,) = [e for e in journal(made, "gap") if e["operation"] == operation]
    assert gap["seq"] < mute["seq"]
    assert wait_for_entry(made, "ended", operation=operation)["data"]["outcome"] == "unknown"
    assert reply_of(bot, sent)["content"]["ename"] == "cmdop.unknown"
    status = made.status()
    assert (status.state, status.running) == ("unresponsive", ())
    refused = made.run("1")
    assert refused.refusal is not None
    assert (refused.refusal.code, refused.refusal.next[0]) == ("backend_lost", "restart")
    assert made.restart().incarnation == 2
    assert made.run("40 + 2").status == "ok"
    assert made.status().state == "open"


@pytest.mark.soak
def test_kernel_that_prints_faster_than_it_is_read_is_not_suspected(session: Sessions) -> None:
    """ipykernel's control channel does not answer while its publisher waits for the keeper."""
    made = session()
    result = made.run("for n in range(400): print('y' * 2**20, flush=True)", max_bytes=1000)
    assert result.status == "ok"
    assert journal(made, "unresponsive") == []
