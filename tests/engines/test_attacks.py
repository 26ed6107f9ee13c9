"""Calls on Temporal at their edges: stale attempts, full journals, large values, workers that leave or know no tool."""

import asyncio
import contextlib
import itertools
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.site import front_end, place_of, spawn, working
from tests.patience import PATIENCE, until
from tests.temporal import Place

from keephold import Call, ToolCall, tool
from keephold.engines.base import EngineUnavailable
from keephold.engines.body import Body
from keephold.engines.temporal import workflow
from keephold.engines.temporal.client import Temporal
from keephold.engines.temporal.worker import TemporalRecorder
from keephold.engines.wire import Line, Lost
from keephold.tools.base import Action

ALL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


async def _ended(turn: Any, id: str) -> dict[str, Any]:
    waited: dict[str, Any] = await turn.wait(all=[id], timeout=PATIENCE)
    assert waited["completed"], waited
    (completed,) = waited["completed"]
    return dict(completed)


async def test_E6_the_record_of_an_attempt_that_is_not_the_current_one_is_refused(temporal: Place) -> None:
    ready, over, keys = asyncio.Event(), asyncio.Event(), list[str]()

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def waits(call: Call) -> int:
        if call.attempt == 1:
            keys.append(await call.durable().external_event_key("go"))
            await call.durable().await_event_json(keys[0])
        ready.set()
        await over.wait()
        return call.attempt

    async with working(temporal, [waits], suspend_secs=0.1), front_end(temporal, [waits]) as rt, rt.turn() as turn:
        await turn.run([spawn("waits", "w")])
        (followed,) = rt.front_end.calls.values()  # type: ignore[union-attr]
        await until(lambda: followed.suspended)
        await rt.resolve(keys[0], {"status": "ok"})
        await until(ready.is_set)
        client = await place_of(temporal).connect()
        stale = TemporalRecorder(client.get_workflow_handle((await turn.handle("w")).uid), 1)
        for refused in (stale.record(Line("step", "s", "")), stale.events(7)):
            with pytest.raises(Lost):
                await refused
        over.set()
        assert (await _ended(turn, "w"))["result"] == 2


async def test_E7_a_long_journal_is_carried_to_new_runs_and_read_in_pages(
    temporal: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"UPDATES": 8, "INLINE_BYTES": 500, "PAGE_BYTES": 2000}.items():
        monkeypatch.setattr(workflow, name, value)
    ran: list[int] = []

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def steps(call: Call) -> list[int]:
        async def step(number: int) -> str:
            ran.append(number)
            return str(number) * (100_000 if number == 3 else 300)

        fx = call.durable()
        return [len(await fx.run_json(f"s{number}", number, step)) for number in range(20)]

    async with working(temporal, [steps]), front_end(temporal, [steps]) as rt, rt.turn() as turn:
        await turn.run([spawn("steps", "s")])
        result = (await _ended(turn, "s"))["result"]
        handle = await turn.handle("s")
        described = await (await temporal.connect()).get_workflow_handle(handle.uid).describe()
        memo = await described.memo()
        attempt = handle.attempt
    assert memo == {"conversation": handle.conversation, "tool": "steps", "id": "s"}, "every run has it"
    assert result[3] == 100_000 and sum(result) == 10 * 300 - 300 + 100_000 + 10 * 600
    assert ran == list(range(20)) and attempt > 2


async def test_E4_many_events_are_read_in_pages(temporal: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"UPDATES": 8, "INLINE_BYTES": 500, "PAGE_BYTES": 1000}.items():
        monkeypatch.setattr(workflow, name, value)
    keys: dict[str, str] = {}

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def listens(call: Call) -> list[str]:
        fx, got = call.durable(), list[str]()
        for number in range(20):
            keys[f"e{number}"] = await fx.external_event_key(f"e{number}")
        for key in keys.values():
            got.append(await fx.await_event_json(key))
        return got

    async with working(temporal, [listens], suspend_secs=0.2), front_end(temporal, [listens]) as rt, rt.turn() as turn:
        await turn.run([spawn("listens", "l")])
        (followed,) = rt.front_end.calls.values()  # type: ignore[union-attr]
        await until(lambda: followed.suspended)
        for at, (name, key) in enumerate(keys.items()):
            await rt.resolve(key, {"status": "ok", "payload": name * 100})
            if at == 10:
                await until(lambda: followed.suspended)
        assert (await _ended(turn, "l"))["result"] == [f"e{number}" * 100 for number in range(20)]


async def test_R5_an_attempt_whose_worker_fails_is_repeated(
    temporal: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # a traceback that pytest keeps would keep the worker's connection open
    monkeypatch.setattr(workflow, "_UNKNOWN_SECS", 0.1)
    run, failures = Body.run, [RuntimeError("the worker has a bad day")]

    async def fails(body: Body) -> Any:
        if failures:
            raise failures.pop()
        return await run(body)

    monkeypatch.setattr(Body, "run", fails)

    @tool(engine="temporal", on_crash="replay")
    async def works(call: Call) -> int:
        return call.attempt

    async with working(temporal, [works]), front_end(temporal, [works]) as rt, rt.turn() as turn:
        (response,) = await turn.run([ToolCall("w", "works", {})])
    assert response.result == "2"


async def test_results_and_arguments_may_be_larger_than_what_the_engine_takes(temporal: Place) -> None:
    @tool(engine="temporal")
    async def big(size: int, given: str = "") -> str:
        return "x" * size

    async with working(temporal, [big]), front_end(temporal, [big]) as rt, rt.turn() as turn:
        calls: list[dict[str, Any]] = [{"size": 3_000_000}, {"size": 1, "given": "y" * 1_000_000}]
        first, second = await turn.run([ToolCall(str(at), "big", given) for at, given in enumerate(calls)])
    assert not first.is_error and "x" * 1000 in first.result
    assert second.result == "x"


async def test_C7_an_abort_that_comes_while_the_call_is_being_suspended_ends_it(
    temporal: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspending, cancelled, ends = asyncio.Event(), asyncio.Event(), list[str]()
    report, end = Body._report, Body.end

    async def slowly(body: Body, outcome: Any) -> Any:
        if not suspending.is_set():
            suspending.set()
            await cancelled.wait()
        return await report(body, outcome)

    def noted(body: Body, grace: float) -> None:
        cancelled.set()
        end(body, grace)

    monkeypatch.setattr(Body, "_report", slowly)
    monkeypatch.setattr(Body, "end", noted)

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def sleeps(call: Call) -> None:
        try:
            await call.durable().sleep(3600)
        finally:
            ends.append(call.id)

    workers = working(temporal, [sleeps], suspend_secs=0.1)
    async with workers as (worker,), front_end(temporal, [sleeps]) as rt, rt.turn() as turn:
        await turn.run([spawn("sleeps", "s")])
        await until(suspending.is_set)
        await turn.run([ToolCall("x", "sleeps", {"action": "abort", "id": "s"})])
        await until(lambda: worker.finished == 2)
    assert ends == ["s", "s"], "the second attempt got the cancellation"


async def test_R6_a_worker_that_is_told_to_stop_records_its_step_and_releases_its_calls(temporal: Place) -> None:
    begun, go, ran = asyncio.Event(), asyncio.Event(), list[str]()

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def works(call: Call) -> str:
        fx = call.durable()

        async def step(name: str) -> str:
            ran.append(name)
            begun.set()
            await go.wait()
            return name

        return str(await fx.run_json("one", "one", step) + await fx.run_json("two", "two", step))

    async with front_end(temporal, [works]) as rt, rt.turn() as turn:
        async with working(temporal, [works]) as (first,):
            await turn.run([spawn("works", "w")])
            await until(begun.is_set)
            asyncio.get_running_loop().call_later(0.1, go.set)
        assert first.running == 0
        async with working(temporal, [works]):
            assert (await _ended(turn, "w"))["result"] == "onetwo"
    assert ran == ["one", "two"]


async def test_a_call_waits_for_a_worker_that_has_its_tool(
    temporal: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workflow, "_UNKNOWN_SECS", 0.1)

    @tool(engine="temporal", actions=ALL)
    async def known() -> str:
        return "done"

    @tool(engine="temporal")
    async def other() -> str:
        return "other"

    async with front_end(temporal, [known]) as rt, rt.turn() as turn:
        async with working(temporal, [other]):
            await turn.run([spawn("known", "k")])
            await until(lambda: caplog.text.count("which this worker does not have") >= 2)
        async with working(temporal, [known]):
            assert (await _ended(turn, "k"))["result"] == "done"


@asynccontextmanager
async def _one_address(urls: list[str]) -> AsyncIterator[str]:
    """An address that leads each connection to the next of these."""
    turns = itertools.cycle(urls)
    tasks: set[asyncio.Task[None]] = set()

    async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = next(turns).removeprefix("http://").split(":")
        there, back = await asyncio.open_connection(host, int(port))
        for each in (pipe(reader, back), pipe(there, writer)):
            tasks.add(asyncio.ensure_future(each))

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)


async def test_a_worker_finds_the_front_end_of_its_call_behind_one_address(temporal: Place, tmp_path: Path) -> None:
    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def talks(call: Call) -> str:
        call.emit(f"I am {call.id}\n")
        return f"got {await call.input()}"

    store = f"sqlite:///{tmp_path}/k.db"
    async with contextlib.AsyncExitStack() as stack:
        fronts = [await stack.enter_async_context(front_end(temporal, [talks], store)) for _ in range(2)]
        address = await stack.enter_async_context(_one_address([rt.front_end.url for rt in fronts]))  # type: ignore[union-attr, misc]
        for rt in fronts:
            rt.front_end.url = address  # type: ignore[union-attr]
        await stack.enter_async_context(working(temporal, [talks]))
        for at, rt in enumerate(fronts):
            async with rt.turn(f"c{at}") as turn:
                ids = [f"t{at}{each}" for each in range(3)]
                await turn.run([spawn("talks", id) for id in ids])
                for id in ids:
                    await turn.send(id, id)
                    assert (await _ended(turn, id))["result"] == f"got {id}"
                    assert (await turn.handle(id)).output_bytes == len(f"I am {id}\n")


def test_E6_a_server_that_does_not_find_its_namespace_knows_nothing_of_the_call(temporal: Place) -> None:
    """A server under load says so. Taken for the end of the call, it would lose a resolution."""
    program = f"import os; from tests.engines import test_attacks; test_attacks.ask({temporal.address!r}); os._exit(0)"
    # In a process of its own: now and then, the SDK keeps the connection of refused requests. That process leaves by
    # `_exit`, because threads of the SDK that still run while Python ends can abort it.
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=PATIENCE)


def ask(address: str) -> None:
    """Ask for a call in a namespace that the server does not have."""

    async def ask_all() -> None:
        engine = Temporal(replace(place_of(Place(address)), namespace="not-found"))
        for each in (
            engine.result("u"),
            engine.resolve("u", "go", {}),
            engine.result("u", wait=False),
            engine.cancel("u"),
        ):
            with pytest.raises(EngineUnavailable, match="not-found"):
                await each

    asyncio.run(ask_all())
