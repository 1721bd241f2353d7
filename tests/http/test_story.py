"""The demo's story with all three of it behind a real nginx, and with one of them on the machine's own link.

A person and an agent share one kernel. The agent gets stuck on what only she knows; she takes over, mends it, and hands
back; the agent is refused meanwhile, with her name and reason, and goes on afterwards. A colleague watches all of it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from jupyter_cmdop.cli.demo_agent import AGAIN, CLEAN, NEXT, STUCK
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.server.api_feed import KINDS
from tests.faults.attacks import wait_until
from tests.http.rest import Api
from tests.server.jupyter import Server
from tests.server.nginx import Nginx, running_nginx
from tests.support import LIMIT_SECONDS

READINGS = "readings = [21.0, 21.4, None, 22.1]\ncalibration = None"
MENDED = "calibration = 1.02\nreadings[2] = 21.7"
REASON = "the calibration is mine to give"
NOTE = "calibration is there, and the gap is filled"


Seen = tuple[int, str, str | None]
"""What is seen of an entry: seq, type, actor."""


class Party(Protocol):
    """What somebody does in the story, whatever his way in."""

    def run(self, code: str) -> dict[str, Any]: ...
    def send(self, code: str) -> str: ...
    def wait(self, operation: str) -> dict[str, Any]: ...
    def take(self, reason: str) -> dict[str, Any]: ...
    def hand_back(self, to: str, note: str) -> dict[str, Any]: ...
    def status(self) -> dict[str, Any]: ...
    def refused(self, code: str) -> dict[str, Any]: ...
    def outputs(self) -> str: ...
    def journal(self) -> list[dict[str, Any]]: ...
    def note(self, text: str) -> int: ...
    def watch(self, begun: threading.Event) -> Iterator[Seen]: ...
    def leave(self) -> None: ...


class OverHttp:
    """By the HTTP API, with a grant's token."""

    def __init__(self, api: Api, session: str) -> None:
        self.api = api
        self.path = f"sessions/{session}"
        self._feed: Any = None

    def _do(self, what: str, **body: Any) -> dict[str, Any]:
        answer = self.api.post(f"{self.path}/{what}", body)
        assert answer.status in (200, 201, 202), answer
        return dict(answer.data)

    def run(self, code: str) -> dict[str, Any]:
        return self._do("run", code=code, wait_seconds=30)

    def send(self, code: str) -> str:
        return str(self._do("send", text=code)["operation"])

    def wait(self, operation: str) -> dict[str, Any]:
        answer = self.api.get(f"{self.path}/wait?operation={operation}&wait_seconds=30")
        assert answer.status == 200, answer
        return dict(answer.data)

    def take(self, reason: str) -> dict[str, Any]:
        return self._do("floor", action="take", reason=reason, running="interrupt")

    def hand_back(self, to: str, note: str) -> dict[str, Any]:
        return self._do("floor", action="hand_back", to=to, note=note)

    def status(self) -> dict[str, Any]:
        return dict(self.api.get(self.path).data)

    def refused(self, code: str) -> dict[str, Any]:
        answer = self.api.post(f"{self.path}/run", {"code": code})
        assert answer.status in (403, 409), answer
        return dict(answer.data["refusal"])

    def outputs(self) -> str:
        items = self.api.get(f"{self.path}/read").data["items"]
        return "".join(item["output"].get("text", "") for item in items)

    def journal(self) -> list[dict[str, Any]]:
        return list(self.api.get(f"{self.path}/journal?limit=1000").data["entries"])

    def note(self, text: str) -> int:
        return int(self._do("note", text=text)["seq"])

    def watch(self, begun: threading.Event) -> Iterator[Seen]:
        self._feed = self.api.feed(f"{self.path}/feed")
        self._feed.until(kind="hello")
        begun.set()
        while True:
            record = self._feed.receive()
            yield record["seq"], record["type"], record.get("actor")

    def leave(self) -> None:
        if self._feed is not None:
            self._feed.close()


class OnTheLink:
    """On the machine itself, with a grant's token."""

    def __init__(self, session: str, token: str) -> None:
        self._identity = Identity(token=token)
        self.session = Session.open(session, identity=self._identity, persistent=True)
        self._watching: Session | None = None

    def run(self, code: str) -> dict[str, Any]:
        return shapes_of(self.session.run(code, wait_seconds=30))

    def send(self, code: str) -> str:
        return str(self.session.run(code, wait_seconds=0).operation)

    def wait(self, operation: str) -> dict[str, Any]:
        return shapes_of(self.session.wait(operation, wait_seconds=30))

    def take(self, reason: str) -> dict[str, Any]:
        return shapes_of(self.session.take(reason, running="interrupt"))

    def hand_back(self, to: str, note: str) -> dict[str, Any]:
        return shapes_of(self.session.hand_back(to, note=note))

    def status(self) -> dict[str, Any]:
        return shapes_of(self.session.status())

    def refused(self, code: str) -> dict[str, Any]:
        return shapes_of(self.session.run(code, wait_seconds=30).refusal)

    def outputs(self) -> str:
        return "".join(item.output.get("text", "") for item in self.session.read().items)

    def journal(self) -> list[dict[str, Any]]:
        return list(self.session.log())

    def note(self, text: str) -> int:
        return self.session.note(text).seq

    def watch(self, begun: threading.Event) -> Iterator[Seen]:
        """From now on, as the feed."""
        self._watching = Session.open(self.session.id, identity=self._identity)
        head = list(self._watching.log())[-1]["seq"]
        begun.set()
        for entry in self._watching.log(after=head, types=list(KINDS), follow=True):
            yield entry["seq"], entry["type"], entry.get("actor")

    def leave(self) -> None:
        if self._watching is not None:
            self._watching.disconnect()
        self.session.disconnect()


def shapes_of(shape: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(shape))


class Watching(threading.Thread):
    """The colleague: reads what he is told, up to the last word of the story."""

    def __init__(self, party: Party) -> None:
        super().__init__(name="colleague", daemon=True)
        self.seen: list[Seen] = []
        self.begun = threading.Event()
        self._party = party
        self.start()
        assert self.begun.wait(LIMIT_SECONDS)

    def run(self) -> None:
        for seen in self._party.watch(self.begun):
            self.seen.append(seen)
            if seen[1] == "note":
                return


def wait_until_stuck(person: Party) -> str:
    """The agent's cell behind which another of his waits: she sees it in the session."""

    def stuck() -> str | None:
        status = person.status()
        if [op["actor"] for op in (*status["running"], *status["queue"])] != ["agent", "agent"]:
            return None
        return str(status["running"][0]["operation"])

    return str(wait_until(stuck, "the agent is stuck"))


@pytest.fixture
def nginx(server: Server, tmp_path: Path) -> Iterator[Nginx]:
    with running_nginx(tmp_path / "nginx", upstream=server.port) as made:
        yield made


@pytest.mark.parametrize("on_the_link", [None, "ann", "agent", "colleague"])
def test_story(server: Server, nginx: Nginx, on_the_link: str | None) -> None:
    proxied = copy.copy(server)
    proxied.port = nginx.port
    owner = Api(proxied)
    made = owner.make(policy="turns")
    parties: dict[str, Party] = {}
    try:
        for actor, kind, role in (
            ("ann", "human", "peer"),
            ("agent", "agent", "peer"),
            ("colleague", "human", "observer"),
        ):
            grant = owner.as_grant(made, actor, kind=kind, role=role)
            parties[actor] = OnTheLink(made, grant.token) if actor == on_the_link else OverHttp(grant, made)
        tell(made, parties["ann"], parties["agent"], parties["colleague"])
    finally:
        for party in parties.values():
            party.leave()


def tell(made: str, ann: Party, agent: Party, colleague: Party) -> None:
    watching = Watching(colleague)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (there := [p for p in ann.status()["presence"] if p["actor"] == "colleague"]):
        assert time.monotonic() < deadline
    assert {(p["kind"], p["role"]) for p in there} == {("human", "observer")}

    operations = [ann.run(READINGS)["operation"]]
    assert ann.hand_back("agent", "the mean, please")["driver"] == "agent"
    clean = agent.run(CLEAN)
    assert clean["text"] == "3 of 4 readings are usable\n"
    stuck, following = agent.send(STUCK), agent.send(NEXT)
    assert wait_until_stuck(ann) == stuck

    taken = ann.take(REASON)
    assert taken["driver"] == "ann"
    assert list(taken["superseded"]) == [following]
    ended = agent.wait(stuck)
    assert (ended["status"], ended["by"]) == ("interrupted", "ann")
    assert agent.wait(following)["status"] == "superseded"
    refused = agent.refused(AGAIN)
    assert (refused["code"], refused["driver"]) == ("not_driver", "ann")
    assert "ann" in refused["message"]
    assert REASON in refused["message"]
    assert refused["generation"] == taken["generation"]
    mended = ann.run(MENDED)
    assert mended["status"] == "ok"
    assert ann.hand_back("agent", NOTE)["driver"] == "agent"

    again = agent.run(AGAIN)
    assert (again["status"], again["text"]) == ("ok", "mean of 4 readings: 21.98\n")
    assert colleague.refused("calibration = 9")["code"] == "read_only"
    operations += [clean["operation"], stuck, following, mended["operation"], again["operation"]]

    # The colleague saw what was shown, and all that happened, each thing once and in the session's order.
    last = ann.note("that was it")
    assert "mean of 4 readings: 21.98\n" in colleague.outputs()
    watching.join(LIMIT_SECONDS)
    assert not watching.is_alive(), watching.seen
    acts = [(what, who) for _, what, who in watching.seen if what in ("taken", "handed_back", "refused")]
    assert acts == [
        ("handed_back", "ann"),
        ("taken", "ann"),
        ("refused", "agent"),
        ("handed_back", "ann"),
        ("refused", "colleague"),
    ]
    first = watching.seen[0][0]
    with Session.open(made) as owner:
        recorded = [(e["seq"], e["type"], e.get("actor")) for e in owner.log(types=list(KINDS))]
        assert owner.verify().ok
    assert watching.seen == [seen for seen in recorded if first <= seen[0] <= last]

    # And the journal says who ran what, and what became of it, to each of them the same.
    told = [who_ran_what(party.journal()) for party in (ann, agent, colleague)]
    assert told[0] == told[1] == told[2]
    assert [operation for operation, *_ in told[0]] == operations
    assert [rest for _, *rest in told[0]] == [
        ["ann", READINGS, "ok"],
        ["agent", CLEAN, "ok"],
        ["agent", STUCK, "interrupted"],
        ["agent", NEXT, "superseded"],
        ["ann", MENDED, "ok"],
        ["agent", AGAIN, "ok"],
    ]


def who_ran_what(entries: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    outcomes = {e["operation"]: e["data"]["outcome"] for e in entries if e["type"] == "ended"}
    return [
        (e["operation"], e["actor"], e["data"]["code"], outcomes[e["operation"]])
        for e in entries
        if e["type"] == "admitted"
    ]
