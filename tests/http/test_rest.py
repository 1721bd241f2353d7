"""What the API does, verb by verb, with a real server and real kernels."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from tests.http.rest import Api, name
from tests.server.jupyter import Server, Servers
from tests.server.test_identity import IMPORTS, PROVIDER, xsrf_headers
from tests.support import Gate, Sessions, wait_for_entry, wait_for_running, wait_for_status


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


def test_session_is_made_found_renamed_and_closed(api: Api, server: Server) -> None:
    chosen = name()
    made = api.post("sessions", {"name": chosen})
    assert (made.status, made.data["name"], made.data["created"]) == (201, chosen, True)
    assert made.headers["Location"].endswith(f"/cmdop/api/sessions/{made.data['id']}")
    assert [s["name"] for s in api.get("sessions").data["sessions"]] == [chosen]
    assert made.data["id"] in server.kernels()  # it is a kernel of this server as any other
    status = api.get(f"sessions/{chosen}").data
    assert (status["id"], status["policy"], status["driver"]) == (made.data["id"], "open", None)

    taken = api.post("sessions", {"name": chosen.upper()})
    assert (taken.status, taken.data["code"]) == (409, "name_taken")
    assert taken.data["next"]
    found = api.post("sessions", {"name": chosen, "attach": True})
    assert (found.status, found.data["id"], found.data["created"]) == (200, made.data["id"], False)

    other = name()
    assert api.request("PATCH", f"sessions/{chosen}", {"name": other}).data == {"name": other}
    assert api.get(f"sessions/{chosen}").data["code"] == "unknown_session"
    assert api.get(f"sessions/{made.data['id']}").data["name"] == other
    assert api.request("DELETE", f"sessions/{other}").data["closed"] is True
    server.wait_for_end(made.data["id"])
    gone = api.get(f"sessions/{other}")
    assert (gone.status, gone.data["code"]) == (404, "unknown_session")


def test_run_answers_with_the_operation(api: Api) -> None:
    made = api.make()
    result = api.run(made, "print('out'); 6 * 7")
    assert (result["status"], result["text"]) == ("ok", "out\n42\n")
    assert result["cursor"]
    assert result["receipt"]
    failed = api.run(made, "1 / 0")
    assert (failed["status"], failed["ename"]) == ("error", "ZeroDivisionError")


def test_run_that_goes_on_is_a_202_which_says_where_to_wait(api: Api, gate: Gate) -> None:
    made = api.make()
    begun = api.post(f"sessions/{made}/run", {"code": gate.code, "wait_seconds": 0, "request_id": "r1"})
    assert (begun.status, begun.data["operation"]) == (202, "o1")
    place = begun.headers["Location"].partition("/cmdop/api/")[2]
    with Session.open(made) as session:
        wait_for_running(session)
    assert api.get(f"{place}&wait_seconds=0").status == 202
    assert api.get(f"sessions/{made}/wait?wait_seconds=0").status == 202  # the session is not quiet
    gate.open()
    ended = api.get(f"{place}&wait_seconds=30")
    assert (ended.status, ended.data["status"]) == (200, "ok")
    again = api.get(f"sessions/{made}/wait?request_id=r1")
    assert (again.status, again.data["operation"]) == (200, "o1")
    assert api.get(f"sessions/{made}/wait?wait_seconds=30").data["status"] == "idle"
    assert api.get(f"sessions/{made}/wait?wait_seconds=61").data["code"] == "bad_request"


def test_same_request_never_runs_twice(api: Api) -> None:
    made = api.make()
    first = api.run(made, "print(1)", request_id="a")
    again = api.run(made, "print(1)", request_id="a")
    assert (again["operation"], again["duplicate"]) == (first["operation"], True)
    header = api.post(f"sessions/{made}/run", {"code": "print(1)"}, headers={"Idempotency-Key": "a"})
    assert (header.data["operation"], header.data["duplicate"]) == (first["operation"], True)
    other = api.post(f"sessions/{made}/run", {"code": "print(2)", "request_id": "a"})
    assert (other.status, other.data["code"]) == (409, "request_id_conflict")
    both = api.post(
        f"sessions/{made}/run", {"code": "x", "request_id": "a"}, headers={"Idempotency-Key": "b"}
    )
    assert (both.status, both.data["code"]) == (400, "bad_request")
    with Session.open(made) as session:
        assert len(list(session.log(types=["admitted"]))) == 1


def test_send_waits_for_nothing(api: Api, gate: Gate) -> None:
    made = api.make()
    sent = api.post(f"sessions/{made}/send", {"text": gate.code, "request_id": "s"})
    assert sent.status == 202
    assert sent.data["status"] in ("queued", "running")
    gate.open()
    ended = api.get(f"sessions/{made}/wait?request_id=s&wait_seconds=30").data
    assert (ended["status"], ended["text"]) == ("ok", "waiting\nb'.'\n")
    keys = api.post(f"sessions/{made}/send", {"keys": ["Enter"]})
    assert (keys.status, keys.data["code"]) == (501, "unsupported")


def test_floor_and_policy(api: Api) -> None:
    made = api.make()
    bot = api.as_grant(made)
    taken = bot.post(f"sessions/{made}/floor", {"action": "take", "reason": "mine"})
    assert (taken.status, taken.data["driver"]) == (200, "bot")
    assert api.get(f"sessions/{made}/floor").data["driver"] == "bot"
    refused = api.post(f"sessions/{made}/run", {"code": "1"})
    assert (refused.status, refused.data["code"]) == (409, "not_driver")
    assert refused.data["refusal"]["driver"] == "bot"
    assert "take" in refused.data["next"]
    assert api.post(f"sessions/{made}/floor", {"action": "take"}).data["superseded"] == []
    assert bot.post(f"sessions/{made}/floor", {"action": "release"}).data["code"] == "not_driver"
    assert api.post(f"sessions/{made}/floor", {"action": "hand_back"}).data["driver"] == "bot"
    assert bot.post(f"sessions/{made}/floor", {"action": "release"}).data["driver"] is None
    policy = api.request("PUT", f"sessions/{made}/policy", {"policy": "turns"})
    assert (policy.status, policy.data["policy"]) == (200, "turns")
    assert bot.request("PUT", f"sessions/{made}/policy", {"policy": "open"}).data["code"] == "forbidden"
    assert api.request("PUT", f"sessions/{made}/policy", {"policy": "chaos"}).status == 501


def test_prompt_is_answered(api: Api) -> None:
    made = api.make()
    begun = api.post(f"sessions/{made}/run", {"code": "print(input('name? '))", "wait_seconds": 0}).data
    with Session.open(made) as session:
        wait_for_status(session, lambda s: s.pending_input)
    answered = api.post(f"sessions/{made}/answer", {"text": "Ada"})
    assert (answered.status, answered.data["operation"]) == (200, begun["operation"])
    ended = api.get(f"sessions/{made}/wait?operation={begun['operation']}&wait_seconds=30").data
    assert ended["text"] == "Ada\n"
    assert api.post(f"sessions/{made}/answer", {"text": "x"}).data["code"] == "no_prompt"


def test_interrupt_and_restart(api: Api, gate: Gate) -> None:
    made = api.make()
    api.post(f"sessions/{made}/send", {"text": gate.code})
    with Session.open(made) as session:
        running = wait_for_running(session)
    assert api.post(f"sessions/{made}/interrupt").data["interrupted"] == running
    ended = api.get(f"sessions/{made}/wait?operation={running}&wait_seconds=30").data
    assert ended["status"] == "interrupted"
    assert api.post(f"sessions/{made}/restart").data == {"incarnation": 2}


def test_note_is_in_the_record_under_its_author(api: Api) -> None:
    made = api.make()
    bot = api.as_grant(made)
    noted = bot.post(f"sessions/{made}/note", {"text": "checked the totals"})
    assert noted.status == 201
    with Session.open(made) as session:
        [entry] = session.log(types=["note"])
    assert (entry["seq"], entry["actor"], entry["data"]["text"]) == (
        noted.data["seq"],
        "bot",
        "checked the totals",
    )
    assert entry["basis"] == "reported"
    assert bot.post(f"sessions/{made}/note", {"text": " "}).status == 400
    eye = api.as_grant(made, "eye", role="observer")
    assert eye.post(f"sessions/{made}/note", {"text": "x"}).data["code"] == "read_only"


def test_outputs_are_read_page_by_page(api: Api) -> None:
    made = api.make()
    api.run(made, "for n in range(30):\n    display({'text/plain': str(n) * 1000}, raw=True)")
    seen, cursor, pages = [], "0", 0
    while True:
        page = api.get(f"sessions/{made}/read?after={cursor}&limit_bytes=5000").data
        shown = [item["output"] for item in page["items"]]
        # What a kernel says on stderr when it starts is not from us.
        seen += [output["data"]["text/plain"] for output in shown if output["output_type"] == "display_data"]
        cursor, pages = page["cursor"], pages + 1
        if not page["more"]:
            break
    assert seen == [str(n) * 1000 for n in range(30)]
    assert pages > 5
    assert api.get(f"sessions/{made}/read?view=screen").data["code"] == "unsupported"
    assert api.get(f"sessions/{made}/read?after=nonsense").status == 400


def test_journal_is_read_page_by_page_and_exported(api: Api) -> None:
    made = api.make()
    for n in range(5):
        api.run(made, f"print({n})")
    with Session.open(made) as session:
        whole = list(session.log())
    entries, after = [], 0
    while True:
        page = api.get(f"sessions/{made}/journal?after={after}&limit=7").data
        assert len(page["entries"]) <= 7
        entries += page["entries"]
        after = page["after"]
        if not page["more"]:
            break
    assert entries[: len(whole)] == whole
    some = api.get(f"sessions/{made}/journal?types=admitted,ended&operation=o2").data["entries"]
    assert [entry["type"] for entry in some] == ["admitted", "ended"]
    exported = api.get(f"sessions/{made}/journal?format=jsonl")
    assert exported.headers["Content-Disposition"] == f'attachment; filename="{made}.jsonl"'
    assert exported.headers["Content-Type"] == "application/x-ndjson"
    assert [json.loads(line) for line in exported.body.splitlines()][: len(whole)] == whole


def test_journal_of_a_session_that_has_ended(api: Api, server: Server) -> None:
    made = api.make()
    session_id = api.get(f"sessions/{made}").data["id"]
    bot = api.as_grant(made)
    api.run(made, "1")
    api.request("DELETE", f"sessions/{made}?force=true")
    server.wait_for_end(session_id)
    types = [entry["type"] for entry in api.get(f"sessions/{made}/journal").data["entries"]]
    assert types[0] == "opened"
    assert "closed" in types
    page = api.get(f"sessions/{made}/journal?limit=3").data
    assert (len(page["entries"]), page["after"], page["more"]) == (3, 3, True)
    exported = api.get(f"sessions/{made}/journal?format=jsonl")
    assert [json.loads(line)["type"] for line in exported.body.splitlines()] == types
    assert bot.get(f"sessions/{made}/journal").status == 403  # its grant has ended with the session
    assert api.get(f"sessions/{made}/read").data["code"] == "unknown_session"


def test_grants_are_made_listed_and_taken_back(api: Api) -> None:
    made = api.make()
    bot = api.as_grant(made)
    assert bot.run(made, "print(1)")["text"] == "1\n"
    [grant] = api.get(f"sessions/{made}/grants").data["grants"]
    assert (grant["actor"], grant["role"]) == ("bot", "peer")
    [shown] = bot.get(f"sessions/{made}/grants").data["grants"]
    assert (
        shown["connection_file"] is None
    )  # a place on the owner's disk is nothing to somebody from elsewhere
    assert bot.get(f"sessions/{made}").data["journal"]["path"] is None
    assert bot.post(f"sessions/{made}/grants", {}).data["code"] == "forbidden"
    assert api.request("DELETE", f"sessions/{made}/grants/bot").data["actor"] == "bot"
    assert bot.get(f"sessions/{made}").status == 403
    unknown = api.request("DELETE", f"sessions/{made}/grants/bot")
    assert (unknown.status, unknown.data["code"]) == (404, "unknown_grant")


@pytest.mark.parametrize("verb", ["approve", "signal", "revive"])
def test_what_no_session_can_do_is_said(api: Api, verb: str) -> None:
    bodies = {"approve": {"operation": "o1"}, "signal": {"pid": 1}}
    made = api.make()
    answer = api.post(f"sessions/{made}/{verb}", bodies.get(verb, {}))
    assert (answer.status, answer.data["code"]) == (501, "unsupported")
    assert api.post("sessions", {"name": name(), "kind": "terminal"}).data["code"] == "unsupported"


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "sessions", {"name": "a/b"}, "bad_name"),
        ("POST", "sessions", {}, "bad_request"),
        ("POST", "sessions", {"name": "x", "misspelt": 1}, "bad_request"),
        ("POST", "sessions", [1], "bad_request"),
        ("POST", "sessions", {"name": "x", "kernel": "no-such"}, "unknown_kernel"),
        ("POST", "sessions", {"name": "x", "cwd": "../.."}, "bad_request"),
        ("POST", "sessions", {"name": "x", "cwd": "/etc/\0"}, "bad_request"),
        ("GET", "sessions/no-such", None, "unknown_session"),
        ("GET", "sessions/a%2Fb", None, "unknown_session"),
        ("GET", "nothing/here", None, "not_found"),
        ("PUT", "sessions", {}, "method_not_allowed"),
        ("GET", "feed", None, "upgrade_required"),
        ("GET", "feed?after=!", None, "bad_request"),
        ("GET", "sessions?token=x", None, "token_in_url"),
    ],
)
def test_wrong_request_is_answered_with_a_code_and_what_helps(
    api: Api, method: str, path: str, body: object, code: str
) -> None:
    answer = api.request(method, path, body)
    assert answer.data["code"] == code, answer
    assert answer.data["message"]
    assert str(api.server.home.root) not in answer.body.decode()
    assert "Traceback" not in answer.body.decode()
    assert answer.headers["Content-Type"] == "application/json"


def test_error_carries_no_path(servers: Servers) -> None:
    """What the keeper's log says of a kernel that does not start is the server's business."""
    server = servers()
    spec = server.home.root / "data" / "kernels" / "broken"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps(
            {"argv": ["/nowhere/at/all/python", "{connection_file}"], "display_name": "b", "language": "b"}
        )
    )
    answer = Api(server).post("sessions", {"name": name(), "kernel": "broken"})
    assert (answer.status, answer.data["code"]) == (500, "spawn_failed")
    assert "/" not in answer.data["message"]


def test_hundred_creations_of_one_name(api: Api) -> None:
    chosen = name()
    with ThreadPoolExecutor(100) as threads:
        asked = [
            threads.submit(api.post, "sessions", {"name": chosen, "attach": n % 2 == 0}) for n in range(100)
        ]
        answers = [done.result() for done in asked]
    made = [answer for answer in answers if answer.status == 201]
    attached = [answer for n, answer in enumerate(answers) if answer.status == 200 and n % 2 == 0]
    refused = [
        answer
        for n, answer in enumerate(answers)
        if answer.status == 409 and answer.data["code"] == "name_taken" and n % 2
    ]
    assert len(made) == 1
    assert len(attached) + len(refused) == 99
    assert {answer.data["id"] for answer in (*made, *attached)} == {made[0].data["id"]}
    assert [pointer.name for pointer in Registry.of_user().list_pointers()] == [chosen]


def test_api_below_a_base_url(servers: Servers) -> None:
    server = servers("--ServerApp.base_url=/user/ann/", wait=False)
    server._until(lambda: server.get("/user/ann/api/kernels").status not in (0, 503))
    made = server.post("/user/ann/cmdop/api/sessions", {"name": name()})
    assert made.status == 201
    assert made.headers["Location"] == f"/user/ann/cmdop/api/sessions/{made.data['id']}"
    assert server.get(made.headers["Location"]).data["name"] == made.data["name"]
    assert server.get("/user/ann/cmdop/api/nothing").data["code"] == "not_found"


def test_limit_of_acts(servers: Servers) -> None:
    server = servers("--CmdopApp.api_acts_per_minute=60")
    api = Api(server)
    made = api.make()
    bot = api.as_grant(made)
    answers = [bot.post(f"sessions/{made}/note", {"text": "x"}) for _ in range(30)]
    limited = [answer for answer in answers if answer.status == 429]
    assert 10 <= len([answer for answer in answers if answer.status == 201]) < 30
    assert limited[0].data["code"] == "rate_limited"
    assert int(limited[0].headers["Retry-After"]) >= 1
    # It is his own: others act on, and he may look.
    assert api.post(f"sessions/{made}/note", {"text": "x"}).status == 201
    assert bot.get(f"sessions/{made}").status == 200


def test_services_and_devices_act_under_their_own_name_and_limit(servers: Servers) -> None:
    """Whoever floods is held back, whatever kind he is of; the other one's acts pass meanwhile."""
    server = servers("--CmdopApp.api_acts_per_minute=60")
    api = Api(server)
    made = api.make()
    kinds = {"ci-hook": "service", "door": "device"}
    for actor, kind in kinds.items():
        own = api.as_grant(made, actor, kind=kind)
        assert own.run(made, f"{actor[:2]} = 1")["status"] == "ok"
        sent = own.post(f"sessions/{made}/send", {"text": "print(1)", "request_id": "a"})
        assert sent.status == 202
        assert own.get(f"sessions/{made}/wait?request_id=a&wait_seconds=30").data["text"] == "1\n"
        assert own.post(f"sessions/{made}/note", {"text": f"of {actor}"}).status == 201
        answers = [own.post(f"sessions/{made}/{verb}", body) for verb, body in FLOOD]
        assert {answer.data["code"] for answer in answers if answer.status == 429} == {"rate_limited"}
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers if answer.status == 429)
    with Session.open(made) as link:
        for actor in kinds:
            mine = list(link.log(types=["admitted", "note"], actor=actor))
            assert [e["data"].get("text") or e["data"]["code"] for e in mine][:3] == [
                f"{actor[:2]} = 1",
                "print(1)",
                f"of {actor}",
            ]
        granted = {e["data"]["actor"]: e["data"]["kind"] for e in link.log(types=["granted"])}
    assert granted == kinds


FLOOD = (("run", {"code": "1"}), ("send", {"text": "1"}), ("note", {"text": "1"})) * 8


def test_session_that_ends_while_somebody_waits(api: Api, gate: Gate) -> None:
    made = api.make()
    api.post(f"sessions/{made}/send", {"text": gate.code})
    with Session.open(made) as session:
        running = wait_for_running(session)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(api.get, f"sessions/{made}/wait?operation={running}&wait_seconds=30")
            wait_for_entry(session, "delivered")
            session.close(force=True)
            answer = waiting.result()
    # Its outcome, if that was still recorded in time, else that the session has ended.
    assert answer.data.get("status") in ("interrupted", None)
    assert answer.status in (200, 404, 503)


def test_other_users_know_of_sessions_that_this_server_shows_only(
    servers: Servers, session: Sessions
) -> None:
    elsewhere = session()  # made by hand in another directory
    server = servers(PROVIDER, env=IMPORTS)
    owner = Api(server)
    here = owner.make()
    headers = xsrf_headers(server, {"X-User": "alice"})
    alice = Api(server, token=None, headers=headers)
    assert {s["name"] for s in owner.get("sessions").data["sessions"]} == {here, elsewhere.name}
    assert {s["name"] for s in alice.get("sessions").data["sessions"]} == {here}
    assert alice.get(f"sessions/{elsewhere.name}").data["code"] == "unknown_session"
    taken = alice.post("sessions", {"name": elsewhere.name, "attach": True})
    assert (taken.status, taken.data["code"]) == (409, "name_taken")
    assert alice.run(here, "print(1)")["text"] == "1\n"
    assert alice.request("DELETE", f"sessions/{here}").data["code"] == "forbidden"
    assert alice.post("sessions", {"name": name(), "policy": "turns"}).data["code"] == "forbidden"
    with Session.open(here) as link:
        [admitted] = link.log(types=["admitted"])
        assert admitted["actor"] == "example:alice"
        refused = wait_for_entry(link, "refused", actor="example:alice")
        assert refused["data"]["code"] == "forbidden"


def test_others_with_an_owners_role_act_under_their_own_name(servers: Servers) -> None:
    """The role says what they may do, not who they are."""
    server = servers(PROVIDER, "--CmdopApp.user_role=owner", env=IMPORTS)
    made = Api(server).make()
    alice = Api(server, token=None, headers=xsrf_headers(server, {"X-User": "alice"}))
    assert alice.run(made, "print(1)")["text"] == "1\n"
    assert alice.request("PUT", f"sessions/{made}/policy", {"policy": "turns"}).status == 200
    with Session.open(made) as link:
        assert {entry["actor"] for entry in link.log(types=["admitted", "policy"])} == {"example:alice"}
