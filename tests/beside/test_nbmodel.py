"""With jupyter-server-nbmodel: what it executes in the server is arbitrated, and bears the name of who asked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from tests.beside.promises import (
    IMPORTS,
    PROVIDER,
    answering,
    as_user,
    check_kernels_are_shared,
    check_no_exception,
    run,
    taken,
)
from tests.faults.attacks import wait_until
from tests.server.jupyter import Answer, Server, Servers, end_all_sessions, keeper_pid, kernel_pid, wait_gone
from tests.support import Closing, Gate, Home, run_cli, wait_for_entry

NBMODEL = "jupyter_server_nbmodel"


@pytest.fixture(scope="module")
def python(python_with: Callable[[str], Path]) -> Path:
    return python_with("jupyter_server_nbmodel>=0.2.9,<0.3")


@pytest.fixture(scope="module")
def module_server(home: Home, python: Path) -> Iterator[Server]:
    made = Servers(home)
    try:
        yield made(python=python)
    finally:
        made.close()


@pytest.fixture
def server(module_server: Server, home: Home) -> Iterator[Server]:
    """The module's server, without kernels."""
    yield module_server
    end_all_sessions(home)
    wait_until(lambda: module_server.kernels() == {}, "the server still has kernels")


@pytest.fixture
def server_of_many(servers: Servers, python: Path) -> Server:
    """Its users are not one person: a header names each."""
    return servers(PROVIDER, python=python, env=IMPORTS)


def start(server: Server, kernel_id: str, code: str, **options: Any) -> str:
    """Have a cell executed in the server; the address of what comes of it."""
    answer = server.post(f"/api/kernels/{kernel_id}/execute", {"code": code}, **options)
    assert answer.status == 202, (answer.status, answer.body)
    return str(answer.headers["Location"])


def result(server: Server, address: str, **options: Any) -> Answer:
    """The answer when it is no longer pending; 300 when the cell asks for input."""
    seen: list[Answer] = []

    def is_there() -> bool:
        seen[:] = [server.get(address, **options)]
        return seen[0].status != 202

    wait_until(is_there, f"{address} is pending")
    return seen[0]


def execute(server: Server, kernel_id: str, code: str, **options: Any) -> Any:
    answer = result(server, start(server, kernel_id, code, **options), **options)
    assert answer.status == 200, (answer.status, answer.body, server.text()[-3000:])
    return {**answer.data, "outputs": json.loads(answer.data["outputs"])}


def authors(kernel_id: str) -> list[str]:
    with Session.open(kernel_id) as session:
        return [entry["actor"] for entry in session.log(types=["admitted"])]


def test_kernels_are_sessions(server: Server, closing: Closing) -> None:
    check_kernels_are_shared(server, "a.ipynb", closing)
    answering(server)
    assert "kernel websocket taken over from jupyter_server." in taken(server)
    check_no_exception(server)


def test_its_route_executes_in_the_name_of_who_asked(server: Server, closing: Closing) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    tab = closing(server.connect(kernel_id))
    run(tab, "x = 40")
    done = execute(server, kernel_id, "print(x + 2)")
    assert (done["status"], done["outputs"][0]["text"]) == ("ok", "42\n")
    assert run(tab, "print(x)") == "40\n", "its client has taken nothing from the websocket"
    with Session.open(kernel_id) as session:
        by_tab, by_extension, _ = session.log(types=["admitted"])
    assert by_extension["actor"] == by_tab["actor"]
    assert by_extension["attachment"] != by_tab["attachment"]
    assert f"{NBMODEL} gets a client of session" in server.text()
    check_no_exception(server)


def test_its_cells_wait_for_their_turn(server: Server, closing: Closing, gate: Gate) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    tab = closing(server.connect(kernel_id))
    execute(server, kernel_id, "order = []")
    first = tab.execute(gate.code)
    tab.until(lambda m: m["header"]["msg_type"] == "stream")
    tab.execute("order.append('tab')")
    with Session.open(kernel_id) as session:
        wait_until(lambda: len(session.status().queue) == 1, "the second cell is not queued")
        address = start(server, kernel_id, "order.append('nbmodel'); print(order)")
        wait_until(lambda: len(session.status().queue) == 2, "the extension's cell is not in the one queue")
    gate.open()
    tab.until_idle(first)
    assert "['tab', 'nbmodel']" in result(server, address).data["outputs"]


def test_its_cells_obey_the_floor(server: Server) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    execute(server, kernel_id, "x = 1")
    run_cli("invite", kernel_id, "--as", "bot")
    run_cli("take", kernel_id, "--as", "ann")
    refused = result(server, start(server, kernel_id, "x = 2"))
    assert refused.data["status"] == "error"
    assert "ann" in refused.data["outputs"], "it says who drives"
    with Session.open(kernel_id) as session:
        wait_for_entry(session, "refused", where=lambda entry: entry["data"]["code"] == "not_driver")


def test_interrupt_and_input_work_through_it(server: Server, gate: Gate) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    address = start(server, kernel_id, "print(input('name? '))")
    asked = result(server, address)
    assert asked.status == 300, (asked.status, asked.body)
    assert server.post(f"/api/kernels/{kernel_id}/input", {"input": "ann"}).status == 201
    assert "ann" in result(server, address).data["outputs"]
    address = start(server, kernel_id, gate.code)
    wait_until(lambda: "waiting" in str(server.get(address).data), "the cell does not run")
    assert server.post(f"/api/kernels/{kernel_id}/interrupt").status == 204
    assert "KeyboardInterrupt" in result(server, address).data["outputs"]
    check_no_exception(server)


def test_restart_and_end_of_the_kernel(server: Server) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    execute(server, kernel_id, "x = 1")
    assert server.post(f"/api/kernels/{kernel_id}/restart").status == 200
    assert "NameError" in str(execute(server, kernel_id, "x")["outputs"])
    assert server.delete(f"/api/kernels/{kernel_id}").status == 204
    assert server.post(f"/api/kernels/{kernel_id}/execute", {"code": "1"}).status == 404


def test_a_cell_whose_session_ends_fails_and_does_not_stay_pending(server: Server, gate: Gate) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    address = start(server, kernel_id, gate.code)
    wait_until(lambda: "waiting" in str(server.get(address).data), "the cell does not run")
    run_cli("close", kernel_id, "--force")
    ended = result(server, address)
    # The keeper's last word, unless its link was faster.
    assert ended.data.get("status") in ("aborted", "error") or "the session has ended" in ended.data["error"]


def test_a_cell_whose_keeper_dies_fails_and_does_not_stay_pending(server: Server, gate: Gate) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    kernel = kernel_pid(kernel_id)
    address = start(server, kernel_id, gate.code)
    wait_until(lambda: "waiting" in str(server.get(address).data), "the cell does not run")
    os.kill(keeper_pid(kernel_id), signal.SIGKILL)
    ended = result(server, address)
    assert ended.status == 500
    assert "the session has ended" in ended.data["error"]
    wait_gone(kernel)


def test_a_cell_whose_grant_is_revoked_fails_and_so_does_the_next(server: Server, gate: Gate) -> None:
    kernel_id = server.open_notebook()["kernel"]["id"]
    address = start(server, kernel_id, gate.code)
    wait_until(lambda: "waiting" in str(server.get(address).data), "the cell does not run")
    [grant] = run_cli("grants", kernel_id).data["grants"]
    run_cli("revoke", kernel_id, grant["grant"])
    for refused in (result(server, address), result(server, start(server, kernel_id, "1"))):
        assert refused.status == 500
        assert "grant was revoked" in refused.data["error"]


def test_each_user_executes_in_his_own_name(server_of_many: Server) -> None:
    """nbmodel has one queue and one client for each kernel; it is the first user's, and was everybody's."""
    server = server_of_many
    kernel_id = server.open_notebook()["kernel"]["id"]
    for name in ("alice", "bob", "alice"):
        assert execute(server, kernel_id, f"print('{name}')", **as_user(server, name))["status"] == "ok"
    assert authors(kernel_id) == ["example:alice", "example:bob", "example:alice"]
    address = start(server, kernel_id, "1", **as_user(server, "alice"))
    assert server.get(address, **as_user(server, "bob")).status == 404, "what bob may not poll"
    with Session.open(kernel_id) as session:
        granted = list(session.log(types=["granted"]))
    assert {entry["data"]["on_behalf_of"] for entry in granted} == {""}
    check_no_exception(server)


def test_observer_is_refused(servers: Servers, python: Path) -> None:
    server = servers(PROVIDER, "--CmdopApp.user_role=observer", python=python, env=IMPORTS)
    kernel_id = server.open_notebook()["kernel"]["id"]
    answer = server.post(f"/api/kernels/{kernel_id}/execute", {"code": "1"}, **as_user(server, "bob"))
    assert answer.status == 403
    assert "example:bob may only observe" in answer.body.decode()
    assert authors(kernel_id) == []


def test_its_client_is_no_guest_and_ends_with_the_server(servers: Servers, python: Path) -> None:
    """A session that only an extension has a client of ends with the server, as Jupyter's kernels do."""
    server = servers(python=python)
    kernel_id = server.open_notebook("kept.ipynb")["kernel"]["id"]
    execute(server, kernel_id, "1")
    [grant] = run_cli("grants", kernel_id).data["grants"]
    assert grant["held"] is True
    assert server.wait_for_kernel(kernel_id, connections=0)
    server.kill()
    with Session.open(kernel_id) as session:
        wait_for_entry(session, "revoked")
        assert session.grants() == ()
    again = servers.add(server.again())
    execute(again, kernel_id, "2")
    again.stop()
    assert kernel_id not in [item["id"] for item in run_cli("ls").data]
