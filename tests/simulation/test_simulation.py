"""The keeper, simulated from seeds. A failure names its seed, tells what had happened, and how to see it again."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_cmdop.core import access, admission, driving, lanes, lifecycle, moves
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.actor import ACTOR_KINDS, ActorKind
from jupyter_cmdop.core.operations import OUTCOMES
from jupyter_cmdop.journal.entry import Entry
from jupyter_cmdop.journal.errors import JournalError
from jupyter_cmdop.journal.verify import verify
from jupyter_cmdop.keeper.kernel_side import KernelSide
from jupyter_cmdop.keeper.kernel_talk import KernelTalk
from jupyter_cmdop.keeper.recorder import Recorder
from jupyter_cmdop.keeper.runner import Runner
from tests.core.contract import FLOOR_ENTRIES
from tests.core.test_invariants import codes_in_the_core
from tests.core.world import KINDS
from tests.simulation.disk import Disk, Mirrored
from tests.simulation.world import EVENTS, Simulation, SimulationFailed, simulate, small_limits

SEEDS = 5000
BLOCKS = 10
SOAK_SEEDS = int(os.environ.get("CMDOP_SIMULATION_SEEDS", "100000"))
TWINS = 10  # one seed in so many is run again with all kinds swapped
SEEDS_FOR_A_FAULT = 1000  # within which a planted fault must be found
SWAPPED: dict[str, ActorKind] = {
    actor: ACTOR_KINDS[(ACTOR_KINDS.index(kind) + 1) % len(ACTOR_KINDS)] for actor, kind in KINDS.items()
}
_decode = msgspec.json.Decoder().decode


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Limits within reach; and what the keeper logs of its faults is expected here."""
    logging.disable(logging.CRITICAL)
    with small_limits():
        yield
    logging.disable(logging.NOTSET)


def check(seed: int, reached: Counter[str]) -> None:
    simulation = simulate(seed)
    assert simulation.events >= EVENTS
    reached += simulation.reached
    if seed % TWINS == 0:
        check_kinds(seed, simulation)


def check_kinds(seed: int, first: Simulation) -> None:
    """The same seed with all kinds swapped: the same decisions, and the same journal but for the kind."""
    second = simulate(seed, SWAPPED)
    ours, theirs = ([row.entry for row in world.disk.rows] for world in (first, second))
    assert len(ours) == len(theirs), f"seed {seed}: the kind of an actor decides"
    for one, other in zip(ours, theirs, strict=True):
        assert without_kind(one) == without_kind(other), f"seed {seed}: the kind of an actor decides"


def without_kind(entry: Entry) -> object:
    body: Any = None  # of a frame: its stamp shows the kind, and random ids
    if entry.form == "json":
        body = {key: value for key, value in _decode(entry.body).items() if key != "kind"}
    return msgspec.structs.replace(entry, body=b""), body


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_must_hold_holds_in_every_seed(block: int) -> None:
    each = SEEDS // BLOCKS
    reached: Counter[str] = Counter()
    for seed in range(block * each, (block + 1) * each):
        check(seed, reached)
    # A simulation that comes to nothing holds always.
    wanted = {
        *(f"ended {outcome}" for outcome in OUTCOMES),
        *FLOOR_ENTRIES,
        *codes_in_the_core(),
        *("admitted", "delivered", "input", "input_requested", "input_answered", "interrupted", "adopted"),
        *("attached", "detached", "granted", "revoked", "expired", "policy", "duplicate", "refused"),
        *("backend_ready", "backend_died", "restarted", "closed", "gap", "lost output", "output", "reply"),
        *("crash", "failed sync", "journal_unavailable"),
    }
    assert wanted <= set(reached), f"never reached: {sorted(wanted - set(reached))}"


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_seeds() -> None:
    """Others than before: they begin where the time says, which is printed."""
    first, begun = int(time.time()) * 1000, time.monotonic()
    reached: Counter[str] = Counter()
    print(f"{SOAK_SEEDS} seeds from {first}", flush=True)
    for seed in range(first, first + SOAK_SEEDS):
        check(seed, reached)
    print(f"{SOAK_SEEDS} seeds from {first}: {time.monotonic() - begun:.0f} s")


def test_a_seed_does_the_same_again() -> None:
    """To the byte, but for the random ids of the keeper's own messages."""
    first, second = simulate(7), simulate(7)
    assert [str(what) for _, what in first.story] == [str(what) for _, what in second.story]
    assert len(first.disk.rows) == len(second.disk.rows)


@pytest.mark.parametrize("seed", range(20))
def test_the_simulated_disk_is_as_the_real_one(seed: int, tmp_path: Path) -> None:
    """What the simulation says of the journal holds for the real store as far as this does what that does."""
    made: list[Mirrored] = []

    def mirrored(tick: Callable[[], None]) -> Disk:
        made.append(Mirrored(tick, tmp_path))
        return made[0]

    simulation = simulate(seed, disk=mirrored)
    made[0].real.close()
    report = verify(tmp_path)
    assert report.ok, report.problem
    # A crash can fall between the two.
    assert report.entries in (
        simulation.disk.ends[-2:] if simulation.has_crashed else simulation.disk.ends[-1:]
    )


# ---------------------------------------------------------------------- does it find faults?


def sends_first(patch: pytest.MonkeyPatch) -> None:
    """What is to be sent goes out before it is recorded."""
    commit = Recorder.commit

    def hasty(self: Recorder, generation: int) -> bool:
        sends, self._sends = self._sends, []
        self._carry_out(sends)
        return commit(self, generation) or bool(sends)

    patch.setattr(Recorder, "commit", hasty)


def never_syncs(patch: pytest.MonkeyPatch) -> None:
    """A cell is recorded, but not on the disk, when it runs."""
    note = Recorder.note
    patch.setattr(Recorder, "note", lambda self, entry, **_: note(self, entry))


def has_no_fence(patch: pytest.MonkeyPatch) -> None:
    """What was admitted under an older generation is delivered all the same."""
    patch.setattr(KernelTalk, "set_fence", lambda self, generation: None)


def keeps_the_queue(patch: pytest.MonkeyPatch) -> None:
    """A take-over leaves what waits where it is."""
    patch.setattr(moves, "supersede", lambda *_, **__: None)


def prefers_humans(patch: pytest.MonkeyPatch) -> None:
    """What an agent does renews its lease for a shorter time."""
    renew = moves.renew

    def unfair(turn: Any, attachment: Any, *, lease_seconds: float | None = None) -> None:
        renew(turn, attachment, lease_seconds=10.0 if attachment.actor.kind == "agent" else lease_seconds)

    for module in (driving, moves):
        patch.setattr(module, "renew", unfair)


def lets_in_unrecorded(patch: pytest.MonkeyPatch) -> None:
    """New input is let in while the journal cannot be written."""
    patch.setattr(Runner, "_refusal_of_journal", lambda self, event: None)


def forgets_requests(patch: pytest.MonkeyPatch) -> None:
    """A request id that has left the memory counts as new."""
    patch.setattr(Runner, "prior", lambda self, actor, request_id: None)


def loses_the_outcome(patch: pytest.MonkeyPatch) -> None:
    """What the kernel had when it died gets no outcome."""
    patch.setattr(lifecycle, "clear", lambda *_, **__: None)


def interrupts_too_early(patch: pytest.MonkeyPatch) -> None:
    """An interrupt that overtakes its operation is lost."""
    patch.setattr(KernelTalk, "_late_refusal", lambda self, operation: None)


def hears_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A kernel that is being restarted still says that it is ready."""
    patch.setattr(KernelSide, "leave", lambda self: None)


def counts_no_loss(patch: pytest.MonkeyPatch) -> None:
    """Output for which there is no room vanishes."""
    note = Recorder.note

    def silent(self: Recorder, entry: Entry, **more: Any) -> int:
        seq, self._lost = note(self, entry, **more), 0
        return seq

    patch.setattr(Recorder, "note", silent)


def delivers_twice(patch: pytest.MonkeyPatch) -> None:
    """After an interrupt what was held back goes out, and is kept."""
    let_go = KernelTalk.let_go

    def forgetful(self: KernelTalk) -> None:
        held = [(live, live.message, *rest) for live, *rest in self._held]
        let_go(self)
        for live, message, *_ in held:
            live.message = message

    patch.setattr(KernelTalk, "let_go", forgetful)
    deliver = KernelTalk.deliver

    def eager(self: KernelTalk, operation: Any, lane: str, generation: int) -> None:
        message = operation.message
        deliver(self, operation, lane, generation)
        if operation.message is None and operation.id.endswith("7"):
            operation.message = message
            deliver(self, operation, lane, generation)

    patch.setattr(KernelTalk, "deliver", eager)


def aborts_others(patch: pytest.MonkeyPatch) -> None:
    """One actor's error aborts what everybody has queued."""

    def harsh(turn: Any, operation: Any) -> None:
        if operation.reported == "error":
            operation.aborts = tuple(turn.state.lanes[operation.lane].queue)

    patch.setattr(lifecycle, "mark_aborted", harsh)


def obeys_the_stale(patch: pytest.MonkeyPatch) -> None:
    """Who lost the floor is not told before he claims it again."""
    patch.setattr(admission, "_barred", lambda *_: None)


def trusts_the_revoked(patch: pytest.MonkeyPatch) -> None:
    """A grant that has ended lets through what came with it before."""
    drop = lanes.drop

    def lenient(turn: Any, operation: Any, outcome: Any, **fields: Any) -> None:
        if not fields.get("reason", "").startswith("grant"):
            drop(turn, operation, outcome, **fields)

    patch.setattr(access, "drop", lenient)
    look = KernelTalk._late_refusal
    patch.setattr(KernelTalk, "_late_refusal", lambda self, op: look(self, replace(op, revoked=False)))


def stamps_too_late(patch: pytest.MonkeyPatch) -> None:
    """Each entry of an event gets the generation that the event ended with."""
    record = Runner._record
    patch.setattr(
        Runner,
        "_record",
        lambda self, effect, hand: record(
            self, replace(effect, generation=self.session.floor.generation), hand
        ),
    )


def cannot_look_up(patch: pytest.MonkeyPatch) -> None:
    """A request id that cannot be looked up counts as new."""
    prior = Runner.prior

    def careless(self: Runner, actor: str, request_id: str) -> ev.Prior | None:
        try:
            return prior(self, actor, request_id)
        except JournalError:
            return None

    patch.setattr(Runner, "prior", careless)


def proves_by_another_lane(patch: pytest.MonkeyPatch) -> None:
    """That the main shell answers is taken as a proof of what a subshell has done."""
    ask = KernelTalk.ask

    def simple(self: KernelTalk, channel: str, kind: str, content: Any, lane: str = "") -> str:
        return ask(self, channel, kind, content)

    patch.setattr(KernelTalk, "ask", simple)


def holds_what_is_recorded(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync the entries are taken to be missing."""
    append, fail = Recorder._append, Recorder._fail
    last: list[Entry] = []

    def appended(self: Recorder, entries: list[Entry], generation: int, *more: Any) -> None:
        append(self, entries, generation, *more)
        last[:] = entries

    def failed(self: Recorder, reason: str, now: float) -> None:
        if self.store.failure is not None:
            self._entries = list(last)
        fail(self, reason, now)

    patch.setattr(Recorder, "_append", appended)
    patch.setattr(Recorder, "_fail", failed)


def asks_the_core_for_what_it_forgot(patch: pytest.MonkeyPatch) -> None:
    """An answer that waits for an earlier one looks that one up where it may be forgotten."""
    in_order = KernelTalk.in_order

    def strict(self: KernelTalk, origin: Any, say: Callable[[], None]) -> None:
        for live in self._runner.operations.values():
            if live.origin is origin:
                break
            if live.origin.endpoint is origin.endpoint and live.outcome is None:
                assert self._runner.session.operations[live.id]
        in_order(self, origin, say)

    patch.setattr(KernelTalk, "in_order", strict)


def counts_wrong(patch: pytest.MonkeyPatch) -> None:
    """Output that will be lost is shown with the number of what is recorded later."""
    patch.setattr(Recorder, "next_seq", property(lambda self: self.last_seq + 1))


FAULTS = [
    sends_first,
    never_syncs,
    has_no_fence,
    keeps_the_queue,
    prefers_humans,
    lets_in_unrecorded,
    forgets_requests,
    loses_the_outcome,
    interrupts_too_early,
    hears_the_dead,
    counts_no_loss,
    delivers_twice,
    aborts_others,
    obeys_the_stale,
    trusts_the_revoked,
    stamps_too_late,
    cannot_look_up,
    proves_by_another_lane,
    holds_what_is_recorded,
    asks_the_core_for_what_it_forgot,
    counts_wrong,
]


def first_failure(seeds: range, *, with_twins: bool) -> str | None:
    for seed in seeds:
        try:
            simulation = simulate(seed)
            if with_twins:
                check_kinds(seed, simulation)
        except AssertionError as failure:
            return str(failure)
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    found = first_failure(range(SEEDS_FOR_A_FAULT), with_twins=fault is prefers_humans)
    assert found is not None, f"nothing was found in {SEEDS_FOR_A_FAULT} seeds: {fault.__doc__}"
    print(f"{fault.__name__}: found by {found.splitlines()[0][:150]}")


def test_a_failure_names_its_seed_and_tells_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    never_syncs(monkeypatch)
    with pytest.raises(SimulationFailed) as failed:
        simulate(3)
    message = str(failed.value)
    assert message.startswith("seed 3: ")
    assert "Attach(attachment" in message
    assert message.endswith("again: python -m tests.simulation.replay 3")
