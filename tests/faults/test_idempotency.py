"""A request id given on purpose: once, however often, however late, and whatever lies between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.grants import Attachment
from jupyter_cmdop.core.policy import InputClass
from jupyter_cmdop.core.session import Session as CoreSession
from jupyter_cmdop.core.state import REMEMBERED_OPERATIONS
from jupyter_cmdop.journal.entry import Entry
from jupyter_cmdop.journal.store import JournalStore
from jupyter_cmdop.keeper.runner import KEPT_ENDED
from tests.faults.attacks import RawEndpoint, call_cli, kernel_of, null_spec, wait_ready
from tests.support import Home, Sessions, execute_request, journal


@pytest.fixture(scope="module")
def quick(home: Home, module_session: Sessions) -> Session:
    """A session whose kernel answers at once."""
    return module_session(kernel=null_spec(home))


def test_the_journal_knows_an_id_that_the_rules_have_forgotten(tmp_path: Path) -> None:
    """The rules keep the last 4,096 operations; an older request id is found by the journal's table of requests."""
    rules = CoreSession(owner=Actor("anna", "human", "Anna"))
    rules.handle(ev.Attach(Attachment("l1", rules.owner, "owner", "link")), 0.0)
    rules.handle(ev.BackendReady(1), 0.0)
    journal_of = JournalStore.open(tmp_path / "journal", "log")

    def submit(request_id: str, digest: str) -> list[fx.Effect]:
        found = journal_of.find_request("anna", request_id)
        prior = None if found is None or found[0] is None else ev.Prior(found[0], found[1])
        return rules.handle(
            ev.Submit(
                "l1",
                client_session="s",
                msg_id=f"{request_id} {digest}",
                message_type="execute_request",
                input_class=InputClass.EXPLICIT,
                executes=True,
                digest=digest,
                request_id=request_id,
                prior=prior,
            ),
            1.0,
        )

    try:
        for number in range(REMEMBERED_OPERATIONS + 10):
            (record,) = [
                e for e in submit(f"r{number}", "d") if isinstance(e, fx.Record) and e.type == "admitted"
            ]
            entry = Entry(
                type="admitted",
                actor="anna",
                operation=record.operation,
                request_id=record.request_id,
                body=json.dumps(record.data).encode(),
                time_ns=1,
                mono_ns=1,
            )
            journal_of.append(journal_of.head.seq, 0, [entry])
            assert record.operation is not None
            rules.handle(ev.Replied(record.operation, "ok"), 1.0)
            rules.handle(ev.Idle(record.operation), 1.0)
        assert "o1" not in rules.operations
        assert [e.operation for e in submit("r0", "d") if isinstance(e, fx.Duplicate)] == ["o1"]
        (conflict,) = [e for e in submit("r0", "other") if isinstance(e, fx.Reject)]
        assert conflict.refusal.code == "request_id_conflict"
        assert "o1" in conflict.refusal.message
    finally:
        journal_of.close()


@pytest.mark.soak
def test_an_id_is_known_after_more_operations_than_are_remembered(quick: Session) -> None:
    """What has left the memory of the core and of the keeper is looked up in the journal, result and all."""
    first = quick.run("say once", request_id="early")
    assert (first.status, first.text, first.duplicate) == ("ok", "once\n", False)
    crowd = RawEndpoint(quick.invite("crowd").connection_file or "")
    content = json.dumps({**execute_request("pass"), "silent": True}).encode()
    try:
        for _ in range(max(REMEMBERED_OPERATIONS, KEPT_ENDED) // 500 + 1):
            for _ in range(500):
                crowd.send("shell", content=content)
            for _ in range(500):
                assert crowd.receive("shell")["content"]["status"] == "ok"
    finally:
        crowd.close()
    assert len(quick.status().queue) == 0
    again = quick.run("say once", request_id="early")
    assert (again.status, again.text, again.duplicate) == ("ok", "once\n", True)
    assert again.operation == first.operation
    assert quick.wait(request_id="early").text == "once\n"
    assert quick.wait(first.operation).operation == first.operation
    conflict = call_cli("run", quick.name, "say twice", "--request-id", "early", code=3)
    assert conflict.data["refusal"]["code"] == "request_id_conflict"
    assert len(journal(quick, "duplicate")) == 1
    assert len([e for e in journal(quick, "admitted") if e.get("request_id") == "early"]) == 1


def test_an_id_belongs_to_its_actor(quick: Session) -> None:
    invited = quick.invite("bot")
    mine = quick.run("say mine", request_id="same")
    env = {"CMDOP_GRANT_FILE": str(invited.connection_file)}
    his = call_cli("run", quick.name, "say his", "--request-id", "same", env=env)
    assert (his.data["duplicate"], his.data["text"]) == (False, "his\n")
    assert his.data["operation"] != mine.operation
    repeated = call_cli("run", quick.name, "say his", "--request-id", "same", env=env)
    assert (repeated.data["duplicate"], repeated.data["operation"]) == (True, his.data["operation"])


@pytest.mark.parametrize("code", ["say ok", "fail with reason"])
def test_the_first_result_comes_again_whatever_it_was(quick: Session, code: str) -> None:
    results = [
        call_cli("run", quick.name, code, "--request-id", f"id of {code}", code=None) for _ in range(3)
    ]
    assert [r.data["duplicate"] for r in results] == [False, True, True]
    first = results[0]
    for again in results[1:]:
        assert again.code == first.code
        for key in ("status", "operation", "text", "ename", "evalue", "outputs", "execution_count"):
            assert again.data[key] == first.data[key], key


def test_an_id_survives_the_kernel(home: Home, session: Sessions) -> None:
    """Not run again in the next incarnation: the outcome of the first is the outcome, also when it is unknown."""
    made = session()
    done = made.run("'done'", request_id="done")
    with (
        Session.open(made.id) as other,
        other.start(calls.run("import os; os._exit(1)", request_id="lost")) as run,
    ):
        for _ in run:
            pass
        assert run.outcome()["status"] == "unknown"
    wait_ready(made, 2)
    kernel = kernel_of(made)
    again = made.run("'done'", request_id="done")
    assert (again.duplicate, again.text, again.incarnation) == (True, done.text, 1)
    lost = call_cli("run", made.name, "import os; os._exit(1)", "--request-id", "lost", code=5)
    assert (lost.data["status"], lost.data["duplicate"]) == ("unknown", True)
    assert kernel_of(made) == kernel


def test_many_at_once_with_one_id_run_once(quick: Session) -> None:
    streams = [quick.start(calls.run("say together", request_id="together")) for _ in range(50)]
    outcomes = []
    for stream in streams:
        with stream:
            for _ in stream:
                pass
            outcomes.append(stream.outcome())
    assert len({outcome["operation"] for outcome in outcomes}) == 1
    assert {outcome["text"] for outcome in outcomes} == {"together\n"}
    assert sorted(outcome["duplicate"] for outcome in outcomes) == [False] + [True] * 49
