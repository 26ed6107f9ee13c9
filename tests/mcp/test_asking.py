"""What a tool asks its user, by the client's forms, in both eras (Q, P over MCP)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from tests.interop.jobs import multi_input
from tests.mcp.clients import (
    ERAS,
    MODERN,
    KnowsTasks,
    Person,
    ask,
    ask_for_task,
    connected,
    read,
    start_task,
    task_is,
    text,
    texts,
)
from tests.mcp.serving import Office, serving
from tests.patience import PATIENCE, until
from tests.simulation.stores import HeldStore


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("sure", "answer"), [(True, "it: yes"), (False, "it: no")])
async def test_Q2_a_question_is_a_form(era: str, sure: bool, answer: str) -> None:
    person = Person({"sure": sure})
    async with serving() as here, connected(here.url, era, elicitation_callback=person) as client:
        assert text(await client.call_tool("confirm", {"what": "it"})) == answer
        ((message, schema),) = person.asked
        assert message == "Really it?"
        assert schema["properties"]["sure"]["type"] == "boolean" and schema["required"] == ["sure"]
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("said", ["decline", "cancel"])
async def test_Q7_a_question_that_is_not_answered_ends_the_call(era: str, said: str) -> None:
    async with serving() as here, connected(here.url, era, elicitation_callback=Person(said)) as client:
        ended = await client.call_tool("confirm", {"what": "it"})
        assert ended.is_error and "sure" in text(ended)
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_C6_a_wrong_answer_is_asked_again(era: str) -> None:
    person = Person({"name": "z"}, {}, {"name": 3}, {"name": "b"})
    async with serving() as here, connected(here.url, era, elicitation_callback=person) as client:
        assert text(await client.call_tool("name_it", {})) == "b"
        messages = [message for message, _ in person.asked]
        assert messages[0] == "Which?" and len(messages) == 4
        assert all(message != "Which?" and message.endswith("Which?") for message in messages[1:])
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_Q2_a_client_that_cannot_ask_is_nobody(era: str) -> None:
    async with serving() as here, connected(here.url, era) as client:
        ended = await client.call_tool("confirm", {"what": "it"})
        assert ended.is_error and "questions" in text(ended) and "sure" in text(ended)
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_K5_a_secret_is_not_asked_for(era: str) -> None:
    person = Person()
    async with serving() as here, connected(here.url, era, elicitation_callback=person) as client:
        ended = await client.call_tool("secret", {})
        assert ended.is_error and person.asked == []
        assert "secret" in text(ended) and "terminal" in text(ended)


@pytest.mark.parametrize("era", ERAS)
async def test_P1_a_tool_of_a_file_is_run_when_its_user_says_so(era: str, office: Office) -> None:
    person = Person({"approve": True}, {"approve": False, "reason": "not today"}, "decline", "cancel")
    async with Client(office.stdio(), mode=era, elicitation_callback=person) as client:
        assert text(await client.call_tool("guarded", {"word": "hello"})).strip() == "hello"
        assert text(await client.call_tool("guarded", {"word": "hello"})) == "Tool skipped by user: not today"
        for _ in range(2):
            refused = await client.call_tool("guarded", {"word": "hello"})
            assert text(refused) == "Tool skipped by user." and not refused.is_error
    assert "guarded" in person.asked[0][0] and "hello" in person.asked[0][0]


async def test_P2_a_client_that_cannot_ask_is_told_what_would_allow_it(office: Office) -> None:
    async with Client(office.stdio()) as client:
        denied = await client.call_tool("guarded", {"word": "hello"})
        assert denied.is_error and 'run = "unattended"' in text(denied)


async def test_Q2_two_clients_are_asked_each_for_its_own() -> None:
    """One that takes its time does not hold up the other."""
    slow, asked = asyncio.Event(), asyncio.Event()

    async def dawdle(context: Any, params: Any) -> mcp_types.ElicitResult:
        asked.set()
        await slow.wait()
        return mcp_types.ElicitResult(action="accept", content={"sure": True})

    for era in ERAS:
        slow.clear()
        asked.clear()
        async with (
            serving() as here,
            connected(here.url, era, elicitation_callback=dawdle) as one,
            connected(here.url, era, elicitation_callback=Person({"sure": False})) as other,
        ):
            first = asyncio.create_task(one.call_tool("confirm", {"what": "one"}))
            await asked.wait()
            assert text(await other.call_tool("confirm", {"what": "other"})) == "other: no"
            slow.set()
            assert text(await first) == "one: yes"


async def test_E2_a_client_that_comes_back_twice_does_not_run_the_tool_twice(tmp_path: Path) -> None:
    """Its first return may have been lost on the way; the second must not be a new call."""
    async with serving() as here, connected(here.url, elicitation_callback=Person()) as client:
        asked = await client.session.call_tool("confirm", {"what": "it"}, allow_input_required=True)
        assert isinstance(asked, mcp_types.InputRequiredResult)
        (key,) = asked.input_requests or {}
        said: Any = {key: mcp_types.ElicitResult(action="accept", content={"sure": True})}
        back = {"input_responses": said, "request_state": asked.request_state}
        assert texts(await client.session.call_tool("confirm", {"what": "it"}, **back)) == ["it: yes"]
        try:
            again = await client.session.call_tool("confirm", {"what": "it"}, allow_input_required=True, **back)
        except MCPError:
            pass
        else:  # an answer may also be given again, but nothing may be asked anew
            assert isinstance(again, mcp_types.CallToolResult)
        await until(here.idle)


async def test_Q2_a_client_that_never_comes_back_leaves_a_handle() -> None:
    """It was asked, and is gone: the call can be found and ended."""
    async with serving() as here:
        async with connected(here.url, elicitation_callback=Person()) as client:
            asked = await client.session.call_tool("confirm", {"what": "it"}, allow_input_required=True)
            assert isinstance(asked, mcp_types.InputRequiredResult)
        await until(lambda: not here.runtime.batches)
        (left,) = here.runtime.registry.live()
        assert left.id.startswith("call:") and left.stateful


async def test_M2_a_task_asks_and_takes_partial_and_unknown_answers(tmp_path: Path) -> None:
    async with serving() as here:
        async with connected(here.url, MODERN, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
            task = await start_task(client, "deploy", notes=str(tmp_path / "notes"))
            (key,) = (await task_is(client, task, "input_required"))["inputRequests"]
            await ask(client, "tasks/update", taskId=task, inputResponses={"unknown.1": {"action": "accept"}})
            assert list((await task_is(client, task, "input_required"))["inputRequests"]) == [key]
            wrong = {"action": "accept", "content": {"sure": "perhaps"}}
            await ask(client, "tasks/update", taskId=task, inputResponses={key: wrong})
            (second,) = (await task_is(client, task, "input_required"))["inputRequests"]
            assert second != key  # keys are used once in the life of a task
            right = {"action": "accept", "content": {"sure": True}}
            await ask(client, "tasks/update", taskId=task, inputResponses={key: right})
            assert list((await task_is(client, task, "input_required"))["inputRequests"]) == [second]
            await ask(client, "tasks/update", taskId=task, inputResponses={second: right})
            await task_is(client, task, "completed")
            await ask(client, "tasks/update", taskId=task, inputResponses={second: right})  # acknowledged, and ignored
        await until(here.idle)


async def test_M2_a_task_keeps_its_other_question_while_an_answer_is_stored() -> None:
    """Between two questions of a task, the store has neither: it must not look as if nothing were asked."""
    store = HeldStore()
    async with serving(tools=[multi_input], store=store) as here:
        async with connected(here.url, tasks=KnowsTasks(), elicitation_callback=Person()) as client:
            task = await start_task(client, "multi_input")
        handle = here.runtime.registry.loaded(task)
        assert handle is not None
        tasks = here.server.tasks
        await until(lambda: len(tasks.requests(handle)) == 2)
        first, second = tasks.requests(handle)
        store.on_hold = True
        answering = asyncio.create_task(tasks.answer(handle, {first: {"action": "accept", "content": {"name": "Ada"}}}))
        seen = []
        while not answering.done() or store.held:
            await _passes()
            seen.append((tasks.status(handle), list(tasks.requests(handle))))
            store.release(1)
        store.on_hold = False
        assert seen == [("input_required", [second])] * len(seen)
        await tasks.answer(handle, {second: {"action": "accept", "content": {"confirm": True}}})
        await until(lambda: not handle.active)
        assert (await tasks.outcome(handle))["content"][0]["text"] == "Ada, confirmed"


async def _passes() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_Q2_a_2025_task_is_asked_about_by_whoever_waits_for_it() -> None:
    """A first client goes without an answer; the next one that wants the result is asked."""
    silent, asked = asyncio.Event(), asyncio.Event()

    async def dawdle(context: Any, params: Any) -> mcp_types.ElicitResult:
        asked.set()
        await silent.wait()
        raise AssertionError("it is cancelled before")

    async with serving() as here:
        async with connected(here.url, "legacy", elicitation_callback=dawdle) as client:
            task = await ask_for_task(client, "confirm", what="it")
            waiting = asyncio.create_task(ask(client, "tasks/result", taskId=task))
            await asked.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
        person = Person({"sure": True})
        async with connected(here.url, "legacy", elicitation_callback=person) as client, asyncio.timeout(PATIENCE):
            answered = await ask(client, "tasks/result", taskId=task)
            assert answered["content"][0]["text"] == "it: yes"
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_Q2_a_client_that_goes_while_it_asks_leaves_nothing_hanging(era: str) -> None:
    """Its call has ended, or can be found and ended by its id."""
    asked = asyncio.Event()

    async def dawdle(context: Any, params: Any) -> mcp_types.ElicitResult:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled before")

    async with serving() as here:
        async with connected(here.url, era, elicitation_callback=dawdle) as client:
            calling = asyncio.create_task(client.call_tool("confirm", {"what": "it"}))
            await asked.wait()
            if era == MODERN:  # such a client asks between two requests of its own
                calling.cancel()
        await asyncio.wait([calling])
        await until(lambda: not here.runtime.batches)
        async with connected(here.url, tasks=KnowsTasks()) as client:
            (listed,) = (await client.read_resource("keephold://handles")).contents
            for handle in json.loads(getattr(listed, "text", ""))["handles"]:
                if handle["state"] != "stopped":
                    await ask(client, "tasks/cancel", taskId=handle["uid"])
        await until(here.idle)
        assert not here.runtime.registry.live()


@pytest.mark.parametrize("era", ERAS)
async def test_Q3_what_a_spawned_handle_asks_is_its_callers_to_answer(era: str) -> None:
    person = Person()
    async with serving() as here, connected(here.url, era, elicitation_callback=person) as client:
        spawned = read(await client.call_tool("discuss", {"action": "spawn", "id": "d", "what": "it"}))
        assert spawned["state"] == "waiting" and spawned["question"]["text"] == "Really it?"
        waited = read(await client.call_tool("await", {"all": ["d"]}))
        assert waited["needs_input"] is True and waited["pending"][0]["question"]["id"] == "sure"
        wrong = await client.call_tool("discuss", {"action": "apply", "id": "d", "input": "perhaps"})
        assert wrong.is_error
        answered = read(await client.call_tool("discuss", {"action": "apply", "id": "d", "input": True}))
        assert (answered["state"], answered["result"]) == ("stopped", "it: yes")
        assert person.asked == []
        await until(here.idle)


async def test_M2_a_call_that_asks_is_a_task_at_once() -> None:
    """However long calls of this server may take before they are one."""
    async with (
        serving(task_after=60) as here,
        connected(here.url, MODERN, tasks=KnowsTasks(), elicitation_callback=Person()) as client,
        asyncio.timeout(PATIENCE),
    ):
        task = await start_task(client, "confirm", what="it")
        (key,) = (await ask(client, "tasks/get", taskId=task))["inputRequests"]
        said = {"action": "accept", "content": {"sure": True}}
        await ask(client, "tasks/update", taskId=task, inputResponses={key: said})
        done = await task_is(client, task, "completed")
        assert done["result"]["content"][0]["text"] == "it: yes"
        await until(here.idle)
