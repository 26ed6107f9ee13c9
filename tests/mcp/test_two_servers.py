"""Two servers on one store: it does not matter which of them a client talks to (W8, M2)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp.clients import ERAS, KnowsTasks, Person, ask, connected, read, start_task, task_is
from tests.mcp.serving import Office, Process

YES = {"action": "accept", "content": {"sure": True}}


@pytest.fixture
def servers(office: Office) -> Iterator[tuple[Process, Process]]:
    yield Process(office), Process(office)


@pytest.mark.parametrize("era", ERAS)
async def test_W8_a_handle_of_one_is_waited_for_at_the_other(servers: tuple[Process, Process], era: str) -> None:
    one, other = servers
    async with connected(one.url, era) as here, connected(other.url, era) as there:
        for number in range(5):
            id = f"h{number}"
            await here.call_tool("create_wait_handle", {"handleId": id, "type": "custom"})
            wait_for = asyncio.create_task(there.call_tool("wait_for", {"handleId": id, "timeoutMs": 20_000}))
            awaiting = asyncio.create_task(there.call_tool("await", {"all": [id], "timeout_secs": 20}))
            await asyncio.sleep(0.05 * (number % 2))
            await here.call_tool("complete_wait_handle", {"handleId": id, "result": number})
            assert read(await wait_for)["result"] == number
            assert read(await awaiting)["completed"][0]["result"] == str(number)


async def test_W8_a_spawned_handle_is_driven_from_the_other(servers: tuple[Process, Process], office: Office) -> None:
    one, other = servers
    async with connected(one.url) as here, connected(other.url) as there:
        await here.call_tool("work", {"action": "spawn", "id": "w", "gate": office.path("gate")})
        fetched = read(await there.call_tool("work", {"action": "fetch", "id": "w"}))
        assert fetched["state"] == "running"
        aborted = read(await there.call_tool("work", {"action": "abort", "id": "w"}))
        assert (aborted["state"], aborted["ended_by"]) == ("stopped", "abort")
        assert read(await here.call_tool("work", {"action": "fetch", "id": "w"}))["state"] == "stopped"


async def test_M2_a_task_is_followed_and_answered_at_the_other(
    servers: tuple[Process, Process], office: Office
) -> None:
    one, other = servers
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=KnowsTasks(), elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("notes"))
        asked = await task_is(there, task, "input_required")
        (key,) = asked["inputRequests"]
        assert asked["inputRequests"][key]["params"]["message"] == "Deploy?"
        await ask(there, "tasks/update", taskId=task, inputResponses={key: YES})
        for client in (there, here):
            done = await task_is(client, task, "completed")
            assert done["result"]["content"][0]["text"] == "deployed: True"
    assert Path(office.path("notes")).read_text() == "attempt 1\n"


async def test_M2_a_question_has_one_key_at_both(servers: tuple[Process, Process], office: Office) -> None:
    """Who saw the question at one may answer it at the other."""
    one, other = servers
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=KnowsTasks(), elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("notes"))
        seen_here = await task_is(here, task, "input_required")
        seen_there = await task_is(there, task, "input_required")
        assert seen_here["inputRequests"] == seen_there["inputRequests"]


async def test_M2_a_task_is_declined_at_the_other(servers: tuple[Process, Process], office: Office) -> None:
    one, other = servers
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=KnowsTasks(), elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("notes"))
        (key,) = (await task_is(there, task, "input_required"))["inputRequests"]
        await ask(there, "tasks/update", taskId=task, inputResponses={key: {"action": "decline"}})
        done = await task_is(there, task, "completed", "failed", "cancelled")
        assert done["status"] == "completed" and done["result"]["isError"] is True


async def test_M2_a_task_is_cancelled_at_the_other(servers: tuple[Process, Process], office: Office) -> None:
    one, other = servers
    async with (
        connected(one.url, tasks=KnowsTasks()) as here,
        connected(other.url, tasks=KnowsTasks()) as there,
    ):
        task = await start_task(here, "fragile", gate=office.path("never"))
        await ask(there, "tasks/cancel", taskId=task)
        assert (await task_is(there, task, "cancelled"))["status"] == "cancelled"
        assert (await task_is(here, task, "cancelled"))["status"] == "cancelled"
        await ask(here, "tasks/cancel", taskId=task)  # one that is over stays as it is


async def test_W6_of_two_completions_one_is_accepted(servers: tuple[Process, Process]) -> None:
    async with connected(servers[0].url) as here, connected(servers[1].url) as there:
        for number in range(10):
            await here.call_tool("create_wait_handle", {"handleId": f"h{number}", "type": "custom"})
            answers = await asyncio.gather(
                *(
                    client.call_tool("complete_wait_handle", {"handleId": f"h{number}", "result": who})
                    for who, client in (("here", here), ("there", there))
                )
            )
            accepted = [read(answer) for answer in answers if not answer.is_error]
            refused = [read(answer) for answer in answers if answer.is_error]
            assert len(accepted) == 1
            assert refused == [
                {"error": f"Wait handle h{number} is already completed", "currentStatus": "completed", "isError": True}
            ]
            for client in (here, there):
                found = read(await client.call_tool("wait_for", {"handleId": f"h{number}"}))
                assert found["result"] == accepted[0]["result"]
