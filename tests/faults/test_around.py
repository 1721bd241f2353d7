"""Whoever reaches the kernel around the session, with the kernel's own key: what is seen of it, and what cannot be.

Code in a kernel can read the kernel's key from its memory. What it asks the kernel then passes nobody, but the kernel
says busy and idle about nearly everything, and names the request: one that never passed us is `unattributed`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Gate,
    Sessions,
    execute_request,
    journal,
    reply_of,
    request,
    wait_for_entry,
    wait_for_running,
    wait_for_status,
)

SEEN_SECONDS = 1.0
"""The promise: so soon after the kernel is free."""
STEAL = """
import json
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
get_ipython().Completer.use_jedi = False  # it takes seconds at its first use
names = ("shell", "iopub", "stdin", "control", "hb")
info = {f"{name}_port": getattr(app, f"{name}_port") for name in names}
info |= {"transport": app.transport, "ip": app.ip, "key": app.session.key.decode()}
print(json.dumps(info | {"signature_scheme": app.session.signature_scheme}))
"""


@pytest.fixture(scope="module")
def made(module_session: Sessions) -> Session:
    return module_session()


@pytest.fixture(scope="module")
def stolen(made: Session) -> dict[str, Any]:
    """The real connection of the kernel, as code in it finds it."""
    info = json.loads(made.run(STEAL).text)
    assert isinstance(info, dict)
    return info


@pytest.fixture
def foreigner(stolen: dict[str, Any], clients: Clients) -> BlockingKernelClient:
    """A client with the kernel's own key, connected to the kernel's own sockets."""
    client = clients.add(BlockingKernelClient())
    client.load_connection_info(stolen)
    client.start_channels(hb=False)
    return client


def seq_of(session: Session) -> int:
    facts = session.status().journal
    return facts.seq if facts else 0


def wait_for_trace(session: Session, after: int, msg_id: str) -> dict[str, Any]:
    """The entry that says that the kernel was reached around the session."""
    begun = time.monotonic()
    found = wait_for_entry(
        session, "unattributed", after=after, where=lambda e: e["data"]["parent"] == msg_id
    )
    assert time.monotonic() - begun < SEEN_SECONDS
    assert found["actor"] == "unattributed"
    return found


ACTS: dict[str, Callable[[BlockingKernelClient], str]] = {
    "execute": lambda c: c.execute("around = 1"),
    "silent execute": lambda c: c.execute("around = 2", silent=True),
    "complete": lambda c: c.complete("arou"),
    "inspect": lambda c: c.inspect("print"),
    "kernel_info": lambda c: c.kernel_info(),
    "comm_open": lambda c: request(c, "comm_open", {"comm_id": "c1", "target_name": "nobody", "data": {}}),
    "unknown type": lambda c: request(c, "made_up_request", {}),
    "control kernel_info": lambda c: request(c, "kernel_info_request", {}, channel="control"),
    "control execute": lambda c: request(c, "execute_request", execute_request("3"), channel="control"),
    "interrupt": lambda c: request(c, "interrupt_request", {}, channel="control"),
    "create_subshell": lambda c: request(c, "create_subshell_request", {}, channel="control"),
}


@pytest.mark.parametrize("act", ACTS)
def test_what_is_asked_around_us_is_seen(made: Session, foreigner: BlockingKernelClient, act: str) -> None:
    after = seq_of(made)
    msg_id = ACTS[act](foreigner)
    wait_for_trace(made, after, msg_id)
    assert made.run("1 + 1").text.strip() == "2"
    assert not [e for e in journal(made, "admitted", after=after) if e["data"].get("msg_id") == msg_id]


def test_what_is_asked_of_a_busy_kernel_is_seen_when_it_is_free(
    made: Session, foreigner: BlockingKernelClient, gate: Gate
) -> None:
    after = seq_of(made)
    with Session.open(made.id) as link, link.start(calls.run(gate.code)) as running:
        wait_for_running(made)
        wait_for_entry(made, "output", after=after, where=lambda e: e["data"].get("message") == "stream")
        msg_id = foreigner.execute("around = 4")
        gate.open()
        for _ in running:
            pass
    wait_for_trace(made, after, msg_id)


def test_a_child_process_that_connects_by_itself_is_seen(made: Session, stolen: dict[str, Any]) -> None:
    """Started by a cell that passed us; what it asks the kernel is still nobody's."""
    code = f'''
import subprocess, sys
child = """
from jupyter_client.blocking.client import BlockingKernelClient
client = BlockingKernelClient()
client.load_connection_info({stolen!r})
client.start_channels(hb=False)
print(client.execute('by_a_child = 1'))
client.get_shell_msg(timeout=30)
client.stop_channels()
"""
child = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline())
'''
    after = seq_of(made)
    msg_id = made.run(code).text.strip()
    wait_for_trace(made, after, msg_id)
    assert made.run("child.wait(), by_a_child").text.strip() == "(0, 1)"


def test_what_it_prints_is_nobodys(made: Session, foreigner: BlockingKernelClient, clients: Clients) -> None:
    """Everybody sees it, as `unattributed`: in the record, and on the screen of whoever looks."""
    bot = clients(made, "bot")
    after = seq_of(made)
    msg_id = foreigner.execute("print('hello from around')")
    output = wait_for_entry(
        made, "output", after=after, actor="unattributed", where=lambda e: e["data"]["message"] == "stream"
    )
    assert output.get("operation") is None
    while True:
        shown = bot.get_iopub_msg(timeout=30)
        if shown["msg_type"] == "stream":
            break
    assert shown["parent_header"]["msg_id"] == msg_id
    assert shown["metadata"]["cmdop"]["actor"]["id"] == "unattributed"
    assert shown["metadata"]["cmdop"]["operation"] is None


# ---------------------------------------------------------------------- who knows how we tell


def test_the_keepers_own_session_is_no_disguise(made: Session, foreigner: BlockingKernelClient) -> None:
    """The keeper's own requests are shown to nobody. Code in the kernel can read under which session they come."""
    listening = """
kernel = get_ipython().kernel
receive, heard = kernel.session.recv, []
def listen(*args, **options):
    message = receive(*args, **options)
    heard.append(message[1])
    return message
kernel.session.recv = listen
input()
kernel.session.recv = receive
print([m["header"]["session"] for m in heard if m and m["msg_type"] == "input_reply"][0])
"""
    with Session.open(made.id) as link, link.start(calls.run(listening)) as running:
        wait_for_status(made, lambda s: s.pending_input)
        made.answer("anything")
        for _ in running:
            pass
        keepers = running.outcome()["text"].split()[-1]
    assert keepers.startswith("keeper-")
    after = seq_of(made)
    msg_id = request(foreigner, "execute_request", execute_request("around = 5"), header={"session": keepers})
    wait_for_trace(made, after, msg_id)
    for number in range(1, 4):  # an id that the keeper has used
        after = seq_of(made)
        again = f"{keepers}_{number}"
        request(
            foreigner,
            "execute_request",
            execute_request("around = 6"),
            header={"session": keepers},
            msg_id=again,
        )
        wait_for_trace(made, after, again)


def test_no_message_id_is_no_disguise(made: Session, foreigner: BlockingKernelClient) -> None:
    after = seq_of(made)
    request(foreigner, "execute_request", execute_request("around = 7"), msg_id="")
    wait_for_trace(made, after, "")


def test_the_message_id_of_an_admitted_cell_is_used_once(
    made: Session, foreigner: BlockingKernelClient, clients: Clients
) -> None:
    """A second `execute_input` under it is somebody else's, and so is that text."""
    bot = clients(made, "bot")
    sent = bot.execute("'mine'")
    reply_of(bot, sent)
    after = seq_of(made)
    request(foreigner, "execute_request", execute_request("'not mine'"), msg_id=sent)
    trace = wait_for_trace(made, after, sent)
    assert "message id" in trace["data"]["why"]
    inputs = [e for e in journal(made, "output", after=after) if e["data"]["message"] == "execute_input"]
    assert [e["actor"] for e in inputs] == ["unattributed"]


# ---------------------------------------------------------------------- what cannot be seen


def test_a_foreign_answer_to_a_prompt_is_not_seen(made: Session, foreigner: BlockingKernelClient) -> None:
    """Nothing on any socket tells of an `input_reply`. The record claims no answer by anybody: it has none."""
    after = seq_of(made)
    with Session.open(made.id) as link, link.start(calls.run("print('got', input())")) as running:
        wait_for_status(made, lambda s: s.pending_input)
        request(foreigner, "input_reply", {"value": "from around"}, channel="stdin")
        for _ in running:
            pass
        assert "got from around" in running.outcome()["text"]
    assert journal(made, "input_answered", "unattributed", after=after) == []


def test_output_forged_in_the_kernel_is_only_during(made: Session, clients: Clients) -> None:
    """Code in the kernel can print under another's cell: so what is printed is *during* it, never *by* its author."""
    bot = clients(made, "bot")
    sent = bot.execute("'the victim'")
    reply_of(bot, sent)
    after = seq_of(made)
    header = {"msg_id": sent, "session": bot.session.session, "msg_type": "execute_request"}
    forging = (
        "kernel = get_ipython().kernel\n"
        f"parent = {{'header': {header!r}}}\n"
        "kernel.session.send(kernel.iopub_socket, 'stream', {'name': 'stdout', 'text': 'forged'}, parent=parent)"
    )
    assert made.run(forging).status == "ok"
    wait_for_entry(made, "output", after=after, actor="bot", where=lambda e: e["data"]["message"] == "stream")
    while True:
        shown = bot.get_iopub_msg(timeout=30)
        if shown["msg_type"] == "stream":
            break
    assert shown["content"]["text"] == "forged"
    assert shown["metadata"]["cmdop"]["relation"] == "during"
    assert journal(made, "unattributed", after=after) == []


def test_what_a_thread_prints_is_only_during(made: Session, clients: Clients, gate: Gate) -> None:
    """A thread of one actor's cell prints under whatever cell runs: during that cell, and not by its author."""
    bot = clients(made, "bot")
    begun = bot.execute(
        "import threading\ngo = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(), print('of a thread', flush=True)))\nthread.start()"
    )
    reply_of(bot, begun)
    after = seq_of(made)
    with Session.open(made.id) as link:
        assert link.run("go.set(); thread.join()").status == "ok"
    printed = wait_for_entry(made, "output", after=after, where=lambda e: e["data"]["message"] == "stream")
    assert printed["actor"] in ("bot", made.actor), "ipykernel decides under which cell a thread prints"
    while True:
        shown = bot.get_iopub_msg(timeout=30)
        if shown["msg_type"] == "stream":
            break
    assert shown["metadata"]["cmdop"]["relation"] == "during"
    assert journal(made, "unattributed", after=after) == []


def test_a_wrong_signature_is_not_seen_and_does_nothing(
    made: Session, foreigner: BlockingKernelClient
) -> None:
    """The kernel drops it and complains on its own stderr, which is recorded as the kernel's."""
    after = seq_of(made)
    key, foreigner.session.key = foreigner.session.key, b"guessed"
    msg_id = foreigner.execute("guessed = True")
    foreigner.session.key = key
    # In order behind it: when this is answered, that has been dropped.
    foreigner.execute("right = True")
    reply = foreigner.get_shell_msg(timeout=30)
    assert reply["parent_header"]["msg_id"] != msg_id
    assert made.run("'guessed' in globals(), right").text.strip() == "(False, True)"
    assert msg_id not in [e["data"]["parent"] for e in journal(made, "unattributed", after=after)]
