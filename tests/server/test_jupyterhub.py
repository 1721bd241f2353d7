"""A real JupyterHub whose users' servers have the extension: who is who, what a stop ends, what the Hub knows.

It needs `pip install jupyterhub` and `npm install -g configurable-http-proxy` (or `CONFIGURABLE_HTTP_PROXY`, its path).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_cmdop.client.session import Session
from tests.server.jupyter import (
    CONFIG,
    Answer,
    Server,
    end_all_sessions,
    free_port,
    keeper_pid,
    kernel_pid,
    wait_gone,
)
from tests.support import (
    LIMIT_SECONDS,
    MARKER,
    Clients,
    Closing,
    Home,
    TooLate,
    reply_of,
    run_cli,
    wait_for_entry,
)
from tests.websocket.viewer import Viewer, text_in

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

ADMIN = "the-tests-token"
_CONFIGURATION = """
c = get_config()
c.JupyterHub.bind_url = {bind!r}
c.JupyterHub.hub_bind_url = {hub!r}
c.JupyterHub.db_url = "sqlite:///" + {folder!r} + "/hub.sqlite"
c.JupyterHub.cookie_secret_file = {folder!r} + "/cookie_secret"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = {api!r}
c.ConfigurableHTTPProxy.pid_file = {folder!r} + "/proxy.pid"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {folder!r} + "/{{username}}"
c.Spawner.cmd = {command!r}
c.Spawner.args = {arguments!r}
c.Spawner.environment = {environment!r}
c.Spawner.start_timeout = 60
c.JupyterHub.services = [{{"name": "tests", "api_token": {admin!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "tokens", "users:activity"]}},
    {{"name": "teachers", "users": ["teacher"], "scopes": ["access:servers"]}},
]
"""


def proxy_path() -> str | None:
    return os.environ.get("CONFIGURABLE_HTTP_PROXY") or shutil.which("configurable-http-proxy")


class Hub:
    """A Hub with its proxy, on ports of its own; users' servers run as the current user."""

    def __init__(self, home: Home, folder: Path, proxy: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.port, hub, api = free_port(), free_port(), free_port()
        environment = {
            name: os.environ[name]
            for name in (MARKER, "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "CMDOP_STATE_DIR", "IPYTHONDIR")
        }
        (folder / "hub.py").write_text(
            _CONFIGURATION.format(
                folder=str(folder),
                bind=f"http://127.0.0.1:{self.port}",
                hub=f"http://127.0.0.1:{hub}",
                api=f"http://127.0.0.1:{api}",
                proxy=[proxy],
                command=[sys.executable, "-m", "jupyterhub.singleuser"],
                arguments=["--allow-root", "--log-level=DEBUG"]
                if os.geteuid() == 0
                else ["--log-level=DEBUG"],
                environment={
                    **environment,
                    "JUPYTER_CONFIG_PATH": str(CONFIG),
                    "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
                },
                admin=ADMIN,
            )
        )
        self._log = folder / "hub.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(folder / "hub.py")],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._api = self.server("", ADMIN)
        self.wait(lambda: self.ask("GET", "").status == 200)

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self, predicate: Callable[[], object]) -> None:
        deadline = time.monotonic() + 2 * LIMIT_SECONDS
        while not predicate():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TooLate(f"the Hub does not come to it: {self.text()[-6000:]}")
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        return self._api.request(method, f"/hub/api/{path}", body)

    def server(self, user: str, token: str) -> Server:
        """The server of a user as a client of the proxy reaches it; "" is the proxy itself."""
        reached = Server.__new__(Server)
        reached.port, reached.token, reached.tls, reached.log = self.port, token, None, self._log
        return reached

    def start(self, user: str) -> None:
        self.ask("POST", f"users/{user}")
        assert self.ask("POST", f"users/{user}/server").status in (201, 202), self.text()[-3000:]
        self.wait(lambda: self.model(user).get("ready"))

    def stop(self, user: str) -> None:
        assert self.ask("DELETE", f"users/{user}/server").status in (202, 204)
        self.wait(lambda: not self.ask("GET", f"users/{user}").data.get("servers"))

    def model(self, user: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"users/{user}").data.get("servers", {}).get("", {}))

    def token(self, user: str) -> str:
        self.ask("POST", f"users/{user}")
        return str(self.ask("POST", f"users/{user}/tokens", {"note": "a test"}).data["token"])

    def close(self) -> None:
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)  # it stops the users' servers and the proxy
        try:
            self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(LIMIT_SECONDS)
        _, alive = psutil.wait_procs(below, timeout=LIMIT_SECONDS)
        for process in alive:
            process.kill()


@pytest.fixture(scope="module")
def hub(home: Home) -> Iterator[Hub]:
    proxy = proxy_path()
    if proxy is None or importlib.util.find_spec("jupyterhub") is None:
        pytest.skip(
            "there is no JupyterHub here (pip install jupyterhub; npm install -g configurable-http-proxy)"
        )
    made = Hub(home, home.root / "hub", proxy)
    try:
        yield made
    finally:
        made.close()
        end_all_sessions(home)


def kernel_of(hub: Hub, user: str, token: str) -> str:
    answer = hub.server(user, token).post(f"/user/{user}/api/kernels", {"name": "python3"})
    assert answer.status == 201, (answer, hub.text()[-5000:])
    return str(answer.data["id"])


def authors(kernel_id: str) -> dict[str, str]:
    """Code of each cell -> who ran it."""
    with Session.open(kernel_id) as session:
        return {
            e["data"]["code"]: e["actor"] for e in session.log(types=["admitted"]) if e["data"].get("code")
        }


def test_who_is_who(hub: Hub, closing: Closing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user whose server it is is its owner under his own name, also on the command line there. A teacher whom the
    Hub lets in is another actor, and what he does is his.
    """
    hub.start("alice")
    kernel_id = kernel_of(hub, "alice", hub.token("alice"))
    path = f"/user/alice/api/kernels/{kernel_id}"
    alice = closing(
        Viewer(("127.0.0.1", hub.port), path=f"{path}/channels", authorization=f"token {hub.token('alice')}")
    )
    teacher = closing(
        Viewer(
            ("127.0.0.1", hub.port),
            "other",
            path=f"{path}/channels",
            authorization=f"token {hub.token('teacher')}",
        )
    )
    assert text_in(alice.run("print('by alice')")) == "by alice\n"
    assert text_in(teacher.run("print('by the teacher')")) == "by the teacher\n"
    monkeypatch.setenv("JUPYTERHUB_USER", "alice")
    assert run_cli("run", kernel_id, "'in her terminal'").data["status"] == "ok"
    assert authors(kernel_id) == {
        "print('by alice')": "alice",
        "print('by the teacher')": "hub:teacher",
        "'in her terminal'": "alice",
    }
    # A peer ends nothing; nobody gets in without the Hub's word.
    server = hub.server("alice", hub.token("teacher"))
    assert server.delete(path).status == 403
    stranger = hub.server("alice", hub.token("stranger"))
    assert stranger.get(path).status in (403, 404)
    hub.stop("alice")


def test_a_stop_by_the_hub_ends_everything(
    hub: Hub, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what would go on elsewhere: a kernel that an agent was invited to, and one that was made by hand."""
    hub.start("bob")
    shared = kernel_of(hub, "bob", hub.token("bob"))
    monkeypatch.setenv("JUPYTERHUB_USER", "bob")
    with Session.open(shared) as session:
        agent = clients(session, "bot")
        assert reply_of(agent, agent.execute("x = 1"))["content"]["status"] == "ok"
    root = hub.folder / "bob"
    by_hand = run_cli("new", "by-hand", "--cwd", str(root)).data["id"]
    hub.wait(
        lambda: by_hand in json.dumps(hub.server("bob", hub.token("bob")).get("/user/bob/api/kernels").data)
    )
    pids = [pid(kernel) for kernel in (shared, by_hand) for pid in (keeper_pid, kernel_pid)]
    hub.stop("bob")
    wait_gone(*pids)
    assert run_cli("ls").data == []
    past = {item["id"]: item for item in run_cli("ls", "--all").data}
    assert {past[shared]["state"], past[by_hand]["state"]} == {"closed"}


def test_the_hub_knows_of_activity_that_it_does_not_see(hub: Hub, clients: Clients) -> None:
    """An agent on the kernel protocol passes neither the proxy nor the server; its work counts all the same."""
    hub.start("carol")
    kernel_id = kernel_of(hub, "carol", hub.token("carol"))
    with Session.open(kernel_id) as session:
        agent = clients(session, "bot")

        def active() -> datetime:
            return datetime.fromisoformat(hub.model("carol")["last_activity"])

        seq = 0
        for number in range(2):
            before = active()
            agent.execute(f"import time; time.sleep(1.5); {number}")
            ended = wait_for_entry(session, "ended", after=seq)
            seq, worked = ended["seq"], datetime.fromisoformat(ended["time"])
            assert worked > before
            # The end of the cell, not its beginning: it is recorded a moment after the last message came.
            hub.wait(lambda worked=worked: active() > worked - timedelta(seconds=1))
    hub.stop("carol")
    assert run_cli("ls").data == []
