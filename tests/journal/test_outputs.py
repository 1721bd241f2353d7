"""Outputs as a front end would show them."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_cmdop.journal.outputs import collect, for_notebook, output_of, text_of
from jupyter_cmdop.wire.errors import WireError
from tests.journal.making import entry, message, stream


def shown(kind: str, content: dict[str, Any], **fields: Any) -> Any:
    return entry(form="v1", body=message(kind, content), **fields)


def display(text: str, display_id: str | None = None, *, kind: str = "display_data", **more: Any) -> Any:
    transient = {} if display_id is None else {"display_id": display_id}
    content = {"data": {"text/plain": text}, "metadata": {"m": text}, "transient": transient} | more
    return shown(kind, content)


def update(text: str, display_id: str) -> Any:
    return display(text, display_id, kind="update_display_data")


def clear(*, wait: bool = False) -> Any:
    return shown("clear_output", {"wait": wait})


def texts(*entries: Any) -> list[str]:
    return [output.get("text") or output["data"]["text/plain"] for output in collect(entries)]


# ---------------------------------------------------------------------- one message


@pytest.mark.parametrize(
    ("kind", "content", "output"),
    [
        ("stream", {"name": "stderr", "text": "x"}, {"name": "stderr", "text": "x"}),
        ("stream", {}, {"name": "stdout", "text": ""}),
        ("stream", {"text": ["a\n", "b"]}, {"name": "stdout", "text": "a\nb"}),
        ("display_data", {"data": {"a/b": 1}, "metadata": {}}, {"data": {"a/b": 1}, "metadata": {}}),
        ("display_data", {}, {"data": {}, "metadata": {}}),
        (
            "execute_result",
            {"data": {}, "metadata": {}, "execution_count": 3, "transient": {}},
            {"data": {}, "metadata": {}, "execution_count": 3},
        ),
        (
            "update_display_data",
            {"data": {}, "metadata": {}, "transient": {"display_id": "d"}},
            {"data": {}, "metadata": {}, "transient": {"display_id": "d"}},
        ),
        (
            "error",
            {"ename": "E", "evalue": "v", "traceback": ["t"]},
            {"ename": "E", "evalue": "v", "traceback": ["t"]},
        ),
        ("error", {"evalue": 5, "traceback": None}, {"ename": "", "evalue": "5", "traceback": []}),
        ("clear_output", {"wait": True}, {"wait": True}),
        ("clear_output", {}, {"wait": False}),
    ],
)
def test_output_of(kind: str, content: object, output: dict[str, Any]) -> None:
    assert output_of(message(kind, content)) == {"output_type": kind} | output


@pytest.mark.parametrize("kind", ["status", "execute_input", "comm_msg", "execute_reply", ""])
def test_other_messages_are_no_output(kind: str) -> None:
    assert output_of(message(kind, {"execution_state": "idle"})) is None


def test_content_that_cannot_be_read_is_not_passed_over_in_silence() -> None:
    deep = b'{"data":{"application/json":' + b"[" * 200 + b"]" * 200 + b"}}"
    output = output_of(message("display_data", deep))
    assert output is not None
    assert "display_data that cannot be shown" in output["data"]["text/plain"]
    assert output_of(message("stream", b"[]")) is None


def test_what_is_no_message_raises() -> None:
    with pytest.raises(WireError):
        output_of(b"nonsense")


def test_buffers_are_ignored() -> None:
    output = output_of(message("display_data", {"data": {"text/plain": "w"}}, buffers=[b"\0\xff"]))
    assert output == {"output_type": "display_data", "data": {"text/plain": "w"}, "metadata": {}}


# ---------------------------------------------------------------------- many


def test_streams_of_one_name_that_follow_each_other_are_one_output() -> None:
    outputs = collect(
        [stream("a"), stream("b"), stream("e", "stderr"), stream("c"), display("d"), stream("f"), stream("g")]
    )
    assert [output.get("text") for output in outputs] == ["ab", "e", "c", None, "fg"]


def test_other_entries_between_do_not_part_a_stream() -> None:
    status = shown("status", {"execution_state": "busy"})
    reply = entry("reply", form="v1", body=message("stream", {"text": "not an output"}))
    assert texts(stream("a"), status, reply, entry("started", form="none"), stream("b")) == ["ab"]


def test_a_long_stream_takes_linear_time() -> None:
    outputs = collect(stream("x" * 50) for _ in range(3000))
    assert [len(output["text"]) for output in outputs] == [150_000]


def test_dropped_bodies_are_passed_over() -> None:
    class Dropped:
        type = "output"
        body = None

    assert collect([Dropped(), stream("a")]) == [{"output_type": "stream", "name": "stdout", "text": "a"}]


def test_an_update_changes_every_earlier_display_of_its_id_and_nothing_else() -> None:
    entries = [display("1", "d"), display("other", "e"), display("2", "d"), stream("x"), update("3", "d")]
    outputs = collect([*entries, update("gone", "unknown"), shown("update_display_data", {"data": {}})])
    assert [output.get("data", {}).get("text/plain") for output in outputs] == ["3", "other", "3", None]
    assert outputs[0]["metadata"] == {"m": "3"}
    assert outputs[0]["transient"] == {"display_id": "d"}


def test_a_result_can_be_updated() -> None:
    result = display("1", "d", kind="execute_result", execution_count=4)
    (output,) = collect([result, update("2", "d")])
    assert (output["data"]["text/plain"], output["execution_count"]) == ("2", 4)


def test_an_update_does_not_end_a_stream() -> None:
    assert texts(display("1", "d"), stream("a"), update("2", "d"), stream("b")) == ["2", "ab"]


def test_clear_output_at_once() -> None:
    assert texts(stream("a"), clear()) == []
    assert texts(stream("a"), clear(), stream("b")) == ["b"]


def test_clear_output_waits_for_the_next_output() -> None:
    assert texts(stream("a"), clear(wait=True)) == ["a"]
    assert texts(stream("a"), clear(wait=True), stream("b"), stream("c")) == ["bc"]
    assert texts(stream("a"), clear(wait=True), display("d"), stream("e")) == ["d", "e"]
    assert texts(display("1", "d"), clear(wait=True), update("2", "d")) == ["2"], (
        "an update is no next output"
    )
    assert texts(stream("a"), clear(wait=True), clear(), stream("b"), stream("c")) == ["bc"]


def test_a_cleared_display_is_not_updated_back() -> None:
    assert texts(display("1", "d"), clear(), update("2", "d"), stream("a")) == ["a"]


def test_entries_are_not_changed_by_collecting() -> None:
    entries = [display("1", "d"), stream("a"), stream("b"), update("2", "d")]
    assert collect(entries) == collect(entries)


# nbformat's v4 schema: these keys, and no others. (Importing nbformat costs more than all tests here.)
NOTEBOOK_KEYS = {
    "stream": {"output_type", "name", "text"},
    "display_data": {"output_type", "data", "metadata"},
    "execute_result": {"output_type", "data", "metadata", "execution_count"},
    "error": {"output_type", "ename", "evalue", "traceback"},
}


def test_a_notebook_accepts_the_outputs() -> None:
    outputs = for_notebook(
        collect(
            [
                stream("a"),
                display("1", "d"),
                display("2", "e", kind="execute_result", execution_count=1),
                shown("error", {"ename": "E", "evalue": "v", "traceback": ["t"]}),
                update("3", "d"),
            ]
        )
    )
    assert {output["output_type"]: set(output) for output in outputs} == NOTEBOOK_KEYS
    assert outputs[1]["data"] == {"text/plain": "3"}


# ---------------------------------------------------------------------- text


def test_text_is_what_a_terminal_would_show() -> None:
    outputs = collect(
        [
            stream("loading"),
            display("<Figure>"),
            stream("\x1b[31mwarning\x1b[0m\n", "stderr"),
            display("4", kind="execute_result"),
            shown("error", {"ename": "E", "evalue": "v", "traceback": ["\x1b[0;31mE\x1b[0m: v", "line 2"]}),
        ]
    )
    assert text_of(outputs) == "loading\n<Figure>\nwarning\n4\nE: v\nline 2\n"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"output_type": "display_data", "data": {"image/png": "…", "text/html": "<b>"}}, "[image/png] [text/html]\n"),
        ({"output_type": "display_data", "data": {"text/plain": ["a\n", "b"]}}, "a\nb\n"),
        ({"output_type": "display_data", "data": {}}, "[empty]\n"),
        ({"output_type": "error", "ename": "E", "evalue": "v", "traceback": []}, "E: v\n"),
        ({"output_type": "stream", "name": "stdout", "text": "\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b"}, "ab"),
        ({"output_type": "stream", "name": "stdout", "text": "50%\r100%"}, "50%\r100%"),
        ({"output_type": "clear_output", "wait": False}, ""),
        ({"output_type": "update_display_data", "data": {"text/plain": "x"}}, ""),
    ],
)  # fmt: skip
def test_text_of(output: dict[str, Any], text: str) -> None:
    assert text_of([output]) == text


def test_text_of_nothing() -> None:
    assert text_of([]) == ""
