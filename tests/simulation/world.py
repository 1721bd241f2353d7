"""A keeper in one thread, with everything around it simulated from one seed: clock, disk, kernel, clients.

What is real: the core, the runner, the recorder, what starts, talks and listens to the kernel, what answers kernel
clients, and the journal's chain. What may happen is what may happen in `tests/core/world.py`, and beside it the faults:
of the disk, of the kernel, of the clients, and the end of the keeper at any point.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from jupyter_cmdop.core import admission, state
from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import Actor, ActorKind
from jupyter_cmdop.core.operations import DROP_OUTCOMES, OUTCOMES
from jupyter_cmdop.core.policy import InputClass, PolicyName
from jupyter_cmdop.core.session import Session
from jupyter_cmdop.journal.entry import Entry, Sealed
from jupyter_cmdop.keeper import recorder as recorder_module
from jupyter_cmdop.keeper import runner as runner_module
from jupyter_cmdop.keeper.clients import Published
from jupyter_cmdop.keeper.clock import Clock
from jupyter_cmdop.keeper.config import KeeperConfig, OwnerConfig
from jupyter_cmdop.keeper.kernel_requests import KernelRequests, Request
from jupyter_cmdop.keeper.kernel_side import KernelSide
from jupyter_cmdop.keeper.recorder import ENDLESS, Recorder
from jupyter_cmdop.keeper.runner import Runner
from jupyter_cmdop.keeper.stamps import Origin
from jupyter_cmdop.wire.kernel import ExecuteRequest, Header, Message, encode_json
from jupyter_cmdop.wire.websocket import decode_v1
from tests.core.contract import FLOOR_ENTRIES
from tests.core.world import ACTIONS, ROLES, SMALL_QUEUE, World
from tests.simulation.disk import OUTAGE, Crash, Disk, Syncer
from tests.simulation.kernel import Channels, Job, Kernel, Loop, Process

EVENTS = 50  # at least; picked by the scheduler, what these bring about comes on top
MORE_EVENTS = 20
TURNS_AT_ONCE = 25  # while time passes; a loop that is held up skips the rest
SMALL_MEMORY = 3  # operations
SMALL_BACKLOG = 6000
SMALL_ORIGINS = 64
TICKS_BEFORE_A_CRASH = 60
ROUNDS = [1, 2, 4]  # of what the kernel and the keeper say to each other in one turn
MOSTLY = [True] * 7 + [False]
MENDS = [True, False, False, False, False, False]  # whether it ends after a step
NEW = ev.Submit | ev.Take | ev.HandBack | ev.Release | ev.SetPolicy | ev.Invite | ev.Answer
_decode = msgspec.json.Decoder().decode


@contextmanager
def small_limits() -> Any:
    """Limits that a seed can reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "MAX_QUEUED_OPERATIONS", SMALL_QUEUE)
        patch.setattr(state, "REMEMBERED_OPERATIONS", SMALL_MEMORY)
        patch.setattr(runner_module, "KEPT_ENDED", SMALL_MEMORY)
        patch.setattr(runner_module, "KEPT_ORIGINS", SMALL_ORIGINS)
        patch.setattr(recorder_module, "BACKLOG_BYTES", SMALL_BACKLOG)
        yield


class Watched(Recorder):
    """Remembers what was to be recorded, whatever became of it."""

    def __init__(self, *args: Any) -> None:
        self.noted: list[Entry] = []
        super().__init__(*args)

    def note(self, entry: Entry, *, durable: bool = False, prepare: Callable[[], None] | None = None) -> int:
        self.noted.append(entry)
        return super().note(entry, durable=durable, prepare=prepare)


class Side(KernelSide):
    """Tells the simulation where the fence is; what is behind it must not reach the kernel."""

    world: Simulation

    def set_fence(self, generation: int) -> None:
        self.world.fence = generation
        super().set_fence(generation)


class Client:
    """One connection's far end: counts what it is told, unless it does not read."""

    def __init__(self, world: Simulation, actor: Actor, attachment: str, grant: str | None) -> None:
        self._world = world
        self.actor = actor
        self.attachment = attachment
        self.grant_id = grant
        self.is_open = True
        self.reads = True
        self.has_missed = False
        self.sent: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self._seen = 0

    def reply(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes], seq: int = 0) -> bool:
        self._world.check_shown(seq)
        if not self.is_open or not self.reads:
            self.has_missed = True
            return False
        self._world.after_write(None)
        if channel == "shell":
            self.replies[_decode(parts[1])["msg_id"]] += 1
        return True

    def publish(self, published: Published) -> None:
        if published is not self._world.last_shown:
            self._world.last_shown = published
            self._world.check_shown(published.seq)
        assert published.seq == 0 or published.seq >= self._seen, "a viewer is shown things in their order"
        self._seen = max(self._seen, published.seq)


class Simulation(World):
    """One seed.

    Args:
        seed: everything follows from it.
        kinds: of the actors.
        disk: makes the journal.

    Attributes:
        events: what the scheduler has picked. handled: what the core has handled.
        reached: entries and outcomes in the journal, and refusals.
        story: what happened, with its time.
    """

    def __init__(
        self,
        seed: int,
        kinds: dict[str, ActorKind] | None = None,
        *,
        disk: Callable[[Callable[[], None]], Disk] = Disk,
    ) -> None:
        self.seed = seed
        self._make_disk = disk
        self.dice = random.Random(seed)
        self.events = 0
        self.handled = 0
        self.story: list[tuple[float, object]] = []
        self.has_crashed = False
        self.reached: Counter[str] = Counter()
        self.fence = 0
        self.ended_grants: set[str | None] = set()
        self.last_shown: Published | None = None
        self.written: dict[str, tuple[str, bool]] = {}
        self.clients: dict[str, Client] = {}
        self._now = 100.0
        self._ticks_left = -1
        self._written_seq = 0
        self._most = 0
        self._asked_to_go = 0
        self._is_alone, self._is_late = True, False
        super().__init__(self.dice.choice, kinds)

    # ------------------------------------------------------------------ what is simulated

    def _open(self, policy: PolicyName) -> Session:
        self.clock = Clock(
            monotonic=lambda: self._now,
            monotonic_ns=lambda: int(self._now * 1e9),
            session=lambda: self._now,
            wall_ns=lambda: int((self._now + 1.7e9) * 1e9),
        )
        self.disk = self._make_disk(self._tick)
        self.syncer = Syncer(self.disk)
        self.loop = Loop()
        self.recorder = Watched(self.disk, self.clock, self.syncer)
        config = KeeperConfig(
            "simulated", "simulated", "", "", "", "", OwnerConfig("ann", "Ann"), policy=policy
        )
        self.runner = Runner(config, self.loop, self.recorder)  # type: ignore[arg-type]
        self.process = Process(self.choose, self.clock.monotonic)
        self.side = Side(
            self.runner,
            self,  # type: ignore[arg-type]
            self.process,  # type: ignore[arg-type]
            started=lambda problem: None,
            stopped=lambda pids: None,
            channels=Channels,  # type: ignore[arg-type]
        )
        self.side.world = self
        self.requests = KernelRequests(self.runner, self.side, repeat_result=self._repeat_result)
        self.side.viewers = self
        self.side.listen.clients = lambda: [client for client in self.clients.values() if client.is_open]
        self.runner.backend = self.side
        self.runner.endpoints = self
        session = self.runner.session
        self._handle, self._handle_timer = session.handle, session.handle_timer
        session.handle = self._watch  # type: ignore[method-assign]
        session.handle_timer = self._watch_timer  # type: ignore[method-assign]
        return session

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, moment: float) -> None:
        """Let time pass; the keeper's loop turns when something is due, unless it is held up."""
        self.say(f"time passes: {moment - self._now:.2f} s")
        for _ in range(TURNS_AT_ONCE):
            due = self.loop.next_due()
            if due is None or due > moment:
                break
            self._now = max(self._now, due)
            self.turn()
        self._now = max(self._now, moment)
        if self.choose([True, True, True, False]):
            self.turn()

    def say(self, what: object) -> None:
        self.story.append((self._now, what))

    def _tick(self) -> None:
        """A point at which the keeper may end."""
        if self._ticks_left > 0:
            self._ticks_left -= 1
            if self._ticks_left == 0:
                self.say("the keeper ends here")
                raise Crash

    def turn(self) -> None:
        """One turn of the keeper's loop."""
        kernel = self.process.kernel
        if kernel is not None and kernel.is_alive and kernel.awake_at <= self._now:
            kernel.work()
        for _ in range(self.choose(ROUNDS)):
            self.loop.turn()
            if not self.loop.is_awake:
                break
            if kernel is not None and kernel.is_alive and kernel.awake_at <= self._now:
                kernel.work()
        self.runner.run_timers()
        self.side.run_timers()
        self._tick()
        self.runner.commit()
        if self.syncer.is_woken and self.choose([True, False]):
            self.syncer.run()
        self._check_bounds()

    def _perhaps_turn(self) -> None:
        """Or more happens in the same turn."""
        if self.choose([True, True, True, False]):
            self.turn()

    # ------------------------------------------------------------------ what happens

    def _begin(self) -> None:
        self.side.start()
        self.turn()
        self.now += self.choose([0.0, 0.2, 1.0])

    def _connections(self) -> list[Any]:
        return [a for a in self.session.attachments.values() if a.id != "keeper"]

    def do(self, event: ev.Event) -> list[fx.Effect]:
        self.events += 1
        self._now += self.choose([0.0, 0.0, 0.01, 0.06])
        self.say(event)
        # Mostly what time brings about is done first, so that the effects are those of the event alone.
        self._is_alone, self._is_late = not self._is_late and self.choose(MOSTLY), False
        is_unavailable = self.recorder.unavailable is not None
        if self._is_alone:
            self.runner.run_timers()
        before = self._fingerprint() if self._is_alone else None
        hand = self._hand(event)
        self._effects: list[fx.Effect] = []
        refusal = self.runner.submit(event, hand)
        if is_unavailable and isinstance(event, NEW):
            assert refusal is not None, "it is let in while nothing can be recorded"
        effects, self._is_alone = self._effects, False
        if refusal is not None:
            self.say(f"refused: {refusal.code}")
            self.reached[refusal.code] += 1
            if before is not None:
                assert self._fingerprint() == before, (
                    f"what was refused ({refusal.code}) has changed something"
                )
        self._perhaps_turn()
        return effects

    def _fingerprint(self) -> object:
        session = self.session
        floor = session.floor
        return (
            (floor.state, floor.driver, floor.generation, floor.since, floor.act_until, floor.stale_until),
            session.policy,
            session.backend,
            session.counter,
            [(name, lane.running, tuple(lane.queue)) for name, lane in session.lanes.items()],
            [(op.status, op.interrupted_by, op.adopted_by) for op in session.active()],
            list(session.prompts),
            list(session.grants),
            list(session.attachments),
        )

    def _hand(self, event: ev.Event) -> Request | None:
        """What the endpoint holds of the event, as `KernelRequests` makes it."""
        if isinstance(event, ev.Attach):
            made = event.attachment
            self.clients[made.id] = Client(self, made.actor, made.id, made.grant)
        elif isinstance(event, ev.Detach):
            self.clients[event.attachment].is_open = False
        elif isinstance(event, ev.Submit):
            return self._request(event)
        elif isinstance(event, ev.Answer):
            client = self.clients.get(event.attachment)
            if client is None:
                return None
            header = Header("answer", "input_reply", event.client_session or "")
            message = Message([], b"", b"{}", b"{}", b"{}", b'{"value":"x"}', [])
            return Request(
                self.requests, client, "stdin", message, header, Origin(client.actor, "input_reply")
            )
        return None

    def _request(self, event: ev.Submit) -> Request:
        client = self.clients[event.attachment]
        kind, session = event.message_type, event.client_session
        facts = {"msg_id": event.msg_id, "msg_type": kind, "session": session, "username": "liar"}
        if event.lane:
            facts["subshell_id"] = event.lane
        raw = encode_json(facts)
        execute, content = None, b'{"comm_id":"c","data":{"state":{"value":1}}}'
        if event.executes:
            execute = ExecuteRequest(
                "1", event.input_class is InputClass.IMPLICIT, True, True, event.stop_on_error
            )
            content = b'{"code":"1","stop_on_error":true}'
            client.sent[event.msg_id] += 1
        origin = Origin(
            client.actor,
            kind,
            header=raw,
            endpoint=client,
            identities=[b"i"],
            client_session=session,
            lane=event.lane,
        )
        header = Header(event.msg_id, kind, session, "liar", None, "5.4", event.lane or None)
        message = Message([b"i"], b"", raw, b"{}", b"{}", content, [])
        return Request(
            self.requests,
            client,
            "shell",
            message,
            header,
            origin,
            execute,
            composed_before=event.composed_before,
            facts={"code": "1"} if event.executes else {},
        )

    def _send(self, event: ev.Submit) -> None:
        if event.attachment not in self.clients:
            return
        if event.input_class is InputClass.READING:
            event = replace(event, message_type="is_complete_request", executes=False)
        elif event.input_class is InputClass.PEER_READING:
            event = replace(event, message_type="complete_request", executes=False)
        self.do(event)

    def _repeat_result(self, operation: str, request: Request) -> None:
        """As the keeper does, with the journal as it is."""
        found: list[tuple[str, Message]] = []
        for row in self.disk.rows:
            if row.entry.operation == operation and row.entry.type in ("output", "reply"):
                channel, header, parent, metadata, content, buffers = decode_v1(row.entry.body)
                found.append((channel, Message([], b"", header, parent, metadata, content, list(buffers))))
        self.loop.post(lambda: self.requests.show_result(request, found, operation))

    # ------------------------------------------------------------------ the kernel

    def _kernel(self) -> Kernel | None:
        kernel = self.process.kernel
        return kernel if kernel is not None and kernel.is_alive and self.side.is_ready else None

    def go_on(self) -> None:
        self.events += 1
        kernel = self._kernel()
        if kernel is None:
            if self.session.backend == "lost" and self.choose([True, False]):
                self.do(ev.Lifecycle("ann", "restart"))
            self.now += self.choose([0.05, 0.5, 3.1])
            return
        if not (jobs := kernel.jobs()):
            self.turn()
            return
        job: Job = self.choose(jobs)
        if not job.said and self.choose([False] * 30 + [True]):
            self.say(f"the kernel drops {job.operation} without a word")
            kernel.lanes[job.lane].remove(job)
            return
        if "started" not in job.said:
            kernel.start(job)
        what = self.choose(["output", "all", "all", "all", "reply", "idle", "end"])
        self.say(f"the kernel goes on with {job.operation}: {what}")
        if what == "output":
            kernel.output(job, "x" * self.choose([1, 20, 1000]))
        elif what in ("all", "reply", "end") and "reply" not in job.said:
            status = self.choose(["ok", "ok", "error", "aborted"])
            if job.interrupted:
                status = self.choose(["error", "error", "ok"])
            kernel.reply(job, status)
        if what in ("all", "idle"):
            kernel.finish(job)
        elif what == "end":
            kernel.finish(job, says_idle=self.choose([True, False]))
        self._perhaps_turn()

    def _ask(self) -> None:
        kernel = self._kernel()
        if kernel is not None and (jobs := kernel.jobs()):
            self.events += 1
            self._count += 1
            job = self.choose(jobs)
            self.say(f"the kernel asks in {job.operation}")
            kernel.ask(job, f"p{self._count}", password=self.choose([False, True]))
            self._perhaps_turn()

    def end_the_backend(self) -> None:
        if self.choose([True, False]):
            self._ask()
        attachment = self._one_of(["owner"] * 5 + ["anybody"])
        if self.choose([True, False, False]):
            verb = self.choose(["restart", "restart", "rename"])
            for _ in range(self.choose([1, 1, 3])):  # again, while it starts
                self.do(ev.Lifecycle(attachment, verb, "new"))
                self.turn()
                self._now += self.choose([0.0, 0.1, 0.1, 0.3])
        elif self.choose([True, False]) and self.process.kernel is not None:
            self.events += 1
            self.say("the kernel dies")
            self.process.kernel.is_alive = False
            if self.choose([True, False]):  # it is noticed at once; else at the next look
                self.loop.post(self.side._process_ended)
            self._perhaps_turn()

    def wait_for_the_lease_to_end(self) -> None:
        for _ in range(self.choose([0, 3, 12])):
            self.go_on()
        lease = self.session.lease_until()
        if lease is not None:
            self.now = max(self.now, lease) + self.choose([0.0, 1.0])
        if self.choose([True, False]):
            self._submit(self._one_of(["other"]), InputClass.EXPLICIT, executes=True)

    # ------------------------------------------------------------------ faults of the rest

    def break_the_disk(self) -> None:
        self.events += 1
        what = self.choose(["full", "full", "error", "error", "reads", "reads", "reads", "sync"])
        if what == "sync" and self.choose([True, True, True, False]):
            what = "full"
        self.say(f"the disk fails: {what}")
        if what == "reads":
            self.disk.failing_reads = True
        elif what == "sync":
            self.disk.fails_at_sync = True
        else:
            self.disk.failing = what

    def mend_the_disk(self) -> None:
        self.say("the disk works")
        self.disk.failing, self.disk.failing_reads = None, False
        if self.choose([True, False]):
            self.now += 0.2

    def ask_again(self) -> None:
        """A client that was away repeats a request of long ago, which only the journal may know."""
        old = [event for event in self._sent if event.request_id is not None and not event.composed_before]
        if old:
            self._count += 1
            event = self.choose(old[:6])
            self._send(replace(event, msg_id=f"m{self._count}", generation=None, prior=None))

    def stop_reading(self) -> None:
        self.events += 1
        client = self.choose(list(self.clients.values()))
        client.reads = not client.reads
        self.say(f"{client.attachment} reads: {client.reads}")

    def be_late(self) -> None:
        """The loop is held up: a long time passes in one turn, and what comes first is not a timer."""
        self.events += 1
        if self.choose([True, True, False]):
            for _ in range(self.choose([1, 2])):  # until the lease ends; then until nobody may resume it
                self.turn()
                lease = self.session.lease_until()
                self._now = max(self._now, self._now if lease is None else lease) + self.choose([0.0, 1.0])
        else:
            self._now += self.choose([0.5, 35.0, 130.0, 250.0])
        self.say("the keeper was held up")
        if self.choose([True, False]):
            self._is_late = True
            self._submit(self._one_of(["other"]), InputClass.EXPLICIT, executes=True)
        self.turn()

    # ------------------------------------------------------------------ what the runner asks of the endpoints

    def open_grant(self, grant: str) -> None:
        return

    def close_grant(self, grant: str, reason: str) -> None:
        for client in self.clients.values():
            if client.grant_id == grant:
                client.is_open = False

    def tell(self, effect: fx.Tell) -> None:
        assert effect.generation <= self.disk.highest_durable, "told before it was on disk"

    def announce(self, effect: fx.Announce) -> None:
        if effect.kind == "floor":
            assert effect.data["generation"] <= self.disk.highest_durable, "announced before it was on disk"

    def renamed(self, name: str) -> None:
        return

    def kernel_is_ready(self) -> None:
        self.requests.kernel_is_ready()

    def kernel_has_left(self, *, asked: bool) -> None:
        return

    # ------------------------------------------------------------------ what must hold: at the byte

    def before_write(self, channel: str, frames: Sequence[bytes], generation: int | None) -> None:
        """A message is about to reach the kernel."""
        self._tick()
        header = _decode(frames[2])
        disk = self.disk
        if header["session"] == self.side.state.own_session:
            if channel == "stdin":
                prompt = _decode(frames[3])["msg_id"]
                kernel = self.process.kernel
                for job in kernel.jobs() if kernel is not None else ():
                    if job.prompt == prompt:
                        known = disk.is_on_disk("input_answered", job.operation or "", durable=True)
                        assert known, f"the answer to {prompt} is not on disk"
            return
        assert generation is None or generation >= self.fence, "a stale generation reaches the kernel"
        operation = header.get("cmdop_operation")
        if operation is not None:
            self._check_delivery(operation, header, generation)
        elif not header["msg_type"].endswith("_request"):
            assert disk.is_on_disk("input", header["msg_id"], durable=False), (
                f"{header['msg_id']} was not recorded"
            )

    def _check_delivery(self, operation: str, header: dict[str, Any], generation: int | None) -> None:
        disk = self.disk
        admitted = disk.at.get(("admitted", operation))
        delivered = disk.at.get(("delivered", operation))
        assert admitted is not None, f"{operation} reaches the kernel, and its admission is not recorded"
        assert delivered is not None, f"{operation} reaches the kernel, and that is not recorded"
        explicit = _decode(disk.rows[admitted - 1].entry.body)["class"] == "explicit"
        if explicit:
            assert admitted <= disk.durable, f"the admission of {operation} would not survive a loss of power"
        entry = disk.rows[delivered - 1].entry
        assert operation not in self.written, f"{operation} reaches a kernel twice"
        assert delivered > self._written_seq, "the order of delivery is not that of the journal"
        assert generation == entry.generation == int(header["cmdop_generation"])
        assert header["cmdop_actor"] == entry.actor
        kernel = self.process.kernel
        assert kernel is not None
        assert kernel.incarnation == entry.incarnation, f"{operation} reaches another incarnation"
        here = [job for job in kernel.lanes.get(header.get("subshell_id") or "", ()) if job.operation]
        assert not here, f"{operation} reaches the kernel while {here[0].operation} is in it"
        ended = disk.at.get(("ended", operation))
        if ended is not None:
            outcome = _decode(disk.rows[ended - 1].entry.body)["outcome"]
            assert outcome not in DROP_OUTCOMES, f"{operation} reaches the kernel, and was {outcome}"
        core = self.session.operations[operation]
        assert core.interrupted_by is None, f"{operation} was interrupted before it reached the kernel"
        assert core.grant not in self.ended_grants or core.adopted_by, f"the grant of {operation} has ended"
        self._written_seq = delivered
        self.written[operation] = (header["cmdop_actor"], explicit)
        self.say(f"{operation} reaches the kernel")

    def after_write(self, job: Job | None) -> None:
        self._tick()

    def before_fence(self, generation: int) -> None:
        assert generation <= self.disk.highest_durable, "the fence moved before that was on disk"

    def check_shown(self, seq: int) -> None:
        assert seq <= self.recorder.last_seq, (
            "a reader that goes on behind it would miss what is recorded later"
        )
        if self.recorder.unavailable is None:
            assert seq <= len(self.disk.rows), f"entry {seq} is shown before it is recorded"

    # ------------------------------------------------------------------ what must hold: in the keeper

    def _watch(self, event: ev.Event, now: float) -> list[fx.Effect]:
        waiting = self._waiting()
        self._driver_before = self.session.floor.driver
        effects = self._handle(event, now)
        self.handled += 1
        if isinstance(event, ev.BackendReady):
            assert self._asked_to_go < event.incarnation, "a kernel that was asked to go is ready"
        if any(isinstance(effect, fx.RestartBackend) for effect in effects):
            self._asked_to_go = self.side.state.incarnation
        self._check(event, effects, waiting, now)
        if self._is_alone:
            self._check_event(event, effects)
            self._effects = effects
        return effects

    def _watch_timer(self, now: float) -> list[fx.Effect]:
        waiting = self._waiting()
        effects = self._handle_timer(now)
        self._check(None, effects, waiting, now)
        return effects

    def _check(
        self,
        event: ev.Event | None,
        effects: list[fx.Effect],
        waiting: set[tuple[str, str]],
        now: float,
    ) -> None:
        self.ended_grants |= {effect.grant for effect in effects if isinstance(effect, fx.CloseGrant)}
        self.contract.check(event, effects, now)
        self._check_turns(waiting, effects)
        of_event = [effect for effect in effects if not _is_of_time(effect)]
        self._check_backend(event, of_event)

    def _check_bounds(self) -> None:
        """Memory is bounded by what was under way at most, whatever happens."""
        self._most = max(self._most, sum(1 for _ in self.session.active()))
        most = SMALL_MEMORY + self._most + 1
        assert len(self.session.operations) <= most, "the core forgets"
        assert len(self.runner.operations) <= most, "the keeper forgets"
        assert len(self.runner.origins) <= SMALL_ORIGINS + self._most + 1, "origins are forgotten"
        recorder, disk = self.recorder, self.disk
        assert recorder.committed_seq == len(disk.rows), "the recorder knows where the journal is"
        held = recorder.last_seq - recorder.committed_seq
        kept = len(disk.rows) - disk.gaps + held
        assert len(recorder.noted) == kept + disk.lost + recorder._lost, "what is noted is kept or counted"

    # ------------------------------------------------------------------ the run, and what is left of it

    def run(self) -> None:
        try:
            self._step_until(EVENTS)
            last = self.events + self.dice.randrange(MORE_EVENTS)
            if self.choose([True, False]):
                self._ticks_left = self.dice.randrange(1, TICKS_BEFORE_A_CRASH)
            self._step_until(last)
            if self.choose([True, False, False, False]):
                self.close()
            self.come_to_rest()
        except Crash:
            self.has_crashed = True
            self.reached["crash"] += 1
        self.verify()
        assert len({entry.actor for entry in self.recorder.noted} & set(ROLES)) >= 3

    def _step_until(self, events: int) -> None:
        while self.events < events:
            self.choose(STEPS)(self)
            if (self.disk.failing is not None or self.disk.failing_reads) and self.choose(MENDS):
                self.mend_the_disk()

    def come_to_rest(self) -> None:
        """Everything works again, and what is under way ends."""
        self.disk.failing, self.disk.failing_reads, self.disk.fails_at_sync = None, False, False
        self.say("everything comes to rest")
        for _ in range(40):
            self._now += 1.0
            self.turn()
            kernel = self._kernel()
            for job in [] if kernel is None else kernel.jobs():
                if "started" not in job.said:
                    kernel.start(job)
                if "reply" not in job.said:
                    kernel.reply(job, "ok")
                kernel.finish(job)
            is_done = self.session.backend == "lost" or not any(self.session.active())
            if is_done and not self.loop.is_awake and self.side.listen.next_timer() is None:
                break
        self.turn()
        if self.disk.failure is not None:
            self.reached["failed sync"] += 1
            return
        self.syncer.run()
        assert self.recorder.unavailable is None, "the disk works, and the journal is not written"
        assert self.recorder.last_seq == len(self.disk.rows), "everything is recorded"
        assert not any(self.session.active()), "everything that was admitted has ended"
        assert all(live.outcome is not None for live in self.runner.operations.values())
        assert self.side.listen.next_timer() is None, "nothing is waited for"
        for client in self.clients.values():
            if client.is_open and not client.has_missed:
                assert client.replies & client.sent == client.sent, (
                    f"{client.attachment} waits for {client.sent - client.replies}"
                )
        self._snapshot = self.session.snapshot()
        for actor in ("ann", "bob", "bot"):
            self.check_take_over(actor)

    def verify(self) -> None:
        """What is left on the disk tells the truth, after the death of the process and after a loss of power."""
        disk = self.disk
        for row in disk.rows:
            self.reached[row.entry.type] += 1
            if row.entry.type == "ended":
                self.reached[f"ended {_decode(row.entry.body)['outcome']}"] += 1
        # What holds for a journal holds for each beginning of it.
        recorded = check_journal(disk.surviving())
        after_power_loss = self.choose([end for end in disk.ends if end >= disk.durable])
        for operation, (_, explicit) in self.written.items():
            assert operation in recorded, f"{operation} ran, and nothing is left of it"
            is_left = recorded[operation] <= after_power_loss
            assert is_left or not explicit, f"{operation} ran, and a loss of power leaves nothing of it"
        if not self.has_crashed and disk.failure is None:
            self._check_complete()

    def _check_complete(self) -> None:
        """All that was to be recorded is, in its order, or is counted in a gap."""
        lost = 0
        noted = deque(self.recorder.noted)
        for row in self.disk.rows:
            entry = row.entry
            if entry.type == "gap" and OUTAGE in entry.body:
                lost -= _decode(entry.body)["lost"]
                self.reached["lost output"] += 1
                continue
            while noted and noted[0] is not entry:
                given_up = noted.popleft()
                assert given_up.form == "v1" or given_up.type in ENDLESS, (
                    "it justifies something, and is lost"
                )
                lost += 1
            assert noted, f"entry {row.seq} was recorded twice, or out of its order"
            noted.popleft()
        assert all(entry.form == "v1" for entry in noted)
        assert lost + len(noted) == 0, "what was lost is counted"


def _is_of_time(effect: fx.Effect) -> bool:
    return isinstance(effect, fx.End) and effect.reason == "grant expired"


def check_journal(rows: Sequence[Sealed]) -> dict[str, int]:
    """Follow a journal from its beginning, and nothing but it.

    Returns:
        The operations that it knows, with the seq of their admission.
    """
    driver: str | None = None
    moved_at = 0
    generation = 0
    admitted: dict[str, Entry] = {}
    seqs: dict[str, int] = {}
    delivered: set[str] = set()
    ended: set[str] = set()
    requests: set[tuple[str | None, str]] = set()
    for row in rows:
        entry = row.entry
        assert entry.generation >= generation, f"entry {row.seq}: the generation falls"
        generation = entry.generation
        if entry.type in FLOOR_ENTRIES:
            data = _decode(entry.body)
            assert data["from"] == driver, f"entry {row.seq}: {data['from']} did not drive"
            if data["to"] != driver:
                assert generation > moved_at, f"entry {row.seq}: another driver, and no new generation"
                moved_at = generation
            driver = data["to"]
        elif entry.type in ("admitted", "input"):
            assert driver in (None, entry.actor), f"entry {row.seq}: {entry.actor} beside {driver}"
        name = entry.operation or ""
        if entry.type == "admitted":
            assert name not in admitted, f"entry {row.seq}: {name} is admitted twice"
            admitted[name], seqs[name] = entry, row.seq
            if entry.request_id is not None:
                key = (entry.actor, entry.request_id)
                assert key not in requests, f"entry {row.seq}: request {key} is executed twice"
                requests.add(key)
        elif entry.type == "delivered":
            assert name in admitted, f"entry {row.seq}: {name} was not admitted"
            assert name not in delivered | ended, f"entry {row.seq}: {name} is delivered again, or too late"
            assert entry.actor == admitted[name].actor
            delivered.add(name)
        elif entry.type == "ended":
            outcome = _decode(entry.body)["outcome"]
            assert name in admitted, f"entry {row.seq}: {name} was not admitted"
            assert name not in ended, f"entry {row.seq}: {name} ends twice"
            assert outcome in OUTCOMES
            assert (name in delivered) or outcome in DROP_OUTCOMES
            ended.add(name)
    return seqs


# What the world does in its own way is looked up in the simulation.
STEPS: list[Callable[[Simulation], None]] = [
    getattr(Simulation, name)
    for name in (
        *(action.__name__ for action in ACTIONS),
        "run_cells",
        "take",
        "come_or_go",
        *["go_on"] * 6,
        *["break_the_disk"] * 2,
        *["ask_again"] * 2,
        "stop_reading",
        "be_late",
    )
]


class SimulationFailed(AssertionError):
    """Names the seed, what had happened, and how to see it again."""


def simulate(
    seed: int,
    kinds: dict[str, ActorKind] | None = None,
    *,
    disk: Callable[[Callable[[], None]], Disk] = Disk,
) -> Simulation:
    """Run one seed.

    Raises:
        SimulationFailed: something that must hold does not.
    """
    simulation = Simulation.__new__(Simulation)
    try:
        simulation.__init__(seed, kinds, disk=disk)  # type: ignore[misc]
        simulation.run()
    except Exception as error:
        story = "\n".join(f"  {when:9.2f}  {what}" for when, what in simulation.story)
        raise SimulationFailed(
            f"seed {seed}: {type(error).__name__}: {error}\n{story}\n"
            f"seed {seed}: {type(error).__name__}: {error}\n"
            f"again: python -m tests.simulation.replay {seed}"
        ) from error
    return simulation
