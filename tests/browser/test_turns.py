"""One who drives at a time, and what a page of stock JupyterLab shows of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from jupyter_cmdop.client.session import Session
from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import run_cli

Verb = Callable[..., object]


@pytest.fixture
def bot(server: Server) -> Callable[[str], Verb]:
    """Invites an agent to a session; what is returned runs a verb of the command line in his name."""

    def invite(name: str) -> Verb:
        file = run_cli("invite", name, "--as", "bot", "--kind", "agent").data["connection_file"]
        return lambda verb, *arguments: run_cli(verb, name, *arguments, env={"CMDOP_GRANT_FILE": file}).data

    return invite


def test_cell_is_refused_while_an_agent_drives(
    server: Server, pages: Pages, bot: Callable[[str], Verb]
) -> None:
    """A person who drove is told once who took over, then who drives; when the agent has let go his cell runs."""
    write_notebook(server.root / "turns.ipynb", "mine = 1", "mine += 1; mine")
    lab = pages.lab(server, "turns.ipynb")
    agent = bot("turns")
    run_cli("policy", "turns", "turns")
    lab.run(0, 1)
    assert run_cli("status", "turns").data["driver"] is not None

    agent("take", "--reason", "a long computation")
    lab.start(1)
    expect(lab.output(1)).to_contain_text("bot took over")
    expect(lab.output(1)).to_contain_text("a long computation")
    lab.wait_not_running(1)
    lab.start(1)
    expect(lab.output(1)).to_contain_text("bot drives this session")
    lab.wait_not_running(1)
    lab.wait_status("idle")

    agent("release")
    lab.start(1)
    lab.wait_ended(1, 2)
    assert lab.text(1) == "2"
    with Session.open(lab.kernel_id) as session:
        refused = [(e["actor"], e["data"]["code"]) for e in session.log(types=["refused"])]
        admitted = [e["data"]["code"] for e in session.log(types=["admitted"])]
    assert [code for _, code in refused] == ["stale_generation", "not_driver"]
    assert admitted == ["mine = 1", "mine += 1; mine"]


def test_person_who_saw_nothing_of_a_take_over_is_told_once(
    server: Server, pages: Pages, bot: Callable[[str], Verb]
) -> None:
    """The agent took over and let go meanwhile: the next cell says so, and the same cell again runs."""
    write_notebook(server.root / "told.ipynb", "mine = 1", "mine")
    lab = pages.lab(server, "told.ipynb")
    agent = bot("told")
    run_cli("policy", "told", "turns")
    lab.run(0, 1)
    agent("take")
    agent("run", "mine = 'changed'")
    agent("release")
    lab.start(1)
    expect(lab.output(1)).to_contain_text("run it again to drive")
    lab.wait_not_running(1)
    lab.start(1)
    expect(lab.output(1)).to_contain_text("changed")
    lab.wait_ended(1, 3)


def test_run_all_is_refused_as_one(server: Server, pages: Pages, bot: Callable[[str], Verb]) -> None:
    """Every cell is answered, none runs, none hangs."""
    write_notebook(server.root / "all.ipynb", *(f"print({n})" for n in range(10)))
    lab = pages.lab(server, "all.ipynb")
    agent = bot("all")
    agent("take")
    lab.menu("Run", "Run All Cells")
    expect(lab.output(0)).to_contain_text("bot drives this session")
    for index in range(10):
        lab.wait_not_running(index)
    with Session.open(lab.kernel_id) as session:
        assert list(session.log(types=["admitted"])) == []
    agent("release")
    lab.menu("Run", "Run All Cells")
    lab.wait_ended(9, 10)
