"""The stock routes, asked as any REST client asks them."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import websocket

from jupyter_cmdop.client.session import Session
from jupyter_cmdop.journal.verify import verify
from tests.server.jupyter import Answer, Server, keeper_pid, kernel_pid, wait_gone
from tests.support import LIMIT_SECONDS, Gate, Home, run_cli, wait_for_entry, wait_for_running


def test_started_kernel_is_a_session_that_everybody_sees_at_once(server: Server) -> None:
    kernel_id = server.start_kernel()
    model = server.get(f"/api/kernels/{kernel_id}").data
    assert model["name"] == "python3"
    assert model["execution_state"] == "idle"
    assert model["connections"] == 0
    [item] = run_cli("ls").data
    assert item["id"] == item["kernel_id"] == kernel_id
    assert item["workspace"] == str(server.root)
    assert item["name"].startswith("python3-")
    assert model["cmdop"]["session"] == item["name"]
    assert run_cli("run", item["name"], "print(6 * 7)").data["text"] == "42\n"


def test_list_has_every_kernel_with_its_stock_keys(server: Server) -> None:
    ids = {server.start_kernel(), server.start_kernel()}
    kernels = server.kernels()
    assert set(kernels) == ids
    for kernel in kernels.values():
        assert {"id", "name", "last_activity", "execution_state", "connections"} <= set(kernel)
    assert server.get("/api/status").data["kernels"] == 2


def test_unknown_kernel_is_404(server: Server) -> None:
    unknown = "/api/kernels/00000000-0000-4000-8000-000000000000"
    assert server.get(unknown).status == 404
    assert server.delete(unknown).status == 404
    assert server.post(f"{unknown}/interrupt").status == 404
    assert server.post(f"{unknown}/restart").status == 404


def test_unknown_specification_is_not_started(server: Server) -> None:
    answer = server.post(
        "/api/sessions",
        {"path": "a.ipynb", "type": "notebook", "name": "a.ipynb", "kernel": {"name": "no-such"}},
    )
    assert answer.status == 501
    assert server.kernels() == {}


def test_kernel_id_that_a_client_chooses_is_kept_and_must_be_a_uuid(server: Server) -> None:
    chosen = "5e2f0c52-6cf5-4d4b-9d3f-0a8f4d1c2b3a"
    assert server.start_kernel(kernel_id=chosen) == chosen
    assert server.start_kernel(kernel_id=chosen) == chosen  # an existing one is opened
    assert len(server.kernels()) == 1
    assert server.post("/api/kernels", {"name": "python3", "kernel_id": "../../x"}).status == 400


def test_kernel_id_of_a_past_session_is_not_used_again(server: Server, home: Home) -> None:
    """A new keeper stopped at the old journal; what was cleared up after it was the journal itself."""
    kernel_id = server.start_kernel()
    with Session.open(kernel_id) as session:
        session.run("6 * 7")
    keeper = keeper_pid(kernel_id)
    assert server.delete(f"/api/kernels/{kernel_id}").status == 204
    wait_gone(keeper)
    before = verify(home.session_dir(kernel_id))
    assert before.ok
    answer = server.post("/api/kernels", {"name": "python3", "kernel_id": kernel_id})
    assert answer.status == 409
    assert kernel_id in answer.data["message"]
    assert verify(home.session_dir(kernel_id)) == before
    assert server.kernels() == {}


def test_path_is_resolved_from_where_the_kernel_was_started(server: Server) -> None:
    below = server.root / "below"
    below.mkdir(exist_ok=True)
    (below / "data.csv").write_text("1\n")
    kernel_id = server.start_kernel(path="below")

    def resolved(path: str) -> list[Any]:
        query = urllib.parse.urlencode({"kernel": kernel_id, "path": path})
        return [r for r in server.get(f"/api/resolvePath?{query}").data["resolved"] if r["scope"] == "kernel"]

    found = (below / "data.csv").resolve().as_posix()
    assert resolved("data.csv") == resolved(found) == [{"scope": "kernel", "path": found}]
    for nothing in ("other.csv", "~no-such-user/data.csv", "a\0b"):
        assert resolved(nothing) == []


def test_interrupt_reaches_what_runs(server: Server, gate: Gate) -> None:
    kernel_id = server.start_kernel()
    with Session.open(kernel_id) as session:
        with _run(session, gate.code):
            wait_for_running(session)
            server.wait_for_kernel(kernel_id, execution_state="busy")
            assert server.post(f"/api/kernels/{kernel_id}/interrupt").status == 204
            ended = wait_for_entry(session, "ended")
    assert ended["data"]["outcome"] == "interrupted"
    server.wait_for_kernel(kernel_id, execution_state="idle")


def test_restart_gives_a_new_kernel_under_the_same_id(server: Server) -> None:
    kernel_id = server.start_kernel()
    before = kernel_pid(kernel_id)
    answer = server.post(f"/api/kernels/{kernel_id}/restart")
    assert answer.status == 200
    assert answer.data["id"] == kernel_id
    assert answer.data["execution_state"] in ("idle", "starting")
    assert kernel_pid(kernel_id) != before
    with Session.open(kernel_id) as session:
        restarted = list(session.log(types=["restarted"]))
        assert restarted
        assert restarted[-1]["actor"] == session.actor  # the owner, who holds the server's token


def test_concurrent_restarts_are_one_restart_and_all_succeed(server: Server) -> None:
    kernel_id = server.start_kernel()
    answers = _all_at_once(lambda: server.post(f"/api/kernels/{kernel_id}/restart"), 4)
    assert [answer.status for answer in answers] == [200] * 4
    with Session.open(kernel_id) as session:
        assert session.status().incarnation == 2
        assert session.run("1 + 1").text.strip() == "2"


def test_shutdown_ends_the_session_and_its_processes(server: Server) -> None:
    kernel_id = server.start_kernel()
    kernel, keeper = kernel_pid(kernel_id), keeper_pid(kernel_id)
    assert server.delete(f"/api/kernels/{kernel_id}").status == 204
    assert server.get(f"/api/kernels/{kernel_id}").status == 404
    wait_gone(kernel, keeper)
    assert run_cli("ls", "--all").data[0]["state"] == "closed"


def test_many_kernels_started_at_once_do_not_block_the_server(server: Server) -> None:
    """Each start takes the better part of a second; the loop answers others meanwhile."""
    slowest = 0.0

    def ask() -> Answer:
        return server.post("/api/kernels", {"name": "python3"})

    done = threading.Event()

    def watch() -> None:
        nonlocal slowest
        while not done.is_set():
            begun = time.monotonic()
            assert server.get("/api").status == 200
            slowest = max(slowest, time.monotonic() - begun)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answers = _all_at_once(ask, 4)
    finally:
        done.set()
        watcher.join()
    assert [answer.status for answer in answers] == [201] * 4
    assert len({answer.data["id"] for answer in answers}) == 4
    assert slowest < 1.0


def test_closing_by_the_command_line_is_seen_by_the_server(server: Server) -> None:
    kernel_id = server.start_kernel()
    name = server.kernels()[kernel_id]["cmdop"]["session"]
    run_cli("close", name, "--force")
    server.wait_for_end(kernel_id)
    assert f"Session {name}" in server.text()


def test_killed_keeper_is_noticed_and_its_kernel_goes_from_the_list(server: Server) -> None:
    kernel_id = server.start_kernel()
    kernel = kernel_pid(kernel_id)
    os.kill(keeper_pid(kernel_id), signal.SIGKILL)
    server.wait_for_end(kernel_id)
    gone = server.get(f"/api/kernels/{kernel_id}")
    assert gone.status == 404
    assert "is lost" in gone.data["message"]
    wait_gone(kernel)
    assert "is lost" in server.text()


def test_event_bus_tells_of_sessions(server: Server) -> None:
    events = websocket.create_connection(
        f"{server.url.replace('http', 'ws', 1)}/api/events/subscribe",
        header=[f"Authorization: token {server.token}"],
        timeout=LIMIT_SECONDS,
        http_no_proxy=["127.0.0.1"],
    )
    try:
        kernel_id = server.start_kernel()
        os.kill(keeper_pid(kernel_id), signal.SIGKILL)
        seen = []
        while "lost" not in seen:
            event = json.loads(events.recv())
            if event.get("kernel_id") == kernel_id and "/jupyter_cmdop/" in event["schema_id"]:
                assert event["schema_id"].endswith("/jupyter_cmdop/session/v1")
                seen.append(event["action"])
        assert seen == ["started", "lost"]
    finally:
        events.close()


def test_event_bus_tells_of_actions_as_of_any_kernel(server: Server) -> None:
    """Whoever watches a server by Jupyter's own `kernel_actions` sees sessions as well, and what failed."""
    events = websocket.create_connection(
        f"{server.url.replace('http', 'ws', 1)}/api/events/subscribe",
        header=[f"Authorization: token {server.token}"],
        timeout=LIMIT_SECONDS,
        http_no_proxy=["127.0.0.1"],
    )
    try:
        kernel_id = server.start_kernel()
        assert server.post(f"/api/kernels/{kernel_id}/interrupt").status == 204
        assert server.post(f"/api/kernels/{kernel_id}/restart").status == 200
        keeper = keeper_pid(kernel_id)
        assert server.delete(f"/api/kernels/{kernel_id}").status == 204
        wait_gone(keeper)
        assert server.post("/api/kernels", {"name": "python3", "kernel_id": kernel_id}).status == 409
        seen = []
        while len(seen) < 5:
            event = json.loads(events.recv())
            if event["schema_id"].endswith("/jupyter_server/kernel_actions/v1"):
                assert (event["kernel_id"], event["kernel_name"]) == (kernel_id, "python3")
                seen.append((event["action"], event["status"], event.get("status_code")))
        assert seen == [
            ("start", "success", None),
            ("interrupt", "success", None),
            ("restart", "success", None),
            ("shutdown", "success", None),
            ("start", "error", 409),
        ]
    finally:
        events.close()


def test_running_kernels_are_counted_for_prometheus(server: Server) -> None:
    def running() -> float:
        text = server.get("/metrics").body.decode()
        found = re.search(r'kernel_currently_running_total\{type="python3"\} (\S+)', text)
        return float(found[1]) if found else 0.0

    before = running()
    kernel_id = server.start_kernel()
    assert running() == before + 1
    assert server.delete(f"/api/kernels/{kernel_id}").status == 204
    assert running() == before
    text = server.get("/metrics").body.decode()
    assert re.search(r'http_request_duration_seconds_count\{[^}]*status_code="204"', text)


def test_session_made_by_hand_appears_in_the_list(server: Server) -> None:
    made = run_cli("new", "by-hand", "--cwd", str(server.root)).data
    server.wait_for_kernel(made["id"], execution_state="idle")


def _all_at_once(do: Callable[[], Answer], count: int) -> list[Answer]:
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(do())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _run(session: Session, code: str):
    from jupyter_cmdop.client import calls

    return session.start(calls.run(code, stream=True))
