"""Write the map of the code: one sentence per file, taken from the files themselves, into CONTRIBUTING.md.

The sentence is the first one of the module's docstring, so the map cannot say something else than the code.

    python tools/code_map.py            rewrite the marked block
    python tools/code_map.py --check    exit 1 when the block is out of date
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN = "<!-- map of the code: written by tools/code_map.py, do not edit -->"
END = "<!-- end of the map -->"

# From the inside to the outside, as the imports point; a folder that is not named here comes last.
ORDER = ("core", "wire", "journal", "backends", "keeper", "client", "server", "cli")


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring.

    Raises:
        ValueError: the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(
            f"{path.relative_to(ROOT)} has no docstring: say in one sentence what it is responsible for"
        )
    paragraph = " ".join(docstring.split("\n\n", 1)[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


def modules(folder: Path) -> list[Path]:
    """The modules directly in `folder`; its `__init__.py` first."""
    return sorted(folder.glob("*.py"), key=lambda path: (path.name != "__init__.py", path.name))


def code_map(root: Path = ROOT) -> str:
    """The map of everything that is in the tree below `root`, as Markdown."""
    package = root / "jupyter_cmdop"
    packages = {path.parent for path in package.rglob("*.py")} - {package}
    folders = sorted(packages, key=lambda folder: (_rank(folder.relative_to(package).parts[0]), folder))
    lines: list[str] = []
    for folder in (package, *folders, root / "tools"):
        lines += [
            f"**`{folder.relative_to(root).as_posix()}/`**",
            "",
            "| file | responsible for |",
            "|---|---|",
        ]
        lines += [
            f"| `{path.name}` | {first_sentence(path).replace('|', chr(92) + '|')} |"
            for path in modules(folder)
        ]
        lines.append("")
    return "\n".join(lines)


def _rank(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def with_map(page: str, text: str) -> str:
    """`page` with the marked block replaced.

    Raises:
        ValueError: the marks are not in the page.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost its marks: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the map of the code into CONTRIBUTING.md.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when it is out of date")
    options = parser.parse_args(argv)
    page = PAGE.read_text(encoding="utf-8")
    new = with_map(page, code_map())
    if new == page:
        return 0
    if options.check:
        print(f"{PAGE.name} does not match the tree: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
