"""Measure this checkout beside a direct connection and beside jupyter_server, side by side in one run.

    python bench/run.py                        every row
    python bench/run.py execute-zmq floor      these rows
    python bench/run.py --list                 what there is
    python bench/run.py --quick                a tenth of the samples, to see that it works
    python bench/run.py --json FILE            every sample as well
    python bench/run.py --markdown FILE        the tables, into the block for them where FILE has one

Everything runs in temporary folders, on this machine only, and ends with the program.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of this file would make its modules importable under bare names; the checkout is what has to be there.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.command import main  # noqa: E402 (the path first)

if __name__ == "__main__":
    sys.exit(main(__doc__ or ""))
