from __future__ import annotations

import pytest

from jupyter_cmdop.core.actor import ACTOR_KINDS, Actor, BadName, check_actor_id, check_session_name


@pytest.mark.parametrize("name", ["a", "7", "nb.v2_final-1", "A" * 64])
def test_session_name_is_accepted(name: str) -> None:
    assert check_session_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a b", "a/b", "a\n", "ü", "a@b", "A" * 65])
def test_session_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(BadName, match="use 1 to 64 letters"):
        check_session_name(name)


@pytest.mark.parametrize("name", ["ann", "github:ann", "ann/mcp-editor", "a.b_c@d+e-f", "_x", "a" * 128])
def test_actor_id_is_accepted(name: str) -> None:
    assert check_actor_id(name) == name


@pytest.mark.parametrize("name", ["", "/a", ":a", "a b", "a\n", "é", "a" * 129])
def test_actor_id_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(BadName, match="use 1 to 128 letters"):
        check_actor_id(name)


@pytest.mark.parametrize("name", ["keeper", "kernel", "unattributed", "session:nb"])
def test_actor_id_of_the_keepers_own_is_reserved(name: str) -> None:
    with pytest.raises(BadName, match="reserved"):
        check_actor_id(name)


def test_long_names_are_cut_in_the_message() -> None:
    with pytest.raises(BadName) as caught:
        check_session_name("!" * 10_000)
    assert len(str(caught.value)) < 300


def test_display_name_is_the_id_where_none_is_given() -> None:
    assert Actor("bot").display_name == "bot"
    assert Actor("bot", "agent", "The Bot").display_name == "The Bot"


def test_kinds_are_those_of_the_glossary() -> None:
    assert set(ACTOR_KINDS) == {"human", "agent", "service", "device"}
