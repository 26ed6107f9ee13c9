"""Blocked on the caller (A6): an `await` must not wait for what only its own caller can bring about."""

import asyncio
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.turn.calls import (
    STATEFUL,
    TALKING,
    abort,
    apply,
    opened,
    replies,
    reply,
    settings,
    spawn,
    wait_all,
    wait_any,
)

import keephold
from keephold import Call, Question, Runtime
from keephold.testing import VirtualClock

QUESTION = {"id": "q", "text": "Go on?", "answer_type": "Boolean"}


@keephold.tool(actions=TALKING)
async def asks(call: Call, after: float = 0) -> str:
    await asyncio.sleep(after)
    return str(await call.ask(Question(id="q", text="Go on?", answer_type="Boolean")))


@keephold.tool(actions=TALKING)
async def reads(call: Call, after: float = 0) -> str:
    await asyncio.sleep(after)
    return str(await call.input())


@keephold.tool(actions=STATEFUL)
async def work(secs: float) -> str:
    await asyncio.sleep(secs)
    return "done"


def needs_input(*pending: dict[str, Any], completed: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"completed": completed or [], "pending": list(pending), "needs_input": True}


async def test_A6_a_question_only_the_caller_can_answer(clock: VirtualClock) -> None:
    async with opened(clock, [asks]) as (_, turn):
        begun = clock.now()
        _, waited = await replies(turn, spawn("asks", "a", after=5), wait_all("a"))
        assert waited == needs_input({"id": "a", "state": "waiting", "question": QUESTION})
        assert clock.now() - begun == 5
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "True"


async def test_A6_reading_its_input(clock: VirtualClock) -> None:
    async with opened(clock, [reads]) as (_, turn):
        begun = clock.now()
        _, waited = await replies(turn, spawn("reads", "r", after=5), wait_all("r"))
        assert waited == needs_input({"id": "r", "state": "running", "waiting_for_input": True})
        assert clock.now() - begun == 5
        assert (await reply(turn, apply("reads", "r", "x")))["result"] == "x"


async def test_A6_a_command_that_reads_its_input(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.cat]
        source = "local"
        run = "unattended"
        command = ["cat"]
        spawn = { stateful = true, stdin = true }
        """,
    )
    async with opened(clock, [], config=config) as (_, turn):
        _, waited = await replies(turn, spawn("cat", "c"), wait_all("c", timeout_secs=20))
        assert waited == needs_input({"id": "c", "state": "running", "waiting_for_input": True})


async def test_A6_a_function_that_prints_beside_its_input_is_still_reading(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def ticks(call: Call) -> str:
        async def tick() -> None:
            await asyncio.sleep(3)
            call.emit("tick")

        async with asyncio.TaskGroup() as group:
            group.create_task(tick())
            return str(await call.input())
        raise AssertionError

    async with opened(clock, [ticks]) as (_, turn):
        await replies(turn, spawn("ticks", "t"))
        await clock.advance(5)
        waited = await reply(turn, wait_all("t", timeout_secs=60))
        assert waited == needs_input({"id": "t", "state": "running", "waiting_for_input": True})


async def test_A6_input_that_has_come_or_is_given_up_ends_the_reading(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def patient(call: Call) -> str:
        try:
            async with asyncio.timeout(3):
                await call.input()
        except TimeoutError:
            await asyncio.sleep(3)
        return "gave up"

    async with opened(clock, [patient]) as (_, turn):
        await replies(turn, spawn("patient", "p"))
        await clock.advance(4)
        assert (await reply(turn, wait_all("p")))["completed"][0]["result"] == "gave up"


async def test_A6_await_goes_on_while_any_needed_handle_is_not_blocked(clock: VirtualClock) -> None:
    async with opened(clock, [asks, reads, work]) as (_, turn):
        begun = clock.now()
        *_, waited = await replies(
            turn, spawn("asks", "a"), spawn("reads", "r"), spawn("work", "w", secs=7), wait_all("a", "r", "w")
        )
        assert clock.now() - begun == 7
        assert waited == needs_input(
            {"id": "a", "state": "waiting", "question": QUESTION},
            {"id": "r", "state": "running", "waiting_for_input": True},
            completed=[{"id": "w", "state": "stopped", "result": "done"}],
        )


async def test_A6_a_satisfied_group_needs_nobody(clock: VirtualClock) -> None:
    async with opened(clock, [asks, work]) as (_, turn):
        await replies(turn, spawn("asks", "a"), spawn("work", "soon", secs=1), spawn("work", "late", secs=5))
        waited = await reply(turn, wait_any("a", "soon"))
        assert "needs_input" not in waited and [entry["id"] for entry in waited["completed"]] == ["soon"]
        # `any` is satisfied by "soon"; what is still needed is "late", which is not blocked.
        both = await reply(
            turn, keephold.ToolCall(id="1", name="await", arguments={"any": ["a", "soon"], "all": ["late"]})
        )
        assert "needs_input" not in both and [entry["id"] for entry in both["completed"]] == ["soon", "late"]


async def test_A6_any_of_blocked_ones_only_needs_input(clock: VirtualClock) -> None:
    async with opened(clock, [asks, reads]) as (_, turn):
        *_, waited = await replies(turn, spawn("asks", "a"), spawn("reads", "r"), wait_any("a", "r"))
        assert [entry["id"] for entry in waited["pending"]] == ["a", "r"] and waited["needs_input"] is True


async def test_A6_pending_behind_one_that_is_blocked(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, resources=["x"])
    async def holds(call: Call) -> str:
        await asyncio.sleep(2)
        return str(await call.input())

    @keephold.tool(actions=STATEFUL, resources=["x"])
    async def needs() -> str:
        return "done"

    async with opened(clock, [holds, needs]) as (_, turn):
        *_, waited = await replies(turn, spawn("holds", "h"), spawn("needs", "n"), wait_all("n"))
        assert waited == needs_input({"id": "n", "state": "pending", "behind": "h"})
        *_, free = await replies(turn, apply("holds", "h", "bye"), wait_all("n"))
        assert free["completed"][0]["result"] == "done"


async def test_A6_pending_behind_a_pending_one_that_is_behind_a_blocked_one(clock: VirtualClock) -> None:
    """It is told when the blocked one begins to wait, although it shares nothing with it; that one is named."""

    @keephold.tool(actions=TALKING, resources=["x"])
    async def holds(call: Call) -> str:
        await asyncio.sleep(5)
        return str(await call.input())

    @keephold.tool(actions=STATEFUL, resources=["x", "y"])
    async def both() -> str:
        return "both"

    @keephold.tool(actions=STATEFUL, resources=["y"])
    async def last() -> str:
        return "last"

    async with opened(clock, [holds, both, last]) as (_, turn):
        await replies(turn, spawn("holds", "h"), spawn("both", "b"), spawn("last", "l"))
        waited = await reply(turn, wait_all("l"))
        assert waited == needs_input({"id": "l", "state": "pending", "behind": "h"})
        *_, free = await replies(turn, abort("holds", "h"), wait_all("l", "b"))
        assert [entry["result"] for entry in free["completed"]] == ["last", "both"]


async def test_A6_pending_in_the_serial_lane_behind_one_that_queues_behind_a_blocked_one(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, resources=["x"])
    async def holds(call: Call) -> str:
        await asyncio.sleep(5)
        return str(await call.input())

    @keephold.tool(actions=STATEFUL, scheduling="serial", resources=["x"])
    async def needs() -> str:
        return "needs"

    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def last() -> str:
        return "last"

    async with opened(clock, [holds, needs, last]) as (_, turn):
        await replies(turn, spawn("holds", "h"), spawn("needs", "n"), spawn("last", "l"))
        waited = await reply(turn, wait_all("l"))
        assert waited == needs_input({"id": "l", "state": "pending", "behind": "h"})
        *_, free = await replies(turn, apply("holds", "h", "bye"), wait_all("l"))
        assert free["completed"][0]["result"] == "last"


async def test_A6_a_slot_is_blocked_when_all_its_holders_are(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, max_running=2)
    async def pair(call: Call, after: float) -> str:
        await asyncio.sleep(after)
        return str(await call.input())

    async with opened(clock, [pair]) as (_, turn):
        begun = clock.now()
        await replies(turn, spawn("pair", "a", after=0), spawn("pair", "b", after=4), spawn("pair", "c", after=0))
        waited = await reply(turn, wait_all("c"))
        assert clock.now() - begun == 4 and waited["pending"] == [{"id": "c", "state": "pending", "behind": "a"}]


async def test_A6_a_handle_named_by_an_unanswered_call_of_the_batch_is_not_blocked_yet(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def twice(call: Call) -> str:
        first = await call.input()
        await asyncio.sleep(0.5)
        return f"{first}{await call.input()}"

    async with opened(clock, [twice]) as (_, turn):
        waited, *_ = await replies(
            turn, wait_all("t"), spawn("twice", "t"), apply("twice", "t", "a"), apply("twice", "t", "b")
        )
        assert waited["completed"][0]["result"] == "ab"
        # Without the last apply it is blocked, but only when the first one has been answered.
        waited, _, answer = await replies(turn, wait_all("t"), spawn("twice", "t"), apply("twice", "t", "a"))
        assert waited == needs_input({"id": "t", "state": "running", "waiting_for_input": True})
        assert answer["state"] == "running"


async def test_A6_one_behind_a_handle_that_the_batch_aborts_is_not_blocked(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, scheduling="serial")
    async def session(call: Call, quick: bool = False) -> str:
        return "quick" if quick else str(await call.input())

    async with opened(clock, [session]) as (_, turn):
        await replies(turn, spawn("session", "open"), spawn("session", "next", quick=True))
        waited, _ = await replies(turn, wait_all("next"), abort("session", "open"))
        assert waited["completed"][0]["result"] == "quick"


async def test_A6_a_process_that_is_being_ended_waits_for_nobody(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.deaf]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "trap '' TERM; while :; do read line; done"]
        timeout_secs = 0.5
        spawn = { stateful = true, stdin = true, abort_grace_ms = 500, settle_ms = 10 }
        """,
    )
    async with opened(clock, [], config=config) as (rt, turn):
        await replies(turn, spawn("deaf", "d"))
        assert (await reply(turn, wait_all("d")))["needs_input"] is True
        await clock.advance(0.6)  # its time is over: it was told to end, and reads on
        assert (await rt.handle("d", conversation="main")).state == "running"
        found = await rt.wait(all=["d"], timeout=PATIENCE, conversation="main")
        assert [entry["id"] for entry in found["completed"]] == ["d"] and "needs_input" not in found


async def test_A6_python_waits_in_the_same_way(clock: VirtualClock) -> None:
    async with opened(clock, [asks]) as (rt, turn):
        await replies(turn, spawn("asks", "a", after=3))
        found = await rt.wait(all=["a"], conversation="main")
        assert found["needs_input"] is True and found["pending"][0]["question"].id == "q"


async def test_A6_a_timeout_is_no_need_for_input(clock: VirtualClock) -> None:
    async with opened(clock, [asks]) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a", after=5), wait_all("a", timeout_secs=2))
        assert waited == {"completed": [], "pending": [{"id": "a", "state": "running"}], "timed_out": True}


async def test_A6_at_turn_end_blocked_handles_are_aborted_at_once_unless_kept(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, on_turn_end="await")
    async def awaited(call: Call, after: float = 0) -> str:
        await asyncio.sleep(after)
        return str(await call.input())

    @keephold.tool(actions=TALKING, on_turn_end="keep")
    async def kept(call: Call) -> str:
        return str(await call.input())

    async with Runtime([awaited, kept], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("awaited", "now"), spawn("awaited", "later", after=9), spawn("kept", "k"))
            begun = clock.now()
        stopped = {info.id: (info.stopped or 0) - begun for info in await rt.handles() if info.stopped}
        assert stopped == {"now": 0, "later": 8}  # a second of the nine went by while the spawn settled
        assert (await rt.handle("k", conversation="main")).state == "running"
