"""The command line's grammar: verbs, options, help. Nothing here imports what a verb needs to run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jupyter_cmdop._version import __version__

from . import completers, exits, render

PROGRAM = "jupyter cmdop"
KINDS = ("human", "agent", "service", "device")
POLICIES = ("open", "turns", "readonly")
"""As `core.policy.POLICIES`; a test compares them, because importing the core costs `ls` its time."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|min|h|d|w)?")
_WRONG_CHOICE = re.compile(r"invalid choice: '?(.*?)'? \(choose from (.*)\)\Z", re.DOTALL)
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}

DESCRIPTION = """\
Named, durable Jupyter kernels that people and agents share as equals.

A session has a name, goes on when you leave, and records who did what.
"""
EPILOG = f"""\
examples:
  jupyter cmdop new analysis                      make a session
  jupyter cmdop attach analysis                   talk to it in a console of your own
  jupyter cmdop run analysis 'x = 1; x + 1'       run one piece of code
  jupyter cmdop invite analysis --as bot --kind agent
  jupyter cmdop take analysis --reason 'let me look'
  jupyter cmdop log analysis --follow             who did what
  jupyter cmdop --url https://host/ --grant-file FILE attach analysis

{exits.EXPLANATION}
environment: CMDOP_GRANT_FILE names a file with a grant to act with, CMDOP_URL the Jupyter server that sessions are
behind, CMDOP_CA_FILE certificates to verify it with, CMDOP_STATE_DIR where journals are kept; CMDOP_DEBUG=1 shows
tracebacks
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error does."""

    def error(self, message: str) -> NoReturn:
        following = f"{self.prog} --help"
        self.exit(exits.USAGE, f"error: {render.one_line(_suggesting(message))}; next: {following}\n")


def _suggesting(message: str) -> str:
    """argparse's complaint of a wrong choice, with the one that was probably meant."""
    match = _WRONG_CHOICE.search(message)
    if match is None:
        return message
    import difflib

    choices = [choice.strip("'") for choice in match.group(2).split(", ")]
    close = difflib.get_close_matches(match.group(1), choices, n=1)
    if not close:
        return message
    return f"{message[: match.start(2) - len(' (choose from ')]} (did you mean {close[0]}?)"


def seconds(text: str) -> float:
    """`90`, `90s`, `2m`, `1h`, `7d` as seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 90, 90s, 2m, 1h or 7d")
    return float(match.group(1)) * _UNIT_SECONDS[match.group(2) or "s"]


def build_parser() -> argparse.ArgumentParser:
    """The whole grammar. Each verb leaves `perform`, the module and function that carry it out."""
    parser = Parser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jupyter_cmdop {__version__}")
    _add_caller(parser, default=None)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for add in _VERBS:
        add(_Verbs(verbs))
    return parser


def _add_caller(parser: argparse.ArgumentParser, *, default: Any, with_as: bool = True) -> None:
    """Who calls: before the verb, and after it where the verb has no `--as` of its own."""
    group = parser.add_argument_group("who you are (the owner unless you say otherwise)")
    if with_as:
        group.add_argument(
            "--as", dest="as_actor", metavar="ID", default=default, help="act under this actor id"
        )
        group.add_argument(
            "--kind", dest="as_kind", choices=KINDS, default=default, help="what kind of actor that is"
        )
    group.add_argument(
        "--grant-file",
        metavar="FILE",
        default=default,
        help="act with the grant, or a server's token, in this file (as CMDOP_GRANT_FILE)",
    )
    place = parser.add_argument_group("where the session is (this machine unless you say otherwise)")
    place.add_argument(
        "--url",
        metavar="URL",
        default=default,
        help="base URL of the Jupyter server that it is behind (as CMDOP_URL)",
    )
    place.add_argument(
        "--ca-file",
        metavar="FILE",
        default=default,
        help="certificates to verify that server with, instead of the system's (as CMDOP_CA_FILE)",
    )


class _Verbs:
    """Adds verbs with what all of them have."""

    def __init__(self, subparsers: argparse._SubParsersAction[Any]) -> None:
        self._subparsers = subparsers

    def add(
        self,
        verb: str,
        perform: str,
        help: str,  # noqa: A002 (argparse's word)
        *,
        more: str = "",
        examples: Sequence[str] = (),
        name: str | None = "session name, NAME@<uuid prefix> for an older one, or its uuid",
        json: bool = True,
        reads_only: bool = False,
        own_as: bool = False,
    ) -> argparse.ArgumentParser:
        text = f"{help[0].upper()}{help[1:]}."
        parser: argparse.ArgumentParser = self._subparsers.add_parser(
            verb,
            help=help,
            description=f"{text}\n\n{more}" if more else text,
            epilog="examples:\n" + "\n".join(f"  {PROGRAM} {line}" for line in examples)
            if examples
            else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(perform=perform, reads_only=reads_only)
        if name is not None:
            completing(parser.add_argument("name", metavar="NAME", help=name), completers.session_names)
        if json:
            parser.add_argument("--json", action="store_true", help="print the documented JSON shape")
        _add_caller(parser, default=argparse.SUPPRESS, with_as=not own_as)
        return parser


def completing(action: argparse.Action, completer: Callable[..., list[str]]) -> None:
    """Tell argcomplete how to complete this argument."""
    action.completer = completer  # type: ignore[attr-defined] # argcomplete's own protocol


def _new(verbs: _Verbs) -> None:
    parser = verbs.add(
        "new",
        "lifecycle:new",
        "make a session and start its kernel",
        more="The session goes on until it is closed, whoever leaves.",
        examples=(
            "new analysis",
            "new analysis --kernel python3 --policy turns",
            "new work --if-exists attach",
        ),
        name="name of the session: letters, digits, '.', '_' and '-', unique whatever its case",
    )
    completing(
        parser.add_argument("--kernel", metavar="SPEC", default="python3", help="kernel spec (python3)"),
        completers.kernel_specs,
    )
    parser.add_argument("--policy", choices=POLICIES, help="how the floor moves (open)")
    parser.add_argument("--cwd", metavar="DIR", help="working directory of the kernel (this one)")
    parser.add_argument("--group", metavar="G", help="group that this session belongs to")
    parser.add_argument("--setup", metavar="FILE", help="code to run first; '-' reads standard input")
    parser.add_argument(
        "--if-exists",
        choices=("error", "attach"),
        default="error",
        help="what to do when the name is taken: refuse, or use that session",
    )


def _ls(verbs: _Verbs) -> None:
    parser = verbs.add(
        "ls", "listing:ls", "list sessions", examples=("ls", "ls --all --json"), name=None, reads_only=True
    )
    parser.add_argument(
        "--all", action="store_true", help="all past sessions too, not only those lost within a day"
    )


def _status(verbs: _Verbs) -> None:
    verbs.add(
        "status",
        "listing:status",
        "show one session: driver, queue, who is there",
        examples=("status analysis", "status analysis --json"),
        reads_only=True,
    )


def _attach(verbs: _Verbs) -> None:
    parser = verbs.add(
        "attach",
        "attach:attach",
        "talk to a session in a Jupyter console of your own",
        more="Leaving the console leaves the session as it is. Ctrl-C interrupts what you are running, and only that.",
        examples=("attach analysis", "attach analysis --read-only"),
        json=False,
    )
    parser.add_argument("--read-only", action="store_true", help="watch its output instead")


def _invite(verbs: _Verbs) -> None:
    parser = verbs.add(
        "invite",
        "access:invite",
        "let somebody in: write a connection file that acts under his name",
        more="Whoever has the file may act; hand it over as you would a password.",
        examples=(
            "invite analysis",
            "invite analysis --as bot --kind agent --expires 8h",
            "invite analysis --as guest --role observer",
            "invite analysis --as bob --role observer --grant-file-out bob.grant",
        ),
        own_as=True,
    )
    parser.add_argument("--as", dest="invitee", metavar="ID", help="actor id of the guest (yourself)")
    parser.add_argument("--kind", dest="invitee_kind", choices=KINDS, help="what kind of actor the guest is")
    parser.add_argument("--role", choices=("peer", "observer"), default="peer", help="peer may act (peer)")
    parser.add_argument("--expires", metavar="DURATION", type=seconds, help="90s, 2m, 1h, 7d (never)")
    parser.add_argument(
        "--transport", choices=("ipc", "tcp"), default="ipc", help="tcp: encrypted, for another host (ipc)"
    )
    parser.add_argument(
        "--grant-file-out",
        metavar="FILE",
        help="write a grant for `--url` into this new file, or with '-' to standard output",
    )


def _grants(verbs: _Verbs) -> None:
    verbs.add(
        "grants", "access:grants", "list who has been let in", examples=("grants analysis",), reads_only=True
    )


def _revoke(verbs: _Verbs) -> None:
    parser = verbs.add(
        "revoke",
        "access:revoke",
        "end a grant, or all grants of an actor, at once",
        examples=("revoke analysis bot", "revoke analysis 1f0c2a9e"),
    )
    completing(
        parser.add_argument("grant", metavar="GRANT", help="grant id, or an actor id"), completers.grants
    )


def _take(verbs: _Verbs) -> None:
    parser = verbs.add(
        "take",
        "floor:take",
        "take the floor: from now on your input goes in",
        more="Nothing restarts. Whoever drove before is told by whom and why.",
        examples=("take analysis --reason 'wrong data set'", "take analysis --running interrupt"),
    )
    parser.add_argument("--reason", metavar="R", help="why, shown to the others and recorded")
    parser.add_argument(
        "--running", choices=("let", "interrupt"), default="let", help="what to do with what is running (let)"
    )
    parser.add_argument(
        "--queue", choices=("drop", "adopt"), default="drop", help="what to do with what is waiting (drop)"
    )
    parser.add_argument("--lease", metavar="S", type=seconds, help="hold it this long without a sign (120 s)")


def _hand_back(verbs: _Verbs) -> None:
    parser = verbs.add(
        "hand-back",
        "floor:hand_back",
        "give the floor to whoever had it before you",
        examples=("hand-back analysis --note 'the data set is fixed'", "hand-back analysis --to bot"),
    )
    parser.add_argument("--to", metavar="ID", help="give it to this actor instead")
    parser.add_argument("--note", metavar="N", help="what he should know")


def _release(verbs: _Verbs) -> None:
    verbs.add(
        "release", "floor:release", "give the floor up: it is free then", examples=("release analysis",)
    )


def _policy(verbs: _Verbs) -> None:
    parser = verbs.add(
        "policy",
        "floor:policy",
        "say how the floor moves",
        examples=("policy analysis turns", "policy analysis open"),
    )
    parser.add_argument("policy", metavar="P", choices=POLICIES, help=" | ".join(POLICIES))


def _run(verbs: _Verbs) -> None:
    parser = verbs.add(
        "run",
        "running:run",
        "run code and show its output as it comes",
        more=(
            "The first Ctrl-C interrupts this operation, and only this one; the second leaves it running and says how\n"
            "to wait for it."
        ),
        examples=(
            "run analysis 'df.describe()'",
            "run analysis - < step1.py",
            "run analysis 'train()' --no-wait --request-id train-1",
        ),
    )
    parser.add_argument("code", metavar="CODE", help="code, or '-' for standard input")
    parser.add_argument("--request-id", metavar="I", help="run it once, however often it is asked for")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--wait", metavar="S", type=seconds, help="wait this long (until it ends)")
    waiting.add_argument("--no-wait", action="store_true", help="return when it is accepted")
    parser.add_argument(
        "--generation", metavar="G", type=int, help="refuse it when the floor has moved since"
    )
    parser.add_argument(
        "--if-busy", choices=("queue", "refuse"), default="queue", help="when something else runs (queue)"
    )


def _read(verbs: _Verbs) -> None:
    parser = verbs.add(
        "read",
        "reading:read",
        "show output, all of it or what came after a cursor",
        examples=("read analysis", "read analysis --after 1:340 --json", "read analysis --follow"),
        reads_only=True,
    )
    parser.add_argument("--view", choices=("outputs", "stream"), default="outputs", help="outputs")
    parser.add_argument("--after", metavar="CURSOR", help="only what came after it")
    parser.add_argument("--follow", action="store_true", help="go on as more comes")


def _wait(verbs: _Verbs) -> None:
    parser = verbs.add(
        "wait",
        "running:wait",
        "wait for an operation, or until nothing is running",
        examples=("wait analysis", "wait analysis --request-id train-1 --wait 10m"),
    )
    completing(
        parser.add_argument("operation", metavar="OPERATION", nargs="?", help="operation id"),
        completers.operations,
    )
    parser.add_argument("--request-id", metavar="I", help="the operation that this request made")
    parser.add_argument("--wait", metavar="S", type=seconds, help="at most this long")


def _interrupt(verbs: _Verbs) -> None:
    parser = verbs.add(
        "interrupt",
        "running:interrupt",
        "interrupt an operation, or withdraw it when it has not begun",
        more="Without OPERATION: your own running one, else your waiting ones, else whatever is running.",
        examples=("interrupt analysis", "interrupt analysis o12"),
    )
    completing(
        parser.add_argument("operation", metavar="OPERATION", nargs="?", help="operation id"),
        completers.operations,
    )


def _answer(verbs: _Verbs) -> None:
    parser = verbs.add(
        "answer",
        "running:answer",
        "answer the input() that a session waits for",
        more="Without TEXT you are asked for it; what is typed at a password prompt is not shown.",
        examples=("answer analysis yes", "answer analysis", "answer analysis - < answer.txt"),
    )
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the answer, or '-' for standard input")
    parser.add_argument("--prompt", metavar="ID", help="refuse it when another prompt is waiting by then")


def _log(verbs: _Verbs) -> None:
    parser = verbs.add(
        "log",
        "reading:log",
        "show the journal: who did what, when, with what outcome",
        more="Works for closed and lost sessions too. --json prints one object a line.",
        examples=("log analysis", "log analysis --actor bot --follow", "log analysis --type refused --json"),
        reads_only=True,
    )
    parser.add_argument("--follow", action="store_true", help="go on as more is recorded")
    parser.add_argument("--actor", metavar="A", help="only what this actor did")
    completing(
        parser.add_argument("--operation", metavar="O", help="only what belongs to this operation"),
        completers.operations,
    )
    parser.add_argument("--type", metavar="T", action="append", help="only this type; may be repeated")
    parser.add_argument("--after", metavar="SEQ", type=int, help="only entries after this number")


def _verify(verbs: _Verbs) -> None:
    parser = verbs.add(
        "verify",
        "reading:verify",
        "check that a journal is whole",
        examples=(
            "verify analysis",
            "verify analysis --receipt 340:9f86d081884c7d65…",
            "verify ./old-session",
        ),
        name="session name, or the directory of a journal",
        reads_only=True,
    )
    parser.add_argument(
        "--receipt", metavar="SEQ:HASH", help="what it must contain, from `status` or a reply"
    )


def _rename(verbs: _Verbs) -> None:
    parser = verbs.add(
        "rename",
        "lifecycle:rename",
        "give a session another name",
        examples=("rename analysis analysis-2026",),
    )
    parser.add_argument("new_name", metavar="NEW", help="its new name")


def _restart(verbs: _Verbs) -> None:
    verbs.add(
        "restart",
        "lifecycle:restart",
        "restart the kernel; the session, its name and journal stay",
        examples=("restart analysis",),
    )


def _close(verbs: _Verbs) -> None:
    parser = verbs.add(
        "close",
        "lifecycle:close",
        "end a session for everybody; its journal stays",
        examples=("close analysis", "close analysis --force"),
    )
    parser.add_argument("--force", action="store_true", help="also when something is running, or it hangs")


def _doctor(verbs: _Verbs) -> None:
    parser = verbs.add(
        "doctor",
        "doctor:doctor",
        "say what on this machine helps or hinders sessions",
        examples=("doctor", "doctor --sweep"),
        name=None,
        reads_only=True,
    )
    parser.add_argument(
        "--sweep", action="store_true", help="tidy lost sessions away, out of `ls`; their journals stay"
    )


def _demo(verbs: _Verbs) -> None:
    verbs.add(
        "demo",
        "demo:run",
        "play the story of a person and an agent in one session",
        examples=("demo",),
        name=None,
        json=False,
    )


def _completion(verbs: _Verbs) -> None:
    parser = verbs.add(
        "completion",
        "completion:completion",
        "print the completion script for a shell",
        examples=(
            "completion bash > ~/.local/share/bash-completion/completions/jupyter-cmdop",
            "completion fish > ~/.config/fish/completions/jupyter-cmdop.fish",
        ),
        name=None,
        json=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


_VERBS: tuple[Callable[[_Verbs], None], ...] = (
    _new,
    _ls,
    _status,
    _attach,
    _invite,
    _grants,
    _revoke,
    _take,
    _hand_back,
    _release,
    _policy,
    _run,
    _read,
    _wait,
    _interrupt,
    _answer,
    _log,
    _verify,
    _rename,
    _restart,
    _close,
    _doctor,
    _demo,
    _completion,
)
