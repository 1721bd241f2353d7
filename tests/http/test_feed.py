"""The feed: each record once and in order, however often its reader is cut off; and what ends it."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import websocket

from jupyter_cmdop.client.errors import KeeperGone, Refused
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.server.api_feed import (
    CLOSE_CREDENTIAL,
    CLOSE_ENDED,
    CLOSE_SLOW,
    KINDS,
    decode_cursor,
    encode_cursor,
)
from jupyter_cmdop.server.api_reach import MAX_FEEDS
from tests.faults.attacks import wait_until
from tests.http.rest import Api, Feed
from tests.server.jupyter import Server, Servers, cookie_of
from tests.support import LIMIT_SECONDS, Gate, wait_for_entry, wait_for_running, wait_for_status


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


def test_cursor_over_several_sessions() -> None:
    ids = {"0f3a9c2b-1d4e-4000-8000-000000000000": 7, "1f3a9c2b-1d4e-4000-8000-000000000000": 12345}
    assert list(decode_cursor(encode_cursor(ids)).values()) == [7, 12345]
    assert decode_cursor("") == {}


def test_feed_tells_what_happens_in_a_session(api: Api) -> None:
    made = api.make()
    feed = api.feed(f"sessions/{made}/feed")
    [hello] = feed.until(kind="hello")
    assert hello["cursor"]
    bot = api.as_grant(made)
    bot.post(f"sessions/{made}/floor", {"action": "take", "reason": "mine"})
    api.post(f"sessions/{made}/run", {"code": "print('secret words')"})
    bot.run(made, "x = 'typed'; print('shown')")
    bot.post(f"sessions/{made}/send", {"text": "input('name? ')"})
    records = feed.until(kind="input-waiting")
    bot.post(f"sessions/{made}/answer", {"text": "what was answered"})
    records += feed.until(kind="operation", type="ended")
    ws = api.server.connect(api.get(f"sessions/{made}").data["id"], token=bot.token)
    records += feed.until(kind="presence", type="attached", actor="bot")
    ws.close()
    bot.post(f"sessions/{made}/note", {"text": "done"})
    records += feed.until(kind="note")
    api.request("DELETE", f"sessions/{made}?force=true")
    records += feed.until_closed()
    kinds = [record["kind"] for record in records]
    for kind in ("session", "floor", "operation", "input-waiting", "refusal", "note"):
        assert kind in kinds, kinds
    [taken] = [record for record in records if record["type"] == "taken"]
    assert (taken["actor"], taken["data"]["reason"]) == ("bot", "mine")
    [refused] = [record for record in records if record["kind"] == "refusal"]
    assert refused["data"]["code"] == "not_driver"
    assert all(record["session"] == made for record in records)
    text = str(records)
    assert "what was answered" not in text
    assert records[-1]["type"] == "ended"
    assert records[-1]["data"]["how"] == "closed"
    assert feed.close_code == CLOSE_ENDED


def test_feed_of_all_tells_of_sessions_to_come_and_of_their_end(api: Api) -> None:
    first = api.make()
    feed = api.feed()
    feed.until(kind="hello")
    second = api.make()
    opened = feed.until(session=second, type="opened")
    api.run(first, "1")
    feed.until(session=first, type="ended", kind="operation")
    api.request("DELETE", f"sessions/{second}?force=true")
    ended = feed.until(session=second, kind="session", type="ended")[-1]
    assert len(decode_cursor(opened[-1]["cursor"])) == 2
    assert len(decode_cursor(ended["cursor"])) == 1
    feed.close()


def test_end_of_a_session_is_told_to_one_who_was_away(api: Api) -> None:
    made = api.make()
    feed = api.feed()
    cursor = feed.until(kind="hello")[-1]["cursor"]
    feed.cut()
    api.run(made, "1")
    api.request("DELETE", f"sessions/{made}?force=true")
    with_rest = api.feed(after=cursor)
    records = with_rest.until(kind="session", type="ended")
    types = [record["type"] for record in records]
    assert types[0] == "hello"
    assert types.index("admitted") < types.index("closed") < types.index("ended", types.index("closed"))
    with_rest.close()


def test_cursor_of_another_journal_is_a_gap(api: Api) -> None:
    made = api.make()
    feed = api.feed(f"sessions/{made}/feed")
    cursor = feed.until(kind="hello")[-1]["cursor"]
    feed.close()
    prefix = cursor.partition(":")[0]
    ahead = api.feed(f"sessions/{made}/feed", after=f"{prefix}:999999")
    gap = ahead.until(kind="gap")[-1]
    assert gap["data"]["after"] == 999999
    api.run(made, "1")
    assert ahead.until(kind="operation", type="ended")
    ahead.close()


def follow(api: Api, path: str, *, cuts: int, seed: int) -> Iterator[dict[str, Any]]:
    """Every record from the beginning, over so many connections that end at random."""
    dice = random.Random(seed)
    prefix = api.feed(path)
    [hello] = prefix.until(kind="hello")
    prefix.close()
    cursor = ".".join(f"{part.partition(':')[0]}:0" for part in hello["cursor"].split("."))
    for cut in itertools.count():
        feed = api.feed(path, after=cursor)
        count = dice.choice([0, 1, 2, 5, 20, 60]) if cut < cuts else None
        try:
            while count is None or count > 0:
                record = feed.receive()
                if record["kind"] == "hello":
                    # It may be cut before anything comes: what the hello says is as far as what was asked for.
                    continue
                cursor = record["cursor"]
                count = None if count is None else count - 1
                yield record
        finally:
            feed.cut()


@pytest.mark.parametrize("which", ["one", "all"])
def test_each_record_once_and_in_order_short(api: Api, which: str) -> None:
    check_cuts(api, which, operations=100, cuts=20, seed=20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", ["one", "all"])
def test_each_record_once_and_in_order(api: Api, which: str) -> None:
    """200 cuts while 2,000 operations run."""
    seed = int(os.environ.get("CMDOP_SOAK_SEED", random.randrange(10**6)))
    begun = time.monotonic()
    check_cuts(api, which, operations=2000, cuts=200, seed=seed)
    print(f"feed of {which}: seed {seed}, {time.monotonic() - begun:.0f} s")


def check_cuts(api: Api, which: str, *, operations: int, cuts: int, seed: int) -> None:
    sessions = [api.make() for _ in range(1 if which == "one" else 3)]
    path = f"sessions/{sessions[0]}/feed" if which == "one" else "feed"

    def work(session_name: str, count: int) -> None:
        with Session.open(session_name) as session:
            for _ in range(count):
                assert session.run("1", wait_seconds=60).status == "ok"

    told: dict[str, list[tuple[int, str]]] = {}
    with ThreadPoolExecutor(len(sessions)) as threads:
        share = operations // len(sessions)
        working = [threads.submit(work, session_name, share) for session_name in sessions]
        ended: dict[str, int] = {}
        for record in follow(api, path, cuts=cuts, seed=seed):
            assert record["kind"] != "gap", record
            told.setdefault(record["session"], []).append((record["seq"], record["type"]))
            if record["kind"] == "operation" and record["type"] == "ended":
                ended[record["session"]] = ended.get(record["session"], 0) + 1
                if [ended.get(one, 0) for one in sessions] == [share] * len(sessions):
                    break
        for one in working:
            one.result()
    assert set(told) == set(sessions)
    for session_name in sessions:
        with Session.open(session_name) as session:
            last = told[session_name][-1][0]
            recorded = [(e["seq"], e["type"]) for e in session.log(types=list(KINDS)) if e["seq"] <= last]
        assert told[session_name] == recorded


# ---------------------------------------------------------------------- what ends it


def test_revoked_grant_ends_everything_within_a_second(api: Api, gate: Gate) -> None:
    """Its feed, a request that waits, its kernel's websocket; and nothing opens any more, by any way in."""
    made = api.make()
    bot = api.as_grant(made)
    session_id = api.get(f"sessions/{made}").data["id"]
    feed = bot.feed(f"sessions/{made}/feed")
    feed.until(kind="hello")
    ws = api.server.connect(session_id, token=bot.token)
    api.post(f"sessions/{made}/send", {"text": gate.code})
    with Session.open(made) as session, ThreadPoolExecutor(4) as threads:
        running = wait_for_running(session)
        waiting = threads.submit(bot.get, f"sessions/{made}/wait?operation={running}&wait_seconds=60")
        running_too = threads.submit(
            bot.post, f"sessions/{made}/run", {"code": "'never'", "wait_seconds": 60}
        )
        wait_for_entry(session, "admitted", actor="bot")
        wait_for_status(session, lambda status: status.queue)
        link = Session.open(made, identity=Identity(token=bot.token), persistent=True)
        assert link.status().name == made
        feed_closed = threads.submit(feed.until_closed)
        ws_closed = threads.submit(ws.wait_closed)
        begun = time.monotonic()
        session.revoke("bot")
        answers = [waiting.result(), running_too.result()]
        feed_closed.result()
        ws_closed.result()
        took = time.monotonic() - begun
        with pytest.raises(Refused):
            Session.open(made, identity=Identity(token=bot.token))
        with pytest.raises((KeeperGone, Refused)):
            link.status()
        link.disconnect()
        assert took < 1.0
        assert feed.close_code == CLOSE_CREDENTIAL
        for answer in answers:
            # What it had waiting was withdrawn, which may be the answer that is given just before the end.
            assert answer.status == 403 or answer.data["status"] == "withdrawn", answer
        assert [answer.data["code"] for answer in answers if answer.status == 403]
    for path in ("", "/floor", "/read", "/journal", "/wait?wait_seconds=0"):
        assert bot.get(f"sessions/{made}{path}").status == 403
    assert bot.post(f"sessions/{made}/run", {"code": "1"}).status == 403
    with pytest.raises(websocket.WebSocketBadStatusException):
        api.server.connect(session_id, token=bot.token)
    with pytest.raises(websocket.WebSocketBadStatusException):
        bot.feed(f"sessions/{made}/feed")
    gate.open()


NOTES = 4000
"""Of 2,000 characters each: more than the sockets on the way hold."""


def test_slow_reader_is_closed_and_resumes(servers: Servers) -> None:
    server = servers("--CmdopApp.feed_patience=0.5", "--CmdopApp.api_acts_per_minute=0")
    api = Api(server)
    made = api.make()
    feed = Feed(api, f"sessions/{made}/feed", None, receive_bytes=16 * 1024)
    cursor = feed.until(kind="hello")[-1]["cursor"]
    with Session.open(made) as session:
        for _ in range(NOTES):
            session.note("x" * 2000)
        wait_for_log(server, "reads too slowly")
        count = 0
        while True:
            try:
                record = feed.receive()
            except ConnectionError:
                break
            except websocket.WebSocketConnectionClosedException:
                break  # cut: a reader has five more seconds to get to the code
            cursor, count = record["cursor"], count + (record["kind"] == "note")
        feed.close()
        assert feed.close_code in (CLOSE_SLOW, None)
        assert count < NOTES
        again = api.feed(f"sessions/{made}/feed", after=cursor)
        session.note("the last one")
        while (record := again.receive()).get("data", {}).get("text") != "the last one":
            count += record["kind"] == "note"
        assert count == NOTES
        again.close()


def wait_for_log(server: Server, text: str) -> None:
    wait_until(lambda: text in server.text(), f"the server says {text!r}")


def test_feed_goes_on_at_the_next_server(servers: Servers) -> None:
    """The cursor is a place in the journals, and no memory of the server's."""
    first = servers()
    api = Api(first)
    made = api.make()
    feed = api.feed()
    cursor = feed.until(kind="hello")[-1]["cursor"]
    first.kill()
    feed.cut()
    with Session.open(made) as session:
        session.run("1", wait_seconds=60)
        again = Api(servers.add(first.again()))
        resumed = again.feed(after=cursor)
        records = resumed.until(kind="operation", type="ended")
        told = [(record["seq"], record["type"]) for record in records if record["kind"] != "hello"]
        seq = int(cursor.rpartition(":")[2])
        recorded = [(e["seq"], e["type"]) for e in session.log(after=seq, types=list(KINDS))]
    assert told == recorded[: len(told)]
    resumed.close()


def test_one_actor_has_so_many_feeds(api: Api) -> None:
    made = api.make()
    bot = api.as_grant(made)
    feeds = [bot.feed(f"sessions/{made}/feed") for _ in range(MAX_FEEDS)]
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        bot.feed(f"sessions/{made}/feed")
    assert refused.value.status_code == 429
    other = api.feed(f"sessions/{made}/feed")  # others have theirs
    for feed in (other, *feeds):
        assert feed.receive()["kind"] == "hello"
        feed.close()
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            bot.feed(f"sessions/{made}/feed").close()
            return
        except websocket.WebSocketBadStatusException:
            assert time.monotonic() < deadline


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_follower_who_answers_pings_keeps_the_floor(api: Api) -> None:
    """He holds it without a single act for longer than any sign of life lasts, and loses it when he falls silent."""
    made = api.make(policy="turns")
    bot = api.as_grant(made)
    feed = bot.feed(f"sessions/{made}/feed")
    feed.until(kind="presence", type="attached", actor="bot")
    watching = api.feed(f"sessions/{made}/feed")
    watching.ws.settimeout(120)
    taken = bot.post(f"sessions/{made}/floor", {"action": "take", "lease_seconds": 1})
    assert taken.status == 200
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        stale = threads.submit(watching.until, type="stale")
        feed.ws.settimeout(60.0)
        while time.monotonic() - begun < 60:  # each turn waits for a ping of the server, and answers it
            opcode, _ = feed.ws.recv_data(control_frame=True)
            if opcode != websocket.ABNF.OPCODE_PING:
                continue
            assert not stale.done(), f"stale after {time.monotonic() - begun:.0f} s"
        stopped = time.monotonic()
        assert stale.result()[-1]["data"]["from"] == "bot"
        print(f"stale {time.monotonic() - stopped:.0f} s after the last pong")
    assert api.get(f"sessions/{made}").data["driver"] == "bot"
    feed.cut()
    watching.close()


def test_logout_closes_the_feed(server: Server, api: Api) -> None:
    made = api.make()
    login = server.get(f"/api/contents?token={server.token}", token=None)
    cookie = cookie_of(login)
    ws = websocket.WebSocket()
    ws.settimeout(LIMIT_SECONDS)
    ws.connect(
        f"{server.url.replace('http', 'ws', 1)}/cmdop/api/sessions/{made}/feed",
        header=[f"Cookie: {cookie}"],
        origin=server.url,
        http_no_proxy=["127.0.0.1"],
    )
    assert "hello" in ws.recv()
    server.get("/logout", token=None, headers={"Cookie": cookie})
    while True:
        opcode, data = ws.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            break
    assert int.from_bytes(data[:2], "big") == CLOSE_CREDENTIAL
    ws.shutdown()
