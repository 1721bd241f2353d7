"""Who is let in, as what, until when; and that whoever is not gets nothing."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.identity import Identity, read_grant_file
from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Sessions,
    execute_request,
    flush,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    request,
    run_cli,
    text_of,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

WITHIN_SECONDS = 1.0


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def file_of(client: BlockingKernelClient) -> Path:
    return Path(client.cmdop_invite.connection_file)  # type: ignore[attr-defined]


def hears_nothing(client: BlockingKernelClient, seconds: float = 0.3) -> bool:
    """Whether nothing arrives on any channel of this client for a moment (an absence can only be waited for)."""
    sockets = [client.shell_channel.socket, client.iopub_channel.socket, client.stdin_channel.socket]
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    return not poller.poll(seconds * 1000)


def test_revoking_ends_a_client_at_once(shared: Session, clients: Clients, gate: Gate) -> None:
    """After `revoke` a client that stays connected gets nothing any more, what it sends reaches nothing, what
    it had queued is withdrawn, and its connection file is gone; all within a second, while the others go on.
    """
    bot, witness = clients(shared, "fired"), clients(shared, "witness")
    blocker = witness.execute(gate.code)
    wait_for_running(shared, "witness")
    bot.execute("never = 1")
    wait_for_status(shared, lambda s: s.queue)
    grants = {g["actor"]: g for g in run_cli("grants", shared.name).data["grants"]}
    assert grants["fired"]["connected"]
    path = file_of(bot)
    assert path.exists()

    begun = time.monotonic()
    assert shared.revoke(grants["fired"]["grant"]).actor == "fired"
    assert not path.exists()
    status = wait_for_status(shared, lambda s: not any(p.actor == "fired" for p in s.presence))
    assert time.monotonic() - begun < WITHIN_SECONDS
    assert not status.queue
    operation = wait_for_entry(shared, "ended", actor="fired")
    assert operation["data"]["outcome"] == "withdrawn"
    gate.open()
    reply_of(witness, blocker)

    while not hears_nothing(bot, 0.05):  # what was under way before
        for channel in (bot.shell_channel, bot.iopub_channel, bot.stdin_channel):
            if channel.msg_ready():
                channel.get_msg(timeout=0)
    bot.execute("never = 2")
    done = witness.execute("print('seen by those who may'); 'never' in globals()")
    assert reply_of(witness, done)["content"]["status"] == "ok"
    assert text_of(iopub_until(witness, is_idle_of(done)), done) == "seen by those who may\nFalse"
    assert hears_nothing(bot)
    assert journal(shared, "admitted", actor="fired", after=operation["seq"]) == []
    assert [e["data"]["actor"] for e in journal(shared, "revoked")] == ["fired"]


def test_revoking_closes_command_line_links_too(shared: Session) -> None:
    """The same grant opens the link for the command line; when it ends, so does that."""
    invited = shared.invite("scripted")
    identity = read_grant_file(Path(invited.connection_file or ""))
    with Session.open(shared.id, identity=identity, persistent=True) as link:
        assert link.actor == "scripted"
        shared.revoke(invited.grant)
        deadline = time.monotonic() + 10
        while link.connection.failure is None and time.monotonic() < deadline:
            link.connection.pump(deadline - time.monotonic())
        assert link.connection.failure is not None
    with pytest.raises(Refused) as refused:
        Session.open(shared.id, identity=identity)
    assert refused.value.refusal.code == "revoked"


def test_a_grant_that_expires(shared: Session, clients: Clients) -> None:
    """`--expires 1s`: good for a second, then as if revoked; the floor of who held it becomes free."""
    invited = run_cli("invite", shared.name, "--as", "guest", "--expires", "1s").data
    assert invited["expires"]
    entry = wait_for_entry(shared, "expired", limit_seconds=5)
    assert (entry["grant"], entry["data"]["actor"]) == (invited["grant"], "guest")
    assert not Path(invited["connection_file"]).exists()
    assert all(g.grant != invited["grant"] for g in shared.grants())
    late = run_cli("run", shared.name, "1", "--grant-file", invited["connection_file"], code=1)
    assert "cannot be read" in late.err

    shared.policy("turns")
    bot = clients(shared, "short", expires_seconds=3)
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"
    assert shared.status().driver == "short"
    wait_for_entry(shared, "expired", where=lambda e: e["data"]["actor"] == "short")
    assert shared.status().driver is None
    assert len([e for e in journal(shared, "freed") if e["data"]["from"] == "short"]) == 1
    shared.policy("open")


def test_an_observer_sees_everything_and_types_nothing(shared: Session, clients: Clients) -> None:
    """Role observer: all outputs with their authors; cells, answers, interrupts, completion and history (what
    others typed) are refused with a sentence.
    """
    watcher, bot = clients(shared, "watcher", role="observer"), clients(shared, "bot")
    flush(watcher)
    msg_id = bot.execute("print('for all')")
    reply_of(bot, msg_id)
    seen = iopub_until(watcher, is_idle_of(msg_id))
    assert [m["msg_type"] for m in seen if m["parent_header"]["msg_id"] == msg_id] == [
        "status",
        "execute_input",
        "stream",
        "status",
    ]
    assert text_of(seen, msg_id) == "for all\n"
    for refused in (
        watcher.execute("x = 1"),
        watcher.execute("x = 1", silent=True),
        watcher.complete("pri"),
        watcher.inspect("print"),
        watcher.history(),
    ):
        content = reply_of(watcher, refused)["content"]
        assert (content["status"], content["ename"]) == ("error", "cmdop.read_only")
        iopub_until(watcher, is_idle_of(refused))
    interrupt = request(watcher, "interrupt_request", {}, channel="control")
    answer = watcher.get_control_msg(timeout=10)
    assert answer["parent_header"]["msg_id"] == interrupt
    assert answer["content"]["ename"] == "cmdop.read_only"
    assert reply_of(watcher, watcher.kernel_info())["content"]["status"] == "ok"
    assert reply_of(watcher, watcher.is_complete("1"))["content"]["status"] == "complete"
    assert journal(shared, "admitted", actor="watcher") == []
    assert {e["data"]["code"] for e in journal(shared, "refused", actor="watcher")} == {"read_only"}

    grant_file = str(file_of(watcher))
    assert run_cli("status", shared.name, "--grant-file", grant_file).data["name"] == shared.name
    assert "for all" in run_cli("read", shared.name, "--grant-file", grant_file).out
    for verb in (
        ["run", shared.name, "1"],
        ["take", shared.name],
        ["interrupt", shared.name],
        ["close", shared.name],
    ):
        refused_verb = run_cli(*verb, "--grant-file", grant_file, code=3)
        assert refused_verb.data["refusal"]["code"] in ("read_only", "forbidden"), verb


def test_a_peer_may_not_administer(shared: Session, clients: Clients) -> None:
    """A guest with the role peer may act and take over, but not change the policy, invite, restart, rename or
    close.
    """
    bot = clients(shared, "bot")
    with Session.open(shared.id, identity=Identity(token=bot.cmdop_invite.token)) as link:  # type: ignore[attr-defined]
        assert link.run("1").status == "ok"
        assert link.take().driver == "bot"
        assert link.release().driver is None
        for forbidden in (
            lambda: link.policy("readonly"),
            lambda: link.invite("friend"),
            link.restart,
            lambda: link.rename("mine"),
            link.close,
        ):
            with pytest.raises(Refused) as refused:
                forbidden()
            assert refused.value.refusal.code == "forbidden"


def test_connection_files_are_private(shared: Session, clients: Clients) -> None:
    """A connection file is a credential: readable by its owner only, whatever the umask, and not where
    `jupyter console --existing` without an argument would pick it.
    """
    old = os.umask(0)
    try:
        invited = [shared.invite("a"), shared.invite("b", transport="tcp")]
    finally:
        os.umask(old)
    keys = set()
    for invite in invited:
        path = Path(invite.connection_file or "")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert not path.name.startswith("kernel-")
        keys.add(json.loads(path.read_text())["key"])
        if invite.transport == "ipc":
            for socket in Path(json.loads(path.read_text())["ip"]).parent.iterdir():
                assert not stat.S_IMODE(socket.parent.stat().st_mode) & 0o077
    assert len(keys) == 2
    for invite in invited:
        shared.revoke(invite.grant)


def info_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_tcp_with_curve_serves_an_unmodified_client(shared: Session, clients: Clients) -> None:
    """Over TCP everything is encrypted, and a stock client needs nothing but its connection file."""
    remote, local = clients(shared, "remote", transport="tcp"), clients(shared, "local")
    info = info_of(file_of(remote))
    assert info["transport"] == "tcp"
    assert info["curve_publickey"]
    assert info["curve_secretkey"]
    assert remote.is_alive()
    msg_id = remote.execute("print('over tcp'); name = input('? ')", allow_stdin=True)
    assert remote.get_stdin_msg(timeout=20)["content"]["prompt"] == "? "
    remote.input("curve")
    reply = reply_of(remote, msg_id)
    assert reply["content"]["status"] == "ok"
    assert text_of(iopub_until(remote, is_idle_of(msg_id)), msg_id) == "over tcp\n"
    assert text_of(iopub_until(local, is_idle_of(msg_id)), msg_id) == "over tcp\n"
    presence = {p.actor: p.transport for p in shared.status().presence}
    assert presence["remote"] == "tcp"
    begun = time.monotonic()
    shared.revoke("remote")
    wait_for_status(shared, lambda s: not any(p.actor == "remote" for p in s.presence))
    assert time.monotonic() - begun < WITHIN_SECONDS


@pytest.mark.parametrize("keys", ["none", "own pair", "only the server's public key", "another grant's"])
def test_tcp_without_the_right_keys_gives_nothing(
    shared: Session, clients: Clients, tmp_path: Path, keys: str
) -> None:
    """On an unencrypted kernel anybody who reaches the port can read all output. Here a client without the
    keypair of a grant hears nothing and reaches nothing, even when it knows the HMAC key.
    """
    invited = shared.invite("remote", transport="tcp")
    other = shared.invite("else", transport="tcp")
    info = info_of(Path(invited.connection_file or ""))
    if keys == "none":
        del info["curve_publickey"], info["curve_secretkey"]
    elif keys == "another grant's":
        theirs = info_of(Path(other.connection_file or ""))
        info["curve_publickey"], info["curve_secretkey"] = (
            theirs["curve_publickey"],
            theirs["curve_secretkey"],
        )
    context = zmq.Context()
    server_key = info.get("curve_publickey", "").encode()
    own_pair = zmq.curve_keypair()
    sockets = {}
    for channel, kind in (
        ("shell", zmq.DEALER),
        ("iopub", zmq.SUB),
        ("stdin", zmq.DEALER),
        ("control", zmq.DEALER),
    ):
        socket = context.socket(kind)
        socket.linger = 0
        if kind == zmq.SUB:
            socket.subscribe(b"")
        if keys in ("own pair", "only the server's public key"):
            socket.curve_publickey, socket.curve_secretkey = own_pair
            socket.curve_serverkey = server_key
        elif keys == "another grant's":
            socket.curve_publickey, socket.curve_secretkey = server_key, info["curve_secretkey"].encode()
            socket.curve_serverkey = server_key
        socket.connect(f"tcp://{info['ip']}:{info[f'{channel}_port']}")
        sockets[channel] = socket
    signer = BlockingKernelClient()
    signer.session.key = info["key"].encode()
    local = clients(shared, "local")
    try:
        frames = signer.session.serialize(
            signer.session.msg("execute_request", execute_request("intruder = 1"))
        )
        for channel in ("shell", "control"):
            with contextlib.suppress(zmq.Again):  # it has been turned away already
                sockets[channel].send_multipart(frames, zmq.NOBLOCK)
        msg_id = local.execute("print('not for intruders')")
        reply_of(local, msg_id)
        poller = zmq.Poller()
        for socket in sockets.values():
            poller.register(socket, zmq.POLLIN)
        assert poller.poll(500) == []
        assert shared.run("'intruder' in globals()").text == "False\n"
    finally:
        context.destroy(linger=0)
        shared.revoke(invited.grant)
        shared.revoke(other.grant)


def test_the_kernels_own_key_is_nowhere_to_be_found(shared: Session) -> None:
    """Whoever wants to reach the kernel around the session finds no connection file: it is gone once the kernel
    has it.
    """
    status = shared.status()
    kernel = next(p for p in status.processes if p.pid)
    with open(f"/proc/{kernel.pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    files = [Path(os.fsdecode(w)) for w in words if w.endswith(b".json")]
    assert files
    assert not any(path.exists() for path in files)


def test_an_identity_that_exists_cannot_be_borrowed(shared: Session, clients: Clients) -> None:
    """`--as bot` without bot's grant is refused: a name that was invited belongs to its credential."""
    clients(shared, "bot")
    refused = run_cli("run", shared.name, "1", "--as", "bot", code=3)
    assert refused.data["refusal"]["code"] == "forbidden"
    granted = shared.invite("other-bot")
    done = run_cli("run", shared.name, "1", env={"CMDOP_GRANT_FILE": granted.connection_file or ""}).data
    entry = journal(shared, "admitted", operation=done["operation"])[0]
    assert (entry["actor"], entry["grant"], entry["on_behalf_of"]) == (
        "other-bot",
        granted.grant,
        shared.actor,
    )
