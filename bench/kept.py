"""Kept programs (`on_crash = "keep"`), whose keeper does their input and output, against ordinary ones.

All on SQLite stores, because nothing is kept without one.

- *Spawn*: a batch that spawns `true`, until its handle has stopped; p50, as the time beyond an ordinary one.
- *1 GiB*: `head -c 1G /dev/zero`, spawned, until its handle has stopped and one `fdatasync` of its output.
- *A keystroke*: one key that an attached user types to a terminal that echoes, until a listener of its output has the
  byte; p50, as the time beyond an ordinary terminal. (A model's input is stored before it is typed.)
- *200 terminals*: the resident set of their keeper, its processor time while nothing is printed, and the time from the
  start of the next runtime until each of them has replied to a `fetch`.
"""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Literal, cast

import psutil

import keephold
from bench.rounds import Bar, Plan, Row, added, measure, seconds
from bench.terminal import READER, OnOutput
from bench.throughput import SIZE
from keephold.tools.base import OutputPolicy, SpawnPolicy, SupportsScreen
from keephold.tools.keeper.record import KeptRecord, read_record

COUNT = 200
RESIDENT, PROCESSOR, RETURN_SECS = 25 << 20, 0.001, 2.0
_AT_ONCE = SpawnPolicy(settle_ms=0, settle_max_ms=0)
OnCrash = Literal["fail", "keep"]


def _command(argv: list[str], on_crash: OnCrash) -> keephold.Tool:
    policy = OutputPolicy(max_output=2 * SIZE)
    made = keephold.command(argv, name="command", actions=("spawn", "fetch"), on_crash=on_crash, output=policy)
    return replace(made, spawn=_AT_ONCE)


def _terminal(argv: list[str], on_crash: OnCrash) -> keephold.Tool:
    return replace(keephold.terminal(argv, name="terminal", on_crash=on_crash), spawn=_AT_ONCE)


@asynccontextmanager
async def _opened(tool: keephold.Tool) -> AsyncIterator[tuple[keephold.Runtime, keephold.Turn]]:
    with tempfile.TemporaryDirectory() as directory:
        async with keephold.Runtime([tool], store=f"sqlite:///{directory}/store.db") as rt, rt.turn("bench") as turn:
            yield rt, turn


async def _stopped(rt: keephold.Runtime, turn: keephold.Turn, id: str) -> float:
    began = perf_counter()
    await turn.run([keephold.ToolCall("1", "command", {"action": "spawn", "id": id})])
    await rt.wait(all=[id], conversation="bench")
    return perf_counter() - began


async def _spawn(on_crash: OnCrash, length: float) -> float:
    times, number = [], 0
    async with _opened(_command(["true"], on_crash)) as (rt, turn):
        await _stopped(rt, turn, "first")  # guard and keeper start with it
        until = perf_counter() + length
        while perf_counter() < until:
            number += 1
            times.append(await _stopped(rt, turn, f"c{number}"))
    return statistics.median(times)


async def _gibibyte(on_crash: OnCrash, _: float) -> float:
    async with _opened(_command(["head", "-c", "1G", "/dev/zero"], on_crash)) as (rt, turn):
        began = perf_counter()
        await _stopped(rt, turn, "c")
        output = rt.registry.find("c", "bench").output
        assert output is not None
        output.sync()
        took = perf_counter() - began
        assert output.total == SIZE and output.gap is None and output.failure is None
    return took


async def _key(on_crash: OnCrash, length: float) -> float:
    loop, times = asyncio.get_running_loop(), []
    async with _opened(_terminal(READER, on_crash)) as (rt, turn):
        await turn.run([keephold.ToolCall("1", "terminal", {"action": "spawn", "id": "s"})])
        run = rt.registry.find("s", "bench").run
        assert run is not None
        live = cast(SupportsScreen, run.live)
        await asyncio.sleep(0.5)  # the keeper starts
        heard: asyncio.Future[None] = loop.create_future()
        run.handle.watch(OnOutput(lambda: None if heard.done() else heard.set_result(None)))
        until = perf_counter() + length
        while (began := perf_counter()) < until:
            heard = loop.create_future()
            live.type(b"\r")
            await heard
            times.append(perf_counter() - began)
        await turn.run([keephold.ToolCall("1", "terminal", {"action": "abort", "id": "s"})])
    return statistics.median(times)


async def _ask(rt: keephold.Runtime, action: str, ids: list[str]) -> None:
    """Make a call for each, without a turn that would end them, and wait for all replies."""
    queue = rt.call_queue("bench")
    calls = [keephold.ToolCall(f"{action}-{id}", "terminal", {"action": action, "id": id}) for id in ids]
    begun = [await queue.begin(call) for call in calls]
    responses = await asyncio.gather(*(each.response() for each in begun))
    assert not any(response.is_error for response in responses), responses


def _records(directory: Path) -> list[KeptRecord]:
    return [record for file in directory.glob("*.kept") if (record := read_record(directory, file.stem))]


async def _started(directory: Path) -> psutil.Process:
    """Return the keeper of a store once it has started all terminals."""
    while len(records := _records(directory)) < COUNT:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.5)
    await asyncio.sleep(1)
    return psutil.Process(int(records[0].keeper.split("-")[1]))


async def _crowd(length: float) -> tuple[int, float, float]:
    """Return the keeper's resident set, its share of a core, and the seconds until all have replied to the next
    runtime."""
    tool = _terminal(["cat"], "keep")
    ids = [f"c{number}" for number in range(COUNT)]
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{directory}/store.db"
        async with keephold.Runtime([tool], store=store) as rt:
            await _ask(rt, "spawn", ids)
            keeper = await _started(Path(f"{directory}/store.db-output"))
            used, began = keeper.cpu_times(), perf_counter()
            await asyncio.sleep(5 * length)
            now = keeper.cpu_times()
            share = (now.user + now.system - used.user - used.system) / (perf_counter() - began)
            resident: int = keeper.memory_info().rss
        began = perf_counter()
        async with keephold.Runtime([tool], store=store) as rt:
            await _ask(rt, "fetch", ids)
            took = perf_counter() - began
            await _ask(rt, "abort", ids)
    return resident, share, took


def _figure(what: str, shown: str, bar: str, met: bool) -> Row:
    return Row(what=what, bare="–", ours=shown, result=shown, bar=bar, met=met)


def run(plan: Plan) -> list[Row]:
    resident, share, took = asyncio.run(_crowd(plan.seconds))
    size = f"{resident / (1 << 20):.1f} MiB"
    return [
        added(
            "spawn of a kept command to its end, p50, over an ordinary one",
            plan,
            1e-3,
            partial(_spawn, "fail"),
            partial(_spawn, "keep"),
        ),
        measure(
            "1 GiB through a kept command, against an ordinary one",
            plan,
            Bar(0.7, "speed"),
            partial(_gibibyte, "fail"),
            partial(_gibibyte, "keep"),
            show=lambda took: f"{SIZE / took / 1e6:.0f} MB/s",
        ),
        added(
            "keystroke → echoed byte visible to a waiter, p50, kept over ordinary terminal",
            plan,
            0.3e-3,
            partial(_key, "fail"),
            partial(_key, "keep"),
        ),
        _figure(f"keeper with {COUNT} terminals: resident memory", size, "≤ 25 MiB", resident <= RESIDENT),
        _figure(f"keeper with {COUNT} idle terminals: processor", f"{100 * share:.2f} %", "< 0.1 %", share < PROCESSOR),
        _figure(
            f"start of a runtime to the first reply of {COUNT} kept terminals",
            seconds(took),
            "≤ 2 s",
            took <= RETURN_SECS,
        ),
    ]
