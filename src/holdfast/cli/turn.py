"""`holdfast turn`: one turn over standard input and output, one JSON batch a line (L2)."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.config import find_config
from holdfast.runtime import Runtime
from holdfast.turn.ending import Ending
from holdfast.turn.slot import ToolCall
from holdfast.turn.turn import Response, Turn

_EXAMPLE = '{"calls":[{"id":"1","name":"a_tool","arguments":{}}]}'


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    calls: list[ToolCall]


@click.command()
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The holdfast.toml to use."
)
@click.option("--store", envvar="HOLDFAST_STORE", help="Where handles are kept.  [default: memory:]")
@click.option("--conversation", help="The conversation to run the turn in. Default: a new one.")
def turn(config: Path | None, store: str | None, conversation: str | None) -> None:
    """Run one turn: read a batch of tool calls a line, answer each with a line.

    \b
    In:   {"calls":[{"id":"1","name":"check","arguments":{"action":"spawn","id":"c"}},
                    {"id":"2","name":"await","arguments":{"all":["c"]}}]}
    Out:  {"responses":[{"id":"1","result":"…"},{"id":"2","result":"…"}],"notifications":[]}

    The end of the input ends the turn: handles that still run are ended, awaited or kept as their tools say.
    """
    runtime = Runtime(store=store, config=config or find_config(Path.cwd()))
    if sys.stdin.isatty():
        click.echo(f"One batch a line, for example {_EXAMPLE}; Ctrl-D ends the turn.", err=True)
    sys.exit(asyncio.run(_run(runtime, conversation, sys.stdin.buffer)))


async def _run(runtime: Runtime, conversation: str | None, source: BinaryIO) -> int:
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        main.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    async with runtime:
        turn = runtime.turn(conversation)
        try:
            async with turn:
                async for line in _lines(source, runtime.limits.line_bytes):
                    _print(await _answer(turn, line))
        except asyncio.CancelledError:
            if not stopped:
                raise
        assert turn.ending is not None
        _print(_ended(turn.ending))
    return 128 + stopped[0] if stopped else 0


async def _answer(turn: Turn, line: bytes | None) -> dict[str, Any]:
    if line is None:
        return {"error": "the line is longer than [limits] line_bytes allows; it was skipped"}
    try:
        batch = msgspec.json.decode(line, type=_Batch)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return {"error": f"not a batch: {error}; a batch looks like {_EXAMPLE}"}
    responses = await turn.run(batch.calls)
    return {
        "responses": [_shown(response) for response in responses],
        "notifications": [each for response in responses for each in response.notifications],
    }


def _shown(response: Response) -> dict[str, str]:
    return {"id": response.id, "error" if response.is_error else "result": response.model}


def _ended(ending: Ending) -> dict[str, Any]:
    return {"turn": "ended", "handles": [*ending.results, *ending.kept]}


def _print(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


async def _lines(source: BinaryIO, limit: int) -> AsyncIterator[bytes | None]:
    """Lines of the input, None for one that is too long. A thread reads, so that tools go on between batches."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[bytes | None, bool]] = asyncio.Queue()
    wanted = threading.Semaphore(0)

    def read() -> None:
        while wanted.acquire():
            line: bytes | None = source.readline(limit + 1)
            end = not line
            if line and len(line) > limit and not line.endswith(b"\n"):
                while rest := source.readline(limit):
                    if rest.endswith(b"\n"):
                        break
                line = None
            try:
                loop.call_soon_threadsafe(queue.put_nowait, (line, end))
            except RuntimeError:  # the turn was stopped while this thread waited for input
                return
            if end:
                return

    threading.Thread(target=read, daemon=True, name="stdin").start()
    while True:
        wanted.release()
        line, end = await queue.get()
        if end:
            return
        yield line
