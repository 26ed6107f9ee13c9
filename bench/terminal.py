"""Programs in terminals, against the raw pty.

- *Spawn to first reply of `cat`*: a batch that spawns it, one that types a line, until the line has come back from
  `cat` itself (the terminal's echo comes before it). The settle times are 0, so that neither reply waits. Against
  `openpty`, `posix_spawn`, a write and a read on the same kind of loop.
- *A keystroke*: one key typed to a terminal that echoes, until a watcher of the handle has the byte; p50, as the time
  beyond the raw pty, where a reader of the loop gets it.
- *100 MB*: lines of 80 characters through a terminal, from the spawn until the handle has stopped, emulator and kept
  output included. Against a loop of `os.read` that throws away what it reads.
- *200 idle terminals*: the processor time of this process while nothing happens, as a share of one core.
"""

import asyncio
import contextlib
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time

import keephold
from bench.rounds import Bar, Plan, Row, measure, seconds
from keephold.handles.handle import Handle, Watcher
from keephold.tools.base import SpawnPolicy

BYTES = 100_000_000
IDLE = 200
_FLOOD = ["sh", "-c", f"yes {'x' * 79} | head -c {BYTES}"]
READER = ["sh", "-c", "cat > /dev/null"]  # else the terminal is full after 4,095 keys, and echoes none
_AT_ONCE = SpawnPolicy(settle_ms=0, settle_max_ms=0)


def _terminal(command: str | list[str], name: str | None = None) -> keephold.Tool:
    return replace(keephold.terminal(command, name=name), spawn=_AT_ONCE)


def _spawn(argv: list[str]) -> tuple[int, int]:
    """A program in a raw pty: its master and its pid."""
    master, slave = os.openpty()
    name = os.ttyname(slave)
    actions = [(os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setsid=True)
    os.close(slave)
    return master, pid


def _end(master: int, pid: int) -> None:
    os.close(master)  # which hangs it up
    os.waitpid(pid, 0)


# Spawn to first reply


async def _bare_spawn(length: float) -> float:
    loop, times, until = asyncio.get_running_loop(), [], perf_counter() + length
    while (began := perf_counter()) < until:
        master, pid = _spawn(["cat"])
        os.set_blocking(master, False)
        os.write(master, b"x\n")
        heard, seen = loop.create_future(), bytearray()

        def read(master: int = master, seen: bytearray = seen, heard: "asyncio.Future[None]" = heard) -> None:
            seen.extend(os.read(master, 4096))
            if seen.count(b"x") == 2 and not heard.done():
                heard.set_result(None)

        loop.add_reader(master, read)
        await heard
        times.append(perf_counter() - began)
        loop.remove_reader(master)
        _end(master, pid)
    return statistics.median(times)


async def _our_spawn(length: float) -> float:
    times: list[float] = []
    cat = _terminal("cat")
    async with keephold.Runtime([cat]) as rt, rt.turn("bench") as turn:
        await _once(rt, turn, "warm")  # the guard starts with the first program
        until, number = perf_counter() + length, 0
        while perf_counter() < until:
            number += 1
            times.append(await _once(rt, turn, f"c{number}"))
    return statistics.median(times)


class OnOutput(Watcher):
    """Calls a function after each piece of output."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def printed(self, handle: Handle) -> None:
        self._then()


async def _once(rt: keephold.Runtime, turn: keephold.Turn, id: str) -> float:
    began = perf_counter()
    await turn.run([keephold.ToolCall("1", "cat", {"action": "spawn", "id": id})])
    handle = rt.registry.find(id, "bench")
    heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def listen() -> None:
        if handle.output is not None and handle.output.read(0).data.count(b"x") == 2 and not heard.done():
            heard.set_result(None)

    handle.watch(OnOutput(listen))
    await turn.run([keephold.ToolCall("1", "cat", {"action": "apply", "id": id, "input": "x\n"})])
    listen()
    await heard
    took = perf_counter() - began
    await turn.run([keephold.ToolCall("1", "cat", {"action": "abort", "id": id})])
    return took


# A keystroke


async def _bare_key(length: float) -> float:
    loop, times = asyncio.get_running_loop(), []
    master, pid = _spawn(READER)
    os.set_blocking(master, False)
    heard: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        os.read(master, 4096)
        if not heard.done():
            heard.set_result(None)

    loop.add_reader(master, read)
    until = perf_counter() + length
    while (began := perf_counter()) < until:
        heard = loop.create_future()
        os.write(master, b"\r")
        await heard
        times.append(perf_counter() - began)
    loop.remove_reader(master)
    _end(master, pid)
    return statistics.median(times)


async def _our_key(length: float) -> float:
    loop, times = asyncio.get_running_loop(), []
    async with keephold.Runtime([_terminal(READER, "reader")]) as rt, rt.turn("bench") as turn:
        await turn.run([keephold.ToolCall("1", "reader", {"action": "spawn", "id": "s"})])
        run = rt.registry.find("s", "bench").run
        assert run is not None
        heard: asyncio.Future[None] = loop.create_future()
        run.handle.watch(OnOutput(lambda: None if heard.done() else heard.set_result(None)))
        until = perf_counter() + min(length, 1.0)
        while (began := perf_counter()) < until:
            heard = loop.create_future()
            run.write({"input": "\r"}, b"")
            await heard
            times.append(perf_counter() - began)
        await turn.run([keephold.ToolCall("1", "reader", {"action": "abort", "id": "s"})])
    return statistics.median(times)


def _keystroke(plan: Plan) -> Row:
    gaps, bare, ours = [], [], []
    for _ in range(plan.rounds):
        bare.append(asyncio.run(_bare_key(plan.seconds / 2)))
        ours.append(asyncio.run(_our_key(plan.seconds / 2)))
        gaps.append(ours[-1] - bare[-1])
    gap = statistics.median(gaps)
    return Row(
        what="keystroke → echoed byte visible to a waiter, p50, over the raw pty",
        bare=seconds(statistics.median(bare)),
        ours=seconds(statistics.median(ours)),
        result=f"+ {seconds(gap)} ({seconds(min(gaps))}–{seconds(max(gaps))})",
        bar="≤ + 1 ms",
        met=gap <= 1e-3,
    )


# 100 MB


def _bare_flood(length: float) -> float:
    master, pid = _spawn(_FLOOD)
    began, size = perf_counter(), 0
    with contextlib.suppress(OSError):  # EIO: the program has gone
        while data := os.read(master, 1 << 16):
            size += len(data)
    took = perf_counter() - began
    _end(master, pid)
    assert size >= BYTES, size
    return took


async def _our_flood(length: float) -> float:
    flood = _terminal(_FLOOD, "flood")
    async with keephold.Runtime([flood]) as rt, rt.turn("bench") as turn:
        began = perf_counter()
        await turn.run([keephold.ToolCall("1", "flood", {"action": "spawn", "id": "f"})])
        await rt.wait(all=["f"], conversation="bench")
        took = perf_counter() - began
        assert (await rt.handle("f", conversation="bench")).output_bytes >= BYTES
    return took


# 200 idle ones


async def _idle(length: float) -> float:
    async with keephold.Runtime([_terminal("cat")]) as rt, rt.turn("bench") as turn:
        calls = [keephold.ToolCall(str(at), "cat", {"action": "spawn", "id": f"c{at}"}) for at in range(IDLE)]
        await turn.run(calls)
        await asyncio.sleep(1)
        assert len(rt.live()) == IDLE
        began, used = perf_counter(), process_time()
        await asyncio.sleep(length)
        share = (process_time() - used) / (perf_counter() - began)
        await turn.run([keephold.ToolCall(str(at), "cat", {"action": "abort", "id": f"c{at}"}) for at in range(IDLE)])
    return share


def run(plan: Plan) -> list[Row]:
    idle = asyncio.run(_idle(5 * plan.seconds))
    return [
        measure(
            "terminal: spawn to first reply of `cat`, p50, without settling, against raw `posix_spawn` + pty",
            plan,
            Bar(1.3),
            _bare_spawn,
            _our_spawn,
        ),
        _keystroke(plan),
        measure(
            "100 MB through a terminal with the emulator on, against draining the pty raw",
            plan,
            Bar(0.4, "speed"),
            _bare_flood,
            _our_flood,
        ),
        Row(
            what=f"{IDLE} idle terminals: processor",
            bare="–",
            ours=f"{100 * idle:.2f} % of a core",
            result=f"{100 * idle:.2f} %",
            bar="< 1 %",
            met=idle < 0.01,
        ),
    ]
