"""Memory runs out: the kernel goes, its keeper stays, and the record says why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from jupyter_cmdop.backends.kernel_process import oom_kills
from tests.faults.attacks import keeper_of, kernel_of, make_spec, wait_ready
from tests.support import Home, Sessions, wait_for_entry

DELEGATED = "CMDOP_TEST_MEMORY_CGROUP"
"""A directory in which this user may make memory cgroups. Without it no memory runs out here."""


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_the_kernel_is_the_one_that_the_system_prefers(home: Home, session: Sessions) -> None:
    made = session()
    kernel, keeper = kernel_of(made), keeper_of(home, made)
    assert oom_score(kernel.pid) > oom_score(keeper.pid)
    made.run("import subprocess; child = subprocess.Popen(['sleep', '600'])")
    (child,) = kernel.children()
    assert oom_score(child.pid) >= oom_score(kernel.pid)


@pytest.mark.parametrize(
    ("line", "group", "counter"),
    [
        ("0::/user/kernel", "user/kernel", "memory.events"),
        ("7:blkio:/elsewhere\n4:memory:/job\n0::/", "memory/job", "memory.oom_control"),
        ("3:cpu,memory:/job", "memory/job", "memory.oom_control"),
        ("4:memory:/\n0::/job", "unified/job", "memory.events"),
    ],
)
def test_kills_are_counted_where_the_limit_is(tmp_path: Path, line: str, group: str, counter: str) -> None:
    """In the kernel's own memory cgroup or in one above it, in both versions of cgroups and in their mixture."""
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(line + "\n")
    place = tmp_path / "cgroup" / group
    place.mkdir(parents=True)
    (place / counter).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (place.parent / counter).write_text("low 0\noom_kill 5\noom_group_kill 1\n")
    found = oom_kills(7, proc=tmp_path / "proc", cgroups=tmp_path / "cgroup")
    assert found[place / counter] == 3
    assert set(found.values()) <= {3, 5}
    assert oom_kills(8, proc=tmp_path / "proc", cgroups=tmp_path / "cgroup") == {}


def test_kernel_that_was_killed_by_hand_did_not_run_out_of_memory(session: Sessions) -> None:
    made = session()
    kernel_of(made).kill()
    assert "memory" not in wait_for_entry(made, "backend_died")["data"]["reason"]


def test_memory_runs_out_in_the_kernel(home: Home, session: Sessions) -> None:
    """A real one: the kernel may have 200 MiB."""
    if DELEGATED not in os.environ:
        pytest.skip(f"no memory cgroup is delegated to this user ({DELEGATED})")
    parent = Path(os.environ[DELEGATED])
    group = parent / f"cmdop-test-{os.getpid()}"
    group.mkdir()
    try:
        limits = {"memory.max": "200M", "memory.limit_in_bytes": "200M", "memory.swap.max": "0"}
        for name, value in limits.items():
            if (group / name).exists():
                (group / name).write_text(value)
        command = f'echo $$ > {group}/cgroup.procs; exec {sys.executable} -m ipykernel_launcher -f "$0"'
        spec = make_spec(home, "limited", ["sh", "-c", command, "{connection_file}"], language="python")
        made = session(kernel=spec)
        keeper = keeper_of(home, made)
        result = made.run("x = [bytes(range(256)) * 2**18 for _ in range(64)]")
        assert result.status == "unknown"
        assert "out of memory" in wait_for_entry(made, "backend_died")["data"]["reason"]
        assert keeper.is_running()
        wait_ready(made, 2)
        assert made.run("40 + 2").status == "ok"
        made.close(force=True)
    finally:
        group.rmdir()
