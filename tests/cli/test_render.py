"""No control character and no reordering mark of foreign origin reaches the terminal."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_cmdop.cli import render

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ANY_TEXT = st.text(st.characters(codec=None), max_size=60)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def is_harmless(text: str, *, allowed: str = "") -> bool:
    return all(
        character in allowed
        or (
            unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
            and character not in BIDI
            and not 0xE0000 <= ord(character) < 0xE0080
        )
        for character in text
    )


@given(ANY_TEXT)
def test_one_line_is_one_harmless_line(text: str) -> None:
    assert is_harmless(render.one_line(text))


@given(ANY_TEXT)
def test_several_lines_keep_only_lines_and_tabs(text: str) -> None:
    assert is_harmless(render.several_lines(text), allowed="\n\t")


@given(st.lists(st.text(st.sampled_from("\x1b[31m;\r\nab\u202e"), max_size=8)))
def test_pieces_are_as_harmless_as_the_whole(pieces: list[str]) -> None:
    stream = render.StreamText()
    shown = "".join(stream.feed(piece) for piece in pieces) + stream.flush()
    assert shown == render.several_lines("".join(pieces))
    assert is_harmless(shown, allowed="\n\t")


@given(
    st.recursive(ANY_TEXT | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner))
)
def test_json_is_harmless_and_means_the_same(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    for ascii_only in (False, True):
        safe = render.safe_json(text, ascii_only=ascii_only)
        assert is_harmless(safe)
        assert json.loads(safe) == value
        assert not ascii_only or safe.isascii()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\U000e0041", "\\U000e0041"),
        ("\udc80", "\\udc80"),
        ("naïve 日本 🎉", "naïve 日本 🎉"),
    ],
)
def test_what_is_shown_instead(text: str, shown: str) -> None:
    assert render.one_line(text) == shown


def test_colours_of_a_traceback_are_dropped() -> None:
    assert render.several_lines("\x1b[0;31mError\x1b[0m: \x1b[38;5;1mx") == "Error: x"


def test_carriage_returns_cannot_hide_what_stood_there() -> None:
    assert render.several_lines("rm -rf /\rls      \r\n") == "rm -rf /\nls      \n"


def test_colour_sequence_cut_in_the_middle() -> None:
    stream = render.StreamText()
    assert stream.feed("a\x1b[3") == "a"
    assert stream.feed("1mb\r") == "b"
    assert stream.feed("\nc") == "\nc"
    assert stream.feed("\x1b") == ""
    assert stream.flush() == "\\x1b"


def test_limit() -> None:
    assert render.one_line("x" * 10, limit=5) == "xxxx…"
    assert render.one_line("xxxxx", limit=5) == "xxxxx"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colours_only_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert render.has_colours(Terminal()) is expected
    assert render.has_colours(io.StringIO()) is False


def test_table_aligns_and_escapes() -> None:
    text = render.table(("NAME", "WHY"), [("a", "x\x1b[2J"), ("long name", None)], io.StringIO())
    assert text == "NAME       WHY\na          x\\x1b[2J\nlong name\n"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"output_type": "stream", "text": "a\n"}, "a\n"),
        ({"output_type": "stream", "text": ["a\n", "b"]}, "a\nb"),
        ({"output_type": "execute_result", "data": {"text/plain": "42", "text/html": "<b>"}}, "42\n"),
        ({"output_type": "display_data", "data": {"image/png": "…"}}, "[image/png]\n"),
        ({"output_type": "display_data", "data": {}}, "[nothing to show]\n"),
        ({"output_type": "display_data"}, "[nothing to show]\n"),
        ({"output_type": "error", "ename": "E", "evalue": "v", "traceback": []}, "E: v\n"),
        ({"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"]}, "a\nb\n"),
        ({"output_type": "clear_output"}, ""),
        ({"output_type": "of the future"}, ""),
        ({}, ""),
    ],
)
def test_outputs_as_text(output: dict[str, object], text: str) -> None:
    assert render.output_text(output) == text


def test_printer_sends_each_output_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    printer = render.OutputPrinter()
    printer.show({"output_type": "stream", "name": "stdout", "text": "out \x1b[3"})
    printer.show({"output_type": "stream", "name": "stderr", "text": "err"})
    printer.show({"output_type": "stream", "name": "stdout", "text": "1mred"})
    printer.show({"output_type": "error", "ename": "E", "evalue": "\x1b]0;title\x07"})
    printer.say("ours")
    captured = capsys.readouterr()
    assert captured.out == "out red", "nothing is added to what goes into a file"
    assert captured.err == "errE: \\x1b]0;title\\x07\nours\n"
    assert (printer.shown, printer.has_error) == (4, True)


def test_printer_begins_a_line_of_its_own_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    printer = render.OutputPrinter()
    printer.show({"output_type": "stream", "name": "stdout", "text": "half"})
    printer.say("ours")
    printer.show({"output_type": "stream", "name": "stdout", "text": "half"})
    printer.show({"output_type": "execute_result", "data": {"text/plain": "42"}})
    assert terminal.getvalue() == "half\nours\nhalf\n42\n"
