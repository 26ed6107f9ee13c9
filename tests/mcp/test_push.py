"""What is told without being asked for: tasks and handles, on a stream of 2026 and to a session of 2025 (M2, W8)."""

import asyncio
from pathlib import Path
from typing import Any

import mcp_types
from mcp.client.subscriptions import ResourceUpdated
from tests.mcp.clients import KnowsTasks, Person, ask, connected, listening, read, start_task, task_is
from tests.mcp.serving import serving
from tests.patience import PATIENCE, until

YES = {"action": "accept", "content": {"sure": True}}
LIST = "keephold://handles"


async def test_M2_a_task_is_told_from_its_current_state_to_its_end(tmp_path: Path) -> None:
    tasks = KnowsTasks()
    async with serving() as here, connected(here.url, tasks=tasks, elicitation_callback=Person()) as client:
        task = await start_task(client, "deploy", notes=str(tmp_path / "notes"))
        asked = await task_is(client, task, "input_required")
        async with listening(client, taskIds=[task, "unknown"]) as acknowledged:
            assert (await acknowledged)["taskIds"] == [task]
            first = await tasks.told.get()
            assert first["status"] == "input_required" and first["inputRequests"] == asked["inputRequests"]
            (key,) = first["inputRequests"]
            await ask(client, "tasks/update", taskId=task, inputResponses={key: YES})
            last = (await tasks.heard(task, "completed"))[-1]
            assert last["result"]["content"][0]["text"] == "deployed: True"
            polled = await ask(client, "tasks/get", taskId=task)
            assert {**last, "resultType": "complete", "_meta": None} == {**polled, "_meta": None}
        await until(here.idle)
        assert tasks.told.empty()  # nothing is told after the end


async def test_M2_a_task_that_is_over_is_told_once(tmp_path: Path) -> None:
    tasks = KnowsTasks()
    (tmp_path / "gate").touch()
    async with serving() as here, connected(here.url, tasks=tasks) as client:
        task = await start_task(client, "fragile", gate=str(tmp_path / "gate"))
        await task_is(client, task, "completed")
        async with listening(client, taskIds=[task]):
            assert [each["status"] for each in await tasks.heard(task, "completed")] == ["completed"]
        await until(here.idle)


async def test_M2_a_cancelled_task_is_told(tmp_path: Path) -> None:
    tasks = KnowsTasks()
    async with serving() as here, connected(here.url, tasks=tasks) as client:
        task = await start_task(client, "fragile", gate=str(tmp_path / "gate"))
        async with listening(client, taskIds=[task]) as acknowledged:
            await acknowledged
            await ask(client, "tasks/cancel", taskId=task)
            assert [each["status"] for each in await tasks.heard(task, "cancelled")] == ["working", "cancelled"]


async def test_M2_progress_of_a_task_is_told(tmp_path: Path) -> None:
    """As its status message: progress notifications are not for tasks."""
    tasks = KnowsTasks()
    async with serving(task_after=0) as here, connected(here.url, tasks=tasks) as client:
        task = await start_task(client, "measure", gate=str(tmp_path / "gate"))
        async with listening(client, taskIds=[task]) as acknowledged:
            await acknowledged
            async with asyncio.timeout(PATIENCE):
                while (await tasks.told.get()).get("statusMessage") != "step 3":
                    pass
            (tmp_path / "gate").touch()
            await tasks.heard(task, "completed")


async def test_W8_changes_of_handles_are_told_on_a_stream() -> None:
    async with serving() as here, connected(here.url) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        async with client.listen(resource_subscriptions=[LIST, f"{LIST}/h"]) as stream, asyncio.timeout(PATIENCE):
            await client.call_tool("complete_wait_handle", {"handleId": "h", "result": 1})
            told = {await anext(stream), await anext(stream)}
            assert told == {ResourceUpdated(uri=LIST), ResourceUpdated(uri=f"{LIST}/h")}
            (read_now,) = (await client.read_resource(f"{LIST}/h")).contents
            assert '"stopped"' in getattr(read_now, "text", "")
            await client.call_tool("create_wait_handle", {"handleId": "new", "type": "custom"})
            assert await anext(stream) == ResourceUpdated(uri=LIST)
        await until(here.idle)


async def test_W8_a_handle_that_is_yet_to_come_is_told() -> None:
    """Who subscribes first and creates then must not wait in vain."""
    async with serving() as here, connected(here.url) as client:
        async with client.listen(resource_subscriptions=[f"{LIST}/h"]) as stream, asyncio.timeout(PATIENCE):
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            await client.call_tool("complete_wait_handle", {"handleId": "h", "result": 1})
            assert await anext(stream) == ResourceUpdated(uri=f"{LIST}/h")
        await until(here.idle)


async def test_W8_changes_of_handles_are_told_to_a_session() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.put_nowait(str(message.params.uri))

    async with serving() as here:
        async with connected(here.url, "legacy", message_handler=note) as client, asyncio.timeout(PATIENCE):
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            await client.call_tool("create_wait_handle", {"handleId": "other", "type": "custom"})
            await ask(client, "resources/subscribe", uri=f"{LIST}/h")
            await ask(client, "resources/subscribe", uri=f"{LIST}/other")
            await ask(client, "resources/unsubscribe", uri=f"{LIST}/other")
            await client.call_tool("complete_wait_handle", {"handleId": "other"})
            await client.call_tool("complete_wait_handle", {"handleId": "h"})
            assert await told.get() == f"{LIST}/h"
            await ask(client, "resources/subscribe", uri=LIST)
            await client.call_tool("create_wait_handle", {"handleId": "new", "type": "custom"})
            assert await told.get() == LIST
        await until(here.idle)  # the session is over, and with it its subscriptions


async def test_W8_a_stream_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    async with serving() as here:
        async with connected(here.url, tasks=KnowsTasks()) as client:
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            task = await start_task(client, "fragile", gate=str(tmp_path / "gate"))
            for _ in range(5):
                async with (
                    listening(client, taskIds=[task], resourceSubscriptions=[LIST, f"{LIST}/h"]) as acknowledged,
                    asyncio.timeout(PATIENCE),
                ):
                    await acknowledged
            await ask(client, "tasks/cancel", taskId=task)
        await until(here.idle)
        async with connected(here.url) as client:
            assert read(await client.call_tool("wait_for", {"handleId": "h", "timeoutMs": 0}))["status"] == "timeout"
