"""Grants: who may pass on what, and what ends when one ends."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.grants import Grant, Role
from jupyter_cmdop.core.operations import Status
from tests.core.stage import ACTORS, Stage


def grant(name: str, actor: str = "bot", role: Role = "peer", expires: float | None = None) -> Grant:
    return Grant(name, ACTORS[actor], role, "ipc", expires)


# ---------------------------------------------------------------------- giving


def test_grant_is_recorded_before_it_is_opened() -> None:
    stage = Stage("open")
    ann = stage.attach("ann")
    effects = stage.do(ev.Invite(ann, grant("1", expires=stage.now + 60.4)))
    assert [type(effect) for effect in effects] == [fx.Record, fx.OpenGrant]
    entry = effects.entry("granted")
    assert (entry.actor, entry.grant, entry.durable) == (ACTORS["ann"], "1", True)
    assert entry.data == {
        "actor": "bot",
        "kind": "agent",
        "name": "Bot",
        "on_behalf_of": "ann",
        "role": "peer",
        "transport": "ipc",
        "expires_in": "60",
    }


def test_peer_may_not_invite() -> None:
    stage = Stage("open")
    assert stage.do(ev.Invite(stage.attach("bot"), grant("1", "bob"))).code == "forbidden"
    assert stage.session.grants == {}


def test_owner_who_only_observes_may_not_invite() -> None:
    stage = Stage("open")
    looking = stage.attach("ann", "looking", role="observer")
    assert stage.do(ev.Invite(looking, grant("1"))).code == "forbidden"


def test_grant_that_is_passed_on_is_narrower_in_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No role has `invite` and less than all other rights today; the rule does not rely on it."""
    from jupyter_cmdop.core import grants

    monkeypatch.setitem(grants.ROLE_RIGHTS, "peer", grants.ROLE_RIGHTS["peer"] | {"invite"})
    stage = Stage("open")
    bot = stage.attach("bot")
    assert stage.do(ev.Invite(bot, grant("1", "bob", "owner"))).code == "forbidden"
    assert stage.do(ev.Invite(bot, grant("2", "bob", "peer"))).code is None


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, "forbidden"), (101.0, "forbidden"), (100.0, None), (5.0, None)]
)
def test_grant_that_is_passed_on_is_not_longer_in_time(seconds: float | None, expected: str | None) -> None:
    """An owner's grant of an hour could give itself another one for ever."""
    stage = Stage("open")
    ann = stage.attach("ann")
    stage.do(ev.Invite(ann, grant("hour", "bob", "owner", stage.now + 100)))
    bob = stage.attach("bob", "g-hour", role="owner", grant="hour")
    given = grant("more", "bot", "owner", None if seconds is None else stage.now + seconds)
    assert stage.do(ev.Invite(bob, given)).code == expected


def test_grant_id_used_twice_is_a_bug_of_the_caller() -> None:
    stage = Stage("open")
    ann = stage.attach("ann")
    stage.do(ev.Invite(ann, grant("1")))
    with pytest.raises(AssertionError, match="exists already"):
        stage.do(ev.Invite(ann, grant("1")))


# ---------------------------------------------------------------------- revoking


def test_revoke_withdraws_what_waits_and_closes_what_was_opened() -> None:
    stage = Stage("open")
    ann = stage.attach("ann")
    bot = stage.invite("bot", "1", by=ann)
    second = stage.attach("bot", "link", grant="1")
    running, waiting = stage.run(bot).admitted, stage.run(second).admitted
    effects = stage.do(ev.Revoke(ann, "1"))
    assert effects.ends == {waiting: "withdrawn"}
    assert effects.of(fx.CloseGrant) == [fx.CloseGrant("1", "revoked")]
    assert effects.entry("revoked").actor == ACTORS["ann"]
    assert effects.entries.count("detached") == 2
    assert stage.op(running).status is Status.RUNNING
    assert stage.run(bot).code == "revoked"
    assert stage.run(second).code == "revoked"
    assert stage.finish(running).ends == {running: "ok"}


def test_revoke_frees_the_floor_of_an_actor_without_another_grant() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    stage.run(stage.invite("bot", "1", by=ann))
    effects = stage.do(ev.Revoke(ann, "1"))
    assert effects.entry("freed").data == {"from": "bot", "to": None, "reason": "grant revoked"}
    assert stage.floor == ("free", None)


def test_revoke_of_a_stale_drivers_grant_frees_the_floor() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    bot = stage.invite("bot", "1", by=ann)
    stage.finish(stage.run(bot).admitted)
    stage.do(ev.Detach(bot))
    stage.wait(31)
    assert stage.floor == ("stale", "bot")
    assert "freed" in stage.do(ev.Revoke(ann, "1")).entries


def test_revoke_of_one_grant_leaves_the_others_of_its_actor() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    bot, other = stage.invite("bot", "1", by=ann), stage.invite("bot", "2", by=ann)
    running, waiting = stage.run(bot).admitted, stage.run(other).admitted
    assert stage.do(ev.Revoke(ann, "1")).ends == {}
    assert stage.floor == ("held", "bot")
    assert stage.finish(running).delivered == [waiting]


def test_revoke_of_one_grant_does_not_forget_who_else_is_to_be_told() -> None:
    """The connections of the actor's other grants were forgotten, and theirs, which had ended, kept."""
    stage = Stage("turns")
    ann = stage.attach("ann")
    bot, other = stage.invite("bot", "1", by=ann), stage.invite("bot", "2", by=ann)
    for attachment in (bot, other):
        stage.finish(stage.run(attachment).admitted)
    stage.do(ev.Detach(other))
    stage.do(ev.Revoke(ann, "1"))
    assert set(stage.session.connections) == {other}
    stage.do(ev.Take(ann))
    stage.do(ev.Release(ann))
    stage.attach("bot", other, grant="2")
    assert stage.run(other).code == "stale_generation"


def test_revoke_forgets_the_connections_of_a_client_that_is_away() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    bot = stage.invite("bot", "1", by=ann)
    stage.run(bot)
    stage.do(ev.Take(ann))
    stage.do(ev.Detach(bot))
    assert set(stage.session.connections) == {bot}
    stage.do(ev.Revoke(ann, "1"))
    assert stage.session.connections == {}
    assert stage.session.lost == {}


def test_operation_that_another_has_adopted_survives_the_grant_of_its_author() -> None:
    """It waits under the right of who adopted it."""
    stage = Stage("turns")
    ann, bob = stage.attach("ann"), stage.attach("bob")
    bot = stage.invite("bot", "1", by=ann)
    running, waiting = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Take(bob, queue="adopt"))
    assert stage.do(ev.Revoke(ann, "1")).ends == {}
    assert stage.finish(running).delivered == [waiting]


def test_operation_that_was_adopted_ends_with_the_right_of_its_adopter() -> None:
    stage = Stage("turns")
    ann, bob = stage.attach("ann"), stage.attach("bob")
    bot = stage.invite("bot", "1", by=ann)
    _, waiting = (stage.run(bob).admitted for _ in range(2))
    stage.do(ev.Take(bot, queue="adopt"))
    assert stage.do(ev.Revoke(ann, "1")).ends == {waiting: "withdrawn"}
    assert stage.floor == ("free", None)


def test_actor_may_revoke_his_own_grant_and_no_other() -> None:
    stage = Stage("open")
    ann = stage.attach("ann")
    bot, bob = stage.invite("bot", "1", by=ann), stage.invite("bob", "2", by=ann)
    assert stage.do(ev.Revoke(bot, "2")).code == "forbidden"
    assert stage.do(ev.Revoke(bot, "9")).code == "unknown_grant"
    assert stage.do(ev.Revoke(bot, "1")).of(fx.CloseGrant)
    assert bob in stage.session.attachments


# ---------------------------------------------------------------------- expiry


def test_grant_ends_at_its_time() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    bot = stage.invite("bot", "1", by=ann, expires=stage.now + 100)
    running, waiting = (stage.run(bot).admitted for _ in range(2))
    stage.wait(99)
    assert "1" in stage.session.grants
    effects = stage.wait(1)
    assert effects.entry("expired").actor is not None
    assert effects.ends == {waiting: "withdrawn"}
    assert effects.of(fx.CloseGrant) == [fx.CloseGrant("1", "expired")]
    assert stage.floor == ("free", None)
    assert stage.finish(running).ends == {running: "ok"}


def test_grant_that_has_expired_lets_nothing_in_though_no_timer_ran() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    bot = stage.invite("bot", "1", by=ann, expires=stage.now + 100)
    stage.now += 100
    assert stage.run(bot).code == "revoked"
    assert stage.session.grants == {}


def test_several_grants_that_end_at_once() -> None:
    """The second raised KeyError and ended the keeper: a host that slept finds several expired."""
    stage = Stage("turns")
    ann = stage.attach("ann")
    for name, actor in (("1", "bot"), ("2", "bob"), ("3", "bot")):
        stage.run(stage.invite(actor, name, by=ann, expires=stage.now + 100))
    effects = stage.wait(1000)
    assert effects.entries.count("expired") == 3
    assert set(stage.session.attachments) == {ann}


def test_owner_keeps_his_rights_without_any_grant() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    own = stage.invite("ann", "1", by=ann)
    stage.run(own)
    stage.do(ev.Revoke(ann, "1"))
    assert stage.floor == ("held", "ann")
