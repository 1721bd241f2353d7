"""What every session promises after every event, whoever acts. Each test here checks it, whatever else it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.floor import FloorState
from jupyter_cmdop.core.operations import OUTCOMES, Status
from jupyter_cmdop.core.policy import InputClass
from jupyter_cmdop.core.session import Session

FLOOR_ENTRIES = {"claimed", "taken", "handed_back", "released", "stale", "resumed", "freed"}
# Which entry must stand before an effect: of the same operation or grant, where it has one.
JUSTIFIED_BY: dict[type, set[str]] = {
    fx.Admitted: {"admitted"},
    fx.Duplicate: {"duplicate"},
    fx.Deliver: {"delivered"},
    fx.End: {"ended"},
    fx.InterruptBackend: {"interrupted"},
    fx.SendAnswer: {"input_answered"},
    fx.Fence: FLOOR_ENTRIES | {"policy", "backend_died", "backend_mute", "restarted", "closed"},
    fx.Tell: FLOOR_ENTRIES,
    fx.OpenGrant: {"granted"},
    fx.CloseGrant: {"revoked", "expired"},
    fx.RestartBackend: {"restarted"},
    fx.StopBackend: {"closed"},
    fx.Renamed: {"renamed"},
    fx.Reject: {"refused"},
}


@dataclass
class Contract:
    """Follows one session from its beginning, through what comes out of it alone, and compares."""

    session: Session
    fence: int = 0
    driver: str | None = None
    generation: int = 0
    admitted: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    requests: dict[tuple[str, str], str] = field(default_factory=dict)

    def check(self, event: ev.Event | None, effects: Sequence[fx.Effect], now: float) -> None:
        self._check_effects(event, effects)
        self._check_floor()
        self._check_state(now)

    # ------------------------------------------------------------------ what came out

    def _check_effects(self, event: ev.Event | None, effects: Sequence[fx.Effect]) -> None:
        entries: list[fx.Record] = []
        for effect in effects:
            if isinstance(effect, fx.Record):
                self._check_record(effect)
                entries.append(effect)
            elif isinstance(effect, fx.Forward):
                self._check_forward(event, effect, entries)
            elif type(effect) in JUSTIFIED_BY:
                subject = getattr(effect, "operation", None)
                grant = getattr(effect, "grant", None)
                assert any(
                    entry.type in JUSTIFIED_BY[type(effect)]
                    and subject in (None, entry.operation)
                    and grant in (None, entry.grant)
                    for entry in entries
                ), f"{effect} has no entry before it"
            self._follow(event, effect)
        rejects = [effect for effect in effects if isinstance(effect, fx.Reject)]
        assert len(rejects) <= 1
        if rejects:
            own = (fx.Admitted, fx.Duplicate, fx.Forward, fx.Deliver, fx.SendAnswer, fx.InterruptBackend)
            assert not any(isinstance(effect, own) for effect in effects)

    def _check_record(self, record: fx.Record) -> None:
        assert record.actor is not None or record.type == "refused", f"nobody is named: {record}"
        if record.type in FLOOR_ENTRIES - {"stale", "resumed"} | {"policy"}:
            assert record.durable, f"it must be on disk before it takes effect: {record}"

    def _check_forward(self, event: ev.Event | None, effect: fx.Forward, entries: list[fx.Record]) -> None:
        assert isinstance(event, ev.Submit)
        assert effect.generation == self.fence
        if event.input_class in (InputClass.EXPLICIT, InputClass.IMPLICIT):
            assert entries[-1].type == "input"
            assert entries[-1].actor is not None
            assert entries[-1].attachment == event.attachment

    def _follow(self, event: ev.Event | None, effect: fx.Effect) -> None:
        match effect:
            case fx.Fence():
                assert effect.generation > self.fence, "the fence moves forwards only"
                self.fence = effect.generation
            case fx.Admitted():
                assert effect.operation not in self.admitted
                self.admitted.add(effect.operation)
                self._follow_request(event, effect.operation, is_new=True)
            case fx.Duplicate():
                self._follow_request(event, effect.operation, is_new=False)
            case fx.Deliver():
                assert effect.operation in self.admitted - self.delivered - set(self.ended)
                assert effect.generation == self.fence
                self.delivered.add(effect.operation)
            case fx.End():
                assert effect.outcome in OUTCOMES
                assert effect.operation in self.admitted
                assert effect.operation not in self.ended, "an operation ends once"
                assert effect.delivered == (effect.operation in self.delivered)
                self.ended[effect.operation] = effect.outcome
            case fx.InterruptBackend() | fx.SendAnswer():
                assert effect.operation in self.delivered
                assert effect.operation not in self.ended
            case fx.Record(type="input_requested"):
                self.asked.add(effect.operation or "")
            case fx.ShowPrompt():
                assert effect.operation in self.asked

    def _follow_request(self, event: ev.Event | None, operation: str, *, is_new: bool) -> None:
        assert isinstance(event, ev.Submit)
        known = self.session.operations.get(operation)
        assert known is None or known.digest == event.digest, "the same content"
        if event.request_id is None:
            return
        key = (self.session.attachments[event.attachment].actor.id, event.request_id)
        assert not is_new or key not in self.requests, "a request id is used once"
        if event.prior is None or key in self.requests:
            assert self.requests.setdefault(key, operation) == operation

    # ------------------------------------------------------------------ the floor

    def _check_floor(self) -> None:
        floor = self.session.floor
        assert floor.generation == self.fence, "the backend knows the generation in force"
        assert floor.generation >= self.generation
        if floor.driver != self.driver:
            assert floor.generation > self.generation, "who may input has changed, and the generation has not"
        self.driver, self.generation = floor.driver, floor.generation

    # ------------------------------------------------------------------ what it holds

    def _check_state(self, now: float) -> None:
        session, floor = self.session, self.session.floor
        queued, running = session.queued(), session.running()
        assert (floor.driver is None) == (floor.state is FloorState.FREE)
        if floor.driver is not None:
            assert all(op.holder == floor.driver for op in queued), (
                "what waits, waits under the driver's right"
            )
        if floor.state is FloorState.STALE:
            assert not session.is_busy(floor.driver or ""), "nothing of a stale driver is on its way"
        if session.policy == "readonly":
            assert floor.driver is None
            assert not queued
        for name, lane in session.lanes.items():
            assert lane.running is None or session.backend == "ready"
            if session.backend == "ready":
                assert lane.running is not None or not lane.queue, f"lane {name!r} stands still"
            assert name == "" or lane.running is not None or lane.queue, f"lane {name!r} is empty and kept"
        assert all(op.status is Status.QUEUED and op.generation <= floor.generation for op in queued)
        assert all(op.status in (Status.RUNNING, Status.AWAITING_INPUT) for op in running)
        active = {op.id for op in session.operations.values() if op.is_active}
        assert active == {op.id for op in (*queued, *running)} == self.admitted - set(self.ended)
        assert {op.id for op in running} == self.delivered - set(self.ended)
        assert set(session.prompts) == {op.id for op in running if op.status is Status.AWAITING_INPUT}
        assert all(self.ended[op.id] == op.outcome for op in session.operations.values() if not op.is_active)
        timer = session.next_timer()
        assert timer is None or timer > now, "what time brought about has been done"
        for attachment, client in session.lost:
            assert client in session.connections[attachment]
            assert session.attachment_actor(attachment) is not None
