"""The kernel's websocket: authenticated by the server, spoken by the keeper."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
import websocket

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import (
    UPGRADE,
    V1,
    KernelSocket,
    Server,
    Servers,
    cookie_of,
    keeper_pid,
    raw_status,
    text_of,
)
from tests.support import Closing, Gate, wait_for_status


def refused(server: Server, kernel_id: str, **options: object) -> int:
    """The status with which a websocket is refused."""
    with pytest.raises(websocket.WebSocketBadStatusException) as error:
        server.connect(kernel_id, **options)
    return int(error.value.status_code)


def test_cell_runs_and_its_author_is_the_owner(server: Server, closing: Closing) -> None:
    kernel_id = server.start_kernel()
    ws: KernelSocket = closing(server.connect(kernel_id))
    assert ws.ws.getsubprotocol() == V1
    assert ws.run("print('hello')") == "hello\n"
    with Session.open(kernel_id) as session:
        [admitted] = session.log(types=["admitted"])
        assert admitted["actor"] == session.actor
        [present] = session.status().presence
        assert (present.transport, present.actor) == ("websocket", session.actor)
    server.wait_for_kernel(kernel_id, connections=1)


def test_two_tabs_are_two_attachments_of_one_actor(server: Server, closing: Closing) -> None:
    kernel_id = server.start_kernel()
    first, second = closing(server.connect(kernel_id)), closing(server.connect(kernel_id))
    with Session.open(kernel_id) as session:
        present = wait_for_status(session, lambda s: len(s.presence) == 2).presence
    assert len({p.attachment for p in present}) == 2
    assert len({p.actor for p in present}) == 1
    msg_id = first.execute("print('seen by both')")
    assert text_of(first.until_idle(msg_id)) == text_of(second.until_idle(msg_id)) == "seen by both\n"


def test_connections_go_back_to_none(server: Server) -> None:
    kernel_id = server.start_kernel()
    ws = server.connect(kernel_id)
    server.wait_for_kernel(kernel_id, connections=1)
    ws.close()
    server.wait_for_kernel(kernel_id, connections=0)


def test_handover_leaves_no_descriptor_behind(server: Server) -> None:
    kernel_id = server.start_kernel()
    server.connect(kernel_id).close()
    process = psutil.Process(server.process.pid)
    before = process.num_fds()
    for _ in range(20):
        server.connect(kernel_id).close()
    server.wait_for_kernel(kernel_id, connections=0)
    assert process.num_fds() <= before + 1


def test_upgrade_is_refused_as_the_stock_handler_refuses_it(server: Server) -> None:
    kernel_id = server.start_kernel()
    assert refused(server, kernel_id, token=None) == 403
    assert refused(server, kernel_id, token="wrong") == 403
    assert refused(server, "00000000-0000-4000-8000-000000000000") == 404
    channels = f"/api/kernels/{kernel_id}/channels"
    assert server.get(channels).status == 400  # no Upgrade
    known = {"Host": f"127.0.0.1:{server.port}", "Authorization": f"token {server.token}"}
    old = {**known, **UPGRADE, "Sec-WebSocket-Version": "12"}
    assert raw_status(server, "GET", channels, old) == 426
    foreign_host = {**known, **UPGRADE, "Host": "evil.example"}
    assert raw_status(server, "GET", channels, foreign_host) == 403


def test_foreign_origin_is_refused_for_a_cookie(server: Server, closing: Closing) -> None:
    kernel_id = server.start_kernel()
    cookie = {"Cookie": cookie_of(server.get("/api/status"))}
    foreign = {**cookie, "Origin": "http://evil.example"}
    assert refused(server, kernel_id, token=None, headers=foreign) == 403
    own = {**cookie, "Origin": server.url}
    assert closing(server.connect(kernel_id, token=None, headers=own)).run("print(1)") == "1\n"


def test_keeper_that_does_not_answer_is_503(server: Server) -> None:
    kernel_id = server.start_kernel()
    keeper = keeper_pid(kernel_id)
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert refused(server, kernel_id) == 503
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert server.get("/api").status == 200


def test_first_frame_in_the_same_packet_as_the_request_is_not_lost(server: Server) -> None:
    """tornado reads ahead; the bytes go with the descriptor."""
    kernel_id = server.start_kernel()
    ping = bytes([0x89, 0x80 | 4]) + b"\0\0\0\0" + b"here"
    request = (
        f"GET /api/kernels/{kernel_id}/channels?session_id=early HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: token {server.token}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request + ping)
        seen = b""
        while b"here" not in seen:
            data = connection.recv(65536)
            assert data, seen
            seen += data
    assert seen.startswith(b"HTTP/1.1 101")
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in seen


def test_client_that_leaves_at_once_does_no_harm(server: Server) -> None:
    kernel_id = server.start_kernel()
    request = (
        f"GET /api/kernels/{kernel_id}/channels?session_id=gone HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: token {server.token}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(request)
    server.wait_for_kernel(kernel_id, connections=0)
    assert "Traceback" not in server.text()


def test_output_survives_the_death_of_the_server_with_the_socket_open(servers: Servers, gate: Gate) -> None:
    """100 lines, the server killed in the middle: one socket, every line, in order, and a cell after that."""
    server = servers()
    kernel_id = server.start_kernel()
    ws = server.connect(kernel_id)
    msg_id = ws.execute(
        f"for i in range(50): print(i, flush=True)\n{gate.code}\nfor i in range(50, 100): print(i, flush=True)"
    )
    ws.until(lambda m: m["header"]["msg_type"] == "stream" and "waiting" in m["content"]["text"])
    server.kill()
    gate.open()
    ws.until_idle(msg_id)
    lines = text_of(ws.seen).split()
    lines.remove("waiting")
    assert lines == [str(i) for i in range(100)]
    assert ws.run("print(6 * 7)") == "42\n"
    again = servers.add(server.again())
    assert list(again.kernels()) == [kernel_id]
    again.wait_for_kernel(kernel_id, connections=1)
    assert ws.run("print(i)") == "99\n"
    ws.close()


def test_tls_is_spliced(servers: Servers, tmp_path: Path, closing: Closing) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    server = servers(tls=(certificate, key))
    kernel_id = server.start_kernel()
    ws: KernelSocket = closing(server.connect(kernel_id))
    assert ws.run("print('x' * 3_000_000)") == "x" * 3_000_000 + "\n"
    assert refused(server, kernel_id, token=None) == 403
    ws.close()
    server.wait_for_kernel(kernel_id, connections=0)
