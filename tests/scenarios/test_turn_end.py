"""The assistant has finished while its tools still run: what becomes of them, and what it hears of it (N, T).

The tools and the three policies are those of the first examples. The program around them is an agent's loop: it sends
what notifications there are with each message, and lets the assistant speak again if the end of the turn says so.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.scenarios.assistant import batch, call, one

import keephold
from keephold.testing import VirtualClock
from keephold.tools.base import OnTurnEnd
from keephold.turn.inquiry import Inquiry
from keephold.turn.notifications import notification_block


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def cargo_check(call: keephold.Call, package: str = "jp_cli") -> str:
    call.emit("Compiling jp_cli v0.1.0...\n")
    await asyncio.sleep(5)
    return "ok, 0 warnings"


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def cargo_test(call: keephold.Call, package: str = "jp_cli") -> str:
    call.emit("running 42 tests...\n")
    await asyncio.sleep(20)
    raise keephold.ToolError("3 tests failed")


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_turn_end="keep")
async def deploy(call: keephold.Call) -> str:
    await asyncio.sleep(60)
    sure = await call.ask(keephold.Question(id="sure", text="Deploy to production?", answer_type="Boolean"))
    return "deployed" if sure else "not deployed"


@keephold.tool
async def fs_read_file(path: str) -> str:
    return "# jp"


def with_policy(policy: OnTurnEnd) -> list[keephold.Tool]:
    """Check and test, both with this policy."""
    return [replace(tool, spawn=replace(tool.spawn, on_turn_end=policy)) for tool in (cargo_check, cargo_test)]


class Model:
    """The assistant's model beside the conversation: keeps what it was asked, answers what the test says."""

    def __init__(self, **actions: str) -> None:
        self.asked: list[Inquiry] = []
        self._actions = actions

    async def __call__(self, inquiry: Inquiry) -> Any:
        self.asked.append(inquiry)
        return {"handles": [{"id": each["id"], "action": self._actions[each["id"]]} for each in inquiry.handles]}


@asynccontextmanager
async def agent(
    clock: VirtualClock, *tools: keephold.Tool, model: Model | None = None
) -> AsyncIterator[keephold.Runtime]:
    async with keephold.Runtime([*tools, fs_read_file], clock=clock, inquiry=model) as rt:
        yield rt


async def both(turn: keephold.Turn) -> None:
    """The assistant starts both and goes on talking."""
    check = call("cargo_check", {"action": "spawn", "id": "check", "package": "jp_cli"})
    test = call("cargo_test", {"action": "spawn", "id": "test", "package": "jp_cli"})
    assert [each["state"] for each in await batch(turn, check, test)] == ["running", "running"]


async def begin(turn: keephold.Turn) -> str:
    """What is sent before the user's words when the next turn begins."""
    return notification_block(await turn.notifications())


async def test_T2_the_assistant_waits_for_the_tests_and_speaks_again(clock: VirtualClock) -> None:
    model = Model(check="abort", test="wait")
    async with agent(clock, cargo_check, cargo_test, model=model) as rt, rt.turn("main") as turn:
        await both(turn)
        await clock.advance(3)
        ending = await turn.end()
        (inquiry,) = model.asked
        assert [(each["id"], each["output_preview"]) for each in inquiry.handles] == [
            ("check", "Compiling jp_cli v0.1.0...\n"),
            ("test", "running 42 tests...\n"),
        ]
        # It is told what they came to, and says something about it; what it calls now belongs to the same turn.
        assert ending.again
        completed = json.loads(ending.message.partition("\n")[2])["completed"]
        assert completed == [
            {
                "id": "check",
                "state": "stopped",
                "result": "Aborted at the end of the turn.",
                "ended_by": "turn_end",
                "content": "Compiling jp_cli v0.1.0...\n",
            },
            {"id": "test", "state": "stopped", "result": "3 tests failed", "is_error": True},
        ]
        (response,) = await turn.run([call("fs_read_file", {"path": "tests.rs"})])
        assert response.notifications == ()
        assert not (await turn.end()).again


@pytest.mark.parametrize("explicit", [False, True])
async def test_T3_await_brings_its_results_to_the_next_turn(clock: VirtualClock, explicit: bool) -> None:
    """No model is asked. Whether the program ends the turn or leaves the block, the assistant hears of them."""
    model = Model()
    async with agent(clock, *with_policy("await"), model=model) as rt:
        async with rt.turn("main") as turn:
            await both(turn)
            begun = clock.now()
            if explicit:
                assert not (await turn.end()).again
        assert clock.now() - begun == 20 and model.asked == []
        async with rt.turn("main") as turn:
            assert (await begin(turn)).splitlines() == [
                "[Automatic notifications. They are not from the user and come once.]",
                "- info: `check` (cargo_check) stopped: ok, 0 warnings",
                "- error: `test` (cargo_test) failed: 3 tests failed",
            ]


async def test_T3_abort_ends_them_at_once(clock: VirtualClock) -> None:
    async with agent(clock, *with_policy("abort")) as rt:
        async with rt.turn("main") as turn:
            await both(turn)
            begun = clock.now()
        assert clock.now() == begun and rt.live() == []


async def test_N3_what_the_assistant_polls_or_awaits_it_is_not_told_of(clock: VirtualClock) -> None:
    async with agent(clock, cargo_check, cargo_test) as rt, rt.turn("main") as turn:
        await both(turn)
        waited = await one(turn, "await", {"all": ["check"]})
        assert waited["completed"][0]["result"] == "ok, 0 warnings"
        await clock.advance(60)
        # The tests have failed meanwhile, and it did not look: that rides on whatever it calls next.
        (response,) = await turn.run([call("fs_read_file", {"path": "README.md"})])
        assert response.result == "# jp"
        assert notification_block(response.notifications).splitlines()[1:] == [
            "- error: `test` (cargo_test) failed: 3 tests failed"
        ]
        assert (await one(turn, "cargo_test", {"action": "fetch", "id": "test"}))["is_error"]
        (response,) = await turn.run([call("fs_read_file", {"path": "README.md"})])
        assert response.notifications == ()


async def test_T4_a_kept_tool_asks_in_a_later_turn(clock: VirtualClock) -> None:
    async with agent(clock, deploy) as rt:
        async with rt.turn("main") as turn:
            await one(turn, "deploy", {"action": "spawn", "id": "prod"})
        await clock.advance(3600)
        async with rt.turn("main") as turn:
            assert (await begin(turn)).splitlines()[1:] == ["- warning: `prod` (deploy) asks: Deploy to production?"]
            done = await one(turn, "deploy", {"action": "apply", "id": "prod", "input": True})
            assert done == {"id": "prod", "state": "stopped", "result": "deployed"}
        async with rt.turn("main") as turn:
            assert await begin(turn) == ""


async def test_N4_critical_news_stops_the_stream_and_is_sent_at_once(clock: VirtualClock) -> None:
    """The loop keeps the partial answer, and the next request says why it was stopped."""
    said: list[str] = []

    async def stream() -> None:
        for word in ("All", "is", "well", "with", "the", "disk"):
            said.append(word)
            await asyncio.sleep(1)

    async with agent(clock, cargo_check) as rt, rt.turn("main") as turn:
        await rt.notify("workspace.changed", "info", "README.md was edited", conversation="main")
        speaks, urgent = asyncio.create_task(stream()), asyncio.create_task(turn.urgent())
        await clock.advance(2.5)
        await rt.notify("disk.full", "critical", "no room on /work", conversation="main")
        await asyncio.wait([speaks, urgent], return_when=asyncio.FIRST_COMPLETED)
        speaks.cancel()
        await asyncio.gather(speaks, urgent, return_exceptions=True)
        assert said == ["All", "is", "well"]
        assert (await begin(turn)).splitlines()[1:] == [
            "- critical: no room on /work",
            "- info: README.md was edited",
        ]


async def test_T5_the_user_interrupts_while_the_turn_ends(clock: VirtualClock) -> None:
    async with agent(clock, *with_policy("await")) as rt:
        async with rt.turn("main") as turn:
            await both(turn)
            ends = asyncio.create_task(turn.end())
            await clock.advance(10)
            turn.cancel()
            ending = await ends
        assert [(each["id"], each["result"]) for each in ending.results] == [
            ("check", "ok, 0 warnings"),
            ("test", "Aborted: the turn was cancelled."),
        ]
        assert rt.live() == []
