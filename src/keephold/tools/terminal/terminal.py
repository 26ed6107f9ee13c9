"""A program in a terminal as a tool (C4, C6, C7).

`apply` types text and presses named keys of a spawned one. The machine tells whether the program waits for a line. If
it reads without echo, it asks for a password: that becomes a question to the user. The answer is typed if the program
still waits for it, and is masked wherever the program prints it (K5). A program that wants to show it can: letter by
letter with pauses, or with colours in between.

Nobody types in a one-shot call. Whenever its program waits for a line, it gets the end of input, as from an empty file;
that is checked when its output has been quiet for 100 ms, and then again after pauses that grow to a second. A program
that takes single keys is not detected, and runs into its timeout.
"""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from keephold.errors import ToolError
from keephold.handles.output import Output
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome, PrintedOutput, error_of
from keephold.platforms import Look, machine
from keephold.tools.base import Invocation, KeepingSink, Screen, Sink
from keephold.tools.child import as_json, as_text, ending, remove
from keephold.tools.keeper.children import KeptPty
from keephold.tools.keeping import REPLY, Keeping
from keephold.tools.program import MAX_COLS, MAX_ROWS, Program
from keephold.tools.session import Exit
from keephold.tools.terminal.emulator import Emulator, SupportsCells, open_emulator
from keephold.tools.terminal.emulator_worker import WorkerEmulator
from keephold.tools.terminal.keys import as_bytes
from keephold.tools.terminal.pty import Pty
from keephold.tools.terminal.stream import Recent, Size, Veil, first_size, start_of, steps

LONGEST_SECRET = 256
"""Bytes of a line that is treated as a password when the user who drives types it without echo."""
QUIET, LONGEST_PAUSE = 0.1, 1.0
"""Seconds after which a quiet one-shot program is checked, and between two such checks at most."""

_REPLY = re.compile(rb"\x1b?[^\x1b]+|\x1b", re.DOTALL)
"""One of several replies. How an emulator gathers them depends on the pieces that it was fed."""
_PIECE = 16 * 1024
_RESTORED = 1 << 20
"""Bytes of output from which a screen is restored."""
_LOOKS = 5  # at a prompt whose reader may only have been interrupted


@dataclass(kw_only=True, eq=False)
class Terminal(Program):
    input: Literal["line", "raw"] = "raw"
    rows: int = 24
    cols: int = 80
    term: str = "xterm-256color"

    def start(self, invocation: Invocation, sink: Sink) -> "_Call":
        """Start the call's program. Raises `ToolError` if the command cannot be rendered or started."""
        call = _Call(self, invocation, sink)
        call.run()
        return call

    async def take_back(self, invocation: Invocation, sink: KeepingSink) -> "_Call":
        """Take back the call's program (`SupportsReturn`). Raises `KeepholdError` if its keeper does not answer."""
        call = _Call(self, invocation, sink)
        await call.take_back()
        return call


class _Call:
    """One call: a program in a terminal, and the questions to the user on its behalf."""

    def __init__(self, terminal: Terminal, invocation: Invocation, sink: Sink) -> None:
        self._terminal = terminal
        self._invocation = invocation
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._rows, self._cols = terminal.rows, terminal.cols
        self._recent = Recent()
        self._veil = Veil(self._show)
        self._asked: Look | None = None
        """The password prompt that the user is asked about."""
        self._driven = False
        self._unseen = b""
        """The line that the user who drives is typing, if it is not echoed."""
        self._ends = False
        """Its end was requested."""
        self._failed: Failure | None = None
        """The reason why we ended it."""
        self._heard = False
        """It has printed something since the last check (one-shot)."""
        self._quiet: asyncio.TimerHandle | None = None
        self._last: Screen | None = None
        """Its screen when it ended."""
        self.kept = invocation.stateful and invocation.tool.on_crash == "keep"
        self._fed = 0
        """Up to where the emulator has got a kept program's output."""
        self._replies, self._replied = REPLY, 0
        """How a reply of the emulator is called, and the bytes of its replies so far."""
        self._mute = False
        """Its replies were sent before, by an earlier runtime."""
        self._pty: Pty | KeptPty | None = None
        self._call_file: Path | None = None
        self._emulator: Emulator

    def run(self) -> None:
        terminal = self._terminal
        start = self._start_kept if self.kept else self._start
        self._pty, self._call_file = terminal.launch(self._invocation, start, env={"TERM": terminal.term})
        self._open_emulator()  # while the program starts
        self._sink.resized(terminal.rows, terminal.cols)
        if not self._invocation.stateful:
            self._quiet = self._loop.call_later(QUIET, self._look_once, QUIET)

    def _open_emulator(self) -> None:
        self._emulator = open_emulator(self._rows, self._cols, self._reply, kept=self._kept, lost=self._lost)

    def _start(self, argv: list[str], env: dict[str, str], mark: str) -> Pty:
        return Pty(
            argv,
            env=_without_size(env),
            cwd=self._terminal.cwd,
            rows=self._rows,
            cols=self._cols,
            mark=mark,
            on_output=self._printed,
            on_exit=self._exited,
            grace=self._grace,
        )

    # A program that is kept (R7)

    def _start_kept(self, argv: list[str], env: dict[str, str], mark: str) -> KeptPty:
        keeping = self._keeping()
        return keeping.keeper.start_pty(
            self._invocation.uid,
            argv,
            env=_without_size(env),
            cwd=self._terminal.cwd,
            rows=self._rows,
            cols=self._cols,
            **keeping.options(),
        )

    def _keeping(self) -> Keeping:
        sink = cast(KeepingSink, self._sink)
        return Keeping(
            self._terminal, self._invocation, sink, printed=self._grown, exited=self._exited, closed=self._closed
        )

    async def take_back(self) -> None:
        """Take back the program that an earlier runtime started, with its screen."""
        output = cast(KeepingSink, self._sink).spooled()
        self._call_file = self._terminal.kept_call_file(self._invocation)
        self._open_emulator()
        self._fed, self._mute = output.total, True  # if it has ended, nobody looks at its screen
        pty = await self._keeping().take_back()
        if not isinstance(pty, KeptPty):
            return
        start = start_of(output)
        self._recent, self._fed = Recent(start), start
        self._resize_emulator(first_size(output, start))
        if start:  # its replies before that are not known, so their count is not
            self._replies = REPLY + b"%d:" % self._invocation.fence
        # Replies to the last that was read may not have been sent. If they were, their keeper ignores them.
        await self._restore(output, max(start, pty.answered - (0 if start else _PIECE)))
        self._emulator.screen()  # so that it has replied to all of that
        self._mute, self._pty = False, pty
        await self._restore(output, pty.total)
        pty.begin()
        self._feed()

    def _resize_emulator(self, size: Size) -> None:
        self._rows, self._cols = size
        self._emulator.resize(*size)

    async def _restore(self, output: Output, stop: int) -> None:
        for step in steps(output, self._fed, stop):
            if isinstance(step, Size):
                self._resize_emulator(step)
            else:
                self._emulator.feed(step)
                self._recent.add(step)
            if isinstance(self._emulator, WorkerEmulator) and self._emulator.behind:
                caught_up = asyncio.Event()
                self._emulator.when_caught_up(caught_up.set)
                await caught_up.wait()
        self._fed = stop

    @property
    def started(self) -> bool:
        return isinstance(self._pty, KeptPty) and self._pty.started

    def release(self) -> None:
        if isinstance(self._pty, KeptPty):
            self._pty.release()
            self._call_file = None  # the program may read it later
            self._closed()

    def _grown(self, total: int) -> None:
        """A kept program has printed so much."""
        cast(KeepingSink, self._sink).followed(total)
        self._feed()
        self._check_prompt()

    def _feed(self, *, whole: bool = False) -> None:
        """Show the emulator the output of a kept program, unless it is behind; `whole`: all of it."""
        if not self.kept:
            return
        output = cast(KeepingSink, self._sink).spooled()
        while self.kept and self._fed < output.total:
            emulator, pty = self._emulator, self._pty
            if not whole and isinstance(emulator, WorkerEmulator) and emulator.behind:
                if pty is not None:
                    pty.pause()
                    emulator.when_caught_up(self._feed_more)
                return
            piece = output.read(self._fed, min(output.total, self._fed + _PIECE))
            self._fed = piece.end
            emulator.feed(piece.data)
            self._recent.add(piece.data)

    def _feed_more(self) -> None:
        if self._pty is not None:
            self._feed()
            self._pty.resume()

    @property
    def _grace(self) -> float:
        return self._invocation.tool.spawn.abort_grace_ms / 1000

    # Output

    def _printed(self, data: bytes) -> None:
        self._heard = True
        self._veil.feed(data)
        self._check_prompt()

    def _check_prompt(self) -> None:
        if self._asked is not None and self._still_reads(self._asked) is False:
            self._withdraw()

    def _show(self, data: bytes) -> None:
        if data:
            self._emulator.feed(data)
            if self._pty is not None and isinstance(self._emulator, WorkerEmulator) and self._emulator.behind:
                self._pty.pause()
                self._emulator.when_caught_up(self._pty.resume)
            self._recent.add(data)
            self._sink.output(data)

    def _reply(self, data: bytes) -> None:
        """Send a terminal's reply to a program's request, if the program reads it. While the user drives, their
        terminal replies.
        """
        for reply in _REPLY.findall(data):
            cause = self._replies + b"%d" % self._replied
            self._replied += len(reply)
            if self._pty is not None and not self._driven and not self._mute:
                with contextlib.suppress(ToolError):
                    self._pty.write(reply, cause)

    def _kept(self) -> bytes:
        """Return the last output, from which the screen can be restored."""
        last_output = getattr(self._sink, "last_output", None)  # of `Run`
        found: bytes = self._recent.all() if last_output is None else last_output(_RESTORED)
        return found

    def _lost(self) -> None:
        if self._pty is not None:
            message = "The program's output crashed the terminal emulator; the program was ended."
            self._fail(Failure(message, "emulator_crashed"))

    # Its end

    def _exited(self, how: Exit) -> None:
        self._closed()
        if self._failed is not None:
            self._sink.stop(self._failed)  # our signal is not reported
        else:
            failed = Failure(f"The command {ending(how)}.", "command_failed")
            self._sink.stop(PrintedOutput() if how.code == 0 else failed, exit_code=how.code, signal=how.signal)
        self._sink.released()

    def _closed(self) -> None:
        """Free everything; the last screen stays."""
        self._pty = None
        remove(self._call_file)
        self._veil.reveal()
        self._feed(whole=True)
        if self._quiet is not None:
            self._quiet.cancel()
        self._last = self._emulator.screen()
        self._emulator.close()

    def end(self, grace: float) -> None:
        self._ends = True
        self._sink.reading(False)  # an `await` must not return because it waits for input
        if self._pty is not None:
            self._pty.end(grace)

    # Input

    def write(self, data: Any) -> None:
        self.apply({"input": data})

    def apply(self, arguments: Mapping[str, Any], cause: bytes = b"") -> None:
        """Perform an `apply`: resize first, then type `input`, then press `keys`."""
        pty = self._running()
        keys, size = arguments.get("keys"), arguments.get("size")
        if "input" not in arguments and keys is None and size is None:
            message = "apply needs `input`, `keys` or `size`: text to type, keys to press, or another size"
            raise ToolError(message, code="invalid_arguments")
        rows, cols = (self._rows, self._cols) if size is None else _size_of(size)
        pressed = b"" if keys is None else as_bytes(keys, application=self._emulator.application_keys)
        text = self._as_typed(arguments["input"], pty) if "input" in arguments else b""
        pty.press()  # those of the apply before
        if self._asked is not None and pty.interrupts(text + pressed):
            self._withdraw()
        pty.check_room(text + pressed)
        if (rows, cols) != (self._rows, self._cols) and (text or pressed):
            self.resize(rows, cols)  # a program may drop unread input when it is resized
            pty.write(b"", cause, text + pressed)
            return
        self.resize(rows, cols)
        if text and pressed and not pty.canonical:
            pty.write(text, cause, pressed)
        elif text or pressed:
            pty.write(text + pressed, cause)

    def _as_typed(self, data: Any, pty: Pty | KeptPty) -> bytes:
        """Return the bytes for `input` (C6): Enter is a carriage return, the end of input a character."""
        if data is None:
            return pty.eof
        if not isinstance(data, str):
            return as_json(data) + b"\r"
        if self._terminal.input == "line":
            data = data.replace("\r\n", "\r").replace("\n", "\r")
            data = data if data.endswith("\r") else data + "\r"
        return as_text(data)

    @property
    def typing(self) -> bool:
        """Whether keys of the last `apply` are still to be pressed."""
        return self._pty is not None and self._pty.typing

    def _running(self) -> Pty | KeptPty:
        if self._pty is None or self._ends:
            name, what = self._invocation.tool.name, "has ended" if self._pty is None else "is being ended"
            raise ToolError(f"the program of `{name}` {what} and takes no more input", code="not_running")
        return self._pty

    # Whether it waits for input

    def probe(self) -> bool | None:
        if self._pty is None or self._driven or self._ends or self.typing:
            return False
        look = self._pty.probe()
        if look.reader is not None:
            self._veil.reveal()  # it waits, so no output is on its way
        self._check_prompt()
        match look.state:
            case "password":
                self._ask(look)
            case "reading":
                return True
            case "raw" | "unknown":
                return None
        return False

    def _look_once(self, pause: float) -> None:
        """One-shot: nobody will type, so the program gets the end of input."""
        if self._heard:
            pause = QUIET
        elif self._wants_input() and self._pty is not None:
            self._pty.send_eof()
            pause = QUIET
        else:
            pause = min(2 * pause, LONGEST_PAUSE)
        self._heard = False
        self._quiet = self._loop.call_later(pause, self._look_once, pause)

    def _wants_input(self) -> bool:
        """Whether it reads, or may do so where nobody can tell: an end of input that it does not read harms nothing."""
        reading = self.probe()
        unknown = reading is None and not machine.probes and self._pty is not None and self._pty.canonical
        return bool(reading or unknown)

    def _ask(self, prompt: Look) -> None:
        if self._asked is None:
            self._asked = prompt
            text = self._recent.last_line() or "Password:"
            question = Question(id="password", text=text, answer_type="Text", secret=True)
            self._sink.ask(question, partial(self._answered, prompt))

    def _still_reads(self, prompt: Look) -> bool | None:
        """Whether the prompt is still there; None while its reader runs, so that it is unknown."""
        for _ in range(_LOOKS):
            if self._pty is None or self._pty.look() == prompt:
                return self._pty is not None
            if not machine.may_come_back(prompt.reader or ""):
                return self._pty.look() == prompt
        return None

    def _withdraw(self) -> None:
        """The prompt ended by itself: somebody typed, or the program continued."""
        self._asked = None
        self._sink.withdraw()

    def _answered(self, prompt: Look, outcome: Outcome) -> None:
        if self._asked is not prompt or self._pty is None:
            return
        self._asked = None
        if not isinstance(outcome, Ok):
            self._fail(outcome if isinstance(outcome, Failure) else Failure("The password was not given."))
        elif self._still_reads(prompt):  # otherwise it would be shown, or be read as something else
            secret = str(outcome.value)
            self._hide(secret)
            try:
                self._pty.write(as_text(secret) + b"\r")
            except ToolError as error:
                self._fail(error_of(error))

    def _hide(self, secret: str) -> None:
        """Mask this in the output from now on; the keeper of a program does it where it writes the output."""
        (self._pty if isinstance(self._pty, KeptPty) else self._veil).hide(secret)

    def _fail(self, error: Failure) -> None:
        """End the program of a call that has failed; this is the outcome."""
        self._failed = error
        self.end(self._grace)

    # The screen, and the user who drives it

    def screen(self) -> Screen:
        self._feed(whole=True)
        return self._emulator.screen() if self._last is None else self._last

    def painted(self) -> bytes:
        """Return the bytes that paint its screen (`SupportsCells`); nothing without colours, or after its end."""
        self._feed(whole=True)
        emulator = self._emulator
        return emulator.painted() if self._last is None and isinstance(emulator, SupportsCells) else b""

    def scrollback(self, count: int) -> tuple[str, ...]:
        self._feed(whole=True)
        return self._emulator.scrollback(count) if self._last is None else ()

    def draws(self, since: int) -> bool:
        alternate = self._emulator.alternate if self._last is None else self._last.alternate
        return alternate or self._recent.positions(since)

    def resize(self, rows: int, cols: int) -> None:
        if self._pty is not None and (rows, cols) != (self._rows, self._cols):
            self._resize_emulator(Size(rows, cols))
            self._pty.resize(rows, cols)
            self._sink.resized(rows, cols)

    def type(self, data: bytes) -> None:
        pty = self._running()
        pty.press()
        self._hide_typed(pty, data)
        pty.write(data)

    def _hide_typed(self, pty: Pty | KeptPty, data: bytes) -> None:
        """Treat a line that the user types without echo as a password."""
        if pty.canonical and not pty.echo:
            *lines, self._unseen = (self._unseen + data).replace(b"\n", b"\r").split(b"\r")
            if len(lines) == 1 and len(lines[0]) <= LONGEST_SECRET:  # more is a paste
                self._hide(lines[0].decode(errors="replace"))
            self._unseen = self._unseen[: LONGEST_SECRET + 1]
        else:
            self._unseen = b""

    @property
    def unseen(self) -> bool:
        return self._pty is not None and not self._pty.echo

    def interrupts(self, data: bytes) -> bool:
        return self._pty is not None and self._pty.interrupts(data)

    def driven(self, by_person: bool) -> None:
        self._driven = by_person
        if by_person and self._asked is not None:
            self._withdraw()


def _without_size(env: dict[str, str]) -> dict[str, str]:
    """A program would believe these variables, and not learn of another size."""
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}


def _size_of(size: Any) -> tuple[int, int]:
    """Return the rows and columns of a `size`, checked."""
    match size:
        case {"rows": int(rows), "cols": int(cols)} if 1 <= rows <= MAX_ROWS and 1 <= cols <= MAX_COLS:
            return rows, cols
    message = f'`size` is {{"rows": R, "cols": C}} with 1 to {MAX_ROWS} rows and 1 to {MAX_COLS} columns'
    raise ToolError(message, code="invalid_arguments")
