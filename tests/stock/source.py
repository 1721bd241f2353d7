"""jupyter_server's own tests, of the version that is installed: they are in its source distribution only."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

VERSION = version("jupyter_server")
DOWNLOAD_SECONDS = 100.0


def stock_tests(cache: Path) -> Path:
    """The folder that holds `tests` and `pyproject.toml`; below `cache`, where it is found again the next time.

    Without a network there is nothing to run: then the caller is skipped, or fails where CI is set.
    """
    folder = cache / f"jupyter_server-{VERSION}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            unpacked = _unpack(_download(Path(made)), Path(made) / "unpacked")
            try:
                unpacked.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another worker was faster
                    raise
    return folder


def _download(into: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--no-deps", "--no-binary=jupyter_server", f"--dest={into}", f"jupyter_server=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
        problem = done.stderr
    except subprocess.TimeoutExpired:
        problem = f"pip has not finished within {DOWNLOAD_SECONDS:.0f} s"
    archives = list(into.glob("*.tar.gz"))
    if not archives:
        message = f"the source of jupyter_server {VERSION} cannot be had: {problem.strip()[-500:]}"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return archives[0]


def _unpack(archive: Path, into: Path) -> Path:
    """Only what the tests are: with the package beside them they would import that one, and not the installed."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            if name == "pyproject.toml" or name.startswith("tests/"):
                tar.extract(member.replace(name=name, deep=False), into, filter="data")
    return into
