"""`input()`: a prompt belongs to the session, so that it is neither lost nor answered by whoever is quickest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.session import Session
from tests.support import (
    AgentProcess,
    Clients,
    Closing,
    Home,
    Sessions,
    all_bytes,
    flush,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    run_cli,
    text_of,
    wait_for_entry,
    wait_for_status,
)

SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def made(module_session: Sessions) -> Session:
    return module_session()


@pytest.fixture
def shared(made: Session) -> Iterator[Session]:
    """The module's session with a free floor and no prompt."""
    yield made
    if made.status().running:
        made.interrupt()
        made.wait(wait_seconds=20)
    if made.status().driver is not None:
        made.take()
        made.release()


def wait_for_prompt(session: Session, text: str | None = None) -> shapes.Prompt:
    """Wait until the session shows a prompt (with this text)."""

    def shown(status: shapes.Status) -> bool:
        return status.pending_input is not None and text in (None, status.pending_input.prompt)

    prompt = wait_for_status(session, shown).pending_input
    assert prompt is not None
    return prompt


def test_prompt_of_an_agent_is_answered_by_whoever_took_over(shared: Session, clients: Clients) -> None:
    """The agent asks; Alice takes over and answers with `jupyter cmdop answer`. The agent's own late answer is
    refused and does not reach the kernel, and the journal says who answered what.
    """
    bot = clients(shared, "bot")
    msg_id = bot.execute("name = input('who? '); print('it is', name)", allow_stdin=True)
    question = bot.get_stdin_msg(timeout=20)
    assert question["content"] == {"prompt": "who? ", "password": False}
    assert question["parent_header"]["msg_id"] == msg_id
    assert question["metadata"]["cmdop"]["actor"]["id"] == "bot"
    prompt = wait_for_prompt(shared, "who? ")
    assert (prompt.actor, prompt.password) == ("bot", False)
    assert run_cli("ls").data[0]["input_pending"] is True
    assert shared.run("1", if_busy="refuse").refusal is not None

    run_cli("take", shared.name, "--as", "Alice", "--kind", "human")
    bot.input("bot himself")
    refused = wait_for_entry(shared, "refused", actor="bot", after=prompt_seq(shared, prompt))
    assert refused["data"]["code"] == "not_driver"
    answered = run_cli("answer", shared.name, "Alice", "--as", "Alice", "--kind", "human").data
    assert answered["prompt_id"] == prompt.prompt_id
    assert reply_of(bot, msg_id)["content"]["status"] == "ok"
    assert text_of(iopub_until(bot, is_idle_of(msg_id)), msg_id) == "it is Alice\n"
    entry = journal(shared, "input_answered")[-1]
    assert (entry["actor"], entry["operation"]) == ("Alice", prompt.operation)
    assert entry["data"]["value"] == "Alice"
    assert shared.status().pending_input is None
    assert run_cli("answer", shared.name, "again", code=3).data["refusal"]["code"] == "no_prompt"


def prompt_seq(session: Session, prompt: shapes.Prompt) -> int:
    entry = wait_for_entry(
        session, "input_requested", where=lambda e: e["data"]["prompt_id"] == prompt.prompt_id
    )
    return int(entry["seq"])


def test_prompt_outlives_the_client_that_asked(shared: Session, closing: Closing) -> None:
    """With a bare kernel a prompt whose client has died is lost, and the kernel hangs until somebody interrupts
    it. Here it stays in `status` and can be answered.
    """
    agent = closing(AgentProcess(shared.invite("mortal").connection_file or ""))
    agent.execute("answer = input('still there? ')", allow_stdin=True)
    agent.event(channel="stdin", type="input_request")
    agent.kill()
    wait_for_status(shared, lambda s: not any(p.actor == "mortal" for p in s.presence))
    status = run_cli("status", shared.name).data
    assert status["pending_input"]["prompt"] == "still there? "
    assert status["running"][0]["actor"] == "mortal"
    run_cli("answer", shared.name, "yes")
    assert shared.wait(wait_seconds=20).status == "idle"
    assert shared.run("answer").text == "'yes'\n"


def test_several_prompts_in_one_cell_by_the_stock_client(shared: Session, clients: Clients) -> None:
    """A stock client answers each prompt of its cell by itself, in their order."""
    bot = clients(shared, "bot")
    asked: list[str] = []

    def answer(message: dict[str, dict[str, str]]) -> None:
        asked.append(message["content"]["prompt"])
        bot.input(str(len(asked)))

    reply = bot.execute_interactive(
        "a, b, c = input('a'), input('b'), input('c')", allow_stdin=True, stdin_hook=answer, timeout=30
    )
    assert reply["content"]["status"] == "ok"
    assert asked == ["a", "b", "c"]
    assert shared.run("a + b + c").text == "'123'\n"


def test_each_prompt_takes_its_own_answer(shared: Session, clients: Clients) -> None:
    """An answer that names a prompt is refused when another one waits by then: a late answer does not go astray."""
    bot = clients(shared, "bot")
    msg_id = bot.execute("first = input('first'); second = input('second')", allow_stdin=True)
    first = wait_for_prompt(shared, "first")
    run_cli("answer", shared.name, "1", "--prompt", first.prompt_id or "")
    second = wait_for_prompt(shared, "second")
    assert second.prompt_id != first.prompt_id
    late = run_cli("answer", shared.name, "1 again", "--prompt", first.prompt_id or "", code=3)
    assert late.data["refusal"]["code"] == "no_prompt"
    # One by the command line, one by the client: each is asked of his own.
    bot.get_stdin_msg(timeout=20)
    bot.get_stdin_msg(timeout=20)
    bot.input("2")
    assert reply_of(bot, msg_id)["content"]["status"] == "ok"
    assert shared.run("first, second").text == "('1', '2')\n"
    values = [e["data"]["value"] for e in journal(shared, "input_answered")[-2:]]
    assert values == ["1", "2"]


def test_a_prompt_that_is_no_text_still_asks_for_a_password(shared: Session, clients: Clients) -> None:
    """A prompt with bytes that are not UTF-8 leaves ipykernel as broken JSON; that it asks for a password must
    not be lost with it, or the answer would be recorded.
    """
    bot = clients(shared, "bot")
    msg_id = bot.execute("import getpass; token = getpass.getpass('caf\\udce9: ')", allow_stdin=True)
    prompt = wait_for_prompt(shared)
    assert (prompt.prompt, prompt.password) == ("caf\ufffd: ", True)
    assert bot.get_stdin_msg(timeout=20)["content"]["password"] is True
    bot.input(SECRET)
    assert reply_of(bot, msg_id)["content"]["status"] == "ok"
    entry = journal(shared, "input_answered")[-1]
    assert (entry["data"]["withheld"], "value" in entry["data"]) == (True, False)
    assert not [name for name, raw in all_bytes(shared_dir(shared)).items() if SECRET.encode() in raw]


def shared_dir(session: Session) -> Path:
    head = session.status().journal
    assert head is not None
    return Path(head.path or "")


@pytest.mark.parametrize("way", ["client", "command line"])
def test_a_password_is_never_recorded_or_shown(
    session: Sessions, home: Home, clients: Clients, way: str
) -> None:
    """What is answered to getpass is in no byte of any file of ours, in no message that another client gets, not in
    `status` and not in `log`; that something was answered, and by whom, is.
    """
    made = session()
    asker, other = clients(made, "asker"), clients(made, "other")
    msg_id = asker.execute("import getpass; token = getpass.getpass('token: ')", allow_stdin=True)
    question = asker.get_stdin_msg(timeout=20)
    assert question["content"] == {"prompt": "token: ", "password": True}
    prompt = wait_for_prompt(made)
    assert prompt.password
    if way == "client":
        asker.input(SECRET)
    else:
        # On standard input: an argument would be in the process list.
        run_cli("answer", made.name, "-", input=f"{SECRET}\n")
    assert reply_of(asker, msg_id)["content"]["status"] == "ok"
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert made.run("import hashlib; print(hashlib.sha256(token.encode()).hexdigest())").text == f"{digest}\n"

    seen = flush(other)
    assert any(m["msg_type"] == "execute_input" and "getpass" in m["content"]["code"] for m in seen)
    assert SECRET not in repr(seen)
    entry = journal(made, "input_answered")[-1]
    assert (entry["actor"], entry["operation"]) == (
        "asker" if way == "client" else made.actor,
        prompt.operation,
    )
    assert entry["data"]["withheld"] is True
    assert "value" not in entry["data"]
    for out in (
        run_cli("status", made.name).out,
        run_cli("log", made.name).out,
        run_cli("read", made.name).out,
    ):
        assert SECRET not in out
    files = all_bytes(home.root)
    assert any(name.endswith("journal.sqlite") for name in files)
    assert [name for name, raw in files.items() if SECRET.encode() in raw] == []
    made.close()
    assert [name for name, raw in all_bytes(home.root).items() if SECRET.encode() in raw] == []


def test_an_answer_on_anothers_stdin_is_refused(shared: Session, clients: Clients) -> None:
    """A bare kernel takes anybody's input_reply. Here a client answers only its own cell's prompt: another's reply is
    refused and in the journal, and the asker's own still counts.
    """
    bot, mallory = clients(shared, "bot"), clients(shared, "mallory")
    second_of_bot = clients.again(bot)
    msg_id = bot.execute("value = input('mine: ')", allow_stdin=True)
    bot.get_stdin_msg(timeout=20)
    prompt = wait_for_prompt(shared)
    for wrong in (mallory, second_of_bot):
        after = journal(shared)[-1]["seq"]
        wrong.input("not yours")
        refused = wait_for_entry(shared, "refused", after=after)
        assert refused["data"]["code"] == "no_prompt"
        assert "not yours" not in repr(refused)
    assert shared.status().pending_input == prompt
    bot.input("his own")
    assert reply_of(bot, msg_id)["content"]["status"] == "ok"
    assert shared.run("value").text == "'his own'\n"


def test_interrupt_ends_the_wait(shared: Session, clients: Clients) -> None:
    """An interrupt frees a cell that waits for input; nothing of the prompt stays, and the next prompt is a new
    one.
    """
    bot = clients(shared, "bot")
    msg_id = bot.execute("input('never answered')", allow_stdin=True)
    prompt = wait_for_prompt(shared)
    assert run_cli("interrupt", shared.name).data["interrupted"] == prompt.operation
    assert reply_of(bot, msg_id)["content"]["ename"] == "KeyboardInterrupt"
    ended = wait_for_entry(shared, "ended", operation=prompt.operation)
    assert (ended["data"]["outcome"], ended["data"]["by"]) == ("interrupted", shared.actor)
    assert shared.status().pending_input is None
    assert run_cli("answer", shared.name, "late", code=3).data["refusal"]["code"] == "no_prompt"
    again = bot.execute("fresh = input('again: ')", allow_stdin=True)
    wait_for_prompt(shared, "again: ")
    bot.get_stdin_msg(timeout=20)
    bot.get_stdin_msg(timeout=20)
    bot.input("fresh answer")
    assert reply_of(bot, again)["content"]["status"] == "ok"
    assert shared.run("fresh").text == "'fresh answer'\n"


def test_a_run_that_asks_says_so(shared: Session) -> None:
    """`run` in a script does not hang on input(): with a wait it returns `awaiting_input`, and `wait` gives the
    rest.
    """
    asking = run_cli("run", shared.name, "x = input('x? '); print('got', x)", "--wait", "1", code=6).data
    assert asking["status"] == "awaiting_input"
    run_cli("answer", shared.name, "42")
    done = run_cli("wait", shared.name, asking["operation"]).data
    assert (done["status"], done["text"]) == ("ok", "got 42\n")


def test_a_client_that_forbids_input_gets_the_kernels_own_error(shared: Session, clients: Clients) -> None:
    """`allow_stdin=False`: no prompt arises, as with any kernel."""
    bot = clients(shared, "bot")
    reply = reply_of(bot, bot.execute("input('no')", allow_stdin=False))
    assert reply["content"]["ename"] == "StdinNotImplementedError"
    assert shared.status().pending_input is None
