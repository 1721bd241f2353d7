"""Reading output by cursor: from anywhere, without a gap and without anything twice, while more comes."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from jupyter_cmdop.client import calls, shapes
from jupyter_cmdop.client.session import Session
from tests.support import (
    Clients,
    Closing,
    Gate,
    Sessions,
    finish_cli,
    flush,
    reply_of,
    run_cli,
    start_cli,
    wait_for_entry,
    wait_for_running,
)

ODD = "nul \0, bell \a, escape \x1b[31mred\x1b[0m, carriage\rreturn, é, 中文, 🎉, \u2028, \ufffe, '\"\\\\"


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    """A session with some past: streams of several actors, results, displays, errors, clear_output."""
    made = module_session()
    made.run("from IPython.display import display, clear_output, update_display; import sys, time")
    for n in range(20):
        made.run(f"print('line {n}', flush=True); print('err {n}', file=sys.stderr, flush=True); {n}")
    made.run("for n in range(300): print(n, flush=True)")
    made.run("handle = display('first', display_id=True); handle.update('second')")
    made.run("print('gone'); clear_output(); print('stays')")
    made.run("1 / 0")
    return made


def keys(items: tuple[shapes.OutputItem, ...] | list[shapes.OutputItem]) -> list[tuple[int, str]]:
    return [(item.seq or 0, repr(item.output)) for item in items]


def test_reading_from_random_points_gives_the_whole(shared: Session) -> None:
    """Wherever a reader begins again with the cursor of what it has, it gets the rest: no gap, nothing twice."""
    whole = shared.read()
    assert len(whole.items) > 100
    everything = keys(whole.items)
    assert [seq for seq, _ in everything] == sorted({seq for seq, _ in everything})
    last = int((whole.cursor or "").partition(":")[2])
    chance = random.Random(7)
    for _ in range(20):
        cut = chance.randrange(last + 1)
        after = shared.read(after=f"1:{cut}")
        assert keys(after.items) == [item for item in everything if item[0] > cut]
        assert after.cursor == whole.cursor
    cuts = sorted(chance.sample(range(last), 10))
    pieces: list[tuple[int, str]] = []
    begin = 0
    for cut in [*cuts, last]:
        pieces += [item for item in keys(shared.read(after=f"1:{begin}").items) if item[0] <= cut]
        begin = cut
    assert pieces == everything


def test_the_command_line_reads_the_same(shared: Session) -> None:
    """`read` prints everything kept, oldest first; `read --after CURSOR` the rest after it, with the cursor to
    go on from.
    """
    read = run_cli("read", shared.name).data
    items = read["items"]
    assert (read["cursor"], read["more"]) == (shared.read().cursor, False)
    assert [(i["seq"], repr(i["output"])) for i in items] == keys(shared.read().items)
    middle = items[len(items) // 2]
    after = run_cli("read", shared.name, "--after", f"1:{middle['seq']}").data
    assert after["items"] == items[len(items) // 2 + 1 :]
    plain = run_cli("read", shared.name, json_output=False)
    assert "line 19\n" in plain.out
    assert "ZeroDivisionError" in plain.err
    assert "ZeroDivisionError" not in plain.out
    assert run_cli("read", shared.name, "--after", "nonsense", code=None).code in (1, 2)


def test_a_page_at_a_time(shared: Session) -> None:
    """With a limit a reader gets pages, each with the cursor of the next, until `more` is false."""
    pages: list[tuple[int, str]] = []
    cursor: str | None = None
    count = 0
    while True:
        page = shared.read(after=cursor, limit_bytes=4000)
        pages += keys(page.items)
        count += 1
        if not page.more:
            break
        assert page.cursor != cursor
        cursor = page.cursor
    assert pages == keys(shared.read().items)
    assert count > 1


def test_following_while_output_goes_on(shared: Session, clients: Clients, gate: Gate) -> None:
    """Several readers follow from different cursors while a cell prints: each sees everything after its cursor
    once, in order, and what they saw is what is there afterwards.
    """
    bot = clients(shared, "bot")
    start = int((shared.read().cursor or "").partition(":")[2])
    chance = random.Random(3)
    cursors = [0, start, *(chance.randrange(start) for _ in range(3))]
    links = [Session.open(shared.id) for _ in cursors]
    try:
        streams = [
            link.start(calls.read(after=f"1:{cursor}", follow=True))
            for link, cursor in zip(links, cursors, strict=True)
        ]
        msg_id = bot.execute(
            f"for n in range(2000): print('live', n, flush=n % 7 == 0)\n{gate.code}\nprint('last')"
        )
        wait_for_running(shared, "bot")
        late = Session.open(shared.id)
        links.append(late)
        cursors.append(start)
        streams.append(late.start(calls.read(after=f"1:{start}", follow=True)))
        gate.open()
        seen = [collect_until(stream, "last") for stream in streams]
        reply_of(bot, msg_id)
        whole = keys(shared.read().items)
        end = max(seq for seq, _ in whole)
        for cursor, items in zip(cursors, seen, strict=True):
            assert items == [item for item in whole if cursor < item[0] <= end]
        text = "".join(i.output["text"] for i in shared.read(after=f"1:{start}").items)
        assert text == "".join(f"live {n}\n" for n in range(2000)) + "waiting\nlast\n"
        for stream in streams:
            stream.close()
    finally:
        for link in links:
            link.disconnect()


def collect_until(stream: Any, text: str) -> list[tuple[int, str]]:
    items = []
    for item in stream:
        shown = shapes.read_as(shapes.OutputItem, item.data)
        items.append((shown.seq or 0, repr(shown.output)))
        if text in str(shown.output.get("text", "")):
            return items
    raise AssertionError(f"it ended before {text!r}")


def test_follow_on_the_command_line(shared: Session, closing: Closing) -> None:
    """`read --follow` shows what comes, as it comes, and ends with the session or Ctrl-C."""
    cursor = shared.read().cursor
    process = start_cli("read", shared.name, "--after", cursor or "", "--follow")
    assert process.stdout is not None
    shared.run("print('to the follower')")
    first = process.stdout.readline()
    assert "to the follower" in first
    process.terminate()
    finish_cli(process)


def test_odd_characters_and_binary_survive(shared: Session, clients: Clients) -> None:
    """What was printed is what is read, control characters and all; images come back byte for byte."""
    watcher = clients(shared, "watcher")
    flush(watcher)
    odd = shared.read().cursor or ""
    png = bytes(range(256)) * 3
    code = (
        f"print({ODD!r})\n"
        "import base64\n"
        "image = base64.b64encode(bytes(range(256)) * 3).decode()\n"
        "display({'image/png': image, 'text/plain': 'x'}, raw=True)\n"
        "import os; os.write(1, bytes(range(128, 256)) + b'\\n')"
    )
    assert shared.run(code).status == "ok"
    items = shared.read(after=odd).items
    text = "".join(i.output["text"] for i in items if i.output["output_type"] == "stream")
    assert f"{ODD}\n" in text
    image = next(i.output for i in items if i.output["output_type"] == "display_data")
    assert base64.b64decode(image["data"]["image/png"]) == png
    assert any(m["msg_type"] == "display_data" for m in flush(watcher))


def test_bytes_that_are_no_text_are_shown_as_such(shared: Session, clients: Clients) -> None:
    """A file name that is not UTF-8 (`os.listdir` gives it as half surrogates) leaves ipykernel as broken JSON:
    printed or in an error it is shown with a replacement character, and `run`, `read` and other clients go on.
    """
    watcher = clients(shared, "watcher")
    flush(watcher)
    assert shared.run("print('caf\\udce9')").text == "caf\ufffd\n"
    failed = run_cli("run", shared.name, "raise ValueError('caf\\udce9')", code=1).data
    assert (failed["status"], failed["ename"], failed["evalue"]) == ("error", "ValueError", "caf\ufffd")
    assert "ValueError" in failed["traceback"][-1]
    assert [o["evalue"] for o in failed["outputs"]] == ["caf\ufffd"]
    assert shared.run("print('fine')").text == "fine\n"
    assert [m["content"]["text"] for m in flush(watcher) if m["msg_type"] == "stream"] == [
        "caf\ufffd\n",
        "fine\n",
    ]


def test_a_large_output_is_whole_for_everybody(shared: Session, clients: Clients) -> None:
    """Jupyter drops output beyond a rate; here nothing is dropped: eight megabytes in 20,000 lines and one of three
    megabytes arrive at a stock client and in `read`, and `run` says where the rest of a cut result is.
    """
    watcher = clients(shared, "watcher")
    flush(watcher)
    cursor = shared.read().cursor
    result = shared.run("for n in range(20000): print(n, 'x' * 400)\nprint('y' * 3_000_000)")
    assert result.status == "ok"
    assert result.truncated is not None
    expected = "".join(f"{n} {'x' * 400}\n" for n in range(20000)) + "y" * 3_000_000 + "\n"
    read = "".join(i.output["text"] for i in shared.read(after=cursor).items)
    assert read == expected
    seen = flush(watcher)
    assert "".join(m["content"]["text"] for m in seen if m["msg_type"] == "stream") == expected
    shown = (result.text or "").removesuffix("\n")
    rest = shared.read(after=result.truncated.read_after)
    assert expected.startswith(shown)
    assert (result.text or "") + "".join(i.output["text"] for i in rest.items) == expected


def test_reading_after_the_end(session: Sessions) -> None:
    """The same cursors go on to be good when the session is closed and its keeper gone."""
    made = session()
    made.run("print('one')")
    cursor = made.read().cursor
    made.run("print('two')")
    wait_for_entry(made, "ended", operation="o2")
    whole = run_cli("read", made.name).data["items"]
    made.close()
    assert run_cli("read", made.name).data["items"] == whole
    rest = run_cli("read", made.name, "--after", cursor or "").data
    assert [item["output"]["text"] for item in rest["items"]] == ["two\n"]
