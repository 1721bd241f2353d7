"""A kernel-websocket client: one header session of one actor, over as many connections as it takes.

What it has surely read is known from pings that carry a cursor: the pong says that everything before it has arrived,
through proxies too. A client that comes back is given everything after the last such pong from the journal, then what
was said to it alone (`Unproven`), then what comes live; one that reads too slowly to keep up is caught up in the same
way. Nobody waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from websockets.frames import CloseCode

from ..core import events as ev
from ..core.actor import Actor
from ..core.grants import Attachment, Role
from ..journal.errors import JournalError
from ..wire.errors import WireError
from ..wire.kernel import Header, Message, parse_header
from ..wire.websocket import decode_legacy, decode_v1, encode_legacy, encode_v1
from .clients import Published, websocket_frame
from .journal_desk import Frames, frames_after
from .websocket_connection import COME_BACK, NOT_ALLOWED, OUTBOX_BYTES, SESSION_OVER, WebsocketConnection
from .websocket_unproven import Unproven

if TYPE_CHECKING:
    from .journal_desk import JournalDesk
    from .kernel_requests import KernelRequests
    from .runner import Runner

log = logging.getLogger(__name__)

PING_SECONDS = 10.0
PING_TOGETHER_SECONDS = 2.0  # earlier, when somebody else is pinged: an idle session is woken seldom
SILENCE_SECONDS = 90.0  # without a pong: the connection is dead
MARK_BYTES = 64 * 1024  # of output between two marks, while an earlier one is not answered yet
MARK_SECONDS = 0.01  # between two marks of less: a mark and its answer cost as much as a cell
MARK_SHARE_SECONDS = (
    0.002  # for each viewer there is: together they answer five hundred marks a second at the most
)
ALIVE_SECONDS = 1.0  # between two signs of life that count: the shortest lease is many times that
HEADER_SESSIONS = 64  # of one client; stock ones have one
FLUSH_SECONDS = 1.0  # in which a client that is back sends what it has kept


class Seat:
    """One client session (the `Client` of its messages).

    Args:
        gone: called when its connection has ended, with the close code that the client sent.
        caught_up: called when it is shown what comes as it comes, again or for the first time.

    Attributes:
        settled: the seq up to which the client has surely read.
        sent: the seq up to which everything has been written to the connection.
        live: whether it is shown what comes as it comes; else it is catching up from the journal.
        mark_pace: seconds between two marks.
        waits_to_mark: whether it has said when it is to have a turn for a mark, which has not come.
        is_open: false once it is forgotten.
    """

    def __init__(
        self,
        runner: Runner,
        requests: KernelRequests,
        journal: JournalDesk,
        *,
        attachment: str,
        actor: Actor,
        role: Role,
        grant: str | None,
        session_id: str,
        gone: Callable[[Seat, int | None], None],
        caught_up: Callable[[Seat], None],
        stirred: Callable[[Seat], None],
        owes_mark: Callable[[Seat, float], None],
    ) -> None:
        self._runner = runner
        self._requests = requests
        self._journal = journal
        self._attachment = attachment
        self._actor = actor
        self.role = role
        self._grant = grant
        self.session_id = session_id
        self._gone = gone
        self._caught_up = caught_up
        self._stirred = stirred
        self._owes_mark = owes_mark
        self.is_open = True
        self.connection: WebsocketConnection | None = None
        self.settled = 0
        self.sent = 0
        self.live = False
        self.left_at: float | None = None
        self.valid_until: float | None = None
        self.client = ""
        self._first_date: datetime | None = None
        self._first_at = 0.0
        self._connected_at = datetime.now(UTC)
        self._lag: timedelta | None = None
        self._was_away = False
        self._was_cut_off = False
        self._header_sessions = {session_id: None}
        self._unproven = Unproven()
        self._marked = (0, 0)
        self._mark_answered = True
        self._since_mark = 0
        self._mark_at = 0.0
        self.mark_pace = MARK_SECONDS
        self.waits_to_mark = False
        self._heard_at = 0.0
        self._alive_at = 0.0
        self._ping_at = 0.0
        self._fetching = False

    # ------------------------------------------------------------------ as a client

    @property
    def actor(self) -> Actor:
        return self._actor

    @property
    def attachment(self) -> str:
        return self._attachment

    @property
    def grant_id(self) -> str | None:
        return self._grant

    def reply(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes], seq: int = 0) -> bool:
        """Send what concerns this client alone. What has a seq comes again from the journal if it gets lost."""
        connection = self.connection
        if channel == "stdin":  # a prompt is no message that waits: the session knows it, and shows it again
            if connection is None or not self.live:
                return False
            self._unproven.note_prompt()
        elif not seq and self.is_open:
            self._unproven.add(channel, parts)
        if connection is None:
            return False
        if seq and not self.live:
            return True  # it is on its way from the journal, in its place
        self._write(connection, _frame(connection, channel, parts), seq)
        return True

    def foresee(self, published: Published) -> None:
        connection = self.connection
        if connection is not None and self.live and connection.unsent <= OUTBOX_BYTES:
            is_v1 = connection.is_v1
            published.want(lambda: published.frame if is_v1 else published.legacy_frame)

    def publish(self, published: Published) -> None:
        """Show what everybody sees."""
        connection = self.connection
        if not published.seq and self.is_open and published.asked_by in self._header_sessions:
            self._unproven.add("iopub", published.parts)
        if connection is None or (published.seq and not self.live):
            return
        if published.seq and connection.unsent > OUTBOX_BYTES:
            self.live = False  # it catches up when it has read what it has
            self._stirred(self)
            return
        frame = published.frame if connection.is_v1 else published.legacy_frame
        self._write(connection, frame, published.seq)

    def _write(self, connection: WebsocketConnection, frame: bytes, seq: int) -> None:
        connection.send(frame)
        self._since_mark += len(frame)
        if seq > self.sent:
            self.sent = seq

    def end_turn(self, mark_pace: float) -> None:
        """What the turn has brought is written, and the proof asked for that it was read."""
        self.mark_pace = mark_pace
        if self.live:
            self.mark()
        elif self.connection is not None:
            self.catch_up()
            if not self.live:
                self._stirred(self)
        if self.connection is not None:
            self.connection.flush()

    # ------------------------------------------------------------------ connections

    def settle(self) -> None:
        """Before it is replaced: take what its connection has brought and nobody has looked at yet."""
        if self.connection is not None:
            self.connection.settle()

    def connect(self, connection: WebsocketConnection, *, role: Role, grant: str | None, after: int) -> None:
        """Take a (new) connection; what lies behind `after` comes from the journal first."""
        old, self.connection = self.connection, connection
        self._was_away = old is not None or (self.left_at is not None and self._was_cut_off)
        if old is not None:
            # If somebody is there after all, he must not come back: the two would replace each other for ever.
            old.finish(SESSION_OVER, "replaced by a newer connection of the same client")
        self.left_at = None
        self._first_date = None
        self._connected_at = datetime.now(UTC)
        self.live, self.sent = False, after
        self.settled = max(self.settled, after)
        self._unproven.write_again()
        self._marked, self._mark_answered, self._since_mark = (after, self._unproven.written), True, 0
        self._heard_at = time.monotonic()
        self._ping_at = self._heard_at + PING_SECONDS
        known = self._runner.session.attachments.get(self._attachment)
        if known is not None and (known.role, known.grant) != (role, grant):
            self._runner.submit(ev.Detach(self._attachment, "replaced by a connection with other rights"))
            known = None
        self.role, self._grant = role, grant
        if known is None:
            self.attach(role)
        connection.start()
        self.catch_up()

    def attach(self, role: Role) -> None:
        self._runner.submit(
            ev.Attach(
                Attachment(
                    self._attachment,
                    self._actor,
                    role,
                    "websocket",
                    self._grant,
                    client=self.client[:200],
                    can_return=True,
                )
            )
        )

    def observe_only(self) -> None:
        """Its credential was not renewed in time."""
        self._runner.submit(ev.Detach(self._attachment, "its credential was not renewed"))
        self.attach("observer")

    def attach_again(self) -> None:
        """Its credential has been renewed after all."""
        self._runner.submit(ev.Detach(self._attachment, "its credential was renewed"))
        self.attach(self.role)

    def closed(self, connection: WebsocketConnection, code: int | None, reason: str) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        self.live = False
        self.left_at = time.monotonic()
        # A browser that closes without a code wants a fresh connection (JupyterLab after each restart that it asked
        # for), and what its person types meanwhile is meant for that one.
        self._was_cut_off = code != CloseCode.NO_STATUS_RCVD
        self._runner.submit(ev.Detach(self._attachment, reason))
        self._gone(self, code)

    def close(self, code: int, reason: str) -> None:
        if self.connection is not None:
            self.connection.finish(code, reason)

    def forget(self) -> None:
        """It is not expected back: nothing is kept for it."""
        self.is_open = False
        self._unproven = Unproven()

    # ------------------------------------------------------------------ catching up

    def catch_up(self) -> None:
        """Fetch the next piece of what it has missed, when it has room for it."""
        connection = self.connection
        if connection is None or self.live or self._fetching or connection.unsent > 0:
            return
        if self.sent >= self._runner.recorder.committed_seq:
            self._go_live(connection)
            return
        self._fetching = True
        after, actor, sessions = self.sent, self._actor.id, frozenset(self._header_sessions)

        def told(found: Frames | JournalError) -> None:
            self._fetching = False
            if connection is not self.connection:
                self.catch_up()  # for the connection that has taken its place
            elif isinstance(found, JournalError):
                log.error("a websocket client cannot catch up: %s", found)
                self.close(COME_BACK, "the journal cannot be read now")
            else:
                self._write_missed(connection, found)

        self._journal.ask(lambda reader: frames_after(reader, after, actor, sessions), told)

    def _write_missed(self, connection: WebsocketConnection, found: Frames) -> None:
        for body in found.bodies:
            if connection.is_v1:
                self._write(connection, websocket_frame(body), 0)
            else:
                self._write(connection, _frame(connection, *_split(body)), 0)
        self.sent = max(self.sent, found.after)
        self._since_mark = MARK_BYTES
        self.mark()
        self.catch_up()

    def _go_live(self, connection: WebsocketConnection) -> None:
        self.live = True
        for channel, parts in self._unproven.to_write():
            self._write(connection, _frame(connection, channel, parts), 0)
        self._caught_up(self)
        self.mark()

    @property
    def has_lost_prompt(self) -> bool:
        """Whether the last prompt was written to an earlier connection, and perhaps not read."""
        return self._unproven.has_lost_prompt

    def drained(self) -> None:
        self.catch_up()

    # ------------------------------------------------------------------ signs of life

    def mark(self) -> None:
        """Ask for the proof that everything so far has been read."""
        connection, reached = self.connection, (self.sent, self._unproven.written)
        if connection is None or reached == self._marked:
            return
        if self._since_mark < MARK_BYTES:
            if not self._mark_answered:
                return
            now = time.monotonic()
            # What was said to this client alone is not in the journal, and a prompt must not be shown twice.
            is_said_alone = self._unproven.written != self._marked[1]
            if now < self._mark_at and not is_said_alone:
                if not self.waits_to_mark:
                    self.waits_to_mark = True
                    self._owes_mark(self, self._mark_at)
                return
            self._mark_at = now + self.mark_pace
        self._marked, self._since_mark, self._mark_answered = reached, 0, False
        connection.ping(b"%d.%d" % reached)

    def ponged(self, connection: WebsocketConnection, payload: bytes) -> None:
        if connection is not self.connection:
            return
        self._heard_at = time.monotonic()
        proven = _read_mark(payload)
        if proven is not None and proven[0] <= self.sent and proven[1] <= self._unproven.written:
            self.settled = max(self.settled, proven[0])
            self._unproven.prove(proven[1])
            if proven == self._marked:
                self._mark_answered = True
                self.mark()
        if self._heard_at >= self._alive_at:
            self._alive_at = self._heard_at + ALIVE_SECONDS
            self._runner.submit(ev.Alive(self._attachment))

    def excuse(self) -> None:
        """Nobody listened for a while: its client has the whole time again to give a sign of life, and is asked."""
        self._heard_at, self._ping_at = time.monotonic(), 0.0

    def has_run_out(self, session_seconds: float) -> bool:
        """Whether its credential was to be renewed by now."""
        return (
            self.valid_until is not None
            and self.valid_until <= session_seconds
            and self.connection is not None
        )

    def needs_look_in(self, now: float, session_seconds: float) -> float:
        """Seconds until `run_timer` or `has_run_out` may say something else."""
        due = min(self._ping_at, self._heard_at + SILENCE_SECONDS) - now
        return max(0.0, due if self.valid_until is None else min(due, self.valid_until - session_seconds))

    def run_timer(self, now: float) -> None:
        connection = self.connection
        if connection is None:
            return
        if now - self._heard_at > SILENCE_SECONDS:
            connection.abort("no sign of life")
        elif now >= self._ping_at - PING_TOGETHER_SECONDS:
            self._ping_at = now + PING_SECONDS
            connection.ping(b"%d.%d" % (self.sent, self._unproven.written))

    # ------------------------------------------------------------------ what it sends

    def received(self, connection: WebsocketConnection, data: str | bytes) -> None:
        if connection is not self.connection:
            return
        try:
            if connection.is_v1:
                if isinstance(data, str):
                    raise WireError("a text message where the v1 subprotocol has binary ones")
                channel, header, parent, metadata, content, buffers = decode_v1(data)
            else:
                channel, header, parent, metadata, content, buffers = decode_legacy(data)
            if channel == "iopub":
                raise WireError("a client does not publish")
            parsed = parse_header(header)
        except WireError as error:
            self._malformed(error)
            return
        self._remember(parsed.session)
        message = Message([], b"", header, parent, metadata, content, list(buffers))
        self._requests.receive(self, channel, message, parsed, composed_before=self._is_stale(parsed))

    def _malformed(self, error: WireError) -> None:
        self._requests.note_refused(self, "unsupported", f"a websocket message was not let in: {error}")
        self.close(NOT_ALLOWED, f"a message that cannot be read: {error.reason}")

    def _remember(self, header_session: str) -> None:
        """A client need not say in its address under which header session it speaks."""
        if header_session in self._header_sessions:
            return
        self._header_sessions[header_session] = None
        if len(self._header_sessions) > HEADER_SESSIONS:
            del self._header_sessions[next(iter(self._header_sessions))]

    def _is_stale(self, header: Header) -> bool:
        """Whether a returning client made this while it was away.

        JupyterLab sends what it has kept in one go, before or behind the first question that it asks when it is back.
        Behind it: what is older than this question was made before. Before it: the client's clock is not ours, but no
        message has come quicker than the quickest one so far, so that the moment is known at which this one would
        have come at the earliest.
        """
        date = _date(header.date)
        if date is None:
            return False
        lag = datetime.now(UTC) - date
        quickest = self._lag
        self._lag = lag if quickest is None else min(lag, quickest)
        if not self._was_away:
            return False
        now = time.monotonic()
        if self._first_date is None:
            self._first_date, self._first_at = date, now
        # (Not `date + quickest`: a client may say the year 1, and after it the year 9999.)
        kept = quickest is not None and quickest < self._connected_at - date
        # A clock that was set back must not make all that follows look old.
        return date < self._first_date or (kept and now - self._first_at < FLUSH_SECONDS)


def _frame(connection: WebsocketConnection, channel: str, parts: Sequence[bytes]) -> bytes:
    header, parent, metadata, content, *buffers = parts
    encode = encode_v1 if connection.is_v1 else encode_legacy
    return websocket_frame(encode(channel, header, parent, metadata, content, buffers))


def _split(body: bytes) -> tuple[str, Sequence[bytes]]:
    channel, header, parent, metadata, content, buffers = decode_v1(body)
    return channel, [header, parent, metadata, content, *buffers]


def _read_mark(payload: bytes) -> tuple[int, int] | None:
    """(seq, number of what was said to it alone) of a mark of ours."""
    seq, _, said = payload.partition(b".")
    return (int(seq), int(said)) if seq.isdigit() and said.isdigit() and len(payload) < 40 else None


def _date(text: str | float | None) -> datetime | None:
    """ISO 8601, or seconds since 1970 as Jupyter's own client of a remote server writes it."""
    if text is None:
        return None
    if not isinstance(text, str):
        try:
            return datetime.fromtimestamp(text, UTC)
        except (OverflowError, ValueError, OSError):
            return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
