"""With jupyter_server_documents: it claims two of the slots after us, and executes cells in the server."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    write_notebook,
)
from tests.faults.attacks import wait_until
from tests.server.jupyter import Answer, Server, Servers
from tests.support import Closing, Gate, wait_for_entry

JSD = "jupyter_server_documents"


@pytest.fixture
def python(python_with: Callable[[str], Path]) -> Path:
    return python_with("jupyter_server_documents>=0.3.3,<0.4")


@pytest.fixture
def server(servers: Servers, python: Path) -> Server:
    return servers(python=python)


def murmur2(text: str) -> str:
    """The hash of a cell's source by which JupyterLab says which text it means (MurmurHash2, seed 0)."""
    data, mask, m = text.encode(), 0xFFFFFFFF, 0x5BD1E995
    h = len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return str(h ^ h >> 15)


class Notebook:
    """A notebook that is open in the server, and its cells executed there."""

    def __init__(self, server: Server, *sources: str, name: str = "a.ipynb", **options: Any) -> None:
        self.server, self.sources, self.name = server, sources, name
        self.cells = write_notebook(server.root, name, *sources)
        body = {"path": name, "type": "notebook", "name": name, "kernel": {"name": "python3"}}
        opened = server.post("/api/sessions", body, **options)
        assert opened.status == 201, (opened.status, opened.body, server.text()[-3000:])
        self.kernel_id = str(opened.data["kernel"]["id"])
        indexed = server.post(f"/api/fileid/index?path={name}")
        assert indexed.status in (200, 201), (indexed.status, indexed.body)
        self.document = f"json:notebook:{indexed.data['id']}"

    def execute(self, cell: int, **options: Any) -> Answer:
        asked = {
            "document_id": self.document,
            "cells": [{"cell_id": self.cells[cell], "source_hash": murmur2(self.sources[cell])}],
        }
        return self.server.post(f"/api/kernels/{self.kernel_id}/execute", asked, **options)

    def outputs(self) -> list[str]:
        """What the document on disk shows below each cell; nothing while it is being written."""
        try:
            cells = json.loads((self.server.root / self.name).read_text())["cells"]
        except json.JSONDecodeError:  # the contents manager truncates the file, then writes
            return []
        return ["".join("".join(o.get("text", "")) for o in cell["outputs"]) for cell in cells]


def authors(kernel_id: str) -> list[str]:
    with Session.open(kernel_id) as session:
        return [entry["actor"] for entry in session.log(types=["admitted"])]


def test_slots_are_ours_or_left_to_it_and_said(server: Server, closing: Closing) -> None:
    write_notebook(server.root, "a.ipynb", "1 + 1")
    check_kernels_are_shared(server, "a.ipynb", closing)
    slots = answering(server)
    theirs = f"{JSD}.websocket_connection.KernelWebsocketConnection"
    assert slots["kernel websocket"]["instead_of"] == theirs
    assert slots["session manager"]["serves"] == f"{JSD}.session_manager.YDocSessionManager"
    line = taken(server)
    assert f"kernel websocket taken over from {theirs}" in line
    assert f"session manager left to {JSD}.session_manager.YDocSessionManager" in line
    check_no_exception(server)


def test_its_execution_is_arbitrated_and_attributed(server: Server, closing: Closing) -> None:
    notebook = Notebook(server, "x = 41; print(x)", "print(x + 1)")
    tab = closing(server.connect(notebook.kernel_id))
    assert notebook.execute(0).status == 200
    assert notebook.execute(1).status == 200
    wait_until(lambda: notebook.outputs() == ["41\n", "42\n"], "the document does not show the outputs")
    assert run(tab, "print(x)") == "41\n"
    with Session.open(notebook.kernel_id) as session:
        first, second, third = session.log(types=["admitted"])
    assert first["actor"] == second["actor"] == third["actor"]
    assert first["attachment"] == second["attachment"] != third["attachment"]
    assert f"{JSD} gets a client of session" in server.text()
    check_no_exception(server)


def test_its_execution_survives_a_restart_of_the_kernel(server: Server) -> None:
    notebook = Notebook(server, "print('again')")
    assert notebook.execute(0).status == 200
    wait_until(lambda: len(authors(notebook.kernel_id)) == 1, "the cell does not run")
    assert server.post(f"/api/kernels/{notebook.kernel_id}/restart").status == 200

    def runs() -> bool:
        return notebook.execute(0).status == 200

    wait_until(runs, "it does not execute any more")
    wait_until(lambda: len(authors(notebook.kernel_id)) == 2, "the cell does not run again")
    check_no_exception(server)


def test_a_second_user_executes_in_his_own_name(servers: Servers, python: Path) -> None:
    """It has one client for each notebook, which is that of the user who opened it."""
    server = servers(PROVIDER, python=python, env=IMPORTS)
    alice, bob = (as_user(server, name) for name in ("alice", "bob"))
    notebook = Notebook(server, "print('hello')", **alice)
    for asked in (alice, bob, bob, alice):
        assert notebook.execute(0, **asked).status == 200
    wait_until(lambda: len(authors(notebook.kernel_id)) == 4, "not every cell has run")
    assert authors(notebook.kernel_id) == [f"example:{name}" for name in ("alice", "bob", "bob", "alice")]
    check_no_exception(server)


def test_a_second_user_is_told_when_the_first_one_is_busy(servers: Servers, python: Path, gate: Gate) -> None:
    server = servers(PROVIDER, python=python, env=IMPORTS)
    alice, bob = (as_user(server, name) for name in ("alice", "bob"))
    notebook = Notebook(server, gate.code, "print('bob')", **alice)
    assert notebook.execute(0, **alice).status == 200
    with Session.open(notebook.kernel_id) as session:
        wait_for_entry(session, "started")
    refused = notebook.execute(1, **bob)
    assert refused.status == 409
    assert "in the name of example:alice" in refused.body.decode()
    gate.open()
    wait_until(lambda: notebook.execute(1, **bob).status == 200, "bob never gets his turn")
    wait_until(lambda: len(authors(notebook.kernel_id)) == 2, "bob's cell does not run")
    assert authors(notebook.kernel_id) == ["example:alice", "example:bob"]


def test_kernel_survives_a_killed_server_and_its_notebook_session_does_not(
    server: Server, servers: Servers, closing: Closing
) -> None:
    """The price of its session manager: the notebook is opened again on the kernel that goes on."""
    notebook = Notebook(server, "print(x)")
    tab = closing(server.connect(notebook.kernel_id))
    assert run(tab, "x = 7") == ""
    server.kill()
    again = servers.add(server.again())
    assert again.get("/api/sessions").data == []
    assert notebook.kernel_id in again.kernels()
    opened = again.open_notebook("a.ipynb", id=notebook.kernel_id)
    assert opened["kernel"]["id"] == notebook.kernel_id
    assert run(tab, "print(x)") == "7\n"
    notebook.server = again
    assert notebook.execute(0).status == 200
    wait_until(lambda: notebook.outputs() == ["7\n"], "the document does not show the output")
    check_no_exception(again)
