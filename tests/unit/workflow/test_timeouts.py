"""Timeouts (W10) really stop: of a step, of a step with steps in it, of the run. A restart does not prolong them."""

import asyncio
from typing import Any

import pytest
from tests.unit.workflow.world import Around, Effects, Killed, call, failed, ids, run, step, transform, workflow

from keephold import ToolError
from keephold.testing import VirtualClock


class Slow:
    """A tool that takes its time; who was stopped is noted."""

    def __init__(self, seconds: float = 3600) -> None:
        self.seconds = seconds
        self.stopped: list[Any] = []

    async def __call__(self, arguments: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.stopped.append(arguments["data"])
            raise
        return "done"


async def test_W10_the_timeout_of_a_step_stops_it_and_is_a_transient_error(clock: VirtualClock) -> None:
    slow = Slow()
    caught = await failed(workflow(call("a", "t", {"timeoutMs": 1500}), input=1), Around({"t": slow}), now=clock.now)
    assert (caught.message, caught.code, caught.transient) == (
        "step `a` failed: it timed out after 1500 ms",
        "timeout",
        True,
    )
    assert slow.stopped == [1] and caught.partial["executionTime"] == 1500


async def test_W10_a_tool_that_raises_a_timeout_of_its_own_has_failed(clock: VirtualClock) -> None:
    def timeout(arguments: dict[str, Any]) -> None:
        raise TimeoutError("the line")

    caught = await failed(workflow(call("a", "t", {"timeoutMs": 1500})), Around({"t": timeout}), now=clock.now)
    assert (caught.message, caught.code) == ("step `a` failed: TimeoutError: the line", "tool_error")


async def test_W10_a_step_that_timed_out_can_be_handled_and_tried_again(clock: VirtualClock) -> None:
    slow = Slow()
    config = {"timeoutMs": 1000, "retry": {"maxAttempts": 2, "baseDelayMs": 500}}
    result = await run(
        workflow(call("a", "t", config, onError="b"), transform("b", "1")), Around({"t": slow}), now=clock.now
    )
    assert ids(result) == ["a!", "b"] and len(slow.stopped) == 2 and result["executionTime"] == 2500


async def test_W10_a_delay_longer_than_its_timeout_fails_when_that_is_up(clock: VirtualClock) -> None:
    given = workflow(step("d", "delay", {"ms": 5000, "timeoutMs": 2000}))
    caught = await failed(given, now=clock.now)
    assert caught.message == "step `d` failed: it timed out after 2000 ms" and caught.partial["executionTime"] == 2000


async def test_W10_the_timeout_of_the_run_stops_it_and_what_was_done_is_kept(clock: VirtualClock) -> None:
    slow, began = Slow(), clock.now()
    steps = [transform("a", "1"), call("b", "t", {"continueOnError": True}, onError="c"), transform("c", "2")]
    caught = await failed(workflow(*steps, timeoutMs=10_000), Around({"t": slow}), now=clock.now)
    assert (caught.message, caught.code) == ("Operation timed out after 10000ms", "timeout")
    assert caught.partial["status"] == "timeout" and ids(caught.partial) == ["a", "b!"]
    assert caught.partial["steps"][1]["error"] == "it was stopped: the time was up"
    assert slow.stopped == [1] and clock.now() - began == 10


@pytest.mark.parametrize(
    "endless",
    [
        step("d", "delay", {"ms": 3_600_000}),
        step("w", "wait", {"event": "never"}),
        step("w", "wait", {"event": "never", "timeoutMs": 3_600_000}),
        call("r", "busy", {"retry": {"maxAttempts": 100, "baseDelayMs": 60_000, "maxDelayMs": 60_000}}),
        step("t", "try_catch", {"try": [call("x", "t")], "catch": [transform("c", "1")]}),
        step("p", "parallel", {"branches": [[call("x", "t")], [step("e", "delay", {"ms": 3_600_000})]]}),
        step("l", "loop", {"items": [1, 2, 3], "concurrency": 2, "steps": [call("x", "t")]}),
        step("l", "loop", {"items": [1, 2, 3], "steps": [call("x", "t", {"timeoutMs": 7_200_000})]}),
    ],
)
async def test_W10_the_timeout_of_the_run_stops_whatever_runs(clock: VirtualClock, endless: dict[str, Any]) -> None:
    def busy(arguments: dict[str, Any]) -> None:
        raise ToolError("busy", transient=True)

    began, around = clock.now(), Around({"t": Slow(), "busy": busy})
    caught = await failed(workflow(endless, timeoutMs=90_000), around, now=clock.now)
    assert caught.partial["status"] == "timeout" and round(clock.now() - began, 3) == 90
    assert caught.partial["executionTime"] == 90_000


async def test_W10_steps_that_take_no_time_are_stopped_as_well(clock: VirtualClock) -> None:
    times = iter(range(1_000_000))
    caught = await failed(
        workflow(transform("a", "1", onSuccess="a"), timeoutMs=100_000), now=lambda: float(next(times))
    )
    assert caught.partial["status"] == "timeout"


async def test_W10_the_timeout_of_a_step_with_steps_stops_all_of_them_and_can_be_handled(clock: VirtualClock) -> None:
    slow = Slow()
    branches = [[call("a", "t")], [step("d", "delay", {"ms": 1000}), call("b", "t")]]
    steps = [
        step("p", "parallel", {"branches": branches, "timeoutMs": 5000}, onError="c"),
        transform("c", "error.code"),
    ]
    result = await run(workflow(*steps, input=1), Around({"t": slow}), now=clock.now)
    assert result["finalOutput"] == "timeout" and ids(result) == ["a!", "d", "b!", "p!", "c"]
    assert len(slow.stopped) == 2 and result["executionTime"] == 5000


async def test_W10_of_two_timeouts_the_nearer_one_counts(clock: VirtualClock) -> None:
    inner = step("i", "try_catch", {"try": [call("a", "t")], "catch": [transform("caught", "1")], "timeoutMs": 4000})
    outer = step("o", "try_catch", {"try": [inner], "catch": [transform("c", "error.stepId")], "timeoutMs": 9000})
    result = await run(workflow(outer), Around({"t": Slow()}), now=clock.now)
    assert result["finalOutput"] == "i" and ids(result) == ["a!", "i!", "c", "o"] and result["executionTime"] == 4000


async def killed(given: dict[str, Any], around: Around, fx: Effects, now: Any) -> dict[str, bytes]:
    with pytest.raises(Killed):
        await run(given, around, fx, now=now)
    return fx.entries


@pytest.mark.parametrize("more", [{"timeoutMs": 10_000}, {}])
async def test_W10_a_restart_does_not_prolong_a_timeout(clock: VirtualClock, more: dict[str, int]) -> None:
    """Killed after 8 s of 10, dead for 60: there is no time left."""
    inner = [step("d", "delay", {"ms": 8000}), call("a", "t")]
    config = {"try": inner, "catch": [], **({} if more else {"timeoutMs": 10_000})}
    given = workflow(step("x", "try_catch", config), **more)
    slow = Slow()
    fx = Effects(dies_at=3 if more else 4)
    entries = await killed(given, Around({"t": slow}), fx, clock.now)
    await asyncio.sleep(60)
    around, began = Around({"t": slow}), clock.now()
    caught = await failed(given, around, Effects(entries), now=clock.now)
    assert caught.code == "timeout" and around.asked == [] and clock.now() == began
    assert caught.partial["steps"][0]["result"]["delayed"] == 8000


async def test_W10_a_restart_waits_the_rest_of_a_delay(clock: VirtualClock) -> None:
    given, began = workflow(step("d", "delay", {"ms": 10_000})), clock.now()
    entries = await killed(given, Around(), Effects(dies_at=2), clock.now)
    await asyncio.sleep(4)
    result = await run(given, Around(), Effects(entries), now=clock.now)
    assert clock.now() - began == 10 and result["executionTime"] == 10_000
