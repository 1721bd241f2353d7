"""The endpoints of the kernel protocol fed with what no client sends: that message is refused, and nothing else."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import DELIMITER, RawEndpoint, keeper_of, kernel_of, rss_of, wait_until
from tests.support import (
    Clients,
    Home,
    Sessions,
    execute_request,
    invite_client,
    journal,
    reply_of,
)

CHANNELS = ("shell", "control", "stdin")


@pytest.fixture(scope="module")
def neighbour(lone_session: Session) -> Iterator[Any]:
    """Another actor's unmodified client, there all the time."""
    client = invite_client(lone_session, "neighbour")
    yield client
    client.stop_channels()


@pytest.fixture
def raw(home: Home, lone_session: Session, neighbour: Any) -> Iterator[RawEndpoint]:
    """Sockets of an invited actor; at the end keeper, kernel and neighbour must be as before."""
    keeper, kernel = keeper_of(home, lone_session), kernel_of(lone_session)
    made = RawEndpoint(lone_session.invite("mallory").connection_file or "")
    yield made
    made.close()
    assert reply_of(neighbour, neighbour.execute("1 + 1"))["content"]["status"] == "ok"
    lone_session.revoke("mallory")
    assert keeper_of(home, lone_session) == keeper
    assert kernel_of(lone_session) == kernel
    assert lone_session.status().queue == ()
    assert lone_session.verify().ok


def _content(**fields: Any) -> bytes:
    return json.dumps({**execute_request("1"), **fields}).encode()


def _still_served(raw: RawEndpoint, channel: str) -> None:
    """The same sockets still get an answer to a good message, whatever came before on them."""
    wanted = raw.header(msg_type="kernel_info_request")
    on = "shell" if channel == "stdin" else channel
    raw.send(on, wanted)
    while raw.receive(on)["parent_header"]["msg_id"] != json.loads(wanted)["msg_id"]:
        pass


FRAMES: dict[str, Callable[[RawEndpoint], list[bytes]]] = {
    "empty": lambda raw: [b""],
    "no delimiter": lambda raw: [b"a", b"b", b"c", b"d", b"e", b"f"],
    "delimiter alone": lambda raw: [DELIMITER],
    "too few": lambda raw: [DELIMITER, b"signature", b"{}", b"{}"],
    "delimiter twice": lambda raw: [DELIMITER, DELIMITER, b"", b"{}", b"{}", b"{}", b"{}"],
    "many identities": lambda raw: [b"i"] * 2000 + [DELIMITER, b"", b"{}", b"{}", b"{}", b"{}"],
    "many frames": lambda raw: [DELIMITER, b"", b"{}", b"{}", b"{}", b"{}", *[b"x"] * 5000],
    "no signature": lambda raw: [DELIMITER, b"", raw.header(), b"{}", b"{}", _content()],
    "wrong signature": lambda raw: [DELIMITER, b"0" * 64, raw.header(), b"{}", b"{}", _content()],
    "long signature": lambda raw: [DELIMITER, b"0" * 100_000, raw.header(), b"{}", b"{}", _content()],
}


@pytest.mark.parametrize("channel", CHANNELS)
def test_frames_that_are_no_message_are_refused_and_recorded(
    raw: RawEndpoint, lone_session: Session, channel: str
) -> None:
    after = lone_session.status().journal
    for make in FRAMES.values():
        raw.send_frames(channel, make(raw))
    _still_served(raw, channel)
    refused = journal(lone_session, "refused", after=after.seq if after else 0)
    assert refused
    assert {e["data"]["code"] for e in refused} == {"forbidden"}
    # Nobody's: who sent it is not known, only by which door it came.
    assert {e["actor"] for e in refused} == {None}
    assert all(e["grant"] for e in refused)


HEADERS = [
    b"",
    b"null",
    b"[]",
    b"5",
    b'"x"',
    b"{",
    b"{}",
    b"\xff\xfe\x00",
    b'{"msg_id":1,"msg_type":"execute_request"}',
    b'{"msg_id":"x","msg_type":5}',
    b'{"msg_id":"","msg_type":"execute_request"}',
    b'{"msg_id":"x","msg_type":""}',
    b'{"msg_id":"x","msg_type":"execute_request","session":[]}',
    b'{"msg_id":"x","msg_type":"execute_request","subshell_id":5}',
    b'{"msg_id":"' + b"x" * 1_000_000 + b'","msg_type":"execute_request"}',
    b'{"msg_id":"' + b"x" * 257 + b'","msg_type":"execute_request"}',
    b'{"msg_id":"x","msg_type":"' + b"y" * 300 + b'"}',
    b"[" * 50_000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
]


@pytest.mark.parametrize("channel", CHANNELS)
def test_headers_that_are_none_are_refused(raw: RawEndpoint, lone_session: Session, channel: str) -> None:
    before = len(journal(lone_session, "admitted"))
    for header in HEADERS:
        raw.send(channel, header, content=_content())
    _still_served(raw, channel)
    assert len(journal(lone_session, "admitted")) == before


CONTENTS = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff",
    b"[" * 100_000,
    b'{"code":' * 1000 + b"1" + b"}" * 1000,
    _content(code=5),
    _content(code=None),
    _content(code=["1"]),
    _content(silent="no"),
    _content(store_history=0.5),
    _content(allow_stdin={}),
    _content(stop_on_error="x"),
    _content(user_expressions=5),
    _content(user_expressions="x"),
    _content(user_expressions=[1]),
]


def test_an_execute_request_of_wrong_types_is_answered_as_an_error(
    raw: RawEndpoint, lone_session: Session
) -> None:
    """ipykernel runs some of these and then never replies, which would leave the queue of everybody waiting."""
    before = len(journal(lone_session, "admitted"))
    for content in CONTENTS:
        raw.send("shell", content=content)
        reply = raw.receive("shell")
        assert reply["header"]["msg_type"] == "execute_reply", content
        assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "cmdop.unsupported"), (
            content
        )
    assert len(journal(lone_session, "admitted")) == before


def test_metadata_and_parents_of_wrong_types_are_answered_as_an_error(raw: RawEndpoint) -> None:
    for bad in (b"", b"null", b"[]", b"\xff", b"{", b'{"a":' * 300):
        for where in ("metadata", "parent"):
            raw.send("shell", content=_content(), **{where: bad})
            assert raw.receive("shell")["content"]["ename"] == "cmdop.unsupported", (where, bad)
    for cmdop in (
        5,
        [],
        "x",
        {"request_id": 5},
        {"request_id": "r" * 300},
        {"generation": "x"},
        {"generation": 10**30},
    ):
        raw.send("shell", content=_content(), metadata=json.dumps({"cmdop": cmdop}).encode())
        assert raw.receive("shell")["content"]["ename"] == "cmdop.unsupported", cmdop


def test_a_kernel_that_does_not_reply_does_not_stop_the_queue(lone_session: Session, neighbour: Any) -> None:
    """It says that it is idle again and never replies (a fault of its handler): the operation has an outcome."""
    code = (
        "kernel = get_ipython().kernel\n"
        "send, kernel.session.send = kernel.session.send, lambda s, m, *a, **k: "
        "None if m == 'execute_reply' and not setattr(kernel.session, 'send', send) else send(s, m, *a, **k)"
    )
    silent = neighbour.execute(code)
    queued = neighbour.execute("'next'")
    reply = reply_of(neighbour, silent)["content"]
    assert (reply["status"], reply["ename"]) == ("error", "cmdop.error")
    assert reply_of(neighbour, queued)["content"]["status"] == "aborted"
    assert lone_session.run("1").status == "ok"
    assert "no reply" in journal(lone_session, "gap")[-1]["data"]["reason"]


TYPES = [
    *("complete_request", "inspect_request", "history_request", "is_complete_request", "comm_info_request"),
    *("comm_open", "comm_msg", "comm_close", "connect_request", "input_reply", "debug_request"),
    *("create_subshell_request", "delete_subshell_request", "list_subshell_request", "usage_request"),
    *("execute_reply", "status", "iopub_welcome", "nonsense", "a/b", "\x1b[2J\u202e", "x" * 256),
    *("interrupt_request", "shutdown_request", "execute_request"),
]
ANY_CONTENT = [
    *(b"{}", b"[]", b"null", b"\xff", b"", b"[" * 1000),
    *(b'{"subshell_id":5}', b'{"subshell_id":"none"}', b'{"command":5}', b'{"command":"attach"}'),
    *(b'{"value":5}', b'{"restart":"x"}', b'{"code":5,"cursor_pos":"x"}', b'{"code":"a","cursor_pos":-50}'),
    *(b'{"hist_access_type":5}', b'{"hist_access_type":"tail","n":-5}', b'{"comm_id":5,"data":5}'),
    *(b'{"hist_access_type":"search","pattern":"[","n":99999999999999}', b'{"target_name":5,"comm_id":[]}'),
]


@pytest.mark.parametrize("channel", CHANNELS)
def test_every_type_with_any_content_on_any_channel(raw: RawEndpoint, channel: str) -> None:
    for message_type in TYPES:
        for content in ANY_CONTENT:
            raw.send(channel, raw.header(msg_type=message_type), content=content)
    _still_served(raw, channel)


def test_execute_on_control_does_not_pass_the_queue(raw: RawEndpoint, lone_session: Session) -> None:
    """The control channel has a thread of its own in the kernel: input there would run beside everybody's."""
    before = len(journal(lone_session, "admitted"))
    raw.send("control", content=_content(code="stolen = True"))
    reply = raw.receive("control")
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "cmdop.unsupported")
    assert "shell" in reply["content"]["evalue"]
    assert lone_session.run("'stolen' in globals()").text.strip() == "False"
    assert len(journal(lone_session, "admitted")) == before + 1


def test_random_frames(raw: RawEndpoint) -> None:
    source = random.Random(7)
    for channel in CHANNELS:
        for _ in range(300):
            frames = [source.randbytes(source.randrange(60)) for _ in range(source.randrange(1, 12))]
            if source.random() < 0.5:
                frames.insert(source.randrange(len(frames)), DELIMITER)
            raw.send_frames(channel, frames)
        _still_served(raw, channel)


def test_sockets_of_another_kind(raw: RawEndpoint) -> None:
    """A REQ on shell, frames for the heartbeat, subscriptions and data for iopub, plain bytes for all of them."""
    request = raw.open("shell", zmq.REQ)
    request.send(b"hello")
    beat = raw.open("hb", zmq.DEALER)
    for _ in range(200):
        beat.send_multipart([b"x"] * 20)
    beat.send(b"\0" * 1_000_000)
    subscriber = raw.open("iopub", zmq.XSUB)
    for frame in (b"\x01" + b"q" * 100_000, b"\x00never", b"garbage", b"", b"\x02"):
        subscriber.send(frame)
    for channel in ("shell", "control", "stdin", "iopub", "hb"):
        plain = socket.socket(socket.AF_UNIX)
        plain.connect(raw.address(channel).removeprefix("ipc://"))
        plain.sendall(os.urandom(5000))
        plain.close()
    _still_served(raw, "shell")


def test_a_thousand_refusals_are_recorded_at_a_bounded_rate(raw: RawEndpoint, lone_session: Session) -> None:
    """Junk fills neither the journal nor the log; how much was not written down is."""
    after = lone_session.status().journal
    seq = after.seq if after else 0
    for _ in range(1000):
        raw.send("shell", content=_content(), signature=b"junk")
    _still_served(raw, "shell")
    refused = journal(lone_session, "refused", after=seq)
    assert 1 <= len(refused) <= 60

    def counted() -> bool:
        raw.send("shell", content=_content(), signature=b"junk")
        entries = journal(lone_session, "refused", after=seq)
        return sum(e["data"].get("unrecorded_before", 0) for e in entries) + len(entries) >= 1000

    wait_until(counted, "a later refusal says how many were not recorded")


def test_a_message_that_came_before_is_not_run_again(raw: RawEndpoint, lone_session: Session) -> None:
    """Byte for byte the same, from another socket of the same key: one run, and the same answer twice."""
    header, content = raw.header(), _content(code="counted = globals().get('counted', 0) + 1; counted")
    for _ in range(3):
        raw.send("shell", header, content=content)
        assert raw.receive("shell")["content"]["status"] == "ok"
    assert lone_session.run("counted").text.strip() == "1"


def test_another_actors_key_opens_no_other_door(raw: RawEndpoint, lone_session: Session) -> None:
    """A message signed with one grant's key is junk at the endpoints of another."""
    other = lone_session.invite("other")
    forged = RawEndpoint(other.connection_file or "", key=raw.key)
    try:
        before = len(journal(lone_session, "admitted"))
        forged.send("shell", content=_content(code="forged = True"))
        forged.key = forged.info["key"].encode()
        _still_served(forged, "shell")
        assert len(journal(lone_session, "admitted")) == before
    finally:
        forged.close()
        lone_session.revoke("other")


def test_junk_costs_the_keeper_no_memory(home: Home, raw: RawEndpoint, lone_session: Session) -> None:
    keeper = keeper_of(home, lone_session)
    for _ in range(2000):  # what the first ones cost is paid once
        raw.send("shell", content=_content(), signature=b"junk")
    _still_served(raw, "shell")
    before = rss_of(keeper)
    for number in range(20_000):
        raw.send("shell", raw.header(msg_id=f"m{number}"), content=b'{"code":"1"}', signature=b"junk")
    _still_served(raw, "shell")
    assert rss_of(keeper) - before < 16 * 1024 * 1024


def test_others_are_served_while_somebody_floods_his_endpoint(
    raw: RawEndpoint, lone_session: Session, neighbour: Any
) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            raw.send("shell", content=_content(), signature=b"junk")

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for number in range(10):
            assert (
                reply_of(neighbour, neighbour.execute(f"{number}"), limit_seconds=5)["content"]["status"]
                == "ok"
            )
    finally:
        stop.set()
        thread.join()


def test_a_queue_full_of_one_actors_input_leaves_room_for_others(session: Sessions, clients: Clients) -> None:
    """1,024 waiting operations are an actor's share; more is refused, and the others have their turn in between."""
    made = session()
    greedy, modest = clients(made, "greedy"), clients(made, "modest")
    first = greedy.execute("import time; time.sleep(1)")
    sent = [greedy.execute("pass") for _ in range(1030)]
    mine = modest.execute("'mine'")
    assert reply_of(modest, mine)["content"]["status"] == "ok"
    assert reply_of(greedy, first)["content"]["status"] == "ok"
    full = reply_of(greedy, sent[-1])["content"]
    assert full["ename"] == "cmdop.queue_full"
    assert made.status().queue
    made.interrupt()
    with Session.open(made.id) as link:
        link.close(force=True)


DEEP = b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.mark.parametrize("msg_type", ["history_request", "comm_msg", "complete_request", "execute_request"])
def test_content_that_nests_too_deep_ends_nothing(raw: RawEndpoint, msg_type: str) -> None:
    """A parser of the keeper's gave up with another error than "this is no message", and the session ended."""
    raw.send("shell", raw.header(msg_type=msg_type), content=DEEP)
    _still_served(raw, "shell")


def test_what_a_kernel_shows_may_nest_as_deep_as_it_likes(raw: RawEndpoint, lone_session: Session) -> None:
    """Any cell could end its session with one message of a widget."""
    code = f"""
from comm import create_comm
comm = create_comm(target_name='jupyter.widget', data={{'state': {{}}}})
kernel = get_ipython().kernel
frames = kernel.session.serialize(
    kernel.session.msg('comm_msg', content={{}}, parent=kernel.get_parent()), ident=b'comm')
frames[-1] = b'{{"comm_id":"' + comm.comm_id.encode() + b'","data":' + {DEEP!r} + b'}}'
frames[-5] = kernel.session.sign(frames[-4:])
kernel.iopub_socket.send_multipart(frames)
"""
    assert lone_session.run(code).status == "ok"
    _still_served(raw, "shell")
