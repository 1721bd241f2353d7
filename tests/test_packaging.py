"""What the package declares is what it needs and has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import jupyter_cmdop

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jupyter_cmdop"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_names() -> dict[str, str]:
    """Top-level names that the package imports, each with a file that does."""
    names: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found = [node.module]
            else:
                continue
            names |= {name.partition(".")[0]: path.relative_to(ROOT).as_posix() for name in found}
    return names


def test_every_third_party_import_is_a_declared_dependency() -> None:
    """A library that only comes with another one may go with it."""
    declared = {normal(re.split(r"[<>=!~; \[]", line, maxsplit=1)[0]) for line in PROJECT["dependencies"]}
    homes = packages_distributions()
    ours = sys.stdlib_module_names | {"jupyter_cmdop"}
    missing = {
        f"{name} ({file})"
        for name, file in imported_names().items()
        if name not in ours and not {normal(home) for home in homes.get(name, [name])} & declared
    }
    assert not missing


def test_importing_the_package_imports_nothing_else() -> None:
    """`jupyter cmdop ls` has a quarter of a second: whoever needs a part imports that part."""
    code = "import sys; before = set(sys.modules); import jupyter_cmdop; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"jupyter_cmdop", "jupyter_cmdop._version"}


def test_version_is_one_of_the_changelog() -> None:
    assert f"## {jupyter_cmdop.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
