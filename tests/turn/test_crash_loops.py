"""The turns of resumed calls (R8), in virtual time. The memory store forgets with its process, so a test writes the
calls as a dead process would have left them, and has the runtime take them over."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.turn.calls import STATEFUL, reply, spawn

import keephold
from keephold import Call, Pending, Runtime, Tool
from keephold.errors import KeepholdError
from keephold.handles.question import Question
from keephold.handles.state import QuestionAnswered, Running
from keephold.store.base import Changed, Record, Registered
from keephold.testing import VirtualClock
from keephold.turn.crash_loops import STEADY_SECS


def left(number: int, tool: str = "work", **changes: object) -> Record:
    """A call that ran when its process died. `deaths` are those before."""
    fields = {
        "uid": f"{number:032x}", "id": f"{tool}-{number}", "tool": tool, "conversation": "main", "turn": "t",
        "batch": 1, "position": 0, "call_id": f"label-{number}", "stateful": True, "state": Running(0.0, 0.0),
        "arguments": {}, "deaths": 1,
    }  # fmt: skip
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


class Work:
    """A tool whose calls tell when they start, and how they go on."""

    def __init__(self, clock: VirtualClock) -> None:
        self.started: list[str] = []
        self.at: dict[str, float] = {}
        self.go: dict[str, asyncio.Event] = {}
        self.marks: list[str | None] = []
        """The standing of call 2 each time when one woke."""
        self.runtime: Runtime | None = None
        self._clock = clock

        @keephold.tool(name="work", actions=STATEFUL, on_crash="replay", on_turn_end="keep")
        async def work(call: Call) -> str:
            self._note(call)
            await self.go.setdefault(call.uid[-2:], asyncio.Event()).wait()
            return "done"

        @keephold.tool(name="other", actions=STATEFUL, on_turn_end="keep")
        async def other(call: Call) -> str:
            self.started.append("other")
            await asyncio.Event().wait()
            return "never"

        @keephold.tool(name="steps", actions=STATEFUL, on_crash="replay", on_turn_end="keep")
        async def steps(call: Call) -> str:
            self._note(call)
            await asyncio.sleep(5)
            await call.durable().run_json("a", None, _nothing)
            await asyncio.Event().wait()
            return "never"

        @keephold.tool(name="parks", actions=STATEFUL, on_crash="replay", on_turn_end="keep")
        async def parks(call: Call) -> Pending:
            self._note(call)
            await call.completion_key()
            return Pending()

        @keephold.tool(name="sleeps", actions=STATEFUL, on_crash="replay", on_turn_end="keep")
        async def sleeps(call: Call) -> str:
            self._note(call)
            await call.durable().sleep(1000)
            await asyncio.Event().wait()
            return "never"

        @keephold.tool(name="asks", actions=(*STATEFUL, "apply"), on_crash="replay", on_turn_end="keep")
        async def asks(call: Call) -> str:
            self._note(call)
            await call.ask(Question(id="q", text="?"))
            await asyncio.Event().wait()
            return "never"

        @keephold.tool(name="naps", actions=STATEFUL, on_crash="replay", on_turn_end="keep")
        async def naps(call: Call) -> str:
            await call.durable().sleep(10)
            assert self.runtime is not None
            self.marks.append((await counted(self.runtime, 2))[1])
            await asyncio.Event().wait()
            return "never"

        self.tools: list[Tool] = [work, other, steps, parks, sleeps, asks, naps]

    def _note(self, call: Call) -> None:
        self.started.append(call.uid[-2:])
        self.at[call.uid[-2:]] = self._clock.now()


async def _nothing(given: object) -> None:
    return None


@asynccontextmanager
async def resumed(clock: VirtualClock, work: Work, records: Sequence[Record]) -> AsyncIterator[Runtime]:
    async with Runtime(work.tools, clock=clock) as rt:
        work.runtime = rt
        await rt.registry.write([Registered(record) for record in records])
        await rt.recovery.take(rt.registry.store.owner)
        await asyncio.sleep(0.0005)
        yield rt


async def counted(rt: Runtime, number: int) -> tuple[int, str | None]:
    record = await rt.registry.store.handle(f"{number:032x}")
    assert record is not None
    return record.deaths, record.standing


async def test_R8_after_the_first_death_all_run_at_once_until_they_are_steady(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(1, deaths=0), left(2, deaths=0)]) as rt:
        assert work.started == ["01", "02"]
        assert [await counted(rt, n) for n in (1, 2)] == [(1, None), (1, None)]
        await asyncio.sleep(STEADY_SECS - 1)
        assert await counted(rt, 1) == (1, None)
        await asyncio.sleep(3)
        assert [await counted(rt, n) for n in (1, 2)] == [(0, None), (0, None)]
        assert not rt.admission.loops.active


async def test_R8_after_the_second_death_one_at_a_time(clock: VirtualClock) -> None:
    """The one with the most deaths is first. Each runs for a minute; the calls that are not suspected come last."""
    work = Work(clock)
    records = [left(1), left(2, deaths=0), left(3), left(4, deaths=2)]
    async with resumed(clock, work, records) as rt:
        assert work.started == ["04"]
        assert await counted(rt, 4) == (3, "alone")
        assert await counted(rt, 1) == (2, "queued")
        await asyncio.sleep(STEADY_SECS + 2)
        assert work.started == ["04", "01"]
        assert [await counted(rt, n) for n in (4, 1)] == [(0, None), (2, None)], "the other one still runs"
        work.go["04"].set()
        await asyncio.sleep(2)
        assert await counted(rt, 1) == (2, "alone"), "and now it does not"
        await asyncio.sleep(3 * STEADY_SECS)
        assert work.started == ["04", "01", "03", "02"]
        assert not rt.admission.loops.active


async def test_R8_a_turn_is_over_with_progress_parking_waiting_or_the_end(clock: VirtualClock) -> None:
    work = Work(clock)
    work.go["05"] = asyncio.Event()
    work.go["05"].set()
    tools = ("steps", "parks", "sleeps", "asks", "work", "work")
    async with resumed(clock, work, [left(n, tool) for n, tool in enumerate(tools, 1)]) as rt:
        await asyncio.sleep(6)
        assert work.started == ["01", "02", "03", "04", "05", "06"]
        assert work.at["06"] - work.at["02"] < 0.1, "nobody waits for a call that waits"
        assert [await counted(rt, n) for n in (1, 2, 3)] == [(0, None)] * 3
        assert await counted(rt, 4) == (2, None), "waiting alone is not progress"
        assert (await counted(rt, 6))[1] is None, "01 runs on beside it"


async def test_R8_no_mark_is_left_when_another_call_starts_or_wakes(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(1, "sleeps"), left(2, "asks"), left(3)]) as rt:
        await asyncio.sleep(0.5)
        assert await counted(rt, 3) == (2, "alone")
        async with rt.turn("main") as turn:
            await reply(turn, spawn("other", "o"))
            assert work.started[-1] == "other"
            assert await counted(rt, 3) == (2, None)
            await turn.run([keephold.ToolCall("a", "other", {"action": "abort", "id": "o"})])
        await asyncio.sleep(3)
        assert await counted(rt, 3) == (2, "alone"), "it ended, so that one is alone again"
        await rt.send("asks-2", "yes", conversation="main")
        assert await counted(rt, 3) == (2, None)


async def test_R8_a_refused_answer_leaves_no_mark_that_nobody_removes(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(1, "asks"), left(2)]) as rt:
        await asyncio.sleep(0.5)
        assert await counted(rt, 2) == (2, "alone")
        answer = Changed(f"{1:032x}", 99, QuestionAnswered(0.0), Running(0.0, 0.0))  # of a process that lost the call
        with pytest.raises(KeepholdError):
            await rt.registry.write([answer])
        async with rt.turn("main") as turn:
            await reply(turn, spawn("other", "o"))
            assert work.started[-1] == "other"
            assert await counted(rt, 2) == (2, None)


async def test_R8_a_call_that_wakes_removes_the_mark_first(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(1, "naps"), left(2)]) as rt:
        await asyncio.sleep(9)
        assert await counted(rt, 2) == (2, "alone")
        await asyncio.sleep(2)
        assert work.marks == [None]


async def test_R8_in_a_quiet_turn_no_other_call_starts(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(1, deaths=2)]) as rt:
        assert await counted(rt, 1) == (3, "alone")
        async with rt.turn("main") as turn:
            spawning = asyncio.create_task(turn.run([spawn("other", "o")]))
            await asyncio.sleep(STEADY_SECS / 2)
            assert work.started == ["01"] and await counted(rt, 1) == (3, "alone")
            await asyncio.sleep(STEADY_SECS)
            assert work.started == ["01", "other"] and await counted(rt, 1) == (0, None)
            await spawning


async def test_R8_thousands_of_silent_calls_take_ten_minutes_or_a_second_each(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(n) for n in range(16, 216)]):
        await asyncio.sleep(602)
        assert len(work.started) == 200
        assert work.at["11"] - work.at["10"] >= 3


async def test_R8_only_a_call_that_was_alone_is_stopped(clock: VirtualClock) -> None:
    work = Work(clock)
    records = [left(1, standing="alone", deaths=2), left(2, deaths=9), left(3, "other"), left(4, standing="queued")]
    async with resumed(clock, work, records) as rt:
        one, two, three = [await rt.registry.store.handle(f"{n:032x}") for n in (1, 2, 3)]
        assert one is not None and two is not None and three is not None
        assert (one.state.ended_by, one.state.outcome.code) == ("crash", "crash_loop")  # type: ignore[union-attr]
        assert three.state.outcome.code == "crashed"  # type: ignore[union-attr]
        assert two.state == Running(0.0, 0.0) and work.started == ["02"]
        assert await counted(rt, 4) == (1, "queued"), "it had not started"
        messages = [each.message for each in await rt.registry.store.notifications("main") if each.uid == one.uid]
        assert len(messages) == 1 and "keephold retry" in messages[0]


async def test_R8_an_aborted_suspect_leaves_its_turn_to_the_next(clock: VirtualClock) -> None:
    work = Work(clock)
    async with resumed(clock, work, [left(1), left(2), left(3)]) as rt, rt.turn("main") as turn:
        for id in ("work-2", "work-1"):
            await turn.run([keephold.ToolCall(id, "work", {"action": "abort", "id": id})])
        await asyncio.sleep(0.1)
        assert work.started == ["01", "03"]
