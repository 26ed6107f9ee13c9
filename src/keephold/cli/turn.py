"""`keephold turn`: run one turn over stdin and stdout, one JSON batch a line (L2)."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from keephold.cli.parameters import NAME, config_option, detached_option, no_config, the_config
from keephold.cli.process import Signals, in_thread, open_stdin, own_children
from keephold.cli.prompter import TerminalPrompter, open_prompter
from keephold.cli.store import store_of, store_option
from keephold.runtime import Runtime
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

PARK_AFTER_SECS = 30.0
"""How long a batch waits for a parked one-shot call (D10)."""
CONNECT_SECS = 10.0
"""How long to wait for the tools of MCP servers before the first batch; they may come later."""
_EXAMPLE = '{"calls":[{"id":"1","name":"a_tool","arguments":{}}]}'


class _Call(msgspec.Struct):
    id: str
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """Decoded call by call, so that a mistake in one does not affect the others (B1)."""


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    calls: list[_Call]


@click.command()
@config_option
@store_option
@click.option("--conversation", type=NAME, help="Run the turn in this conversation. Default: a new one.")
@click.option("--resume", is_flag=True, help="Resume the conversation's turn that its process did not end.")
@detached_option
def turn(config: Path | None, store: str | None, conversation: str | None, resume: bool, detached: bool) -> None:
    """Run one turn: read a batch of tool calls a line, answer each with a line.

    \b
    In:   {"calls":[{"id":"1","name":"check","arguments":{"action":"spawn","id":"c"}},
                    {"id":"2","name":"await","arguments":{"all":["c"]}}]}
    Out:  {"responses":[{"id":"1","result":"…"},{"id":"2","result":"…"}],"notifications":[]}

    The end of the input ends the turn: running handles are aborted, awaited or kept as their tools say.

    Permissions and questions are asked on the terminal that started the command, unless the batches are typed there.
    """
    if resume and conversation is None:
        raise click.UsageError("--resume needs --conversation, to say which turn to resume")
    loaded = the_config(config)
    if loaded.source is None:
        click.echo(no_config(), err=True)
    # Typed batches and answers to prompts would come from one terminal, each to the other's reader.
    prompter = None if detached or sys.stdin.isatty() else open_prompter()
    own_children()
    runtime = Runtime(store=store or store_of(loaded), config=loaded, prompter=prompter)
    if sys.stdin.isatty():
        click.echo(f"One batch a line, for example {_EXAMPLE}; Ctrl-D ends the turn.", err=True)
    try:
        sys.exit(asyncio.run(_run(runtime, conversation, open_stdin(), prompter, resume=resume)))
    finally:
        if prompter is not None:
            prompter.close()


async def _run(
    runtime: Runtime, conversation: str | None, source: BinaryIO, prompter: TerminalPrompter | None, *, resume: bool
) -> int:
    lines = _Lines(source, runtime.limits.line_bytes)
    signals = Signals() if prompter is None else Signals(prompter.close)  # restores the terminal
    async with runtime:
        await runtime.connected(CONNECT_SECS)
        turn = runtime.turn(conversation, resume=resume)

        def stop() -> None:  # an open batch is answered, handles are aborted and reported (B7, T5)
            turn.cancel()
            lines.end()

        signals.listen(stop)
        async with turn:
            async for answer in _answers(turn, lines):
                _print(answer)
                if turn.failed is not None:
                    _print({"turn": "failed", "error": turn.failed.message})
                    lines.end()
        assert turn.ending is not None
        _print({"turn": "ended", "handles": turn.ending.model})
    return signals.code or int(turn.failed is not None)


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
        line.decode()  # the whole line: arguments are decoded later
        batch = msgspec.json.decode(line, type=_Batch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return {"error": f"not a batch: {error}; a batch looks like {_EXAMPLE}"}
    calls = [ToolCall(call.id, call.name, _arguments(call.arguments)) for call in batch.calls]
    return _answered(await turn.run(calls, park_after=PARK_AFTER_SECS))


def _answered(responses: Sequence[Response]) -> dict[str, Any]:
    return {
        "responses": [{"id": each.id, "error" if each.is_error else "result": each.model} for each in responses],
        "notifications": [each for response in responses for each in response.notifications],
    }


def _arguments(raw: msgspec.Raw) -> str:
    """Return the JSON text of the arguments, which a model may have sent as a string."""
    text = bytes(raw).decode()
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def _print(line: dict[str, Any]) -> None:
    click.echo(msgspec.json.encode(line))


class _Lines:
    """Yields the lines of the input, None for one that is too long."""

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._next: asyncio.Future[bytes | None] | None = None
        self._ended = False

    def end(self) -> None:
        """End the iteration, whether or not the input ends."""
        self._ended = True
        if self._next is not None and not self._next.done():
            self._next.set_result(b"")

    async def __aiter__(self) -> AsyncIterator[bytes | None]:
        while not self._ended:
            self._next = in_thread(self._read)
            line = await self._next
            if line == b"":
                return
            yield line

    def _read(self) -> bytes | None:
        line = self._source.readline(self._limit + 1)
        if len(line) <= self._limit or line.endswith(b"\n"):
            return line
        while (rest := self._source.readline(self._limit)) and not rest.endswith(b"\n"):
            pass
        return None
