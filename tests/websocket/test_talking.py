"""A kernel through a handed-over websocket: all that a notebook does, in both formats, the same order for everybody."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import websockets.sync.client
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1
from websockets.typing import Subprotocol

from jupyter_cmdop.client.session import Session
from tests.support import Gate, wait_for_running, wait_for_status
from tests.websocket.front import Front
from tests.websocket.viewer import (
    V1,
    Viewer,
    is_idle_of,
    is_reply_to,
    is_type,
    recorded,
    reply_in,
    says,
    text_in,
)

View = Callable[..., Viewer]


@pytest.fixture(params=["v1", "legacy"])
def legacy(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "legacy")


def test_a_cell_runs_as_with_a_plain_kernel(view: View, legacy: bool) -> None:
    """The messages of one cell, in the order and with the content that a stock client expects, with its author."""
    viewer = view(legacy=legacy)
    messages = viewer.run("print('hello')\n6 * 7")
    own = [m for m in messages if m["channel"] == "iopub"]
    assert [m["msg_type"] for m in own] == ["status", "execute_input", "stream", "execute_result", "status"]
    assert own[3]["content"]["data"]["text/plain"] == "42"
    assert reply_in(messages)["content"]["status"] == "ok"
    assert {m["metadata"]["cmdop"]["actor"]["id"] for m in messages} == {"carol"}
    assert {m["parent_header"]["session"] for m in messages} == {viewer.session_id}
    kernel_sessions = {m["header"]["session"] for m in messages}
    assert len(kernel_sessions) == 1
    assert viewer.session_id not in kernel_sessions


def test_an_error_is_shown_and_replied(view: View, legacy: bool) -> None:
    messages = view(legacy=legacy).run("1 / 0")
    assert next(m for m in messages if m["msg_type"] == "error")["content"]["ename"] == "ZeroDivisionError"
    assert reply_in(messages)["content"]["ename"] == "ZeroDivisionError"


def test_reading_requests_are_answered(view: View, legacy: bool) -> None:
    viewer = view(legacy=legacy)
    assert viewer.ask("kernel_info_request", {})["content"]["implementation"] == "ipython"
    viewer.run("get_ipython().Completer.use_jedi = False  # in a new home it takes 5 s to begin")
    viewer.run("completable_name = 1")
    completed = viewer.ask("complete_request", {"code": "completable_n", "cursor_pos": 13})
    assert completed["content"]["matches"] == ["completable_name"]
    inspected = viewer.ask("inspect_request", {"code": "len", "cursor_pos": 3, "detail_level": 0})
    assert inspected["content"]["found"]
    assert viewer.ask("is_complete_request", {"code": "for x in y:"})["content"]["status"] == "incomplete"
    assert viewer.ask("comm_info_request", {})["content"]["status"] == "ok"
    history = viewer.ask(
        "history_request", {"hist_access_type": "tail", "n": 1, "output": False, "raw": True}
    )
    assert history["content"]["history"][-1][2] == "completable_name = 1"


def test_an_idle_of_something_else_is_followed_by_busy_while_a_cell_runs(view: View, gate: Gate) -> None:
    """JupyterLab shows one state of a kernel, and asks about widgets and the debugger whenever a page is opened: the
    idle that ends such a question must not be its last word on a kernel that works.
    """
    worker, looker = view("client-worker"), view("client-looker")
    cell = worker.execute(gate.code)
    for viewer in (worker, looker):
        viewer.until(says("waiting"))

    def is_busy_again(message: dict[str, Any]) -> bool:
        return (
            message["msg_type"] == "status"
            and message["content"]["execution_state"] == "busy"
            and message["parent_header"].get("msg_id") == cell
        )

    for kind, content, channel in (
        ("kernel_info_request", {}, "shell"),
        ("history_request", {"hist_access_type": "tail", "n": 1, "output": False, "raw": True}, "shell"),
        ("debug_request", {"type": "request", "seq": 1, "command": "debugInfo"}, "control"),
    ):
        asked = looker.send(kind, content, channel=channel)
        looker.until(is_reply_to(asked), is_idle_of(asked), is_busy_again)
    worker.until(is_idle_of(asked), is_busy_again)
    gate.open()
    for viewer in (worker, looker):
        viewer.until(is_idle_of(cell))


def test_a_question_of_the_cell_is_answered(view: View, legacy: bool) -> None:
    viewer = view(legacy=legacy)
    msg_id = viewer.execute("print('it was', input('what? '))")
    question = viewer.until(is_type("input_request"))[-1]
    assert (question["channel"], question["content"]["prompt"]) == ("stdin", "what? ")
    assert question["parent_header"]["msg_id"] == msg_id
    viewer.send("input_reply", {"status": "ok", "value": "this"}, channel="stdin", parent=question["header"])
    assert "it was this" in text_in(viewer.until(is_idle_of(msg_id), is_reply_to(msg_id)))


def test_interrupt_on_control(view: View, shared: Session, gate: Gate, legacy: bool) -> None:
    viewer = view(legacy=legacy)
    msg_id = viewer.execute(gate.code)
    viewer.until(says("waiting"))
    assert viewer.ask("interrupt_request", {}, channel="control")["content"]["status"] == "ok"
    messages = viewer.until(is_reply_to(msg_id), is_idle_of(msg_id))
    assert reply_in(messages)["content"]["ename"] == "KeyboardInterrupt"


def test_comm_with_buffers_both_ways(view: View, legacy: bool) -> None:
    """The kernel gets the bytes as they were sent, and sends others back; nothing of them passes as text."""
    viewer = view(legacy=legacy)
    viewer.run(
        "from comm import get_comm_manager\n"
        "def opened(comm, message):\n"
        "    def on_message(m):\n"
        "        comm.send({'sizes': [len(b) for b in m['buffers']]}, buffers=[bytes(b)[::-1] for b in m['buffers']])\n"
        "    comm.on_msg(on_message)\n"
        "get_comm_manager().register_target('echo', opened)"
    )
    viewer.send("comm_open", {"comm_id": "c1", "target_name": "echo", "data": {}})
    blob = bytes(range(256)) * 4096
    viewer.send("comm_msg", {"comm_id": "c1", "data": {}}, buffers=[blob, b"", b"\0\xff"])
    answer = viewer.until(is_type("comm_msg"))[-1]
    assert answer["content"]["data"] == {"sizes": [len(blob), 0, 2]}
    assert [bytes(b) for b in answer["buffers"]] == [blob[::-1], b"", b"\xff\0"]


def test_a_large_cell_and_a_large_output(view: View) -> None:
    """20 MB of code go in, 64 MB of output come out, unchanged, and a second viewer sees the same."""
    viewer, other = view("client-1"), view("client-2", actor="dan")
    filler = "0123456789abcdef" * (20 * 1024 * 1024 // 16)
    messages = viewer.run(f"text = '''{filler}'''\nlen(text)", store_history=False)
    result = next(m for m in messages if m["msg_type"] == "execute_result")
    assert result["content"]["data"]["text/plain"] == str(len(filler))
    other.until(is_type("execute_result"), limit_seconds=60)
    size = 64 * 1024 * 1024
    sent = viewer.execute(
        "from IPython.display import publish_display_data\n"
        f"publish_display_data({{'text/plain': ('0123456789abcdef' * ({size} // 16))}})"
    )
    expected = hashlib.sha256(b"0123456789abcdef" * (size // 16)).hexdigest()
    for seen in (viewer, other):
        shown = seen.until(is_type("display_data"), limit_seconds=60)[-1]
        assert hashlib.sha256(shown["content"]["data"]["text/plain"].encode()).hexdigest() == expected
    viewer.until(is_idle_of(sent))


def test_the_websockets_library_is_a_client(front: Front, view: View) -> None:
    """Not only our own client: the library's threaded one, with its defaults for everything but the size."""
    host, port = front.address
    maker = view(connect=False)
    uri = f"ws://{host}:{port}/api/kernels/x/channels?session_id={maker.session_id}"
    with websockets.sync.client.connect(
        uri, subprotocols=[Subprotocol("other"), Subprotocol(V1)], max_size=None
    ) as connection:
        assert connection.subprotocol == V1
        _, data = maker.make_execute("print('stock')")
        connection.send(data)
        while True:
            channel, parts = deserialize_msg_from_ws_v1(connection.recv(timeout=30))
            if channel == "shell":
                break
        assert b"execute_reply" in parts[0]
        assert connection.ping().wait(30)


def test_every_viewer_sees_the_same_order(view: View, shared: Session) -> None:
    """Three actors run cells at the same time; each sees the inputs and outputs of all, in one order."""
    viewers = [view(f"client-{n}", actor=f"actor{n}") for n in range(3)] + [
        view("client-x", actor="lou", legacy=True)
    ]
    for round_ in range(5):
        for n, viewer in enumerate(viewers):
            viewer.execute(f"print('{n}.{round_}')")
    wait_for_status(shared, lambda s: not s.running and not s.queue)
    for viewer in viewers:
        viewer.catch_up()
    orders = [
        [
            (m["metadata"]["cmdop"]["seq"], m["msg_id"])
            for m in recorded(v.received)
            if m["channel"] == "iopub"
        ]
        for v in viewers
    ]
    text = text_in(recorded(viewers[0].received))
    assert sorted(text.split()) == sorted(f"{n}.{round_}" for n in range(4) for round_ in range(5))
    assert orders[0] == sorted(orders[0])
    assert all(order == orders[0] for order in orders)
    for viewer in viewers:  # a reply is for its asker alone
        replies = [m for m in viewer.received if m["msg_type"] == "execute_reply"]
        assert {m["parent_header"]["session"] for m in replies} == {viewer.session_id}
        assert len(replies) == 5


def test_a_newcomer_sees_the_running_cell_from_its_beginning(view: View, shared: Session, gate: Gate) -> None:
    """What ran before it is not shown, what runs is shown from its first message on, in order, and nothing twice."""
    author = view("client-1")
    author.run("print('over')")
    author.execute("print('queued together')")
    msg_id = author.execute(f"for n in range(200): print('line', n, flush=True)\n{gate.code}\nprint('end')")
    author.until(says("waiting"))
    wait_for_running(shared)
    newcomers = [view("client-2", actor="dan"), view("client-3", actor="eve", legacy=True)]
    for viewer in newcomers:
        viewer.until(says("waiting"))
    gate.open()
    author.until(is_idle_of(msg_id), is_reply_to(msg_id))
    own = [m for m in author.received if m["parent_header"].get("msg_id") == msg_id]
    expected = [m["msg_id"] for m in own if m["channel"] == "iopub"]
    for viewer in newcomers:
        viewer.until(is_idle_of(msg_id))
        seen = recorded(viewer.received)
        assert [m["msg_id"] for m in seen] == expected, "what runs, from its beginning, and nothing else"
        assert seen[0]["content"] == {"execution_state": "busy"}
