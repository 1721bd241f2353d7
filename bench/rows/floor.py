"""What it costs to ask whose turn it is and to say who did it; and how fast a new driver is one."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.doors import WebsocketDoor
from bench.fan import Fan
from bench.figures import OURS, Figure, median
from bench.probes import wait_quiet
from bench.servers import Bench
from jupyter_cmdop.client import calls
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.grants import Attachment, Role
from jupyter_cmdop.core.policy import InputClass
from jupyter_cmdop.core.session import Session as Arbiter
from jupyter_cmdop.keeper.stamps import Origin, Stamper
from jupyter_cmdop.wire.kernel import stamp_metadata

ATTACHED = 16


def floor(bench: Bench) -> Iterator[Figure]:
    for what, message_type in (("a cell", "execute_request"), ("an input that no queue holds", "comm_msg")):
        check, stamp = _check_and_stamp(bench, message_type)
        both = [a + b for a, b in zip(check, stamp, strict=True)]
        figure = Figure.of(f"{what} of the driver: check and stamp", "µs CPU", {OURS: both}, tails=True)
        parts = f"check {median(check):.1f}, stamp {median(stamp):.1f}"
        yield figure.at_most(15).note(f"{parts}; {ATTACHED} attached")
    yield _take_over(bench)


def _check_and_stamp(bench: Bench, message_type: str) -> tuple[list[float], list[float]]:
    """Microseconds of processor time of each, by the code that a keeper runs, in this process."""
    actors = [Actor(f"actor-{n}", "human", f"Actor {n}") for n in range(ATTACHED)]
    arbiter = Arbiter(owner=actors[0], policy="turns")
    arbiter.handle(ev.BackendReady(1), 0.0)
    for at, actor in enumerate(actors):
        role: Role = "peer" if at else "owner"
        arbiter.handle(ev.Attach(Attachment(f"a{at}", actor, role, "link")), 0.0)
    arbiter.handle(ev.Take("a1"), 0.0)
    executes = message_type == "execute_request"
    stamper = Stamper("4b8e7e7e-3b0a-4c55-9a53-5d7f5ac8b6a1", incarnation=1)
    checks, stamps = [], []
    for seq in range(bench.count(5000)):
        submitted = ev.Submit(
            "a1", "client", f"m{seq}", message_type, InputClass.EXPLICIT, executes, digest=f"sha:{seq}"
        )
        begin = time.thread_time_ns()
        effects = arbiter.handle(submitted, 1.0)
        middle = time.thread_time_ns()
        passed = next(effect for effect in effects if isinstance(effect, fx.Deliver | fx.Forward))
        operation = passed.operation if isinstance(passed, fx.Deliver) else None
        # Each has an origin of its own, so that its stamp is built and not only found.
        origin = Origin(actors[1], message_type, operation=operation)
        stamped = time.thread_time_ns()
        stamp_metadata(b"{}", stamper.stamp(origin, "by", generation=arbiter.floor.generation, seq=seq))
        end = time.thread_time_ns()
        if operation is not None:
            arbiter.handle(ev.Replied(operation, "ok"), 1.0)
            arbiter.handle(ev.Idle(operation), 1.0)
        checks.append((middle - begin) / 1000)
        stamps.append((end - stamped) / 1000)
    return checks, stamps


def _take_over(bench: Bench) -> Figure:
    """From the request to take until the new driver's first input is accepted; both go over one link."""
    kernel = bench.server().start_kernel("null")
    watching: list[WebsocketDoor] = [kernel.connect() for _ in range(ATTACHED // 2)]
    drivers = []
    for n in range(ATTACHED - len(watching)):
        drivers.append(
            Session.open(kernel.id, identity=Identity(actor=f"driver-{n}", kind="human"), persistent=True)
        )
        bench.keep([_Closing(drivers[-1])])
    fan = Fan([door.websocket for door in watching])
    bench.keep([*watching, fan])
    wait_quiet([kernel.pid], fan.drop_ready)
    took = []
    rounds = bench.count(300, 30)
    for at in range(rounds):
        driver = drivers[at % len(drivers)]
        begin = time.perf_counter()
        driver.take("mine")
        with driver.start(calls.run("pass", stream=True)) as stream:
            items = iter(stream)
            while "accepted" not in next(items).data:
                pass
            took.append((time.perf_counter() - begin) * 1000)
            for _ in items:
                pass
            stream.outcome()
        fan.drop_ready()
    figure = Figure.of(
        f"take-over to first accepted input, {ATTACHED} attached", "ms", {OURS: took}, tails=True
    )
    return figure.must("p99 ≤ 5 ms", (figure.p99 or 0) <= 5).note(f"{rounds} take-overs")


class _Closing:
    def __init__(self, session: Session) -> None:
        self.close = session.disconnect
