"""The how-to does what it says: its lines are typed into a shell, one after the other, against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.server.jupyter import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "use-from-a-script-over-http.md"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_lines_of_the_page(server: Server, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    env = {
        **os.environ,
        "JUPYTER_TOKEN": server.token,
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    answers: dict[str, str] = {}
    for language, block in BLOCK.findall(text):
        if language == "python":
            # Everything from the beginning, so that the note is among it.
            script = block.replace("{os.environ.get('CURSOR', '')}", "0" * 11 + ":0")
            shown = subprocess.run(
                [sys.executable, "-c", script],
                env=env,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            assert shown.stdout.splitlines()[0] == "hello hello None"
            assert shown.stdout.splitlines()[-1] == "note note nightly"
            continue
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            exported = re.fullmatch(r"export (\w+)=(.*)", line)
            if exported:
                value = exported[2].strip('"').replace("http://localhost:8888", server.url)
                env[exported[1]] = re.sub(r"\$(\w+)", lambda found: env[found[1]], value)
                continue
            done = subprocess.run(
                ["bash", "-c", line],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            answers[line] = done.stdout
            if '/grants"' in line:
                env["GRANT"] = json.loads(done.stdout)["token"]

    def answer(part: str) -> dict[str, object]:
        return dict(json.loads(next(out for line, out in answers.items() if part in line)))

    assert answer('/sessions" -d')["name"] == "report"
    assert answer("step-1")["text"] == "45\n"
    assert answer("/wait?")["text"] == "45\n"
    assert len(answer("types=admitted")["entries"]) == 4  # type: ignore[arg-type]
    assert answer("/note")["seq"]
    refused = answer("DELETE")
    assert refused["code"] == "forbidden"
    assert refused["message"] == "nightly has not the right 'lifecycle' here"
    exported_lines = (tmp_path / "report.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(exported_lines[0])["type"] == "opened"
