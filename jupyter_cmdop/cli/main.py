"""The entry point: parse, dispatch, and turn every ending into an exit code and at most one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    if sys.platform == "win32":
        print("error: jupyter cmdop needs Linux or macOS; next: use WSL", file=sys.stderr)
        return 2
    _open_missing_streams()
    try:
        return _checked(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _abandon_stdout()
        return 141


def _checked(argv: list[str]) -> int:
    from jupyter_cmdop.client.errors import ClientError

    from . import exits, output
    from .parser import build_parser

    _encode_anything()
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        # Options are offered once a dash is typed: before that they would bury the names.
        argcomplete.autocomplete(parser, always_complete_options=False)
    args: argparse.Namespace | None = None
    try:
        args = parser.parse_args(argv)
        code = _perform(args)
        sys.stdout.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as done:  # argparse, after --help or a mistake
        return done.code if isinstance(done.code, int) else exits.USAGE
    except ClientError as error:
        if _is_debugging():
            raise
        output.print_error(error, args)
        return exits.of_error(error, reads_only=bool(getattr(args, "reads_only", False)))
    except Exception as error:
        if _is_bad_name(error):
            output.print_error(ClientError(str(error), code="bad_name"), args)
            return exits.USAGE
        if _is_debugging():
            raise
        advice = "CMDOP_DEBUG=1 shows where; please report it"
        output.print_error(ClientError(f"{type(error).__name__}: {error}", next=(advice,)), args)
        return exits.FAILED
    return code


def _perform(args: argparse.Namespace) -> int:
    """Call the function that the parser names, importing only its module."""
    import importlib

    module, _, function = args.perform.partition(":")
    return int(getattr(importlib.import_module(f"jupyter_cmdop.cli.{module}"), function)(args))


def _is_bad_name(error: Exception) -> bool:
    from jupyter_cmdop.core.actor import BadName

    return isinstance(error, BadName)


def _is_debugging() -> bool:
    return os.environ.get("CMDOP_DEBUG", "") not in ("", "0")


def _open_missing_streams() -> None:
    """Put /dev/null where a standard stream is closed, as a service manager may do: else a socket of ours is next."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the process ends)


def _encode_anything() -> None:
    """Never fail for a character that the terminal's encoding lacks, nor for an output that was closed before us."""
    # `>&-` leaves None; what is opened here stays open until the process ends.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """Keep Python's last flush from complaining about the pipe that nobody reads."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
