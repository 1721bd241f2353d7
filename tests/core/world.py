"""A world in which anything may happen to a session, one choice after the other, with everything checked.

It does not know where its choices come from: the state machine of `test_invariants` draws them, the twin run rolls
dice. Every event is also given to a session restored from a snapshot, which must answer the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from jupyter_cmdop.core import admission
from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import Actor, ActorKind
from jupyter_cmdop.core.floor import FloorState
from jupyter_cmdop.core.grants import Attachment, Grant, Role, attachment_of_grant
from jupyter_cmdop.core.operations import ReplyStatus
from jupyter_cmdop.core.policy import InputClass, PolicyName
from jupyter_cmdop.core.session import Session
from tests.core.contract import FLOOR_ENTRIES, Contract

Choose = Callable[[Sequence[Any]], Any]
ROLES: dict[str, Role] = {"ann": "owner", "bob": "peer", "bot": "peer", "eve": "observer"}
KINDS: dict[str, ActorKind] = {"ann": "human", "bob": "human", "bot": "agent", "eve": "service"}
SMALL_QUEUE = 4
SMALL_MEMORY = 16
"""Limits of operations under which a world should run, so that a full queue and forgetting are within reach."""

# Who acts: mostly those whose act may have an effect.
Who = Literal["driver", "other", "owner", "observer", "anybody"]
DRIVER: list[Who] = ["driver"] * 5 + ["other", "anybody"]
OTHER: list[Who] = ["other"] * 5 + ["driver", "anybody"]
OWNER: list[Who] = ["owner"] * 5 + ["anybody"]
OBSERVER: list[Who] = ["observer"]


class World:
    """One session, its actors and its backend.

    Args:
        choose: takes one of a list; everything that is open is chosen by it.
        kinds: of the actors.
    """

    def __init__(self, choose: Choose, kinds: dict[str, ActorKind] | None = None) -> None:
        self.choose = choose
        self.actors = {name: Actor(name, (kinds or KINDS)[name], name.title()) for name in ROLES}
        policy: PolicyName = choose(["open", "turns", "turns"])
        self.session = self._open(policy)
        self.contract = Contract(self.session)
        self.now = 100.0
        self.trace: list[tuple[ev.Event | None, list[fx.Effect]]] = []
        self.refusals: set[str] = set()
        self._sent: list[ev.Submit] = []
        self._count = 0
        self._gone: list[str] = []
        self._snapshot = self.session.snapshot()
        self._driver_before = self.session.floor.driver
        self._overtaken: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._in_backend: dict[str, str] = {}
        self._journal: dict[tuple[str, str], ev.Prior] = {}
        for actor in ROLES:
            self._attach(actor, actor)
        self._attach("bob", "bob-2")
        self._attach("bot", "bot-call", persistent=False)
        self._invite("bot", None)
        self._begin()

    def _open(self, policy: PolicyName) -> Session:
        return Session(owner=self.actors["ann"], policy=policy)

    def _begin(self) -> None:
        """The backend is ready, or is not yet."""
        if self.choose([True, True, False]):
            self.do(ev.BackendReady(1))

    def _connections(self) -> list[Attachment]:
        """Through which somebody may act."""
        return list(self.session.attachments.values())

    # ------------------------------------------------------------------ one event

    def do(self, event: ev.Event) -> list[fx.Effect]:
        """What time brings about first, so that the effects are those of the event alone."""
        self._step(None, lambda session: session.handle_timer(self.now))
        effects = self._step(event, lambda session: session.handle(event, self.now))
        self._check_event(event, effects)
        return effects

    def _step(self, event: ev.Event | None, call: Callable[[Session], list[fx.Effect]]) -> list[fx.Effect]:
        if event is None and (self.session.next_timer() or self.now + 1) > self.now:
            return []
        twin = Session.restore(self._snapshot)
        waiting = self._waiting()
        self._driver_before = self.session.floor.driver
        effects = call(self.session)
        assert call(twin) == effects, "a restored session does the same"
        self._snapshot = self.session.snapshot()
        assert twin.snapshot() == self._snapshot
        self.contract.check(event, effects, self.now)
        self._check_turns(waiting, effects)
        self._check_backend(event, effects)
        self.trace.append((event, effects))
        self.refusals |= {effect.refusal.code for effect in effects if isinstance(effect, fx.Reject)}
        return effects

    def _check_event(self, event: ev.Event, effects: list[fx.Effect]) -> None:
        entries = {effect.type for effect in effects if isinstance(effect, fx.Record)}
        if isinstance(event, ev.Submit):
            if event.input_class is not InputClass.EXPLICIT:
                assert not entries & FLOOR_ENTRIES - {"resumed"}, "only explicit input moves the floor"
                assert self.session.floor.driver == self._driver_before
            if entries & {"admitted", "input"}:
                actor = self.session.attachments[event.attachment].actor.id
                assert not self.session.floor.is_held_against(actor), "nothing is let in beside a driver"
        if "claimed" in entries:
            assert self.session.policy == "turns"
        if isinstance(event, ev.Take) and event.queue == "adopt":
            assert not any(isinstance(effect, fx.End) for effect in effects), "what waits goes on"
        attachment = self.session.attachments.get(getattr(event, "attachment", ""))
        if attachment is None or attachment.role != "observer" or isinstance(event, ev.Alive):
            return
        if isinstance(event, ev.Revoke) and "revoked" in entries:
            return  # everybody may give up a grant of his own
        if not (isinstance(event, ev.Submit) and event.input_class is InputClass.READING):
            assert {type(effect) for effect in effects} <= {fx.Record, fx.Reject}, (
                "an observer causes nothing"
            )

    # ------------------------------------------------------------------ fairness

    def _waiting(self) -> set[tuple[str, str]]:
        session = self.session
        return {
            (name, session.operations[op].holder) for name, lane in session.lanes.items() for op in lane.queue
        }

    def _check_turns(self, before: set[tuple[str, str]], effects: list[fx.Effect]) -> None:
        """Nobody who waits is overtaken twice by the same other."""
        if any(isinstance(effect, fx.Record) and effect.type == "adopted" for effect in effects):
            self._overtaken.clear()
        for effect in effects:
            if isinstance(effect, fx.Deliver):
                holder = self.session.operations[effect.operation].holder
                self._overtaken.pop((effect.lane, holder), None)
                for lane, other in before:
                    if lane == effect.lane and other != holder:
                        self._overtaken[lane, other][holder] += 1
        still = self._waiting()
        for key in list(self._overtaken):
            if key not in still:
                del self._overtaken[key]
        assert all(most <= 1 for counter in self._overtaken.values() for most in counter.values())

    # ------------------------------------------------------------------ the backend

    def _check_backend(self, event: ev.Event | None, effects: list[fx.Effect]) -> None:
        """It gets one operation a lane, and the next when it is idle; an error aborts what its own client queued."""
        operations = self.session.operations
        if isinstance(event, ev.Idle):
            self._in_backend = {
                lane: name for lane, name in self._in_backend.items() if name != event.operation
            }
        elif (
            isinstance(event, ev.BackendDied | ev.BackendMute | ev.Lifecycle)
            and self.session.backend != "ready"
        ):
            self._in_backend.clear()
        for effect in effects:
            if isinstance(effect, fx.Deliver):
                assert effect.lane not in self._in_backend
                self._in_backend[effect.lane] = effect.operation
            elif isinstance(effect, fx.End) and isinstance(event, ev.Replied | ev.Idle):
                ended, failed = operations[effect.operation], operations[event.operation]
                assert ended is failed or (effect.outcome == "aborted" and failed.stop_on_error)
                assert ended is failed or ended.id in failed.aborts
                assert ended.connection == failed.connection
                assert ended is failed or failed.outcome in ("error", "interrupted")

    # ------------------------------------------------------------------ anybody can take over

    def check_take_over(self, actor: str) -> None:
        """Drive a copy of the session: whoever may, takes over at once, and his input is let in."""
        twin = Session.restore(self._snapshot)
        twin.handle(
            ev.Attach(Attachment("taker", self.actors[actor], "peer", "link", persistent=False)), self.now
        )
        effects = twin.handle(ev.Take("taker", "to see whether it works"), self.now)
        refusals = [effect.refusal.code for effect in effects if isinstance(effect, fx.Reject)]
        if twin.policy == "readonly":
            assert refusals == ["read_only"]
            return
        assert not refusals
        assert (twin.floor.state, twin.floor.driver) == (FloorState.HELD, actor)
        generation = twin.floor.generation
        event = ev.Submit(
            "taker", "c", "m", "execute_request", InputClass.EXPLICIT, True, generation=generation
        )
        effects = twin.handle(event, self.now)
        refusals = [effect.refusal.code for effect in effects if isinstance(effect, fx.Reject)]
        if twin.backend in ("lost", "closed", "mute"):
            assert refusals == ["backend_lost"]
        elif refusals:
            assert refusals == ["queue_full"], "what stands in his way can only be what waits of his own"
            assert [op.actor.id for op in twin.queued()].count(actor) == admission.MAX_QUEUED_OPERATIONS
        else:
            assert any(isinstance(effect, fx.Admitted) for effect in effects)

    # ------------------------------------------------------------------ who

    def _one_of(self, who: list[Who]) -> str:
        """A connection of the driver, of others who may input, of observers, of the owner, or of anybody."""
        driver, found = self.session.floor.driver, self._connections()
        chosen = {
            "driver": [a.id for a in found if a.actor.id == driver],
            "other": [a.id for a in found if a.actor.id != driver and a.role != "observer"],
            "observer": [a.id for a in found if a.role == "observer"],
            "owner": [a.id for a in found if a.role == "owner"],
            "anybody": [],
        }[self.choose(who)]
        return str(self.choose(chosen or [*(a.id for a in found), *self._gone[-1:]]))

    def _attach(self, actor: str, name: str, *, grant: str | None = None, persistent: bool = True) -> None:
        made = Attachment(
            name, self.actors[actor], ROLES[actor], "link", grant, persistent=persistent, client="test"
        )
        self.do(ev.Attach(made))

    def come_or_go(self) -> None:
        what, attachment = self.choose(["come", "come", "go", "live"]), self._one_of(DRIVER)
        if what == "come":
            self._come_back()
        elif what == "live":
            self.do(ev.Alive(attachment))
        elif attachment != "ann":
            self._gone.append(attachment)
            self.do(ev.Detach(attachment))

    def _come_back(self) -> None:
        """The endpoint of a grant attaches again under its old name; else somebody gets one more connection."""
        for grant in self.session.grants.values():
            name = attachment_of_grant(grant.id)
            if name not in self.session.attachments:
                return self._attach(grant.actor.id, name, grant=grant.id)
        self._count += 1
        self._attach(self.choose(list(ROLES)), f"a{self._count}", persistent=self.choose([True, False]))

    # ------------------------------------------------------------------ input

    def _submit(self, attachment: str, input_class: InputClass, *, executes: bool) -> None:
        choose, floor = self.choose, self.session.floor
        self._count += 1
        found = self.session.attachments.get(attachment)
        event = ev.Submit(
            attachment,
            client_session=choose(["notebook", "console"]),
            msg_id=f"m{self._count}",
            message_type="execute_request" if executes else "comm_msg",
            input_class=input_class,
            executes=executes,
            lane=choose(["", "", "", "sub"]) if executes else "",
            digest=f"d{self._count}",
            size=choose([1] * 15 + [admission.MAX_QUEUED_BYTES + 1]) if executes else 0,
            stop_on_error=choose([True, False]),
            generation=choose([None] * 6 + [floor.generation] * 2 + [floor.generation - 1]),
            request_id=f"r{self._count // 8}" if executes and choose([True, False, False, False]) else None,
            composed_before=choose([False] * 15 + [True]),
            if_busy=choose(["queue"] * 7 + ["refuse"]),
            act=found is not None and not found.persistent,
        )
        self._sent.append(event)
        self._send(event)

    def _send(self, event: ev.Submit) -> None:
        """As a keeper does: what the journal knows of a request id goes with the event."""
        found = self.session.attachments.get(event.attachment)
        if found is None or event.request_id is None:
            self.do(event)
            return
        key = (found.actor.id, event.request_id)
        for effect in self.do(replace(event, prior=self._journal.get(key))):
            if isinstance(effect, fx.Admitted):
                self._journal[key] = ev.Prior(effect.operation, event.digest)

    def run_cells(self) -> None:
        attachment = self._one_of(DRIVER)
        for _ in range(self.choose([1, 1, 2, 3, SMALL_QUEUE + 2, SMALL_QUEUE + 3])):
            self._submit(attachment, InputClass.EXPLICIT, executes=True)

    def crowd(self) -> None:
        """Several actors at once."""
        for _ in range(3):
            attachment = self._one_of(OTHER)
            for _ in range(self.choose([1, 2, 4])):
                self._submit(attachment, InputClass.EXPLICIT, executes=True)
        for _ in range(4):
            self.go_on()

    def run_a_cell_or_send_keys(self) -> None:
        executes = self.choose([True, True, True, False])
        self._submit(self._one_of(OTHER), InputClass.EXPLICIT, executes=executes)

    def move_a_slider_or_run_silently(self) -> None:
        self._submit(self._one_of(DRIVER), InputClass.IMPLICIT, executes=self.choose([True, False]))

    def send_again(self) -> None:
        """A client that got no answer repeats itself; or uses a message id a second time."""
        if self._sent:
            event = self.choose(self._sent[-5:])
            self._send(self.choose([event, event, replace(event, digest="another")]))

    def observe(self) -> None:
        """Or try more than that."""
        attachment = self._one_of(OBSERVER)
        input_class = self.choose([*InputClass, InputClass.READING])
        if self.choose([True, False]):
            self._submit(attachment, input_class, executes=input_class is InputClass.EXPLICIT)
        else:
            self.do(self.choose([ev.Take, ev.Release, ev.Interrupt, ev.Answer, ev.HandBack])(attachment))

    # ------------------------------------------------------------------ the floor

    def take(self) -> None:
        running, queue = self.choose(["let", "interrupt"]), self.choose(["drop", "adopt"])
        lease = self.choose([None, None, 10.0, 600.0])
        self.do(ev.Take(self._one_of(OTHER), self.choose(["", "mine"]), running, queue, lease))

    def give_away(self) -> None:
        attachment = self._one_of(DRIVER)
        if self.choose([True, True, False]):
            self.do(ev.HandBack(attachment, self.choose([None, None, "ann", "bob", "bot", "eve", "nobody"])))
        else:
            self.do(ev.Release(attachment))

    def set_policy(self) -> None:
        policies = ["turns", "turns", "open"]
        if self.session.policy != "readonly":
            policies += ["readonly", "chaos"]
        self.do(ev.SetPolicy(self._one_of(OWNER), self.choose(policies)))

    # ------------------------------------------------------------------ what runs

    def interrupt(self) -> None:
        known = [op.id for op in self.session.active()] or ["o1", "o999"]
        self.do(ev.Interrupt(self._one_of(DRIVER), self.choose([None, *known])))

    def ask_and_answer(self) -> None:
        for _ in range(self.choose([1, 1, 2])):
            self._ask()
        for _ in range(self.choose([0, 1, 2])):
            self.answer()

    def _ask(self) -> None:
        running = self.session.running()
        if running:
            self._count += 1
            password = self.choose([False, True])
            self.do(ev.Prompted(self.choose(running).id, f"p{self._count}", "? ", password))

    def answer(self) -> None:
        prompts = [prompt["prompt"] for prompt in self.session.prompts.values()]
        asking = [self.session.operations[name] for name in self.session.prompts]
        if asking and self.choose([True, False]):
            operation = self.choose(asking)
            self.do(ev.Answer(operation.attachment, client_session=operation.client_session, stock=True))
        elif asking or self.choose([True, False, False, False]):
            self.do(ev.Answer(self._one_of(DRIVER), self.choose([None, "p?", *prompts])))

    # ------------------------------------------------------------------ the backend

    def go_on(self) -> None:
        """What a backend does next: it comes, it finishes, it says the half of it."""
        if self.session.backend in ("lost", "mute"):
            self.do(ev.Lifecycle("ann", "restart"))
        if self.session.backend == "starting":
            self.do(ev.BackendReady(self.session.incarnation + 1))
        running = self.session.running()
        if not running:
            return
        operation = self.choose(running)
        status: ReplyStatus = self.choose(["ok", "ok", "error", "aborted"])
        if operation.interrupted_by is not None:  # as a kernel does, unless the cell caught it
            status = self.choose(["error", "error", "ok"])
        said = self.choose(["both", "both", "reply", "idle"])
        if said != "idle" and operation.replied is None:
            self.do(ev.Replied(operation.id, status))
        if said != "reply" and operation.is_active:
            self.do(ev.Idle(operation.id))

    def end_the_backend(self) -> None:
        if self.choose([True, False]):
            self._ask()
        attachment = self._one_of(OWNER)
        if self.choose([True, False]):
            self.do(ev.Lifecycle(attachment, self.choose(["restart", "rename"]), "new"))
        else:
            died = ev.BackendDied("gone", will_restart=self.choose([True, True, False]))
            self.do(self.choose([died, died, ev.BackendMute("not a word")]))

    def close(self) -> None:
        self.do(ev.Lifecycle(self._one_of(OWNER), "close", force=self.choose([True, False])))

    # ------------------------------------------------------------------ time and grants

    def wait(self) -> None:
        self.now += self.choose([0.5, 5.0, 29.0, 31.0, 61.0, 121.0, 700.0])

    def wait_for_the_lease_to_end(self) -> None:
        """A busy driver never lapses: first his work ends. Then somebody acts, or nobody does."""
        while running := self.session.running():
            self.do(ev.Replied(running[0].id, "ok"))
            self.do(ev.Idle(running[0].id))
        self.now = max(self.now, self.session.lease_until() or 0.0) + self.choose([0.0, 1.0])
        if self.choose([True, False]):
            self._submit(self._one_of(OTHER), InputClass.EXPLICIT, executes=True)

    def invite_or_revoke(self) -> None:
        if self.choose([True, True, False]):
            self._invite(self.choose(["bob", "bot", "eve"]), self.choose([None, 20.0, 100.0]))
            return
        self._gone.extend(a.id for a in self.session.attachments.values() if a.grant is not None)
        self.do(ev.Revoke(self._one_of(OWNER), self.choose([*self.session.grants, "g?"])))

    def _invite(self, actor: str, expires_in: float | None) -> None:
        self._count += 1
        expires = None if expires_in is None else self.now + expires_in
        given = Grant(f"g{self._count}", self.actors[actor], ROLES[actor], "ipc", expires)
        self.do(ev.Invite(self._one_of(OWNER), given))
        if given.id in self.session.grants:
            self._attach(actor, attachment_of_grant(given.id), grant=given.id)


ACTIONS: list[Callable[[World], None]] = [
    World.run_cells,
    World.crowd,
    World.run_a_cell_or_send_keys,
    World.move_a_slider_or_run_silently,
    World.send_again,
    World.observe,
    World.take,
    World.give_away,
    World.set_policy,
    World.interrupt,
    World.ask_and_answer,
    World.answer,
    World.go_on,
    World.come_or_go,
    World.wait,
    World.wait_for_the_lease_to_end,
    World.invite_or_revoke,
    World.end_the_backend,
]
"""Everything that may happen, but the close of the session."""
