"""Tab in bash: `jupyter-cmdop` and `jupyter cmdop` alike, and other completions of `jupyter` are left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.cli import completers
from jupyter_cmdop.cli.completion import SCRIPTS
from jupyter_cmdop.client.registry import Registry
from tests.client.fake_keeper import FakeKeeper, MakeKeeper

BASH = shutil.which("bash")
# Does what bash does at Tab: split the line, call the registered function, show what it offers.
COMPLETE = r"""
source "$SCRIPT"
COMP_LINE="$LINE"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
read -ra COMP_WORDS <<< "$COMP_LINE"
[[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
compopt() { :; }
function=$(complete -p "${COMP_WORDS[0]}" | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
"$function" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def tab(tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What bash offers for a line."""
    if BASH is None:
        pytest.skip("there is no bash")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "jupyter-cmdop"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom jupyter_cmdop.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    script = tmp_path / "completion.bash"
    script.write_text(SCRIPTS["bash"])

    def complete(line: str, before: str = "") -> list[str]:
        environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": os.getcwd(),
            "SCRIPT": str(script),
            "LINE": line,
        }
        done = subprocess.run(
            [BASH, "--norc", "-c", before + COMPLETE],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stderr == ""
        return [word.strip() for word in done.stdout.splitlines() if word.strip()]

    return complete


@pytest.mark.parametrize("program", ["jupyter-cmdop", "jupyter cmdop"])
def test_verbs_and_names(tab: Any, keepers: MakeKeeper, program: str) -> None:
    keepers("analysis")
    keepers("other")
    assert tab(f"{program} ha") == ["hand-back"]
    assert set(tab(f"{program} status ")) >= {"analysis", "other"}
    assert tab(f"{program} status ana") == ["analysis"]
    assert tab(f"{program} run analysis 1 --if-busy re") == ["refuse"]


@pytest.mark.parametrize("program", ["jupyter-cmdop", "jupyter cmdop"])
def test_operations_and_grants(tab: Any, keeper: FakeKeeper, program: str) -> None:
    keeper.status["running"] = [{"operation": "o7", "actor": "bot"}]
    keeper.status["queue"] = [{"operation": "o8", "actor": "bot"}]
    keeper.result("grants", grants=[{"grant": "g1", "actor": "bot"}])
    assert set(tab(f"{program} wait analysis o")) >= {"o7", "o8"}
    assert tab(f"{program} revoke analysis b") == ["bot"]


def test_other_subcommands_of_jupyter_are_offered(tab: Any) -> None:
    assert "cmdop" in tab("jupyter cm")


def test_completion_of_jupyter_that_was_there_before_goes_on(tab: Any) -> None:
    before = "_theirs() { COMPREPLY=(theirs); }; complete -F _theirs jupyter\n"
    assert tab("jupyter lab", before) == ["theirs"]
    assert tab("jupyter cmdop ha", before) == ["hand-back"]
    assert tab("jupyter lab", before + 'source "$SCRIPT"\n') == ["theirs"], (
        "sourced twice, as a new shell may"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_printed(cli: Any, shell: str) -> None:
    done = cli("completion", shell)
    assert done.code == 0
    assert done.out == SCRIPTS[shell]
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=done.out, text=True, check=True, timeout=60)


def test_completers_are_silent_when_they_cannot_know(registry: Registry, keeper: FakeKeeper) -> None:
    class Args:
        name = "nobody"

    assert completers.operations("", parsed_args=Args) == []  # type: ignore[arg-type]
    assert completers.grants("", parsed_args=Args) == []  # type: ignore[arg-type]
    registry.pointers.chmod(0o777)
    assert completers.session_names("") == []


def test_kernel_specs_are_offered() -> None:
    assert "python3" in completers.kernel_specs("py")
