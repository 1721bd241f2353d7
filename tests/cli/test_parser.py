"""The grammar: every verb, who is calling, durations, and help that fits the screen."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import pytest

from jupyter_cmdop.cli import parser as grammar
from jupyter_cmdop.core.actor import ACTOR_KINDS
from jupyter_cmdop.core.policy import POLICIES

VERBS = {
    "new": ["new", "n"],
    "ls": ["ls"],
    "status": ["status", "n"],
    "attach": ["attach", "n"],
    "invite": ["invite", "n"],
    "grants": ["grants", "n"],
    "revoke": ["revoke", "n", "g"],
    "take": ["take", "n"],
    "hand-back": ["hand-back", "n"],
    "release": ["release", "n"],
    "policy": ["policy", "n", "turns"],
    "run": ["run", "n", "1"],
    "read": ["read", "n"],
    "wait": ["wait", "n"],
    "interrupt": ["interrupt", "n"],
    "answer": ["answer", "n"],
    "log": ["log", "n"],
    "verify": ["verify", "n"],
    "rename": ["rename", "n", "m"],
    "restart": ["restart", "n"],
    "close": ["close", "n"],
    "doctor": ["doctor"],
    "demo": ["demo"],
    "completion": ["completion", "bash"],
}


def parse(*argv: str) -> argparse.Namespace:
    return grammar.build_parser().parse_args(argv)


def subparsers() -> dict[str, argparse.ArgumentParser]:
    actions = grammar.build_parser()._actions
    (found,) = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found.choices)


def test_all_verbs_are_tested() -> None:
    assert set(subparsers()) == set(VERBS)


@pytest.mark.parametrize("argv", VERBS.values(), ids=VERBS)
def test_verb_leads_to_a_function(argv: list[str]) -> None:
    args = parse(*argv)
    assert args.verb == argv[0]
    module, _, function = args.perform.partition(":")
    if module != "demo":
        assert callable(getattr(importlib.import_module(f"jupyter_cmdop.cli.{module}"), function))


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"attach", "demo", "completion"}))
def test_every_verb_that_prints_has_json(verb: str) -> None:
    assert parse(*VERBS[verb], "--json").json


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_short_enough_and_has_no_leftovers(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = subparsers()[verb].format_help()
    assert max(len(line) for line in text.splitlines()) <= 120
    assert "%(" not in text
    assert "SUPPRESS" not in text


def test_choices_are_those_of_the_core() -> None:
    assert grammar.POLICIES == POLICIES
    assert grammar.KINDS == ACTOR_KINDS


@pytest.mark.parametrize("argv", [("--as", "bot", "run", "n", "1"), ("run", "n", "1", "--as", "bot")])
def test_caller_may_be_named_before_and_after_the_verb(argv: tuple[str, ...]) -> None:
    assert parse(*argv).as_actor == "bot"


def test_later_word_wins_and_nothing_is_lost() -> None:
    args = parse("--as", "a", "--kind", "agent", "--grant-file", "f", "status", "n", "--as", "b")
    assert (args.as_actor, args.as_kind, args.grant_file) == ("b", "agent", "f")


def test_guest_of_invite_is_not_the_caller() -> None:
    args = parse("--as", "carol", "invite", "n", "--as", "bot", "--kind", "agent")
    assert (args.as_actor, args.invitee, args.as_kind, args.invitee_kind) == ("carol", "bot", None, "agent")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5", 1.5),
        ("2m", 120),
        ("2min", 120),
        ("1h", 3600),
        ("7d", 604800),
        ("1W", 604800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert grammar.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "1x", "-1", "h", "1 h 2", "1e9", "nan", "inf"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no duration"):
        grammar.seconds(text)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("nothing",),
        ("run", "n"),
        ("run", "n", "1", "--wait", "1", "--no-wait"),
        ("run", "n", "1", "--wait", "soon"),
        ("policy", "n", "anarchy"),
        ("run", "n", "1", "--generation", "x"),
        ("ls", "extra\x1b[2J"),
        ("completion", "tcsh"),
    ],
)
def test_mistake_is_one_line_with_a_hint(argv: tuple[str, ...], cli: Any) -> None:
    done = cli(*argv)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert "--help\n" in done.err
    assert "\x1b" not in done.err


def test_help_and_version(cli: Any) -> None:
    assert cli("--help").code == 0
    assert "exit codes" in cli("--help").out
    assert cli("--version").out.startswith("jupyter_cmdop ")


def test_code_that_begins_with_a_dash() -> None:
    assert parse("run", "n", "--", "-1").code == "-1"
    assert parse("run", "n", "-").code == "-"
