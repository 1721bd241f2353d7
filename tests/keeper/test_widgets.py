"""A widget's change that was not let in is taken back to what the kernel holds."""

from __future__ import annotations

from jupyter_cmdop.keeper.widgets import KEPT_STATE_BYTES, KEPT_WIDGETS, WidgetStates
from jupyter_cmdop.wire.kernel import encode_json


def opened(states: WidgetStates, comm_id: str = "c", **state: object) -> None:
    content = {"comm_id": comm_id, "target_name": "jupyter.widget", "data": {"state": state}}
    states.note("comm_open", encode_json(content))


def change(comm_id: str = "c", **state: object) -> bytes:
    return encode_json({"comm_id": comm_id, "data": {"method": "update", "state": state}})


def test_a_refused_change_goes_back_to_what_the_kernel_said() -> None:
    states = WidgetStates()
    opened(states, value=3, max=10)
    back = states.take_back(change(value=9))
    assert back is not None
    assert back["comm_id"] == "c"
    assert back["data"]["state"] == {"value": 3}


def test_a_change_that_was_let_in_is_what_one_goes_back_to() -> None:
    states = WidgetStates()
    opened(states, value=3)
    states.note("comm_msg", change(value=5))
    back = states.take_back(change(value=9))
    assert back is not None
    assert back["data"]["state"] == {"value": 5}


def test_nothing_is_invented_where_nothing_is_known() -> None:
    states = WidgetStates()
    opened(states, value=3)
    assert states.take_back(change("other", value=1)) is None
    assert states.take_back(change(colour="red")) is None
    assert states.take_back(b'{"comm_id": "c", "data": {"method": "custom"}}') is None
    assert states.take_back(b"no json") is None


def test_other_comms_are_left_alone() -> None:
    states = WidgetStates()
    content = {"comm_id": "c", "target_name": "bokeh", "data": {"state": {"value": 1}}}
    states.note("comm_open", encode_json(content))
    states.note("comm_msg", b"no json either")
    assert states.take_back(change(value=2)) is None


def test_a_closed_widget_and_a_dead_kernel_are_forgotten() -> None:
    states = WidgetStates()
    opened(states, "a", value=1)
    opened(states, "b", value=1)
    states.note("comm_close", b'{"comm_id": "a", "data": {}}')
    assert states.take_back(change("a", value=2)) is None
    assert states.take_back(change("b", value=2)) is not None
    states.forget()
    assert states.take_back(change("b", value=2)) is None


def test_memory_is_bounded() -> None:
    states = WidgetStates()
    for number in range(KEPT_WIDGETS + 10):
        opened(states, f"c{number}", value=number)
    assert states.take_back(change("c0", value=0)) is None
    assert states.take_back(change(f"c{KEPT_WIDGETS}", value=0)) is not None
    opened(states, "large", value="x" * KEPT_STATE_BYTES)
    assert states.take_back(change("large", value="y")) is None
