"""JupyterLab as a person uses it every day, in a kernel that others share."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from jupyter_cmdop.client.identity import owner_name
from jupyter_cmdop.client.session import Session
from tests.browser.page import Pages, write_notebook
from tests.server.jupyter import Server
from tests.support import AgentProcess, Closing, Gate, finish_cli, journal, run_cli, start_cli

OWNER = owner_name()[0]


def test_cells_run_and_a_person_works_with_them(server: Server, pages: Pages) -> None:
    """Results and errors are shown and numbered, Tab completes, a prompt is answered in its cell."""
    write_notebook(
        server.root / "daily.ipynb",
        # Jedi takes seconds to load, and JupyterLab waits one second for completions.
        "%config Completer.use_jedi = False\ncompletion_one = 41; completion_two = 0\ncompletion_one + 1",
        "1 / 0",
        "name = input('who? ')\nprint('hello', name)",
        "",
    )
    lab = pages.lab(server, "daily.ipynb")
    lab.run(0, 1)
    expect(lab.output(0)).to_contain_text("42")
    lab.run(1, 2)
    expect(lab.output(1)).to_contain_text("ZeroDivisionError")

    lab.start(2)
    expect(lab.output(2)).to_contain_text("who?")
    answer = lab.cell(2).locator(".jp-Stdin-input")
    answer.fill("Ada")
    answer.press("Enter")
    lab.wait_ended(2, 3)
    assert "hello Ada" in lab.text(2)

    lab.write(3, "completion_")
    lab.complete("completion_one")
    expect(lab.cell(3)).to_contain_text("completion_one")
    lab.run(3, 4)
    assert lab.text(3) == "41"

    [listed] = run_cli("ls").data
    assert (listed["name"], listed["kind"], listed["kernel_id"]) == ("daily", "kernel", lab.kernel_id)
    entries = run_cli("log", "daily").lines
    codes = [(e["actor"], e["data"].get("code")) for e in entries if e["type"] == "admitted"]
    assert codes == [(OWNER, cell["source"]) for cell in lab.model()]
    [attached] = [e for e in entries if e["type"] == "attached" and e["data"]["transport"] == "websocket"]
    assert attached["actor"] == OWNER
    assert "Chrome" in attached["data"]["client"]


def test_run_all_of_fifty_cells(server: Server, pages: Pages) -> None:
    """JupyterLab sends all of them at once: they run in their order, each under its own number."""
    cells = [
        "order = []",
        *(f"order.append({n}); print({n})" for n in range(1, 49)),
        "order == list(range(1, 49))",
    ]
    write_notebook(server.root / "fifty.ipynb", *cells)
    lab = pages.lab(server, "fifty.ipynb")
    lab.menu("Run", "Run All Cells")
    lab.wait_ended(49, 50)
    model = lab.model()
    assert [cell["execution_count"] for cell in model] == list(range(1, 51))
    assert [lab.text(n) for n in (1, 48, 49)] == ["1\n", "48\n", "True"]
    lab.save()
    with Session.open(lab.kernel_id) as session:
        assert [e["data"]["code"] for e in journal(session, "admitted")] == cells


def test_error_stops_what_was_sent_behind_it(server: Server, pages: Pages) -> None:
    """Run all with an error in the middle: what is behind it does not run, and no cell waits for ever."""
    write_notebook(server.root / "stops.ipynb", "ran = []", "ran.append(1)", "1 / 0", "ran.append(2)", "ran")
    lab = pages.lab(server, "stops.ipynb")
    lab.menu("Run", "Run All Cells")
    expect(lab.output(2)).to_contain_text("ZeroDivisionError")
    for index in (3, 4):
        expect(lab.prompt(index)).to_have_text("[ ]:")
    lab.run(4)
    assert lab.text(4) == "[1]"


def test_interrupt_from_the_menu(server: Server, pages: Pages, gate: Gate) -> None:
    write_notebook(server.root / "stop.ipynb", gate.code, "'still here'")
    lab = pages.lab(server, "stop.ipynb")
    lab.start(0)
    expect(lab.output(0)).to_contain_text("waiting")
    lab.menu("Kernel", "Interrupt Kernel")
    lab.wait_ended(0, 1)
    expect(lab.output(0)).to_contain_text("KeyboardInterrupt")
    lab.run(1, 2)
    with Session.open(lab.kernel_id) as session:
        [entry] = journal(session, "interrupted")
    assert entry["actor"] == OWNER


def test_restart_from_the_menu(server: Server, pages: Pages) -> None:
    """A fresh kernel under the same id, numbers from one, and no word of a kernel that has died."""
    write_notebook(server.root / "fresh.ipynb", "kept = 1", "kept")
    lab = pages.lab(server, "fresh.ipynb")
    lab.run(0, 1)
    lab.run(1, 2)
    lab.menu("Kernel", "Restart Kernel…")
    lab.accept("Restart Kernel?")
    lab.wait_restarted()
    lab.run(1, 1)
    expect(lab.output(1)).to_contain_text("NameError")
    assert lab.kernel()["kernel"] == lab.kernel_id
    assert run_cli("status", "fresh").data["incarnation"] == 2
    expect(lab.page.locator(".jp-Dialog")).to_have_count(0)


def test_restart_and_run_all(server: Server, pages: Pages) -> None:
    write_notebook(server.root / "again.ipynb", "value = 20", "value * 2 + 2")
    lab = pages.lab(server, "again.ipynb")
    lab.run(0, 1)
    lab.menu("Kernel", "Restart Kernel and Run All Cells…")
    lab.accept("Restart Kernel?")
    lab.wait_ended(1, 2)
    assert lab.text(1) == "42"
    assert [cell["execution_count"] for cell in lab.model()] == [1, 2]


def test_cell_that_is_started_while_the_kernel_restarts(server: Server, pages: Pages) -> None:
    """Who restarts and presses Ctrl+Enter at once means the new kernel: JupyterLab keeps the cell until it is there."""
    write_notebook(server.root / "hasty.ipynb", "'done'")
    lab = pages.lab(server, "hasty.ipynb")
    lab.run(0, 1)
    lab.run(0, 2)
    lab.menu("Kernel", "Restart Kernel…")
    lab.accept("Restart Kernel?")
    lab.start(0)
    lab.wait_ended(0, 1)
    assert lab.text(0) == "'done'"


def test_kernel_that_dies_and_kernel_that_is_shut_down(server: Server, pages: Pages) -> None:
    """`exit` ends nothing; a crash is said, and a fresh kernel follows; after a shutdown the next cell starts one."""
    write_notebook(
        server.root / "dies.ipynb",
        "kept = 1",
        "exit",
        "import os; os._exit(3)",
        "'kept' in globals()",
        "'new'",
    )
    lab = pages.lab(server, "dies.ipynb")
    lab.run(0, 1)
    lab.start(1)
    lab.wait_not_running(1)
    lab.run(3, 2)
    assert lab.text(3) == "True"

    lab.start(2)
    lab.accept("appears to have died")
    lab.wait_not_running(2)
    lab.wait_restarted()
    lab.run(3, 1)
    assert lab.text(3) == "False"
    assert lab.kernel()["kernel"] == lab.kernel_id

    lab.menu("Kernel", "Shut Down Kernel")
    expect(lab.page.locator(".jp-NotebookPanel-toolbar")).to_contain_text("No Kernel")
    assert run_cli("ls").data == []
    lab.run(4, 1)
    assert lab.kernel()["kernel"] != lab.kernel_id
    assert [item["name"] for item in run_cli("ls").data] == ["dies"]


def test_agent_command_line_and_page_at_once(server: Server, pages: Pages, closing: Closing) -> None:
    """Three at once in one kernel: each one's cells run in his order, and the journal knows whose each is."""
    cells = ["seen = []", *(f"seen.append(('page', {n}))" for n in range(12))]
    write_notebook(server.root / "shared.ipynb", *cells)
    lab = pages.lab(server, "shared.ipynb")
    lab.run(0, 1)
    with Session.open(lab.kernel_id) as session:
        invited = session.invite("bot")
        assert invited.connection_file is not None
        agent = closing(AgentProcess(invited.connection_file))
        agents = [f"seen.append(('bot', {n}))" for n in range(12)]
        sent = [agent.execute(code) for code in agents[:6]]
        shell = [f"seen.append(('shell', {n}))" for n in range(3)]
        running = [start_cli("run", "shared", code) for code in shell]
        lab.select(1)
        lab.menu("Run", "Run Selected Cell and All Below")
        sent += [agent.execute(code) for code in agents[6:]]
        assert [agent.reply(msg_id)["status"] for msg_id in sent] == ["ok"] * 12
        assert [finish_cli(process).data["status"] for process in running] == ["ok"] * 3
        lab.wait_ended(12)
        code = "print([n for who, n in seen if who == 'bot'] == [n for who, n in seen if who == 'page'], len(seen))"
        assert run_cli("run", "shared", code).data["text"] == "True 27\n"
        authors = {e["data"]["code"]: e["actor"] for e in journal(session, "admitted")}
    assert {authors[code] for code in agents} == {"bot"}
    assert {authors[code] for code in [*cells, *shell]} == {OWNER}


def test_page_shows_that_an_agent_is_at_work(
    server: Server, pages: Pages, closing: Closing, gate: Gate
) -> None:
    """The kernel's sign turns busy for an agent's cell, and a cell of the page waits for it."""
    write_notebook(server.root / "busy.ipynb", "found = 'by the page'", "found")
    lab = pages.lab(server, "busy.ipynb")
    lab.run(0, 1)
    lab.wait_status("idle")
    with Session.open(lab.kernel_id) as session:
        invited = session.invite("bot")
        assert invited.connection_file is not None
        agent = closing(AgentProcess(invited.connection_file))
        msg_id = agent.execute(f"{gate.code}\nfound = 'by the agent'")
        lab.wait_status("busy")
        lab.start(1)
        lab.wait_started(1)
        gate.open()
        assert agent.reply(msg_id)["status"] == "ok"
        lab.wait_ended(1, 3)
        assert lab.text(1) == "'by the agent'"
        lab.wait_status("idle")


def test_session_that_was_made_in_a_shell_is_opened_in_a_notebook(server: Server, pages: Pages) -> None:
    """The dialog for another kernel lists it; the notebook then works in it, and its own kernel ends, as in Jupyter."""
    write_notebook(server.root / "reader.ipynb", "found")
    made = run_cli("new", "by-hand", "--cwd", str(server.root)).data["id"]
    run_cli("run", "by-hand", "found = 'by the shell'")
    server.wait_for_kernel(made)
    lab = pages.lab(server, "reader.ipynb")
    lab.menu("Kernel", "Change Kernel…")
    choice = lab.page.locator(".jp-Dialog select")
    choice.select_option(label=f"python3 ({made.partition('-')[0]})")
    lab.accept("Select Kernel")
    server.wait_for_end(lab.kernel_id)
    lab.wait_restarted()
    lab.run(0, 2)
    assert lab.text(0) == "'by the shell'"
    assert lab.kernel()["kernel"] == made
    assert [item["name"] for item in run_cli("ls").data] == ["by-hand"]


@pytest.mark.soak
def test_hundreds_of_cells_of_two_pages(server: Server, pages: Pages) -> None:
    """Run all of 300 cells of one notebook in two pages at once: each page's cells run once, in their order."""
    cells = ["seen = globals().get('seen', [])", *(f"seen.append({n})" for n in range(1, 300))]
    write_notebook(server.root / "hundreds.ipynb", *cells)
    both = [pages.lab(server, "hundreds.ipynb", elsewhere=elsewhere) for elsewhere in (False, True)]
    for page in both:
        page.menu("Run", "Run All Cells")
    for page in both:
        page.wait_ended(299)
    counts = [[cell["execution_count"] for cell in page.model()] for page in both]
    assert [sorted(count) for count in counts] == counts
    assert sorted(counts[0] + counts[1]) == list(range(1, 601))
    code = "print(sorted(seen) == sorted([*range(1, 300)] * 2))"
    assert run_cli("run", "hundreds", code).data["text"] == "True\n"
