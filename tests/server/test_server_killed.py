"""SIGKILL of the Jupyter server while a cell prints a hundred numbered lines a second.

Nobody but the server may notice: not the kernel, not an agent on the kernel protocol, not a page whose websocket was
handed over. A page that comes back only when there is a server again gets each line once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import UPGRADE, Server, Servers, keeper_pid, kernel_pid, wait_gone
from tests.support import LIMIT_SECONDS, Clients, Closing, Home, iopub_until, reply_of, run_cli
from tests.support import is_idle_of as is_idle_for_agent
from tests.websocket.viewer import Message, Viewer, is_idle_of, is_reply_to, recorded, reply_in, says, text_in

BACK_SECONDS = 5.0
"""Until the new server has its first list. `soak` runs alone, and counts from the start of the process; else something
beside it may make its start slow, and it is counted from the first answer of any kind.
"""


def cell(lines: int) -> str:
    return f"import time\nfor n in range({lines}):\n    print(n, flush=True)\n    time.sleep(0.01)"


@dataclass
class Seen:
    """One repetition, in numbers."""

    lines: int
    killed_at: int
    lost: int
    doubled: int
    seconds_to_list: float  # from the start of the server's process
    seconds_adopting: float  # from the first answer, which may be a 503


def numbers(messages: list[Message], msg_id: str) -> list[int]:
    text = text_in([m for m in messages if m["parent_header"].get("msg_id") == msg_id])
    return [int(line) for line in text.split()]


def first_answers(server: Server, paths: tuple[str, ...]) -> tuple[dict[str, Any], float, float]:
    """The first list of each of these routes, the seconds until all had come, and those since anything came.

    Before its first list a route is silent or says 503.
    """
    begin = time.monotonic()
    answering: float | None = None
    found: dict[str, Any] = {}
    while len(found) < len(paths):
        for path in paths:
            if path not in found and (answer := server.get(path)).status != 0:
                assert answer.status in (200, 503), (path, answer)
                answering = answering or time.monotonic()
                if answer.status == 200:
                    found[path] = answer.data
        assert server.process.poll() is None, server.text()[-3000:]
        assert time.monotonic() < begin + LIMIT_SECONDS, server.text()[-3000:]
        time.sleep(0.02)
    now = time.monotonic()
    return found, now - begin, now - (answering or begin)


class Killing:
    """A notebook's kernel with an agent, a page that stays and a page that returns, over one server after the other."""

    def __init__(self, servers: Servers, clients: Clients, closing: Closing, *, seed: int) -> None:
        self._servers = servers
        self._choose = random.Random(seed)
        self.server = servers()
        self.notebooks = {
            n["id"]: n["kernel"]["id"] for n in map(self.server.open_notebook, ("a.ipynb", "b.ipynb"))
        }
        self.kernel_id = next(iter(self.notebooks.values()))
        self.pids = {kernel_id: kernel_pid(kernel_id) for kernel_id in self.notebooks.values()}
        with Session.open(self.kernel_id) as session:
            self.agent: BlockingKernelClient = clients(session, "bot")
        self.staying, self.returning = (
            closing(
                Viewer(
                    ("127.0.0.1", self.server.port), name, kernel_id=self.kernel_id, token=self.server.token
                )
            )
            for name in ("staying", "returning")
        )

    def repeat(self, lines: int) -> Seen:
        """Kill the server in a random place of the cell, and start another; what each of the others saw."""
        kill_at = self._choose.randrange(lines // 10, lines // 2)
        back_from = len(self.returning.received)
        msg_id = self.staying.execute(cell(lines))
        self.staying.until(is_line(kill_at, msg_id))
        self.server.kill()

        # Without a server: the page and the agent go on asking and executing, behind what runs.
        self.staying.catch_up()
        info = reply_of(self.agent, self.agent.kernel_info())
        assert info["content"]["status"] == "ok"
        from_agent = self.agent.execute("after = n")
        from_page = self.staying.execute("print('last', after)")
        self.returning.until(is_line(kill_at, msg_id))
        self.returning.until_confirmed()
        self.returning.hang_up()

        self.server = self._servers.add(self.server.again(wait=False))
        lists, seconds, adopting = first_answers(self.server, ("/api/kernels", "/api/sessions"))
        assert {kernel["id"] for kernel in lists["/api/kernels"]} == set(self.pids)
        assert {n["id"]: n["kernel"]["id"] for n in lists["/api/sessions"]} == self.notebooks
        assert {kernel_id: kernel_pid(kernel_id) for kernel_id in self.pids} == self.pids
        self.returning.connect()

        seen = self.staying.until(is_reply_to(from_page), is_idle_of(from_page))
        assert f"last {lines - 1}\n" in text_in(seen)
        assert reply_of(self.agent, from_agent)["content"]["status"] == "ok"
        self.returning.until(is_idle_of(from_page))
        by_agent = iopub_until(self.agent, is_idle_for_agent(from_page))

        lost = doubled = 0
        wanted = list(range(lines))
        for messages in (self.staying.received, self.returning.received[back_from:], by_agent):
            got = numbers(messages, msg_id)
            lost += len(set(wanted) - set(got))
            doubled += len(got) - len(set(got))
            assert got == wanted
        assert (
            reply_in([m for m in self.staying.received if is_reply_to(msg_id)(m)])["content"]["status"]
            == "ok"
        )
        ids = [m["msg_id"] for m in recorded(self.returning.received)]
        assert len(ids) == len(set(ids))
        assert "Traceback" not in self.server.text()
        return Seen(lines, kill_at, lost, doubled, seconds, adopting)


def is_line(number: int, msg_id: str) -> Any:
    return lambda m: (
        m["msg_type"] == "stream"
        and m["parent_header"].get("msg_id") == msg_id
        and str(number) in m["content"]["text"].split()
    )


def test_nobody_notices_that_the_server_is_killed(
    servers: Servers, clients: Clients, closing: Closing
) -> None:
    """Three servers are killed, one after the other, under one kernel, one agent and two pages."""
    killing = Killing(servers, clients, closing, seed=3)
    for _ in range(3):
        seen = killing.repeat(300)
        assert (seen.lost, seen.doubled) == (0, 0)
        assert seen.seconds_adopting <= BACK_SECONDS


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nobody_notices_twenty_times(servers: Servers, clients: Clients, closing: Closing) -> None:
    killing = Killing(servers, clients, closing, seed=20)
    for _ in range(20):
        seen = killing.repeat(1000)
        print(seen, flush=True)
        assert (seen.lost, seen.doubled) == (0, 0)
        assert seen.seconds_to_list <= BACK_SECONDS


def test_what_was_lost_while_there_was_no_server_is_told(
    home: Home, servers: Servers, closing: Closing
) -> None:
    """The keeper dies while the server is down: the next one says so on its routes, and so does `ls`.

    The server tidies at once. That alone must not hide the loss from whoever comes later.
    """
    server = servers()
    lost, kept = (server.open_notebook(path)["kernel"]["id"] for path in ("gone.ipynb", "kept.ipynb"))
    page = closing(Viewer(("127.0.0.1", server.port), kernel_id=lost, token=server.token))
    page.execute("import time; print('begun', flush=True); time.sleep(600)")
    page.until(says("begun"))
    kernel, keeper = kernel_pid(lost), keeper_pid(lost)
    sockets = Path(json.loads((home.session_dir(lost) / "config.json").read_bytes())["sockets"])
    assert sockets.exists()
    server.kill()
    os.kill(keeper, signal.SIGKILL)
    wait_gone(keeper, kernel)
    page.read_to_end()
    [before] = [item for item in run_cli("ls").data if item["id"] == lost]
    assert before["state"] == "lost"
    assert str(keeper) in before["reason"]

    again = servers.add(server.again())
    assert set(again.kernels()) == {kept}
    assert [n["kernel"]["id"] for n in again.get("/api/sessions").data] == [kept]
    for answer in (
        again.get(f"/api/kernels/{lost}"),
        again.post(f"/api/kernels/{lost}/restart"),
        again.post(f"/api/kernels/{lost}/interrupt"),
        again.delete(f"/api/kernels/{lost}"),
    ):
        assert answer.status == 404
        assert b"session gone" in answer.body
        assert b"is lost" in answer.body
        assert str(keeper).encode() in answer.body
    assert again.get(f"/api/kernels/{lost}/channels", headers=UPGRADE).status == 404
    assert f"Session gone ({lost}) was lost" in again.text()
    assert not psutil.pid_exists(keeper)
    assert not psutil.pid_exists(kernel)
    assert all(p.status() != psutil.STATUS_ZOMBIE for p in psutil.Process(again.process.pid).children())

    # What it left is swept, and its loss is listed still, until somebody says that he has seen it.
    assert not sockets.exists()
    assert [path.stem for path in home.pointers()] == [kept]
    [after] = [item for item in run_cli("ls").data if item["id"] == lost]
    assert (after["state"], after["name"], after["reason"]) == ("lost", "gone", before["reason"])
    assert run_cli("verify", "gone").data["ok"] is True
    assert run_cli("log", "gone").lines[-1]["type"] == "keeper_ended"  # by whoever tidied up
    run_cli("doctor", "--sweep", code=None)
    assert [item["id"] for item in run_cli("ls").data] == [kept]

    # The notebook gets a new kernel, under the name that is free again.
    opened = again.open_notebook("gone.ipynb")["kernel"]["id"]
    assert opened != lost
    assert again.kernels()[opened]["cmdop"]["session"] == "gone"
