"""`parallel` and `loop` (W10): their limits, what they give, and that nobody sees which branch was faster."""

import asyncio
from typing import Any

import pytest
from tests.unit.workflow.world import Around, Effects, Killed, call, cel, failed, failing, ids, run, step, transform
from tests.unit.workflow.world import workflow as given

from keephold import KeepholdError
from keephold.testing import VirtualClock


def parallel(*branches: Any, **config: Any) -> dict[str, Any]:
    return step("p", "parallel", {"branches": list(branches), **config})


def loop(*steps: dict[str, Any], **config: Any) -> dict[str, Any]:
    return step("l", "loop", {"steps": list(steps), **config})


def set_variable(id: str, value: Any) -> dict[str, Any]:
    return step(id, "set_variable", {"name": "v", "value": value})


class Crowd:
    """How many run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def enter(self, arguments: dict[str, Any]) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(1)
        self.now -= 1
        return arguments["data"]


async def test_W10_parallel_never_fails_and_counts() -> None:
    branches: list[Any] = [[transform("a", "data + 1")], [call("b", "t"), transform("never", "1")], []]
    result = await run(given(parallel(*branches), input=1), Around({"t": failing()}))
    assert result["finalOutput"] == {
        "type": "parallel",
        "results": [
            {"success": True, "result": 2},
            {"success": False, "error": "step `b` failed: boom"},
            {"success": True, "result": 1},
        ],
        "successCount": 2,
        "failureCount": 1,
    }
    assert ids(result) == ["a", "b!", "p"]


@pytest.mark.parametrize(("config", "most"), [({}, 8), ({"concurrency": 3}, 3), ({"concurrency": 64}, 20)])
async def test_W10_only_so_many_branches_run_at_once(clock: VirtualClock, config: dict[str, int], most: int) -> None:
    crowd = Crowd()
    branches = [[call(f"s{n}", "t")] for n in range(20)]
    result = await run(given(parallel(*branches, **config)), Around({"t": crowd.enter}), now=clock.now)
    assert crowd.most == most and result["finalOutput"]["successCount"] == 20


async def test_W10_branches_do_not_see_each_other_and_are_laid_over_each_other_in_order(clock: VirtualClock) -> None:
    slow = [step("d", "delay", {"ms": 1000}), set_variable("a", "slow"), transform("x", "vars.v")]
    quick = [
        set_variable("b", "quick"),
        step("e", "delay", {"ms": 5000}),
        transform("y", "vars.v + string(has(steps.a))"),
    ]
    before = set_variable("before", "before")
    after = transform("after", "[vars.v, steps.x, steps.y, string(size(steps))]")
    result = await run(given(before, parallel(quick, slow), after), now=clock.now)
    assert result["finalOutput"] == ["slow", "slow", "quickfalse", "8"]
    assert ids(result) == ["before", "b", "e", "y", "d", "a", "x", "p", "after"]
    result = await run(given(before, parallel(slow, quick), after), now=clock.now)
    assert result["finalOutput"][0] == "quick"


async def test_W10_a_loop_runs_its_steps_for_each_item() -> None:
    body = transform("a", "item.n * 10 + index"), transform("b", "[data]")
    items = [{"n": 1}, {"n": 2}]
    expected = {"type": "loop", "iterations": 2, "results": [[10], [21]]}
    assert (await run(given(loop(*body), input=items)))["finalOutput"] == expected
    assert (await run(given(loop(*body, items=items), input=3)))["finalOutput"] == expected
    assert (await run(given(loop(*body, items=cel("input.all")), input={"all": items})))["finalOutput"] == expected
    assert (await run(given(loop(*body, concurrency=2), input=items)))["finalOutput"] == expected
    assert (await run(given(loop(*body), input=[])))["finalOutput"]["results"] == []


async def test_W10_a_loop_inside_a_loop_sees_its_own_item() -> None:
    inner = step("inner", "loop", {"items": cel("item"), "steps": [transform("x", "item * 2")]})
    result = await run(given(loop(inner, transform("y", "[index, data.results[0]]"), items=[[1], [2, 3]])))
    assert result["finalOutput"]["results"] == [[0, 2], [1, 4]]


async def test_W10_a_loop_one_after_another_keeps_what_it_sets_and_starts_with_the_item() -> None:
    add = step("add", "set_variable", {"name": "sum", "value": cel("vars.sum + data")})
    zero = step("zero", "set_variable", {"name": "sum", "value": 0})
    result = await run(given(zero, loop(add, items=[1, 2, 3]), transform("sum", "vars.sum")))
    assert result["finalOutput"] == 6


async def test_W10_a_loop_needs_an_array() -> None:
    assert (await failed(given(loop(), input=3))).message == "step `l` failed: Loop step requires array data"
    assert "requires array data" in (await failed(given(loop(items=cel("input")), input="x"))).message


async def test_W10_a_loop_over_more_than_its_limit_does_nothing() -> None:
    around = Around({"t": lambda arguments: 1})
    caught = await failed(given(loop(call("a", "t")), input=[0] * 101), around)
    assert caught.message == "step `l` failed: there are 101 items and `maxIterations` is 100; nothing was done"
    assert caught.code == "limit_exceeded" and around.asked == []
    result = await run(given(loop(call("a", "t"), maxIterations=101), input=[0] * 101), around)
    assert result["finalOutput"]["iterations"] == len(around.asked) == 101


async def test_W10_a_loop_one_after_another_stops_at_the_first_item_that_fails() -> None:
    around = Around({"t": lambda arguments: 6 // arguments["data"]})
    caught = await failed(given(loop(call("a", "t")), input=[1, 0, 2]), around)
    assert caught.message.startswith("step `l` failed: step `a` failed: ZeroDivisionError")
    assert ids(caught.partial) == ["a", "a!", "l!"]


async def test_W10_a_loop_side_by_side_runs_all_items_and_fails_with_the_first_that_failed() -> None:
    around = Around({"t": lambda arguments: 6 // arguments["data"]})
    caught = await failed(given(loop(call("a", "t"), concurrency=2), input=[1, 0, 2, 0]), around)
    assert caught.message.startswith("step `l` failed: item 1: step `a` failed: ZeroDivisionError")
    assert ids(caught.partial) == ["a", "a!", "a", "a!", "l!"]


async def test_W10_only_so_many_items_run_at_once(clock: VirtualClock) -> None:
    for concurrency in (1, 4):
        crowd = Crowd()
        around = Around({"t": crowd.enter})
        await run(given(loop(call("a", "t"), concurrency=concurrency), input=[0] * 9), around, now=clock.now)
        assert crowd.most == concurrency


async def test_W10_one_that_is_cancelled_cancels_its_branches() -> None:
    begun, ended = asyncio.Event(), []

    async def hang(arguments: dict[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    fx = Effects()
    running = asyncio.create_task(run(given(parallel([call("a", "t")], [call("b", "t")])), Around({"t": hang}), fx))
    await begun.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(ended) == 2 and list(fx.entries) == ["start", "p:1"]


@pytest.mark.parametrize("error", [KeepholdError("closing", code="runtime_closing"), Killed()])
async def test_W10_what_says_nothing_of_the_step_ends_the_run_without_a_record(error: BaseException) -> None:
    def end(arguments: dict[str, Any]) -> None:
        raise error

    fx = Effects()
    branches = parallel([call("a", "t", {"continueOnError": True})], [step("d", "delay", {"ms": 3_600_000})])
    with pytest.raises(type(error)):
        await run(given(branches), Around({"t": end}), fx)
    assert sorted(fx.entries) == ["p:1", "p:1/1/d:1", "start"]
