"""The three lanes of a batch (B3), chains of calls that name one handle, and the serial lane of a conversation (B4)."""

import asyncio

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
    spawn,
    texts,
    wait_all,
    wait_any,
)

import keephold
from keephold import Call, Question, Runtime
from keephold.testing import VirtualClock


class Diary:
    """Tools that write down when they run: `p` is parallel, `s` is serial."""

    def __init__(self, clock: VirtualClock) -> None:
        began = clock.now()
        self.lines: list[str] = []

        async def work(name: str, secs: float) -> str:
            self.lines.append(f"{clock.now() - began:g} {name} starts")
            await asyncio.sleep(secs)
            self.lines.append(f"{clock.now() - began:g} {name} ends")
            return name

        self.tools = [
            keephold.tool(name="p", actions=STATEFUL)(work),
            keephold.tool(name="s", actions=STATEFUL, scheduling="serial")(work),
        ]


async def test_B3_parallel_calls_start_together_and_serial_ones_follow_one_at_a_time(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (_, turn):
        names = [("s", "s1"), ("p", "p1"), ("s", "s2"), ("p", "p2")]
        assert await texts(turn, *(call(tool, name=name, secs=2) for tool, name in names)) == ["s1", "p1", "s2", "p2"]
    assert diary.lines == [
        "0 p1 starts",
        "0 p2 starts",
        "2 p1 ends",
        "2 p2 ends",
        "2 s1 starts",
        "4 s1 ends",
        "4 s2 starts",
        "6 s2 ends",
    ]


async def test_B3_a_spawn_has_returned_when_it_has_answered(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (_, turn):
        await turn.run([spawn("p", "long", name="p1", secs=9), call("s", name="s1", secs=1)])
        assert diary.lines == ["0 p1 starts", "0 s1 starts", "1 s1 ends"]


async def test_B3_nobody_waits_for_a_synchronising_call(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (_, turn):
        await turn.run([spawn("p", "long", name="p1", secs=9), wait_all("long"), call("s", name="s1", secs=1)])
        assert diary.lines == ["0 p1 starts", "0 s1 starts", "1 s1 ends", "9 p1 ends"]


async def test_B3_an_await_of_a_serial_tool_spawned_in_the_same_batch_answers(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (_, turn):
        waited, *_ = await replies(
            turn, wait_all("a", "b"), spawn("s", "a", name="a", secs=2), spawn("s", "b", name="b", secs=2)
        )
        assert [entry["result"] for entry in waited["completed"]] == ["a", "b"]
    assert diary.lines == ["0 a starts", "2 a ends", "2 b starts", "4 b ends"]


async def test_B3_fetch_apply_and_abort_are_never_serial(clock: VirtualClock) -> None:
    """Serial calls wait for every parallel one; these, of a serial tool, are among them."""
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (rt, turn):
        await turn.run([spawn("s", "a", name="a", secs=60)])
        begun = clock.now()
        running, _, stopped = await texts(turn, fetch("s", "a"), call("s", name="b", secs=5), abort("s", "a"))
        assert "running" in running and "stopped" in stopped
        ended = await rt.handle("a", conversation="main")
        assert ended.stopped == begun  # not behind the serial call


async def test_B3_calls_that_name_one_handle_run_in_emitted_order_its_spawn_first(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def chat(call: Call) -> str:
        lines: list[str] = []
        for _ in range(2):
            call.emit(f"{len(lines)}> ")
            lines.append(await call.input())
            await asyncio.sleep(0.5)  # so that a call that did not wait would come in between
        return "+".join(lines)

    async with opened(clock, [chat]) as (_, turn):
        fetched, first, second, again, spawned = await replies(
            turn,
            fetch("chat", "c"),
            apply("chat", "c", "a"),
            apply("chat", "c", "b"),
            fetch("chat", "c"),
            spawn("chat", "c"),
        )
        assert spawned == fetched == {"id": "c", "state": "running", "content": "0> "}
        assert first == {"id": "c", "state": "running", "content": "0> 1> "}  # nothing is taken within a batch (C5)
        assert second == again == {"id": "c", "state": "stopped", "result": "a+b"}


async def test_B3_chains_of_different_handles_do_not_wait_for_each_other(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def settle(call: Call, secs: float) -> str:
        await asyncio.sleep(secs)
        call.emit("x")
        await asyncio.sleep(60)
        return ""

    async with opened(clock, [settle]) as (rt, turn):
        begun = clock.now()
        await turn.run(
            [
                spawn("settle", "slow", secs=0.8),
                abort("settle", "slow"),
                spawn("settle", "q", secs=0.1),
                abort("settle", "q"),
            ]
        )
        stopped = {info.id: round((info.stopped or 0) - begun, 3) for info in await rt.handles()}
        assert stopped == {"slow": 0.9, "q": 0.2}


async def test_B3_read_output_of_a_handle_waits_for_its_spawn(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def prints(call: Call) -> str:
        await asyncio.sleep(0.5)
        call.emit("printed")
        await call.input()
        return ""

    async with opened(clock, [prints]) as (_, turn):
        read, _ = await replies(turn, call("read_output", id="p"), spawn("prints", "p"))
        assert read["content"] == "printed"


async def test_B3_what_follows_a_serial_spawn_does_not_hold_up_the_serial_lane(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (_, turn):
        fetched, *_ = await replies(
            turn,
            fetch("s", "a"),
            spawn("s", "a", name="a", secs=5),
            spawn("s", "b", name="b", secs=5),
            wait_all("a", "b"),
        )
        assert fetched["state"] == "running"
    assert diary.lines == ["0 a starts", "5 a ends", "5 b starts", "10 b ends"]


async def test_B4_spawned_serial_handles_of_a_conversation_run_one_at_a_time(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with opened(clock, diary.tools) as (_, turn):
        assert (await reply(turn, spawn("s", "a", name="a", secs=3)))["state"] == "running"
        assert (await reply(turn, spawn("s", "b", name="b", secs=3))) == {"id": "b", "state": "pending"}
        assert (await reply(turn, spawn("s", "c", name="c", secs=3))) == {"id": "c", "state": "pending"}
        await replies(turn, wait_all("c"))
    assert diary.lines == ["0 a starts", "3 a ends", "3 b starts", "6 b ends", "6 c starts", "9 c ends"]


async def test_B4_the_lane_belongs_to_a_conversation(clock: VirtualClock) -> None:
    diary = Diary(clock)
    async with Runtime(diary.tools, clock=clock) as rt, rt.turn("one") as one, rt.turn("two") as two:
        assert (await reply(one, spawn("s", "a", name="a", secs=3)))["state"] == "running"
        assert (await reply(two, spawn("s", "a", name="b", secs=3)))["state"] == "running"


async def test_B4_the_lane_goes_on_however_a_handle_ends(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, scheduling="serial", timeout_secs=5)
    async def work(how: str) -> str:
        if how == "raise":
            raise ValueError(how)
        await asyncio.sleep(60 if how == "hang" else 1)
        return how

    async with opened(clock, [work]) as (_, turn):
        hows = ("raise", "hang", "abort", "return")
        begun = clock.now()
        await replies(turn, *(spawn("work", how, how=how) for how in hows))
        await replies(turn, abort("work", "abort"))
        waited = await reply(turn, wait_all(*hows))
        assert [entry["result"] for entry in waited["completed"]] == [
            "ValueError: raise",
            "Tool timed out after 5 s.",
            "Aborted by the assistant.",
            "return",
        ]
        assert clock.now() - begun == 6


async def test_B4_one_shot_serial_calls_do_not_wait_for_spawned_handles(clock: VirtualClock) -> None:
    """An open interactive session must not freeze the model that is to drive it."""

    @keephold.tool(actions=TALKING, scheduling="serial")
    async def session(call: Call, once: bool = False) -> str:
        return "once" if once else str(await call.input())

    async with opened(clock, [session]) as (_, turn):
        await replies(turn, spawn("session", "s"))
        assert await texts(turn, call("session", once=True), call("session", once=True)) == ["once", "once"]
        assert (await reply(turn, apply("session", "s", "bye")))["result"] == "bye"


async def test_B4_A6_two_serial_spawns_the_first_asking_the_caller(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, scheduling="serial")
    async def asks(call: Call) -> str:
        return str(await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean")))

    async with opened(clock, [asks]) as (_, turn):
        *_, waited = await replies(turn, spawn("asks", "first"), spawn("asks", "second"), wait_all("first", "second"))
        question = {"id": "sure", "text": "Sure?", "answer_type": "Boolean"}
        assert waited == {
            "completed": [],
            "pending": [
                {"id": "first", "state": "waiting", "question": question},
                {"id": "second", "state": "pending", "behind": "first"},
            ],
            "needs_input": True,
        }
        await replies(turn, apply("asks", "first", True))
        assert (await reply(turn, wait_any("second")))["pending"][0]["question"] == question
