"""With an extension of nobody in particular, whose name puts it before ours: routes, and clients inside the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.beside.promises import (
    PROVIDER,
    answering,
    as_user,
    check_kernels_are_shared,
    check_no_exception,
)
from tests.server.jupyter import Server, Servers, end_all_sessions
from tests.support import Closing, Home, wait_for_entry

HERE = Path(__file__).parent
AN_EXTENSION = "--ServerApp.jpserver_extensions=an_extension=True"


@pytest.fixture(scope="module")
def module_server(home: Home) -> Iterator[Server]:
    made = Servers(home)
    try:
        yield made(AN_EXTENSION, PROVIDER, env={"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"})
    finally:
        made.close()


@pytest.fixture
def server(module_server: Server, home: Home) -> Iterator[Server]:
    yield module_server
    end_all_sessions(home)


def test_our_websocket_is_taken_back_and_it_is_said(server: Server, closing: Closing) -> None:
    """It was loaded earlier, so its rule for the same path is tried first."""
    assert "/api/kernels/<id>/channels is taken over from an_extension.Channels" in server.text()
    check_kernels_are_shared(server, "taken.ipynb", closing)
    answering(server)
    check_no_exception(server)


def test_clients_made_in_the_server_speak_as_who_asks_and_take_nothing_from_each_other(
    server: Server,
) -> None:
    kernel_id = server.start_kernel()
    users = [as_user(server, name) for name in ("alice", "bob")]
    for user in users:
        answer = server.post(f"/an/execute/{kernel_id}", **user)
        assert answer.status == 200, (answer.status, answer.body, server.text()[-3000:])
        assert answer.data == ["0", "1", "2", "3", "4", "5"]
    with Session.open(kernel_id) as session:
        admitted = list(session.log(types=["admitted"]))
        owner = session.actor
        [granted, _] = session.log(types=["granted"])
    assert [entry["actor"] for entry in admitted] == ["example:alice"] * 6 + ["example:bob"] * 6
    assert {entry["data"]["client"] for entry in admitted} == {"jupyter server: an_extension"}
    assert (granted["actor"], granted["data"]["actor"]) == (owner, "example:alice")
    check_no_exception(server)


def test_what_it_does_to_a_kernel_is_done_in_the_name_of_who_asks(server: Server) -> None:
    kernel_id = server.start_kernel()
    alice = as_user(server, "alice")
    assert server.post(f"/an/interrupt/{kernel_id}", **alice).status == 200
    assert server.post(f"/an/restart/{kernel_id}", **alice).status in (403, 500), "peers do not restart"
    assert server.post(f"/an/restart/{kernel_id}").status == 200
    with Session.open(kernel_id) as session:
        wait_for_entry(session, "refused", actor="example:alice")
        assert session.status().incarnation == 2
    assert server.post(f"/an/shutdown/{kernel_id}").status == 200
    server.wait_for_end(kernel_id)
