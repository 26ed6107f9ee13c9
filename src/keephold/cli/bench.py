"""`keephold bench`: measure keephold beside the raw limit of this machine, in a temporary store beside the real one.

Keephold and raw take turns, so that other work on the machine affects both; each figure is the median of the slices.
Raw is the library alone: apsw in WAL mode with `synchronous=FULL`, a bare future, asyncio's own subprocess.
"""

import asyncio
import itertools
import json
import shutil
import signal
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

import apsw
import click

import keephold
from keephold.cli.parameters import json_option
from keephold.cli.printing import table_lines, tell
from keephold.cli.store import place_of, store_option
from keephold.durable.effects import Effects
from keephold.errors import KeepholdError
from keephold.handles.view import Handles
from keephold.platforms import machine

SECONDS = 5.0
"""About how long the whole run takes."""
CALLS = 64
_TURNS = 5
_FIGURES = 5
_PAGE = bytes(4096)
_HELD = 20
"""Handles that are spawned together, and stopped one after another."""
_CONVERSATION = "bench"
_HEAD = ("", "KEEPHOLD", "RAW", "RATIO", "RAW IS")
_PREFIX = ".keephold-bench-"
_SCHEMA = """
CREATE TABLE journal (number INTEGER PRIMARY KEY, handle INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL);
CREATE UNIQUE INDEX journal_once ON journal (handle, name);
"""
_INSERT = "INSERT INTO journal (handle, name, value) VALUES (?, ?, ?)"

Slice = Callable[[float], Awaitable[float]]
"""Measures for a number of seconds, and returns the figure."""


class Figure(NamedTuple):
    """A measurement: keephold's, or None if only the machine was measured, beside the raw limit."""

    name: str
    what: str
    against: str
    unit: Literal["seconds", "per_second"]
    ours: float | None
    raw: float

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None else self.ours / self.raw


async def measured(directory: Path, seconds: float) -> list[Figure]:
    """Return all figures after about this time. The files of the measurement stay in the directory."""
    program = shutil.which("true")
    if program is None:
        raise KeepholdError(
            "there is no program `true` on the PATH, which is what is started", code="command_not_started"
        )
    length = seconds / _FIGURES / _TURNS / 2
    with closing(_Raw(directory / "raw.db")) as raw:
        async with _opened(directory, program) as ours:
            synced = await _by_turns(length * 2, _synced_writes(directory / "synced"))
            step = await _by_turns(length, ours.steps, raw.one_commit)
            crowd = await _by_turns(length, ours.crowd, raw.many_rows)
            wake = await _by_turns(length, ours.wakes, raw.wakes)
            start = await _by_turns(length, ours.commands, _bare_command(program))
    return [
        Figure("fsync", "4 KiB written and synced, p50", "", "seconds", None, *synced),
        Figure("step", "durable step, p50", "one insert, one commit", "seconds", *step),
        Figure("steps", f"steps of {CALLS} calls at once", f"{CALLS} inserts a commit", "per_second", *crowd),
        Figure("wake", "handle stops → awaiting coroutine, p50", "commit, bare future", "seconds", *wake),
        Figure("command", "command, call to result, p50", "asyncio's subprocess", "seconds", *start),
    ]


async def _by_turns(length: float, *sides: Slice) -> list[float]:
    found = [[await side(length) for side in sides] for _ in range(_TURNS)]
    return [statistics.median(side) for side in zip(*found, strict=True)]


def _timed(act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        began = perf_counter()
        await act()
        return perf_counter() - began

    return once


async def _p50(length: float, once: Callable[[], Awaitable[float]]) -> float:
    times, until = [await once()], perf_counter() + length
    while perf_counter() < until:
        times.append(await once())
    return statistics.median(times)


# The raw limit


def _synced_writes(path: Path) -> Slice:
    async def measure(length: float) -> float:
        with path.open("ab", buffering=0) as file:

            async def write() -> None:
                file.write(_PAGE)
                machine.sync_data(file.fileno())

            return await _p50(length, _timed(write))

    return measure


class _Raw:
    """A database with a table like keephold's journal, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")
        self._connection.execute(_SCHEMA)
        self._names = itertools.count()

    def close(self) -> None:
        self._connection.close()

    def commit(self, rows: int) -> None:
        name = f"s{next(self._names)}"
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(_INSERT, [(handle, name, b"1") for handle in range(rows)])
        self._connection.execute("COMMIT")

    async def one_commit(self, length: float) -> float:
        async def commit() -> None:
            self.commit(1)

        return await _p50(length, _timed(commit))

    async def many_rows(self, length: float) -> float:
        began, rows = perf_counter(), 0
        while perf_counter() < began + length:
            self.commit(CALLS)
            rows += CALLS
        return rows / (perf_counter() - began)

    async def wakes(self, length: float) -> float:
        loop = asyncio.get_running_loop()

        async def once() -> float:
            future: asyncio.Future[None] = loop.create_future()
            waiter = loop.create_task(_time_of(future))
            await asyncio.sleep(0)
            began = perf_counter()
            self.commit(1)
            future.set_result(None)
            return await waiter - began

        return await _p50(length, once)


def _bare_command(program: str) -> Slice:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(program, stdin=nothing, stdout=pipe, stderr=pipe)
        await process.communicate()

    return lambda length: _p50(length, _timed(run))


async def _time_of(waiting: Awaitable[object]) -> float:
    await waiting
    return perf_counter()


# Keephold


@asynccontextmanager
async def _opened(directory: Path, program: str) -> AsyncIterator["_Ours"]:
    tool = f'[conversation.tools.nothing]\nsource = "local"\ncommand = [{json.dumps(program)}]\nrun = "unattended"\n'
    config = directory / "keephold.toml"
    config.write_text(tool)
    ours = _Ours()
    store = f"sqlite:///{directory / 'ours.db'}"
    async with (
        keephold.Runtime([ours.stepping(), ours.holding()], store=store, config=config) as ours.runtime,
        ours.runtime.turn(_CONVERSATION) as ours.turn,
    ):
        await ours.call("nothing")  # the first command starts the guard
        yield ours


class _Ours:
    """Measures keephold, in an open turn of a runtime."""

    runtime: keephold.Runtime
    turn: keephold.Turn

    def __init__(self) -> None:
        self._work: Callable[[Effects], Awaitable[None]]
        self._gates: dict[str, asyncio.Future[None]] = {}
        self._ids = itertools.count()

    def stepping(self) -> Any:
        @keephold.tool(name="stepping", on_crash="replay")
        async def stepping(call: keephold.Call) -> str:
            await self._work(call.durable())
            return "done"

        return stepping

    def holding(self) -> Any:
        @keephold.tool(name="holding", actions=("spawn", "abort"))
        async def holding(call: keephold.Call) -> str:
            gate = self._gates[call.id] = asyncio.get_running_loop().create_future()
            await gate
            return "done"

        return holding

    async def call(self, tool: str, *arguments: dict[str, Any]) -> None:
        """Run one batch of calls, one for each of these arguments."""
        given = arguments or ({},)
        calls = [keephold.ToolCall(each.get("id", str(number)), tool, each) for number, each in enumerate(given)]
        for response in await self.turn.run(calls):
            if response.is_error:
                raise KeepholdError(f"`{tool}` failed: {response.result}", code="tool_error")

    async def steps(self, length: float) -> float:
        found = 0.0

        async def work(effects: Effects) -> None:
            nonlocal found
            names = itertools.count()

            async def step() -> None:
                await effects.run_json(f"s{next(names)}", None, _nothing)

            found = await _p50(length, _timed(step))

        self._work = work
        await self.call("stepping")
        return found

    async def crowd(self, length: float) -> float:
        began, steps = perf_counter(), 0

        async def work(effects: Effects) -> None:
            nonlocal steps
            for number in itertools.count():
                if perf_counter() > began + length:
                    return
                await effects.run_json(f"s{number}", None, _nothing)
                steps += 1

        self._work = work
        await self.call("stepping", *[{} for _ in range(CALLS)])
        return steps / (perf_counter() - began)

    async def wakes(self, length: float) -> float:
        handles = Handles(self.runtime.registry, _CONVERSATION)

        async def once() -> float:
            if not self._gates:
                await self._hold()
            id, gate = self._gates.popitem()
            waiter = asyncio.create_task(_time_of(handles.wait(all=[id])))
            await asyncio.sleep(0)
            began = perf_counter()
            gate.set_result(None)
            return await waiter - began

        return await _p50(length, once)

    async def _hold(self) -> None:
        ids = [f"h{next(self._ids)}" for _ in range(_HELD)]
        await self.call("holding", *[{"action": "spawn", "id": id} for id in ids])
        await asyncio.sleep(0)  # let them run to their gates

    async def commands(self, length: float) -> float:
        return await _p50(length, _timed(lambda: self.call("nothing")))


async def _nothing(given: Any) -> Any:
    return given


# The command


@click.command()
@store_option
@json_option
def bench(store: str | None, as_json: bool) -> None:
    """Measure this machine, in about five seconds.

    It measures the disk of the configured store, durable steps, how quickly waiters resume, and how quickly a command
    runs: each beside the raw limit, measured in the same run. Other work on the machine affects both.

    The store itself is not touched: a temporary one is made in its directory, and removed.
    """
    directory = _directory(place_of(store, acting=True, make=True))
    if not as_json:
        click.echo(f"in {directory}, for about five seconds", err=True)
    try:
        figures = asyncio.run(_measured(directory))
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    facts = {"directory": str(directory), "figures": [_as_json(figure) for figure in figures]}
    tell(facts, table_lines([_HEAD, *map(_row, figures)], shrinking=(4, 0)), as_json=as_json)


def _directory(url: str) -> Path:
    from keephold.store import open_store
    from keephold.store.base import file_of

    path = file_of(open_store(url))
    if path is None:
        raise KeepholdError(
            "a `memory:` store has no disk to measure; name a file by --store", code="unsupported_store"
        )
    directory = path.absolute().parent
    if not directory.is_dir():
        raise KeepholdError(
            f"there is no directory `{directory}`; make it, or name another file by --store", code="store_unusable"
        )
    return directory


async def _measured(directory: Path) -> list[Figure]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that the directory is removed
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory) as place:
            return await measured(Path(place), SECONDS)
    except OSError as error:
        raise KeepholdError(f"`{directory}` cannot be used: {error.strerror}", code="store_unusable") from error


def _as_json(figure: Figure) -> dict[str, object]:
    same = {key: getattr(figure, key) for key in ("name", "what", "unit")}
    return same | {"keephold": figure.ours, "raw": figure.raw, "ratio": figure.ratio}


def _row(figure: Figure) -> tuple[str, ...]:
    ours = "-" if figure.ours is None else _shown(figure.ours, figure.unit)
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f} ×"
    return figure.what, ours, _shown(figure.raw, figure.unit), ratio, figure.against or "-"


def _shown(value: float, unit: str) -> str:
    if unit == "per_second":
        return f"{value:,.0f}/s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
