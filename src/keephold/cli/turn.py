"""`keephold turn`: one turn over standard input and output, one JSON batch a line (L2)."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from keephold.cli.parameters import NAME, config_option, the_config
from keephold.cli.prompter import TerminalPrompter, open_prompter
from keephold.cli.store import store_of, store_option
from keephold.config import load_config
from keephold.runtime import Runtime
from keephold.turn.ending import Ending
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

PARK_AFTER_SECS = 30.0
"""How long a batch waits for a one-shot call that waits for its completion from outside (D10)."""
CONNECT_SECS = 10.0
"""How long to wait for the tools of MCP servers before the first batch; they may come later."""
_EXAMPLE = '{"calls":[{"id":"1","name":"a_tool","arguments":{}}]}'


class _Call(msgspec.Struct):
    id: str
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """Read call by call, so that what is wrong with one leaves its siblings alone (B1)."""


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    calls: list[_Call]


@click.command()
@config_option
@store_option
@click.option("--conversation", type=NAME, help="The conversation to run the turn in. Default: a new one.")
@click.option("--resume", is_flag=True, help="Go on with the conversation's turn that its process did not end.")
@click.option("--detached", is_flag=True, help="Ask nobody, also if a terminal is there; `detached` decides instead.")
def turn(config: Path | None, store: str | None, conversation: str | None, resume: bool, detached: bool) -> None:
    """Run one turn: read a batch of tool calls a line, answer each with a line.

    \b
    In:   {"calls":[{"id":"1","name":"check","arguments":{"action":"spawn","id":"c"}},
                    {"id":"2","name":"await","arguments":{"all":["c"]}}]}
    Out:  {"responses":[{"id":"1","result":"…"},{"id":"2","result":"…"}],"notifications":[]}

    The end of the input ends the turn: handles that still run are ended, awaited or kept as their tools say.

    What a person has to permit or to answer is asked on the terminal the command was started from, unless the batches
    are typed there.
    """
    if resume and conversation is None:
        raise click.UsageError("--resume needs --conversation: which one is to go on?")
    loaded = load_config(the_config(config))
    # Batches that are typed and answers to prompts would be read from one terminal, each by the other's reader.
    prompter = None if detached or sys.stdin.isatty() else open_prompter()
    runtime = Runtime(store=store or store_of(loaded), config=loaded, prompter=prompter)
    if sys.stdin.isatty():
        click.echo(f"One batch a line, for example {_EXAMPLE}; Ctrl-D ends the turn.", err=True)
    # Not sys.stdin.buffer: the interpreter, when it ends, would want the lock that the reading thread still holds.
    source = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
    try:
        sys.exit(asyncio.run(_run(runtime, conversation, source, prompter, resume=resume)))
    finally:
        if prompter is not None:
            prompter.close()


async def _run(
    runtime: Runtime, conversation: str | None, source: BinaryIO, prompter: TerminalPrompter | None, *, resume: bool
) -> int:
    loop = asyncio.get_running_loop()
    lines = _Lines(source, runtime.limits.line_bytes)
    stopped: list[int] = []
    async with runtime:
        await runtime.connected(CONNECT_SECS)
        turn = runtime.turn(conversation, resume=resume)

        def stop(number: int) -> None:
            stopped.append(number)
            if len(stopped) == 1:  # an open batch is answered, handles are ended and told of (B7, T5)
                turn.cancel()
                lines.end()
            else:  # nobody is waited for: the guard ends what is left
                if prompter is not None:
                    prompter.close()  # the terminal is left as it was found
                os._exit(128 + number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        async with turn:
            async for answer in _answers(turn, lines):
                _print(answer)
                if turn.failed is not None:
                    _print({"turn": "failed", "error": turn.failed.message})
                    lines.end()
        assert turn.ending is not None
        _print(_ended(turn.ending))
    if stopped:
        return 128 + stopped[0]
    return 0 if turn.failed is None else 1


async def _answers(turn: Turn, lines: "_Lines") -> AsyncIterator[dict[str, Any]]:
    if turn.unfinished is not None:
        yield _answered(await turn.resume(park_after=PARK_AFTER_SECS))
    async for line in lines:
        yield await _answer(turn, line)


async def _answer(turn: Turn, line: bytes | None) -> dict[str, Any]:
    if line is None:
        return {"error": "the line is longer than [limits] line_bytes allows; it was skipped"}
    if not line.strip():
        return {"error": f"not a batch: the line is empty; a batch looks like {_EXAMPLE}"}
    try:
        line.decode()  # all of it: arguments are looked at later
        batch = msgspec.json.decode(line, type=_Batch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return {"error": f"not a batch: {error}; a batch looks like {_EXAMPLE}"}
    calls = [ToolCall(call.id, call.name, _arguments(call.arguments)) for call in batch.calls]
    return _answered(await turn.run(calls, park_after=PARK_AFTER_SECS))


def _answered(responses: Sequence[Response]) -> dict[str, Any]:
    return {
        "responses": [_shown(response) for response in responses],
        "notifications": [each for response in responses for each in response.notifications],
    }


def _arguments(raw: msgspec.Raw) -> str:
    """The JSON text of the arguments; those that a model sent as text are that text."""
    text = bytes(raw).decode()
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def _shown(response: Response) -> dict[str, str]:
    return {"id": response.id, "error" if response.is_error else "result": response.model}


def _ended(ending: Ending) -> dict[str, Any]:
    return {"turn": "ended", "handles": ending.model}


def _print(line: dict[str, Any]) -> None:
    click.echo(msgspec.json.encode(line))


class _Lines:
    """Lines of the input, None for one that is too long. A thread reads, so that tools go on between batches."""

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[bytes | None, bool]] = asyncio.Queue()
        self._wanted = threading.Semaphore(0)

    def end(self) -> None:
        """Let the lines end here, whether or not the input does."""
        self._queue.put_nowait((None, True))

    async def __aiter__(self) -> AsyncIterator[bytes | None]:
        threading.Thread(target=self._read, daemon=True, name="stdin").start()
        while True:
            self._wanted.release()
            line, end = await self._queue.get()
            if end:
                return
            yield line

    def _read(self) -> None:
        while self._wanted.acquire():
            line: bytes | None = self._source.readline(self._limit + 1)
            end = not line
            if line and len(line) > self._limit and not line.endswith(b"\n"):
                while rest := self._source.readline(self._limit):
                    if rest.endswith(b"\n"):
                        break
                line = None
            try:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (line, end))
            except RuntimeError:  # the turn was stopped while this thread waited for input
                return
            if end:
                return
