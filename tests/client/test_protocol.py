"""The client's half of the link, without a socket."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_cmdop.client.errors import BadAnswer, FellBehind, KeeperGone, Refused, RequestFailed
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.protocol import LinkProtocol
from jupyter_cmdop.wire.link import FrameDecoder, encode_frame, encode_spilling, unspill


def welcomed(**options: Any) -> LinkProtocol:
    protocol = LinkProtocol(**options)
    protocol.feed(
        encode_frame({"hello": {"protocol": 1, "session": {"name": "s"}, "actor": {"id": "alice"}}})
    )
    return protocol


def frames(data: bytes) -> list[dict[str, Any]]:
    return [header for header, _ in FrameDecoder().feed(data)]


def test_hello_says_who_is_calling() -> None:
    identity = Identity(actor="bot", kind="agent", token="t", session="s")
    (frame,) = frames(LinkProtocol().hello(client="test", identity=identity, persistent=True))
    assert frame["hello"] == {
        "protocol": 1,
        "oldest": 1,
        "client": "test",
        "actor": "bot",
        "kind": "agent",
        "token": "t",
        "persistent": True,
    }


def test_welcome_is_read() -> None:
    protocol = LinkProtocol()
    hello = {"protocol": 1, "session": {"name": "s"}, "actor": {"id": "a"}, "rights": ["input"], "new": 1}
    protocol.feed(encode_frame({"hello": hello}))
    assert protocol.welcome is not None
    assert protocol.welcome.session == {"name": "s"}
    assert protocol.welcome.rights == ("input",)


def test_answers_find_their_request_in_any_order() -> None:
    protocol = welcomed()
    first, _ = protocol.request("run", {"code": "1"})
    second, _ = protocol.request("status", {})
    protocol.feed(encode_frame({"id": second, "result": {"n": 2}}))
    protocol.feed(encode_frame({"id": first, "item": {"k": 1}}, b"payload"))
    protocol.feed(encode_frame({"id": first, "result": {"n": 1}}))
    assert protocol.inbox(second).outcome() == {"n": 2}
    item = protocol.inbox(first).take()
    assert item is not None
    assert (item.data, item.payload) == ({"k": 1}, b"payload")
    assert protocol.inbox(first).outcome() == {"n": 1}
    assert protocol.open_requests == 0


def test_refusal_carries_what_helps() -> None:
    protocol = welcomed()
    number, _ = protocol.request("run", {})
    refusal = {
        "code": "not_driver",
        "message": "bob drives",
        "driver": "bob",
        "generation": 4,
        "next": ["take"],
    }
    protocol.feed(encode_frame({"id": number, "refusal": refusal}))
    with pytest.raises(Refused) as caught:
        protocol.inbox(number).outcome()
    assert caught.value.refusal.driver == "bob"
    assert caught.value.next == ("take",)
    assert protocol.failure is None, "one refused request does not end the link"


def test_refusal_of_a_newer_keeper_is_still_a_refusal() -> None:
    protocol = welcomed()
    number, _ = protocol.request("run", {})
    protocol.feed(encode_frame({"id": number, "refusal": {"code": "quarantined", "message": "no"}}))
    with pytest.raises(Refused, match=r"no \(quarantined\)"):
        protocol.inbox(number).outcome()


@pytest.mark.parametrize(
    "refusal",
    [
        {},
        {"code": 3, "message": None},
        {"code": "busy", "next": "take", "since": "x", "generation": 1.5, "driver": 7},
    ],
)
def test_refusal_of_a_wrong_form_is_still_a_refusal(refusal: dict[str, Any]) -> None:
    protocol = welcomed()
    number, _ = protocol.request("run", {})
    protocol.feed(encode_frame({"id": number, "refusal": refusal}))
    with pytest.raises(Refused):
        protocol.inbox(number).outcome()


def test_refused_hello_ends_the_link() -> None:
    protocol = LinkProtocol()
    protocol.feed(encode_frame({"refusal": {"code": "revoked", "message": "your grant was revoked"}}))
    assert isinstance(protocol.failure, Refused)
    with pytest.raises(Refused, match="revoked"):
        protocol.request("status", {})


def test_error_says_what_is_wrong_with_the_request() -> None:
    protocol = welcomed()
    number, _ = protocol.request("run", {})
    protocol.feed(
        encode_frame({"id": number, "error": {"code": "bad_request", "message": "code is missing"}})
    )
    with pytest.raises(RequestFailed, match="code is missing"):
        protocol.inbox(number).outcome()


def test_closed_link_ends_every_open_request_at_once() -> None:
    protocol = welcomed()
    done, _ = protocol.request("status", {})
    protocol.feed(encode_frame({"id": done, "result": {}}))
    open_, _ = protocol.request("run", {})
    protocol.closed()
    assert protocol.inbox(done).outcome() == {}
    with pytest.raises(KeeperGone) as caught:
        protocol.inbox(open_).outcome()
    assert caught.value.asked, "what became of it is not known"
    with pytest.raises(KeeperGone) as later:
        protocol.request("run", {})
    assert not later.value.asked


def test_garbage_ends_the_link_as_a_bad_answer() -> None:
    protocol = welcomed()
    number, _ = protocol.request("run", {})
    protocol.feed(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    with pytest.raises(BadAnswer):
        protocol.inbox(number).outcome()
    protocol.feed(encode_frame({"id": number, "result": {}}))
    with pytest.raises(BadAnswer):
        protocol.inbox(number).outcome()


def test_unknown_answer_is_bad_and_unknown_frames_are_ignored() -> None:
    protocol = welcomed()
    number, _ = protocol.request("run", {})
    protocol.feed(encode_frame({"gossip": 1}))
    protocol.feed(encode_frame({"id": 999, "result": {}}))
    protocol.feed(encode_frame({"id": number, "gossip": 1}))
    with pytest.raises(BadAnswer, match="gossip"):
        protocol.inbox(number).outcome()


def test_what_cannot_be_sent_opens_no_request() -> None:
    protocol = welcomed()
    with pytest.raises(RequestFailed):
        protocol.request("run", {"code": "\ud800"})
    assert protocol.open_requests == 0


def test_what_is_too_large_for_a_header_travels_in_the_payload() -> None:
    protocol = welcomed()
    code = "x" * (5 * 2**20)
    number, data = protocol.request("run", {"code": code})
    ((header, payload),) = FrameDecoder().feed(data)
    assert unspill(header, payload)["args"] == {"code": code}
    protocol.feed(encode_spilling({"id": number, "result": {"text": code}}, "result"))
    assert protocol.inbox(number).outcome() == {"text": code}


def test_forgotten_request_is_cancelled_and_its_late_answer_dropped() -> None:
    protocol = welcomed()
    number, _ = protocol.request("read", {"follow": True})
    assert frames(protocol.forget(number)) == [{"cancel": number}]
    protocol.feed(encode_frame({"id": number, "item": {"output": {}}}))
    protocol.feed(encode_frame({"id": number, "result": {"cancelled": True}}))
    assert protocol.forget(number) == b""


def test_ended_request_is_forgotten_silently() -> None:
    protocol = welcomed()
    number, _ = protocol.request("status", {})
    protocol.feed(encode_frame({"id": number, "result": {}}))
    assert protocol.forget(number) == b""


def test_reader_that_is_too_slow_is_cut_off_alone() -> None:
    protocol = welcomed(backlog_bytes=10_000)
    slow, _ = protocol.request("read", {"follow": True})
    other, _ = protocol.request("status", {})
    for _ in range(30):
        protocol.feed(encode_frame({"id": slow, "item": {"text": "x" * 1000}}))
    assert frames(protocol.data_to_send()) == [{"cancel": slow}]
    kept = 0
    while protocol.inbox(slow).take() is not None:
        kept += 1
    assert 0 < kept < 10, "what was stored before the limit is still to be had"
    with pytest.raises(FellBehind):
        protocol.inbox(slow).outcome()
    protocol.feed(encode_frame({"id": other, "result": {}}))
    assert protocol.inbox(other).outcome() == {}


def test_one_item_longer_than_all_that_may_wait_is_read_like_any_other() -> None:
    """An output of 64 MiB with a short one behind it ended its reader, however quickly that one read."""
    protocol = welcomed(backlog_bytes=10_000)
    number, _ = protocol.request("read", {"follow": True})
    items = [{"text": "x" * 20_000}, {"text": "end"}]
    protocol.feed(b"".join(encode_frame({"id": number, "item": item}) for item in items))
    inbox = protocol.inbox(number)
    assert [taken.data for taken in (inbox.take(), inbox.take()) if taken is not None] == items
    assert inbox.error is None


def test_reader_that_takes_is_never_cut_off() -> None:
    protocol = welcomed(backlog_bytes=10_000)
    number, _ = protocol.request("read", {"follow": True})
    for _ in range(100):
        protocol.feed(encode_frame({"id": number, "item": {"text": "x" * 1000}}, b"y" * 5000))
        assert protocol.inbox(number).take() is not None
    assert protocol.inbox(number).unread_bytes == 0


def test_events_are_kept_and_bounded() -> None:
    protocol = welcomed()
    for number in range(1500):
        protocol.feed(encode_frame({"event": {"n": number}}))
    assert len(protocol.events) == 1000
    assert protocol.events[-1] == {"n": 1499}


@given(st.lists(st.integers(1, 40), max_size=30), st.randoms(use_true_random=False))
def test_pieces_do_not_matter(sizes: list[int], chance: random.Random) -> None:
    protocol = LinkProtocol()
    data = encode_frame({"hello": {"protocol": 1}})
    number, _ = protocol.request("read", {})
    for size in sizes:
        data += encode_frame({"id": number, "item": {"size": size}}, b"p" * size)
    data += encode_frame({"id": number, "result": {"n": len(sizes)}})
    while data:
        cut = chance.randint(1, len(data))
        protocol.feed(data[:cut])
        data = data[cut:]
    got = []
    while (item := protocol.inbox(number).take()) is not None:
        got.append((item.data["size"], len(item.payload)))
    assert got == [(size, size) for size in sizes]
    assert protocol.inbox(number).outcome() == {"n": len(sizes)}
