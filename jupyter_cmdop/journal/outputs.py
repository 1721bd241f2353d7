"""Outputs as a notebook shows them, from kernel messages as the journal keeps them.

The rules are those of a front end (nbformat 4, "Messaging in Jupyter"): streams of one name that follow each other are
one output; `update_display_data` changes what an earlier display with the same id shows; `clear_output` removes what
stands there, at once, or (`wait`) when the next output comes. Buffers are ignored: no notebook output has any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec

from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.kernel import REPAIR_OUTPUT_BYTES, decode_as, decode_entries, decode_json
from jupyter_cmdop.wire.websocket import decode_v1

Output = dict[str, Any]

# Colours, cursor movements (CSI) and titles, links (OSC): ECMA-48, 5.4 and 8.3.89.
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class HasBody(Protocol):
    """An entry, stored or about to be."""

    @property
    def type(self) -> str: ...
    @property
    def body(self) -> bytes | None: ...


class _Header(msgspec.Struct):
    msg_type: str = ""


_HEADER: Final = msgspec.json.Decoder(_Header)


def output_of(body_v1: bytes) -> Output | None:
    """The output in one kernel message.

    Returns:
        A notebook output; or a dict of the same form with the output type `update_display_data` or `clear_output`; or
        None for a message that is not an output. `transient`, where the message has it, carries the `display_id`.

    Raises:
        WireError: the bytes are not a kernel message. (Content that cannot be read is named in place of the output.)
    """
    message = decode_v1(body_v1)
    kind = decode_as(_HEADER, message.header, what="header").msg_type
    make = _MAKERS.get(kind)
    if make is None:
        return None
    try:
        content = decode_json(message.content, repair_bytes=REPAIR_OUTPUT_BYTES)
    except WireError as error:
        return _display({"data": {"text/plain": f"[{kind} that cannot be shown: {error}]"}})
    return make(content) if isinstance(content, dict) else None


def long_output_of(body_v1: bytes) -> Output | None:
    """The same for a long message whose values are only passed on: they are `msgspec.Raw`.

    Building a text of many megabytes, and writing it again, holds up every thread of the process.

    Returns:
        None where `output_of` has to look itself.

    Raises:
        WireError: the bytes are not a kernel message.
    """
    message = decode_v1(body_v1)
    kind = decode_as(_HEADER, message.header, what="header").msg_type
    starts = _LONG.get(kind)
    if starts is None:
        return None
    try:
        content = decode_entries(message.content, repair_bytes=REPAIR_OUTPUT_BYTES)
    except WireError:
        return None
    output: Output = {"output_type": kind}
    for name, start in starts.items():
        value = content.get(name)
        if value is None or not bytes(memoryview(value)[:1]).startswith(start):
            return None
        output[name] = value
    return output


def collect(entries: Iterable[HasBody]) -> list[Output]:
    """The outputs that stand after these entries, in nbformat 4.

    Only entries of the type `output` count, and of those only the ones whose body is still there. A display keeps
    its `transient`, so that a later update can be applied to it; `for_notebook` takes it away.
    """
    outputs = _Outputs()
    for entry in entries:
        if entry.type == "output" and entry.body is not None:
            output = output_of(entry.body)
            if output is not None:
                outputs.add(output)
    return outputs.finished()


def for_notebook(outputs: Iterable[Output]) -> list[Output]:
    """The same outputs without `transient`, which no notebook file may have."""
    return [{key: value for key, value in output.items() if key != "transient"} for output in outputs]


def text_of(outputs: Iterable[Output]) -> str:
    """What these outputs would say on a terminal, without colours; what has no text is named, as `[image/png]`."""
    text: list[str] = []
    fresh = True  # whether the next character begins a line
    for output in outputs:
        show = _TEXTS.get(output["output_type"])
        if show is None:
            continue
        piece = _ESCAPES.sub("", show(output))
        if output["output_type"] != "stream":  # a console gives each of these lines of its own
            piece = ("" if fresh else "\n") + piece + ("" if piece.endswith("\n") else "\n")
        if piece:
            text.append(piece)
            fresh = piece.endswith("\n")
    return "".join(text)


class _Outputs:
    """The outputs below one cell, as they change."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._parts: list[str] = []  # of the last output, while it is a stream
        self._displays: dict[str, list[Output]] = {}
        self._clear_before_next = False

    def add(self, output: Output) -> None:
        match output["output_type"]:
            case "clear_output":
                self._clear_before_next = bool(output["wait"])
                if not self._clear_before_next:
                    self._clear()
            case "update_display_data":
                self._update(output)
            case _:
                if self._clear_before_next:
                    self._clear()
                self._append(output)

    def finished(self) -> list[Output]:
        self._end_stream()
        return self._outputs

    def _append(self, output: Output) -> None:
        if output["output_type"] == "stream":
            last = self._outputs[-1] if self._parts else None
            if last is None or last["name"] != output["name"]:
                self._end_stream()
                self._outputs.append(output)
            self._parts.append(output["text"])
            return
        self._end_stream()
        self._outputs.append(output)
        if (display := _display_id(output)) is not None:
            self._displays.setdefault(display, []).append(output)

    def _end_stream(self) -> None:
        if self._parts:
            self._outputs[-1]["text"] = "".join(self._parts)
            self._parts = []

    def _update(self, output: Output) -> None:
        display = _display_id(output)
        for shown in self._displays.get(display, ()) if display is not None else ():
            shown["data"], shown["metadata"] = output["data"], output["metadata"]

    def _clear(self) -> None:
        self._outputs, self._parts, self._displays = [], [], {}
        self._clear_before_next = False


def _display_id(output: Output) -> str | None:
    transient = output.get("transient")
    display = transient.get("display_id") if isinstance(transient, dict) else None
    return display if isinstance(display, str) else None


# ---------------------------------------------------------------------- message -> output
# A kernel may leave out or mistype anything; what it did say is shown.


def _text(value: object) -> str:
    if isinstance(value, list):  # the form of a notebook file, which some kernels send
        return "".join(str(line) for line in value)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _stream(content: dict[str, Any]) -> Output:
    return {
        "output_type": "stream",
        "name": _text(content.get("name")) or "stdout",
        "text": _text(content.get("text")),
    }


def _display(content: dict[str, Any], kind: str = "display_data") -> Output:
    output: Output = {
        "output_type": kind,
        "data": _object(content.get("data")),
        "metadata": _object(content.get("metadata")),
    }
    if transient := _object(content.get("transient")):
        output["transient"] = transient
    return output


def _update_display(content: dict[str, Any]) -> Output:
    return _display(content, "update_display_data")


def _result(content: dict[str, Any]) -> Output:
    count = content.get("execution_count")
    output = _display(content, "execute_result")
    output["execution_count"] = count if isinstance(count, int) else None
    return output


def _error(content: dict[str, Any]) -> Output:
    traceback = content.get("traceback")
    return {
        "output_type": "error",
        "ename": _text(content.get("ename")),
        "evalue": _text(content.get("evalue")),
        "traceback": [_text(line) for line in traceback] if isinstance(traceback, list) else [],
    }


def _clear(content: dict[str, Any]) -> Output:
    return {"output_type": "clear_output", "wait": bool(content.get("wait", False))}


_LONG: Final = {
    "stream": {"name": b'"', "text": b'"'},
    "display_data": {"data": b"{", "metadata": b"{"},
}

_MAKERS: Final[dict[str, Callable[[dict[str, Any]], Output]]] = {
    "stream": _stream,
    "display_data": _display,
    "execute_result": _result,
    "update_display_data": _update_display,
    "error": _error,
    "clear_output": _clear,
}


# ---------------------------------------------------------------------- output -> text


def _text_of_stream(output: Output) -> str:
    return _text(output.get("text"))


def _text_of_data(output: Output) -> str:
    data = _object(output.get("data"))
    if "text/plain" in data:
        return _text(data["text/plain"])
    return " ".join(f"[{kind}]" for kind in data) or "[empty]"


def _text_of_error(output: Output) -> str:
    lines = output.get("traceback") or [f"{output.get('ename', '')}: {output.get('evalue', '')}"]
    return "\n".join(_text(line) for line in lines)


_TEXTS: Final[dict[str, Callable[[Output], str]]] = {
    "stream": _text_of_stream,
    "display_data": _text_of_data,
    "execute_result": _text_of_data,
    "error": _text_of_error,
}
