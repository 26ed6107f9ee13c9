"""The wait tools on a store that lasts (W8): two servers on one store, crashes, and time that passed meanwhile."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, Story, power_cut, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.unit.waiting.calls import Caller
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Runtime, ToolCall
from keephold.cli.store import without_tools
from keephold.handles.handle import Handle
from keephold.handles.state import Failure, Running, Stopped
from keephold.handles.view import Handles
from keephold.prompts import AgentRequest
from keephold.store.base import Parked, Parking, Record, Registered, Resolution
from keephold.turn.tool_services import ToolServices


async def test_W8_created_here_waited_for_there_completed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 3600)  # by the bell
    store = stored_in(tmp_path)
    async with (
        with_wait_tools(store=store) as one,
        with_wait_tools(store=store) as two,
        asyncio.timeout(PATIENCE),
    ):
        here, there = Caller(one), Caller(two)
        await here.create("h", type="workflow", metadata={"k": 1})
        waiting = asyncio.create_task(there.wait_for("h"))
        racing = asyncio.create_task(there.wait_for_multiple("any", "h"))
        assert (await there("list_wait_handles", metadata={"k": 1}))["stats"]["filtered"] == 1
        await until(lambda: bool(two.registry.waiting))
        await here("update_wait_handle", handleId="h", progress=1, total=2)
        await here.complete("h", result={"from": "one"})
        waited = await waiting
        assert (waited["status"], waited["result"]) == ("completed", {"from": "one"})
        assert (await racing)["completedCount"] == 1


async def test_W6_two_servers_complete_one_handle_once(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    async with with_wait_tools(store=store) as one, with_wait_tools(store=store) as two:
        here, there = Caller(one), Caller(two)
        for n in range(10):
            await here.create(f"h{n}")
            responses = await asyncio.gather(
                *(each.response("complete_wait_handle", handleId=f"h{n}", result=id(each)) for each in (here, there))
            )
            (won,) = [json.loads(each.result) for each in responses if not each.is_error]
            (lost,) = [json.loads(each.result) for each in responses if each.is_error]
            assert lost["currentStatus"] == "completed"
            for each in (here, there):
                assert (await each.wait_for(f"h{n}"))["result"] == won["result"]


async def test_W7_two_servers_create_one_handle_once(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    async with with_wait_tools(store=store) as one, with_wait_tools(store=store) as two:
        made = [each.response("create_wait_handle", handleId="h", type="hook") for each in (Caller(one), Caller(two))]
        assert sorted(each.is_error for each in await asyncio.gather(*made)) == [False, True]


async def test_D5_a_completion_before_it_is_parked_is_kept(tmp_path: Path) -> None:
    """Another server may be quicker than the function that takes the key."""
    async with with_wait_tools(store=stored_in(tmp_path)) as rt:
        registry, now = rt.registry, rt.registry.clock.now()
        record = Record(
            uid=registry.new_uid(), id="early", tool="create_wait_handle", conversation="main", turn="t", batch=0,
            position=0, call_id="", stateful=True, state=Running(now, now), arguments={}, owner=registry.store.owner,
        )  # fmt: skip
        await registry.write((Registered(record),))
        handle = Handle(record, registry.tool("create_wait_handle", "main"))
        result = await rt.durability.waits.complete(handle, Resolution("ok", 1))
        assert result.status == "accepted" and result.state is None
        (state,) = await registry.write((Parked(handle.uid, 1, Parking(), now),))
        assert state.outcome == keephold.outcomes.Ok(1)


async def test_W8_handles_survive_and_time_out_while_nobody_runs(tmp_path: Path) -> None:
    store, clock = stored_in(tmp_path), HandClock()
    async with with_wait_tools(store=store, clock=clock) as rt:
        ask = Caller(rt)
        await ask.create("lasting", type="hook", metadata={"k": 1})
        await ask.create("timed", timeoutMs=60_000)
        after = power_cut(store)
    clock.at += 3600
    async with with_wait_tools(store=after, clock=clock) as rt:
        ask = Caller(rt)
        waited = await ask.wait_for("timed")
        assert (waited["status"], waited["error"]) == ("timeout", "Operation timed out after 60000ms")
        assert (await ask.complete("lasting", result=1))["elapsedMs"] == 3_600_000


async def test_W9_tasks_survive_and_are_shared(tmp_path: Path) -> None:
    store, clock = stored_in(tmp_path), HandClock()
    async with with_wait_tools(store=store, clock=clock) as one:
        await Caller(one)("create_task", taskId="t", taskName="T", initialStatus="in-progress")
        clock.at += 10
        after = power_cut(store)
    async with with_wait_tools(store=after, clock=clock) as one, with_wait_tools(store=after, clock=clock) as two:
        here, there = Caller(one), Caller(two)
        assert (await here("get_task", taskId="t"))["elapsedMs"] == 10_000
        await there("update_task_status", taskId="t", status="blocked", metadata={"why": "x"})
        assert (await here("get_task", taskId="t"))["metadata"] == {"why": "x"}
        waiting = asyncio.create_task(there.wait_for("task_t"))
        await until(lambda: bool(two.registry.waiting))
        await here("update_task_status", taskId="t", status="completed")
        assert (await waiting)["result"]["elapsedMs"] == 10_000
        responses = await asyncio.gather(
            *(each.response("update_task_status", taskId="t", status="blocked") for each in (here, there))
        )
        assert sum(response.is_error for response in responses) <= 1
        assert (await here("list_tasks"))["tasks"][0]["status"] == "blocked"


def life(store: str, story: Story, **options: Any) -> Runtime:
    """A runtime with an agent that does one thing, then may die."""
    rt = with_wait_tools(store=store)

    @rt.agent("worker", **options)
    async def worker(call: Call, request: AgentRequest) -> str:
        if options.get("on_crash") == "replay":
            await call.durable().run_json("work", {"prompt": request.prompt}, story.step("work"))
        else:
            story.did.append("work")
        await story.cut_here()
        return "done"

    return rt


async def begun(rt: Runtime, story: Story) -> str:
    started = await Caller(rt)("execute_agent_async", agentId="worker", prompt="go")
    await story.reached.wait()
    await rt.registry.write(())
    return str(started["handleId"])


async def test_R1_an_agent_that_replays_goes_on_after_a_crash(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()
    async with life(store, story, on_crash="replay") as rt:
        id = await begun(rt, story)
        after = power_cut(store)
    story.dies = False
    async with life(after, story, on_crash="replay") as rt:
        assert (await Caller(rt).wait_for(id))["result"]["response"] == "done"
        assert story.did == ["work"]


async def test_R1_an_agent_that_does_not_fails_with_its_process(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()
    async with life(store, story) as rt:
        id = await begun(rt, story)
        after = power_cut(store)
    async with life(after, story) as rt:
        info = await stopped(rt, id)
        assert info.ended_by == "crash"
        assert (await Caller(rt).wait_for(id))["isError"] is True


async def test_R1_an_agent_nobody_has_waits_for_who_has_it(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()
    async with life(store, story, on_crash="replay") as rt:
        id = await begun(rt, story)
        after = power_cut(store)
    async with with_wait_tools(store=after) as rt:
        assert (await rt.handle(id, conversation="main")).state == "running"
    story.dies = False
    async with life(after, story, on_crash="replay") as rt:
        assert (await Caller(rt).wait_for(id))["status"] == "completed"


async def test_W10_a_crash_resumes_a_workflow_at_its_step(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()

    @keephold.tool
    async def note(what: str) -> str:
        story.did.append(what)
        if what == "second":
            await story.cut_here()
        return what

    steps = [
        {"id": each, "type": "tool", "config": {"name": "note", "arguments": {"what": each}}}
        for each in ("first", "second")
    ]
    async with with_wait_tools([note], store=store) as rt:
        async with rt.turn("main") as turn:
            call = {"workflowId": "w", "name": "W", "steps": steps}
            (response,) = await turn.run([ToolCall("1", "execute_workflow_async", call)])
            id = json.loads(response.result)["handleId"]
            await story.reached.wait()
            await rt.registry.write(())
            after = power_cut(store)
        story.dies = False
    async with with_wait_tools([note], store=after) as rt:
        waited = await Caller(rt).wait_for(id)
        assert [step["result"] for step in waited["result"]["steps"]] == ["first", "second"]
        assert story.did[:2] == ["first", "second"] and story.did.count("first") == 1


async def test_R1_a_workflow_waits_for_who_has_its_tools(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()

    @keephold.tool
    async def mine() -> str:
        await story.cut_here()
        return "went on"

    async with with_wait_tools([mine], store=store) as rt:
        steps = [{"id": "a", "type": "tool", "config": {"name": "mine"}}]
        started = await Caller(rt)("execute_workflow_async", workflowId="w", name="W", steps=steps)
        await story.reached.wait()
        await rt.registry.write(())
        after = power_cut(store)
        story.dies = False
    async with without_tools(after) as rt:
        assert (await rt.handle(started["handleId"], conversation="main")).state == "running"
    async with with_wait_tools(store=after) as rt:
        assert (await rt.handle(started["handleId"], conversation="main")).state == "running"
    async with with_wait_tools([mine], store=after) as rt:
        waited = await Caller(rt).wait_for(started["handleId"])
        assert waited["result"]["finalOutput"] == "went on"


async def test_W10_a_workflow_of_an_unanswered_batch_does_not_wait_for_the_turn(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()

    @keephold.tool
    async def hang() -> str:
        await story.cut_here()
        return "went on"

    steps = [{"id": "a", "type": "tool", "config": {"name": "hang", "arguments": {}}}]
    call = {"workflowId": "w", "name": "W", "steps": steps}
    async with with_wait_tools([hang], store=store) as rt, rt.turn("main") as turn:
        batch = [ToolCall("1", "execute_workflow_async", call), ToolCall("2", "sleep", {"durationMs": 60_000})]
        running = asyncio.create_task(turn.run(batch))
        await story.reached.wait()
        await rt.registry.write(())
        after = power_cut(store)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        story.dies = False
        (handle,) = await rt.handles(conversation="main")
        await Caller(rt)("cancel_wait_handle", handleId=handle.id)
    async with with_wait_tools([hang], store=after) as rt:
        assert (await Caller(rt).wait_for(handle.id, timeoutMs=5000))["status"] == "completed"


async def test_W5_a_sleep_that_is_resumed_sleeps_the_rest(tmp_path: Path) -> None:
    store, clock = stored_in(tmp_path), HandClock()
    async with with_wait_tools(store=store, clock=clock) as rt, rt.turn("main") as turn:
        running = asyncio.create_task(turn.run([ToolCall("1", "sleep", {"durationMs": 60_000})]))
        await until(lambda: bool(rt.live()))
        await rt.registry.write(())
        after = power_cut(store)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    clock.at += 61
    async with (
        with_wait_tools(store=after, clock=clock) as rt,
        rt.turn("main", resume=True) as turn,
        asyncio.timeout(PATIENCE),
    ):
        (response,) = await turn.resume()
        assert json.loads(response.result)["actualDurationMs"] == 61_000


async def test_M3_what_another_server_runs_can_be_cancelled(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()
    async with life(store, story) as one, with_wait_tools(store=store) as two:
        id = await begun(one, story)
        ended = await Caller(two)("cancel_wait_handle", handleId=id, reason="enough")
        assert (ended["status"], ended["error"]) == ("failed", "Cancelled by the assistant: enough")
        assert one.live() == []


async def test_M3_what_another_server_runs_ends_for_the_reason_that_is_given(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()
    async with life(store, story) as one, with_wait_tools(store=store) as two:
        id = await begun(one, story)
        services = ToolServices()
        services.connect(two._parts, two._call_queues)
        handle = await Handles(two.registry, "main").find(id)
        await services.end(handle, Failure("too late", "timeout"), "timeout")
        assert isinstance(handle.state, Stopped) and one.live() == []
        assert (handle.state.ended_by, handle.state.outcome) == ("timeout", Failure("too late", "timeout"))
