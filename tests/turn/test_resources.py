"""Queues in front of running: resources that exclude each other (B5), slots of which there are so many (W11)."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.turn.calls import (
    STATEFUL,
    TALKING,
    abort,
    apply,
    call,
    opened,
    replies,
    reply,
    settings,
    spawn,
    texts,
    wait_all,
)

import keephold
from keephold import Call, Question, Runtime, Tool
from keephold.handles.gate import GateQueue, Ticket
from keephold.testing import VirtualClock

PATHS = ["{{ tool.arguments.a }}", "{{ tool.arguments.b }}"]


def holder(name: str = "hold", *, priority: int = 0, max_running: int | None = None) -> tuple[Tool, list[str]]:
    """A tool that holds the files it is given for some seconds, and the order in which its calls started."""
    order: list[str] = []

    @keephold.tool(name=name, actions=STATEFUL, resources=PATHS, priority=priority, max_running=max_running)
    async def hold(who: str, a: str = "", b: str = "", secs: float = 1) -> str:
        order.append(who)
        await asyncio.sleep(secs)
        return who

    return hold, order


async def started(clock: VirtualClock, tool: Tool, *wanted: tuple[str, str, str]) -> dict[str, float]:
    """When each of the calls (who, a, b), spawned in this order, started; each holds its files for a second."""
    async with opened(clock, [tool]) as (rt, turn):
        begun = clock.now()
        await turn.run([spawn("hold", who, who=who, a=a, b=b) for who, a, b in wanted])
        await turn.run([wait_all(*(who for who, _, _ in wanted))])
        return {info.id: (info.started or 0) - begun for info in await rt.handles()}


async def test_B5_calls_that_name_the_same_resource_exclude_each_other(clock: VirtualClock) -> None:
    hold, _ = holder()
    when = await started(clock, hold, ("1", "x", "-1"), ("2", "x", "-2"), ("3", "y", "-3"), ("4", "x", "-4"))
    assert when == {"1": 0, "2": 1, "3": 0, "4": 2}


async def test_B5_a_call_takes_all_of_its_names_at_once_or_none(clock: VirtualClock) -> None:
    hold, _ = holder()
    # 2 waits for x and must not keep y from 3, which came before it; 4 shares y with 2 and must not pass it.
    when = await started(clock, hold, ("1", "x", "-1"), ("3", "y", "-3"), ("2", "x", "y"), ("4", "y", "-4"))
    assert when == {"1": 0, "3": 0, "2": 1, "4": 2}


async def test_B5_a_waiting_call_is_passed_only_by_calls_that_share_none(clock: VirtualClock) -> None:
    hold, _ = holder()
    # y is free all the time, but 2 is before 3 in its line; 4 shares nothing with anybody.
    when = await started(clock, hold, ("1", "x", "-1"), ("2", "x", "y"), ("3", "y", "-3"), ("4", "z", "-4"))
    assert when == {"1": 0, "2": 1, "3": 2, "4": 0}


async def test_B5_names_are_shared_by_all_conversations_of_a_runtime(clock: VirtualClock) -> None:
    hold, _ = holder()
    async with Runtime([hold], clock=clock) as rt, rt.turn("one") as one, rt.turn("two") as two:
        assert (await reply(one, spawn("hold", "h", who="1", a="x", secs=9)))["state"] == "running"
        assert (await reply(two, spawn("hold", "h", who="2", a="x")))["state"] == "pending"


async def test_B5_one_shot_calls_queue_too_and_hold_until_they_stop(clock: VirtualClock) -> None:
    hold, order = holder()
    async with opened(clock, [hold]) as (_, turn):
        begun = clock.now()
        await turn.run([call("hold", who="1", a="x"), call("hold", who="2", a="x"), call("hold", who="3", a="x")])
        assert order == ["1", "2", "3"] and clock.now() - begun == 3


async def test_B5_W11_higher_priority_first_then_by_arrival(clock: VirtualClock) -> None:
    order: list[str] = []

    def leveled(priority: int) -> Tool:
        @keephold.tool(name=f"level{priority}", actions=STATEFUL, resources=["x"], priority=priority)
        async def hold(who: str) -> str:
            order.append(who)
            await asyncio.sleep(1)
            return who

        return hold

    async with opened(clock, [leveled(0), leveled(-1), leveled(5)]) as (rt, turn):
        wanted = [("level0", "first"), ("level-1", "low"), ("level0", "a"), ("level5", "high"), ("level0", "b")]
        waited = await replies(
            turn, *(spawn(tool, who, who=who) for tool, who in wanted), wait_all(*(w for _, w in wanted))
        )
        assert order == ["first", "high", "a", "b", "low"]
        # It never changes what a wait returns.
        assert [entry["id"] for entry in waited[-1]["completed"]] == [who for _, who in wanted]
        assert (await rt.handle("high", conversation="main")).priority == 5


async def test_B5_an_aborted_waiter_leaves_the_line(clock: VirtualClock) -> None:
    hold, order = holder()
    async with opened(clock, [hold]) as (_, turn):
        await replies(
            turn,
            spawn("hold", "1", who="1", a="x"),
            spawn("hold", "2", who="2", a="x", b="y", secs=60),
            spawn("hold", "3", who="3", a="-3", b="y"),
        )
        await replies(turn, abort("hold", "2"))
        await replies(turn, wait_all("1", "3"))
        assert order == ["1", "3"]


def one_shot(order: list[str]) -> Tool:
    @keephold.tool(resources=["x"])
    async def quick() -> str:
        order.append("quick")
        return "quick"

    return quick


async def refusal(clock: VirtualClock, turn: keephold.Turn) -> tuple[float, str]:
    """When the one-shot call was answered, and with which error."""
    begun = clock.now()
    (response,) = await turn.run([call("quick")])
    assert response.is_error, response.result
    return clock.now() - begun, response.result


async def test_B5_a_one_shot_call_errs_at_once_if_the_holder_was_spawned_from_a_tool_with_apply(
    clock: VirtualClock,
) -> None:
    @keephold.tool(actions=TALKING, resources=["x"])
    async def session(call: Call) -> str:
        await asyncio.sleep(600)
        return ""

    order: list[str] = []
    async with opened(clock, [session, one_shot(order)]) as (_, turn):
        await replies(turn, spawn("session", "holder"))
        took, why = await refusal(clock, turn)
        assert took == 0 and "`holder`" in why and "`session`" in why
        await replies(turn, abort("session", "holder"))
        assert await texts(turn, call("quick")) == ["quick"]
        assert order == ["quick"]


async def test_B5_it_errs_when_such_a_tool_becomes_the_holder(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, resources=["x"])
    async def session(call: Call) -> str:
        await asyncio.sleep(600)
        return ""

    @keephold.tool(actions=STATEFUL, resources=["x"])
    async def brief() -> str:
        await asyncio.sleep(3)
        return ""

    async with opened(clock, [session, brief, one_shot([])]) as (_, turn):
        await replies(turn, spawn("brief", "brief"), spawn("session", "next"))
        took, why = await refusal(clock, turn)
        assert took == 3 and "`next`" in why


async def test_B5_it_waits_for_a_holder_that_goes_by_itself(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, resources=["x"])
    async def brief() -> str:
        await asyncio.sleep(3)
        return ""

    async with opened(clock, [brief, one_shot([])]) as (_, turn):
        begun = clock.now()
        assert (await texts(turn, spawn("brief", "b"), call("quick")))[1] == "quick"
        assert clock.now() - begun == 3


async def test_B5_it_errs_behind_one_that_queues_behind_a_handle_blocked_on_the_caller(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, resources=["y"])
    async def asks(call: Call) -> str:
        await asyncio.sleep(2)
        return str(await call.ask(Question(id="q", text="?", answer_type="Boolean")))

    @keephold.tool(actions=STATEFUL, resources=["x", "y"])
    async def both() -> str:
        return ""

    async with opened(clock, [asks, both, one_shot([])]) as (_, turn):
        await replies(turn, spawn("asks", "a"), spawn("both", "b"))
        took, why = await refusal(clock, turn)
        assert 0 < took <= 2 and "`a`" in why
        *_, last = await replies(turn, apply("asks", "a", True), wait_all("b"))
        assert last["pending"] == []
        assert await texts(turn, call("quick")) == ["quick"]


async def test_W11_max_running_of_a_tool(clock: VirtualClock) -> None:
    running = highest = 0

    @keephold.tool(actions=STATEFUL, max_running=3)
    async def work() -> str:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(1)
        running -= 1
        return "done"

    async with opened(clock, [work]) as (_, turn):
        begun = clock.now()
        names = [f"w{number}" for number in range(8)]
        responses = await turn.run([*(spawn("work", name) for name in names), call("work"), call("work")])
        assert [response.result for response in responses[8:]] == ["done", "done"]  # one-shot calls wait
        assert len((await reply(turn, wait_all(*names)))["completed"]) == 8
        assert highest == 3 and clock.now() - begun == 4


async def test_W11_max_running_of_the_runtime_counts_all_tools_but_the_built_ins(
    clock: VirtualClock, tmp_path: Path
) -> None:
    hold, order = holder()
    config = settings(tmp_path, "[runtime]\nmax_running = 2\n")
    async with Runtime([hold], clock=clock, config=config) as rt, rt.turn("main") as turn, rt.turn("other") as other:
        states = await replies(turn, *(spawn("hold", str(n), who=str(n), a=f"a{n}", b=f"b{n}") for n in range(3)))
        assert [state["state"] for state in states] == ["running", "running", "pending"]
        assert (await reply(other, spawn("hold", "x", who="x", a="x", b="x2")))["state"] == "pending"
        await replies(other, wait_all("x"))
        assert order == ["0", "1", "2", "x"]


async def test_W11_slots_go_to_the_highest_priority_first(clock: VirtualClock, tmp_path: Path) -> None:
    low, _ = holder("low")
    high, _ = holder("high", priority=1)
    config = settings(tmp_path, "[runtime]\nmax_running = 1\n")
    async with opened(clock, [low, high], config=config) as (rt, turn):
        wanted = [("low", "l0"), ("low", "l1"), ("high", "h0"), ("high", "h1")]
        await replies(turn, *(spawn(tool, id, who=id, a=id, b=id + "b") for tool, id in wanted), wait_all("l1"))
        infos = {info.id: info.started or 0 for info in await rt.handles()}
        assert sorted(infos, key=infos.__getitem__) == ["l0", "h0", "h1", "l1"]


async def test_B5_W11_a_call_that_waits_for_a_resource_keeps_no_slot_from_others(
    clock: VirtualClock, tmp_path: Path
) -> None:
    """Or one call that waits for a file would hold up every other call of the runtime."""
    hold, _ = holder(max_running=3)
    config = settings(tmp_path, "[runtime]\nmax_running = 3\n")
    async with opened(clock, [hold], config=config) as (_, turn):
        wanted = [("1", "x"), ("2", "x"), ("3", "x"), ("4", "y")]
        states = await replies(turn, *(spawn("hold", who, who=who, a=a, b=who) for who, a in wanted))
        assert [state["state"] for state in states] == ["running", "pending", "pending", "running"]
        assert await texts(turn, call("hold", who="one", a="z", b="-")) == ["one"]


async def test_W11_a_call_that_waits_for_its_tools_slot_keeps_no_slot_of_the_runtime(
    clock: VirtualClock, tmp_path: Path
) -> None:
    narrow, _ = holder("narrow", max_running=1)
    wide, _ = holder("wide")
    config = settings(tmp_path, "[runtime]\nmax_running = 5\n")
    async with opened(clock, [narrow, wide], config=config) as (_, turn):
        calls = [spawn("narrow", f"n{n}", who=str(n), a=f"n{n}", b=f"m{n}") for n in range(3)]
        states = await replies(turn, *calls, spawn("wide", "w", who="w", a="w", b="v"))
        assert [state["state"] for state in states] == ["running", "pending", "pending", "running"]


async def test_W11_a_freed_slot_goes_to_the_first_in_line_that_can_use_it(clock: VirtualClock) -> None:
    hold, order = holder(max_running=2)
    # Slots: 1 and 2. 3 waits for x, which 1 holds; 4 and 5 wait for a slot. 2 goes first: 4 gets its slot, not 3.
    async with opened(clock, [hold]) as (_, turn):
        await replies(
            turn,
            spawn("hold", "1", who="1", a="x", b="-1", secs=5),
            spawn("hold", "2", who="2", a="-2", b="--2", secs=1),
            spawn("hold", "3", who="3", a="x", b="-3", secs=1),
            spawn("hold", "4", who="4", a="-4", b="--4", secs=1),
            spawn("hold", "5", who="5", a="-5", b="--5", secs=9),
        )
        begun = clock.now()
        await replies(turn, wait_all("3"))
        assert order == ["1", "2", "4", "5", "3"]
        assert clock.now() - begun == 6  # 3 starts when 1 frees both x and a slot


async def test_W11_the_serial_lane_keeps_emitted_order(clock: VirtualClock) -> None:
    order: list[str] = []

    def leveled(priority: int) -> Tool:
        @keephold.tool(name=f"level{priority}", actions=STATEFUL, scheduling="serial", priority=priority)
        async def work(who: str) -> str:
            order.append(who)
            await asyncio.sleep(1)
            return who

        return work

    async with opened(clock, [leveled(0), leveled(5)]) as (_, turn):
        await replies(
            turn,
            spawn("level0", "a", who="a"),
            spawn("level0", "b", who="b"),
            spawn("level5", "c", who="c"),
            wait_all("a", "b", "c"),
        )
        assert order == ["a", "b", "c"]


async def test_A7_a_long_line_costs_no_more_for_each_that_joins_or_leaves_it(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in looks at lines, per call that queues for one resource and is awaited."""
    looks = 0
    lines = Ticket.lines

    def counted(self: Ticket) -> list[GateQueue]:
        nonlocal looks
        looks += 1
        return lines(self)

    monkeypatch.setattr(Ticket, "lines", counted)
    cost: list[float] = []
    for count in (50, 400):
        hold, _ = holder()
        talk = replace(hold, name="talk", actions=TALKING)
        async with opened(clock, [hold, talk]) as (_, turn):
            looks = 0
            names = [f"{number}" for number in range(count)]
            spawns = [
                spawn("talk" if number % 2 else "hold", name, who=name, a="x") for number, name in enumerate(names)
            ]
            await turn.run([*spawns, wait_all(*names)])
            cost.append(looks / count)
    assert cost[1] < 1.5 * cost[0]
