"""Fuzz one decoder, led by the code that it reaches: `python tests/fuzz/run.py TARGET --seconds N`.

Needs atheris (`pip install 'jupyter_cmdop[soak]'`). Without a target it lists them. What is found is written to the
target's folder in `corpus/`, where `test_decoders.py` replays it for ever; the exit code is then not 0. A call that
takes more than its limit of processor time, or holds more memory than its bound, is a finding as well.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
INSIDE = "CMDOP_FUZZ_DIR"
LOOK_AT_MEMORY_EVERY = 64  # tracemalloc makes a call several times as slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--max-bytes", type=int, default=8192, help="of one input")
    parser.add_argument(
        "--work", type=Path, help="a folder for what reaches new code; else it is thrown away"
    )
    parser.add_argument("--seed", type=int, default=0, help="0 takes another each time")
    options = parser.parse_args()
    if INSIDE not in os.environ:  # libFuzzer ends its process without a clean-up
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="cmdop-fuzz-", dir=memory) as root:
            return subprocess.run([sys.executable, *sys.argv], env={**os.environ, INSIDE: root}).returncode
    import atheris

    with atheris.instrument_imports(include=["jupyter_cmdop", "websockets"]):
        from tests.fuzz import targets
    if options.target not in targets.TARGETS:
        print("\n".join(targets.TARGETS))
        return 2
    chosen = targets.TARGETS[options.target]
    folder = CORPUS / chosen.name
    folder.mkdir(parents=True, exist_ok=True)
    state = {"calls": 0, "slowest": 0.0, "peak": 0}

    def report() -> None:
        print(
            f"{chosen.name}: {state['calls']} calls in {time.monotonic() - begun:.0f} s, "
            f"{state['calls'] / max(0.001, time.monotonic() - begun):.0f}/s, slowest {state['slowest'] * 1000:.1f} ms",
            flush=True,
        )

    def once(data: bytes) -> None:
        state["calls"] += 1
        try:
            before = time.process_time()
            chosen.run(data)
            took = time.process_time() - before
            if took > targets.CPU_SECONDS:  # once more: it may have been a collection of garbage
                took = targets.seconds_of(chosen, data)
                assert took <= targets.CPU_SECONDS, f"{took * 1000:.0f} ms"
            state["slowest"] = max(state["slowest"], took)
            if state["calls"] % LOOK_AT_MEMORY_EVERY == 0:
                peak = targets.peak_of(chosen, data)
                assert peak <= targets.bound_of(chosen, data), f"{peak} bytes for {len(data)}"
        except BaseException:
            name = hashlib.sha256(data).hexdigest()[:16]
            (folder / f"found-{name}").write_bytes(data)
            traceback.print_exc()
            report()
            raise

    for sample in chosen.samples():
        chosen.run(sample)
    scratch = options.work or Path(os.environ[INSIDE]) / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(chosen.samples()):
        (scratch / f"sample-{number}").write_bytes(sample)
    begun = time.monotonic()
    argv = [sys.argv[0], f"-max_total_time={options.seconds}", f"-max_len={options.max_bytes}"]
    argv += [f"-seed={options.seed}", "-print_final_stats=1", "-verbosity=0", str(scratch), str(folder)]
    argv += [f"-artifact_prefix={os.environ[INSIDE]}/"]
    atheris.Setup(argv, once)
    atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.exit(main())
