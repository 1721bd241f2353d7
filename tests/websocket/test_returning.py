"""A client that comes back gets what it has not surely read: never less, and nothing twice that it has confirmed.

What the design promises, and these tests assert: nothing is lost. Repeated is at most the tail behind the last mark
(a ping that carries a place in the order) of which the keeper has the pong. While output is small there is one
unanswered mark at a time: a client that has read mark n knows that the keeper has the pong to mark n - 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from websockets.exceptions import InvalidStatus

from jupyter_cmdop.client.session import Session
from tests.support import Gate, wait_for_entry, wait_for_status
from tests.websocket.front import Network
from tests.websocket.viewer import (
    Message,
    Viewer,
    check_connections,
    confirmed,
    is_idle_of,
    is_reply_to,
    is_type,
    recorded,
    reply_in,
    says,
    seq_of,
    text_in,
)

View = Callable[..., Viewer]

LINES = 500
RUN = f"import time\nfor n in range({LINES}):\n    print(n, flush=True)\n    time.sleep(0.004)"


class Cuts:
    """The ways in which a connection is lost, each with what the client may be given twice."""

    def __init__(self, viewer: Viewer, network: Network) -> None:
        self.viewer = viewer
        self.network = network

    def hang_up(self) -> None:
        """A clean end of the TCP connection: every pong that was sent has arrived before it."""
        self.viewer.hang_up()

    def reset(self) -> None:
        self.viewer.reset()

    def dark(self) -> None:
        """Nothing passes any more in either direction, and nobody is told; what the keeper writes seems to work."""
        self.network.go_dark()
        self.viewer.abandon()

    def dark_unread(self) -> None:
        """The same while the client has not read for a while."""
        self.viewer.answers_pings = False
        for _ in range(3):
            self.viewer.read(2048)
        self.viewer.answers_pings = True
        self.dark()


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "watched"])
@pytest.mark.parametrize("cut", ["hang_up", "reset", "dark", "dark_unread"])
def test_lost_connections_in_random_places(view: View, network: Network, cut: str, others: int) -> None:
    """A run of 500 lines, cut four times in random places: every line arrives, those that were confirmed once."""
    seed = f"{cut}-{others}"
    choose = random.Random(seed)
    via_network = cut.startswith("dark")
    viewer = view(f"client-{seed}", **({"address": network.address} if via_network else {}))
    watchers = [view(f"watcher-{seed}-{n}", actor="dan") for n in range(others)]
    cuts = Cuts(viewer, network)
    msg_id = viewer.execute(RUN)
    parts: list[list[Message]] = []
    floors = [0]
    begin = 0
    for _ in range(4):
        until = len(viewer.received) + choose.randint(20, 90)
        while len(viewer.received) < until:
            viewer.read(choose.choice([500, 4096, 65536]))
        getattr(cuts, cut)()
        floors.append(max(floors[-1], confirmed(viewer, clean=cut == "hang_up")))
        parts.append(viewer.received[begin:])
        begin = len(viewer.received)
        if choose.random() < 0.5:  # away for some lines, which another client's reading measures
            probe = view(f"probe-{seed}-{begin}", actor="dan")
            for _ in range(choose.randint(3, 30)):
                probe.until(is_type("stream"))
            probe.leave()
        viewer.connect()
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    parts.append(viewer.received[begin:])
    check_connections(viewer, parts, floors, LINES)
    replies = {m["msg_id"] for m in viewer.received if m["msg_type"] == "execute_reply"}
    assert len(replies) == 1
    for watcher in watchers:
        watcher.until(is_idle_of(msg_id))
        seen = [m["msg_id"] for m in recorded(watcher.received)]
        assert len(seen) == len(set(seen)), "another client's trouble is not seen"
        assert "".join(text_in(watcher.received)).split() == [str(n) for n in range(LINES)]


def test_nothing_twice_when_all_was_read(view: View, gate: Gate) -> None:
    """Cut at a quiet moment, everything read and confirmed: the client goes on exactly where it was."""
    viewer = view("client-quiet")
    msg_id = viewer.execute(f"for n in range(50): print(n, flush=True)\n{gate.code}\nprint('after')")
    viewer.until(says("waiting"))
    viewer.catch_up()
    for go in (viewer.hang_up, viewer.reset, viewer.hang_up):
        # The second mark comes when the first has been answered; so the keeper has the pong to all but the last.
        place = seq_of(recorded(viewer.received)[-1])
        while len(viewer.marks) < 2 or int(viewer.marks[-2].split(b".")[0]) < place:
            viewer.catch_up()
        go()
        viewer.connect()
    gate.open()
    viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))
    seen = [m["msg_id"] for m in recorded(viewer.received)]
    assert len(seen) == len(set(seen))
    assert text_in(viewer.received).split() == [*(str(n) for n in range(50)), "waiting", "after"]


def test_what_ended_while_it_was_away_is_replied(view: View, shared: Session, gate: Gate) -> None:
    """The reply and the result came when nobody was there to take them; both formats, with and without a watcher."""
    for legacy in (False, True):
        viewer = view(f"client-away-{legacy}", legacy=legacy)
        msg_id = viewer.execute(f"{gate.code}\n'the result'")
        viewer.until(says("waiting"))
        viewer.reset()
        gate.open()
        wait_for_status(shared, lambda s: not s.running)
        viewer.connect()
        messages = viewer.until(is_reply_to(msg_id), is_idle_of(msg_id))
        assert reply_in(messages)["content"]["status"] == "ok"
        assert [
            m["content"]["data"]["text/plain"] for m in messages if m["msg_type"] == "execute_result"
        ] == ["'the result'"]


def test_what_was_superseded_while_it_was_away_is_replied(view: View, shared: Session, gate: Gate) -> None:
    """Its queued cell was dropped by a take-over. The answer is in no journal entry that could be shown again, and a
    notebook that never gets it shows the cell as running for ever.
    """
    viewer = view("client-superseded")
    running = viewer.execute(gate.code)
    viewer.until(says("waiting"))
    queued = viewer.execute("1 + 1")
    wait_for_status(shared, lambda s: s.queue)
    viewer.reset()
    shared.take("mine now")
    gate.open()
    shared.release()
    wait_for_status(shared, lambda s: not s.running)
    for _ in range(2):  # also when that connection is lost before it is read
        viewer.connect()
        viewer.reset()
    viewer.connect()
    messages = viewer.until(is_reply_to(running), is_reply_to(queued), is_idle_of(queued))
    dropped = next(m for m in messages if is_reply_to(queued)(m))
    assert dropped["content"]["ename"] == "cmdop.superseded"
    viewer.catch_up()
    viewer.catch_up()
    viewer.hang_up()
    seen = len(viewer.received)
    viewer.connect()
    viewer.run("0")
    assert not any(map(is_reply_to(queued), viewer.received[seen:])), "confirmed, so not said again"


def test_a_prompt_is_shown_again_only_if_it_was_not_read(view: View) -> None:
    viewer = view("client-prompt")
    msg_id = viewer.execute("print('got', input('name? '))")
    viewer.answers_pings = False
    viewer.until(is_type("input_request"))
    viewer.reset()
    viewer.answers_pings = True
    viewer.connect()
    question = viewer.until(is_type("input_request"))[-1]
    viewer.catch_up()
    viewer.catch_up()
    viewer.hang_up()
    viewer.connect()
    viewer.send("input_reply", {"status": "ok", "value": "Ada"}, channel="stdin", parent=question["header"])
    assert "got Ada" in text_in(viewer.until(is_idle_of(msg_id), is_reply_to(msg_id)))
    assert len([m for m in viewer.received if m["msg_type"] == "input_request"]) == 2


def test_a_prompt_of_the_time_away_is_shown(view: View, shared: Session, gate: Gate) -> None:
    viewer = view("client-prompt-2")
    msg_id = viewer.execute(f"{gate.code}\nprint('got', input('name? '))")
    viewer.until(says("waiting"))
    viewer.hang_up()
    gate.open()
    wait_for_status(shared, lambda s: s.pending_input)
    viewer.connect()
    question = viewer.until(is_type("input_request"))[-1]
    viewer.send("input_reply", {"status": "ok", "value": "Ada"}, channel="stdin", parent=question["header"])
    assert "got Ada" in text_in(viewer.until(is_idle_of(msg_id), is_reply_to(msg_id)))


def test_a_newer_connection_replaces_the_older(view: View) -> None:
    """The older one is told that it is over (1000: it must not come back and replace in its turn); nothing is lost."""
    viewer, watcher = view("client-twice"), view("watcher-twice", actor="dan")
    first = view("client-twice", connect=False)
    first.connect()
    assert viewer.read_to_end()[0] == 1000
    messages = first.run("print('still mine')")
    assert text_in(messages) == "still mine\n"
    watcher.until(says("still mine"))


def test_the_same_header_session_of_another_actor_is_another_client(view: View, gate: Gate) -> None:
    """A session id is no secret: who merely knows it neither replaces its owner nor gets his replies."""
    owner = view("client-known")
    msg_id = owner.execute(gate.code)
    owner.until(says("waiting"))
    thief = view("client-known", actor="mallory")
    thief.until(says("waiting"))
    gate.open()
    owner.until(is_reply_to(msg_id), is_idle_of(msg_id))
    thief.until(is_idle_of(msg_id))
    thief.hang_up()
    seen = len(thief.received)
    thief.connect(cursor="1:0")  # everything from the journal
    thief.run("0")
    again = thief.received[seen:]
    assert any(is_idle_of(msg_id)(m) for m in again)
    assert {m["parent_header"]["msg_type"] for m in again if m["msg_type"] == "execute_reply"} == {
        "execute_request"
    }
    assert len([m for m in again if m["msg_type"] == "execute_reply"]) == 1, "its own alone"
    assert owner.is_open
    owner.catch_up()


def test_a_cursor_says_where_to_go_on(view: View) -> None:
    """A client of ours that knows its place is given what is behind it, even if it is new to the keeper."""
    author = view("client-author")
    before = author.run("print('before')")
    after = author.run("print('after')")
    place = max(seq_of(m) for m in recorded(before))
    reader = view("client-cursor", cursor=f"1:{place}")
    reader.until(is_idle_of(reply_in(after)["parent_header"]["msg_id"]))
    seen = recorded(reader.received)
    assert [m["msg_id"] for m in seen] == [m["msg_id"] for m in recorded(after) if m["channel"] == "iopub"]
    with pytest.raises(InvalidStatus, match="503"):
        view("client-cursor-2", cursor="nonsense")


def test_a_client_that_names_no_session_gets_its_reply_after_a_stall(view: View) -> None:
    """Only the header of its messages says who asked; when it is caught up from the journal its replies are there."""
    viewer = view("client-nameless", names_session=False, receive_buffer=4096)
    author = view("client-other", actor="dan")
    msg_id = viewer.execute("print('x' * 1000)")
    flood = author.execute("for n in range(40): print('y' * 500_000, flush=True)")
    last = viewer.execute("'the end'")
    author.until(is_idle_of(flood))
    author.until(is_type("execute_result"))
    viewer.read_faster()
    messages = viewer.until(is_reply_to(msg_id), is_reply_to(last), is_idle_of(last), limit_seconds=60)
    assert [m["msg_type"] for m in messages if m["channel"] == "shell"] == ["execute_reply"] * 2
    flooded = [m for m in messages if m["msg_type"] == "stream" and m["content"]["text"].startswith("y")]
    assert "".join(m["content"]["text"] for m in flooded).count("y") == 40 * 500_000


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("how", ["hang_up", "reset"])
def test_what_was_composed_while_away_is_refused(
    view: View, shared: Session, how: str, asks_first: bool
) -> None:
    """It was made without a view of the session. JupyterLab sends it before its first question or behind it."""
    viewer = view(f"client-{how}-{asks_first}")
    viewer.run("composed = 0")
    getattr(viewer, how)()
    wait_for_status(shared, lambda s: not any(p.actor == "carol" for p in s.presence))
    # Further back than any message is on its way on a busy machine: what is nearer may have been sent since.
    then = {"date": (datetime.now(UTC) - timedelta(seconds=5)).isoformat()}
    old_id, old = viewer.make_execute("composed = 'while away'", header=then)
    old_comm = viewer.make("comm_info_request", {}, header=then)
    viewer.connect()
    if asks_first:
        viewer.send("kernel_info_request", {})
    viewer.send_data(old)
    viewer.send_data(old_comm[1])
    if not asks_first:
        viewer.send("kernel_info_request", {})
    messages = viewer.until(is_reply_to(old_id), is_idle_of(old_id), is_reply_to(old_comm[0]))
    refusal = next(m for m in messages if is_reply_to(old_id)(m))
    assert (refusal["msg_type"], refusal["content"]["status"]) == ("execute_reply", "error")
    assert refusal["content"]["ename"] == "cmdop.stale_generation"
    assert [m["content"]["ename"] for m in messages if m["msg_type"] == "error"] == ["cmdop.stale_generation"]
    again = viewer.run("composed")
    assert next(m for m in again if m["msg_type"] == "execute_result")["content"]["data"]["text/plain"] == "0"
    entry = wait_for_entry(
        shared, "refused", actor="carol", where=lambda e: e["data"]["code"] == "stale_generation"
    )
    assert entry["attachment"]


def test_what_was_composed_while_it_renewed_its_connection_runs(view: View, shared: Session) -> None:
    """JupyterLab closes without a code and connects again after each restart that its person asked for; a cell that he
    starts in between is kept by the page and sent behind its first request.
    """
    viewer = view("client-renews")
    viewer.run("composed = 0")
    viewer.leave(None)
    wait_for_status(shared, lambda s: not any(p.actor == "carol" for p in s.presence))
    msg_id, data = viewer.make_execute("composed = 'meanwhile'")
    viewer.connect()
    viewer.send("kernel_info_request", {})
    viewer.send_data(data)
    messages = viewer.until(is_reply_to(msg_id), is_idle_of(msg_id))
    assert next(m for m in messages if is_reply_to(msg_id)(m))["content"]["status"] == "ok"


def test_a_page_that_closed_is_forgotten_any_other_end_is_not(
    view: View, shared: Session, gate: Gate
) -> None:
    """1000 and 1001 mean that it goes for good; a browser that lost its network says neither."""
    for code, is_kept in ((1000, False), (1001, False), (None, True), (3000, True), (1012, True)):
        viewer = view(f"client-code-{code}")
        msg_id = viewer.execute(f"{gate.code}\nprint('missed')")
        viewer.until(says("waiting"))
        viewer.leave(code)
        wait_for_entry(shared, "detached", actor="carol", after=seq_of(recorded(viewer.received)[-1]))
        gate.open()
        wait_for_status(shared, lambda s: not s.running)
        viewer.connect()
        viewer.run("0")
        got = [m for m in viewer.received if says("missed")(m) or is_reply_to(msg_id)(m)]
        assert len(got) == (2 if is_kept else 0), code
