"""Calls on Temporal, with workers in the same loop: what a handle promises is promised there, too."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines.site import front_end, spawn, working
from tests.patience import PATIENCE, until
from tests.temporal import Place

from keephold import Call, Pending, Question, Runtime, ToolCall, tool
from keephold.errors import ToolError
from keephold.policies import QuestionPolicy
from keephold.tools.base import Action

ALL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


async def _ended(turn: Any, id: str) -> dict[str, Any]:
    waited: dict[str, Any] = await turn.wait(all=[id], timeout=PATIENCE)
    (completed,) = waited["completed"]
    return dict(completed)


async def test_E2_a_step_runs_once_and_its_result_is_the_tools(temporal: Place) -> None:
    ran: list[str] = []

    @tool(on_crash="replay", engine="temporal")
    async def steps(call: Call, count: int) -> list[int]:
        fx = call.durable()

        async def double(number: int) -> int:
            ran.append(str(number))
            return 2 * number

        return list(await asyncio.gather(*(fx.run_json(f"s{each}", each, double) for each in range(count))))

    async with working(temporal, [steps]), front_end(temporal, [steps]) as rt, rt.turn() as turn:
        (response,) = await turn.run([ToolCall("a", "steps", {"count": 20})])
    assert response.result == str([2 * each for each in range(20)]).replace(" ", "")
    assert sorted(ran, key=int) == [str(each) for each in range(20)]


async def test_functions_without_effects_run_there_too(temporal: Place) -> None:
    @tool(engine="temporal")
    def plain(number: int) -> int:
        return 3 * number

    @tool(engine="temporal")
    async def fails() -> str:
        raise ToolError("no luck", code="luck")

    @tool(engine="temporal")
    def named(call: Call) -> str:
        return f"in {call.process_id}"

    tools = [plain, fails, named]
    async with working(temporal, tools), front_end(temporal, tools) as rt, rt.turn() as turn:
        calls = [ToolCall("a", "plain", {"number": 4}), ToolCall("b", "fails", {}), ToolCall("c", "named", {})]
        first, second, third = await turn.run(calls)
    assert first.result == "12" and third.result == "in None"
    assert second.is_error and second.code == "luck" and "no luck" in second.result


async def test_output_progress_questions_and_input_take_the_channel(temporal: Place) -> None:
    @tool(engine="temporal", on_crash="replay", actions=ALL, questions={"sure": QuestionPolicy(target="assistant")})
    async def talks(call: Call) -> str:
        call.emit("one\n")
        call.progress(1, 3, "begun")
        name = await call.input()
        call.emit(f"two {name}\n")
        sure = await call.ask(Question("sure", "Sure?", bool))
        return f"{name} {sure}"

    async with working(temporal, [talks]), front_end(temporal, [talks]) as rt, rt.turn() as turn:
        await turn.run([spawn("talks", "t")])
        await until(lambda: _prints(turn, "t", "one\n"))
        progress = (await turn.handle("t")).progress
        assert progress is not None and progress.message == "begun"
        waited = await turn.wait(all=["t"], timeout=PATIENCE)
        assert waited["pending"][0]["id"] == "t", "it is blocked on the caller: it reads (A6)"
        await turn.send("t", "bob")
        await until(lambda: _is(turn, "t", "waiting"))
        await turn.send("t", True)
        assert (await _ended(turn, "t"))["result"] == "bob True"
        assert (await turn.handle("t")).output_bytes == len("one\ntwo bob\n")


async def test_E10_input_that_the_tool_has_no_room_for_stays_at_the_front_end(temporal: Place) -> None:
    may_read, large = asyncio.Event(), "x" * 40_000

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def reads(call: Call) -> list[int]:
        await may_read.wait()
        return [len(await call.input()), len(await call.input())]

    async with working(temporal, [reads]) as (worker,), front_end(temporal, [reads]) as rt, rt.turn() as turn:
        await turn.run([spawn("reads", "r")])
        await until(lambda: worker.running)
        for _ in range(2):
            await turn.send("r", large)
        (body,) = worker._bodies
        await until(lambda: body.channel.full)
        with pytest.raises(ToolError) as refused:
            await turn.send("r", large)
        assert refused.value.code == "input_not_read"
        may_read.set()
        assert (await _ended(turn, "r"))["result"] == [40_000, 40_000]


async def _prints(turn: Any, id: str, text: str) -> bool:
    return bool((await turn.handle(id)).output_bytes >= len(text))


async def _is(turn: Any, id: str, state: str) -> bool:
    return bool((await turn.handle(id)).state == state)


async def test_a_call_that_only_waits_is_suspended_and_goes_on_when_its_event_comes(temporal: Place) -> None:
    keys: list[str] = []
    ran: list[str] = []

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def waits(call: Call) -> str:
        fx = call.durable()

        async def step(value: Any) -> str:
            ran.append(value)
            return "done"

        await fx.run_json("one", "one", step)

        async def event(name: str) -> Any:
            key = await fx.external_event_key(name)
            if key not in keys:
                keys.append(key)
            return await fx.await_event_json(key)

        got = await asyncio.gather(event("a"), event("b"))
        await fx.run_json("two", "two", step)
        return str(got)

    workers, served = working(temporal, [waits], suspend_secs=0.2), front_end(temporal, [waits])
    async with workers as (worker,), served as rt, rt.turn() as turn:
        await turn.run([spawn("waits", "w")])
        await until(lambda: worker.finished == 1 and len(keys) == 2)
        (call,) = rt.front_end.calls.values()  # type: ignore[union-attr]
        await until(lambda: call.suspended)
        assert worker.running == 0 and (await turn.handle("w")).state == "running"
        assert str(await rt.resolve(keys[0], {"status": "ok", "payload": 1})) == "accepted"
        await until(lambda: worker.finished == 2)
        assert str(await rt.resolve(keys[0], {"status": "ok", "payload": 7})) == "already_resolved"
        await rt.resolve(keys[1], {"status": "ok", "payload": 2})
        assert (await _ended(turn, "w"))["result"] == "[1, 2]"
    assert ran == ["one", "two"]


async def test_T1_a_call_that_waits_for_its_event_outlives_the_turn(temporal: Place) -> None:
    keys: list[str] = []

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def waits(call: Call) -> str:
        keys.append(await call.durable().external_event_key("go"))
        return f"got {await call.durable().await_event_json(keys[0])}"

    async with working(temporal, [waits]), front_end(temporal, [waits]) as rt:
        async with rt.turn("c") as turn:
            await turn.run([spawn("waits", "w")])
            (followed,) = rt.front_end.calls.values()  # type: ignore[union-attr]
            await until(lambda: followed.waits_in_effects)
        assert (await rt.handle("w", conversation="c")).state == "running" and not followed.suspended
        await rt.resolve(keys[0], {"status": "ok", "payload": 5})
        await until(lambda: _stopped(rt))
        assert (await rt.handle("w", conversation="c")).outcome.value == "got 5"  # type: ignore[union-attr]


async def test_E5_a_sleep_is_slept_without_a_worker(temporal: Place) -> None:
    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def sleeps(call: Call) -> int:
        await call.durable().sleep(1)
        return call.attempt

    async with working(temporal, [sleeps], suspend_secs=0.1), front_end(temporal, [sleeps]) as rt, rt.turn() as turn:
        await turn.run([spawn("sleeps", "s")])
        assert (await _ended(turn, "s"))["result"] == 2


async def test_D1_pending_parks_the_handle_and_the_worker_forgets_it(temporal: Place) -> None:
    keys: list[str] = []

    @tool(engine="temporal", actions=ALL)
    async def defers(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending(3600)

    async with working(temporal, [defers]) as (worker,), front_end(temporal, [defers]) as rt, rt.turn() as turn:
        await turn.run([spawn("defers", "d")])
        await until(lambda: _parked(turn))
        assert worker.running == 0 and not rt.front_end.calls  # type: ignore[union-attr]
        assert str(await rt.resolve(keys[0], {"status": "ok", "payload": "later"})) == "accepted"
        assert (await _ended(turn, "d"))["result"] == "later"


async def _parked(turn: Any) -> bool:
    return bool((await turn.handle("d")).parked)


async def test_C7_an_abort_reaches_the_tool_running_or_suspended(temporal: Place) -> None:
    cleaned: list[str] = []
    started: list[str] = []

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def cleans(call: Call, sleeps: bool) -> str:
        try:
            started.append(call.id)
            await (call.durable().sleep(3600) if sleeps else asyncio.sleep(3600))
            return "never"
        finally:
            cleaned.append(call.id)

    workers, served = working(temporal, [cleans], suspend_secs=0.2), front_end(temporal, [cleans])
    async with workers as (worker,), served as rt, rt.turn() as turn:
        await turn.run([spawn("cleans", "r", sleeps=False), spawn("cleans", "s", sleeps=True)])
        await until(lambda: worker.finished == 1 and len(started) >= 2)
        assert cleaned == ["s"], "a suspended body is released, not ended"
        aborts = [ToolCall(f"x{id}", "cleans", {"action": "abort", "id": id}) for id in ("r", "s")]
        for response in await turn.run(aborts):
            assert '"stopped"' in response.result
        assert cleaned.count("r") == 1 and cleaned.count("s") == 2


async def test_R5_a_transient_failure_is_tried_again_by_the_engine(temporal: Place) -> None:
    @tool(engine="temporal", on_crash="replay", retry="safe")
    async def flaky(call: Call) -> int:
        if call.attempt < 3:
            raise ToolError("not yet", transient=True)
        return call.attempt

    async with working(temporal, [flaky]), front_end(temporal, [flaky]) as rt, rt.turn() as turn:
        (response,) = await turn.run([ToolCall("f", "flaky", {})])
    assert response.result == "3"


async def test_E8_process_events_count_once_in_all_attempts(temporal: Place) -> None:
    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def emits(call: Call) -> str:
        fx = call.durable()
        await fx.emit_process_event("begun", {"n": 1})
        await fx.sleep(0.5)
        await fx.emit_process_event("over")
        return "x"

    async with working(temporal, [emits], suspend_secs=0.1), front_end(temporal, [emits]) as rt, rt.turn() as turn:
        await turn.run([spawn("emits", "e")])
        await _ended(turn, "e")
        events = await rt.process_events((await turn.handle("e")).uid)
    assert [(event.type, event.payload) for event in events] == [("begun", {"n": 1}), ("over", None)]


async def test_a_front_end_that_comes_later_finds_the_call_and_its_output(temporal: Place, tmp_path: Path) -> None:
    keys: list[str] = []

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def waits(call: Call) -> str:
        fx = call.durable()
        call.emit("before\n")
        key = await fx.external_event_key("go")
        keys.append(key)
        got = await fx.await_event_json(key)
        call.emit("after\n")
        return f"got {got}"

    store = f"sqlite:///{tmp_path}/k.db"
    async with working(temporal, [waits], suspend_secs=0.2) as (worker,):
        async with front_end(temporal, [waits], store) as rt:
            assert rt.front_end is not None and rt.front_end.url is not None
            port = int(rt.front_end.url.rpartition(":")[2])
            async with rt.turn("c") as turn:
                await turn.run([spawn("waits", "w")])
                await until(lambda: worker.finished == 1)
        async with front_end(temporal, [waits], store, port=port) as rt:
            assert str(await rt.resolve(keys[0], {"status": "ok", "payload": 5})) == "accepted"
            await until(lambda: _stopped(rt))
            handle = await rt.handle("w", conversation="c")
            assert handle.outcome.value == "got 5"  # type: ignore[union-attr]
            output = await _output(rt)
    assert "before\n--- attempt 2 ---\nbefore\nafter\n" in output.replace("\\n", "\n")


async def _stopped(rt: Runtime) -> bool:
    return (await rt.handle("w", conversation="c")).state == "stopped"


async def _output(rt: Runtime) -> str:
    async with rt.turn("c") as turn:
        (response,) = await turn.run([ToolCall("f", "read_output", {"id": "w"})])
    return response.result
