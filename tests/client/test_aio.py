"""The same link for asyncio: many requests at once, bounded reading, ends that reach everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client.aio import PAUSE_BYTES, AsyncConnection
from jupyter_cmdop.client.errors import KeeperGone, LinkTimeout, Refused
from tests.client.fake_keeper import Call, FakeKeeper


def perform(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await coroutine

    asyncio.run(bounded())


def test_many_requests_at_once(keeper: FakeKeeper) -> None:
    held: list[Call] = []

    def answer(call: Call) -> None:
        held.append(call)
        if len(held) == 20:
            for one in reversed(held):
                one.result(n=one.args["n"])

    keeper.on("wait", answer)

    async def scenario() -> None:
        async with await AsyncConnection.connect(str(keeper.link), client="test") as connection:
            answers = await asyncio.gather(*(connection.request("wait", {"n": n}) for n in range(20)))
            assert [answer["n"] for answer in answers] == list(range(20))

    perform(scenario())


def test_close_that_is_cancelled_leaves_nothing_open(keeper: FakeKeeper) -> None:
    """Whoever watches a session is stopped just when its keeper ends, that is, in the middle of closing the link."""

    async def scenario() -> None:
        connection = await AsyncConnection.connect(str(keeper.link), client="test")
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0)  # it runs up to its first wait
        closing.cancel()
        assert await asyncio.gather(closing, return_exceptions=True)
        assert connection._writer.is_closing()
        await connection.close()

    perform(scenario())


def test_refused_hello(keeper: FakeKeeper) -> None:
    keeper.hello_refusal = {"code": "revoked", "message": "gone"}

    async def scenario() -> None:
        with pytest.raises(Refused, match="gone"):
            await AsyncConnection.connect(str(keeper.link))

    perform(scenario())


def test_silent_keeper(keeper: FakeKeeper) -> None:
    keeper.is_mute = True

    async def scenario() -> None:
        with pytest.raises(LinkTimeout):
            await AsyncConnection.connect(str(keeper.link), timeout_seconds=0.05)

    perform(scenario())


def test_nobody_listens(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(KeeperGone):
            await AsyncConnection.connect(str(tmp_path / "link.sock"))

    perform(scenario())


def test_stream_and_its_end(keeper: FakeKeeper) -> None:
    def answer(call: Call) -> None:
        for n in range(5):
            call.item(n=n)
        call.result(cursor="1:5")

    keeper.on("read", answer)

    async def scenario() -> None:
        async with await AsyncConnection.connect(str(keeper.link)) as connection:
            async with await connection.stream("read", {}) as stream:
                assert [item.data["n"] async for item in stream] == list(range(5))
                assert await stream.outcome() == {"cursor": "1:5"}

    perform(scenario())


def test_closed_link_ends_all_waits(keeper: FakeKeeper) -> None:
    held: list[Call] = []

    def answer(call: Call) -> None:
        held.append(call)
        if len(held) == 2:
            keeper.drop_links()

    keeper.on("wait", answer)

    async def scenario() -> None:
        async with await AsyncConnection.connect(str(keeper.link)) as connection:
            answers = await asyncio.gather(
                connection.request("wait", {}, timeout_seconds=None),
                connection.request("wait", {}, timeout_seconds=None),
                return_exceptions=True,
            )
            assert [type(answer) for answer in answers] == [KeeperGone, KeeperGone]
            with pytest.raises(KeeperGone):
                await connection.request("status", {})
            await connection.beat()

    perform(scenario())


def test_cancelled_wait_is_cancelled_at_the_keeper(keeper: FakeKeeper) -> None:
    keeper.on("wait", lambda call: None)

    async def scenario() -> None:
        async with await AsyncConnection.connect(str(keeper.link)) as connection:
            task = asyncio.create_task(connection.request("wait", {}))
            await asyncio.to_thread(keeper.args_of, "wait")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(keeper.cancels.get, timeout=10) == 1

    perform(scenario())


def test_slow_reader_holds_little_and_still_gets_everything(keeper: FakeKeeper) -> None:
    """A reader who pauses leaves the rest in the socket; a request in between is answered all the same."""
    count, size = 200, 50_000

    def answer(call: Call) -> None:
        for n in range(count):
            call.item(n=n, text="x" * size)
        call.result(cursor="1:1")

    keeper.on("read", answer)

    async def scenario() -> None:
        async with await AsyncConnection.connect(str(keeper.link)) as connection:
            async with await connection.stream("read", {}) as stream:
                got = []
                async for item in stream:
                    got.append(item.data["n"])
                    assert stream._inbox.unread_bytes < PAUSE_BYTES + 10 * size
                    if len(got) == 20:
                        # Its answer stands behind everything that the keeper has to say on the stream.
                        status = await connection.request("status", {})
                        assert status["name"] == "analysis"
                        break
                got += [item.data["n"] async for item in stream]
                assert got == list(range(count))

    perform(scenario())


def test_events_end_with_the_link(keeper: FakeKeeper) -> None:
    keeper.on("status", lambda call: (call.send({"event": {"n": 1}}), call.result(), keeper.drop_links()))

    async def scenario() -> None:
        async with await AsyncConnection.connect(str(keeper.link), persistent=True) as connection:
            await connection.request("status", {})
            assert [event async for event in connection.events()] == [{"n": 1}]

    perform(scenario())
