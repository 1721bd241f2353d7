"""Write the TypeScript types of the HTTP API, labextension/src/api.d.ts, from jupyter_cmdop/server/openapi.json.

The work is done by openapi-typescript, of one version, which npx fetches from the configured npm registry. What it made
is in the repository, with what it was made from in its first lines: so nobody needs Node.js, or a network, to see
whether it is up to date.

    python tools/typescript.py            write the file (needs Node.js)
    python tools/typescript.py --check    exit 1 when it is out of date, or was changed by hand
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPENAPI = ROOT / "jupyter_cmdop" / "server" / "openapi.json"
TYPES = ROOT / "labextension" / "src" / "api.d.ts"
GENERATOR = "openapi-typescript@7.13.0"
# A field with a default may be left out, in what is sent and in what is answered.
OPTIONS = ("--default-non-nullable=false",)
LIMIT_SECONDS = 300


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def header(openapi: bytes, body: str) -> str:
    """The first lines: where the rest comes from."""
    return (
        "// written by tools/typescript.py, do not edit: change the code and run `make docs types`\n"
        f"// generator: {' '.join((GENERATOR, *OPTIONS))}\n"
        f"// openapi.json, SHA-256: {sha256(openapi)}\n"
        f"// below this line, SHA-256: {sha256(body.encode())}\n"
    )


def generate(openapi: Path) -> str:
    """What the generator makes of the description.

    Raises:
        OSError, CalledProcessError, TimeoutExpired: npx is not there, or it failed.
    """
    npx = shutil.which("npx")
    if npx is None:
        raise FileNotFoundError("npx is not here: install Node.js")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "api.d.ts"
        subprocess.run(
            [npx, "--yes", GENERATOR, str(openapi), "--output", str(made), *OPTIONS],
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            timeout=LIMIT_SECONDS,
        )
        return made.read_text(encoding="utf-8")


def problem(openapi: Path = OPENAPI, types: Path = TYPES) -> str | None:
    """Why the file is not what it should be, without making it anew."""
    try:
        text = types.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "it is missing"
    body = "".join(text.splitlines(keepends=True)[4:])
    found, wanted = text.removesuffix(body).splitlines(), header(openapi.read_bytes(), body).splitlines()
    reasons = (None, "another generator made it", "openapi.json has changed since", "it was changed by hand")
    for reason, line, other in zip(reasons, found, wanted, strict=False):
        if line != other:
            return reason or "its first line is not ours"
    return None if found == wanted else "its first lines are not whole"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when it is out of date")
    args = parser.parse_args(argv)
    if args.check:
        reason = problem()
        if reason is not None:
            print(f"{TYPES.relative_to(ROOT)} is out of date ({reason}): run `make types`", file=sys.stderr)
        return int(reason is not None)
    try:
        body = generate(OPENAPI)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the types cannot be made: {error}", file=sys.stderr)
        return 1
    TYPES.parent.mkdir(parents=True, exist_ok=True)
    TYPES.write_text(header(OPENAPI.read_bytes(), body) + body, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
