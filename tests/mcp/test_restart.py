"""A server that is killed and started again on its store and port: what was promised is still there (M2, R1, R4)."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp.shared.exceptions import MCPError
from tests.mcp.clients import ERAS, KnowsTasks, Person, ask, connected, listening, read, start_task, task_is, texts
from tests.mcp.serving import Office, Process
from tests.patience import PATIENCE, until


async def reconnecting(url: str, era: str, name: str, **arguments: Any) -> Any:
    """A client that tries again until it is answered."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with connected(url, era) as client:
                    return read(await client.call_tool(name, arguments))
            except* (MCPError, httpx2.HTTPError):
                pass
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("era", ERAS)
async def test_R4_handles_and_waits_outlive_a_killed_server(era: str, office: Office) -> None:
    server = Process(office)
    async with connected(server.url, era) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom", "metadata": {"of": "us"}})
        spawned = {"action": "spawn", "id": "a", "keys": office.path("key")}
        assert read(await client.call_tool("approve", spawned))["parked"] is True
    waits = [
        asyncio.create_task(reconnecting(server.url, era, "wait_for", handleId="h")),
        asyncio.create_task(reconnecting(server.url, era, "await", all=["h", "a"])),
    ]
    await asyncio.sleep(0.5)
    server.kill()
    server.start()
    async with connected(server.url, era) as client:
        listed = read(await client.call_tool("list_wait_handles", {}))
        assert {handle["id"]: handle["status"] for handle in listed["handles"]} == {"h": "pending", "a": "pending"}
        done = await client.call_tool("complete_wait_handle", {"handleId": "h", "result": {"n": 1}})
        assert read(done)["status"] == "completed"
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        key = Path(office.path("key")).read_text()
        answered = await http.post(f"{server.base}/complete/{key}", json={"status": "ok", "payload": "approved"})
        assert (answered.status_code, answered.json()) == (200, {"status": "accepted"})
    one, both = await asyncio.gather(*waits)
    assert (one["status"], one["result"]) == ("completed", {"n": 1})
    assert [(each["id"], each["result"]) for each in both["completed"]] == [("h", '{"n":1}'), ("a", "approved")]


async def test_M2_tasks_outlive_a_killed_server_as_their_tool_says(office: Office) -> None:
    """`replay` goes on and asks again; `fail` has failed; one that was over stays as it was."""
    server = Process(office)
    async with connected(server.url, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
        replayed = await start_task(client, "deploy", notes=office.path("notes"))
        asked = await task_is(client, replayed, "input_required")
        failed = await start_task(client, "fragile", gate=office.path("never"))
        office.open("now")
        over = await start_task(client, "fragile", gate=office.path("now"))
        before = await task_is(client, over, "completed")
    server.kill()
    server.start()
    async with connected(server.url, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
        assert await task_is(client, over, "completed") == before
        crashed = await task_is(client, failed, "failed")
        assert crashed["error"]["code"] == -32603
        again = await task_is(client, replayed, "input_required")
        (key,) = again["inputRequests"]
        assert again["inputRequests"][key] == asked["inputRequests"][key]
        said = {"action": "accept", "content": {"sure": True}}
        await ask(client, "tasks/update", taskId=replayed, inputResponses={key: said})
        done = await task_is(client, replayed, "completed")
        assert done["result"]["content"][0]["text"] == "deployed: True"
    assert Path(office.path("notes")).read_text() == "attempt 1\nattempt 2\n"


async def test_M2_a_task_answered_before_the_crash_is_not_asked_again(office: Office) -> None:
    """What was acknowledged counts (R4)."""
    server = Process(office)
    async with connected(server.url, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
        tasks = [await start_task(client, "deploy", notes=office.path("notes")) for _ in range(5)]
        for task in tasks:
            (key,) = (await task_is(client, task, "input_required"))["inputRequests"]
            said = {"action": "accept", "content": {"sure": True}}
            await ask(client, "tasks/update", taskId=task, inputResponses={key: said})
    server.kill()  # as soon as the last answer was acknowledged
    server.start()
    async with connected(server.url, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
        for task in tasks:
            done = await task_is(client, task, "completed", "input_required", "failed")
            assert done["status"] == "completed", done


async def test_M3_a_call_that_its_client_left_is_found_after_a_restart(office: Office) -> None:
    """By the id that it has since then; its tool does not survive, and that is said."""
    server = Process(office)
    async with connected(server.url) as client:
        lost = asyncio.create_task(client.call_tool("wait_at", {"gate": office.path("gate")}))
        await until(Path(office.path("gate.begun")).exists)
        lost.cancel()
        async with asyncio.timeout(PATIENCE):
            while not (listed := read(await client.call_tool("list_wait_handles", {}))["handles"]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    (found,) = listed
    server.kill()
    server.start()
    async with connected(server.url) as client:
        waited = await client.call_tool("wait_for", {"handleId": found["id"]})
        assert waited.is_error and read(waited)["status"] == "failed"


async def test_R4_a_client_comes_back_with_its_answer_after_a_restart(office: Office) -> None:
    """The call that asked is run again, and gets it."""
    server = Process(office)
    given = {"notes": office.path("notes")}
    async with connected(server.url, elicitation_callback=Person()) as client:
        asked = await client.session.call_tool("sign", given, allow_input_required=True)
    assert isinstance(asked, mcp_types.InputRequiredResult)
    (key,) = asked.input_requests or {}
    server.kill()
    server.start()
    said: Any = {key: mcp_types.ElicitResult(action="accept", content={"sure": True})}
    back = {"input_responses": said, "request_state": asked.request_state}
    async with connected(server.url, elicitation_callback=Person({"sure": True})) as client:
        assert texts(await client.call_tool("sign", given, **back))[0] == "signed: True"
    assert Path(office.path("notes")).read_text() == "attempt 1\nattempt 2\n"


async def test_E6_a_server_that_lives_takes_over_from_one_that_died(office: Office) -> None:
    """Whoever listens there hears of it; a question is asked there."""
    dies, lives, told = Process(office), Process(office), KnowsTasks()
    async with connected(dies.url, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
        replayed = await start_task(client, "deploy", notes=office.path("notes"))
        (key,) = (await task_is(client, replayed, "input_required"))["inputRequests"]
        failed = await start_task(client, "fragile", gate=office.path("never"))
    async with connected(lives.url, tasks=told, elicitation_callback=Person()) as client:
        async with listening(client, taskIds=[failed]) as acknowledged:
            await acknowledged
            dies.kill()
            assert [each["status"] for each in await told.heard(failed, "failed")] == ["working", "failed"]
        await until(lambda: Path(office.path("notes")).read_text() == "attempt 1\nattempt 2\n")
        asked = await task_is(client, replayed, "input_required")
        (key,) = asked["inputRequests"]
        said = {"action": "accept", "content": {"sure": True}}
        await ask(client, "tasks/update", taskId=replayed, inputResponses={key: said})
        assert (await task_is(client, replayed, "completed"))["result"]["content"][0]["text"] == "deployed: True"
