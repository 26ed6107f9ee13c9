"""`list_wait_handles` and `sleep` (W1, W3)."""

import asyncio

from tests.turn.calls import STATEFUL, spawn
from tests.unit.waiting.calls import calling

import keephold
from keephold.testing import VirtualClock


async def test_sleeping_is_answered_as_the_seed_writes_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert await ask("sleep", durationMs=5000, label="rate-limit-delay") == {
            "success": True,
            "label": "rate-limit-delay",
            "requestedDurationMs": 5000,
            "actualDurationMs": 5000,
            "startTime": "2026-01-01T00:00:00.000Z",
            "endTime": "2026-01-01T00:00:05.000Z",
        }
        assert "label" not in await ask("sleep", durationMs=0)
        assert "durationMs" in (await ask.error("sleep", durationMs=-1))["error"]


async def test_W1_a_sleep_is_a_timer_while_it_lasts(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        sleeping = group.create_task(ask("sleep", durationMs=5000))
        await clock.advance(2)
        listed = await ask("list_wait_handles", type="timer")
        (timer,) = listed["handles"]
        assert (timer["type"], timer["status"], timer["elapsedMs"]) == ("timer", "pending", 2000)
        assert (await ask.wait_for(timer["id"]))["waitedMs"] == 3000
        await sleeping
        assert (await ask("list_wait_handles"))["stats"]["total"] == 0


async def test_the_list_is_as_the_seed_writes_it(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def noted() -> str:
        return "done"

    async with calling(clock, noted) as ask:
        await ask.create("agent-exec-1", type="agent", metadata={"priority": "high"})
        await ask.create("w", type="workflow", timeoutMs=100)
        await ask.create("c")
        await ask.create("f", type="hook")
        await ask.complete("c", result=[])
        await ask.complete("f", error="no")
        async with ask.rt.turn("main") as turn:
            await turn.run([spawn("noted", "n"), keephold.ToolCall("1", "noted")])
        await clock.advance(5.234)
        listed = await ask("list_wait_handles", status="pending", type="agent")
        assert listed == {
            "stats": {
                "total": 5,
                "filtered": 1,
                "byStatus": {"pending": 1, "completed": 2, "failed": 1, "timeout": 1},
                "byType": {"agent": 1, "workflow": 1, "timer": 0, "hook": 1, "custom": 1, "tool": 1},
            },
            "filters": {"status": "pending", "type": "agent"},
            "handles": [
                {
                    "id": "agent-exec-1",
                    "type": "agent",
                    "status": "pending",
                    "elapsedMs": 5234,
                    "elapsedTime": "5s",
                    "startTime": "2026-01-01T00:00:00.000Z",
                    "hasResult": False,
                    "hasError": False,
                    "metadata": {"priority": "high"},
                }
            ],
        }
        everything = await ask("list_wait_handles")
        assert everything["filters"] == {"status": "all", "type": "all"}
        facts = {each["id"]: (each["status"], each["hasResult"], each["hasError"]) for each in everything["handles"]}
        assert facts == {
            "agent-exec-1": ("pending", False, False),
            "w": ("timeout", False, True),
            "c": ("completed", True, False),
            "f": ("failed", False, True),
            "n": ("completed", True, False),
        }


async def test_pages_and_metadata(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        for n in range(25):
            await ask.create(f"h{n}", metadata={"even": n % 2 == 0, "text": "x" * 2000})
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await ask("list_wait_handles", metadata={"even": True}, **cursor)
            assert page["stats"]["filtered"] == 13 and page["filters"]["metadata"] == {"even": True}
            seen += [each["id"] for each in page["handles"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert seen == [f"h{n}" for n in range(0, 25, 2)]
        assert len((await ask("list_wait_handles", limit=2))["handles"]) == 2


async def test_conversations_do_not_see_each_other(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        ask.conversation = "other"
        assert (await ask("list_wait_handles"))["stats"]["total"] == 0
        assert "not found" in (await ask.error("wait_for", handleId="h"))["error"]
