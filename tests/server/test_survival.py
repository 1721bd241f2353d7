"""What ends with a Jupyter server, and what does not."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pexpect
import psutil
import pytest

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import (
    CONFIG,
    UPGRADE,
    Server,
    Servers,
    end_all_sessions,
    free_port,
    keeper_pid,
    kernel_pid,
    wait_gone,
)
from tests.support import LIMIT_SECONDS, Home, run_cli


def test_sigkill_ends_nothing_and_a_new_server_has_the_same_ids(servers: Servers) -> None:
    server = servers()
    first = server.open_notebook("a/Untitled.ipynb")
    second = server.open_notebook("b/Untitled.ipynb")
    ids = {first["kernel"]["id"], second["kernel"]["id"]}
    with Session.open(first["kernel"]["id"]) as session:
        assert session.name == "Untitled"
        session.run("x = 41")
    with Session.open(second["kernel"]["id"]) as session:
        assert session.name == "Untitled-2"
    pids = {kernel_id: kernel_pid(kernel_id) for kernel_id in ids}
    server.kill()
    again = servers.add(server.again())
    assert set(again.kernels()) == ids
    assert {kernel_id: kernel_pid(kernel_id) for kernel_id in ids} == pids
    notebooks = again.get("/api/sessions").data
    assert {n["id"]: n["kernel"]["id"] for n in notebooks} == {
        first["id"]: first["kernel"]["id"],
        second["id"]: second["kernel"]["id"],
    }
    # A notebook that is opened again is the same notebook session.
    assert again.open_notebook("a/Untitled.ipynb")["id"] == first["id"]
    assert run_cli("run", "Untitled", "print(x + 1)").data["text"] == "42\n"


def test_until_sessions_are_adopted_nothing_is_said_to_be_absent(servers: Servers) -> None:
    """A keeper that does not answer at once holds the adoption up: 503, never an empty list."""
    server = servers()
    notebook = server.open_notebook()
    kernel_id = notebook["kernel"]["id"]
    keeper = psutil.Process(keeper_pid(kernel_id))
    server.kill()
    keeper.suspend()
    try:
        again = servers.add(server.again(wait=False))
        again.wait_listening()
        statuses = {
            path: again.get(path).status
            for path in (
                "/api/kernels",
                f"/api/kernels/{kernel_id}",
                "/api/sessions",
                f"/api/sessions/{notebook['id']}",
                "/api/status",
            )
        }
        statuses["upgrade"] = again.get(f"/api/kernels/{kernel_id}/channels", headers=UPGRADE).status
    finally:
        keeper.resume()
    assert set(statuses.values()) == {503}, statuses
    again.wait_ready()
    assert list(again.kernels()) == [kernel_id]
    assert [n["id"] for n in again.get("/api/sessions").data] == [notebook["id"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_asked_to_stop_it_ends_what_was_merely_opened(servers: Servers, number: int) -> None:
    server = servers()
    opened = server.open_notebook("opened.ipynb")["kernel"]["id"]
    invited = server.open_notebook("invited.ipynb")["kernel"]["id"]
    renamed = server.open_notebook("renamed.ipynb")["kernel"]["id"]
    run_cli("invite", "invited", "--as", "bot")
    run_cli("rename", "renamed", "kept")
    by_hand = run_cli("new", "by-hand", "--cwd", str(server.root)).data["id"]
    server.wait_for_kernel(by_hand)
    server.wait_for_kernel(renamed)
    keeper = keeper_pid(opened)
    text = server.stop(number)
    wait_gone(keeper)
    assert {item["id"] for item in run_cli("ls").data} == {invited, renamed, by_hand}
    end = text.splitlines()[-4:]
    assert "3 sessions go on without this server" in end[0]
    for name in ("invited", "kept", "by-hand"):
        assert any(f"jupyter cmdop close {name}" in line for line in end), end
    assert "shared with bot" in text


def test_ctrl_c_at_a_terminal_says_what_goes_on(home: Home, servers: Servers) -> None:
    """The second Ctrl-C confirms, as ever; the last lines on the screen are ours."""
    root = home.root / "terminal"
    root.mkdir()
    by_hand = run_cli("new", "by-hand", "--cwd", str(root)).data["id"]
    port = free_port()
    console = pexpect.spawn(
        sys.executable,
        [
            "-m",
            "jupyter_server",
            "--allow-root",
            "--no-browser",
            f"--port={port}",
            f"--ServerApp.root_dir={root}",
        ],
        env={**os.environ, "JUPYTER_CONFIG_PATH": str(CONFIG)},
        encoding="utf-8",
        timeout=LIMIT_SECONDS,
    )
    try:
        console.expect("Adopted 1 running sessions: by-hand")
        console.sendintr()
        console.expect("Shut down this Jupyter server")
        console.sendintr()
        console.expect("1 session goes on without this server")
        console.expect("jupyter cmdop close by-hand")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
    assert [item["id"] for item in run_cli("ls").data] == [by_hand]
    end_all_sessions(home)


def test_server_without_sessions_says_nothing_at_its_end(servers: Servers) -> None:
    server = servers()
    server.open_notebook()
    assert "without this server" not in server.stop()
    assert run_cli("ls").data == []


@pytest.mark.soak  # what goes on is decided in `stopping`, and tested there
def test_keep_all_keeps_all(servers: Servers) -> None:
    server = servers("--CmdopApp.keep_sessions=all")
    kernel_id = server.open_notebook()["kernel"]["id"]
    assert "keep_sessions = all" in server.stop()
    assert [item["id"] for item in run_cli("ls").data] == [kernel_id]


@pytest.mark.soak
def test_keep_none_ends_all_of_the_workspace(servers: Servers, tmp_path: Path) -> None:
    server = servers("--CmdopApp.keep_sessions=none")
    by_hand = run_cli("new", "by-hand", "--cwd", str(server.root)).data["id"]
    elsewhere = run_cli("new", "elsewhere", "--cwd", str(tmp_path)).data["id"]
    server.wait_for_kernel(by_hand)
    server.stop()
    assert [item["id"] for item in run_cli("ls").data] == [elsewhere]


def test_below_a_hub_everything_ends(servers: Servers) -> None:
    server = servers(env={"JUPYTERHUB_USER": "alice", "JUPYTERHUB_API_TOKEN": "secret"})
    by_hand = run_cli("new", "by-hand", "--cwd", str(server.root), env={"JUPYTERHUB_USER": "alice"}).data[
        "id"
    ]
    server.wait_for_kernel(by_hand)
    server.stop()
    assert run_cli("ls").data == []


def test_two_servers_of_one_directory_do_not_end_each_others_kernels(servers: Servers) -> None:
    first = servers()
    second = servers(root=first.root)
    kernel_id = first.open_notebook()["kernel"]["id"]
    second.wait_for_kernel(kernel_id)
    assert "another server shows this workspace" in first.stop()
    assert kernel_id in second.kernels()
    second.stop()
    assert run_cli("ls").data == []


@pytest.fixture
def two_workspaces(servers: Servers) -> tuple[Server, Server]:
    return servers(), servers()


def test_workspaces_are_apart_until_a_session_is_opened(two_workspaces: tuple[Server, Server]) -> None:
    one, other = two_workspaces
    kernel_id = one.open_notebook("shared.ipynb")["kernel"]["id"]
    one.wait_for_kernel(kernel_id)
    assert other.kernels() == {}
    assert other.get(f"/api/kernels/{kernel_id}").status == 404
    # Opened there by its id it is shown there too, and stays when that server stops, but not when its own does.
    opened = other.open_notebook("viewer.ipynb", id=kernel_id)
    assert opened["kernel"]["id"] == kernel_id
    assert list(other.kernels()) == [kernel_id]
    assert "belongs to another workspace" in other.stop()
    assert list(one.kernels()) == [kernel_id]
    assert {item["id"] for item in run_cli("ls").data} == {kernel_id}


def test_moved_document_keeps_its_kernel(servers: Servers) -> None:
    """`PATCH /api/sessions` calls `update_env`, which a stock manager would answer with a 500 for our kernels."""
    server = servers()
    notebook = server.open_notebook("before.ipynb")
    moved = server.request(
        "PATCH", f"/api/sessions/{notebook['id']}", {"path": "after.ipynb", "name": "after.ipynb"}
    )
    assert moved.status == 200
    assert moved.data["kernel"]["id"] == notebook["kernel"]["id"]
    changed = server.request("PATCH", f"/api/sessions/{notebook['id']}", {"kernel": {"name": "python3"}})
    assert changed.status == 200
    assert changed.data["kernel"]["id"] != notebook["kernel"]["id"]
    server.wait_for_end(notebook["kernel"]["id"])


def test_idle_kernels_are_culled_by_the_stock_settings(servers: Servers) -> None:
    server = servers("--MappingKernelManager.cull_idle_timeout=4", "--MappingKernelManager.cull_interval=1")
    shared = server.open_notebook("shared.ipynb")["kernel"]["id"]
    with Session.open(shared) as session:
        session.invite("bot")
    idle = server.open_notebook("idle.ipynb")["kernel"]["id"]
    server.wait_for_end(idle)
    assert "Culling session idle" in server.text()
    assert shared in server.kernels()


def test_disabled_extension_leaves_plain_kernels(servers: Servers) -> None:
    server = servers("--ServerApp.jpserver_extensions=jupyter_cmdop=False")
    kernel_id = server.start_kernel()
    assert "cmdop" not in server.kernels()[kernel_id]
    assert run_cli("ls").data == []
    server.stop()


def test_only_what_is_asked_for_is_shared(servers: Servers, home: object) -> None:
    server = servers("--CmdopApp.share=asked")
    plain = server.start_kernel()
    assert "cmdop" not in server.kernels()[plain]
    by_hand = run_cli("new", "by-hand", "--cwd", str(server.root)).data["id"]
    server.wait_for_kernel(by_hand)
    ws = server.connect(plain)
    assert ws.run("print('plain')") == "plain\n"
    ws.close()
    ws = server.connect(by_hand)
    assert ws.run("print('shared')") == "shared\n"
    ws.close()
    assert server.post(f"/api/kernels/{plain}/restart").status == 200
    assert server.delete(f"/api/kernels/{plain}").status == 204
    server.stop()


def test_claimed_kernel_manager_is_respected(servers: Servers) -> None:
    stock = "jupyter_server.services.kernels.kernelmanager.AsyncMappingKernelManager"
    server = servers(f"--ServerApp.kernel_manager_class={stock}")
    kernel_id = server.start_kernel()
    assert "cmdop" not in server.kernels()[kernel_id]
    assert (
        "leaves kernels as they are: the configuration sets ServerApp.kernel_manager_class" in server.text()
    )
    server.stop()
