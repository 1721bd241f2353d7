"""Text for a terminal: foreign text made harmless, tables, colours, outputs of a kernel.

Foreign is whatever this process did not write itself: names, reasons, code, prompts, output, error messages that quote
any of these. None of its control characters (C0, DEL, C1) and none of its characters that reorder text reach the
terminal; they are shown as `\\x1b` or `\\u202e`. Line feeds and tabs stay where several lines are expected. Colour
sequences in output are dropped instead of shown, because every traceback has them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

# C0 but \t and \n, DEL, C1, the marks and embeddings that reorder text, line and paragraph separators, the invisible
# tag characters, and halves of surrogate pairs, which no encoding of a terminal has.
_UNSAFE_BUT_LINES = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"
    "\u2028\u2029\U000e0000-\U000e007f\ud800-\udfff"
)
_MULTI_LINE = re.compile(f"[{_UNSAFE_BUT_LINES}]")
_ONE_LINE = re.compile(f"[\\t\\n{_UNSAFE_BUT_LINES}]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,64})?|\r)\Z")

_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_CELL_CHARS = 60
"""Longest text in a table cell; `--json` has it whole."""


def one_line(text: object, *, limit: int | None = None) -> str:
    """`text` as part of a line."""
    safe = _ONE_LINE.sub(_escape, str(text))
    if limit is not None and len(safe) > limit:
        return safe[: limit - 1] + "…"
    return safe


def several_lines(text: str) -> str:
    """`text` with its lines and tabs; carriage returns, which could overwrite what was read, become line feeds."""
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _MULTI_LINE.sub(_escape, text)


def safe_json(text: str, *, ascii_only: bool = False) -> str:
    """JSON text whose strings hold no character that a terminal would act on; it decodes to the same value."""
    pattern = _NOT_ASCII_OR_UNSAFE if ascii_only else _MULTI_LINE
    return pattern.sub(_json_escape, text)


_NOT_ASCII_OR_UNSAFE = re.compile(r"[^\x20-\x7e]")


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class StreamText:
    """Makes a stream of foreign text harmless piece by piece: a sequence may be cut anywhere."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = text[unfinished.start() :] if unfinished else ""
        return several_lines(text[: len(text) - len(self._held)])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return several_lines(held)


# --- colours


def has_colours(stream: TextIO) -> bool:
    """Whether colours make sense there (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def paint(text: str, colour: str, stream: TextIO) -> str:
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if has_colours(stream) else text


# --- tables


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], stream: TextIO) -> str:
    """Left-aligned columns; cells are foreign text."""
    cells = [[one_line("" if cell is None else cell, limit=_CELL_CHARS) for cell in row] for row in rows]
    widths = [
        max([len(heading), *(len(row[column]) for row in cells)]) for column, heading in enumerate(headings)
    ]
    lines = [paint(_line(headings, widths), "bold", stream)]
    lines += [_line(row, widths) for row in cells]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Lines of `key  value`; a None value leaves its line out."""
    shown = [(key, one_line(value)) for key, value in pairs if value is not None]
    width = max((len(key) for key, _ in shown), default=0)
    return "".join(f"  {key.ljust(width)}  {value}\n" for key, value in shown)


# --- outputs of a kernel


def output_text(output: Mapping[str, Any]) -> str:
    """What a terminal can show of an output of the notebook format, not yet made harmless."""
    match output.get("output_type"):
        case "stream":
            return _joined(output.get("text", ""))
        case "error":
            lines = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
            return "\n".join(str(line) for line in lines) + "\n"
        case "execute_result" | "display_data" | "update_display_data":
            return _of_bundle(output.get("data")) + "\n"
        case _:
            return ""


def _joined(text: object) -> str:
    return "".join(str(part) for part in text) if isinstance(text, list) else str(text)


def _of_bundle(data: object) -> str:
    if not isinstance(data, dict) or not data:
        return "[nothing to show]"
    for mime in ("text/plain", "text/markdown"):
        if mime in data:
            return _joined(data[mime])
    return "[" + ", ".join(sorted(str(mime) for mime in data)) + "]"


def goes_to_stderr(output: Mapping[str, Any]) -> bool:
    return output.get("output_type") == "error" or output.get("name") == "stderr"


class OutputPrinter:
    """Prints outputs as they come: text where it belongs, lines never glued to what we say ourselves."""

    def __init__(self) -> None:
        self._texts = {False: StreamText(), True: StreamText()}
        self._cut_on: TextIO | None = None
        self.shown = 0
        self.has_error = False

    def show(self, output: Mapping[str, Any]) -> None:
        self.shown += 1
        to_stderr = goes_to_stderr(output)
        if output.get("output_type") == "stream":
            self._write(self._texts[to_stderr].feed(output_text(output)), to_stderr)
            return
        self.has_error = self.has_error or output.get("output_type") == "error"
        self.end_line()
        self._write(several_lines(output_text(output)), to_stderr)

    def prompt(self, text: str) -> None:
        self.end_line()
        self._write(several_lines(text), to_stderr=False)
        self._cut_on = None  # the terminal echoes the line feed of the answer

    def say(self, line: str) -> None:
        """One line of ours, on standard error."""
        self.end_line()
        print(line, file=sys.stderr, flush=True)

    def end_line(self) -> None:
        """Begin a new line on a terminal; in a file or pipe the output stays as it is."""
        for to_stderr, text in self._texts.items():
            self._write(text.flush(), to_stderr)
        if self._cut_on is not None and self._cut_on.isatty():
            self._write("\n", to_stderr=self._cut_on is sys.stderr)

    def _write(self, text: str, to_stderr: bool) -> None:
        if not text:
            return
        stream = sys.stderr if to_stderr else sys.stdout
        stream.write(text)
        stream.flush()
        self._cut_on = None if text.endswith("\n") else stream
