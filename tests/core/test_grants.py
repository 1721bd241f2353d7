from __future__ import annotations

from typing import get_args

import pytest

from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.grants import RIGHTS, ROLE_RIGHTS, Attachment, Grant, Right, Role, attachment_of_grant


def test_peer_has_all_rights_but_the_four_of_the_owner() -> None:
    assert ROLE_RIGHTS["peer"] == RIGHTS - {"approve", "policy", "lifecycle", "invite"}


def test_observer_sees_and_nothing_else() -> None:
    assert ROLE_RIGHTS["observer"] == {"observe"}


def test_owner_has_every_right() -> None:
    assert ROLE_RIGHTS["owner"] == RIGHTS == set(get_args(Right))


def test_each_role_has_rights() -> None:
    assert set(ROLE_RIGHTS) == set(get_args(Role))


@pytest.mark.parametrize("role", get_args(Role))
def test_grant_and_attachment_have_the_rights_of_their_role(role: Role) -> None:
    actor = Actor("bot", "agent")
    assert Grant("g", actor, role, "ipc").rights == ROLE_RIGHTS[role]
    assert Attachment("a", actor, role, "link").rights == ROLE_RIGHTS[role]


def test_attachment_of_a_grant_is_known_before_it_is_made() -> None:
    assert attachment_of_grant("1f2e") == "g-1f2e"
