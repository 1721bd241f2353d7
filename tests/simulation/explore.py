"""Every state of a small session, breadth first: what must hold is asked of each; the way to a fault is a short one.

Three actors with one connection each, one lane, few operations. States are compared without what decides nothing: names
of operations, absolute generations and times. Time passes to the next timer. The two peers are alike, so that a state
and its mirror are one.
"""

from __future__ import annotations

import gc
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.floor import FloorState
from jupyter_cmdop.core.grants import Attachment, Role
from jupyter_cmdop.core.policy import InputClass, PolicyName
from jupyter_cmdop.core.session import Session
from tests.core.contract import Contract

ROLES: dict[str, Role] = {"ann": "owner", "bob": "peer", "bot": "peer"}
ACTORS = {name: Actor(name) for name in ROLES}
MIRROR = {"ann": "ann", "bob": "bot", "bot": "bob", None: None}
SAME = {name: name for name in MIRROR}
CONNECTIONS = {
    name: Attachment(name, ACTORS[name], role, "link", can_return=True) for name, role in ROLES.items()
}
START = 1000.0

T = TypeVar("T")


class Broken(AssertionError):
    """Something does not hold; the message ends with a shortest way there."""


NOTHING = Session(owner=ACTORS["ann"])


@dataclass(slots=True, eq=False)
class State:
    """A session at a moment.

    Attributes:
        untold: who lost the floor with a connection through which he had acted, and has not been told since.
        parent, step: how it was first reached.
    """

    session: Session
    now: float
    untold: frozenset[str]
    parent: State | None = None
    step: str = ""
    count: int = 0

    def copy(self, step: str) -> State:
        return State(clone(self.session), self.now, self.untold, self, step, self.count)

    def forget(self) -> None:
        """From here on it is only a step on the way to others."""
        self.session = NOTHING

    def trace(self) -> list[str]:
        steps: list[str] = []
        at: State | None = self
        while at is not None and at.parent is not None:
            steps.append(at.step)
            at = at.parent
        return steps[::-1]


@dataclass
class Found:
    """What a search saw."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    generations: int = 0
    is_complete: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    refusals: set[str] = field(default_factory=set)
    floors: set[str] = field(default_factory=set)


def clone(session: Session) -> Session:
    """A session that goes on by itself; what has ended is left out, as if it were forgotten."""
    other = Session(owner=session.owner, policy=session.policy)
    other.floor = _copy(session.floor)
    other.incarnation, other.backend, other.counter = session.incarnation, session.backend, session.counter
    for name, lane in session.lanes.items():
        other.lanes[name] = type(lane)(lane.running, list(lane.queue), list(lane.served))
    other.operations = OrderedDict((op.id, _copy(op)) for op in session.active())
    other.attachments = dict(session.attachments)
    other.lost = dict(session.lost)
    other.connections = {name: list(known) for name, known in session.connections.items()}
    other.away = dict(session.away)
    other.alive_until = dict(session.alive_until)
    other.prompts = {name: dict(prompt) for name, prompt in session.prompts.items()}
    return other


def _copy(value: T) -> T:
    """`copy.copy` of a slotted object, five times as fast."""
    other = object.__new__(type(value))
    for name in value.__slots__:  # type: ignore[attr-defined]
        setattr(other, name, getattr(value, name))
    return other


def key(state: State, names: dict[str | None, str | None]) -> object:
    """What decides what may happen from here on, with the actors renamed."""
    session, now = state.session, state.now
    floor = session.floor
    return (
        session.policy,
        session.backend,
        floor.state,
        names[floor.driver],
        names[floor.previous],
        _left(floor.act_until, now),
        _left(floor.stale_until, now),
        tuple(
            (
                names[op.actor.id],
                names[op.adopted_by],
                op.status,
                op.replied,
                names[op.interrupted_by],
                min(floor.generation - op.generation, 2),
            )
            for op in session.active()
        ),
        tuple(names[name] for name in session.lanes[""].served),
        frozenset(names[name] for name in session.attachments),
        frozenset(names[name] for name in session.away),
        frozenset(names[name] for name in session.connections),
        frozenset(names[name] for name, _ in session.lost),
        frozenset((names[name], _left(until, now)) for name, until in session.alive_until.items()),
        frozenset(names[name] for name in state.untold),
    )


def _left(moment: float, now: float) -> float:
    return max(0.0, round(moment - now, 3))


# ---------------------------------------------------------------------- what can happen


def _pass_time(state: State) -> list[fx.Effect]:
    due = state.session.next_timer()
    assert due is not None
    state.now = max(state.now, due)
    return state.session.handle_timer(state.now)


def _submit(
    state: State, actor: str, input_class: InputClass, *, executes: bool, behind: int | None
) -> ev.Submit:
    generation = None if behind is None else state.session.floor.generation - behind
    return ev.Submit(
        actor, "c", f"m{state.count}", "execute_request", input_class, executes, generation=generation
    )


def steps(state: State, operations: int) -> Iterator[tuple[str, ev.Event | None]]:
    """Everything that can happen; None is the passing of time."""
    session = state.session
    active = list(session.active())
    for actor, connection in CONNECTIONS.items():
        if actor not in session.attachments:
            yield f"{actor} comes", ev.Attach(connection)
            continue
        yield f"{actor} goes", ev.Detach(actor)
        yield f"{actor} gives a sign of life", ev.Alive(actor)
        yield f"{actor} takes", ev.Take(actor)
        yield f"{actor} adopts", ev.Take(actor, queue="adopt", running="interrupt")
        yield f"{actor} releases", ev.Release(actor)
        yield f"{actor} hands back", ev.HandBack(actor)
        for other in ROLES:
            yield f"{actor} hands to {other}", ev.HandBack(actor, other)
        if active:
            yield f"{actor} interrupts", ev.Interrupt(actor)
        yield (
            f"{actor} moves a slider",
            _submit(state, actor, InputClass.IMPLICIT, executes=False, behind=None),
        )
        yield (
            f"{actor} sends what was made under an older generation",
            _submit(state, actor, InputClass.EXPLICIT, executes=operations > 0, behind=1),
        )
        if not operations:
            keys = _submit(state, actor, InputClass.EXPLICIT, executes=False, behind=None)
            yield f"{actor} sends keys", keys
        elif len(active) < operations:
            explicit = _submit(state, actor, InputClass.EXPLICIT, executes=True, behind=None)
            yield f"{actor} runs a cell", explicit
    policies: list[PolicyName] = ["open", "turns", "readonly"]
    for policy in policies:
        if policy != session.policy and "ann" in session.attachments:
            yield f"policy {policy}", ev.SetPolicy("ann", policy)
    if session.next_timer() is not None:
        yield "time passes", None
    if not operations:
        return
    running = session.lanes[""].running
    if running is not None:
        yield "the cell ends", ev.Idle(running)
    if session.backend == "ready":
        yield "the backend dies", ev.BackendDied("gone")
    else:
        yield "the backend is ready", ev.BackendReady(session.incarnation + 1)


# ---------------------------------------------------------------------- what must hold


def take_step(before: State, name: str, event: ev.Event | None) -> tuple[State, list[fx.Effect]]:
    """The state that follows, checked."""
    after = before.copy(name)
    after.count += 1
    session = after.session
    floor = before.session.floor
    contract = Contract(
        session,
        floor.generation,
        floor.driver,
        floor.generation,
        admitted=set(session.operations),
        delivered={op.id for op in session.running()},
    )
    effects: list[fx.Effect] = []
    try:
        if isinstance(event, ev.Idle):
            replied = ev.Replied(
                event.operation, "error" if session.operations[event.operation].interrupted_by else "ok"
            )
            said = session.handle(replied, after.now)
            contract.check(replied, said, after.now)
            effects += said
        said = _pass_time(after) if event is None else session.handle(event, after.now)
        contract.check(event, said, after.now)
        effects += said
        _check_staleness(before, after, event, effects)
    except AssertionError as error:
        raise Broken(f"{error or type(error).__name__}: {' > '.join(after.trace())}") from error
    return after, effects


def _check_staleness(before: State, after: State, event: ev.Event | None, effects: list[fx.Effect]) -> None:
    """Who lost the floor is told before he claims it again; what was made under an older generation is not let in."""
    untold = set(before.untold)
    refused = next((effect.refusal.code for effect in effects if isinstance(effect, fx.Reject)), None)
    if isinstance(event, ev.Submit) and event.input_class is InputClass.EXPLICIT:
        actor, session = event.attachment, before.session
        is_let_in = any(isinstance(effect, fx.Admitted | fx.Forward) for effect in effects)
        compared = session.floor.driver is not None or session.policy == "turns"
        is_stale = event.generation is not None and event.generation < session.floor.generation and compared
        assert not (is_stale and is_let_in), "input of a stale generation is let in"
        assert not (actor in untold and is_let_in), (
            f"{actor} claims the floor again before he is told of his loss"
        )
        if refused == "stale_generation":
            untold.discard(actor)
    if isinstance(event, ev.Take) and refused is None:
        untold.discard(event.attachment)
    driver = after.session.floor.driver
    if driver != before.session.floor.driver and isinstance(event, ev.HandBack) and driver is not None:
        untold.discard(driver)
    untold |= {
        effect.actor
        for effect in effects
        if isinstance(effect, fx.Tell) and effect.actor in after.session.connections
    }
    after.untold = frozenset(untold)


def check_reach(state: State) -> None:
    """Any peer can become the driver in two steps at most: nobody holds exclusive control."""
    session = state.session
    for actor, connection in CONNECTIONS.items():
        twin, done = clone(session), 0
        if actor not in twin.attachments:
            twin.handle(ev.Attach(connection), state.now)
            done += 1
        if twin.policy == "readonly":
            if "policy" not in connection.rights:
                continue
            twin.handle(ev.SetPolicy(actor, "turns"), state.now)
            done += 1
        if (twin.floor.state, twin.floor.driver) != (FloorState.HELD, actor):
            twin.handle(ev.Take(actor), state.now)
            done += 1
        is_driver = (twin.floor.state, twin.floor.driver) == (FloorState.HELD, actor)
        # Who has gone and meets `readonly` comes back first.
        allowed = 3 if session.policy == "readonly" and actor not in session.attachments else 2
        if not is_driver or done > allowed:
            raise Broken(f"{actor} cannot become the driver in two steps: {' > '.join(state.trace())}")


def explore(seconds: float, *, operations: int) -> Found:
    """Search until everything was seen, or the time is up.

    Args:
        seconds: for how long.
        operations: how many may wait or run at a time; with none, explicit input is keys.

    Raises:
        Broken: something does not hold.
    """
    begun, cpu, found = time.monotonic(), time.process_time(), Found()
    gc.collect()
    gc.disable()  # there is nothing to collect, and much to look through
    try:
        _search(found, begun + seconds, operations)
    finally:
        gc.enable()
    found.seconds, found.cpu_seconds = time.monotonic() - begun, time.process_time() - cpu
    return found


def _search(found: Found, until: float, operations: int) -> None:
    seen: set[object] = set()
    todo: deque[tuple[State, int]] = deque()
    for policy in ("open", "turns"):
        session = Session(owner=ACTORS["ann"], policy=policy)  # type: ignore[arg-type]
        for connection in CONNECTIONS.values():
            session.handle(ev.Attach(connection), START)
        session.handle(ev.BackendReady(1), START)
        first = State(session, START, frozenset(), step=policy)
        seen.add(key(first, SAME))
        todo.append((first, 0))
    while todo:
        if time.monotonic() >= until:
            return
        state, depth = todo.popleft()
        found.states += 1
        found.depth = max(found.depth, depth)
        found.generations = max(found.generations, state.session.floor.generation)
        found.floors.add(state.session.floor.state.value)
        check_reach(state)
        here = key(state, SAME)
        for name, event in steps(state, operations):
            after, effects = take_step(state, name, event)
            found.transitions += 1
            own = key(after, SAME)
            refused = {effect.refusal.code for effect in effects if isinstance(effect, fx.Reject)}
            found.refusals |= refused
            if refused and "stale_generation" not in refused and own != here:
                raise Broken(f"what was refused has changed something: {' > '.join(after.trace())}")
            if own not in seen and key(after, MIRROR) not in seen:
                seen.add(own)
                todo.append((after, depth + 1))
        state.forget()
    found.is_complete = True
