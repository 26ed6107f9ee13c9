"""Two servers on one store: it does not matter which of them a client talks to (W8, M2)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mcp_types
import pytest
from mcp.client.subscriptions import ResourceUpdated
from tests.mcp.clients import ERAS, KnowsTasks, Person, ask, connected, listening, read, start_task, task_is, texts
from tests.mcp.serving import Office, Process
from tests.patience import PATIENCE

LIST = "keephold://handles"
YES = {"action": "accept", "content": {"sure": True}}


class Pair(NamedTuple):
    """Two servers, and the place they share. Each test uses names of its own."""

    office: Office
    one: Process
    other: Process


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    office = Office(tmp_path_factory.mktemp("office"))
    yield Pair(office, Process(office), Process(office))
    office.close()


@pytest.mark.parametrize("era", ERAS)
async def test_W8_a_handle_of_one_is_waited_for_at_the_other(pair: Pair, era: str) -> None:
    async with connected(pair.one.url, era) as here, connected(pair.other.url, era) as there:
        for number in range(5):
            id = f"{era}-{number}"
            await here.call_tool("create_wait_handle", {"handleId": id, "type": "custom"})
            wait_for = asyncio.create_task(there.call_tool("wait_for", {"handleId": id, "timeoutMs": 20_000}))
            awaiting = asyncio.create_task(there.call_tool("await", {"all": [id], "timeout_secs": 20}))
            await asyncio.sleep(0.05 * (number % 2))
            await here.call_tool("complete_wait_handle", {"handleId": id, "result": number})
            assert read(await wait_for)["result"] == number
            assert read(await awaiting)["completed"][0]["result"] == str(number)


async def test_W8_a_spawned_handle_is_driven_from_the_other(pair: Pair) -> None:
    office, one, other = pair
    async with connected(one.url) as here, connected(other.url) as there:
        await here.call_tool("work", {"action": "spawn", "id": "w", "gate": office.path("gate")})
        fetched = read(await there.call_tool("work", {"action": "fetch", "id": "w"}))
        assert fetched["state"] == "running"
        aborted = read(await there.call_tool("work", {"action": "abort", "id": "w"}))
        assert (aborted["state"], aborted["ended_by"]) == ("stopped", "abort")
        assert read(await here.call_tool("work", {"action": "fetch", "id": "w"}))["state"] == "stopped"


async def test_M2_a_task_is_followed_and_answered_at_the_other(pair: Pair) -> None:
    office, one, other = pair
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=KnowsTasks(), elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("followed"))
        asked = await task_is(there, task, "input_required")
        (key,) = asked["inputRequests"]
        assert asked["inputRequests"][key]["params"]["message"] == "Deploy?"
        await ask(there, "tasks/update", taskId=task, inputResponses={key: YES})
        for client in (there, here):
            done = await task_is(client, task, "completed")
            assert done["result"]["content"][0]["text"] == "deployed: True"
    assert Path(office.path("followed")).read_text() == "attempt 1\n"


async def test_M2_a_question_has_one_key_at_both(pair: Pair) -> None:
    """Who saw the question at one may answer it at the other."""
    office, one, other = pair
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=KnowsTasks(), elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("keyed"))
        seen_here = await task_is(here, task, "input_required")
        seen_there = await task_is(there, task, "input_required")
        assert seen_here["inputRequests"] == seen_there["inputRequests"]
        await ask(there, "tasks/cancel", taskId=task)


async def test_M2_a_task_is_declined_at_the_other(pair: Pair) -> None:
    office, one, other = pair
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=KnowsTasks(), elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("declined"))
        (key,) = (await task_is(there, task, "input_required"))["inputRequests"]
        await ask(there, "tasks/update", taskId=task, inputResponses={key: {"action": "decline"}})
        done = await task_is(there, task, "completed", "failed", "cancelled")
        assert done["status"] == "completed" and done["result"]["isError"] is True


async def test_M2_a_task_is_cancelled_at_the_other(pair: Pair) -> None:
    office, one, other = pair
    async with (
        connected(one.url, tasks=KnowsTasks()) as here,
        connected(other.url, tasks=KnowsTasks()) as there,
    ):
        task = await start_task(here, "fragile", gate=office.path("never"))
        await ask(there, "tasks/cancel", taskId=task)
        assert (await task_is(there, task, "cancelled"))["status"] == "cancelled"
        assert (await task_is(here, task, "cancelled"))["status"] == "cancelled"
        await ask(here, "tasks/cancel", taskId=task)  # one that is over stays as it is


async def test_W6_of_two_completions_one_is_accepted(pair: Pair) -> None:
    async with connected(pair.one.url) as here, connected(pair.other.url) as there:
        for number in range(10):
            await here.call_tool("create_wait_handle", {"handleId": f"race-{number}", "type": "custom"})
            answers = await asyncio.gather(
                *(
                    client.call_tool("complete_wait_handle", {"handleId": f"race-{number}", "result": who})
                    for who, client in (("here", here), ("there", there))
                )
            )
            accepted = [read(answer) for answer in answers if not answer.is_error]
            refused = [read(answer) for answer in answers if answer.is_error]
            assert len(accepted) == 1
            (told,) = refused
            assert told.pop("try") == f'await {{"all":["race-{number}"],"timeout_secs":0}}'
            assert told == {
                "error": f"Wait handle race-{number} is already completed",
                "currentStatus": "completed",
                "isError": True,
            }
            for client in (here, there):
                found = read(await client.call_tool("wait_for", {"handleId": f"race-{number}"}))
                assert found["result"] == accepted[0]["result"]


async def test_M2_a_task_is_told_at_the_other(pair: Pair) -> None:
    office, one, other = pair
    tasks = KnowsTasks()
    async with (
        connected(one.url, tasks=KnowsTasks(), elicitation_callback=Person()) as here,
        connected(other.url, tasks=tasks, elicitation_callback=Person()) as there,
    ):
        task = await start_task(here, "deploy", notes=office.path("told"))
        (key,) = (await task_is(here, task, "input_required"))["inputRequests"]
        async with listening(there, taskIds=[task]) as acknowledged:
            assert (await acknowledged)["taskIds"] == [task]
            assert (await tasks.told.get())["status"] == "input_required"
            await ask(here, "tasks/update", taskId=task, inputResponses={key: YES})
            await tasks.heard(task, "completed")


async def test_W8_changes_of_handles_are_told_at_the_other(pair: Pair) -> None:
    async with connected(pair.one.url) as here, connected(pair.other.url) as there:
        await here.call_tool("create_wait_handle", {"handleId": "told", "type": "custom"})
        async with (
            there.listen(resource_subscriptions=[f"{LIST}/told"]) as one_handle,
            there.listen(resource_subscriptions=[LIST]) as all_handles,
            asyncio.timeout(PATIENCE),
        ):
            await here.call_tool("complete_wait_handle", {"handleId": "told", "result": 1})
            assert await anext(one_handle) == ResourceUpdated(uri=f"{LIST}/told")
            assert await anext(all_handles) == ResourceUpdated(uri=LIST)
            await here.call_tool("create_wait_handle", {"handleId": "made", "type": "custom"})
            assert await anext(all_handles) == ResourceUpdated(uri=LIST)


async def test_E2_a_client_that_comes_back_to_the_other_does_not_run_the_tool_again(pair: Pair) -> None:
    """It was asked by one and brings its answer to the other, as behind a proxy."""
    office, one, other = pair
    async with (
        connected(one.url, elicitation_callback=Person()) as here,
        connected(other.url, elicitation_callback=Person()) as there,
    ):
        given = {"notes": office.path("signed")}
        asked = await here.session.call_tool("sign", given, allow_input_required=True)
        assert isinstance(asked, mcp_types.InputRequiredResult)
        (key,) = asked.input_requests or {}
        said: Any = {key: mcp_types.ElicitResult(action="accept", content={"sure": True})}
        done = await there.session.call_tool("sign", given, input_responses=said, request_state=asked.request_state)
        assert texts(done)[0] == "signed: True"
    assert Path(office.path("signed")).read_text() == "attempt 1\n"
