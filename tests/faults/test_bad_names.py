"""Names, actors, cursors and durations that are none: refused before anything happens, with what would be right."""

from __future__ import annotations

import os
import re

import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import call_cli, null_spec
from tests.support import Home, Sessions, journal

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would act on, or what would turn the order of what is read."""

BAD_NAMES = [
    "",
    " ",
    ".",
    "..",
    ".hidden",
    "-rf",
    "_x",
    "a b",
    "a/b",
    "../../etc/passwd",
    "/etc/passwd",
    "a\\b",
    "a\nb",
    "a\x00b",
    "a\x1b[2Jb",
    "a\u202eb",
    "name@host",
    "x" * 65,
    "ünïcödé",
    "名前",
    "a:b",
    "a;b",
    "$(reboot)",
    "a'b",
    "\ud800",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_is_none_makes_nothing_and_is_refused_with_the_rule(home: Home, name: str) -> None:
    refused = call_cli("new", "--", name, code=2, json_output=False)
    assert "letters" in refused.err
    assert not RAW.search(refused.err.replace("\n", ""))
    assert home.left() == []
    assert not (home.state / "sessions").exists() or os.listdir(home.state / "sessions") == []


def test_names_that_are_good(home: Home, session: Sessions) -> None:
    spec = null_spec(home)
    for name in ("a", "A.b_c-9", "x" * 64, "0"):
        assert session(name, kernel=spec).status().name == name


@pytest.mark.parametrize(
    "verb", ["status", "run", "read", "log", "verify", "close", "invite", "attach", "wait"]
)
def test_a_name_that_nobody_bears_is_exit_code_4_and_says_what_to_do(home: Home, verb: str) -> None:
    more = ["1"] if verb == "run" else []
    missing = call_cli(verb, "nobody", *more, code=4, json_output=False)
    assert "nobody" in missing.err
    assert "next:" in missing.err
    for name in ("../../etc", "a\x1b[2Jb", "\u202e", "@", "x@", "@@", "x" * 10_000):
        odd = call_cli(verb, name, *more, code=None, json_output=False)
        # A path is the directory of a journal for `verify`.
        assert odd.code == (1 if verb == "verify" and "/" in name else 4)
        assert not RAW.search(odd.err.replace("\n", ""))


def test_a_typo_is_answered_with_the_name_that_was_meant(lone_session: Session) -> None:
    missing = call_cli("status", lone_session.name[:-1], code=4, json_output=False)
    assert f"did you mean {lone_session.name}" in missing.err


def test_names_differ_in_more_than_case(session: Sessions) -> None:
    made = session("Twice")
    for name in ("Twice", "twice", "TWICE"):
        taken = call_cli("new", name, code=3)
        assert taken.data["refusal"]["code"] == "name_taken"
        assert "jupyter cmdop attach Twice" in taken.err
    assert call_cli("status", "tWiCe").data["id"] == made.id
    found = call_cli("new", "twice", "--if-exists", "attach").data
    assert (found["created"], found["id"]) == (False, made.id)


def test_an_invited_name_is_the_guests(lone_session: Session) -> None:
    """`--as` with an identity that exists and is not the caller's is refused: he must come with the grant."""
    invited = lone_session.invite("guest")
    before = len(journal(lone_session, "admitted"))
    try:
        refused = call_cli("--as", "guest", "run", lone_session.name, "1", code=3)
        assert refused.data["refusal"]["code"] == "forbidden"
        assert "CMDOP_GRANT_FILE" in refused.err
        ok = call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(invited.connection_file)})
        assert ok.data["status"] == "ok"
        assert journal(lone_session, "admitted")[-1]["actor"] == "guest"
        other = call_cli(
            "--as", "guest", "--grant-file", str(invited.connection_file), "run", lone_session.name, "1"
        )
        assert other.data["status"] == "ok"
        wrong = call_cli(
            "--as",
            "somebody",
            "--grant-file",
            str(invited.connection_file),
            "run",
            lone_session.name,
            "1",
            code=1,
        )
        assert "guest" in wrong.err
    finally:
        lone_session.revoke("guest")
    assert len(journal(lone_session, "admitted")) == before + 2
    # What was invited once stays in the record; after the end of the grant the name alone opens nothing more.
    revoked = call_cli(
        "run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(invited.connection_file)}, code=1
    )
    assert "next:" in revoked.err


@pytest.mark.parametrize(
    "name", ["keeper", "kernel", "unattributed", "owner", "x/../y", "", "\x1b[2J", "a b"]
)
def test_names_of_ours_and_names_that_are_none_are_no_actors(lone_session: Session, name: str) -> None:
    for arguments in (
        ("--as", name, "run", lone_session.name, "1"),
        ("invite", lone_session.name, "--as", name),
    ):
        refused = call_cli(*arguments, code=None)
        if name == "owner" or name == "x/../y":
            continue  # a word like any other; ids are never used as paths
        assert refused.code in (2, 3), (arguments, refused)
        assert not RAW.search(refused.err.replace("\n", ""))


def test_an_id_with_slashes_makes_no_path(home: Home, lone_session: Session) -> None:
    invited = lone_session.invite("x/../../../../tmp/y")
    file = os.path.realpath(invited.connection_file or "")
    assert file.startswith(os.path.realpath(home.runtime))
    lone_session.revoke(invited.grant)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("invite", "NAME", "--expires", "soon"), "no duration"),
        (("invite", "NAME", "--expires", "-5s"), "expected one argument"),
        (("invite", "NAME", "--expires", "0"), "expires"),
        (("invite", "NAME", "--expires", "99999w"), "expires"),
        (("invite", "NAME", "--expires", "1e9"), "no duration"),
        (("invite", "NAME", "--expires", "\x1b[2J"), "no duration"),
        (("invite", "NAME", "--role", "emperor"), "invalid choice"),
        (("take", "NAME", "--lease", "0"), "lease"),
        (("take", "NAME", "--lease", "forever"), "no duration"),
        (("run", "NAME", "1", "--wait", "x"), "no duration"),
        (("run", "NAME", "1", "--request-id", ""), "request_id"),
        (("run", "NAME", "1", "--request-id", "x" * 300), "request_id"),
        (("run", "NAME", "1", "--generation", "x"), "invalid int"),
        (("run", "NAME"), "CODE"),
        (("read", "NAME", "--after", "yesterday"), "no cursor"),
        (("read", "NAME", "--after", "1:2:3"), "no cursor"),
        (("read", "NAME", "--view", "everything"), "invalid choice"),
        (("log", "NAME", "--after", "x"), "invalid int"),
        (("verify", "NAME", "--receipt", "x"), "SEQ:HASH"),
        (("policy", "NAME", "anarchy"), "invalid choice"),
        (("rename", "NAME", "a b"), "letters"),
        (("new", "x", "--policy", "anarchy"), "invalid choice"),
        (("frobnicate", "NAME"), "invalid choice"),
        ((), "VERB"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_right(
    lone_session: Session, arguments: tuple[str, ...], words: str
) -> None:
    named = [lone_session.name if word == "NAME" else word for word in arguments]
    wrong = call_cli(*named, code=2, json_output=False)
    assert words in wrong.err
    assert wrong.err.count("\n") == 1
    assert not RAW.search(wrong.err.replace("\n", ""))


def test_unknown_operations_grants_and_prompts_are_refused(lone_session: Session) -> None:
    for arguments, refusal in (
        (("wait", lone_session.name, "o999999"), "unknown_operation"),
        (("wait", lone_session.name, "--request-id", "never"), "unknown_operation"),
        (("interrupt", lone_session.name, "o999999"), "unknown_operation"),
        (("revoke", lone_session.name, "nothing"), "unknown_grant"),
        (("answer", lone_session.name, "x"), "no_prompt"),
        (("hand-back", lone_session.name), "not_driver"),
        (("release", lone_session.name), "not_driver"),
    ):
        refused = call_cli(*arguments, code=3)
        assert refused.data["refusal"]["code"] == refusal, arguments
        assert refused.data["refusal"]["next"], arguments
        assert "next:" in refused.err


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\x00\r\x08"


def test_hostile_text_never_reaches_the_terminal_raw(session: Sessions) -> None:
    """Names, reasons, notes, code, prompts, errors and output, shown by every verb that shows them."""
    made = session()
    invited = made.invite("evil")
    env = {"CMDOP_GRANT_FILE": str(invited.connection_file)}
    call_cli("take", made.name, "--reason", f"because {HOSTILE}", env=env)
    call_cli("run", made.name, f"# {HOSTILE.replace(chr(0), '').replace(chr(13), '')}", code=None, env=env)
    call_cli("run", made.name, f"print({HOSTILE!r}); x = {HOSTILE!r}; x", env=env)
    call_cli("run", made.name, f"raise ValueError({HOSTILE!r})", env=env, code=1)
    call_cli("run", made.name, f"class Evil:\n    __repr__ = lambda self: {HOSTILE!r}\nEvil()", env=env)
    call_cli("run", made.name, f"display({{'text/plain': {HOSTILE!r}}}, raw=True)", env=env)
    call_cli("run", made.name, f"import os; os.write(2, {HOSTILE!r}.encode())", env=env)
    call_cli("hand-back", made.name, "--note", HOSTILE, env=env, code=None)
    prompting = call_cli(
        "run", made.name, f"input({HOSTILE!r})", "--wait", "1s", env=env, code=None, json_output=False
    )
    shown = [prompting.out, prompting.err]
    for verb in (
        ("ls",),
        ("ls", "--all"),
        ("status", made.name),
        ("log", made.name),
        ("read", made.name),
        ("read", made.name, "--view", "stream"),
        ("grants", made.name),
        ("wait", made.name, "o4"),
        ("wait", made.name, "o5"),
        ("answer", made.name, HOSTILE),
    ):
        for as_json in (False, True):
            result = call_cli(*verb, code=None, json_output=as_json)
            shown += [result.out, result.err]
    for text in shown:
        assert not RAW.search(text), ascii(RAW.search(text))
    assert any("\\x1b" in text for text in shown)
