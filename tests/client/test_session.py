"""The verbs as methods, blocking and awaited: what they send, what shape comes back, what `drive` promises."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_cmdop.client import session as session_module
from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.aio_session import AsyncSession
from jupyter_cmdop.client.aio_session import sessions as async_sessions
from jupyter_cmdop.client.errors import BadAnswer, KeeperGone, Refused, UnknownSession
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from tests.client.fake_keeper import Call, FakeKeeper, MakeKeeper

FLOOR = {"driver": "alice", "generation": 2, "policy": "open", "superseded": ["o1"], "running": []}
RUN = {
    "code": "1",
    "request_id": None,
    "generation": None,
    "silent": False,
    "stop_on_error": True,
    "if_busy": "queue",
    "wait_seconds": None,
    "stream": False,
    "max_bytes": None,
}

# method, positional arguments, keyword arguments, verb, what is sent, answer, expected shape
VERBS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, dict[str, Any], dict[str, Any], type]] = [
    ("run", ("1",), {}, "run", RUN, {"status": "ok", "operation": "o1"}, shapes.RunResult),
    (
        "run",
        ("1",),
        {"request_id": "r", "generation": 3, "if_busy": "refuse", "wait_seconds": 2.0},
        "run",
        RUN | {"request_id": "r", "generation": 3, "if_busy": "refuse", "wait_seconds": 2.0},
        {"status": "running"},
        shapes.RunResult,
    ),
    (
        "wait",
        ("o1",),
        {},
        "wait",
        {"operation": "o1", "request_id": None, "wait_seconds": None},
        {"status": "error", "ename": "E"},
        shapes.RunResult,
    ),
    (
        "take",
        ("why",),
        {"running": "interrupt", "queue": "adopt", "lease_seconds": 60.0},
        "take",
        {"reason": "why", "running": "interrupt", "queue": "adopt", "lease_seconds": 60.0},
        FLOOR,
        shapes.Floor,
    ),
    ("hand_back", (), {"note": "done"}, "hand_back", {"to": None, "note": "done"}, FLOOR, shapes.Floor),
    ("hand_back", ("bob",), {}, "hand_back", {"to": "bob", "note": None}, FLOOR, shapes.Floor),
    ("release", (), {}, "release", {}, FLOOR, shapes.Floor),
    ("policy", ("turns",), {}, "policy", {"policy": "turns"}, FLOOR, shapes.Floor),
    (
        "invite",
        ("bot",),
        {"kind": "agent", "expires_seconds": 60.0},
        "invite",
        {"actor": "bot", "kind": "agent", "role": "peer", "expires_seconds": 60.0, "transport": "ipc"},
        {"connection_file": "/f", "token": "t", "actor": "bot", "expires": None, "grant": "g1"},
        shapes.Invite,
    ),
    ("revoke", ("g1",), {}, "revoke", {"grant": "g1"}, {"grant": "g1", "actor": "bot"}, shapes.Revoked),
    ("interrupt", (), {}, "interrupt", {"operation": None}, {"interrupted": "o1"}, shapes.Interrupted),
    (
        "answer",
        ("yes",),
        {"prompt_id": "p1"},
        "answer",
        {"text": "yes", "prompt_id": "p1"},
        {"operation": "o1", "prompt_id": "p1"},
        shapes.Answered,
    ),
    ("verify", ("3:aa",), {}, "verify", {"receipt": "3:aa"}, {"ok": True, "entries": 3}, shapes.VerifyReport),
    ("rename", ("other",), {}, "rename", {"name": "other"}, {"name": "other"}, shapes.Renamed),
    ("restart", (), {}, "restart", {}, {"incarnation": 2}, shapes.Restarted),
    ("close", (), {"force": True}, "close", {"force": True}, {"closed": True, "ended": [1]}, shapes.Closed),
]
VERB_IDS = [f"{entry[0]}-{number}" for number, entry in enumerate(VERBS)]


def awaited(scenario: Callable[[AsyncSession], Any], name: str = "analysis") -> Any:
    async def open_and_do() -> Any:
        async with asyncio.timeout(60), await AsyncSession.open(name) as session:
            return await scenario(session)

    return asyncio.run(open_and_do())


@pytest.mark.parametrize(("method", "args", "kwargs", "verb", "sent", "answer", "shape"), VERBS, ids=VERB_IDS)
def test_verb(
    keeper: FakeKeeper,
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    verb: str,
    sent: dict[str, Any],
    answer: dict[str, Any],
    shape: type,
) -> None:
    keeper.result(verb, **answer, from_the_future=1)
    with Session.open("analysis") as session:
        got = getattr(session, method)(*args, **kwargs)
    assert isinstance(got, shape)
    assert keeper.args_of(verb) == sent
    again = awaited(lambda session: getattr(session, method)(*args, **kwargs))
    assert again == got
    assert keeper.args_of(verb) == sent


def test_both_sessions_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(Session) == public(AsyncSession)


def test_status_and_grants(keeper: FakeKeeper) -> None:
    keeper.result("grants", grants=[{"grant": "g1", "actor": "bot", "rights": ["input"]}])
    with Session.open("analysis") as session:
        assert session.status().kernel_id == keeper.session_id
        assert [grant.actor for grant in session.grants()] == ["bot"]
        assert (session.name, session.id, session.actor) == ("analysis", keeper.session_id, "alice")
    assert awaited(lambda session: session.grants())[0].grant == "g1"


def test_run_with_items_as_they_come(keeper: FakeKeeper) -> None:
    def answer(call: Call) -> None:
        call.item(accepted={"operation": "o1", "duplicate": False})
        call.item(output={"output_type": "stream", "name": "stdout", "text": "1\n"}, seq=4)
        call.result(status="ok", operation="o1")

    keeper.on("run", answer)
    items: list[Any] = []
    with Session.open("analysis") as session:
        assert session.run("1", on_item=items.append).status == "ok"
    assert [sorted(item) for item in items] == [["accepted"], ["output", "seq"]]
    assert keeper.args_of("run")["stream"] is True
    items.clear()
    assert awaited(lambda session: session.run("1", on_item=items.append)).status == "ok"
    assert len(items) == 2


def test_read_and_follow(keeper: FakeKeeper) -> None:
    def answer(call: Call) -> None:
        for seq in (1, 2):
            call.item(
                output={"output_type": "stream", "text": str(seq)}, seq=seq, operation="o1", actor="bot"
            )
        if not call.args["follow"]:
            call.result(cursor="1:2", more=True)

    keeper.on("read", answer)
    with Session.open("analysis") as session:
        got = session.read(after="1:0", limit_bytes=10)
        assert [item.seq for item in got.items] == [1, 2]
        assert (got.cursor, got.more) == ("1:2", True)
        following = session.follow()
        assert [next(following).seq, next(following).seq] == [1, 2]
        following.close()
        assert keeper.cancels.get(timeout=10)

    async def scenario(session: AsyncSession) -> None:
        assert await session.read(after="1:0", limit_bytes=10) == got
        following = session.follow()
        assert (await anext(following)).seq == 1
        await following.aclose()

    awaited(scenario)
    assert keeper.cancels.get(timeout=10)


def test_log(keeper: FakeKeeper) -> None:
    def answer(call: Call) -> None:
        call.item(entry={"seq": 3, "type": "admitted", "new": 1})
        call.result(head={"seq": 3, "hash": "aa"})

    keeper.on("log", answer)
    with Session.open("analysis") as session:
        assert list(session.log(after=2, types=("admitted",))) == [{"seq": 3, "type": "admitted", "new": 1}]
    assert keeper.args_of("log")["types"] == ["admitted"]

    async def scenario(session: AsyncSession) -> list[Any]:
        return [entry async for entry in session.log()]

    assert awaited(scenario)[0]["seq"] == 3


def test_answer_of_another_shape_is_bad(keeper: FakeKeeper) -> None:
    keeper.result("rename", name=7)
    with Session.open("analysis") as session, pytest.raises(BadAnswer, match="no Renamed"):
        session.rename("other")


# --- opening


def test_identity_is_said_in_the_hello(keeper: FakeKeeper) -> None:
    identity = Identity(actor="bot", kind="agent", token="t", session=keeper.session_id)
    with Session.open("analysis", identity=identity, client="jupyter cmdop run", persistent=True):
        hello = keeper.hellos.get(timeout=10)
    assert (hello["actor"], hello["kind"], hello["token"]) == ("bot", "agent", "t")
    assert (hello["client"], hello["persistent"]) == ("jupyter cmdop run", True)


def test_grant_for_another_session_is_never_sent(keeper: FakeKeeper) -> None:
    with pytest.raises(Refused) as caught:
        Session.open("analysis", identity=Identity(actor="bot", token="t", session="another"))
    assert caught.value.refusal.code == "forbidden"
    assert keeper.hellos.empty()


def test_unknown_session(registry: Registry) -> None:
    with pytest.raises(UnknownSession):
        Session.open("nobody")


def test_lost_session_says_why(keeper: FakeKeeper, registry: Registry) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    registry.update(keeper.session_id, pid=gone.pid)
    with pytest.raises(UnknownSession, match="is gone"):
        Session.open("analysis")


def test_running_keeper_without_a_link(keeper: FakeKeeper) -> None:
    keeper.link.unlink()
    with pytest.raises(KeeperGone, match=f"process {os.getpid()} runs") as caught:
        Session.open("analysis")
    assert not caught.value.asked
    with pytest.raises(KeeperGone):
        asyncio.run(AsyncSession.open("analysis"))


def test_starting_session_cannot_be_opened_yet(registry: Registry) -> None:
    registry.reserve("analysis")
    with pytest.raises(KeeperGone, match="starting"):
        Session.open("analysis")


def test_async_list(keepers: MakeKeeper) -> None:
    keepers("one")
    assert [item.name for item in asyncio.run(async_sessions())] == ["one"]


# --- renaming


def test_new_name_is_held_while_the_keeper_renames(keeper: FakeKeeper, registry: Registry) -> None:
    """Between the question whether a name is free and the rename nobody else can get it."""
    seen: list[str] = []

    def answer(call: Call) -> None:
        try:
            registry.reserve("Other")
        except Refused as refused:
            seen.append(refused.refusal.code)
        call.result(name=call.args["name"])

    keeper.on("rename", answer)
    with Session.open("analysis") as session:
        session.rename("other")
    assert seen == ["name_taken"]
    assert [pointer.id for pointer in registry.list_pointers()] == [keeper.session_id]


def test_taken_name_is_refused_before_the_keeper_is_asked(keepers: MakeKeeper) -> None:
    keeper, _ = keepers("analysis"), keepers("other")
    with Session.open("analysis") as session, pytest.raises(Refused, match="a session is called other"):
        session.rename("OTHER")
    assert keeper.calls.empty()
    with pytest.raises(Refused, match="a session is called other"):
        awaited(lambda session: session.rename("OTHER"))


def test_name_may_change_its_case(keeper: FakeKeeper) -> None:
    keeper.result("rename", name="Analysis")
    with Session.open("analysis") as session:
        assert session.rename("Analysis").name == "Analysis"


# --- driving


def driving(keeper: FakeKeeper, *, driver: str | None) -> None:
    keeper.status["driver"] = driver
    for verb in ("take", "release", "hand_back"):
        keeper.result(verb, **FLOOR)


def verbs(keeper: FakeKeeper) -> list[str]:
    return [keeper.next_call()[0] for _ in range(keeper.calls.qsize())]


@pytest.mark.parametrize(
    ("before", "leaving"), [(None, "release"), ("alice", "release"), ("bob", "hand_back")]
)
def test_drive_gives_back_to_whom_it_took_from(keeper: FakeKeeper, before: str | None, leaving: str) -> None:
    driving(keeper, driver=before)
    with Session.open("analysis") as session, session.drive("why") as floor:
        assert floor.generation == 2
    assert verbs(keeper) == ["take", leaving]
    assert [keeper.hellos.get(timeout=10)["persistent"] for _ in range(2)] == [False, True]

    async def scenario(session: AsyncSession) -> None:
        async with session.drive("why") as floor:
            assert floor.generation == 2

    awaited(scenario)
    assert verbs(keeper) == ["take", leaving]


def test_drive_gives_signs_of_life(keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    driving(keeper, driver=None)
    monkeypatch.setattr(session_module, "BEAT_SECONDS", 0.01)
    with Session.open("analysis") as session, session.drive():
        for _ in range(3):
            assert keeper.beats.get(timeout=10)


def test_async_drive_gives_signs_of_life(keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    driving(keeper, driver=None)
    monkeypatch.setattr("jupyter_cmdop.client.aio_session.BEAT_SECONDS", 0.01)

    async def scenario(session: AsyncSession) -> None:
        async with session.drive():
            for _ in range(3):
                assert await asyncio.to_thread(keeper.beats.get, timeout=10)

    awaited(scenario)


def test_drive_gives_back_after_an_error(keeper: FakeKeeper) -> None:
    driving(keeper, driver=None)
    with Session.open("analysis") as session, pytest.raises(ZeroDivisionError), session.drive():
        raise ZeroDivisionError
    assert verbs(keeper) == ["take", "release"]


def test_floor_that_was_taken_meanwhile_stays_taken(keeper: FakeKeeper) -> None:
    driving(keeper, driver=None)
    keeper.on("release", lambda call: call.refuse("not_driver", "bob drives", driver="bob"))
    with Session.open("analysis") as session, session.drive():
        pass
    assert verbs(keeper) == ["take", "release"]


def test_other_refusals_at_the_end_are_told(keeper: FakeKeeper) -> None:
    driving(keeper, driver=None)
    keeper.on("release", lambda call: call.refuse("journal_unavailable", "the disk is full"))
    with (
        Session.open("analysis") as session,
        pytest.raises(Refused, match="the disk is full"),
        session.drive(),
    ):
        pass


def test_keeper_that_ends_while_one_drives(keeper: FakeKeeper) -> None:
    driving(keeper, driver=None)
    with Session.open("analysis") as session, session.drive():
        keeper.drop_links()


def test_refused_take_drives_nothing(keeper: FakeKeeper) -> None:
    driving(keeper, driver=None)
    keeper.on("take", lambda call: call.refuse("read_only", "nobody may input"))
    with Session.open("analysis") as session, pytest.raises(Refused, match="nobody"), session.drive():
        pytest.fail("the body of a refused drive runs")
    assert verbs(keeper) == ["take"]


def test_names_of_the_package_are_there() -> None:
    import jupyter_cmdop.client as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError):
        package.nothing  # noqa: B018
