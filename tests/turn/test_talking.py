"""Talking to a tool: when a reply settles (C4), what it shows (C5), what `apply` sends (C6)."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
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
    texts,
    wait_all,
)

import keephold
from keephold import Call, Question, Runtime, ToolError
from keephold.handles.state import Ok
from keephold.testing import VirtualClock
from keephold.tools.base import Invocation, Sink, SpawnPolicy, Tool


@keephold.tool(actions=TALKING)
async def script(call: Call, steps: list[Any]) -> str:
    """Numbers are seconds to sleep, strings are printed, `input` and `ask` do that."""
    for step in steps:
        match step:
            case "input":
                await call.input()
            case "ask":
                await call.ask(Question(id="q", text="Well?", answer_type="Boolean"))
            case str():
                call.emit(step)
            case _:
                await asyncio.sleep(step)
    return "end"


async def timed(clock: VirtualClock, turn: keephold.Turn, one: keephold.ToolCall) -> tuple[float, Any]:
    begun = clock.now()
    answer = await reply(turn, one)
    return round(clock.now() - begun, 6), answer


async def test_C4_without_apply_a_spawn_answers_as_soon_as_it_has_started(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        call.emit("output")
        await asyncio.sleep(60)
        return "done"

    async with opened(clock, [work]) as (_, turn):
        assert await timed(clock, turn, spawn("work", "w")) == (0, {"id": "w", "state": "running"})


@pytest.mark.parametrize(
    ("steps", "secs", "shown"),
    [
        (["a", 0.05, "b", 0.05, "c", 60], 0.2, {"content": "abc"}),  # quiet for 100 ms
        (["a", 0.05, "input"], 0.05, {"content": "a"}),  # waits for input
        (["a", 0.03, "ask"], 0.03, {"content": "a", "state": "waiting"}),  # a question
        (["a", 0.02], 0.02, {"state": "stopped", "result": "end"}),  # the end
        ([60], 1.0, {}),  # nothing at all: at most a second
        ([0.5, "late", 60], 0.6, {"content": "late"}),  # quiet counts from the first byte
        (["x", 0.09] * 20 + [60], 1.0, {"content": "x" * 12}),  # never quiet: at most a second
    ],
)
async def test_C4_with_apply_a_spawn_answers_when_it_has_settled(
    clock: VirtualClock, steps: list[Any], secs: float, shown: dict[str, Any]
) -> None:
    async with opened(clock, [script]) as (_, turn):
        took, answer = await timed(clock, turn, spawn("script", "s", steps=steps))
        assert took == secs
        answer.pop("question", None)
        assert answer == {"id": "s", "state": "running"} | shown


async def test_C4_an_apply_settles_in_the_same_way(clock: VirtualClock) -> None:
    async with opened(clock, [script]) as (_, turn):
        steps = ["input", "a", 0.05, "b", 0.3, "input", "c", "ask", 0.5, "d", 60]
        await replies(turn, spawn("script", "s", steps=steps))
        assert await timed(clock, turn, apply("script", "s", "x")) == (
            0.15,
            {"id": "s", "state": "running", "content": "ab"},
        )
        await clock.advance(1)
        took, answer = await timed(clock, turn, apply("script", "s", "x"))
        assert (took, answer["state"], answer["content"]) == (0, "waiting", "c")
        took, answer = await timed(clock, turn, apply("script", "s", True))
        assert (took, answer["state"], answer["content"]) == (0.6, "running", "d")


async def test_C4_the_settling_times_are_settings(clock: VirtualClock) -> None:
    quick = replace(script, spawn=SpawnPolicy(settle_ms=20, settle_max_ms=300))
    async with opened(clock, [quick]) as (_, turn):
        assert (await timed(clock, turn, spawn("script", "a", steps=["x", 60])))[0] == 0.02
        assert (await timed(clock, turn, spawn("script", "b", steps=[60])))[0] == 0.3


class _Silent:
    """A tool that neither prints nor reads, and counts how often that is checked."""

    def __init__(self) -> None:
        self.checks = 0

    def start(self, _: Invocation, sink: Sink) -> "_Silent":
        self.sink = sink
        return self

    def probe(self) -> bool:
        self.checks += 1
        return self.checks > 1000  # otherwise this would go on without end: no time passes between two checks

    def write(self, data: Any) -> None: ...

    def end(self, grace: float) -> None:
        self.sink.stop(Ok("ended"))
        self.sink.released()


async def test_A6_checks_are_far_apart_although_the_tool_settles_at_once(clock: VirtualClock) -> None:
    silent = _Silent()
    tool = Tool(name="silent", runtime=silent, actions=TALKING, spawn=SpawnPolicy(settle_ms=0))
    async with opened(clock, [tool]) as (_, turn):
        await replies(turn, spawn("silent", "s"))
        await turn.wait(all=["s"], timeout=60)
        assert 10 < silent.checks < 100


async def test_C5_fetch_returns_what_is_new_since_the_last_batch_that_showed_it(clock: VirtualClock) -> None:
    async with opened(clock, [script]) as (_, turn):
        await replies(turn, spawn("script", "s", steps=["one ", "input", "two ", 5, "three ", 60]))
        assert await reply(turn, fetch("script", "s")) == {"id": "s", "state": "running"}
        assert (await reply(turn, apply("script", "s", "go")))["content"] == "two "
        await clock.advance(6)
        assert (await reply(turn, fetch("script", "s")))["content"] == "three "
        assert "content" not in await reply(turn, fetch("script", "s"))


async def test_C5_replies_of_one_batch_take_nothing_from_each_other(clock: VirtualClock) -> None:
    async with opened(clock, [script]) as (_, turn):
        first = await replies(turn, spawn("script", "s", steps=["one ", "input"]), *[fetch("script", "s")] * 2)
        assert [answer["content"] for answer in first] == ["one "] * 3
        again = await replies(turn, *[fetch("script", "s")] * 2)
        assert all("content" not in answer for answer in again)


async def test_C5_other_readers_see_everything_and_take_nothing(clock: VirtualClock) -> None:
    async with opened(clock, [script]) as (rt, turn):
        await replies(turn, spawn("script", "s", steps=["one ", "input", "two ", "input"]))
        await turn.run([apply("script", "s", "go")])
        whole = await reply(turn, call("read_output", id="s"))
        assert whole["content"] == "one two "
        assert (await rt.handle("s", conversation="main")).output_bytes == 8
        await rt.wait(any=["s"], timeout=1, conversation="main")
        assert await reply(turn, call("read_output", id="s")) == whole


async def test_C5_a_batch_whose_responses_were_lost_moved_no_cursor(clock: VirtualClock) -> None:
    async with opened(clock, [script]) as (_, turn):
        await replies(turn, spawn("script", "s", steps=["input", "new ", 60]))
        await replies(turn, apply("script", "s", "go"), wait_all("s", timeout_secs=0))
        await clock.advance(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await turn.run([fetch("script", "s"), wait_all("s")])
        # "new " was shown by the apply; what the cancelled batch fetched nobody has seen.
        assert "content" not in await reply(turn, fetch("script", "s"))


async def test_C5_content_never_ends_inside_a_character(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def printer(call: Call) -> str:
        for piece in (b"a\xe2\x82", b"\xac!", b"\xf0\x9f"):
            call.emit(piece)
            await call.input()
        return "end"

    async with opened(clock, [printer]) as (_, turn):
        assert (await reply(turn, spawn("printer", "p")))["content"] == "a"
        assert (await reply(turn, apply("printer", "p", "")))["content"] == "€!"
        assert "content" not in await reply(turn, apply("printer", "p", ""))


async def test_C6_a_function_gets_what_was_sent_in_order(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def collect(call: Call) -> list[Any]:
        got: list[Any] = []
        while True:
            try:
                got.append(await call.input())
            except EOFError:
                return got

    async with opened(clock, [collect]) as (_, turn):
        sent = ["text", "", {"a": [1]}, 5, False]
        *_, last = await replies(
            turn, spawn("collect", "c"), *(apply("collect", "c", each) for each in sent), apply("collect", "c", None)
        )
        assert json.loads(last["result"]) == sent


async def test_C6_a_command_gets_lines_and_null_closes_its_stdin(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.cat]
        source = "local"
        run = "unattended"
        command = ["cat"]
        spawn = { stateful = true, stdin = true, settle_max_ms = 60000 }
        """,
    )
    async with opened(clock, [], config=config) as (rt, turn):
        await replies(turn, spawn("cat", "c"))
        assert (await reply(turn, apply("cat", "c", "hello")))["content"] == "hello\n"
        assert (await reply(turn, apply("cat", "c", {"a": [1, None]})))["content"] == '{"a":[1,null]}\n'
        stopped = await reply(turn, apply("cat", "c", None))
        # A tool with `apply` gives what this conversation has not been given yet, which is nothing.
        assert stopped == {"id": "c", "state": "stopped", "result": ""}
        assert (await rt.handle("c", conversation="main")).exit_code == 0


async def test_C6_more_than_64_KiB_unread_is_an_error_and_nothing_is_sent(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def late(call: Call) -> int:
        await asyncio.sleep(10)
        size = 0
        while True:
            try:
                size += len((await call.input()).encode())
            except EOFError:
                return size

    async with opened(clock, [late]) as (_, turn):
        await replies(turn, spawn("late", "l"))
        await replies(turn, apply("late", "l", "é" * 32_000))
        (refused,) = await turn.run([apply("late", "l", "é" * 1_000)])  # 66,000 bytes, though not as many characters
        assert refused.is_error and "64 KiB" in refused.result
        await replies(turn, apply("late", "l", "x" * 1_536))  # exactly 64 KiB
        closed = await reply(turn, apply("late", "l", None))  # closing sends nothing and is never too much
        assert closed["state"] == "running"
        await clock.advance(10)
        assert (await reply(turn, fetch("late", "l")))["result"] == "65536"


async def test_C6_on_pending_or_stopped_it_is_an_error_that_names_the_state(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, scheduling="serial")
    async def stubborn(call: Call) -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(8)
        return "late"

    async with opened(clock, [stubborn]) as (rt, turn):
        await replies(turn, spawn("stubborn", "s"), spawn("stubborn", "p"))
        assert "is pending" in (await texts(turn, apply("stubborn", "p", "x")))[0]
        await replies(turn, abort("stubborn", "p"), abort("stubborn", "s"))
        assert [info.id for info in rt.live() if info.lingering] == ["s"]  # stopped, and something of it still runs
        assert "is stopped" in (await texts(turn, apply("stubborn", "s", "x")))[0]
        await clock.advance(8)
        assert "is stopped" in (await texts(turn, apply("stubborn", "s", "x")))[0]


@pytest.mark.parametrize(
    ("answer_type", "bad", "good"),
    [
        ("Boolean", ["yes", "True", 1, None, {}], [True, False, "true"]),
        ("Text", [True, 1, None, ["a"]], ["", "true", "any"]),
        ({"Select": {"options": ["a", "b"]}}, ["c", "A", 1, True, None], ["a", "b"]),
    ],
)
async def test_C6_an_answer_of_the_wrong_type_is_an_error_and_the_question_stays_open(
    clock: VirtualClock, answer_type: Any, bad: list[Any], good: list[Any]
) -> None:
    @keephold.tool(actions=TALKING)
    async def asks(call: Call) -> str:
        return json.dumps(await call.ask(Question(id="q", text="?", answer_type=answer_type)))

    async with opened(clock, [asks]) as (_, turn):
        for answer in good:
            await replies(turn, spawn("asks", "a"))
            for wrong in bad:
                (refused,) = await turn.run([apply("asks", "a", wrong)])
                assert refused.is_error and "`q`" in refused.result and "stays open" in refused.result
                assert (await reply(turn, fetch("asks", "a")))["state"] == "waiting"
            expected = True if (answer_type, answer) == ("Boolean", "true") else answer
            assert json.loads((await reply(turn, apply("asks", "a", answer)))["result"]) == expected


async def test_C6_the_questions_id_comes_from_the_handle(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def asks(call: Call) -> str:
        questions = (Question(id=name, text=name, answer_type="Text") for name in ("first", "second"))
        return " ".join([f"{question.id}={await call.ask(question)}" for question in questions])

    async with opened(clock, [asks]) as (_, turn):
        first, second, stopped = await replies(
            turn, spawn("asks", "a"), apply("asks", "a", "1"), apply("asks", "a", "2")
        )
        assert [first["question"]["id"], second["question"]["id"]] == ["first", "second"]
        assert stopped["result"] == "first=1 second=2"


async def test_C6_a_call_that_is_being_ended_gets_neither_answers_nor_input(clock: VirtualClock) -> None:
    """Its cleanup must not wait for somebody who has left."""

    @keephold.tool(actions=TALKING)
    async def cleans(call: Call, how: str) -> str:
        try:
            await asyncio.sleep(600)
        finally:
            await (call.input() if how == "input" else call.ask(Question(id="q", text="?", answer_type="Text")))
        return "never"

    async with opened(clock, [cleans]) as (rt, turn):
        for how in ("input", "ask"):
            await replies(turn, spawn("cleans", how, how=how))
            took, stopped = await timed(clock, turn, abort("cleans", how))
            assert (took, stopped["ended_by"]) == (0, "abort")
            assert rt.live() == []


async def test_a_turn_acts_on_the_handles_of_its_own_conversation(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def echo(call: Call) -> str:
        return f"heard {await call.input()}"

    async with Runtime([echo], clock=clock) as rt, rt.turn("main") as turn, rt.turn("other") as other:
        await turn.run([spawn("echo", "e")])
        assert [handle.id for handle in await turn.handles(state="running")] == ["e"]
        assert (await turn.handle("e")).conversation == "main" and await other.handles() == []
        with pytest.raises(ToolError, match="not found"):
            await other.send("e", "you")
        assert (await turn.send("e", "me"))["state"] == "stopped"
        assert (await turn.wait(all=["e"]))["completed"][0]["result"] == "heard me"
