"""Four actors, each by a way in of his own, who do at random whatever that way allows, and are killed at random."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from jupyter_cmdop.client.errors import ClientError, Refused
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import Session
from tests.support import AgentProcess, TooLate, start_cli
from tests.websocket.front import Front
from tests.websocket.viewer import Closed, Viewer, is_idle_of, is_reply_to

CODES = (
    "1 + 1",
    "x = {n}",
    "print('line', {n}, flush=True)",
    "for i in range(200): print(i, {n})",
    "import time; time.sleep(0.3)",
    "1 / 0",
    "print('y' * 20000)",
    "from IPython.display import display; display({n})",
    "import time; time.sleep(2)",
)
PATIENCE_SECONDS = 60.0


class Actor:
    """Acts in a thread of its own until it is told to stop.

    Attributes:
        done: what it did, and what came of it.
        faults: what must not happen to a client.
    """

    name = ""

    def __init__(self, session_id: str, seed: str) -> None:
        self.session_id = session_id
        self.random = random.Random(f"{seed}-{self.name}")
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"soak {self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self) -> None:
        self._thread.join(PATIENCE_SECONDS * 2)
        if self._thread.is_alive():
            self.faults.append("it hangs")

    def _run(self) -> None:
        try:
            self.set_up()
            while not self.stopping.is_set():
                try:
                    self.act()
                except Refused as refused:
                    self.done[f"refused {refused.refusal.code}"] += 1
                self.stopping.wait(self.random.uniform(0.0, 0.3))
        except Exception as error:
            self.faults.append(f"{type(error).__name__}: {error}")
        finally:
            self.tear_down()

    def code(self) -> str:
        return self.random.choice(CODES).format(n=self.random.randrange(10**6))

    def one_of(self, *choices: tuple[int, Callable[[], Any]]) -> None:
        chosen = self.random.choices([c for _, c in choices], [w for w, _ in choices])[0]
        chosen()
        self.done[chosen.__name__] += 1

    def take_and_give(self, identity: Identity, meanwhile: Callable[[], Any]) -> None:
        """Drive for a while, and mostly give it back."""
        with Session.open(self.session_id, identity=identity) as link:
            link.take("soak", lease_seconds=self.random.choice([1.0, 5.0]))
            for _ in range(self.random.randrange(1, 5)):
                meanwhile()
            if self.random.random() < 0.7:
                link.release()

    def set_up(self) -> None: ...
    def act(self) -> None: ...
    def tear_down(self) -> None: ...


class LinkActor(Actor):
    """The owner, with a presence on the link and all that an owner may do but end the session."""

    name = "link"

    def set_up(self) -> None:
        self.session = Session.open(self.session_id, persistent=True)

    def tear_down(self) -> None:
        self.session.disconnect()

    def act(self) -> None:
        self.one_of(
            (20, self.run),
            (3, self.take),
            (10, self.release),
            (2, self.policy),
            (3, self.interrupt),
            (3, self.look),
            (2, self.read),
            (2, self.invite_and_revoke),
            (1, self.restart),
            (2, self.again),
        )

    def run(self) -> None:
        result = self.session.run(self.code(), wait_seconds=PATIENCE_SECONDS, max_bytes=10_000)
        self.done[f"run {result.status}"] += 1
        if result.status in ("queued", "running"):
            self.faults.append(f"{result.operation} is {result.status} after {PATIENCE_SECONDS} s")

    def take(self) -> None:
        self.session.take(
            "soak",
            running=self.random.choice(["let", "interrupt"]),
            queue=self.random.choice(["drop", "adopt"]),
            lease_seconds=self.random.choice([1.0, 3.0, 30.0]),
        )

    def release(self) -> None:
        self.session.release()

    def policy(self) -> None:
        self.session.policy(self.random.choice(["open", "open", "turns"]))

    def interrupt(self) -> None:
        self.session.interrupt()

    def look(self) -> None:
        self.session.status()
        self.session.grants()

    def read(self) -> None:
        self.session.read(after=None, limit_bytes=20_000)

    def invite_and_revoke(self) -> None:
        grant = self.session.invite(f"guest-{self.random.randrange(10**9)}").grant
        self.session.revoke(str(grant))

    def restart(self) -> None:
        if self.random.random() < 0.3:
            self.session.restart()

    def again(self) -> None:
        self.session.disconnect()
        self.session = Session.open(self.session_id, persistent=self.random.random() < 0.7)


class ZmqActor(Actor):
    """An unmodified client in a process of its own, which is frozen and killed."""

    name = "zmq"

    def set_up(self) -> None:
        with Session.open(self.session_id) as owner:
            invited = owner.invite("bot")
        assert invited.connection_file is not None
        self._file = invited.connection_file
        self._grant = str(invited.grant)
        self._identity = Identity(token=invited.token)
        self._agent = AgentProcess(self._file)

    def tear_down(self) -> None:
        self._agent.close()
        with Session.open(self.session_id) as owner:
            owner.revoke(self._grant)

    def act(self) -> None:
        self.one_of((20, self.run), (5, self.burst), (2, self.freeze), (2, self.kill), (3, self.drive))

    def run(self) -> None:
        reply = self._agent.reply(self._agent.execute(self.code()), limit_seconds=PATIENCE_SECONDS)
        self.done[f"run {reply['status']} {reply.get('ename', '')}"] += 1

    def burst(self) -> None:
        sent = [self._agent.execute(self.code()) for _ in range(self.random.randrange(2, 8))]
        for msg_id in sent:
            self._agent.reply(msg_id, limit_seconds=PATIENCE_SECONDS)

    def drive(self) -> None:
        self.take_and_give(self._identity, self.run)

    def freeze(self) -> None:
        """It stands still with a cell under way, and finds all that it missed."""
        sent = self._agent.execute(self.code())
        self._agent.freeze()
        try:
            self.stopping.wait(self.random.uniform(0.1, 4.0))
        finally:
            self._agent.thaw()
        self._agent.reply(sent, limit_seconds=PATIENCE_SECONDS)

    def kill(self) -> None:
        self._agent.execute(self.code())
        self._agent.kill()
        self._agent = AgentProcess(self._file)


class PageActor(Actor):
    """A page whose connection is closed, cut and reset, and which comes back as another or as the same."""

    name = "page"

    def set_up(self) -> None:
        self._owner = Session.open(self.session_id)
        self._front = Front(self._owner)
        self._page = self._new_page()

    def _new_page(self) -> Viewer:
        return Viewer(
            self._front.address,
            f"page-{self.random.randrange(10**9)}",
            actor="carol",
            legacy=self.random.random() < 0.3,
        )

    def tear_down(self) -> None:
        self._page.abandon()
        self._front.close()
        self._owner.disconnect()

    def act(self) -> None:
        try:
            self.one_of(
                (20, self.run),
                (3, self.leave),
                (3, self.cut),
                (3, self.reset_and_return),
                (2, self.stall),
                (3, self.drive),
            )
        finally:
            self._page.received.clear()

    def run(self) -> None:
        msg_id = self._page.execute(self.code())
        seen = self._page.until(is_reply_to(msg_id), is_idle_of(msg_id), limit_seconds=PATIENCE_SECONDS)
        reply = next(m for m in seen if is_reply_to(msg_id)(m))["content"]
        self.done[f"run {reply['status']} {reply.get('ename', '')}"] += 1

    def drive(self) -> None:
        verified = {"id": "carol", "kind": "human", "name": "Carol", "role": "peer"}
        self.take_and_give(Identity(verified=verified), self.run)

    def leave(self) -> None:
        self._page.leave(1001)
        self._page.abandon()
        self._page = self._new_page()

    def cut(self) -> None:
        self._page.execute(self.code())
        self._page.hang_up()
        self._page.abandon()
        self._page = self._new_page()

    def reset_and_return(self) -> None:
        """What it had sent is answered on its next connection."""
        msg_id = self._page.execute(self.code())
        self._page.reset()
        self._page.connect()
        with contextlib.suppress(TooLate):  # the request may not have arrived
            self._page.until(is_reply_to(msg_id), limit_seconds=3.0)

    def stall(self) -> None:
        """It does not read for a while."""
        msg_id = self._page.execute("for i in range(500): print('z' * 200)")
        self.stopping.wait(self.random.uniform(0.1, 3.0))
        with contextlib.suppress(Closed):
            self._page.until(is_reply_to(msg_id), limit_seconds=PATIENCE_SECONDS)


class CliActor(Actor):
    """A script that uses the command line, and whose commands are killed and frozen now and then."""

    name = "cli"

    def act(self) -> None:
        self.one_of(
            (12, self.run), (2, self.status), (2, self.log), (2, self.interrupt), (2, self.take), (1, self.ls)
        )

    def _call(self, *arguments: str) -> None:
        process = start_cli(*arguments)
        chance = self.random.random()
        try:
            if chance < 0.15:
                self.stopping.wait(self.random.uniform(0.1, 1.5))
                process.kill()
            elif chance < 0.25:
                self.stopping.wait(self.random.uniform(0.1, 1.0))
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGSTOP)
                    self.stopping.wait(self.random.uniform(0.1, 2.0))
                    process.send_signal(signal.SIGCONT)
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.faults.append(f"{arguments} did not end")
            return
        self.done[f"exit {process.returncode}"] += 1
        if process.returncode == 2 or "Traceback" in err:
            self.faults.append(f"{arguments} ended with {process.returncode}: {err[-500:]} {out[-200:]}")

    def run(self) -> None:
        request = f"r{self.random.randrange(10**9)}"
        self._call("run", self.session_id, self.code(), "--request-id", request)

    def status(self) -> None:
        self._call("status", self.session_id)

    def log(self) -> None:
        self._call("log", self.session_id, "--type", "ended")

    def interrupt(self) -> None:
        self._call("interrupt", self.session_id)

    def take(self) -> None:
        self._call("take", self.session_id, "--reason", "soak", "--lease", "2")

    def ls(self) -> None:
        self._call("ls")


def reach(session_id: str) -> Session:
    """A link of the soak's own."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return Session.open(session_id)
        except ClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
