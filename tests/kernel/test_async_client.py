"""The same session from asyncio: `AsyncSession` does what `Session` does, and many of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jupyter_cmdop.client import AsyncSession
from jupyter_cmdop.client.errors import Refused
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import Session
from tests.support import LIMIT_SECONDS, Home, Sessions, run_cli


@pytest.fixture(scope="module")
def shared(module_session: Sessions) -> Session:
    return module_session()


def go(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), LIMIT_SECONDS))


def test_run_take_hand_back_read(shared: Session) -> None:
    """An agent framework's loop: run, read by cursor, take over, hand back."""

    async def work() -> None:
        async with await AsyncSession.open(
            shared.id, identity=Identity(actor="loop", kind="agent")
        ) as session:
            assert session.actor == "loop"
            result = await session.run("value = 20; print('from asyncio'); value + 1")
            assert (result.status, result.text) == ("ok", "from asyncio\n21\n")
            cursor = (await session.read()).cursor
            items: list[str] = []
            result = await session.run(
                "print('a', flush=True); print('b')",
                on_item=lambda item: items.append(next(iter(item))),
            )
            assert items[0] == "accepted"
            assert "output" in items
            texts = [item.output["text"] for item in (await session.read(after=cursor)).items]
            assert "".join(texts) == "a\nb\n"

            shared.take("first")
            floor = await session.take("my turn")
            assert floor.driver == "loop"
            assert shared.run("1").refusal is not None
            assert (await session.hand_back(note="thanks")).driver == shared.actor
            assert (await session.run("1")).status == "refused"
            with pytest.raises(Refused):
                await session.release()
            shared.release()
            assert (await session.status()).driver is None
            assert (await session.verify()).ok

    go(work)


def test_many_runs_at_once_and_one_order(shared: Session) -> None:
    """Twenty coroutines on twenty links run at once: each gets its own result, and the counter never jumps."""

    async def work() -> None:
        async def one(number: int) -> int:
            async with await AsyncSession.open(shared.id) as session:
                result = await session.run(f"{number} * 1000")
                assert result.text == f"{number * 1000}\n"
                return result.execution_count or 0

        counts = sorted(await asyncio.gather(*(one(n) for n in range(20))))
        assert counts == list(range(counts[0], counts[0] + 20))

    go(work)


def test_follow_and_answer(shared: Session) -> None:
    """Following output and answering a prompt from the same loop, on one link."""

    async def work() -> None:
        async with await AsyncSession.open(shared.id) as session:
            cursor = (await session.read()).cursor
            running = asyncio.create_task(session.run("name = input('name? '); print('hello', name)"))
            async for entry in session.log(types=("input_requested",), follow=True):
                if entry["data"]["prompt"] == "name? ":
                    break
            prompt = (await session.status()).pending_input
            assert prompt is not None
            await session.answer("async", prompt_id=prompt.prompt_id)
            async for item in session.follow(after=cursor):
                if "hello async" in item.output.get("text", ""):
                    break
            assert (await running).status == "ok"

    go(work)


def test_drive_gives_back(shared: Session) -> None:
    """`async with session.drive()` holds the floor for a block, also when the block fails."""

    async def work() -> None:
        async with await AsyncSession.open(
            shared.id, identity=Identity(actor="loop", kind="agent")
        ) as session:
            shared.take()

            async def drive_into_a_wall() -> None:
                async with session.drive("a look") as floor:
                    assert floor.driver == "loop"
                    assert (await session.run("2")).status == "ok"
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await drive_into_a_wall()
            assert (await session.status()).driver == shared.actor
            shared.release()

    go(work)


def test_cancelling_a_wait_leaves_the_cell(shared: Session) -> None:
    """A timeout in the caller cancels the wait, not the work; the result is there afterwards."""

    async def work() -> None:
        async with await AsyncSession.open(shared.id) as session:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(
                    session.run("import time; time.sleep(1); print('went on')", request_id="patient"), 0.3
                )
            result = await session.wait(request_id="patient")
            assert (result.status, result.text) == ("ok", "went on\n")

    go(work)


def test_create_and_close(home: Home) -> None:
    """A session made and ended from asyncio; nothing of it is left but its journal."""

    async def work() -> None:
        async with await AsyncSession.create("from-asyncio") as made:
            assert (await made.run("6 * 7")).text == "42\n"
            assert (await made.restart()).incarnation == 2
            assert (await made.close(force=True)).closed

    go(work)
    outcomes = [e["data"]["outcome"] for e in run_cli("log", "from-asyncio", "--type", "ended").lines]
    assert outcomes == ["ok"]
