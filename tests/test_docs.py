"""What the documentation tells people to type exists, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md"])
FENCE = re.compile(r"^ *```(?P<language>\w*)\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#(?P<anchor>[^)\s]+))?\)")


def commands(page: Path) -> list[str]:
    """Every `jupyter cmdop …` line after a prompt in a console block, continued lines joined."""
    found = []
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block["language"] != "console":
            continue
        text = block["body"].replace("\\\n", " ")
        found += re.findall(r"^ *\$ (?:[A-Z_]+=\S+ )*(jupyter cmdop\b[^\n]*)", text, re.MULTILINE)
    return found


SNIPPETS = [
    pytest.param(command, id=f"{page.relative_to(ROOT)}:{command[14:60]}")
    for page in PAGES
    for command in commands(page)
]


@pytest.mark.parametrize("command", SNIPPETS)
def test_command_parses(command: str) -> None:
    from jupyter_cmdop.cli.parser import build_parser

    words = shlex.split(command, comments=True)[2:]
    # A command may go on to a file or to another program.
    end = next((at for at, word in enumerate(words) if word in {"|", ">", "<", "&&"}), len(words))
    build_parser().parse_args(words[:end])


def test_every_command_is_in_a_guide() -> None:
    """A command that no guide uses is one that nobody finds."""
    from jupyter_cmdop.cli.parser import build_parser
    from tools.reference import _subcommands

    used = {shlex.split(command, comments=True)[2] for page in PAGES for command in commands(page)}
    assert not {name for name, _ in _subcommands(build_parser())} - used


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = link["target"]
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
