from __future__ import annotations

from typing import get_args

import pytest

from jupyter_cmdop.core.policy import (
    CONTROL_CLASSES,
    POLICIES,
    SHELL_CLASSES,
    UNKNOWN_CLASS,
    InputClass,
    PolicyName,
    debug_class,
    execute_class,
)


def test_policies_are_those_that_are_typed() -> None:
    assert get_args(PolicyName) == POLICIES


@pytest.mark.parametrize(
    ("silent", "store_history", "expected"),
    [
        (False, True, InputClass.EXPLICIT),
        (False, False, InputClass.IMPLICIT),
        (True, True, InputClass.IMPLICIT),
        (True, False, InputClass.IMPLICIT),
    ],
)
def test_only_an_execute_with_history_that_is_not_silent_is_explicit(
    silent: bool, store_history: bool, expected: InputClass
) -> None:
    assert execute_class(silent=silent, store_history=store_history) is expected


@pytest.mark.parametrize("command", ["variables", "stackTrace", "scopes", "debugInfo", "inspectVariables"])
def test_debugger_inspection_is_reading(command: str) -> None:
    assert debug_class(command) is InputClass.READING


@pytest.mark.parametrize(
    "command", ["initialize", "attach", "setBreakpoints", "next", "evaluate", "setVariable", "unknown", ""]
)
def test_debugger_control_is_input(command: str) -> None:
    assert debug_class(command) is InputClass.IMPLICIT


@pytest.mark.parametrize("message", ["comm_open", "comm_msg", "comm_close"])
def test_widgets_are_implicit(message: str) -> None:
    assert SHELL_CLASSES[message] is InputClass.IMPLICIT


@pytest.mark.parametrize("message", ["complete_request", "inspect_request", "history_request"])
def test_what_others_typed_is_for_peers(message: str) -> None:
    assert SHELL_CLASSES[message] is InputClass.PEER_READING


@pytest.mark.parametrize("message", ["kernel_info_request", "comm_info_request", "is_complete_request"])
def test_what_says_nothing_of_others_is_for_everybody(message: str) -> None:
    assert SHELL_CLASSES[message] is InputClass.READING


def test_nothing_on_control_may_claim_the_floor() -> None:
    assert InputClass.EXPLICIT not in CONTROL_CLASSES.values()


def test_unknown_message_may_act_and_never_claims() -> None:
    assert UNKNOWN_CLASS is InputClass.IMPLICIT
