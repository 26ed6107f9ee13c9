"""A workflow's tool calls over a restart (W10, R4): the call of a step is gone on with, and not made twice."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, ok, parked, power_cut, stopped, stored_in
from tests.patience import until
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Key, Pending, Runtime, ToolCall, ToolError
from keephold.outcomes import Failure, Ok
from keephold.store.base import HandleQuery
from keephold.tools.function import FunctionTool

EVENT = {"id": "then", "type": "wait", "config": {"event": "go"}}


def calling(name: str, **config: Any) -> dict[str, Any]:
    return {"id": "a", "type": "tool", "config": {"name": name, **config}}


async def begin(rt: Runtime, *steps: dict[str, Any], **more: Any) -> str:
    """Start a workflow; the id of its handle."""
    asked = {"workflowId": "w", "name": "W", "steps": list(steps), **more}
    response = await rt.call_queue("main").call(ToolCall("1", "execute_workflow_async", asked))
    assert not response.is_error, response.result
    return (await rt.handles(conversation="main"))[0].id


async def result(rt: Runtime, id: str) -> Any:
    outcome = (await stopped(rt, id)).outcome
    assert isinstance(outcome, Ok), outcome
    return outcome.value["finalOutput"]


async def calls(rt: Runtime, tool: str) -> list[Any]:
    """The states of all calls of a tool."""
    return [each.state for each in await rt.registry.store.handles(HandleQuery(stateful=None)) if each.tool == tool]


async def attempt(rt: Runtime, id: str, number: int) -> None:
    """Until the workflow is in that attempt, and at its step."""

    async def so() -> bool:
        info = await rt.handle(id, conversation="main")
        return info.attempt == number and info.progress is not None

    await until(so)


def approval(keys: list[Key], **options: Any) -> FunctionTool:
    @keephold.tool(**options)
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending()

    return approve


async def test_W10_R4_a_parked_call_of_a_step_is_waited_for_over_restarts(tmp_path: Path) -> None:
    keys: list[Key] = []
    store = stored_in(tmp_path)
    async with with_wait_tools([approval(keys)], store=store) as rt:
        id = await begin(rt, calling("approve"))
        await parked(rt)
    async with with_wait_tools([approval(keys)], store=store) as rt:
        await attempt(rt, id, 2)
        store = power_cut(store)
    async with with_wait_tools([approval(keys)], store=store) as rt:
        await attempt(rt, id, 3)
        assert len(keys) == 1
        assert str(await rt.resolve(keys[0], ok("approved"))) == "accepted"
        assert await result(rt, id) == "approved"
        assert len(await calls(rt, "approve")) == len(keys) == 1


async def test_W10_R4_what_came_while_nobody_ran_the_workflow_is_its_result(tmp_path: Path) -> None:
    keys: list[Key] = []
    store = stored_in(tmp_path)
    async with with_wait_tools([approval(keys)], store=store) as rt:
        id = await begin(rt, calling("approve", continueOnError=True))
        await parked(rt)
        cancelled = power_cut(store)
    async with with_wait_tools([], store=store) as rt:
        rt.recovery.leaves_calls = True
        await rt.resolve(keys[0], ok("approved"))
    async with with_wait_tools([], store=cancelled) as rt:
        rt.recovery.leaves_calls = True
        await rt.resolve(keys[0], {"status": "cancelled"})
    async with with_wait_tools([approval(keys)], store=store) as rt:
        assert await result(rt, id) == "approved"
    async with with_wait_tools([approval(keys)], store=cancelled) as rt:
        outcome = (await stopped(rt, id)).outcome
        assert isinstance(outcome, Ok) and outcome.value["steps"][0]["error"] == "pending tool completion cancelled"
    assert len(keys) == 1


async def test_W10_R4_an_external_call_is_parked_and_waited_for(tmp_path: Path) -> None:
    keys: list[Key] = []
    never = asyncio.Event()

    @keephold.tool(on_crash="external", deadline_secs=3600)
    async def order(call: Call) -> Pending:
        keys.append(await call.completion_key())
        await never.wait()
        return Pending()

    store = stored_in(tmp_path)
    async with with_wait_tools([order], store=store) as rt:
        id = await begin(rt, calling("order"))
        await until(lambda: len(keys) == 1)
        store = power_cut(store)
        never.set()
    async with with_wait_tools([order], store=store) as rt:
        await attempt(rt, id, 2)
        await parked(rt)
        await rt.resolve(keys[0], ok("delivered"))
        assert await result(rt, id) == "delivered" and len(keys) == 1


async def test_W10_R1_a_call_that_is_replayed_is_not_made_again(tmp_path: Path) -> None:
    did: list[str] = []
    clock, store = HandClock(), stored_in(tmp_path)

    @keephold.tool(on_crash="replay")
    async def slow(call: Call) -> str:
        async def once(_: Any) -> str:
            did.append(call.uid)
            return call.uid

        uid: str = await call.durable().run_json("once", None, once)
        await call.durable().sleep(60)
        return uid

    async with with_wait_tools([slow], store=store, clock=clock) as rt:
        id = await begin(rt, calling("slow"))
        await until(lambda: len(did) == 1)
    async with with_wait_tools([slow], store=store, clock=clock) as rt:
        await attempt(rt, id, 2)
        store = power_cut(store)
    clock.at += 61
    async with with_wait_tools([slow], store=store, clock=clock) as rt:
        assert [await result(rt, id)] == did
        assert len(await calls(rt, "slow")) == 1


def forget_step(store: str, name: str) -> None:
    """As if the process had died before the step was recorded."""
    with sqlite3.connect(store.removeprefix("sqlite:///")) as database:
        assert database.execute("DELETE FROM journal WHERE name = ?", (name,)).rowcount == 1
    database.close()


@pytest.mark.parametrize(
    ("arguments", "expected", "times"),
    [
        ({}, 1, 1),
        ({"fails": True}, {"error": "no 1"}, 1),
        ({"fails": True, "transient": True}, {"error": "no 2"}, 2),  # it asks to be tried again
    ],
)
async def test_W10_R4_the_result_of_a_call_counts_if_only_the_record_of_its_step_was_lost(
    tmp_path: Path, arguments: dict[str, Any], expected: Any, times: int
) -> None:
    did: list[str] = []

    @keephold.tool
    async def note(fails: bool = False, transient: bool = False) -> int:
        did.append("note")
        if fails:
            raise ToolError(f"no {len(did)}", transient=transient)
        return len(did)

    store = stored_in(tmp_path)
    said = {"id": "said", "type": "transform", "config": {"expression": "steps.a"}}
    async with with_wait_tools([note], store=store) as rt:
        id = await begin(rt, calling("note", arguments=arguments, continueOnError=True), EVENT, said)
        await until(lambda: waiting(rt, id))
        store = power_cut(store)
    forget_step(store, "a:1")
    async with with_wait_tools([note], store=store) as rt:
        await rt.resolve((await rt.keys(id, conversation="main"))["then:1:go"], ok(None))
        assert await result(rt, id) == expected
        assert len(did) == times


async def waiting(rt: Runtime, id: str) -> bool:
    """Whether the workflow waits for its event."""
    return bool(await rt.keys(id, conversation="main"))


@pytest.mark.parametrize("ended_by", ["crash", "shutdown"])
async def test_W10_a_call_that_went_with_its_process_is_made_again(tmp_path: Path, ended_by: str) -> None:
    """Closing, too, ends what the next runtime cannot go on with (R6)."""
    did: list[str] = []
    goes_on = asyncio.Event()

    @keephold.tool
    async def work(call: Call) -> str:
        did.append(call.id)
        await goes_on.wait()
        return "done"

    async def is_stored() -> bool:
        return bool(await calls(rt, "work"))

    store = stored_in(tmp_path)
    async with with_wait_tools([work], store=store) as rt:
        id = await begin(rt, calling("work"))
        await until(is_stored)
        store = power_cut(store) if ended_by == "crash" else store
    async with with_wait_tools([work], store=store) as rt:
        await until(lambda: len(did) == 2)
        goes_on.set()
        assert await result(rt, id) == "done"
        uid = (await rt.handle(id, conversation="main")).uid
        assert [state.ended_by for state in await calls(rt, "work")] == [ended_by, "self"]
    assert did == [f"{uid}:a:1"] * 2


async def test_W10_a_workflow_that_is_cancelled_ends_the_call_it_goes_on_with(tmp_path: Path) -> None:
    keys: list[Key] = []
    tool = approval(keys)
    store = stored_in(tmp_path)
    async with with_wait_tools([tool], store=store) as rt:
        id = await begin(rt, calling("approve"))
        await parked(rt)
    async with with_wait_tools([tool], store=store) as rt:
        await attempt(rt, id, 2)
        await rt.call_queue("main").call(ToolCall("2", "cancel_wait_handle", {"handleId": id}))
        await stopped(rt, id)
        await parked(rt, 0)
        assert str(await rt.resolve(keys[0], ok(1))) == "already_resolved"
        (state,) = await calls(rt, "approve")
        assert isinstance(state.outcome, Failure) and state.outcome.code == "cancelled"


@pytest.mark.parametrize("durable", [True, False])
async def test_E8_tools_in_a_workflow_append_to_its_events(durable: bool) -> None:
    @keephold.tool(on_crash="replay" if durable else "fail")
    async def paint(call: Call, colour: str) -> str:
        if durable:
            await call.durable().emit_process_event("painted", {"colour": colour})
        else:
            await call.process_events().emit("painted", {"colour": colour})
        return call.process_id or ""

    async with with_wait_tools([paint]) as rt:
        id = await begin(rt, calling("paint", arguments={"colour": "red"}))
        process = await result(rt, id)
        assert process == (await rt.handle(id, conversation="main")).uid
        assert [(each.type, each.payload) for each in await rt.process_events(process)] == [
            ("painted", {"colour": "red"})
        ]


async def test_E8_a_call_with_a_label_like_a_steps_has_no_process() -> None:
    @keephold.tool
    async def paint(call: Call) -> None:
        await call.process_events().emit("painted")

    async with with_wait_tools([paint]) as rt:
        await begin(rt, EVENT)
        (workflow,) = await rt.handles(conversation="main")
        response = await rt.call_queue("main").call(ToolCall(f"{workflow.uid}:a", "paint"))
        assert response.code == "durable_effect_process_event_unavailable"
        assert "painted" not in [each.type for each in await rt.process_events(workflow.uid)]
