"""Tasks and their timers (W9)."""

import asyncio
from typing import Any

from tests.unit.waiting.calls import Caller, calling
from tests.wait_tools import with_wait_tools

from keephold import ToolCall
from keephold.testing import VirtualClock


async def status(ask: Caller, to: str, **more: Any) -> Any:
    return await ask("update_task_status", taskId="t", status=to, **more)


async def test_W9_a_task_is_created_with_a_timer(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert await ask("create_task", taskId="t", taskName="Write", metadata={"owner": "me"}) == {
            "success": True,
            "timerInitialized": True,
            "taskId": "t",
            "taskName": "Write",
            "status": "not-started",
            "timerActive": False,
            "isPaused": False,
            "elapsedMs": 0,
            "elapsedTime": "0ms",
            "metadata": {"owner": "me"},
        }
        begun = await ask("create_task", taskId="u", taskName="U", initialStatus="in-progress")
        assert (begun["timerActive"], begun["startTime"]) == (True, "2026-01-01T00:00:00.000Z")
        again = await ask.error("create_task", taskId="t", taskName="Write")
        assert again["error"] == "Task t already exists. Use update_task_status to modify existing tasks."


async def test_W9_a_task_can_be_waited_for(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask("create_task", taskId="t", taskName="Write", initialStatus="in-progress")
        waiting = group.create_task(ask.wait_for("task_t"))
        await clock.advance(63)
        done = await status(ask, "completed", metadata={"pages": 3})
        assert done == {
            "success": True,
            "taskId": "t",
            "taskName": "Write",
            "previousStatus": "in-progress",
            "newStatus": "completed",
            "timerActive": False,
            "isPaused": False,
            "elapsedMs": 63_000,
            "elapsedTime": "1m 3s",
            "startTime": "2026-01-01T00:00:00.000Z",
            "endTime": "2026-01-01T00:01:03.000Z",
            "metadata": {"pages": 3},
            "message": 'Task "Write" status updated: in-progress → completed (timer: 1m 3s)',
        }
        waited = await waiting
        assert (waited["type"], waited["status"]) == ("custom", "completed")
        assert (waited["result"]["taskId"], waited["result"]["elapsedMs"]) == ("t", 63_000)
        assert (await ask.error("update_task_status", taskId="t", status="completed"))["currentStatus"] == "completed"


async def test_W9_blocked_and_paused_time_is_no_work(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask("create_task", taskId="t", taskName="T", initialStatus="in-progress")
        await clock.advance(10)
        blocked = await status(ask, "blocked")
        assert (blocked["isPaused"], blocked["timerActive"], blocked["elapsedMs"]) == (True, False, 10_000)
        await clock.advance(100)
        assert (await status(ask, "in-progress"))["elapsedMs"] == 10_000
        await clock.advance(5)
        paused = await ask("pause_resume_task_timer", taskId="t", action="pause")
        assert (paused["message"], paused["elapsedMs"]) == ("Timer paused", 15_000)
        again = await ask("pause_resume_task_timer", taskId="t", action="pause")
        assert again["message"] == "Timer is already paused"
        await clock.advance(100)
        await ask("pause_resume_task_timer", taskId="t", action="resume")
        resumed = await ask("pause_resume_task_timer", taskId="t", action="resume")
        assert resumed["message"] == "Timer is not paused"
        await clock.advance(1)
        assert (await ask("get_task_timer", taskId="t"))["elapsedMs"] == 16_000
        assert (await status(ask, "completed"))["elapsedMs"] == 16_000


async def test_W9_without_auto_timer_the_timer_goes_its_own_way(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask("create_task", taskId="t", taskName="T")
        assert (await status(ask, "in-progress", autoTimer=False))["timerActive"] is False


async def test_W9_reopening_makes_a_new_handle_and_clears_the_end(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask("create_task", taskId="t", taskName="T", initialStatus="in-progress")
        await clock.advance(2)
        await status(ask, "completed")
        first = await ask.rt.handle("task_t", conversation="main")
        await clock.advance(100)
        reopened = await status(ask, "in-progress")
        assert reopened["previousStatus"] == "completed" and "endTime" not in reopened
        second = await ask.rt.handle("task_t", conversation="main")
        assert (second.state, first.state) == ("running", "stopped") and second.uid != first.uid
        await clock.advance(3)
        assert (await status(ask, "completed"))["elapsedMs"] == 5000
        assert (await ask("list_tasks"))["count"] == 1


async def test_W9_an_unknown_task_is_made_by_its_first_status(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert "taskName" in (await ask.error("update_task_status", taskId="t", status="in-progress"))["error"]
        made = await status(ask, "completed", taskName="At once")
        assert (made["previousStatus"], made["newStatus"]) == (None, "completed")
        assert (await ask.wait_for("task_t"))["status"] == "completed"


async def test_D8_a_task_is_not_completed_by_its_handle(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask("create_task", taskId="t", taskName="T")
        assert "update_task_status" in (await ask.error("complete_wait_handle", handleId="task_t"))["error"]
        refused = await ask.error("update_wait_handle", handleId="task_t", metadata={"status": "wrong"})
        assert "update_task_status" in refused["error"]
        await ask("update_wait_handle", handleId="task_t", progress=1)
        assert (await ask("get_task", taskId="t"))["status"] == "not-started"


async def test_a_handle_of_the_name_that_is_no_task(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("task_t")
        assert "create_wait_handle" in (await ask.error("create_task", taskId="t", taskName="T"))["error"]
        assert "not found" in (await ask.error("get_task", taskId="u"))["error"]


async def test_listing_tasks(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        for id, secs in (("a", 1), ("b", 5), ("c", 2)):
            await ask("create_task", taskId=id, taskName=id, initialStatus="in-progress")
            await clock.advance(secs)
            await ask("update_task_status", taskId=id, status="completed")
        await ask("create_task", taskId="d", taskName="d")
        by_time = await ask("list_tasks", sortBy="longest-running", status="completed")
        assert [task["taskId"] for task in by_time["tasks"]] == ["b", "c", "a"]
        recent = await ask("list_tasks", sortBy="recently-completed", includeStats=False)
        assert [task["taskId"] for task in recent["tasks"]] == ["c", "b", "a", "d"] and "stats" not in recent
        started = await ask("list_tasks", sortBy="recently-started")
        assert started["tasks"][0]["taskId"] == "c"
        assert started["stats"] == {
            "total": 4,
            "byStatus": {"not-started": 1, "in-progress": 0, "completed": 3, "blocked": 0},
        }


async def test_many_tasks_leave_the_reply_json(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        for n in range(80):
            await ask("create_task", taskId=f"t{n}", taskName="T" * 80)
        listed = await ask("list_tasks")
        assert listed["count"] == 80 == len(listed["tasks"]) + listed["omittedCount"]


async def test_task_calls_of_one_batch_act_in_order(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt, rt.turn("main") as turn:
        responses = await turn.run(
            [
                ToolCall("1", "create_task", {"taskId": "t", "taskName": "T"}),
                ToolCall("2", "update_task_status", {"taskId": "t", "status": "in-progress"}),
                ToolCall("3", "update_task_status", {"taskId": "t", "status": "completed"}),
                ToolCall("4", "wait_for", {"handleId": "task_t", "timeoutMs": 0}),
            ]
        )
        assert [response.is_error for response in responses[:3]] == [False] * 3
