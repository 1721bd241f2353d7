"""A keeper that stands still: nobody acts by what ran out meanwhile, and afterwards everybody knows how things are."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, keeper_of, wait_until
from tests.support import AgentProcess, Clients, Home, Sessions, flush, journal, reply_of, wait_for_entry
from tests.websocket.front import Front
from tests.websocket.viewer import Viewer, is_type

LEASE_SECONDS = 2.0
STOPPED_SECONDS = 4.0
LONG_SECONDS = 60.0


@contextlib.contextmanager
def stopped(keeper: psutil.Process, seconds: float) -> Iterator[None]:
    """The keeper stands still for so long: what is done inside reaches it when it goes on."""
    os.kill(keeper.pid, signal.SIGSTOP)
    until = time.monotonic() + seconds
    try:
        wait_until(lambda: keeper.status() == psutil.STATUS_STOPPED, "the keeper stands still")
        yield
        # The passing of time is the very thing that is tried here.
        wait_until(lambda: time.monotonic() >= until, "its time has passed", limit_seconds=seconds + 5)
    finally:
        os.kill(keeper.pid, signal.SIGCONT)


def test_driver_whose_lease_ran_out_meanwhile_is_refused_what_he_sent(home: Home, session: Sessions) -> None:
    """The keeper reads his input a moment after it goes on, before anybody could have claimed the floor."""
    made = session(policy="turns")
    keeper = keeper_of(home, made)
    floor = made.take("mine", lease_seconds=LEASE_SECONDS)
    with Session.open(made.id) as other:
        with stopped(keeper, STOPPED_SECONDS):
            run = made.start(calls.run("open('/dev/null').name"))
            release = other.start(calls.release())
        with run, release:
            for _ in run:
                pass
            refused = run.outcome()
            assert refused["status"] == "refused"
            assert refused["refusal"]["code"] == "stale_generation"
            with pytest.raises(Refused, match="stood still") as error:
                list(release)
            assert error.value.refusal.code == "stale_generation"
    still = wait_for_entry(made, "stood_still")
    assert still["data"]["lapsed"] == made.actor
    assert still["data"]["at_most_seconds"] >= STOPPED_SECONDS - 1
    order = [e["type"] for e in journal(made, "stale", "refused", "admitted")]
    assert order[:2] == ["stale", "refused"]
    assert "admitted" not in order
    assert made.status().generation == floor.generation
    # A moment later what he sends was sent since, and nobody has claimed: he resumes.
    wait_until(lambda: made.run("1").status == "ok", "he drives again")
    assert "resumed" in [e["type"] for e in journal(made)]
    assert made.verify().ok


def test_driver_whose_lease_goes_on_is_not_refused(home: Home, session: Sessions) -> None:
    made = session(policy="turns")
    made.take("mine")
    with stopped(keeper_of(home, made), STOPPED_SECONDS):
        run = made.start(calls.run("40 + 2"))
    with run:
        for _ in run:
            pass
        assert run.outcome()["status"] == "ok"
    assert "lapsed" not in wait_for_entry(made, "stood_still")["data"]


def test_peer_may_claim_what_ran_out_meanwhile(home: Home, session: Sessions, clients: Clients) -> None:
    made = session(policy="turns")
    bot = clients(made, "bot")
    flush(bot)
    made.take("mine", lease_seconds=LEASE_SECONDS)
    with stopped(keeper_of(home, made), STOPPED_SECONDS):
        sent = bot.execute("40 + 2")
        mine = made.start(calls.run("1"))
    with mine:
        for _ in mine:
            pass
        assert mine.outcome()["status"] == "refused"
    assert reply_of(bot, sent)["content"]["status"] == "ok"
    assert made.status().driver == "bot"


def test_viewers_are_told_how_things_are(home: Home, session: Sessions) -> None:
    """`ls` says so while it stands still; links and pages are told when it goes on."""
    made = session()
    keeper = keeper_of(home, made)
    front = Front(made)
    try:
        page = Viewer(front.address, "page")
        page.catch_up()
        with Session.open(made.id, persistent=True) as link:
            with stopped(keeper, STOPPED_SECONDS):
                item = next(item for item in call_cli("ls").data if item["id"] == made.id)
                assert item["state"] == "unresponsive"
                status = call_cli("status", made.name).data
                assert (status["state"], bool(status["reason"])) == ("unresponsive", True)
            page.until(is_type("status"))
            link.status()
            told = [e for e in link.connection.events() if "stood_still_seconds" in e]
            assert [(e["state"], e["execution_state"]) for e in told] == [("open", "idle")]
        assert page.run("1")
        page.leave(1001)
        page.abandon()
    finally:
        front.close()
    item = next(item for item in call_cli("ls").data if item["id"] == made.id)
    assert item["state"] == "open"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_minute(home: Home, session: Sessions) -> None:
    """A person's lease on the link and an agent's signs of life both run out; pages are not dropped for their silence,
    the kernel is not suspected, and the agent, who was there all the time, drives again by running it again."""
    made = session(policy="turns")
    keeper = keeper_of(home, made)
    front = Front(made)
    invited = made.invite("bot")
    assert invited.connection_file is not None
    agent = AgentProcess(invited.connection_file)
    try:
        page = Viewer(front.address, "page", actor="carol")
        page.catch_up()
        assert agent.reply(agent.execute("1"))["status"] == "ok"
        with stopped(keeper, LONG_SECONDS):
            sent = agent.execute("2")
        assert agent.reply(sent)["ename"] == "cmdop.stale_generation"
        wait_for_entry(made, "stood_still", where=lambda e: e["data"].get("lapsed") == "bot")
        assert made.status().driver == "bot"
        wait_until(lambda: agent.reply(agent.execute("3"))["status"] == "ok", "the agent drives again")
        page.until(is_type("status"))
        assert page.is_open
        assert journal(made, "unresponsive") == []
        assert made.verify().ok
        page.leave(1001)
        page.abandon()
    finally:
        agent.close()
        front.close()
