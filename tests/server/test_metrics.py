"""What others can watch: the metrics, the events from the journal, and who asked for a session."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, Self

import pytest
import websocket
from jupyter_events import EventLogger
from prometheus_client import REGISTRY

from jupyter_cmdop.client.errors import KeeperGone, RequestFailed
from jupyter_cmdop.client.protocol import Item
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.server import events, metrics, session_kernel
from jupyter_cmdop.server.identity import Person
from jupyter_cmdop.server.metrics import Measured
from jupyter_cmdop.server.session_kernel import SessionKernel
from tests.server.jupyter import Server, Servers
from tests.server.test_identity import IMPORTS, PROVIDER, xsrf_headers
from tests.support import LIMIT_SECONDS, Closing, run_cli

ONE = "11111111-1111-4111-8111-111111111111"
SECRET = "do_not_tell_this"
OPEN: dict[str, Any] = {"state": "open", "connections": 2, "queued": 3, "refused": 4, "journal_waiting": 5}

# ---------------------------------------------------------------------- sums


def sums() -> dict[str, float]:
    names = {metric.name: metric for metric in REGISTRY.collect() if metric.name.startswith("cmdop_")}
    return {
        sample.labels.get("state", sample.name): sample.value
        for metric in names.values()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


@pytest.fixture
def changes() -> Callable[[], dict[str, float]]:
    """`changes()` is what has changed in the sums since the test began."""
    before = sums()
    return lambda: {key: value - before[key] for key, value in sums().items() if value != before[key]}


def test_sums_follow_what_keepers_say_and_forget_who_is_gone(changes: Callable[[], dict[str, float]]) -> None:
    first, second = Measured(), Measured()
    first.heard(OPEN)
    second.heard({**OPEN, "state": "starting"})
    assert changes() == {
        "open": 1,
        "starting": 1,
        "cmdop_attachments": 4,
        "cmdop_queued_operations": 6,
        "cmdop_journal_waiting_entries": 10,
    }
    first.heard({**OPEN, "state": "lost", "connections": 0, "queued": 0, "journal_waiting": 0})
    second.gone()
    assert changes() == {"lost": 1}
    first.gone()
    first.gone()
    assert changes() == {}


def test_refusals_are_counted_from_the_first_word_and_stay_counted(
    changes: Callable[[], dict[str, float]],
) -> None:
    measured = Measured()
    measured.heard(OPEN)
    measured.heard({**OPEN, "refused": 7})
    measured.heard({**OPEN, "refused": 7})
    measured.gone()
    assert changes() == {"cmdop_refusals_total": 3}


@pytest.mark.parametrize("bad", [{}, {"state": ["x"], "connections": "2", "queued": None, "refused": -1}])
def test_what_is_no_number_counts_as_none(
    bad: dict[str, Any], changes: Callable[[], dict[str, float]]
) -> None:
    measured = Measured()
    measured.heard(bad)
    assert changes() == {"other": 1}
    measured.gone()


def test_module_can_be_imported_again() -> None:
    spec = importlib.util.find_spec(metrics.__name__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    sys.modules["again"] = again
    try:
        spec.loader.exec_module(again)
    finally:
        del sys.modules["again"]
    assert again.METRICS == metrics.METRICS


def test_no_label_names_a_session() -> None:
    labels = {
        key for m in REGISTRY.collect() if m.name.startswith("cmdop_") for s in m.samples for key in s.labels
    }
    assert labels == {"state"}


# ---------------------------------------------------------------------- from entries to events


def entry(**changed: Any) -> dict[str, Any]:
    return {"seq": 7, "type": "taken", "actor": "ann", "generation": 2, "hash": "00", **changed}


def test_event_has_named_keys_and_nothing_else() -> None:
    data = {"from": "bot", "to": "ann", "reason": "x" * 600, "client": SECRET, "code": SECRET}
    assert events.event_of(entry(data=data)) == (
        events.FLOOR_SCHEMA_ID,
        {
            "action": "taken",
            "seq": 7,
            "actor": "ann",
            "generation": 2,
            "from": "bot",
            "to": "ann",
            "reason": "x" * 500,
        },
    )
    refused = entry(
        type="refused",
        data={"code": "busy", "message": SECRET, "what": f"print('{SECRET}')", "outcome": "ok"},
    )
    assert events.event_of(refused) == (
        events.OPERATION_SCHEMA_ID,
        {"status": "refused", "seq": 7, "actor": "ann", "generation": 2, "code": "busy"},
    )
    assert events.event_of(entry(type="output", data={"text": SECRET})) is None
    assert events.event_of({}) is None


BAD: list[dict[str, Any]] = [
    entry(seq="7"),
    entry(actor=["ann"]),
    entry(type=["taken"]),
    entry(data="text"),
    entry(data={"from": 1}),
    {"type": "taken"},
    {"type": "ended", "data": {"outcome": {}}},
]


def test_bad_entries_and_bad_modifiers_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(_bad_entries_and_bad_modifiers(caplog))


async def _bad_entries_and_bad_modifiers(caplog: pytest.LogCaptureFixture) -> None:
    logger, told = EventLogger(), []
    events.register(logger)
    events.register(logger)  # as a second server in the process does

    async def listen(logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        told.append(data)

    for schema_id in (events.FLOOR_SCHEMA_ID, events.OPERATION_SCHEMA_ID):
        logger.add_listener(schema_id=schema_id, listener=listen)
    session: Any = SimpleNamespace(name="a", kernel_id=ONE)
    with caplog.at_level(logging.WARNING):
        for bad in BAD:
            events.emit_entry(logger, session, bad)
        events.emit_entry(logger, session, entry(seq=8, data={"to": "ann"}))
    await asyncio.gather(*logger._active_listeners)
    assert [data["seq"] for data in told] == [7, 8]  # `data` that is no object is left out, the entry is told
    assert "is not told" in caplog.text

    def fail(schema_id: str, data: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("somebody else's fault")

    logger.add_modifier(schema_id=events.FLOOR_SCHEMA_ID, modifier=fail)
    events.emit_entry(logger, session, entry(seq=9))
    assert "somebody else's fault" in caplog.text


# ---------------------------------------------------------------------- following


class FakeStream:
    """What a keeper answers: items, then an error, or nothing more."""

    def __init__(self, items: list[Any], end: Exception | None) -> None:
        self.items, self.end = items, end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[Item]:
        for item in self.items:
            yield Item(item)
        if self.end is not None:
            raise self.end
        await asyncio.Event().wait()


class FakeLink:
    """One link to a keeper whose journal has three entries that were there, and some that come."""

    failure = None

    def __init__(self, log: list[FakeStream], activity: FakeStream) -> None:
        self.welcome = SimpleNamespace(session={"journal": {"seq": 3}})
        self.log, self.activity = log, activity
        self.after: list[int] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stream(self, verb: str, args: Mapping[str, Any]) -> FakeStream:
        if verb == "activity":
            return self.activity
        assert args["follow"]
        assert set(args["types"]) == {*events.JOURNAL_TYPES, "revoked"}
        self.after.append(args["after"])
        return self.log.pop(0)


def test_journal_is_followed_from_its_head_and_after_a_break_from_what_was_told(
    monkeypatch: pytest.MonkeyPatch, changes: Callable[[], dict[str, float]]
) -> None:
    """The first link tells two entries, cannot read the journal for a moment, tells a third and breaks."""
    gone = KeeperGone("it broke")
    first = FakeLink(
        [
            FakeStream(
                [{"entry": entry(seq=4)}, {"entry": "damaged"}, {}, {"entry": entry(seq=6)}],
                RequestFailed("journal", "not now"),
            ),
            FakeStream([{"entry": entry(seq=9)}], gone),
        ],
        FakeStream([OPEN], None),
    )
    second = FakeLink([FakeStream([{"entry": entry(seq=12)}], None)], FakeStream([OPEN], None))
    links = [first, second]

    async def connect(*_: object, **__: object) -> FakeLink:
        return links.pop(0)

    async def follow() -> list[Any]:
        told: asyncio.Queue[int] = asyncio.Queue()

        def recorded(session: SessionKernel, entry: Mapping[str, Any]) -> None:
            told.put_nowait(entry["seq"])

        kernel = SessionKernel(
            ONE,
            name="a",
            kernel_name="python3",
            link="",
            workspace=None,
            changed=lambda session: None,
            noticed=lambda session, action, why: None,
            gone=lambda session, how, why: None,
            recorded=recorded,
            acted=lambda session, action, error: None,
            person=lambda: Person(Actor("me"), "owner", owns=True),
        )
        kernel.watch()
        seen = [await told.get() for _ in range(3)]
        assert changes()["open"] == 1
        first.activity.end = gone
        await kernel.stop()
        assert "open" not in changes()
        kernel.watch()
        seen.append(await told.get())
        await kernel.stop()
        left = {task.get_name() for task in asyncio.all_tasks() if "cmdop" in task.get_name()}
        return [*seen, left]

    monkeypatch.setattr(session_kernel.AsyncConnection, "connect", connect)
    monkeypatch.setattr(session_kernel, "JOURNAL_AGAIN_SECONDS", 0)
    assert asyncio.run(follow()) == [4, 6, 9, 12, set()]
    assert (first.after, second.after) == ([3, 6], [9])
    assert changes() == {}


# ---------------------------------------------------------------------- a real server


class Bus:
    """The event bus, as whoever may read it sees it."""

    def __init__(self, server: Server) -> None:
        self.raw: list[str] = []
        self.ws = websocket.create_connection(
            f"{server.url.replace('http', 'ws', 1)}/api/events/subscribe",
            header=[f"Authorization: token {server.token}"],
            timeout=LIMIT_SECONDS,
            http_no_proxy=["127.0.0.1"],
        )

    def until(self, **fields: Any) -> dict[str, Any]:
        while True:
            self.raw.append(str(self.ws.recv()))
            event = json.loads(self.raw[-1])
            if all(event.get(key) == value for key, value in fields.items()):
                return dict(event)

    def close(self) -> None:
        self.ws.close()


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", server.get("/metrics").body.decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def test_floor_and_operations_are_told_and_code_is_not(server: Server, closing: Closing) -> None:
    bus = closing(Bus(server))
    kernel_id = server.start_kernel()
    refused = metric(server, "cmdop_refusals_total")
    assert metric(server, 'cmdop_sessions{state="open"}') == 1
    with Session.open(kernel_id) as session:
        name, owner = session.status().name, session.actor
        token = str(run_cli("invite", name, "--as", "bot").data["token"])
        ws = closing(server.connect(kernel_id, token=token))
        assert ws.run(f"print('{SECRET}')") == f"{SECRET}\n"
        admitted = bus.until(status="admitted")
        assert admitted["schema_id"] == events.OPERATION_SCHEMA_ID
        assert (admitted["actor"], admitted["kernel_id"], admitted["session"]) == ("bot", kernel_id, name)
        ended = bus.until(status="ended")
        assert (ended["operation"], ended["outcome"]) == (admitted["operation"], "ok")
        session.take("my turn")
        taken = bus.until(action="taken")
        assert taken["schema_id"] == events.FLOOR_SCHEMA_ID
        assert (taken["actor"], taken["to"], taken["reason"]) == (owner, owner, "my turn")
        assert taken["generation"] == session.status().generation
        ws.until_idle(ws.execute(f"{SECRET} = 1"))
        event = bus.until(status="refused")
        assert (event["actor"], event["code"], event["what"]) == ("bot", "not_driver", "execute_request")
        assert "operation" not in event
        session.hand_back("bot")
        assert bus.until(action="handed_back")["to"] == "bot"
        journal = {line["seq"]: line["type"] for line in session.log()}
    assert (journal[taken["seq"]], journal[event["seq"]]) == ("taken", "refused")
    assert not [text for text in bus.raw if SECRET in text]
    server.wait_for_kernel(kernel_id, connections=1)
    assert metric(server, "cmdop_attachments") == 1
    assert metric(server, "cmdop_refusals_total") == refused + 1
    run_cli("close", name, "--force")
    bus.until(action="closed")
    assert metric(server, 'cmdop_sessions{state="open"}') == 0
    assert metric(server, "cmdop_attachments") == 0
    assert metric(server, "cmdop_refusals_total") == refused + 1


def test_adopted_session_is_told_of_from_its_adoption_and_openers_are_named(
    server: Server, servers: Servers, closing: Closing
) -> None:
    kernel_id = server.start_kernel()
    with Session.open(kernel_id) as session:
        [opened] = session.log(types=["opened"])
        assert opened["actor"] == session.actor
        session.run("1")
        second = servers(PROVIDER, root=server.root, env=IMPORTS)
        bus = closing(Bus(second))
        later = session.run("2").operation
    assert bus.until(status="admitted")["operation"] == later
    headers = xsrf_headers(second, {"X-User": "alice"})
    answer = second.post("/api/kernels", {"name": "python3"}, token=None, headers=headers)
    assert answer.status == 201
    with Session.open(answer.data["id"]) as session:
        [opened] = session.log(types=["opened"])
    assert opened["actor"] == "example:alice"
