"""Messages that should not be: copies, echoes, foreign keys, garbage. None is executed, each is on record, and
neither the session nor the client that sent it stops working.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Sessions,
    execute_request,
    flush,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    request,
    wait_for_entry,
)


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def signed(
    client: BlockingKernelClient, header: bytes, parent: bytes, metadata: bytes, content: bytes
) -> list[bytes]:
    """The frames of a message with raw parts, signed with this client's key."""
    parts = [header, parent, metadata, content]
    return [b"<IDS|MSG>", client.session.sign(parts), *parts]


def header_of(client: BlockingKernelClient, msg_type: str, **changes: Any) -> bytes:
    header = dict(client.session.msg_header(msg_type))
    header["date"] = header["date"].isoformat()
    return json.dumps({**header, **changes}).encode()


def last_seq(session: Session) -> int:
    status = session.status()
    assert status.journal is not None
    return status.journal.seq


def goes_on(session: Session, client: BlockingKernelClient) -> None:
    """The client and the session still work, and nothing of an intruder was executed."""
    msg_id = client.execute("print('intruder' in globals())")
    assert reply_of(client, msg_id)["content"]["status"] == "ok"
    seen = iopub_until(client, is_idle_of(msg_id))
    assert "False" in "".join(m["content"].get("text", "") for m in seen if m["msg_type"] == "stream")
    assert session.run("'intruder' in globals()").text == "False\n"


def test_a_message_recorded_from_the_wire_is_not_executed_again(shared: Session, clients: Clients) -> None:
    """Identical frames a second time: a cell is recognised as the same operation, a comm message is refused;
    both are in the journal, and nothing happens twice.
    """
    bot = clients(shared, "bot")
    socket = bot.shell_channel.socket
    reply_of(bot, bot.execute("times = 0"))
    cell = bot.session.serialize(bot.session.msg("execute_request", execute_request("times += 1")))
    comm = bot.session.serialize(
        bot.session.msg("comm_open", {"comm_id": "r", "target_name": "none", "data": {}})
    )
    after = last_seq(shared)
    for frames in (cell, cell, comm, comm):
        socket.send_multipart(frames)
    duplicate = wait_for_entry(shared, "duplicate", after=after)
    refused = wait_for_entry(shared, "refused", after=after)
    assert duplicate["actor"] == "bot"
    assert refused["data"]["code"] == "request_id_conflict"
    assert "second time" in refused["data"]["message"]
    opened = [e for e in journal(shared, "input", after=after) if e["data"]["message"] == "comm_open"]
    assert len(opened) == 1
    assert shared.run("times").text == "1\n"
    goes_on(shared, bot)


def test_the_kernels_own_message_sent_back_is_refused(shared: Session, clients: Clients) -> None:
    """A message of the kernel from iopub is signed with the same key: sent back into the shell it must not pass
    as input.
    """
    bot = clients(shared, "bot")
    reply_of(
        bot,
        bot.execute(
            "from comm import create_comm\n"
            "caught = []\n"
            "channel = create_comm(target_name='x')\n"
            "channel.on_msg(lambda m: caught.append(m))\n"
            "channel.send({'to': 'frontend'})"
        ),
    )
    socket = bot.iopub_channel.socket
    while True:
        frames = socket.recv_multipart()
        if json.loads(frames[frames.index(b"<IDS|MSG>") + 2])["msg_type"] == "comm_msg":
            break
    after = last_seq(shared)
    bot.shell_channel.socket.send_multipart(frames[frames.index(b"<IDS|MSG>") :])
    refused = wait_for_entry(shared, "refused", after=after)
    assert refused["data"]["code"] == "forbidden"
    assert "of the kernel" in refused["data"]["message"]
    assert shared.run("caught").text == "[]\n"
    goes_on(shared, bot)


def test_another_key_is_refused(shared: Session, clients: Clients) -> None:
    """A message signed with another actor's key, or none, on this actor's sockets: not read, not answered, on
    record.
    """
    bot, other = clients(shared, "bot"), clients(shared, "other")
    intruder = execute_request("intruder = 1")
    forged = other.session.serialize(other.session.msg("execute_request", intruder))
    unsigned = bot.session.serialize(bot.session.msg("execute_request", intruder))
    unsigned[1] = b""
    damaged = bot.session.serialize(bot.session.msg("execute_request", execute_request("pass")))
    damaged[-1] = json.dumps(intruder).encode()
    after = last_seq(shared)
    for frames in (forged, unsigned, damaged):
        bot.shell_channel.socket.send_multipart(frames)
    for channel in (bot.control_channel, bot.stdin_channel):
        channel.socket.send_multipart(forged)
    wait_for_entry(shared, "refused", after=after, where=lambda e: "stdin" in e["data"]["message"])
    refused = journal(shared, "refused", after=after)
    assert [e["data"]["code"] for e in refused] == ["forbidden"] * 5
    assert all("not signed" in e["data"]["message"] for e in refused)
    # Nobody knows who sent it: the entry names the door, not an author.
    assert all(e.get("actor") is None and e["grant"] for e in refused)
    assert journal(shared, "admitted", after=after) == []
    goes_on(shared, bot)


DEEP = b'{"msg_id": "a", "msg_type": "b", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}"
GARBAGE: dict[str, Callable[[BlockingKernelClient], list[bytes]]] = {
    "no delimiter": lambda c: [b"hello", b"world"],
    "empty frame": lambda c: [b""],
    "header is no JSON": lambda c: signed(c, b"{nonsense", b"{}", b"{}", b"{}"),
    "header is a list": lambda c: signed(c, b"[]", b"{}", b"{}", b"{}"),
    "header without a type": lambda c: signed(c, b'{"msg_id": "a"}', b"{}", b"{}", b"{}"),
    "header with numbers": lambda c: signed(c, b'{"msg_id": 1, "msg_type": 2}', b"{}", b"{}", b"{}"),
    "deep header": lambda c: signed(c, DEEP, b"{}", b"{}", b"{}"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_what_cannot_be_read_is_on_record_and_harms_nobody(
    shared: Session, clients: Clients, what: str
) -> None:
    """Garbage on the shell socket is counted and recorded; the next message of the same client is served."""
    bot = clients(shared, "bot")
    after = last_seq(shared)
    bot.shell_channel.socket.send_multipart(GARBAGE[what](bot))
    refused = wait_for_entry(shared, "refused", after=after)
    assert refused["data"]["message"]
    goes_on(shared, bot)


INTRUDER = json.dumps(execute_request("intruder = 1")).encode()
UNREADABLE: dict[str, Callable[[BlockingKernelClient], list[bytes]]] = {
    "content is no JSON": lambda c: signed(c, header_of(c, "execute_request"), b"{}", b"{}", b"{code"),
    "code is a number": lambda c: signed(c, header_of(c, "execute_request"), b"{}", b"{}", b'{"code": 1}'),
    "content is a list": lambda c: signed(c, header_of(c, "execute_request"), b"{}", b"{}", b"[]"),
    "parent is no JSON": lambda c: signed(c, header_of(c, "execute_request"), b"{no", b"{}", INTRUDER),
    "parent is a list": lambda c: signed(c, header_of(c, "execute_request"), b"[1]", b"{}", INTRUDER),
    "metadata is no JSON": lambda c: signed(c, header_of(c, "execute_request"), b"{}", b"{no", INTRUDER),
    "metadata is a list": lambda c: signed(c, header_of(c, "execute_request"), b"{}", b"[]", INTRUDER),
    "user_expressions is a list": lambda c: signed(
        c,
        header_of(c, "execute_request"),
        b"{}",
        b"{}",
        json.dumps(execute_request("intruder = 1", user_expressions=[1])).encode(),
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_cell_that_cannot_be_read_is_answered_with_an_error(
    shared: Session, clients: Clients, what: str
) -> None:
    """Signed by the right key and not what a cell is: its client gets an error reply and idle, and nothing is
    executed. A bare kernel would not answer at all, and its client wait for ever.
    """
    bot = clients(shared, "bot")
    frames = UNREADABLE[what](bot)
    msg_id = json.loads(frames[2])["msg_id"]
    bot.shell_channel.socket.send_multipart(frames)
    reply = reply_of(bot, msg_id)
    assert reply["content"]["status"] == "error"
    assert reply["content"]["evalue"]
    iopub_until(bot, is_idle_of(msg_id))
    goes_on(shared, bot)


DROPPED: dict[str, Callable[[BlockingKernelClient], bytes]] = {
    "a date that is none": lambda c: header_of(c, "execute_request", date="2024-99-99T99:99:99Z"),
    "another text that looks like a date": lambda c: header_of(
        c, "execute_request", note="2024-13-01T00:00:00Z"
    ),
    "no protocol version": lambda c: (
        b'{"msg_id": "%s", "msg_type": "execute_request"}' % c.session.msg_id.encode()
    ),
    "not UTF-8": lambda c: b'{"msg_id": "%s\xff", "msg_type": "execute_request"}' % c.session.msg_id.encode(),
}


@pytest.mark.parametrize("what", DROPPED)
def test_a_cell_that_the_kernel_drops_blocks_nobody(shared: Session, clients: Clients, what: str) -> None:
    """ipykernel throws a message away, without a word, when its header does not please it. Such a cell must not
    keep the session waiting for an answer that never comes: it ends as an error, and the cells of others behind
    it run.
    """
    bot, other = clients(shared, "bot"), clients(shared, "other")
    after = last_seq(shared)
    bot.shell_channel.socket.send_multipart(signed(bot, DROPPED[what](bot), b"{}", b"{}", INTRUDER))
    dropped = wait_for_entry(shared, "delivered", after=after)["operation"]
    behind = other.execute("behind = 1")
    ended = wait_for_entry(shared, "ended", operation=dropped, limit_seconds=15)
    assert (ended["actor"], ended["data"]["outcome"]) == ("bot", "error")
    assert "no reply" in ended["data"]["evalue"]
    assert reply_of(other, behind)["content"]["status"] == "ok"
    goes_on(shared, other)
    goes_on(shared, clients.again(bot))


def test_requests_on_the_wrong_channel(shared: Session, clients: Clients) -> None:
    """A cell on the control channel would overtake the queue: refused readably; so is a control request on the
    shell.
    """
    bot = clients(shared, "bot")
    msg_id = request(bot, "execute_request", execute_request("intruder = 1"), channel="control")
    answer = bot.get_control_msg(timeout=10)
    assert answer["parent_header"]["msg_id"] == msg_id
    assert answer["content"]["status"] == "error"
    wrong = request(bot, "create_subshell_request", {})
    assert reply_of(bot, wrong)["content"]["status"] == "error"
    after = last_seq(shared)
    request(bot, "execute_request", execute_request("intruder = 1"), channel="stdin")
    assert wait_for_entry(shared, "refused", after=after)["data"]["message"]
    goes_on(shared, bot)


def test_an_unknown_request_is_passed_on_and_answered(shared: Session, clients: Clients) -> None:
    """What we do not know may be a kernel's own extension: it is passed on as what may act, and its client goes
    on whatever the kernel makes of it.
    """
    bot = clients(shared, "bot")
    after = last_seq(shared)
    request(bot, "future_request", {"x": 1})
    entry = wait_for_entry(shared, "input", after=after)
    assert (entry["actor"], entry["data"]["message"]) == ("bot", "future_request")
    goes_on(shared, bot)


def test_a_flood_of_refusals_does_not_fill_the_journal(shared: Session, clients: Clients) -> None:
    """Ten thousand messages with a wrong key leave a few dozen entries, which say how many there were."""
    bot, other = clients(shared, "bot"), clients(shared, "other")
    frames = other.session.serialize(other.session.msg("execute_request", execute_request("intruder = 1")))
    after = last_seq(shared)
    for _ in range(10_000):
        bot.shell_channel.socket.send_multipart(frames)
    flush(bot)
    refused = journal(shared, "refused", after=after)
    assert 10 <= len(refused) < 500
    goes_on(shared, bot)
