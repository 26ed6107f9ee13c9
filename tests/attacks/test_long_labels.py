"""No text that lists show is long: a list of a few handles would block everybody while it is made (W1, K10)."""

from typing import Any

import pytest
from tests.turn.calls import TALKING, opened, replies, spawn
from tests.unit.waiting.calls import calling

import keephold
from keephold import Call, Question
from keephold.testing import VirtualClock

LONG = "n" * 1001
STEPS = [{"id": "a", "type": "delay", "config": {"ms": 10_000}}]
TOO_LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a new task": ("create_task", {"taskId": "u", "taskName": LONG}),
    "a task": ("update_task_status", {"taskId": "t", "status": "blocked", "taskName": LONG}),
    "a task that it makes": ("update_task_status", {"taskId": "v", "status": "blocked", "taskName": LONG}),
    "progress": ("update_wait_handle", {"handleId": "task_t", "progress": 1, "message": LONG}),
    "a workflow's name": ("execute_workflow_async", {"workflowId": "w", "name": LONG, "steps": STEPS}),
    "a workflow's id": ("execute_workflow_async", {"workflowId": LONG, "name": "w", "steps": STEPS}),
}


@pytest.mark.parametrize("tool, arguments", TOO_LONG.values(), ids=TOO_LONG)
async def test_W1_a_label_that_is_too_long_is_refused(
    clock: VirtualClock, tool: str, arguments: dict[str, Any]
) -> None:
    async with calling(clock) as ask:
        await ask("create_task", taskId="t", taskName="n" * 1000)
        before = await ask("list_wait_handles")
        refused = await ask.error(tool, **arguments)
        assert "must have at most 1000 characters" in refused["error"] and len(refused["error"]) < 1000
        assert await ask("list_wait_handles") == before


async def test_W1_what_a_tool_says_about_its_progress_is_cut(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def work(call: Call) -> None:
        call.progress(1, 2, LONG)
        await call.ask(Question(id="q", text="?"))

    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w"))
        progress = (await rt.handle("w", conversation="main")).progress
        assert progress is not None and progress.message == LONG[:1000]
