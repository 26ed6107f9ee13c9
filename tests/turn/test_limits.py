"""The limits of K6: each with a clear error, and nothing lost."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.turn.calls import (
    STATEFUL,
    TALKING,
    abort,
    apply,
    call,
    fetch,
    opened,
    replies,
    reply,
    settings,
    spawn,
    wait_all,
)

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.limits import Limits
from keephold.testing import VirtualClock

ran: list[int] = []


@keephold.tool(actions=STATEFUL)
async def work(text: str = "", deep: Any = None) -> str:
    ran.append(1)
    await asyncio.sleep(5)
    return str(len(text))


async def test_K6_a_mebibyte_of_arguments_a_call(clock: VirtualClock) -> None:
    room = 1024 * 1024 - len('{"text":""}')
    async with opened(clock, [work]) as (_, turn):
        calls = [
            call("work", text="x" * room),
            call("work", text="x" * (room + 1)),
            ToolCall(id="1", name="work", arguments='{"text":"' + "x" * room + '"}'),
            ToolCall(id="2", name="work", arguments='{"text":"' + "x" * (room + 1) + '"}'),
            ToolCall(
                id="3", name="work", arguments='{"text":"' + "é" * (room // 2 + 1) + '"}'
            ),  # bytes, not characters
            call("work", text="sibling"),
        ]
        responses = await turn.run(calls)
        assert [response.is_error for response in responses] == [False, True, False, True, True, False]
        assert all("[limits] arguments_bytes" in responses[at].result for at in (1, 3, 4))
        assert responses[5].result == "7"


async def test_K6_a_thousand_calls_a_batch(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        ran.clear()
        refused = await turn.run([call("work") for _ in range(1001)])
        assert len(refused) == 1001
        assert all(response.is_error and "[limits] batch_calls" in response.result for response in refused)
        assert ran == [] and rt.live() == []
        responses = await turn.run([call("work") for _ in range(1000)])
        assert all(response.result == "0" for response in responses) and len(ran) == 1000


async def test_K6_live_handles_of_a_conversation(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(tmp_path, "[limits]\nlive_handles = 3\n")
    async with Runtime([work], clock=clock, config=config) as rt, rt.turn("main") as turn, rt.turn("other") as other:
        await replies(turn, spawn("work", "a"), spawn("work", "b"))
        fits, over, one_shot = await turn.run([spawn("work", "c"), spawn("work", "d"), call("work")])
        assert "running" in fits.result and one_shot.result == "0"  # one-shot calls are not counted
        assert over.is_error and "[limits] live_handles" in over.result
        assert (await reply(other, spawn("work", "d")))["state"] == "running"
        await turn.run([abort("work", "c")])
        assert (await reply(turn, spawn("work", "c2")))["state"] == "running"
        waited = await reply(turn, wait_all("a", "b", "c2"))
        assert len(waited["completed"]) == 3  # nothing lost
        assert (await reply(turn, spawn("work", "d")))["state"] == "running"
        assert Limits().live_handles == 10_000


async def test_K6_a_serial_spawn_over_the_limit_does_not_hold_up_the_calls_after_it(
    clock: VirtualClock, tmp_path: Path
) -> None:
    config = settings(tmp_path, "[limits]\nlive_handles = 1\n")
    serial = replace(work, scheduling="serial")
    async with Runtime([serial], clock=clock, config=config) as rt, rt.turn("main") as turn:
        async with asyncio.timeout(PATIENCE):
            fits, *over, one_shot = await turn.run([*(spawn("work", id) for id in "abc"), call("work")])
        assert "running" in fits.result and one_shot.result == "0"
        assert all("[limits] live_handles" in each.result for each in over)


async def test_K6_64_open_questions(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def asks(call: Call) -> str:
        return str(await call.ask(Question(id="q", text="?", answer_type="Boolean")))

    async with opened(clock, [asks]) as (_, turn):
        names = [f"a{number}" for number in range(65)]
        answers = await replies(turn, *(spawn("asks", name) for name in names))
        assert [answer["state"] for answer in answers] == ["waiting"] * 64 + ["stopped"]
        assert "[limits] open_questions" in answers[64]["result"]
        # An answer makes room, and so does an end.
        await replies(turn, apply("asks", "a0", True), abort("asks", "a1"))
        again = await replies(turn, spawn("asks", "b"), spawn("asks", "c"), spawn("asks", "d"))
        assert [answer["state"] for answer in again] == ["waiting", "waiting", "stopped"]
        assert (await reply(turn, apply("asks", "a2", False)))["result"] == "False"  # nothing lost


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


async def test_K6_nesting_64(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        fitting = {"deep": [nested(62), nested(62)]}
        for arguments in (fitting, json.dumps(fitting)):
            (fits,) = await turn.run([ToolCall(id="1", name="work", arguments=arguments)])
            assert fits.result == "0"
        for arguments in (
            {"deep": nested(64)},
            json.dumps({"deep": nested(64)}),
            '{"deep":' + "[" * 100_000 + "]" * 100_000 + "}",
            {"deep": nested(100_000)},
        ):
            (deep,) = await turn.run([ToolCall(id="1", name="work", arguments=arguments)])
            assert deep.is_error and ("nest" in deep.result or "recursion" in deep.result.lower())
        wide = {"deep": [[number] for number in range(1000)]}  # many brackets are not deep
        (fits,) = await turn.run([ToolCall(id="1", name="work", arguments=wide)])
        assert fits.result == "0"


async def test_K6_a_call_over_a_limit_leaves_its_handle_as_it_was(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def echo(call: Call) -> str:
        return str(await call.input())

    async with opened(clock, [echo]) as (_, turn):
        await replies(turn, spawn("echo", "e"))
        (over,) = await turn.run([apply("echo", "e", "x" * 2**20)])
        assert over.is_error and "[limits] arguments_bytes" in over.result
        assert (await reply(turn, fetch("echo", "e")))["state"] == "running"
        assert (await reply(turn, apply("echo", "e", "fits")))["result"] == "fits"
