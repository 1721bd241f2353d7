"""A grant that is taken back: all that was opened with it closes within a second, and nothing opens any more."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import websocket
import zmq
from zmq.utils.monitor import recv_monitor_message

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.blocking import Connection
from jupyter_cmdop.client.errors import ClientError, KeeperGone, Refused
from jupyter_cmdop.client.identity import Identity, read_grant_file
from jupyter_cmdop.client.remote import Credential
from jupyter_cmdop.client.remote import Server as RemoteServer
from jupyter_cmdop.client.remote_session import RemoteSession
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.server.api_feed import CLOSE_CREDENTIAL
from tests.http.rest import Api
from tests.server.jupyter import Server
from tests.support import (
    LIMIT_SECONDS,
    Clients,
    Closing,
    Gate,
    connect_client,
    journal,
    run_cli,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

CHANNELS = ("shell", "iopub", "control", "stdin")


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


def named_websocket(api: Api, made: str, token: str) -> websocket.WebSocket:
    """What a console by URL opens."""
    ws = websocket.WebSocket()
    ws.settimeout(LIMIT_SECONDS)
    ws.connect(
        f"{api.server.url.replace('http', 'ws', 1)}/cmdop/api/sessions/{made}/channels?session_id=console",
        header=[f"Authorization: token {token}"],
        suppress_origin=True,
        http_no_proxy=["127.0.0.1"],
    )
    return ws


def until_closed(ws: websocket.WebSocket) -> None:
    with contextlib.suppress(websocket.WebSocketConnectionClosedException, ConnectionError):
        while ws.recv_data()[0] != websocket.ABNF.OPCODE_CLOSE:
            pass
    ws.shutdown()


def until_link_ends(connection: Connection) -> None:
    """Follow the journal on a link, which ends only with the link."""
    call = calls.log(follow=True)
    with contextlib.suppress(KeeperGone, Refused), connection.start(call.verb, call.args) as stream:
        for _ in stream:
            pass


def ends(monitors: dict[str, zmq.Socket[bytes]]) -> None:
    """Until every channel of a kernel client has lost its other end."""
    for channel, monitor in monitors.items():
        assert monitor.poll(LIMIT_SECONDS * 1000), f"{channel} is still connected"
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED


def opens(connection_info: dict[str, Any]) -> list[str]:
    """The channels of a connection file at which somebody still answers."""
    found = []
    for channel in (*CHANNELS, "hb"):
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(f"{connection_info['ip']}-{connection_info[f'{channel}_port']}")
            except OSError:
                continue
            found.append(channel)
    return found


@contextlib.contextmanager
def monitored(client: Any) -> Iterator[dict[str, zmq.Socket[bytes]]]:
    sockets = {channel: getattr(client, f"{channel}_channel").socket for channel in CHANNELS}
    try:
        yield {name: one.get_monitor_socket(zmq.EVENT_DISCONNECTED) for name, one in sockets.items()}
    finally:
        for one in sockets.values():
            one.disable_monitor()


def test_every_way_in_closes_at_once(api: Api, gate: Gate, clients: Clients, closing: Closing) -> None:
    """Kernel protocol, waiting requests, feed, both kernel websockets, and the link, near and over HTTP."""
    made = api.make()
    owner = closing_session(closing, Session.open(made))
    invite = owner.invite("bot", kind="agent")
    assert invite.token is not None
    assert invite.connection_file is not None
    file = Path(invite.connection_file)
    connection_info = json.loads(file.read_text())
    bot = Api(api.server, token=invite.token)
    near = Identity(token=invite.token)
    far = RemoteServer(f"{api.server.url}/", Credential(invite.token, session=owner.id))

    # All ways in at once.
    zmq_client = clients.add(connect_client(file))
    feed = bot.feed(f"sessions/{made}/feed")
    feed.until(kind="hello")
    kernel_ws = api.server.connect(owner.id, token=invite.token)
    named_ws = named_websocket(api, made, invite.token)
    link = closing_session(closing, Session.open(made, identity=near, persistent=True))
    remote = closing_session(closing, RemoteSession.reach(far, made, persistent=True))
    assert len(opens(connection_info)) == 5
    api.post(f"sessions/{made}/send", {"text": gate.code})
    running = wait_for_running(owner)
    with monitored(zmq_client) as monitors, ThreadPoolExecutor(16) as threads:

        def timed(wait: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], tuple[float, Any]]:
            def run() -> tuple[float, Any]:
                found = wait(*args, **options)
                return time.monotonic(), found

            return threads.submit(run).result

        waiting = {
            "wait": timed(bot.get, f"sessions/{made}/wait?operation={running}&wait_seconds=60"),
            "run": timed(bot.post, f"sessions/{made}/run", {"code": "'never'", "wait_seconds": 60}),
            "feed": timed(feed.until_closed),
            "kernel websocket": timed(kernel_ws.wait_closed),
            "named websocket": timed(until_closed, named_ws),
            "link": timed(until_link_ends, link.connection),
            "link over HTTP": timed(until_link_ends, remote.connection),
            "kernel protocol": timed(ends, monitors),
        }
        try:
            wait_for_entry(owner, "admitted", actor="bot")
            sent = zmq_client.execute("'nor this'")
            status = wait_for_status(owner, lambda status: len(status.queue) == 2)
            there = sorted(p.transport for p in status.presence if p.actor == "bot")
        finally:  # else what waits would wait on
            owner.revoke("bot")
        revoked_at = time.monotonic()
        took = {way: result()[0] - revoked_at for way, result in waiting.items()}
        answers = {way: waiting[way]()[1] for way in ("wait", "run")}
    # The kernel client; the feed and both links; each websocket.
    assert there == ["ipc", "link", "link", "link", "websocket", "websocket"]
    late = {way: seconds for way, seconds in took.items() if seconds >= 1.0}
    assert not late, took
    print({way: round(seconds, 3) for way, seconds in took.items()})
    assert feed.close_code == CLOSE_CREDENTIAL
    for answer in answers.values():
        # What it had waiting was withdrawn, which may be the answer that is given just before the end.
        assert answer.status == 403 or answer.data["status"] == "withdrawn", answer
    assert all(p.actor != "bot" for p in owner.status().presence)

    # And nothing any more, by none of them.
    for path in ("", "/floor", "/read", "/journal", "/grants", "/wait?wait_seconds=0"):
        assert bot.get(f"sessions/{made}{path}").status == 403, path
    for path, body in (
        ("run", {"code": "1"}),
        ("send", {"text": "1"}),
        ("note", {"text": "1"}),
        ("floor", {"action": "take"}),
        ("interrupt", {}),
        ("answer", {"text": "1"}),
    ):
        assert bot.post(f"sessions/{made}/{path}", body).status == 403, path
    for opening in (
        lambda: bot.feed(f"sessions/{made}/feed"),
        lambda: api.server.connect(owner.id, token=invite.token),
        lambda: named_websocket(api, made, str(invite.token)),
    ):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            opening()
        assert refused.value.status_code == 403
    with pytest.raises(Refused):
        Session.open(made, identity=near)
    with pytest.raises(ClientError) as not_reached:
        RemoteSession.reach(far, made)
    assert isinstance(not_reached.value, Refused), not_reached.value
    assert not file.exists()
    assert opens(connection_info) == []

    # What it sends on a channel that was open reaches nothing: the owner's next cell ends, and it has no answer.
    for _ in range(3):
        zmq_client.execute("'too late'")
    gate.open()
    assert owner.run("'of the owner'", wait_seconds=LIMIT_SECONDS).status == "ok"
    replies = []
    while zmq_client.shell_channel.msg_ready():
        replies.append(zmq_client.get_shell_msg(timeout=0))
    assert [r["content"]["status"] for r in replies if r["parent_header"]["msg_id"] != sent] == ["ok"] * len(
        [r for r in replies if r["header"]["msg_type"] == "kernel_info_reply"]
    )
    revoked = journal(owner, "revoked")[-1]["seq"]
    later = [e for e in journal(owner, after=revoked) if e.get("actor") == "bot"]
    assert {entry["type"] for entry in later} <= {"ended", "detached"}, later
    assert [e["data"]["outcome"] for e in later if e["type"] == "ended"] == ["withdrawn", "withdrawn"]
    codes = [entry["data"].get("code") for entry in journal(owner, "admitted")]
    assert "'too late'" not in codes


def closing_session(closing: Closing, session: Any) -> Any:
    """A session whose link is closed at the end; `close` would end it for everybody."""
    closing(_Link(session))
    return session


class _Link:
    def __init__(self, session: Session) -> None:
        self.close = session.disconnect


def test_a_grant_file_that_was_kept_is_refused_everywhere(server: Server, api: Api, tmp_path: Path) -> None:
    """A copy of the credential is worth nothing, on the machine and by URL."""
    made = api.make()
    path = tmp_path / "grant"
    run_cli("invite", made, "--as", "bot", "--grant-file-out", str(path))
    assert read_grant_file(path).token
    for more in ((), ("--url", server.url)):
        assert run_cli("run", made, "1", "--grant-file", str(path), *more).data["status"] == "ok"
    run_cli("revoke", made, "bot")
    for more in ((), ("--url", server.url)):
        for verb in (("run", made, "1"), ("status", made), ("read", made), ("take", made), ("log", made)):
            assert run_cli(*verb, "--grant-file", str(path), *more, code=None).code == 3, (verb, more)
