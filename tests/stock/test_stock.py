"""jupyter_server's own tests of kernels and notebook sessions, run against servers with our extension.

Every difference is on purpose and listed with its reason in `differences.toml`. The list is strict both ways.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.stock.source import stock_tests
from tests.support import Home

HERE = Path(__file__).resolve().parent
KERNELS = "tests/services/kernels"
SESSIONS = "tests/services/sessions"
LISTED = {
    test: difference["title"]
    for difference in tomllib.loads((HERE / "differences.toml").read_text(encoding="utf-8"))["difference"]
    for test in difference["tests"]
}

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = getattr(request.config, "cache", None)
    return stock_tests(tmp_path_factory.mktemp("stock") if cache is None else cache.mkdir("stock"))


def run_stock(
    source: Path, home: Home, arguments: Sequence[str], *, plain: bool = False, limit_seconds: float = 1200
) -> dict[str, str]:
    """Run some of them in a pytest of their own: test -> why it failed, "" where it passed or was skipped."""
    report = home.root / "stock.jsonl"
    report.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Each of their tests has a data directory of its own, in which sessions have to be: ids come again.
    del environment["CMDOP_STATE_DIR"]
    environment |= {
        "PYTHONPATH": str(HERE),
        "CMDOP_STOCK_REPORT": str(report),
        "CMDOP_STOCK_PLAIN": "1" if plain else "",
    }
    # Their own options are for people who look on; the rest of their configuration, `error` for warnings, stays.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "stock_plugin",
        "-c",
        "pyproject.toml",
        "-q",
        "--tb=short",
    ]
    command += ["-o", "addopts=", "-o", "log_cli=false", "-o", "timeout_method=signal"]
    command += [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "rerunfailures")]
    command += [f"--basetemp={home.root / 'stock'}"]
    # Their tests themselves make a request in a way that tornado has given up.
    for argument in ("method, uri, and version arguments", "start_line argument"):
        command.append(f"-Wignore:The {argument} to HTTPServerRequest:DeprecationWarning")
    done = subprocess.run(
        [*command, *arguments],
        cwd=source,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=limit_seconds,
        check=False,
    )
    (home.root / f"stock-{'plain' if plain else 'extended'}.log").write_text(done.stdout, encoding="utf-8")
    assert done.returncode in (0, 1), f"their pytest did not come to its end:\n{done.stdout[-3000:]}"
    why: dict[str, str] = {}
    for line in report.read_text(encoding="utf-8").splitlines():
        phase = json.loads(line)
        failed = f"{phase['when']}: {phase['why']}" if phase["outcome"] == "failed" else ""
        why[phase["test"]] = why.get(phase["test"]) or failed
    return why


def with_sessions(home: Home) -> set[str]:
    """The tests of the last run whose servers had the extension in force."""
    lines = map(json.loads, (home.root / "stock.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["test"] for line in lines if line["manager"] == "SessionKernelManager"}


def check(source: Path, home: Home, results: Mapping[str, str]) -> None:
    """Compare with the list; what fails without our extension as well, or only once, is not our difference."""
    passed = [
        f"{test} passes now: take it off the list" for test in results if test in LISTED and not results[test]
    ]
    failed = [test for test in results if test not in LISTED and results[test]]
    if failed:
        again = run_stock(source, home, failed)
        print("failed once:", {test: results[test] for test in failed if not again.get(test)})
        failed = [test for test in failed if again.get(test)]
    if failed:
        plain = run_stock(source, home, failed, plain=True)
        failed = [test for test in failed if not plain.get(test)]
    problems = [*passed, *(f"{test} fails with the extension only: {results[test]}" for test in failed)]
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(600)
def test_routes_of_kernels_and_notebook_sessions(source: Path, home: Home) -> None:
    """The part that takes less than a minute: servers whose kernels are sessions, no waits for idle kernels."""
    files = [f"{KERNELS}/test_{name}.py" for name in ("api", "config", "restart_error")]
    others = " or ".join(
        f"jp_server_config{number}" for number in (0, 2, 3)
    )  # other managers, pending kernels
    results = run_stock(source, home, [*files, f"{SESSIONS}/test_api.py", "-k", f"not ({others})"])
    assert len(with_sessions(home)) > 30
    check(source, home, results)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_everything_about_kernels_and_notebook_sessions(source: Path, home: Home) -> None:
    results = run_stock(source, home, [KERNELS, SESSIONS])
    assert len(with_sessions(home)) > 60
    missing = sorted(set(LISTED) - set(results))
    assert not missing, f"jupyter_server has these tests no more, take them off the list: {missing}"
    check(source, home, results)
