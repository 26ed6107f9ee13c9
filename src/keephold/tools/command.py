"""A child process as a tool (F1, F3, S7, C6, C8).

A spawned command is one process: its output, stderr included, is shown as it comes, and input goes to its stdin. With
`wire = true` a line of its output may report its state instead. A one-shot command may be several processes: one that
printed a question is run again with the answer.

The exit of the process decides the outcome, unless the process reported it in wire form. A process that failed or was
killed is never a success.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from keephold.content import described, file_block
from keephold.errors import ToolError
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome, PrintedOutput, error_of
from keephold.text import strip_controls
from keephold.tools.base import Invocation, KeepingSink, Sink
from keephold.tools.child import as_json, as_text, ending, remove
from keephold.tools.keeper.children import KeptProcess
from keephold.tools.keeping import Keeping
from keephold.tools.process import Exit, Process
from keephold.tools.program import Program
from keephold.tools.wire import WHOLE_LIMIT, Asks, Ends, Lines, Whole, Wire, WireState, answer_line

ROUNDS = 8
"""Number of times that a one-shot command may ask (C8)."""
OPEN_QUESTIONS = 64
"""Number of unanswered questions that a live command may have (K6)."""
MEDIA_LIMIT = 32 << 20
"""Bytes of an image or another file that a command returns."""
STOPS_ITSELF = 0.2
"""Seconds for a process to exit after it reported `stopped`, before it is ended."""

_UNTOLD = Exit(None, None)


@dataclass(kw_only=True, eq=False)
class Command(Program):
    stdin: bool = False
    wire: bool = False
    media: str | None = None
    """The MIME type of the file that it prints, such as `image/png`; None: it prints text."""

    def start(self, invocation: Invocation, sink: Sink) -> "_Call":
        """Start the call's process. Raises `ToolError` if the command cannot be rendered or started."""
        call = _Call(self, invocation, sink)
        call.run()
        return call

    async def take_back(self, invocation: Invocation, sink: KeepingSink) -> "_Call":
        """Take back the call's process (`SupportsReturn`). Raises `KeepholdError` if its keeper does not answer."""
        call = _Call(self, invocation, sink)
        await call.take_back()
        return call


class _Call:
    """One call of a command: the current process, if any, and the answers to earlier ones."""

    def __init__(self, command: Command, invocation: Invocation, sink: Sink) -> None:
        self._command = command
        self._invocation = invocation
        self._sink = sink
        self._takes_input = invocation.stateful and (command.stdin or command.wire)
        self.kept = invocation.stateful and invocation.tool.on_crash == "keep"
        self._process: Process | KeptProcess | None = None
        self._call_file: Path | None = None
        self._answers: dict[str, Any] = {}
        self._rounds = 0
        self._questions: deque[Question] = deque()
        """Questions of a live process; the first is open, the others wait for it."""
        self._told_to_end = False
        self._over = False

    # A process, from its start to its end

    def run(self) -> None:
        """Start a process with the answers given so far."""
        self._prepare()
        start = self._start_kept if self.kept else self._start
        self._process, self._call_file = self._command.launch(self._invocation, start, answers=self._answers)

    async def take_back(self) -> None:
        """Take back the process that an earlier runtime started."""
        self._prepare()
        self._call_file = self._command.kept_call_file(self._invocation)
        process = await self._keeping().take_back()
        if isinstance(process, KeptProcess):
            self._process = process
            process.begin()

    @property
    def started(self) -> bool:
        return isinstance(self._process, KeptProcess) and self._process.started

    def release(self) -> None:
        if isinstance(self._process, KeptProcess):
            self._process.release()
            self._process = None

    def _prepare(self) -> None:
        invocation = self._invocation
        self._said: Wire | None = None
        self._stopping: asyncio.TimerHandle | None = None
        self._ended_by_us = False
        self._stderr = Tail(10_240, lines=250)
        # A spawned command's output is shown at once, and may be one form all the same.
        self._whole = Whole((lambda _: None) if invocation.stateful else self._sink.output)
        self._file = bytearray()
        self._lines: Lines | None = None

    def _start(self, argv: list[str], env: dict[str, str], mark: str) -> Process:
        command, invocation = self._command, self._invocation
        text = self._printed if invocation.stateful else self._whole.feed
        if command.media is not None:
            text = self._filed
        self._lines = Lines(text, self._heard) if command.wire else None
        return Process(
            argv,
            env=env,
            cwd=command.cwd,
            stdin=self._takes_input,
            merge_stderr=invocation.stateful and not command.wire and command.media is None,
            mark=mark,
            on_output=text if self._lines is None else self._lines.feed,
            on_stderr=self._sink.output if invocation.stateful else self._stderr.add,
            on_exit=self._exited,
            grace=invocation.tool.spawn.abort_grace_ms / 1000,
        )

    def _start_kept(self, argv: list[str], env: dict[str, str], mark: str) -> KeptProcess:
        keeping = self._keeping()
        return keeping.keeper.start_process(
            self._invocation.uid,
            argv,
            env=env,
            cwd=self._command.cwd,
            stdin=self._takes_input,
            **keeping.options(),
        )

    def _keeping(self) -> Keeping:
        sink = cast(KeepingSink, self._sink)
        return Keeping(
            self._command,
            self._invocation,
            sink,
            printed=sink.followed,
            exited=self._exited_kept,
            closed=self._closed,
        )

    def _closed(self) -> None:
        """The kept process was lost."""
        self._process, self._over = None, True
        remove(self._call_file)

    def _exited_kept(self, how: Exit) -> None:
        output = cast(KeepingSink, self._sink).spooled()
        if 0 < output.total <= WHOLE_LIMIT:
            self._whole.feed(output.read(0).data)
        self._exited(how)

    def _printed(self, data: bytes) -> None:
        self._sink.output(data)
        self._whole.feed(data)

    def _filed(self, data: bytes) -> None:
        if len(self._file) <= MEDIA_LIMIT:
            self._file += data

    def _returned(self) -> Outcome:
        """Return the printed file as an image, audio or a resource (M1)."""
        if len(self._file) > MEDIA_LIMIT:
            return Failure(f"The command printed a file of more than {MEDIA_LIMIT >> 20} MiB.", "command_failed")
        assert self._command.media is not None
        block = file_block(bytes(self._file), self._command.media, self._invocation.tool.name)
        return Ok(described(block), (block,))

    def _exited(self, how: Exit) -> None:
        self._process = None
        remove(self._call_file)
        if self._lines is not None:
            self._lines.close()
        if self._stopping is not None:
            self._stopping.cancel()
        whole = self._whole.close()
        if self._invocation.stateful and not isinstance(whole, Ends):
            whole = None  # while it ran, only lines could ask or report, and only with `wire = true`
        conclusion = self._conclude(how, whole or self._said)
        if isinstance(conclusion, Question):
            self._ask_and_run_again(conclusion)
        else:
            # If it had reported its end before we ended the process, our signal is not reported.
            self._stop(conclusion, _UNTOLD if self._ended_by_us else how)

    def _conclude(self, how: Exit, form: Wire | None) -> Outcome | Question:
        """Return the outcome of an ended process, by its last report and its exit, or the question it asked."""
        one_shot = not self._invocation.stateful
        match form:
            case Ends(outcome=Failure() as error, content=content):
                self._show(content)
                return error
            case Ends(outcome=Ok() as ok) if how.code == 0 or self._ended_by_us:
                return ok
            case Ends(outcome=Ok(value=content)):
                self._show(content)
                return self._failed(how, "said that it succeeded, but ")
            case WireState(content=content) if form is not self._said:
                self._show(content)  # nothing else was printed: the result is this content
            case Asks(question=question) if one_shot and how.signal is None:
                return self._unanswered(question) if self._told_to_end else question
        if how.code != 0:
            self._sink.output(bytes(self._file))
            return self._failed(how)
        if self._command.media is not None:
            return self._returned()
        return self._unanswered(self._questions[0]) if self._questions else PrintedOutput()

    def _show(self, content: str) -> None:
        if content:
            self._sink.output(content.encode())

    def _unanswered(self, question: Question) -> Failure:
        code = "cancelled" if self._told_to_end else "tool_error"
        return Failure(f"The command ended before its question `{question.id}` was answered.", code)

    def _failed(self, how: Exit, said: str = "") -> Failure:
        """Return the end in words, and the tail of a stderr that was kept apart. The output is shown separately."""
        message, stderr = f"The command {said}{ending(how)}.", self._stderr.text()
        return Failure(f"{message}\n{stderr}" if stderr else message, "command_failed")

    def _stop(self, outcome: Outcome, how: Exit = _UNTOLD) -> None:
        self._over = True
        self._sink.stop(outcome, exit_code=how.code, signal=how.signal)
        self._sink.released()

    # Reports in wire form

    def _heard(self, form: Wire) -> None:
        if isinstance(self._said, Ends):
            return
        self._said = form
        match form:
            case WireState(content=content):
                self._show(content)
            case Asks(question=question, content=content) if self._invocation.stateful:
                self._show(content)
                self._ask(question)
            case Ends():
                self._stopping = asyncio.get_running_loop().call_later(STOPS_ITSELF, self._end_process)

    def _end_process(self) -> None:
        if self._process is not None:
            self._ended_by_us = True
            self._process.end(self._invocation.tool.spawn.abort_grace_ms / 1000)

    def _fail(self, error: Failure) -> None:
        """End the process of a call that has failed; this is the outcome."""
        self._said = Ends(error)
        self._end_process()

    def _ask(self, question: Question) -> None:
        if any(question.id == asked.id for asked in self._questions):
            return
        if len(self._questions) == OPEN_QUESTIONS:
            self._fail(Failure(f"The command asked more than {OPEN_QUESTIONS} questions at once.", "limit_exceeded"))
            return
        self._questions.append(question)
        if len(self._questions) == 1:
            self._sink.ask(question, self._answered)

    def _answered(self, outcome: Outcome) -> None:
        if self._process is None or isinstance(self._said, Ends):
            return
        if not isinstance(outcome, Ok):
            self._fail(outcome if isinstance(outcome, Failure) else self._unanswered(self._questions[0]))
            return
        try:
            self._process.write(answer_line(self._questions.popleft(), outcome.value))
        except ToolError as error:
            self._fail(error_of(error))
            return
        if self._questions:
            self._sink.ask(self._questions[0], self._answered)

    def _ask_and_run_again(self, question: Question) -> None:
        self._rounds += 1
        if self._rounds > ROUNDS:
            message = (
                f"The command asked more than {ROUNDS} times, the last time `{question.id}`. It gets the answers so "
                "far as `tool.answers` in KEEPHOLD_CALL and must use them."
            )
            self._stop(Failure(message, "wire_rounds"))
        else:
            self._sink.ask(question, partial(self._run_again, question))

    def _run_again(self, question: Question, outcome: Outcome) -> None:
        if self._over:
            return
        if not isinstance(outcome, Ok):
            self._stop(outcome)
            return
        self._answers[question.id] = outcome.value
        try:
            self.run()
        except ToolError as error:
            self._stop(error_of(error))

    # Requests (Live, SupportsProbe)

    def write(self, data: Any) -> None:
        self.write_recorded(data, b"")

    def write_recorded(self, data: Any, cause: bytes) -> None:
        name = self._invocation.tool.name
        if not self._takes_input:
            raise ToolError(
                f"`{name}` takes no input; `stdin = true` in [conversation.tools.{name}.spawn] would give it one",
                code="not_running",
            )
        if self._process is None:
            raise ToolError(f"the command of `{name}` has ended and takes no more input", code="not_running")
        if data is None:
            self._process.close_stdin()
        else:
            self._process.write(_as_input(data, self._command.input), cause)

    def end(self, grace: float) -> None:
        self._told_to_end = True
        if self._process is not None:
            self._process.end(grace)
        elif not self._over:
            self._stop(Failure("The command was ended while its question was open.", "cancelled"))

    def probe(self) -> bool | None:
        reading = False if self._process is None else self._process.probe()
        # A process that has reported its end, perhaps in output that the probe just delivered, waits for nothing.
        return False if isinstance(self._said, Ends) else reading


class Tail:
    """The last bytes and lines of a stream, cut at the start of a line or at least of a character."""

    def __init__(self, limit: int, *, lines: int) -> None:
        self._limit = limit
        self._lines = lines
        self._data = b""
        self._cut = False

    def add(self, data: bytes) -> None:
        self._cut = self._cut or len(self._data) + len(data) > self._limit
        self._data = (self._data + data[-self._limit :])[-self._limit :]

    def text(self) -> str:
        data, cut = self._data, self._cut
        if cut:
            after = data.find(b"\n") + 1
            data = data[after:] if 0 < after < len(data) else data.lstrip(bytes(range(0x80, 0xC0)))
        lines = strip_controls(data.decode(errors="replace")).rstrip().split("\n")
        if cut or len(lines) > self._lines:
            lines = ["…", *lines[-self._lines :]]
        return "\n".join(lines)


def _as_input(data: Any, mode: Literal["line", "raw"]) -> bytes:
    """Encode the input of an `apply` (C6)."""
    if not isinstance(data, str):
        return as_json(data) + b"\n"
    return as_text(data + "\n" if mode == "line" and not data.endswith("\n") else data)
