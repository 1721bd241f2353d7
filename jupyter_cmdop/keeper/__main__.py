"""Starts a keeper: `python -m jupyter_cmdop.keeper --config FILE --ready-fd N`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import sys
from pathlib import Path

import msgspec

from ..journal.errors import JournalError
from .config import read_config
from .keeper import Keeper

OPEN_FILES = 4096


def main() -> int:
    """Run a keeper until its session ends."""
    parser = argparse.ArgumentParser(prog="jupyter_cmdop.keeper", description="Holds one session alive.")
    parser.add_argument("--config", type=Path, required=True, help="the session's start file (JSON)")
    parser.add_argument("--ready-fd", type=int, help="descriptor that is told when the session can be used")
    options = parser.parse_args()
    umask = os.umask(0o077)
    logging.basicConfig(
        level=os.environ.get("CMDOP_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )

    def tell(problem: str | None) -> None:
        if options.ready_fd is None:
            return
        line = (
            {"ready": True, "pid": os.getpid()}
            if problem is None
            else {"error": {"code": "backend_failed", "message": problem}}
        )
        try:
            os.write(options.ready_fd, json.dumps(line).encode() + b"\n")
            os.close(options.ready_fd)
        except OSError:  # whoever started us did not wait
            logging.getLogger(__name__).debug("nobody waits for the start")
        options.ready_fd = None

    _raise_file_limit()
    try:
        config = read_config(options.config)
        keeper = Keeper(config, tell, umask=umask)
    except (OSError, msgspec.MsgspecError, JournalError, ValueError) as error:
        tell(str(error))
        logging.getLogger(__name__).critical("cannot start: %s", error)
        return 2
    return keeper.run()


def _raise_file_limit() -> None:
    """Take as many descriptors as a server of Jupyter's takes: each client and each grant has some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
