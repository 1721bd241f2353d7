"""An environment as a user has it who installed another extension beside ours: the project's packages, and one more."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

from jupyter_cmdop.server import extension

INSTALL_SECONDS = 300
# As the tests were started; a test's own home says nothing of how pip reaches an index.
_ENVIRONMENT: Mapping[str, str] = dict(os.environ)


def make(cache: Path, requirement: str) -> Path:
    """The Python of an environment with this package beside ours; made at most once while nothing else changes."""
    constraints = _constraints()
    digest = hashlib.sha256(f"{requirement}\n{sys.executable}\n{sys.version}\n{constraints}".encode())
    folder = cache / digest.hexdigest()[:16]
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of a parallel run share it
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder, requirement, constraints)
            (folder / "done").touch()
    return folder / "bin" / "python"


def _constraints() -> str:
    """What the project is tested with stays as it is."""
    pins = {f"{found.metadata['Name']}=={found.version}" for found in metadata.distributions()}
    return "\n".join(sorted(pin for pin in pins if not pin.lower().startswith("jupyter_cmdop==")))


def _install(folder: Path, requirement: str, constraints: str) -> None:
    venv.create(folder, with_pip=False, symlinks=True)
    base = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", base))
    # A line that is code: what a plain path adds would not have its own `.pth` files read, as editable installs need.
    lines = [f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"]
    lines += [str(Path(extension.__file__).parents[2])]
    (packages / "project.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "constraints.txt").write_text(constraints, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--quiet", "--constraint", str(folder / "constraints.txt")]
    try:
        done = subprocess.run(
            [*command, requirement],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
        said = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired:
        said = f"pip did not end in {INSTALL_SECONDS} s"
    if said:
        message = f"{requirement} cannot be installed beside the project: {said.strip()[-1000:]}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
