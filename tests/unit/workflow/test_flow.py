"""The order in which steps run (W10): jumps, skips, errors that are handled, limits, and progress."""

from typing import Any

import pytest
from tests.unit.workflow.world import Around, Effects, call, cel, failed, failing, ids, run, step, transform, workflow

from keephold.tools.workflow import engine


async def test_W10_a_jump_on_success_goes_to_its_step() -> None:
    steps = [transform("a", "1", onSuccess="c"), transform("b", "2"), transform("c", "3")]
    assert ids(await run(workflow(*steps))) == ["a", "c"]


async def test_W10_a_jump_to_end_ends_the_list() -> None:
    inner = [transform("x", "1", onSuccess="$end"), transform("y", "2")]
    steps = [step("t", "try_catch", {"try": inner, "catch": []}), transform("b", "data + 1", onSuccess="$end")]
    result = await run(workflow(*steps, transform("c", "3")))
    assert ids(result) == ["x", "t", "b"] and result["finalOutput"] == 2


async def test_W10_a_jump_back_makes_a_loop_and_every_visit_is_a_step_of_its_own() -> None:
    fx = Effects()
    steps = [transform("count", "data + 1"), transform("again", "data", condition="data < 3", onSuccess="count")]
    result = await run(workflow(*steps, input=0), fx=fx)
    assert ids(result) == ["count", "again", "count", "again", "count", "again"]
    assert result["steps"][-1]["result"] == {"skipped": True, "reason": "condition is false: data < 3"}
    assert fx.ran == ["start", "count:1", "again:1", "count:2", "again:2", "count:3", "again:3"]
    assert result["finalOutput"] == 3


async def test_W10_a_jump_on_error_goes_to_its_step_which_can_read_the_error() -> None:
    steps = [
        call("a", "t", onSuccess="$end", onError="rescue"),
        transform("between", "1"),
        transform("rescue", "[error.message, error.stepId, data, steps.a.error]"),
    ]
    result = await run(workflow(*steps, input=1), Around({"t": failing()}))
    assert ids(result) == ["a!", "rescue"] and result["finalOutput"] == ["boom", "a", 1, "boom"]


async def test_W10_continue_on_error_goes_on_with_the_data_as_it_was() -> None:
    steps = [call("a", "t", {"continueOnError": True}), transform("b", "data + 1")]
    result = await run(workflow(*steps, input=1), Around({"t": failing()}))
    assert ids(result) == ["a!", "b"] and result["finalOutput"] == 2
    assert result["context"]["step_a"] == {"error": "boom"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"condition": "input > 1"}, "condition is false: input > 1"),
        ({"skipIf": "input == 1"}, "skipIf is true: input == 1"),
        ({"condition": "true", "skipIf": "true"}, "skipIf is true: true"),
    ],
)
@pytest.mark.parametrize("type", ["tool", "parallel", "delay", "set_variable"])
async def test_W10_a_skipped_step_of_any_type_does_nothing(type: str, more: dict[str, str], reason: str) -> None:
    configs: dict[str, dict[str, Any]] = {
        "tool": {"name": "nope"},
        "parallel": {"branches": [[call("x", "nope")]]},
        "set_variable": {"name": "v", "value": 1},
    }
    around, fx = Around(), Effects()
    given = [step("a", type, configs.get(type), onSuccess="$end", **more), transform("b", "data + 1")]
    result = await run(workflow(*given, input=1), around, fx)
    assert result["steps"][0]["result"] == {"skipped": True, "reason": reason} and result["steps"][0]["success"]
    assert result["finalOutput"] == 2  # neither the jump nor the result of a skipped step counts
    assert around.asked == [] and result["context"]["variables"] == {} and fx.commits == 3


async def test_W10_a_condition_that_cannot_be_evaluated_is_a_failure_of_its_step() -> None:
    caught = await failed(workflow(transform("a", "1", condition="input.x")))
    assert caught.message.startswith("step `a` failed: the expression `input.x` failed: ")
    caught = await failed(workflow(transform("a", "1", skipIf="input"), input=3))
    assert "`skipIf` must give true or false" in caught.message
    fine = [transform("a", "1", condition="input.x", onError="b"), transform("b", "2")]
    assert ids(await run(workflow(*fine))) == ["a!", "b"]


async def test_W10_a_jump_that_never_ends_meets_the_limit_and_what_was_done_is_kept() -> None:
    steps = [transform("a", "1"), transform("b", "2", onSuccess="a")]
    caught = await failed(workflow(*steps), max_steps=7)
    assert caught.code == "limit_exceeded"
    assert caught.message.startswith("the workflow has executed 7 steps, which is the limit; `b` was next")
    assert len(caught.partial["steps"]) == 7 and caught.partial["status"] == "failed"


async def test_W10_nothing_handles_a_limit() -> None:
    inner = [transform("a", "1", {"continueOnError": True}, onSuccess="a", onError="a")]
    steps = [
        step("t", "try_catch", {"try": [step("p", "parallel", {"branches": [inner, inner_of("b")]})], "catch": []})
    ]
    assert (await failed(workflow(*steps), max_steps=9)).code == "limit_exceeded"


def inner_of(id: str) -> list[dict[str, Any]]:
    return [transform(id, "1", onSuccess=id)]


async def test_W10_ten_thousand_steps_are_the_limit_by_itself() -> None:
    caught = await failed(workflow(transform("a", "1", onSuccess="a")))
    assert "has executed 10,000 steps" in caught.message and len(caught.partial["steps"]) == 10_000


async def test_W10_results_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_KEPT", 50)
    caught = await failed(workflow(transform("a", "'x' + data", onSuccess="a"), input=""))
    assert "are over 16 MiB, with that of `a`" in caught.message and len(caught.partial["steps"]) == 8


async def test_W10_a_value_of_the_workflow_that_is_no_json_fails_its_step() -> None:
    given = step("v", "set_variable", {"name": "v", "value": "\ud800"})
    assert "step `v` failed" in (await failed(workflow(given))).message
    tool = step("t", "tool", {"name": "t", "arguments": {"x": "\ud800"}, "continueOnError": True})
    assert ids(await run(workflow(tool, transform("b", "1")))) == ["t!", "b"]


async def test_W10_progress_is_told_with_the_total_where_it_is_known() -> None:
    around = Around()
    await run(workflow(transform("a", "1"), transform("b", "2")), around)
    assert around.told == [(0, 2.0, "a (transform)"), (1, 2.0, "b (transform)")]
    around = Around()
    await run(workflow(step("l", "loop", {"items": [1, 2], "steps": [transform("a", "item")]})), around)
    assert around.told == [(0, None, "l (loop)"), (1, None, "a (transform)"), (2, None, "a (transform)")]


async def test_W10_an_object_with_cel_alone_is_an_expression_anything_else_is_not() -> None:
    value = {"a": cel("1 + 1"), "b": {"cel": "1", "x": 1}, "c": [cel("'cel'")]}
    result = await run(workflow(step("s", "set_variable", {"name": "v", "value": value})))
    assert result["finalOutput"] == {"a": 2, "b": {"cel": "1", "x": 1}, "c": ["cel"]}
