"""What each type of step does (W10), and how it fails."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.workflow.world import (
    Around,
    Effects,
    call,
    cel,
    failed,
    failing,
    ids,
    run,
    step,
    transform,
    workflow,
)

from keephold import ToolError
from keephold.testing import VirtualClock


async def output(*steps: dict[str, Any], **more: Any) -> Any:
    return (await run(workflow(*steps, **more)))["finalOutput"]


async def error(*steps: dict[str, Any], around: Around | None = None, **more: Any) -> str:
    return (await failed(workflow(*steps, **more), around)).message


async def test_W10_the_result_has_every_step_the_data_and_the_context() -> None:
    given = workflow(transform("a", "input + 1"), transform("b", "data * 2"), input=1, context={"k": "v"})
    assert await run(given) == {
        "workflowId": "w",
        "name": "W",
        "status": "completed",
        "steps": [
            {"stepId": id, "type": "transform", "result": n, "timestamp": "2026-01-01T00:00:00.000Z", "success": True}
            for id, n in (("a", 2), ("b", 4))
        ],
        "finalOutput": 4,
        "context": {"k": "v", "step_a": 2, "step_b": 4, "variables": {}},
        "executionTime": 0,
    }


async def test_W10_an_expression_sees_input_data_context_vars_and_steps() -> None:
    seen = "[input.x, data, context.k, context.step_a, vars.v, steps.a, size(steps), size(context)]"
    steps = [transform("a", "'a'"), step("v", "set_variable", {"name": "v", "value": "v"}), transform("s", seen)]
    given = workflow(*steps, input={"x": "x"}, context={"k": "k"})
    assert (await run(given))["finalOutput"] == ["x", "v", "k", "a", "v", "a", 2, 3]


async def test_W10_preserve_data_leaves_the_data_as_it_is() -> None:
    assert await output(transform("a", "5", {"preserveData": True}), transform("b", "[data, steps.a]"), input=1) == [
        1,
        5,
    ]


# tool, agent


async def test_W10_a_tool_gets_its_arguments_with_expressions_in_them() -> None:
    around = Around({"t": lambda arguments: {"got": arguments}})
    arguments = {"n": cel("data + 1"), "list": [cel("input"), {"deep": cel("'x'")}], "plain": {"a": None}}
    result = await run(workflow(step("a", "tool", {"name": "t", "arguments": arguments}), input=1), around)
    assert result["finalOutput"] == {"got": {"n": 2, "list": [1, {"deep": "x"}], "plain": {"a": None}}}


async def test_W10_a_tool_that_fails_fails_the_workflow_and_what_was_done_is_kept() -> None:
    around = Around({"t": failing("the till is locked", code="mine", transient=True)})
    caught = await failed(workflow(transform("a", "1"), call("b", "t"), transform("c", "2")), around)
    assert (caught.message, caught.code, caught.transient) == ("step `b` failed: the till is locked", "mine", True)
    assert caught.partial["status"] == "failed" and ids(caught.partial) == ["a", "b!"]
    assert caught.partial["steps"][1] == {
        "stepId": "b",
        "type": "tool",
        "error": "the till is locked",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "success": False,
    }
    assert caught.partial["context"]["step_a"] == 1 and caught.partial["finalOutput"] == 1


async def test_W10_a_tool_that_breaks_fails_its_step_alone() -> None:
    around = Around({"t": lambda arguments: arguments["nope"], "n": lambda arguments: float("nan")})
    result = await run(
        workflow(call("a", "t", {"continueOnError": True}), call("b", "n", {"continueOnError": True})), around
    )
    assert result["steps"][0]["error"] == "KeyError: 'nope'"
    assert "is not JSON" in result["steps"][1]["error"]


async def test_W10_the_name_and_the_arguments_of_a_tool_may_be_expressions() -> None:
    around = Around({"t": lambda arguments: arguments})
    given = step("a", "tool", {"name": cel("input.name"), "arguments": cel("input.arguments")})
    assert (await run(workflow(given, input={"name": "t", "arguments": {"x": 1}}), around))["finalOutput"] == {"x": 1}
    wrong = await error(given, input={"name": "t", "arguments": 3})
    assert wrong == "step `a` failed: `arguments` must be an object, and its expression gives 3"
    assert "`name` must be a string" in await error(given, input={"name": None, "arguments": {}})


async def test_W10_an_agent_gets_its_parameters() -> None:
    around = Around()
    config = {"agentId": "writer", "prompt": cel("'tea and ' + data"), "temperature": 0.5}
    result = await run(workflow(step("a", "agent", config), input="milk"), around)
    assert result["finalOutput"] == {"response": "about tea and milk"}
    assert around.asked == [["writer", {"prompt": "tea and milk", "temperature": 0.5}]]
    said = await error(step("a", "agent", {"agentId": "painter", "prompt": "x"}))
    assert said == "step `a` failed: no agent `painter`; there is writer"


async def test_W10_a_transient_error_is_tried_again_after_pauses_that_double(clock: VirtualClock) -> None:
    times: list[float] = []

    def sometimes(arguments: dict[str, Any]) -> str:
        times.append(clock.now())
        if len(times) < 5:
            raise ToolError("busy", transient=True)
        return "done"

    retry = {"maxAttempts": 5, "baseDelayMs": 1000, "maxDelayMs": 3000}
    fx = Effects()
    around = Around({"t": sometimes})
    result = await run(workflow(call("a", "t", {"retry": retry})), around, fx, now=clock.now)
    assert result["finalOutput"] == "done" and ids(result) == ["a"] and result["executionTime"] == 9000
    assert [round(later - times[0]) for later in times] == [0, 1, 3, 6, 9]
    assert fx.ran == ["start", "a:1", "a:1~2", "a:1~3", "a:1~4", "a:1~5"]
    assert around.entries == fx.ran[1:]


@pytest.mark.parametrize(("transient", "attempts"), [(True, 2), (False, 1)])
async def test_W10_only_transient_errors_are_tried_again_and_not_for_ever(
    clock: VirtualClock, transient: bool, attempts: int
) -> None:
    around = Around({"t": failing(transient=transient)})
    caught = await failed(workflow(call("a", "t", {"retry": {"maxAttempts": 2}})), around, now=clock.now)
    assert (caught.message, len(around.asked)) == ("step `a` failed: boom", attempts)


# condition, switch, try_catch


async def test_W10_a_condition_gives_true_or_false_or_runs_one_of_two_lists() -> None:
    assert await output(step("c", "condition", {"expression": "data > 1"}), input=2) is True
    lists = {"then": [transform("t", "data + 10")], "else": [transform("e", "data - 10")]}
    for given, made in ((2, 12), (1, -9)):
        assert await output(step("c", "condition", {"expression": "data > 1", **lists}), input=given) == made
    no_else = {"expression": "data > 1", "then": lists["then"]}
    assert await output(step("c", "condition", no_else), input=1) == 1
    assert "must give true or false" in await error(step("c", "condition", {"expression": "data"}), input=1)


async def test_W10_a_switch_runs_the_first_case_that_is_equal() -> None:
    cases = [
        {"equals": each, "steps": [transform(f"c{at}", f"{at}")]} for at, each in enumerate([1, "a", cel("input.w")])
    ]
    given = step("s", "switch", {"value": cel("input.v"), "cases": cases, "default": [transform("d", "'default'")]})
    for value, made in ((1, 0), (1.0, 0), ("a", 1), ({"deep": [1]}, 2), ("b", "default"), (True, "default")):
        assert await output(given, input={"v": value, "w": {"deep": [1]}}) == made
    assert await output(step("s", "switch", {"value": 9, "cases": cases[:1]}), input="kept") == "kept"


async def test_W10_what_fails_in_try_is_caught_and_can_be_read() -> None:
    catch = [transform("c", "[error.message, error.code, error.stepId, data]")]
    around = Around({"t": failing(code="mine")})
    given = workflow(step("x", "try_catch", {"try": [transform("a", "2"), call("b", "t")], "catch": catch}), input=1)
    result = await run(given, around)
    assert result["finalOutput"] == ["boom", "mine", "b", 1] and ids(result) == ["a", "b!", "c", "x"]
    fine = step("x", "try_catch", {"try": [transform("a", "2")], "catch": catch})
    assert await output(fine, input=1) == 2


async def test_W10_what_fails_in_catch_fails() -> None:
    both = {"try": [call("a", "t")], "catch": [call("b", "t")]}
    said = await error(step("x", "try_catch", both), around=Around({"t": failing()}))
    assert said == "step `x` failed: step `b` failed: boom"


# merge, variables


async def test_W10_merge_of_objects_and_of_arrays() -> None:
    objects = [{"a": 1, "b": 1}, cel("{'b': 2}")]
    assert await output(step("m", "merge", {"values": objects})) == {"a": 1, "b": 2}
    arrays = [[1], cel("[2, 3]"), 4]
    assert await output(step("m", "merge", {"values": arrays, "mode": "array"})) == [1, 2, 3, 4]
    assert "`values[1]` is 4; objects are merged" in await error(step("m", "merge", {"values": [{}, 4]}))
    assert "`values` must be an array" in await error(step("m", "merge", {"values": cel("1")}))


async def test_W10_variables_are_set_and_got() -> None:
    steps = [
        step("set", "set_variable", {"name": "n", "value": {"x": cel("input")}, "preserveData": True}),
        step("get", "get_variable", {"name": "n"}),
        step("else", "get_variable", {"name": "m", "default": cel("data.x + 1")}),
    ]
    result = await run(workflow(*steps, input=1))
    assert [each["result"] for each in result["steps"]] == [{"x": 1}, {"x": 1}, 2]
    assert result["context"]["variables"] == {"n": {"x": 1}}
    said = await error(steps[0], step("get", "get_variable", {"name": "m"}), input=1)
    assert "no variable `m` has been set; there are: `n`" in said


# delay, wait


@pytest.mark.parametrize(
    ("config", "ms"), [({}, 1000), ({"ms": 90_000}, 90_000), ({"duration": 5}, 5), ({"ms": cel("data * 2")}, 14)]
)
async def test_W10_a_delay_takes_its_time(clock: VirtualClock, config: dict[str, Any], ms: int) -> None:
    began = clock.now()
    result = await run(workflow(step("d", "delay", config), input=7), now=clock.now)
    assert round((clock.now() - began) * 1000) == ms == result["executionTime"]
    assert result["finalOutput"]["delayed"] == ms
    assert result["finalOutput"]["timestamp"] == result["steps"][0]["timestamp"]


async def test_W10_a_delay_by_an_expression_is_checked() -> None:
    assert "a delay is a number of ms" in await error(step("d", "delay", {"ms": cel("'soon'")}))


async def test_W10_a_wait_for_handles_asks_the_surroundings() -> None:
    around = Around()

    async def wait(ids: Sequence[str], mode: str) -> Any:
        return {"status": "completed", "mode": mode}

    around.handles = wait
    steps = [
        step("one", "wait", {"handleId": cel("input")}),
        step("some", "wait", {"handleIds": ["a", cel("input")], "mode": "race"}),
    ]
    result = await run(workflow(*steps, input="h"), around)
    assert result["finalOutput"] == {"status": "completed", "mode": "race"}
    assert around.asked == [[["h"], "all"], [["a", "h"], "race"]]
    assert "each a string" in await error(step("w", "wait", {"handleId": cel("3")}))


async def test_W10_K5_a_wait_for_an_event_tells_the_id_of_its_key_and_gives_what_it_brings() -> None:
    fx, around = Effects(), Around()
    running = asyncio.create_task(run(workflow(step("w", "wait", {"event": "approved"})), around, fx))
    fx.key("w:1:approved").set_result({"by": "me"})
    assert (await running)["finalOutput"] == {"by": "me"}
    told = {"stepId": "w", "event": "approved", "key_id": "id-of-w:1:approved"}
    assert fx.events == [("workflow.waiting", told)]
    said = [message for *_, message in around.told]
    assert "w waits for the event `approved` (key_id id-of-w:1:approved)" in said


async def test_W10_a_wait_times_out_as_a_failure_of_its_step(clock: VirtualClock) -> None:
    fx, around = Effects(), Around()

    async def wait(ids: Sequence[str], mode: str) -> Any:
        await asyncio.Event().wait()

    around.handles = wait
    for config in ({"event": "never"}, {"handleId": "h"}):
        began = clock.now()
        caught = await failed(
            workflow(step("w", "wait", {**config, "timeoutMs": 2500})), around, Effects(), now=clock.now
        )
        assert (caught.message, caught.code) == ("step `w` failed: it timed out after 2500 ms", "timeout")
        assert round(clock.now() - began, 1) == 2.5 and caught.partial["status"] == "failed"
    assert fx.ran == []
