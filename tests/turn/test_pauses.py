"""The event loop runs on while many calls start, many handles end and many processes are looked for."""

import asyncio
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold.handles import pace
from keephold.outcomes import Ok
from keephold.platforms import machine
from keephold.tools import marks
from keephold.tools.function import Function
from keephold.tools.run import Run
from keephold.tools.session import Seek, find
from keephold.turn.admission import _ENDED_AT_ONCE


@keephold.tool(actions=STATEFUL, timeout_secs=None)
async def idle() -> None:
    """Wait until it is ended."""
    await asyncio.Event().wait()


class Beats:
    """Counts how often something happens between two passes of the event loop."""

    def __init__(self) -> None:
        self.now = self.most = self.total = 0

    def count(self) -> None:
        self.now += 1
        self.total += 1
        self.most = max(self.most, self.now)

    @contextmanager
    def of(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator["Beats"]:
        """Count the calls of a method."""
        method = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.count()
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)
        self._beat()
        try:
            yield self
        finally:
            self._next.cancel()

    def _beat(self) -> None:
        self.now = 0
        self._next = asyncio.get_running_loop().call_soon(self._beat)


async def test_B2_the_loop_runs_while_many_calls_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PORTION_SECS", 0.0)
    async with keephold.Runtime([idle]) as rt, rt.turn("main") as turn:
        with Beats().of(monkeypatch, Function, "start") as starts:
            await turn.run([spawn("idle", f"h{i}") for i in range(200)])
        assert starts.total == 200
        assert starts.most <= pace.AT_LEAST


async def test_T1_the_loop_runs_while_many_handles_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with keephold.Runtime([idle]) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("idle", f"h{i}") for i in range(500)])
            watching = ExitStack()
            ends = watching.enter_context(Beats().of(monkeypatch, Run, "stop"))
        watching.close()
        assert ends.total == 500
        assert ends.most <= _ENDED_AT_ONCE


async def test_A2_the_loop_runs_while_many_handles_are_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pace, "PORTION_SECS", 0.0)
    async with keephold.Runtime([idle], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        with Beats().of(monkeypatch, type(rt.registry.store), "named") as reads:
            await turn.run([call("await", all=[f"none-{i}" for i in range(100)])])
        assert reads.total == 100
        assert reads.most <= pace.AT_LEAST + 1


async def test_C7_many_searches_read_every_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, read = list(range(5_000_000, 5_000_100)), list[int]()

    def marks_of(pid: int) -> list[str]:
        read.append(pid)
        return []

    monkeypatch.setattr(machine, "pids", lambda: crowd)
    monkeypatch.setattr(marks, "marks_of", marks_of)
    found = await asyncio.gather(*(find(Seek(lambda: 0, mark=f"1-2-3-4/{i}")) for i in range(50)))
    assert found == [[]] * 50
    assert read == crowd


@keephold.tool(actions=STATEFUL)
async def large(letter: str) -> str:
    """Return a large text."""
    return letter * SIZE


SIZE = 30_000_000


@pytest.mark.slow
async def test_O5_large_results_do_not_stay_in_memory(tmp_path: Path) -> None:
    async with keephold.Runtime([large], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        tracemalloc.start(1)
        try:
            for letter in "abcdef":
                await turn.run([spawn("large", letter, letter=letter), call("await", all=[letter])])
                # 64 MiB of results stay, which are two of these; those that nobody looks at are evicted
                await until(lambda: tracemalloc.get_traced_memory()[0] < 3 * SIZE)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 6 * SIZE, "those, one that is made, its JSON, and what a buffer needs to grow"
        assert (await turn.handle("a")).outcome == Ok("a" * SIZE), "the store has it"
