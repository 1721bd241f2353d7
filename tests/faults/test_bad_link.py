"""The link fed with what no client of ours sends: refused in words, and nobody else notices."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.core.grants import MAX_GRANTS
from jupyter_cmdop.keeper.link_endpoint import OUTBOX_BYTES
from jupyter_cmdop.wire.link import MAX_HEADER, encode_frame
from tests.faults.attacks import (
    RawLink,
    call_cli,
    keeper_of,
    lengths,
    link_path,
    null_spec,
    rss_of,
    wait_until,
)
from tests.support import Home, Sessions, journal

HELLO = encode_frame({"hello": {"protocol": 1, "oldest": 1, "client": "raw"}})
MANY = 300


@pytest.fixture
def path(home: Home, lone_session: Session) -> Iterator[str]:
    """The link of a session that must work as before when the test is over, also for who was there before."""
    before = Session.open(lone_session.id)
    pid = keeper_of(home, lone_session).pid
    yield link_path(home, lone_session)
    with before:
        assert before.run("1 + 1").text.strip() == "2"
    assert lone_session.status().state == "open"
    assert keeper_of(home, lone_session).pid == pid
    assert lone_session.verify().ok


def _say(path: str, data: bytes, *, hello: bool) -> list[dict[str, Any]]:
    """Send bytes, end the sending half, and return everything that the keeper answers."""
    link = RawLink(path, silent=not hello)
    try:
        try:
            link.send_bytes(data)
            link.socket.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        answers = []
        while (frame := link.receive()) is not None:
            answers.append(frame)
        return answers
    finally:
        link.close()


GARBAGE = {
    "nothing": b"",
    "one byte": b"\x00",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zmtp": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(44),
    "random": random.Random(1).randbytes(100_000),
    "text": b"\x1b[2J hello \xe2\x80\xae" * 100,
    "truncated lengths": lengths(100, 0)[:7],
    "truncated header": lengths(100, 0) + b'{"hello":',
    "truncated payload": lengths(2, 1000) + b"{}" + b"x" * 10,
    "huge header": lengths(MAX_HEADER + 1, 0) + b"{" * 1000,
    "largest header": lengths(2**32 - 1, 0) + b"{}",
    "huge payload": lengths(2, 2**63) + b"{}" + b"x" * 1000,
    "largest payload": lengths(2, 2**64 - 1) + b"{}",
    "a list": lengths(2, 0) + b"[]",
    "null": lengths(4, 0) + b"null",
    "empty header": lengths(0, 0),
    "not utf-8": lengths(10, 0) + b'{"a":"\xff\xfe"}'[:10],
    "deep": lengths(200_000, 0) + b'{"a":' + b"[" * 199_995,
    "deep and closed": lengths(20_011, 0) + b'{"hello":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
    "nul bytes": bytes(5000),
}


@pytest.mark.parametrize("hello", [True, False], ids=["after-hello", "at-once"])
def test_garbage_ends_only_the_connection_that_brought_it(path: str, hello: bool) -> None:
    for name, data in GARBAGE.items():
        for frame in _say(path, data, hello=hello):
            said = frame.get("error") or frame.get("refusal")
            assert said, (name, frame)
            assert said["message"], name


HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "a verb first": ({"id": 1, "verb": "status", "args": {}}, "hello"),
    "empty": ({}, "hello"),
    "not an object": ({"hello": 5}, "hello"),
    "protocol too new": ({"hello": {"protocol": 9, "oldest": 7}}, "protocol"),
    "protocol too old": ({"hello": {"protocol": 0, "oldest": 0}}, "protocol"),
    "protocol missing": ({"hello": {}}, "protocol"),
    "protocol of a wrong type": ({"hello": {"protocol": "1"}}, "hello"),
    "a bad name": ({"hello": {"protocol": 1, "oldest": 1, "actor": "\x1b[2J"}}, "cannot name an actor"),
    "a name that is none": ({"hello": {"protocol": 1, "oldest": 1, "actor": ["x"]}}, "hello"),
    "an empty name": ({"hello": {"protocol": 1, "oldest": 1, "actor": ""}}, "cannot name an actor"),
    "a token of nobody": (
        {"hello": {"protocol": 1, "oldest": 1, "token": "guess"}},
        "not (or no longer) valid",
    ),
    "an empty token": ({"hello": {"protocol": 1, "oldest": 1, "token": ""}}, "not (or no longer) valid"),
    "the keeper's name": ({"hello": {"protocol": 1, "oldest": 1, "actor": "keeper"}}, "keeper"),
    "the kernel's name": ({"hello": {"protocol": 1, "oldest": 1, "actor": "kernel"}}, "kernel"),
}


@pytest.mark.parametrize("case", HELLOS)
def test_a_hello_that_is_none_is_refused_in_words(path: str, case: str) -> None:
    frame, words = HELLOS[case]
    (answer,) = _say(path, encode_frame(frame), hello=False)
    assert words in answer["refusal"]["message"]
    assert answer["refusal"]["code"]


def test_a_protocol_mismatch_names_what_still_works_and_what_repairs_it(
    path: str, lone_session: Session
) -> None:
    (answer,) = _say(path, encode_frame({"hello": {"protocol": 99, "oldest": 99}}), hello=False)
    following = " ".join(answer["refusal"]["next"])
    assert f"jupyter cmdop log {lone_session.name}" in following
    assert "upgrade" in following
    newer = encode_frame({"hello": {"protocol": 2, "oldest": 1, "client": "newer", "later": {"x": 1}}})
    (welcome,) = _say(path, newer, hello=False)
    assert welcome["hello"]["protocol"] == 1


WRONG_ARGUMENTS: list[tuple[Any, Any]] = [
    ("run", {}),
    ("run", {"code": 5}),
    ("run", {"code": None}),
    ("run", {"code": "1", "wait_seconds": "soon"}),
    ("run", {"code": "1", "stream": "yes"}),
    ("run", {"code": "1", "request_id": 5}),
    ("run", {"code": "1", "request_id": "x" * 1000}),
    ("run", {"code": "1", "request_id": ""}),
    ("run", {"code": "1", "if_busy": "explode"}),
    ("run", []),
    ("run", "code"),
    ("run", 5),
    ("wait", {"operation": 5}),
    ("wait", {"operation": "o999999"}),
    ("wait", {"operation": "\x00"}),
    ("wait", {"request_id": "never"}),
    ("read", {"after": "x"}),
    ("read", {"after": "1:2:3"}),
    ("read", {"after": "1:-5"}),
    ("read", {"after": "1:" + "9" * 400}),
    ("read", {"after": 5}),
    ("read", {"view": "everything"}),
    ("log", {"after": "x"}),
    ("log", {"types": "refused"}),
    ("log", {"types": [5]}),
    ("take", {"lease_seconds": -1}),
    ("take", {"lease_seconds": 0}),
    ("take", {"lease_seconds": "long"}),
    ("take", {"running": "kill"}),
    ("take", {"queue": "steal"}),
    ("hand_back", {"to": 5}),
    ("hand_back", {"to": "nobody"}),
    ("policy", {}),
    ("policy", {"policy": "anarchy"}),
    ("policy", {"policy": None}),
    ("invite", {"actor": "../../etc/passwd "}),
    ("invite", {"actor": "\x1b]0;x\x07"}),
    ("invite", {"actor": "x" * 129}),
    ("invite", {"actor": "a", "kind": "god"}),
    ("invite", {"actor": "a", "role": "owner of everything"}),
    ("invite", {"actor": "a", "expires_seconds": -1}),
    ("invite", {"actor": "a", "expires_seconds": 0}),
    ("invite", {"actor": "a", "expires_seconds": 1e300}),
    ("invite", {"actor": "a", "transport": "carrier pigeon"}),
    ("revoke", {}),
    ("revoke", {"grant": "none"}),
    ("interrupt", {"operation": "o999999"}),
    ("interrupt", {"operation": {}}),
    ("answer", {}),
    ("answer", {"text": 5}),
    ("answer", {"text": "nobody asked"}),
    ("verify", {"receipt": "x"}),
    ("verify", {"receipt": [1, 2, 3]}),
    ("verify", {"receipt": [None, None]}),
    ("rename", {"name": ""}),
    ("rename", {"name": "../x"}),
    ("rename", {"name": "a\nb"}),
    ("close", {"force": "yes"}),
    ("no such verb", {}),
    ("", {}),
    ("__class__", {}),
    ("\x1b[2J", {}),
    ("x" * 100_000, {}),
    (5, {}),
    (None, {}),
    ({}, {}),
]


def test_wrong_arguments_are_answered_one_by_one(path: str, lone_session: Session) -> None:
    """On one connection, which stays usable; nothing of it is admitted."""
    admitted = len(journal(lone_session, "admitted"))
    link = RawLink(path)
    try:
        for verb, args in WRONG_ARGUMENTS:
            answer = link.ask(verb, args)
            said = answer.get("error") or answer.get("refusal")
            assert said, (verb, args, answer)
            assert said["message"], (verb, args)
            assert "Traceback" not in said["message"]
        for number in ("1", None, [], 1.5, {}):
            link.send({"id": number, "verb": "status", "args": {}})
            answer = link.receive() or {}
            assert answer["error"]["code"] == "bad_request"
        for frame in ({}, {"x": 1}, {"args": {}}):
            link.send(frame)
            assert (link.receive() or {})["error"]["code"] == "bad_request"
        for frame in ({"cancel": 99}, {"cancel": "x"}, {"cancel": None}, {"beat": 1}, {"beat": "x"}):
            link.send(frame)
        assert link.ask("status")["result"]["state"] == "open"
    finally:
        link.close()
    assert len(journal(lone_session, "admitted")) == admitted
    assert journal(lone_session, "taken", "policy", "closed", "renamed", "granted") == []


def test_unknown_fields_and_extreme_values_are_taken_for_what_they_are(path: str) -> None:
    link = RawLink(path)
    try:
        assert (
            link.ask("run", {"code": "1", "from": "the future", "wait_seconds": 1e300})["result"]["status"]
            == "ok"
        )
        assert link.ask("run", {"code": "1", "generation": 2**62})["result"]["status"] == "ok"
        assert link.ask("log", {"after": -5, "limit": 1})["result"]["head"]
        assert link.ask("log", {"after": 2**62})["result"]["head"]
        assert link.ask("log", {"after": 10**30})["result"]["head"]
        assert link.ask("log", {"limit": -1})["result"]["head"]
        assert link.ask("read", {"after": "7:0"})["result"]["cursor"]
        assert link.ask("wait", {"wait_seconds": -3})["result"]["status"] == "idle"
        verified = link.ask("verify", {"receipt": f"{10**20}:ab"})["result"]
        assert verified["ok"] is False
    finally:
        link.close()


def test_a_large_request_and_a_large_output_pass(path: str, lone_session: Session) -> None:
    """More than fits in a frame's header: code of 6 MB in, an output of 8 MB out."""
    with Session.open(lone_session.id) as session:
        assert session.run("x = '" + "y" * 6_000_000 + "'; len(x)").text.strip() == "6000000"
        whole = session.run("print(x + x[:2_000_000])", max_bytes=1 << 30)
        assert len(whole.text) == 8_000_001
        operation = whole.operation
        sizes = [len(i.output["text"]) for i in session.read("stream").items if i.operation == operation]
        assert sum(sizes) == 8_000_001


def test_three_hundred_connections_at_once(home: Home, path: str, lone_session: Session) -> None:
    """Half of them never say a word; the others are all served, and all of it is given back."""
    keeper = keeper_of(home, lone_session)
    before = keeper.num_fds()
    links: list[RawLink] = []
    try:
        for number in range(MANY):
            links.append(RawLink(path, silent=number % 2 == 0, hello={"persistent": number % 3 == 0}))
        assert call_cli("run", lone_session.name, "'still here'").data["status"] == "ok"
        for link in links[1::2]:
            assert link.ask("status")["result"]["state"] == "open"
    finally:
        for link in links:
            link.close()
    wait_until(lambda: keeper.num_fds() <= before + 2, "the connections are given back")


def test_answers_that_nobody_reads_cost_a_bounded_amount(home: Home, session: Sessions) -> None:
    """Ten links that ask for everything and read nothing: a page each is fetched for them, and no more."""
    made = session()
    made.run("for n in range(20): print('z' * 1_000_000, flush=True)", max_bytes=1)
    keeper, path = keeper_of(home, made), link_path(home, made)
    before = rss_of(keeper)
    links = [RawLink(path) for _ in range(10)]
    try:
        for link in links:
            link.send({"id": 1, "verb": "read", "args": {}})
            link.send({"id": 2, "verb": "read", "args": {"view": "stream", "follow": True}})
            link.send({"id": 3, "verb": "log", "args": {}})
        for _ in range(5):
            assert made.run("1").status == "ok"
        assert rss_of(keeper) - before < 200 * 1024 * 1024
    finally:
        for link in links:
            link.close()


def test_a_long_answer_does_not_count_as_not_reading(home: Home, session: Sessions) -> None:
    """A reader that was about to take 70 MB was cut off, because its next question was answered meanwhile."""
    made = session()
    size = OUTBOX_BYTES + 2**20
    made.run(f"print('y' * {size}, flush=True); print('end')", max_bytes=1)
    link = RawLink(link_path(home, made))
    try:
        link.send({"id": 1, "verb": "read", "args": {}})
        wait_until(lambda: len(link.socket.recv(2**15, socket.MSG_PEEK)) == 2**15, "it is being written")
        for number in range(2, 40):
            link.send({"id": number, "verb": "status", "args": {}})
        texts, statuses, over = 0, 0, False
        while not over or statuses < 38:
            frame = link.receive()
            assert frame is not None, "the keeper has closed the link"
            item = frame.get("item")
            if item is not None and item["output"]["name"] == "stdout":  # a kernel may warn of something
                texts += len(item["output"]["text"])
            over = over or (frame["id"] == 1 and item is None)
            statuses += frame["id"] > 1
        assert texts == size + len("\nend\n")
    finally:
        link.close()


def test_connections_that_end_in_the_middle_of_everything(path: str) -> None:
    """Closed, or reset with unread data, in every state of a request."""
    reset = struct.pack("ii", 1, 0)
    requests = [
        {"id": 1, "verb": "run", "args": {"code": "print('a' * 100_000)", "stream": True}},
        {"id": 1, "verb": "run", "args": {"code": "import time; time.sleep(0.2)", "stream": True}},
        {"id": 1, "verb": "read", "args": {"follow": True}},
        {"id": 1, "verb": "log", "args": {"follow": True}},
        {"id": 1, "verb": "wait", "args": {"wait_seconds": 60}},
        {"id": 1, "verb": "verify", "args": {}},
        {"id": 1, "verb": "status", "args": {}},
    ]
    for request in requests:
        for wait in (False, True):
            link = RawLink(path)
            link.send(request)
            if wait:
                link.receive()
            link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            link.close()


def test_passing_descriptors_over_the_link_gives_nobody_anything(
    home: Home, path: str, lone_session: Session
) -> None:
    keeper = keeper_of(home, lone_session)
    before = keeper.num_fds()
    link = RawLink(path)
    try:
        frame = encode_frame({"id": 1, "verb": "status", "args": {}})
        with open(os.devnull, "rb") as null, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(10):
                socket.send_fds(link.socket, [frame], [null.fileno()] * 20)
        link.is_closed_by_keeper()
    finally:
        link.close()
    wait_until(lambda: keeper.num_fds() <= before, "no descriptor has stayed in the keeper")


def _invite_too_many(made: Session) -> None:
    for number in range(MAX_GRANTS + 1):
        made.invite(f"guest-{number}")


def test_more_grants_than_there_is_room_for_are_refused(home: Home, session: Sessions) -> None:
    """Each grant has sockets of its own, and a process may have so many: the keeper says no instead of failing."""
    made = session(kernel=null_spec(home))
    keeper = keeper_of(home, made)
    first = made.invite("first")
    resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, (keeper.num_fds() + 30, 4096))
    with pytest.raises(Refused) as crowded:
        _invite_too_many(made)
    assert crowded.value.refusal.code == "queue_full"
    assert "ulimit -n" in crowded.value.refusal.next
    resource.prlimit(keeper.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    with pytest.raises(Refused) as full:
        _invite_too_many(made)
    assert str(MAX_GRANTS) in full.value.refusal.message
    grants = made.grants()
    assert len(grants) == MAX_GRANTS
    env = {"CMDOP_GRANT_FILE": str(first.connection_file)}
    assert call_cli("run", made.name, "say still", env=env).data["text"] == "still\n"
    made.revoke(grants[-1].grant)
    assert made.invite("last").connection_file
    assert len(journal(made, "revoked")) >= 1
