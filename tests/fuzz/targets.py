"""What reads bytes that somebody else wrote, each as a function of bytes, for Hypothesis (`test_decoders.py`), for
atheris (`run.py`) and for the corpus.

A target returns, or raises `AssertionError` where a promise is broken. Whatever else comes out of it is an exception
that has escaped a decoder. The errors that a decoder documents are caught here, where it is called, and nowhere else.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import struct
import tempfile
import time
import tracemalloc
import unittest.mock
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode

from jupyter_cmdop.client.errors import ClientError, GrantFileError, PlaceError
from jupyter_cmdop.client.identity import OWNER, read_grant_file
from jupyter_cmdop.client.places import is_in_socket_root
from jupyter_cmdop.client.protocol import LinkProtocol
from jupyter_cmdop.client.registry import Pointer, Record, Registry, past_reason
from jupyter_cmdop.client.registry import facts as facts_of
from jupyter_cmdop.client.sockets import open_link
from jupyter_cmdop.client.spawn import _report_of
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.journal.entry import GENESIS, Entry, admission_digest, check, decode_envelope, seal
from jupyter_cmdop.journal.errors import JournalDamaged, JournalUnavailable
from jupyter_cmdop.journal.outputs import collect, for_notebook, output_of, text_of
from jupyter_cmdop.journal.query import JournalReader, StoredEntry, log_line, message_type, verify
from jupyter_cmdop.journal.store import JournalStore
from jupyter_cmdop.keeper import kernel_listen
from jupyter_cmdop.keeper.config import read_config
from jupyter_cmdop.keeper.history import History, parse_history
from jupyter_cmdop.keeper.journal_desk import Wanted as WantedView
from jupyter_cmdop.keeper.journal_desk import frames_after, page, parse_cursor, result_of
from jupyter_cmdop.keeper.link_calls import BadArguments, parse_receipt
from jupyter_cmdop.keeper.link_endpoint import Hello
from jupyter_cmdop.keeper.websocket_connection import Leaving, WebsocketConnection
from jupyter_cmdop.keeper.websocket_seat import Seat, _date, _read_mark
from jupyter_cmdop.keeper.widgets import WidgetStates
from jupyter_cmdop.wire import kernel
from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.link import FrameDecoder, encode_frame, unspill
from jupyter_cmdop.wire.websocket import decode_legacy, decode_v1, encode_legacy, encode_v1

SESSION = "0b0cf1f4-7c4e-4f0e-9a56-0a4c5d3b1e2f"
KEY = b"key"
CPU_SECONDS = 0.05
"""What one call may take of the processor."""
MEMORY_FACTOR = 200
"""Bytes that a call may hold for each byte of its input: a parsed value costs its parser some tens."""
MEMORY_FLOOR = 4 * 2**20
"""What a call may hold whatever its input: a page of SQLite, a read of a file."""


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder.

    Attributes:
        samples: valid inputs, from which a fuzzer starts.
        is_slow: it touches files or sockets: fewer examples in the normal suite.
        floor: bytes that it may hold whatever its input.
    """

    name: str
    run: Callable[[bytes], object]
    samples: Callable[[], list[bytes]]
    is_slow: bool = False
    floor: int = MEMORY_FLOOR


TARGETS: dict[str, Target] = {}


def target(
    name: str, samples: Callable[[], list[bytes]], **options: Any
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    def register(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        TARGETS[name] = Target(name, run, samples, **options)
        return run

    return register


def seconds_of(chosen: Target, data: bytes) -> float:
    """The processor time of one call; the better of two when the first was interrupted by something else."""
    best = 9.0
    for _ in range(2):
        begun = time.process_time()
        chosen.run(data)
        best = min(best, time.process_time() - begun)
        if best < CPU_SECONDS:
            break
    return best


def peak_of(chosen: Target, data: bytes) -> int:
    """The most memory that one call holds at any moment; the target has run before, so that nothing is made once."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        chosen.run(data)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def bound_of(chosen: Target, data: bytes) -> int:
    return chosen.floor + MEMORY_FACTOR * len(data)


# ---------------------------------------------------------------------- places


class _Places:
    """A folder of this process, made when the first target asks for it; in memory where the system has that."""

    def __init__(self) -> None:
        self._root: Path | None = None

    def __call__(self, name: str) -> Path:
        if self._root is None:
            shm = Path(os.environ.get("CMDOP_FUZZ_DIR", "/dev/shm"))
            self._root = Path(
                tempfile.mkdtemp(prefix="cmdop-fuzz-", dir=shm if os.access(shm, os.W_OK) else None)
            )
            atexit.register(shutil.rmtree, self._root, ignore_errors=True)
        path = self._root / name
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def clear(self) -> None:
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None


place = _Places()


def _put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


# ---------------------------------------------------------------------- samples

HEADER = json.dumps(
    {
        "msg_id": "m1",
        "msg_type": "execute_request",
        "session": "s",
        "username": "ada",
        "date": "2026-01-01T00:00:00.000000Z",
        "version": "5.4",
        "cmdop_actor": "x",
    }
).encode()
PARENT = b'{"msg_id":"m0","msg_type":"execute_request","session":"s","cmdop_operation":"op-1"}'
METADATA = b'{"cmdop":{"request_id":"r-1","generation":3},"tags":[]}'
EXECUTE = (
    b'{"code":"1+1","silent":false,"store_history":true,"allow_stdin":true,"stop_on_error":true,'
    b'"user_expressions":{}}'
)
OUTPUTS = {
    "stream": {"name": "stdout", "text": "a\x1b[31mb\r\nc\rd\x08"},
    "display_data": {"data": {"text/plain": "x"}, "metadata": {}, "transient": {"display_id": "d"}},
    "update_display_data": {"data": {"text/plain": "y"}, "metadata": {}, "transient": {"display_id": "d"}},
    "execute_result": {"data": {"image/png": "AA=="}, "metadata": {}, "execution_count": 1},
    "error": {"ename": "E", "evalue": "v", "traceback": ["\x1b[0;31mE\x1b[0m"]},
    "clear_output": {"wait": True},
    "status": {"execution_state": "idle"},
}
COMM = b'{"comm_id":"c","target_name":"jupyter.widget","data":{"method":"update","state":{"value":1}}}'


def _v1(kind: str, content: object, buffers: tuple[bytes, ...] = ()) -> bytes:
    header = json.dumps({"msg_id": "m", "msg_type": kind, "session": "k"}).encode()
    return encode_v1("iopub", header, PARENT, b"{}", json.dumps(content).encode(), buffers)


def _v1_samples() -> list[bytes]:
    return [
        encode_v1("shell", HEADER, PARENT, METADATA, EXECUTE),
        encode_v1("iopub", HEADER, b"{}", b"{}", b"{}", [b"\0\1", b""]),
    ]


def _legacy(*args: Any) -> bytes:
    frame = encode_legacy(*args)
    return b"t" + frame.encode() if isinstance(frame, str) else b"b" + frame


def _legacy_samples() -> list[bytes]:
    return [
        _legacy("shell", HEADER, PARENT, METADATA, EXECUTE),
        _legacy("control", HEADER, b"{}", b"{}", b"{}", [b"\0\1", b""]),
        b't{"header":{"msg_id":"m","msg_type":"t"},"content":{"x":NaN},"buffers":null}',
    ]


# ---------------------------------------------------------------------- websocket messages


@target("websocket_v1", _v1_samples)
def _websocket_v1(data: bytes) -> None:
    try:
        message = decode_v1(data)
    except WireError:
        return
    assert encode_v1(*message) == data


@target("websocket_legacy", _legacy_samples)
def _websocket_legacy(data: bytes) -> None:
    frame: str | bytes = (
        data[1:].decode("utf-8", "surrogateescape" if data[:1] == b"s" else "replace")
        if (data[:1] != b"b")
        else data[1:]
    )
    try:
        message = decode_legacy(frame)
    except WireError:
        return
    for part in (message.header, message.parent, message.metadata, message.content):
        assert part.startswith(b"{")


# ---------------------------------------------------------------------- kernel messages


def _frames_samples() -> list[bytes]:
    frames = kernel.join(KEY, [HEADER, PARENT, METADATA, EXECUTE, b"buffer"], identities=[b"id"])
    return [b"".join(struct.pack(">H", len(frame)) + frame for frame in frames)]


@target("kernel_frames", _frames_samples)
def _kernel_frames(data: bytes) -> None:
    frames: list[bytes] = []
    at = 0
    while at + 2 <= len(data):
        (length,) = struct.unpack_from(">H", data, at)
        frames.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    try:
        message = kernel.split(frames)
    except WireError:
        return
    assert (
        kernel.join(KEY, message.parts, identities=message.identities, signature=message.signature) == frames
    )
    kernel.verify(KEY, message)
    kernel.verify(b"", message)
    _kernel_header(message.header)
    _kernel_header(message.parent)
    _kernel_metadata(message.metadata)
    _kernel_content(message.content)


@target("kernel_header", lambda: [HEADER, PARENT, b"{}"])
def _kernel_header(data: bytes) -> None:
    for read in (kernel.parse_header, kernel.parse_parent):
        try:
            read(data)
        except WireError:
            continue
    try:
        stamped = kernel.stamp_header(data, username="ada", actor="ada", operation="op-1", generation=7)
    except WireError:
        return
    header = msgspec.json.decode(stamped)
    ours = {key: value for key, value in header.items() if key[:6].lower() == "cmdop_"}
    assert ours == {"cmdop_actor": "ada", "cmdop_operation": "op-1", "cmdop_generation": "7"}
    assert header["username"] == "ada"
    assert not any(isinstance(value, dict | list) for value in header.values())


@target("kernel_metadata", lambda: [METADATA, b"{}", b'{"\\u0063mdop":1,"CMDOP":2}'])
def _kernel_metadata(data: bytes) -> None:
    try:
        kernel.client_stamp(data)
    except WireError:
        pass
    try:
        stamped = kernel.stamp_metadata(data, b'{"ours":1}')
    except WireError:
        return
    seen = [value for key, value in json.loads(stamped, object_pairs_hook=list) if key.lower() == "cmdop"]
    assert seen == [[("ours", 1)]]


@target("kernel_content", lambda: [EXECUTE, COMM, *(json.dumps(c).encode() for c in OUTPUTS.values())])
def _kernel_content(data: bytes) -> None:
    """Contents of clients and of kernels: everything that the keeper looks into."""
    try:
        kernel.parse_execute(data)
        assert json.loads(kernel.without_stop_on_error(data))["stop_on_error"] is False
    except WireError:
        pass
    try:
        kernel.encode_json(kernel.decode_json(data))
    except WireError:
        pass
    kernel.content_digest("execute_request", data)
    for decoder, otherwise in (
        (kernel_listen._REPLY, kernel_listen._Reply()),
        (kernel_listen._STATUS, kernel_listen._Status()),
        (kernel_listen._INPUT_REQUEST, kernel_listen._InputRequest()),
    ):
        kernel_listen.msgspec_or(decoder, data, otherwise)
    widgets = WidgetStates()
    for kind in ("comm_open", "comm_msg", "comm_close"):
        widgets.note(kind, data)
        widgets.note("comm_open", COMM)
        widgets.take_back(data)
    try:
        History().answer(parse_history(data), 2)
    except WireError:
        pass


@target(
    "json", lambda: [b'{"a":[1,2.5,null,true,"\\ud83d\\ude00"],"b":NaN}', b'"\\ud800"', b"[[[]]]", b"1e999"]
)
def _json(data: bytes) -> None:
    try:
        value = kernel.decode_json(data)
    except WireError:
        return
    assert json.loads(kernel.encode_json(value)) is not NotImplemented


# ---------------------------------------------------------------------- the link


def _link_samples() -> list[bytes]:
    frames = [
        encode_frame({"hello": {"protocol": 1, "oldest": 1, "client": "x", "actor": None}}),
        encode_frame({"id": 1, "verb": "status", "args": {}}, b"payload"),
        encode_frame({"id": 2, "verb": "run", "spilled": "args"}, b'{"code":"1"}'),
    ]
    return [b"\x00\x00" + b"".join(frames), b"\x01\x03" + b"".join(frames), b"\x00\x11" + frames[0]]


def _feed(data: bytes, size: int) -> tuple[list[Any], WireError | None]:
    decoder, found = FrameDecoder(max_payload=2**20), []
    for at in range(0, len(data), size):
        try:
            found += decoder.feed(data[at : at + size])
        except WireError as error:
            return found, error
        assert decoder.buffered <= len(data)
    return found, None


@target("link_frames", _link_samples)
def _link_frames(data: bytes) -> None:
    """Whatever the pieces, the frames are the same; only frames in one piece with an error are lost with it."""
    size = int.from_bytes(data[:2], "big") % 4096 + 1
    raw = data[2:]
    whole, error = _feed(raw, max(1, len(raw)))
    pieces, error_in_pieces = _feed(raw, size)
    assert (error is None) == (error_in_pieces is None)
    if error is None:
        assert pieces == whole
    elif error_in_pieces is not None:
        assert (error.reason, error.offset) == (error_in_pieces.reason, error_in_pieces.offset)
    for header, payload in pieces:
        try:
            unspill(header, payload)
        except WireError:
            pass
        try:
            msgspec.convert(header.get("hello"), Hello)
        except msgspec.ValidationError:
            pass


def _answers() -> list[bytes]:
    refusal = {"code": "not_driver", "message": "no", "since": 1.5, "generation": 2, "next": ["take"]}
    hello = {
        "protocol": 1,
        "session": {"driver": None},
        "attachment": "l1",
        "actor": {"id": "a"},
        "rights": [],
    }
    return [
        encode_frame({"hello": hello, "level": "x"})
        + encode_frame({"id": 1, "item": {"output": {}}}, b"p")
        + encode_frame({"id": 1, "result": {"status": "ok"}}),
        encode_frame({"id": 1, "refusal": refusal}) + encode_frame({"event": {"kind": "closed"}}),
        encode_frame({"id": 1, "error": {"code": "bad_request", "message": "m"}})
        + encode_frame({"refusal": refusal}),
    ]


@target("link_answers", _answers)
def _link_answers(data: bytes) -> None:
    """The client's half: a keeper that is not one ends the link, and nothing else."""
    link = LinkProtocol(backlog_bytes=4096)
    link.hello(client="fuzz", identity=OWNER, persistent=False)
    number, _ = link.request("status", {})
    link.feed(data)
    link.data_to_send()
    inbox = link.inbox(number)
    while inbox.take() is not None:
        pass
    if inbox.is_ended:
        try:
            inbox.outcome()
        except ClientError as error:
            str(error)


# ---------------------------------------------------------------------- cursors, marks, dates


@target(
    "cursors", lambda: [b"1:1234", b"12", b"7.3", b"2026-01-01T00:00:00Z", b"1e12", b"5:ab12", b"9999-12-31"]
)
def _cursors(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        assert parse_cursor(text) < 2**63
    except ValueError:
        pass
    try:
        parse_receipt(text)
    except BadArguments:
        pass
    mark = _read_mark(data)
    assert mark is None or mark[0] >= 0
    _date(text)
    try:
        _date(float(text))
    except ValueError:
        pass
    _seat_dates(text.split("|"))


def _seat_dates(dates: list[str]) -> None:
    """A client that has come back says when it wrote each of its messages."""
    seat = Seat(
        unittest.mock.Mock(),
        unittest.mock.Mock(),
        unittest.mock.Mock(),
        attachment="w1",
        actor=Actor("ada", "human"),
        role="peer",
        grant=None,
        session_id="s",
        gone=lambda seat, code: None,
        caught_up=lambda seat: None,
        stirred=lambda seat: None,
        owes_mark=lambda seat, due: None,
    )
    seat._was_away = True
    for date in dates[:8]:
        seat._is_stale(kernel.Header(msg_id="m", msg_type="t", date=date))


# ---------------------------------------------------------------------- outputs and envelopes


def _output_samples() -> list[bytes]:
    return [_v1(kind, content) for kind, content in OUTPUTS.items()]


@dataclass(frozen=True, slots=True)
class _Body:
    body: bytes | None
    type: str = "output"


@target("outputs", _output_samples)
def _outputs(data: bytes) -> None:
    message_type(data)
    bodies = [_Body(_v1("display_data", OUTPUTS["display_data"])), _Body(data), _Body(None), _Body(data)]
    try:
        output_of(data)
        outputs = collect(bodies)
    except WireError:
        return
    text_of(outputs)
    kernel.encode_json(for_notebook(outputs))


@target("contents", lambda: [b"%b\n%b" % (k.encode(), json.dumps(c).encode()) for k, c in OUTPUTS.items()])
def _contents(data: bytes) -> None:
    """Outputs with a content of any kind: the frame around it is whole."""
    kind, _, content = data.partition(b"\n")
    header = json.dumps({"msg_type": kind.decode("utf-8", "replace")}).encode()
    _outputs(encode_v1("iopub", header, b"{}", b"{}", content))


def _envelope_samples() -> list[bytes]:
    made = Entry(
        type="output", actor="ada", operation="op-1", body=b"{}", time_ns=1_764_523_434_123_456_789, mono_ns=5
    )
    return [seal(SESSION, 1, GENESIS, made, bytes(16)).envelope, b'{"v":1,"time_ns":"99999999999999999999"}']


@target("envelopes", _envelope_samples)
def _envelopes(data: bytes) -> None:
    try:
        admission_digest(data)
    except ValueError:
        pass
    for digest in (bytes(32), seal_digest(data)):
        check(SESSION, 1, GENESIS, data, digest, bytes(16), b"{}")
    try:
        fields = decode_envelope(data)
    except ValueError:
        return
    for body in (b"{}", data, None):
        line = log_line(StoredEntry(1, "output", None, None, fields, b"", body, "00"))
        msgspec.json.encode(line)


def seal_digest(envelope: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(b"cmdop.entry.v1\0" + envelope).digest()


# ---------------------------------------------------------------------- a whole journal

_JOURNAL_FILES = ("journal.sqlite", "bodies.bin", "journal.sqlite-wal")


class _Journal:
    """A small journal, made once: its files as bytes, with what is still in the WAL."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    @property
    def files(self) -> dict[str, bytes]:
        if not self._files:
            folder = place("made")
            with JournalStore.open(folder, SESSION) as store:
                entries = [
                    _entry("opened", b'{"name":"n"}'),
                    _entry("admitted", b'{"digest":"d"}', operation="op-1", actor="ada", request_id="r"),
                    _entry("output", _v1("stream", OUTPUTS["stream"]), operation="op-1", form="v1"),
                    _entry("output", _v1("stream", {"text": "x" * 66_000}), operation="op-1", form="v1"),
                    _entry("input", b"secret", withheld=True),
                    _entry("ended", b'{"outcome":"ok"}', operation="op-1", actor="ada"),
                ]
                store.append(0, 0, entries)
                self._files = {
                    name: (folder / name).read_bytes() if (folder / name).exists() else b""
                    for name in _JOURNAL_FILES
                }
            shutil.rmtree(folder)
        return self._files


def _entry(kind: str, body: bytes, **fields: Any) -> Entry:
    return Entry(type=kind, body=body, time_ns=1_764_523_434_123_456_789, mono_ns=5, **fields)


_journal = _Journal()


def _edits(*edits: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack(">HB", at, len(new)) + new for at, new in edits)


def _journal_samples() -> list[bytes]:
    return [
        b"\x00",
        b"\x00" + _edits((100, b"\x00"), (4096, b"\xff\xff")),
        b"\x01" + _edits((0, b"x")),
        b"\x02" + _edits((24, b"\x00\x00"), (4200, b"\x01")),
        b"\x03SQLite format 3\x00",
        b"\x05",
    ]


@target("journal", _journal_samples, is_slow=True, floor=16 * 2**20)
def _journal_files(data: bytes) -> None:
    """A journal with injuries: up to 64 of them in one of its files, or that file replaced as a whole."""
    mode = data[0] % 6 if data else 0
    name = _JOURNAL_FILES[mode % 3]
    content = bytearray(_journal.files[name])
    rest = data[1:]
    if mode >= 3:
        content = bytearray(rest)
    else:
        for _ in range(64):
            if len(rest) < 3:
                break
            at, length = struct.unpack_from(">HB", rest)
            new, rest = rest[3 : 3 + length], rest[3 + length :]
            if content:
                at %= len(content)
                content[at : at + len(new)] = new[: len(content) - at]
    folder = place("journal")
    for file in folder.iterdir():
        file.unlink()
    for other, whole in _journal.files.items():
        _put(folder / other, bytes(content) if other == name else whole)
    verify(folder, (4, "00" * 32))
    try:
        with JournalReader(folder) as reader:
            _read_all(reader)
    except (JournalDamaged, JournalUnavailable):
        return


def _read_all(reader: JournalReader) -> None:
    for view in ("log", "outputs", "stream", "run"):
        msgspec.json.encode(page(reader, WantedView(view), 0).items)
    msgspec.json.encode(result_of(reader, "op-1", max_bytes=1000, first_seq=0))
    frames_after(reader, 0, "ada", {"s"})
    reader.last(3)


# ---------------------------------------------------------------------- files of JSON


def _pointer_samples() -> list[bytes]:
    pointer = {
        "id": SESSION,
        "name": "analysis",
        "kind": "kernel",
        "state": "open",
        "pid": os.getpid(),
        "start_time": "123",
        "boot_id": "",
        "host": "",
        "sockets": "/tmp/cmdop-0/0123abcd",
        "link": "/nowhere/link.sock",
        "created": "2026-01-01T00:00:00Z",
        "backend": {"pid": 1, "start_time": 1.5},
        "spawner": {"pid": 2, "start_time": 7},
    }
    reserved = {**pointer, "pid": None, "link": None, "spawner": None, "created": "0001-01-01"}
    record = {"id": SESSION, "name": "analysis", "state": "lost", "reason": "r", "closed": "2026-01-01"}
    return [json.dumps(sample).encode() for sample in (pointer, reserved, record)]


@target("pointers", _pointer_samples, is_slow=True)
def _pointers(data: bytes) -> None:
    """`ls`: the file as a pointer, and as a session's record."""
    root = place("registry")
    registry = Registry(pointers=root / "pointers", sessions=root / "sessions")
    (root / "pointers").mkdir(mode=0o700, exist_ok=True)
    (root / "sessions").mkdir(mode=0o700, exist_ok=True)
    (root / "sessions" / SESSION).mkdir(mode=0o700, exist_ok=True)
    _put(root / "pointers" / f"{SESSION}.json", data)
    _put(root / "pointers" / "notes.json", data.replace(SESSION.encode(), b"notes"))
    _put(root / "sessions" / SESSION / "session.json", data)
    for pointer in registry.list_pointers():
        _look_at(registry, pointer)
    records: list[Record] = [*registry.list_records(), *registry.list_lost()]
    for record in records:
        past_reason(record)
    try:
        registry.resolve("analysis")
    except ClientError:
        pass
    _report_of(data)


def _look_at(registry: Registry, pointer: Pointer) -> None:
    facts_of(pointer)
    registry.pointer_path(pointer.id)
    if pointer.sockets:
        is_in_socket_root(pointer.sockets)
    if pointer.link and pointer.link.startswith("/nowhere"):  # it must not reach a real socket
        try:
            open_link(pointer.link, 0.01).close()
        except (ClientError, PlaceError):
            pass


def _config_samples() -> list[bytes]:
    config = {
        "id": SESSION,
        "name": "n",
        "sockets": "/tmp/s",
        "state": "/tmp/t",
        "connections": "/tmp/c",
        "pointer": "/tmp/p",
        "owner": {"id": "ada", "name": "Ada"},
        "env": {"A": "b"},
        "policy": "open",
    }
    return [json.dumps(config).encode()]


@target("configs", _config_samples, is_slow=True)
def _configs(data: bytes) -> None:
    try:
        read_config(_put(place("config") / "config.json", data))
    except msgspec.MsgspecError:
        return


def _grant_samples() -> list[bytes]:
    return [
        b'{"key":"k","cmdop":{"actor":"bot","token":"t","session":"s","grant":"g1"}}',
        b'{"cmdop":[]}',
        b"[]",
    ]


@target("grants", _grant_samples, is_slow=True)
def _grants(data: bytes) -> None:
    try:
        read_grant_file(_put(place("grant") / "grant.json", data))
    except GrantFileError:
        return


# ---------------------------------------------------------------------- a websocket's frames

_HANDSHAKE = [
    ("Host", "x"),
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
]


def _websocket_samples() -> list[bytes]:
    v1 = Frame(Opcode.BINARY, _v1_samples()[0]).serialize(mask=True)
    text = Frame(Opcode.TEXT, _legacy_samples()[0][1:]).serialize(mask=True)
    begin = Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True)
    end = Frame(Opcode.CONT, b"}").serialize(mask=True)
    pong = Frame(Opcode.PONG, b"7.3").serialize(mask=True)
    close = Frame(Opcode.CLOSE, b"\x03\xe8bye").serialize(mask=True)
    return [b"\x01\x00" + v1, b"\x00\x07" + text + pong, b"\x00\x00" + begin + pong + end + close]


class _NoLoop:
    """What a connection asks of its loop, when nobody waits."""

    def add_reader(self, descriptor: int, handler: object) -> None: ...
    def watch_writes(self, descriptor: int, handler: object, *, writing: bool) -> None: ...
    def remove_reader(self, descriptor: int) -> None: ...


@target("websocket_connection", _websocket_samples, is_slow=True)
def _websocket_connection(data: bytes) -> None:
    """Bytes behind a handshake, in pieces; what they carry is decoded as a session decodes it."""
    is_v1, size, raw = data[:1] == b"\x01", (data[1] if len(data) > 1 else 0) + 1, data[2:]
    ours, theirs = socket.socketpair()
    ended: list[object] = []

    def received(message: str | bytes) -> None:
        try:
            if isinstance(message, str):
                decode_legacy(message)
            else:
                (decode_v1 if is_v1 else decode_legacy)(message)
        except WireError:
            return

    with ours, theirs:
        theirs.setblocking(False)
        leaving = Leaving()
        connection = WebsocketConnection(
            _NoLoop(),  # type: ignore[arg-type]
            ours,
            headers=[
                *_HANDSHAKE,
                *([("Sec-WebSocket-Protocol", "v1.kernel.websocket.jupyter.org")] if is_v1 else []),
            ],
            leaving=leaving,
            received=received,
            ponged=_read_mark,
            closed=lambda code, reason: ended.append(code),
            drained=lambda: None,
            stirred=lambda: None,
        )
        connection.start()
        for at in range(0, len(raw), size * 16):
            if not connection.is_open:
                break
            connection.take(raw[at : at + size * 16])
            connection.flush()
        connection.close(1000, "bye" * 100)
        connection.abort("over")
        leaving.release_all()
        assert len(ended) == 1


@target("handshakes", lambda: ["\n".join(f"{n}: {v}" for n, v in _HANDSHAKE).encode()], is_slow=True)
def _handshakes(data: bytes) -> None:
    """Headers that a Jupyter server hands over with a socket (see `WebsocketDesk`)."""
    headers = [tuple(line.partition(": ")[::2]) for line in data.decode("utf-8", "replace").split("\n")]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            connection = WebsocketConnection(
                _NoLoop(),  # type: ignore[arg-type]
                ours,
                headers=[(name, value) for name, value in headers],
                leaving=Leaving(),
                received=lambda message: None,
                ponged=lambda payload: None,
                closed=lambda code, reason: None,
                drained=lambda: None,
                stirred=lambda: None,
            )
        except (WebSocketException, OSError, ValueError):
            return
        connection.start()
        connection.abort("over")
