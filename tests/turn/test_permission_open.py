"""While a permission prompt is open: what waits for it, what does not, when it is withdrawn (P5, B3, B5, B6, B7)."""

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.stores import HeldStore
from tests.turn.calls import TALKING, abort, apply, call, fetch, replies, reply, spawn, texts, wait_all, wait_any
from tests.turn.people import Person, attended, few

import keephold
from keephold import Call, KeepholdError, Runtime, Tool
from keephold.handles.handle import Handle
from keephold.handles.state import Ok, Reply
from keephold.testing import VirtualClock
from keephold.tools.base import Invocation, Sink
from keephold.turn.prompts import Approved, Denied, Edited, Prompt
from keephold.turn.tool_call import ActiveCall, call_on

SKIPPED = "Tool skipped by user."
ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@keephold.tool(actions=TALKING, run="ask")
async def work(call: Call, path: str = "a", talk: bool = False) -> str:
    ran.append(path)
    return f"said {await call.input()}" if talk else f"did {path}"


@keephold.tool
async def free() -> str:
    ran.append("free")
    return "free"


def handle_of(rt: Runtime, id: str) -> Handle:
    return rt.registry.find(id, "main")


def aborted_by_a_person(rt: Runtime, id: str) -> Reply | None:
    """What a person who aborts the handle is told, if that is at once."""
    told: list[Reply] = []
    handle = handle_of(rt, id)
    abort = call_on(handle, "abort", {}, "person")
    rt.actions.act(ActiveCall(abort, lambda _, reply: told.append(reply), handle=handle))
    return told[0] if told else None


# Who waits and who does not


@pytest.mark.parametrize(("said", "result"), [(Approved(), "did a"), (Denied(), SKIPPED)])
async def test_B6_a_placeholder_can_be_awaited_while_its_permission_is_open(
    clock: VirtualClock, said: Any, result: str
) -> None:
    person = Person()
    async with attended(clock, [work, free], person=person) as (rt, turn):
        batch = asyncio.create_task(turn.run([wait_any("w"), spawn("work", "w"), call("free")]))
        await person.sees()
        await clock.advance(3600)
        assert handle_of(rt, "w").info().state == "pending" and ran == ["free"] and not batch.done()
        await person.says(said)
        waited, _, _ = await batch
        assert json.loads(waited.result)["completed"][0]["result"] == result


async def test_A6_an_await_that_times_out_says_that_it_is_pending(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([wait_all("w", timeout_secs=5), spawn("work", "w")]))
        await person.sees()
        await clock.advance(10)
        await person.says(Approved())
        waited, _ = await batch
        assert json.loads(waited.result) == {
            "completed": [],
            "pending": [{"id": "w", "state": "pending"}],
            "timed_out": True,
        }


async def test_B3_what_follows_the_spawn_in_its_batch_waits_for_the_permission(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(replies(turn, abort("work", "w"), spawn("work", "w", talk=True)))
        await person.says(Approved())
        aborted, spawned = await batch
        assert (spawned["state"], aborted["ended_by"]) == ("running", "abort")


async def test_B3_serial_calls_are_asked_about_when_their_turn_has_come(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [replace(work, scheduling="serial"), free], person=person) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("work", path="1"), call("work", path="2"), call("free")))
        first = await person.sees()
        await clock.advance(60)
        assert ran == ["free"] and first.arguments["path"] == "1"
        await person.says(Approved())
        second = await person.sees()
        assert ran == ["free", "1"] and second.arguments["path"] == "2"
        await person.says(Denied())
        assert await batch == ["did 1", SKIPPED, "free"]


async def test_B4_a_serial_spawn_that_waits_for_permission_does_not_hold_up_the_one_that_runs(
    clock: VirtualClock,
) -> None:
    person = Person(Approved())
    async with attended(clock, [replace(work, scheduling="serial")], person=person) as (_, turn):
        await reply(turn, spawn("work", "first", talk=True))
        batch = asyncio.create_task(replies(turn, spawn("work", "second"), apply("work", "first", "x")))
        await person.sees()
        await clock.advance(5)
        await person.says(Approved())
        second, first = await batch
        assert first["result"] == "said x" and second["state"] in ("pending", "stopped")
        assert (await reply(turn, wait_all("second")))["completed"][0]["result"] == "did a"


async def test_B5_a_resource_is_free_while_the_permission_is_open(clock: VirtualClock) -> None:
    person = Person()
    locked = replace(work, resources=("file:{{ tool.arguments.path }}",))
    quick = replace(locked, name="quick", run="unattended")
    async with attended(clock, [locked, quick], person=person) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("work", path="f"), call("quick", path="f")))
        await person.sees()
        await clock.advance(60)
        assert ran == ["f"]
        await person.says(Approved())
        assert await batch == ["did f", "did f"]


async def test_B5_P5_the_resources_are_those_of_the_edited_arguments(clock: VirtualClock) -> None:
    """The call was to need `a`, which is free; edited it needs `b`, which somebody holds."""
    person = Person(Edited({"path": "b"}))

    @keephold.tool(actions=("spawn", "fetch", "abort"), resources=("file:{{ tool.arguments.path }}",))
    async def holds(path: str) -> str:
        await asyncio.sleep(10)
        ran.append("freed")
        return path

    locked = replace(work, resources=("file:{{ tool.arguments.path }}",))
    async with attended(clock, [locked, holds], person=person) as (_, turn):
        await reply(turn, spawn("holds", "h", path="b"))
        assert await texts(turn, call("work", path="a")) == ["did b"]
        assert ran == ["freed", "b"]


async def test_P4_the_timeout_begins_when_the_tool_does(clock: VirtualClock) -> None:
    person = Person()

    @keephold.tool(run="ask", timeout_secs=10)
    async def slow() -> str:
        await asyncio.sleep(9)
        return "in time"

    async with attended(clock, [slow], person=person) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("slow")))
        await person.sees()
        await clock.advance(3600)
        await person.says(Approved())
        assert await batch == ["in time"]


# When it is withdrawn


async def test_P5_S3_aborting_a_handle_that_waits_for_permission_withdraws_the_prompt(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (rt, turn):
        batch = asyncio.create_task(turn.run([spawn("work", "w"), wait_all("w")]))
        prompt = await person.sees()
        told = aborted_by_a_person(rt, "w")
        assert told is not None and "Aborted by a person" in told.result
        spawned, waited = await batch
        await person.sees_nothing()
        assert person.withdrawn == [prompt]
        assert json.loads(spawned.result)["ended_by"] == "abort" and "Aborted by a person" in waited.result
        assert ran == [] and handle_of(rt, "w").info().started is None


@pytest.mark.parametrize("stateful", [False, True])
async def test_B7_cancelling_the_turn_withdraws_the_prompts(clock: VirtualClock, stateful: bool) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (rt, turn):
        wanted = [spawn("work", name) if stateful else call("work") for name in "ab"]
        batch = asyncio.create_task(turn.run(wanted))
        prompt = await person.sees()
        begun = clock.now()
        turn.cancel()
        responses = await batch
        assert clock.now() - begun < 0.5
        assert [(r.result, r.code) for r in responses] == [("Tool execution cancelled.", "cancelled")] * 2
        await person.sees_nothing()
        assert person.withdrawn == [prompt] and len(person.seen) == 1
        assert ran == [] and rt.live() == []


async def test_T4_the_end_of_the_turn_withdraws_the_prompts(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (rt, turn):
        batch = asyncio.create_task(turn.run([spawn("work", "v"), spawn("work", "w")]))
        prompt = await person.sees()
        await turn.end()
        await asyncio.wait([batch])
        await person.sees_nothing()
        assert person.withdrawn == [prompt] and ran == [] and rt.live() == []


@pytest.mark.parametrize("how", ["cancel", "end"])
async def test_B7_a_turn_that_is_cancelled_shows_no_further_prompt(clock: VirtualClock, how: str) -> None:
    """The one-shot call's prompt goes at once; that of the spawn must not come up in its place."""
    person = Person()
    async with attended(clock, [work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("work"), spawn("work", "w")]))
        prompt = await person.sees()
        if how == "cancel":
            turn.cancel()
        else:
            await turn.end()
        await asyncio.wait([batch])
        await person.sees_nothing()
        assert person.seen == [prompt]


async def test_R6_closing_the_runtime_withdraws_the_prompts(clock: VirtualClock) -> None:
    person = Person()
    async with Runtime([work], clock=clock, prompter=person) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("work"), spawn("work", "w")]))
        prompt = await person.sees()
    await asyncio.wait([batch])
    batch.exception()
    assert person.withdrawn == [prompt] and person.open == [] and ran == []


@pytest.mark.parametrize("action", ["fetch", "apply", "abort"])
async def test_P5_the_prompt_of_an_action_is_withdrawn_when_its_handle_ends(clock: VirtualClock, action: Any) -> None:
    person = Person()

    @keephold.tool(actions=TALKING, run_actions={action: "ask"})
    async def nap(call: Call) -> str:
        await asyncio.sleep(5)
        return "rested"

    named = {"fetch": fetch("nap", "n"), "apply": apply("nap", "n", "x"), "abort": abort("nap", "n")}[action]
    async with attended(clock, [nap], person=person) as (_, turn):
        await reply(turn, spawn("nap", "n"))
        batch = asyncio.create_task(turn.run([named]))
        prompt = await person.sees()
        await clock.advance(60)
        if not batch.done():
            turn.cancel()
        (response,) = await batch
        assert person.withdrawn == [prompt] and response.code != "cancelled"
        assert "rested" in response.result or "stopped" in response.result


@pytest.mark.parametrize("action", ["fetch", "abort"])
async def test_S5_C7_an_action_on_a_handle_that_has_stopped_can_be_permitted(clock: VirtualClock, action: Any) -> None:
    """Its result stays readable, and aborting it is harmless: both when the person agrees."""
    person = Person(Approved(), Approved())
    async with attended(clock, [replace(work, run_actions={action: "ask"})], person=person) as (_, turn):
        await turn.run([spawn("work", "w"), wait_all("w")])
        shown = await reply(turn, fetch("work", "w") if action == "fetch" else abort("work", "w"))
        assert shown == {"id": "w", "state": "stopped", "result": "did a"} and len(person.seen) == 2


# Nothing that goes wrong after the person has spoken leaves the call unanswered (C9, B1)


class _Broken:
    """A tool whose live end raises what it should not."""

    def start(self, invocation: Invocation, sink: Sink) -> "_Broken":
        self._sink = sink
        return self

    def write(self, data: Any) -> None:
        raise RuntimeError("broken pipe")

    def end(self, grace: float) -> None:
        self._sink.stop(Ok("ended"))
        self._sink.released()


@pytest.mark.parametrize("asks", [False, True], ids=["unattended", "asked"])
async def test_C9_an_action_that_raises_is_answered_whether_or_not_it_was_asked_about(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, asks: bool
) -> None:
    person = Person(Approved(), Approved())
    tool = Tool(name="broken", runtime=_Broken(), actions=TALKING, run_actions={"apply": "ask"} if asks else {})
    async with attended(clock, [tool, work], person=person) as (_, turn):
        await reply(turn, spawn("broken", "b"))
        batch = asyncio.create_task(turn.run([apply("broken", "b", "x"), call("work")]))
        await clock.advance(60)
        if not batch.done():
            turn.cancel()
        first, second = await batch
        assert first.is_error and "broken pipe" in first.result
        assert second.result == "did a"  # nor does it hold up the next prompt


# Approved in the instant in which the handle ends


async def test_B4_a_handle_that_is_ended_while_it_is_approved_leaves_the_serial_lane(clock: VirtualClock) -> None:
    """Its end is decided and not yet written when the person says yes."""
    person, store = Person(), HeldStore()
    async with attended(clock, [replace(work, scheduling="serial")], person=person, store=store) as (rt, turn):
        batch = asyncio.create_task(turn.run([spawn("work", "w")]))
        await person.sees()
        store.on_hold = True
        aborted_by_a_person(rt, "w")
        await person.says(Approved())
        await few()
        store.on_hold = False
        store.release()
        assert json.loads((await batch)[0].result)["ended_by"] == "abort" and ran == []
        person.ready.append(Approved())
        await turn.run([spawn("work", "next")])
        assert (await reply(turn, wait_all("next", timeout_secs=60)))["completed"]


async def test_S2_a_handle_that_is_ended_while_it_is_approved_never_starts(clock: VirtualClock) -> None:
    person, store = Person(), HeldStore()
    async with attended(clock, [work], person=person, store=store) as (rt, turn):
        batch = asyncio.create_task(turn.run([spawn("work", "w"), call("work", path="other")]))
        await person.sees()
        store.on_hold = True
        aborted_by_a_person(rt, "w")
        await person.says(Approved())
        await few()
        store.on_hold = False
        store.release()
        await person.says(Approved())
        spawned, other = await batch
        assert json.loads(spawned.result)["ended_by"] == "abort" and other.result == "did other"
        assert ran == ["other"]


# While the runtime closes


async def test_R6_closing_does_not_wait_for_ever_for_a_prompter_that_will_not_be_cancelled(clock: VirtualClock) -> None:
    enough = asyncio.Event()

    async def prompter(prompt: Prompt) -> Approved:
        while not enough.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await enough.wait()
        return Approved()

    async with Runtime([work], clock=clock, prompter=prompter) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("work")]))
        await clock.advance(1)
        closing = asyncio.create_task(rt.close())
        await clock.advance(60)
        in_time = closing.done()
        enough.set()
        await closing
    await asyncio.wait([batch])
    batch.exception()
    assert in_time and ran == []


async def test_R6_a_call_whose_turn_comes_while_the_runtime_closes_is_not_denied(clock: VirtualClock) -> None:
    """The person is gone because we are closing; that is nobody's no. The batch stays open, for whoever resumes it."""

    async def prompter(prompt: Prompt) -> Approved:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)  # tidies up, and meanwhile `free` ends and the serial call comes up
        return Approved()

    @keephold.tool
    async def half() -> str:
        await asyncio.sleep(1.5)
        return "half"

    step = replace(work, name="step", scheduling="serial")
    async with Runtime([half, work, step], clock=clock, prompter=prompter) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("half"), spawn("work", "w"), call("step")]))
        await clock.advance(1)
        aborted_by_a_person(rt, "w")  # so that only `half` is before `step`
        await rt.close()
    try:
        denied = [response for response in await batch if response.code == "permission_denied"]
    except KeepholdError as error:
        assert error.code == "runtime_closed"
    else:
        assert denied == []
