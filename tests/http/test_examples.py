"""The programs in `examples/` do what their pages say, as processes of their own against a real server."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from tests.http.rest import Api
from tests.remote.far import Cable
from tests.server.jupyter import Server, Servers, free_port
from tests.support import (
    LIMIT_SECONDS,
    Closing,
    Gate,
    TooLate,
    journal,
    run_cli,
    wait_for_entry,
    wait_for_status,
)

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SECRET = "a secret of hooks"


class Example:
    """A program of `examples/`, and the lines that it prints."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(FOLDER / program), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "no_proxy": "127.0.0.1,localhost"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()

    def until(self, text: str) -> str:
        """The first line that has this."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._more:
            if not self._more.wait_for(lambda: found() is not None, LIMIT_SECONDS):
                raise TooLate(f"no {text!r} in {self.lines}")
            return str(found())

    def ended(self) -> int:
        code = self.process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        print(f"{self.process.args!r} said", *self.lines, sep="\n")  # shown when the test fails
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server)


@pytest.fixture
def made(api: Api) -> Iterator[Session]:
    with Session.open(api.make()) as session:
        yield session


def invite(session: Session, actor: str, kind: str, folder: Path, role: str = "peer") -> str:
    """A grant's file, made as the page says."""
    path = str(folder / f"{actor}.grant")
    run_cli("invite", session.name, "--as", actor, "--kind", kind, "--role", role, "--grant-file-out", path)
    return path


def is_there(session: Session, actor: str, kind: str, role: str) -> None:
    status = wait_for_status(session, lambda s: any(p.actor == actor for p in s.presence))
    [presence] = [p for p in status.presence if p.actor == actor]
    assert (presence.kind, presence.role) == (kind, role)


def is_gone(session: Session, actor: str) -> None:
    wait_for_status(session, lambda s: all(p.actor != actor for p in s.presence))


# ---------------------------------------------------------------------- monitor


def test_monitor_prints_each_thing_once_over_cuts(
    server: Server, made: Session, tmp_path: Path, closing: Closing
) -> None:
    cable = closing(Cable(("127.0.0.1", server.port)))
    grant = invite(made, "wall", "device", tmp_path, "observer")
    host, port = cable.address
    monitor = closing(Example("monitor.py", "--url", f"http://{host}:{port}/", "--grant-file", grant))
    monitor.until("hello")
    is_there(made, "wall", "device", "observer")
    assert any(p["actor"] == "wall" for p in run_cli("status", made.name).data["presence"])
    for number in range(5):
        made.note(f"before the cut {number}")
        monitor.until(f"before the cut {number}")
        cable.cut()
        made.note(f"away {number}")  # it may be away for this one
        made.run(f"{number} + 1")
    made.note("the last one")
    monitor.until("the last one")
    notes = [line.partition("text=")[2].strip("'") for line in monitor.lines if " note note " in line]
    assert notes == [entry["data"]["text"] for entry in journal(made, "note")]
    ran = [entry["operation"] for entry in journal(made, "ended")]
    assert [line.split()[4] for line in monitor.lines if " operation ended " in line] == ran
    assert len([line for line in monitor.lines if "cut off" in line]) == 5
    made.close(force=True)
    assert monitor.ended() == 1
    assert monitor.lines[-1] == "the session has ended"


def test_monitor_ends_with_its_grant(server: Server, made: Session, tmp_path: Path, closing: Closing) -> None:
    grant = invite(made, "wall", "device", tmp_path, "observer")
    monitor = closing(Example("monitor.py", "--url", server.url, "--grant-file", grant))
    monitor.until("hello")
    is_there(made, "wall", "device", "observer")
    made.revoke("wall")
    assert monitor.ended() == 3
    is_gone(made, "wall")
    again = closing(Example("monitor.py", "--url", server.url, "--grant-file", grant))
    assert again.ended() == 3
    assert again.lines == ["the grant has ended"]


@pytest.mark.parametrize("program", ["monitor.py", "webhook.py"])
def test_a_grant_that_others_may_read_is_not_used(
    server: Server, made: Session, tmp_path: Path, closing: Closing, program: str
) -> None:
    grant = invite(made, "careless", "service", tmp_path)
    Path(grant).chmod(0o644)
    more = ("--secret-file", grant) if program == "webhook.py" else ()
    example = closing(Example(program, "--url", server.url, "--grant-file", grant, *more))
    assert example.ended() == 1
    assert "chmod 600" in example.lines[-1]
    token = json.loads(Path(grant).read_text())["cmdop"]["token"]
    assert token not in "\n".join(example.lines)


# ---------------------------------------------------------------------- webhook


class Hooks:
    """Who sends hooks to a receiver, and delivers them again as long as he is told to."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook"

    def __call__(
        self, delivery: str, data: Any, *, secret: str = SECRET
    ) -> tuple[int, dict[str, Any], str | None]:
        body = json.dumps(data).encode()
        signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": delivery}
        request = urllib.request.Request(self.url, data=body, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=LIMIT_SECONDS) as answer:
                return answer.status, json.loads(answer.read()), None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read()), error.headers.get("Retry-After")

    def until_done(self, delivery: str, data: Any) -> dict[str, Any]:
        deadline = time.monotonic() + 2 * LIMIT_SECONDS
        while True:
            status, answer, retry_after = self(delivery, data)
            if status == 200:
                return answer
            assert status == 202 or retry_after is not None, (status, answer)
            assert time.monotonic() < deadline, (status, answer)


def listen(
    session: Session, url: str, folder: Path, *, role: str = "peer", patience: float = 8.0
) -> tuple[Example, Hooks]:
    """A receiver that is there, and a sender that knows its secret."""
    session.run("seen = []\ndef on_hook(data):\n    seen.append(data)\n    print('got', data)")
    grant = invite(session, "ci-hook", "service", folder, role)
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET + "\n")
    port = free_port()
    example = Example(
        *("webhook.py", "--url", url, "--grant-file", grant, "--secret-file", str(secret)),
        *("--port", str(port), "--patience", str(patience)),
    )
    try:
        example.until("listens on")
        is_there(session, "ci-hook", "service", role)
    except BaseException:
        example.close()
        raise
    return example, Hooks(port)


def runs_of_the_hook(session: Session) -> list[dict[str, Any]]:
    return [entry for entry in journal(session, "admitted") if entry["actor"] == "ci-hook"]


def test_a_hook_runs_once_under_the_name_of_the_service(
    server: Server, made: Session, tmp_path: Path, closing: Closing
) -> None:
    example, hook = listen(made, server.url, tmp_path)
    closing(example)
    data = {"ref": "main'); import os; os.abort() #", "n": [1, None, True, "\u00e4\ud800"]}
    status, answer, _ = hook("d-1", data)
    assert (status, answer["status"]) == (200, "ok")
    assert answer["text"].startswith("got {'ref': ")
    assert hook("d-1", data)[:2] == (200, answer)
    [run] = runs_of_the_hook(made)
    assert run["request_id"] == "hook-d-1"
    assert run["operation"] == answer["operation"]
    assert made.run("print(len(seen), seen[0]['n'][1:3])").text == "1 [None, True]\n"
    # What is no hook of this sender, or none at all, reaches nothing.
    assert hook("d-2", data, secret="guessed")[0] == 401
    assert hook("no id", data)[0] == 400
    # The same delivery with other content is not taken for it.
    status, answer, retry_after = hook("d-1", {"other": 1})
    assert (status, answer["code"], retry_after) == (502, "request_id_conflict", None)
    # Code that fails is an answer as well: delivered again, it would fail again.
    made.run("def on_hook(data): raise KeyError(data)")
    status, answer, _ = hook("d-3", 3)
    assert (status, answer["status"], answer["ename"]) == (200, "error", "KeyError")
    assert len(runs_of_the_hook(made)) == 2
    token = json.loads((tmp_path / "ci-hook.grant").read_text())["cmdop"]["token"]
    assert token not in "\n".join(example.lines)


def test_a_hook_by_hand_as_the_page_says(
    server: Server, made: Session, tmp_path: Path, closing: Closing
) -> None:
    example, hook = listen(made, server.url, tmp_path)
    closing(example)
    (tmp_path / "secret").rename(tmp_path / "hook.secret")
    page = (FOLDER.parent / "docs" / "how-to" / "receive-hooks.md").read_text(encoding="utf-8")
    [block] = [
        b for b in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "$ body=" in b
    ]
    script = block.replace("$ ", "", 1).replace("\n$ ", "\n").replace("http://127.0.0.1:8899/hook", hook.url)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    assert json.loads(done.stdout)["text"] == "got {'path': 'prices.csv'}\n"


def test_a_hook_is_delivered_again_until_nobody_else_drives(
    server: Server, made: Session, tmp_path: Path, closing: Closing
) -> None:
    example, hook = listen(made, server.url, tmp_path, patience=1.5)
    closing(example)
    made.take("my turn")
    status, answer, retry_after = hook("d-1", 1)
    assert (status, answer["code"]) == (503, "not_driver")
    assert made.actor in answer["error"]
    assert int(retry_after or 0) >= 1
    refused = wait_for_entry(made, "refused", actor="ci-hook")
    assert refused["data"]["code"] == "not_driver"
    made.release()
    assert hook("d-1", 1)[1]["status"] == "ok"
    assert made.run("print(seen)").text == "[1]\n"


def test_a_hook_that_takes_long_is_202_and_its_repeat_has_the_result(
    server: Server, made: Session, tmp_path: Path, closing: Closing, gate: Gate
) -> None:
    example, hook = listen(made, server.url, tmp_path, patience=1.0)
    closing(example)
    body = "\n".join("    " + line for line in gate.code.splitlines())
    made.run(f"def on_hook(data):\n{body}\n    print('done', data)")
    status, answer, _ = hook("slow", 7)
    assert (status, answer["status"]) == (202, "running")
    gate.open()
    assert hook.until_done("slow", 7)["text"].endswith("done 7\n")
    assert len(runs_of_the_hook(made)) == 1


def test_more_hooks_than_the_server_lets_through(servers: Servers, tmp_path: Path, closing: Closing) -> None:
    """A minute's acts come at once: some wait for the time of Retry-After, none is lost, none runs twice."""
    server = servers("--CmdopApp.api_acts_per_minute=60")
    with Session.open(Api(server).make()) as session:
        example, hook = listen(session, server.url, tmp_path, patience=3.0)
        closing(example)
        with ThreadPoolExecutor(16) as threads:
            sent = [threads.submit(hook.until_done, f"d-{n}", n) for n in range(16)]
            answers = [one.result() for one in sent]
        assert {answer["status"] for answer in answers} == {"ok"}
        assert session.run("print(sorted(seen))").text == f"{list(range(16))}\n"
        assert len(runs_of_the_hook(session)) == 16
        log = server.text()
        assert log.count(" 429 POST ") >= 1, "the limit was never met"


def test_a_receiver_outlives_its_server(servers: Servers, tmp_path: Path, closing: Closing) -> None:
    first = servers()
    with Session.open(Api(first).make()) as session:
        example, hook = listen(session, first.url, tmp_path, patience=1.0)
        closing(example)
        first.kill()
        is_gone(session, "ci-hook")
        status, _, retry_after = hook("d-1", 1)
        assert (status, retry_after) == (503, "30")
        servers.add(first.again())
        is_there(session, "ci-hook", "service", "peer")
        assert hook("d-1", 1)[1]["status"] == "ok"
        session.revoke("ci-hook")
        assert example.ended() == 1
        assert example.lines[-1] == "ci-hook ends: the grant has ended"


def test_a_receiver_that_may_only_observe_says_so(
    server: Server, made: Session, tmp_path: Path, closing: Closing
) -> None:
    example, hook = listen(made, server.url, tmp_path, role="observer", patience=1.5)
    closing(example)
    status, answer, retry_after = hook("d-1", 1)
    assert (status, answer["code"], retry_after) == (502, "read_only", None)
    made.close(force=True)
    assert example.ended() == 1
    assert example.lines[-1] == "ci-hook ends: the session has ended"


def test_a_follower_of_one_session_is_there_and_one_of_all_is_not(api: Api) -> None:
    """Who follows a session sees what happens in it, so those in it see him."""
    made = api.make()
    watcher = api.as_grant(made, "watcher", kind="device", role="observer")
    feed = watcher.feed(f"sessions/{made}/feed")
    feed.until(kind="presence", type="attached", actor="watcher")
    everything = api.feed()
    everything.until(kind="hello")
    [there] = api.get(f"sessions/{made}").data["presence"]
    assert (there["actor"], there["kind"], there["role"]) == ("watcher", "device", "observer")
    assert there["client"].startswith("http")
    feed.cut()
    everything.until(kind="presence", type="detached", actor="watcher")
    assert api.get(f"sessions/{made}").data["presence"] == []
    everything.close()
