"""Floods: every reader gets everything, at its own pace, and nobody else notices."""

from __future__ import annotations

import queue
import re
import threading
import time
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.keeper.kernel_listen import KernelListen
from jupyter_cmdop.keeper.kernel_state import KernelState
from jupyter_cmdop.wire.kernel import join
from tests.faults.attacks import (
    RawLink,
    call_cli,
    keeper_of,
    kernel_of,
    link_path,
    null_spec,
    rss_of,
    wait_ready,
    wait_until,
)
from tests.support import (
    LIMIT_SECONDS,
    AgentProcess,
    Clients,
    CliResult,
    Home,
    Sessions,
    control_reply_of,
    finish_cli,
    invite_client,
    iopub_until,
    is_idle_of,
    journal,
    reply_of,
    run_cli,
    start_cli,
    text_of,
    wait_for_entry,
    wait_for_running,
)

LINES = 20_000
SAID = 1500
MEMORY_BYTES = 100 * 1024 * 1024
"""What a keeper may grow by under any of these floods: the caps of a few readers, and what they cost in Python."""


@dataclass
class Flood:
    """A flood that has been, and what each of its readers saw of it."""

    live: list[dict[str, Any]] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    frozen_saw_idle: bool = False
    streamed: CliResult | None = None
    slow: list[str] = field(default_factory=list)
    neighbour_seconds: list[float] = field(default_factory=list)
    grown: int = 0


@pytest.fixture(scope="module")
def flood(home: Home, module_session: Sessions) -> Iterator[Flood]:
    """20,000 flushed lines; read by a client, a frozen client, `run`, and a link that does not read."""
    made, neighbour = module_session(), module_session()
    seen = Flood()
    live = invite_client(made, "live")
    agent = AgentProcess(made.invite("frozen").connection_file or "")
    slow = RawLink(link_path(home, made))
    keeper = keeper_of(home, made)
    before = rss_of(keeper)
    try:
        slow.send({"id": 1, "verb": "read", "args": {"follow": True}})
        agent.freeze()
        cli = start_cli("run", made.name, f"for n in range({LINES}): print(n, flush=True)", json_output=False)
        done: queue.Queue[CliResult] = queue.Queue()
        threading.Thread(target=lambda: done.put(finish_cli(cli)), daemon=True).start()
        operation = wait_for_running(made)

        while made.status().running:
            begun = time.monotonic()
            assert neighbour.run("1").status == "ok"
            seen.neighbour_seconds.append(time.monotonic() - begun)
        seen.streamed = done.get(timeout=LIMIT_SECONDS)
        seen.grown = rss_of(keeper) - before

        seen.live = iopub_until(live, lambda m: _is_idle(m, operation))
        agent.thaw()
        while not seen.frozen_saw_idle:
            event = agent.event(channel="iopub")
            if event["type"] == "stream":
                seen.frozen.append(event["content"]["text"])
            seen.frozen_saw_idle = bool(seen.frozen) and event["content"].get("execution_state") == "idle"
        while not seen.slow or not "".join(seen.slow[-2:]).endswith(f"{LINES - 1}\n"):
            frame = slow.receive()
            assert frame is not None
            if frame["item"]["operation"] == operation:
                seen.slow.append(frame["item"]["output"]["text"])
        yield seen
    finally:
        agent.close()
        slow.close()
        live.stop_channels()


def _is_idle(message: dict[str, Any], operation: str) -> bool:
    stamp = message["metadata"]["cmdop"]
    return message["content"].get("execution_state") == "idle" and stamp["operation"] == operation


def _whole() -> str:
    return "".join(f"{n}\n" for n in range(LINES))


def test_a_client_that_reads_gets_every_line_and_the_idle(flood: Flood) -> None:
    assert text_of(flood.live) == _whole()


def test_a_client_that_stood_still_gets_every_line_when_it_goes_on(flood: Flood) -> None:
    assert "".join(flood.frozen) == _whole()
    assert flood.frozen_saw_idle


def test_run_streams_every_line(flood: Flood) -> None:
    assert flood.streamed is not None
    assert flood.streamed.code == 0
    assert flood.streamed.out == _whole()


def test_a_link_that_did_not_read_gets_every_line_from_the_journal(flood: Flood) -> None:
    assert "".join(flood.slow) == _whole()


def test_the_keeper_stays_small(flood: Flood) -> None:
    assert flood.grown < MEMORY_BYTES, f"{flood.grown >> 20} MiB"


def test_another_session_does_not_notice(flood: Flood) -> None:
    """One keeper a session: what is left is the machine's own load."""
    assert len(flood.neighbour_seconds) > 1
    assert sorted(flood.neighbour_seconds)[len(flood.neighbour_seconds) // 2] < 0.5


def test_the_author_interrupts_his_own_flood(session: Sessions, clients: Clients) -> None:
    made = session()
    bot, watcher = clients(made, "bot"), clients(made, "watcher")
    endless = bot.execute("n = 0\nwhile True:\n    print(n, flush=True); n += 1")
    wait_for_running(made, "bot")
    iopub_until(bot, lambda m: m["msg_type"] == "stream" and m["content"]["text"].startswith("1000\n"))
    waiting = watcher.execute("'mine'")
    begun = time.monotonic()
    message = bot.session.msg("interrupt_request", {})
    bot.session.send(bot.control_channel.socket, message)
    control_reply_of(bot, message["header"]["msg_id"])
    assert reply_of(bot, endless)["content"]["ename"] == "KeyboardInterrupt"
    assert time.monotonic() - begun < 10
    assert reply_of(watcher, waiting)["content"]["status"] == "ok"
    seen = text_of(iopub_until(bot, is_idle_of(endless))).splitlines()
    numbers = [int(line) for line in seen if line.isdecimal()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_reader_beyond_its_cap_is_told_how_to_get_the_rest(home: Home, session: Sessions) -> None:
    """A hundred large messages for a client that stands still: the keeper keeps 64 MiB of them, not all.

    libzmq's own queue is limited in messages only: a thousand of these would be a gigabyte.
    """
    made = session()
    agent = AgentProcess(made.invite("frozen").connection_file or "")
    keeper = keeper_of(home, made)
    before = rss_of(keeper)
    count, size = 100, 1_500_000
    try:
        agent.freeze()
        # Paced, so that what the keeper has yet to record is not what is measured here.
        code = (
            f"import time\nfor n in range({count}):\n"
            f"    display({{'text/plain': f'{{n}}:' + 'x' * {size}}}, raw=True); time.sleep(0.03)"
        )
        assert made.run(code, max_bytes=1).status == "ok"
        assert rss_of(keeper) - before < 64 * 1024 * 1024 + MEMORY_BYTES
        agent.thaw()
        got: list[int] = []
        marker = None
        while marker is None:
            event = agent.event(channel="iopub")
            if event["type"] == "display_data":
                got.append(int(event["content"]["data"]["text/plain"].partition(":")[0]))
            elif event["type"] == "stream":
                marker = re.search(r"--after (\d+:\d+)", event["content"]["text"])
                assert f"jupyter cmdop read {made.name}" in event["content"]["text"]
        assert marker is not None
    finally:
        agent.close()
    assert 64 * 1024 * 1024 // size - 5 <= len(got) < count
    with made.start(calls.read(after=marker.group(1))) as stream:
        rest = [
            int(item.data["output"]["data"]["text/plain"].partition(":")[0])
            for item in stream
            if item.data["output"]["output_type"] == "display_data"
        ]
    assert got + rest == list(range(count))


def test_what_a_kernel_said_before_it_died_is_kept(home: Home, session: Sessions) -> None:
    """More than the keeper takes in one turn: its death is noticed beside messages that are still waiting."""
    made = session()
    ready, sent = home.root / "ready", home.root / "sent"
    code = f"""
import os, pathlib, time
kernel = get_ipython().kernel
print('begun', flush=True)
while not os.path.exists({str(ready)!r}): time.sleep(0.001)
for n in range({SAID}):
    kernel.session.send(
        kernel.iopub_socket, 'stream', content=dict(name='stdout', text=f'{{n}}\\n'),
        parent=kernel.get_parent(), ident=b'stream.stdout')
pathlib.Path({str(sent)!r}).touch()
time.sleep(600)
"""
    keeper, kernel = keeper_of(home, made), kernel_of(made)
    with Session.open(made.id) as other, other.start(calls.run(code, max_bytes=1 << 26)) as run:
        operation = wait_for_running(made)
        wait_for_entry(
            made, "output", operation=operation, where=lambda e: e["data"].get("message") == "stream"
        )
        keeper.suspend()
        try:
            ready.touch()
            wait_until(sent.exists, "everything was sent")
        finally:
            keeper.resume()
        begun = len(journal(made, "output"))
        wait_for_entry(made, "output", after=begun + 20)
        kernel.kill()
        for _ in run:
            pass
        result = run.outcome()
    assert result["status"] == "unknown"
    said = result["text"].split()[1:]
    assert said == [str(n) for n in range(len(said))]
    assert said


def test_a_dead_kernels_last_words_are_heard_however_many_they_are() -> None:
    """A turn takes 512 messages; what waits behind them when the process ends was lost once."""
    state = KernelState()
    listen = KernelListen(unittest.mock.Mock(), state, own_reply=lambda *_: None, own_status=lambda _: None)
    waiting = [join(b"key", [b"{}", b"{}", b"{}", b"%d" % n], identities=[b"stream"]) for n in range(SAID)]
    state.channels = unittest.mock.Mock(
        launched=unittest.mock.Mock(key=b"key"),
        sockets={"iopub": unittest.mock.Mock()},
        drain=lambda channel, most: iter([waiting.pop(0) for _ in range(min(most, len(waiting)))]),
    )
    heard: list[bytes] = []
    with unittest.mock.patch.object(listen, "_on_iopub", lambda _, message: heard.append(message.content)):
        listen.hear_out()
    assert heard == [b"%d" % n for n in range(SAID)]


def test_raw_output_of_the_process_never_blocks_it_and_is_recorded(session: Sessions) -> None:
    """What C code writes to descriptors 1 and 2 passes no protocol; a full pipe would stop the kernel."""
    made = session()
    code = """
import ctypes, os
for descriptor, letter in ((1, b'o'), (2, b'e')):
    sent = 0
    while sent < 1_000_000:
        sent += os.write(descriptor, (letter * 99 + b'\\n') * 100)
libc = ctypes.CDLL(None)
libc.puts(b'from C')
libc.fflush(None)
'done'
"""
    result = made.run(code, wait_seconds=LIMIT_SECONDS)
    assert (result.status, result.text.strip()) == ("ok", "'done'")
    wait_for_entry(made, "backend_output", where=lambda e: "from C" in e["data"]["text"])
    said = {"stdout": "", "stderr": ""}
    for entry in journal(made, "backend_output"):
        said[entry["data"]["stream"]] += entry["data"]["text"]
    assert said["stdout"].count("o" * 99 + "\n") == said["stderr"].count("e" * 99 + "\n") == 10_000
    assert "from C" in call_cli("read", made.name, "--view", "stream", json_output=False).out


def test_raw_output_of_what_a_kernel_left_behind_does_no_harm(session: Sessions) -> None:
    """A child that outlives its kernel keeps the pipe; the next kernel has its own."""
    made = session()
    made.run("import subprocess; child = subprocess.Popen(['sleep', '60'])")
    child = kernel_of(made).children()[0]
    kernel_of(made).kill()
    wait_ready(made, 2)
    assert made.run("import os; os.write(1, b'fresh\\n'); 1").status == "ok"
    wait_for_entry(made, "backend_output", where=lambda e: "fresh" in e["data"]["text"])
    child.kill()


def test_idle_that_a_kernel_has_dropped_is_said_in_its_place(
    home: Home, session: Sessions, clients: Clients
) -> None:
    """Clients show a cell as running until they see its idle: without one, for ever."""
    made = session(kernel=null_spec(home))
    bot = clients(made, "bot")
    losing = bot.execute("swallow idle")
    assert reply_of(bot, losing)["content"]["status"] == "ok"
    shown = iopub_until(
        bot,
        lambda m: (
            m["content"].get("execution_state") == "idle" and m["parent_header"].get("msg_id") == losing
        ),
    )[-1]
    assert shown["metadata"]["cmdop"]["actor"]["id"] == "keeper"
    assert "idle" in wait_for_entry(made, "gap", where=lambda e: "reason" in e["data"])["data"]["reason"]
    assert made.run("say on it goes").text == "on it goes\n"


def test_what_a_kernel_drops_is_said(home: Home, session: Sessions, clients: Clients) -> None:
    """A publisher that does not wait for its reader drops silently; the numbers of its messages tell how many."""
    made = session(kernel=null_spec(home))
    bot = clients(made, "bot")
    reply_of(bot, bot.execute("say all is well"))
    losing = bot.execute("swallow 7")
    reply_of(bot, losing)
    gap = wait_for_entry(made, "gap")
    assert gap["data"]["lost"] == 7
    shown = iopub_until(bot, lambda m: m["msg_type"] == "stream" and m["content"]["name"] == "stderr")[-1]
    assert "7 messages of the kernel are lost" in shown["content"]["text"]
    assert shown["parent_header"]["msg_id"] == losing
    assert shown["metadata"]["cmdop"]["actor"]["id"] == "keeper"
    assert "7 messages" in run_cli("read", made.name, "--view", "stream").out
    reply_of(bot, bot.execute("say all is well"))
    assert len(journal(made, "gap")) == 1
