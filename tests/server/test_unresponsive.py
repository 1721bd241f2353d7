"""A keeper or a kernel that does not answer: the server's lists and its event bus say so, and say when it is back."""

from __future__ import annotations

import time

import psutil

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from tests.server.jupyter import Server, keeper_pid, kernel_pid
from tests.server.test_metrics import Bus, metric
from tests.support import Closing, wait_for_running

TOLD_SECONDS = 5.0
NOTICED_SECONDS = 10.0


def test_keeper_that_stands_still_is_told_within_five_seconds(server: Server, closing: Closing) -> None:
    """Nobody needs to ask it anything for that."""
    bus = closing(Bus(server))
    kernel_id = server.start_kernel()
    server.wait_for_kernel(kernel_id, execution_state="idle")
    ws = closing(server.connect(kernel_id))
    ws.run("1")
    keeper = psutil.Process(keeper_pid(kernel_id))
    keeper.suspend()
    try:
        since = time.monotonic()
        event = bus.until(action="unresponsive")
        assert time.monotonic() - since <= TOLD_SECONDS
        assert (event["kernel_id"], bool(event["message"])) == (kernel_id, True)
        model = server.kernels()[kernel_id]
        assert model["execution_state"] == "unresponsive"
        assert "keeper" in model["reason"]
    finally:
        keeper.resume()
    assert bus.until(action="responsive")["kernel_id"] == kernel_id
    model = server.wait_for_kernel(kernel_id, execution_state="idle")
    assert "reason" not in model
    ws.until(lambda m: m["header"]["msg_type"] == "status" and m["content"]["execution_state"] == "idle")
    assert ws.run("print(40 + 2)") == "42\n"


def test_kernel_that_does_not_answer_is_told(server: Server, closing: Closing) -> None:
    bus = closing(Bus(server))
    kernel_id = server.start_kernel()
    kernel = psutil.Process(kernel_pid(kernel_id))
    with Session.open(kernel_id) as session, session.start(calls.run("import time; time.sleep(600)")):
        wait_for_running(session)
        kernel.suspend()
        try:
            since = time.monotonic()
            assert bus.until(action="unresponsive")["kernel_id"] == kernel_id
            assert time.monotonic() - since <= NOTICED_SECONDS
            model = server.wait_for_kernel(kernel_id, execution_state="unresponsive")
            assert "restart" in model["reason"]
            assert metric(server, 'cmdop_sessions{state="unresponsive"}') == 1
        finally:
            kernel.resume()
        assert bus.until(action="responsive")["kernel_id"] == kernel_id
        server.wait_for_kernel(kernel_id, execution_state="busy")
        assert server.post(f"/api/kernels/{kernel_id}/restart").status == 200
    server.wait_for_kernel(kernel_id, execution_state="idle")
