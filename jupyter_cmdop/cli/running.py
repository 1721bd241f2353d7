"""`run`, `wait`, `interrupt`, `answer`: input and what becomes of it."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from jupyter_cmdop.client import calls, shapes
from jupyter_cmdop.client.blocking import Stream
from jupyter_cmdop.client.errors import (
    ClientError,
    KeeperGone,
    Refused,
    RequestFailed,
    ServerProblem,
    UnknownSession,
)
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.core.refusal import Refusal

from . import exits, render
from .interrupts import Signals
from .opening import open_session, server_of
from .output import error_line, note, print_json, refusal_shape, show, wants_json

END_OF_FILE = "\x04"
"""What a kernel's `input()` understands as end of file; Jupyter's own console sends the same."""
_LINE_BYTES = 64 * 1024


def run(args: argparse.Namespace) -> int:
    """Exit code: that of the operation's status."""
    code = _read_code(args.code)
    with open_session(args) as session:
        if server_of(args) is not None and args.request_id is None:
            # Whoever asks again after the connection was lost must not run it twice.
            args.request_id = f"cli-{uuid.uuid4().hex}"
        may_ask = args.code != "-" and not wants_json(args) and sys.stdin.isatty()
        with Signals(signal.SIGINT) as interrupts:
            watch = _Watch(session, code, interrupts, args, may_ask=may_ask)
            try:
                result = watch.until_end()
            except Refused as refused:
                result = _refused(refused, args)
            except (KeeperGone, ServerProblem) as gone:
                note(error_line(gone.message, gone.next or ("log",), name=args.name))
                result = watch.lost()
            finally:
                watch.close()
    return _report(result, args, printer=watch.printer)


def _read_code(argument: str) -> str:
    code = argument if argument != "-" else sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        # What a locale without UTF-8 could not read (surrogates stand for its bytes) may be UTF-8 all the same.
        return code if code.isascii() else code.encode("utf-8", "surrogateescape").decode()
    except UnicodeError as error:
        raise RequestFailed("not_text", "the code is not UTF-8 text", next=("iconv -t UTF-8",)) from error


def _refused(refused: Refused, args: argparse.Namespace) -> shapes.RunResult:
    return shapes.RunResult(status="refused", request_id=args.request_id, refusal=refusal_shape(refused))


class _Watch:
    """One `run` on a terminal: its output, its prompts, and what Ctrl-C means meanwhile."""

    def __init__(
        self,
        session: Session,
        code: str,
        interrupts: Signals,
        args: argparse.Namespace,
        *,
        may_ask: bool,
    ) -> None:
        self.printer = render.OutputPrinter()
        self._session = session
        self._code = code
        self._wait_until = None if args.wait is None else time.monotonic() + args.wait
        self._shown_seq = 0
        self._is_again = False
        self._was_duplicate = False
        self._interrupts = interrupts
        self._args = args
        self._stream = self._start()
        self._may_ask = may_ask
        self._operation: str | None = None
        self._presses = 0
        self._is_interrupt_due = False
        self._prompt_id: str | None = None
        self._is_asking = False
        self._is_echo_off = False
        self._asides: list[Stream] = []

    def _start(self) -> Stream:
        wait_seconds: float | None = None
        if self._args.no_wait:
            wait_seconds = 0.0
        elif not self._is_again:
            wait_seconds = self._args.wait
        elif self._wait_until is not None:
            wait_seconds = max(0.0, self._wait_until - time.monotonic())
        call = calls.run(
            self._code,
            request_id=self._args.request_id,
            generation=self._args.generation,
            if_busy=self._args.if_busy,
            wait_seconds=wait_seconds,
            stream=True,
        )
        return self._session.start(call)

    def close(self) -> None:
        self._stream.close()

    def until_end(self) -> shapes.RunResult:
        """Follow the operation until it ends, the wait is over, or the second Ctrl-C."""
        with self._restored_terminal():
            while True:
                try:
                    return self._until_end_or_cut()
                except KeeperGone as gone:
                    self._ask_again(gone)
                except Refused as refused:
                    # The link of a session that has ended has its journal and nothing else.
                    if refused.refusal.code != "unknown_session":
                        raise
                    if self._is_again:
                        raise ServerProblem(refused.message, next=("log",)) from refused
                    raise UnknownSession(
                        self._args.name, reason=refused.message, next=refused.next
                    ) from refused

    def _until_end_or_cut(self) -> shapes.RunResult:
        while True:
            while (item := self._stream.take()) is not None:
                self._handle(item.data)
            if self._stream.is_ended:
                result = shapes.read_as(shapes.RunResult, self._stream.outcome())
                return self._completed(result) if self._is_again else result
            if self._presses > 1:
                return self._detach()
            self._wait()

    # --- a connection that was lost

    def _ask_again(self, gone: KeeperGone) -> None:
        """Connect and ask the same once more: under its request id it is the same operation, not a second one."""
        from jupyter_cmdop.client.remote_session import RemoteSession

        if not isinstance(self._session, RemoteSession):
            raise gone
        self._stop_asking()
        self.printer.end_line()
        self._asides.clear()
        self._session.reconnect(gone, pause=self._pause)
        self._is_again = True
        self._stream = self._start()

    def _pause(self, seconds: float) -> bool:
        """Whether that time has passed; Ctrl-C ends it."""
        select.select([self._interrupts.fileno()], [], [], seconds)
        return not self._interrupts.take().get(signal.SIGINT, 0)

    def _completed(self, result: shapes.RunResult) -> shapes.RunResult:
        """Show what came between the cut and the end; of an operation that has ended nothing is streamed."""
        if result.operation is not None and not wants_json(self._args) and not self._args.no_wait:
            for item in self._session.read(after=f"0:{self._shown_seq}").items:
                if item.operation == result.operation:
                    self._show(item.output, item.seq)
        # That the cut made us ask twice is nobody's business.
        return msgspec.structs.replace(result, duplicate=self._was_duplicate)

    def lost(self) -> shapes.RunResult:
        """What can be said when the keeper went away meanwhile."""
        return shapes.RunResult(status="unknown", operation=self._operation, request_id=self._args.request_id)

    def _wait(self) -> None:
        also = [self._interrupts.fileno()]
        if self._is_asking:
            also.append(sys.stdin.fileno())
        ready = self._session.connection.pump(None, also)
        if self._interrupts.fileno() in ready:
            self._presses += self._interrupts.take().get(signal.SIGINT, 0)
            self._is_interrupt_due = self._is_interrupt_due or self._presses == 1
            self._interrupt()
        elif self._is_asking and sys.stdin.fileno() in ready:
            self._answer()
        self._settle_asides()

    def _handle(self, data: Mapping[str, Any]) -> None:
        match data:
            case {"accepted": dict(accepted)}:
                self._accept(accepted)
            case {"output": dict(output)} if not wants_json(self._args):
                self._show(output, data.get("seq"))
            case {"input_request": dict(request)}:
                self._ask(request)

    def _show(self, output: Mapping[str, Any], seq: object) -> None:
        if isinstance(seq, int):
            if self._is_again and seq <= self._shown_seq:
                return  # shown before the connection was lost
            self._shown_seq = seq
        self.printer.show(output)

    def _accept(self, accepted: Mapping[str, Any]) -> None:
        operation = accepted.get("operation")
        self._operation = operation if isinstance(operation, str) else None
        if accepted.get("duplicate") and not self._is_again:
            self._was_duplicate = True
            self.printer.say("note: this request ran before; this is what became of it")
        self._interrupt()

    # --- Ctrl-C

    def _interrupt(self) -> None:
        """Interrupt the own operation; before the keeper has named it there is nothing that could be interrupted."""
        if not self._is_interrupt_due or self._operation is None:
            return
        self._is_interrupt_due = False
        self._stop_asking()
        self._asides.append(self._session.start(calls.interrupt(self._operation)))
        self.printer.say(f"interrupting {render.one_line(self._operation)}; Ctrl-C again leaves it running")

    def _detach(self) -> shapes.RunResult:
        self._stop_asking()
        self.printer.end_line()
        if self._operation is None:
            return self.lost()
        return self._session.wait(self._operation, wait_seconds=0.0)

    def _settle_asides(self) -> None:
        for aside in [aside for aside in self._asides if aside.is_ended]:
            self._asides.remove(aside)
            try:
                aside.outcome()
            except ClientError as error:
                self.printer.say(error_line(error.message, error.next, name=self._args.name))

    # --- input()

    def _ask(self, request: Mapping[str, Any]) -> None:
        prompt = shapes.read_as(shapes.Prompt, dict(request))
        self._prompt_id = prompt.prompt_id
        if self._may_ask:
            self.printer.prompt(prompt.prompt)
            self._is_asking = True
            self._set_echo(off=prompt.password)
            return
        what = "a password" if prompt.password else repr(prompt.prompt)
        self.printer.say(
            f"waiting for {render.one_line(what)}; next: jupyter cmdop answer {render.one_line(self._args.name)}"
        )

    def _answer(self) -> None:
        line = os.read(sys.stdin.fileno(), _LINE_BYTES)
        if self._is_echo_off:
            sys.stdout.write("\n")
        self._stop_asking()
        text = line.decode("utf-8", "replace").rstrip("\n") if line else END_OF_FILE
        self._asides.append(self._session.start(calls.answer(text, prompt_id=self._prompt_id)))

    def _stop_asking(self) -> None:
        self._is_asking = False
        self._set_echo(off=False)

    def _set_echo(self, *, off: bool) -> None:
        if off == self._is_echo_off:
            return
        import termios

        attributes = termios.tcgetattr(sys.stdin)
        if off:
            attributes[3] &= ~termios.ECHO
        else:
            attributes[3] |= termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)
        self._is_echo_off = off

    @contextmanager
    def _restored_terminal(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._stop_asking()


def _report(
    result: shapes.RunResult, args: argparse.Namespace, *, printer: render.OutputPrinter | None = None
) -> int:
    """Print what has not been shown, say how it stands, and give the exit code."""
    if wants_json(args):
        print_json(result)
    else:
        _report_text(result, args, printer or render.OutputPrinter())
    if result.status == "refused" and result.refusal is not None:
        note(error_line(result.refusal.message, result.refusal.next, name=args.name))
    return exits.of_status(result.status)


def _report_text(result: shapes.RunResult, args: argparse.Namespace, printer: render.OutputPrinter) -> None:
    was_streamed = printer.shown > 0
    if not was_streamed:
        for output in result.outputs:
            printer.show(output)
    printer.end_line()
    if result.ename and not printer.has_error:
        note(render.one_line(f"{result.ename}: {result.evalue or ''}"))
    name = render.one_line(args.name)
    if result.truncated is not None and not was_streamed:
        note(
            f"note: {result.truncated.bytes} bytes of output were left out; "
            f"next: jupyter cmdop read {name} --after {render.one_line(result.truncated.read_after or '0')}"
        )
    line = _standing(result, name)
    if line:
        note(line)


def _standing(result: shapes.RunResult, name: str) -> str:
    operation = render.one_line(result.operation or "it")
    waiting = f"jupyter cmdop wait {name} {operation}"
    match result.status:
        case "ok" | "error" | "refused":
            return ""
        case "idle":
            return f"{name} is idle"
        case "interrupted" | "withdrawn" | "superseded" | "aborted":
            by = f" by {render.one_line(result.by)}" if result.by else ""
            why = f": {render.one_line(result.reason)}" if result.reason else ""
            return f"{operation} was {result.status}{by}{why}"
        case "unknown" if result.operation is None:
            return "whether it was accepted is not known; next: jupyter cmdop log " + name
        case "unknown":
            return f"what became of {operation} is not known; next: jupyter cmdop log {name} --operation {operation}"
        case "queued":
            return f"{operation} waits for its turn; next: {waiting}"
        case "awaiting_input":
            return f"{operation} waits for input; next: jupyter cmdop answer {name}"
        case other:
            return f"{operation} is {render.one_line(other.replace('_', ' '))}; next: {waiting}"


def wait(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        try:
            result = session.wait(args.operation, request_id=args.request_id, wait_seconds=args.wait)
        except Refused as refused:
            result = _refused(refused, args)
    return _report(result, args)


def interrupt(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        shape = session.interrupt(args.operation)
    lines = [f"{shape.interrupted} is being interrupted"] if shape.interrupted else []
    lines += [f"{operation} is withdrawn" for operation in shape.withdrawn]
    if shape.unresponsive:
        lines += [shape.unresponsive, f"if it does not end: jupyter cmdop restart {args.name}"]
    show(
        args, shape, "\n".join(render.one_line(line) for line in lines or ["nothing was running or waiting"])
    )
    return exits.DONE


def answer(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        prompt_id = args.prompt
        if args.text is None:
            prompt = _pending(session)
            prompt_id = prompt_id or prompt.prompt_id
            text = _ask_person(prompt)
        elif args.text == "-":
            text = sys.stdin.read().removesuffix("\n")
        else:
            text = args.text
        shape = session.answer(text, prompt_id=prompt_id)
    show(args, shape, f"{render.one_line(shape.operation or 'it')} has its answer")
    return exits.DONE


def _pending(session: Session) -> shapes.Prompt:
    prompt = session.status().pending_input
    if prompt is None:
        raise Refused(
            Refusal(code="no_prompt", message=f"{session.name} does not wait for input", next=("status",))
        )
    return prompt


def _ask_person(prompt: shapes.Prompt) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().removesuffix("\n")
    shown = render.several_lines(prompt.prompt)
    if prompt.password:
        import getpass

        return getpass.getpass(shown)
    try:
        return input(shown)
    except EOFError:
        return END_OF_FILE
