"""A workflow is checked as a whole before anything runs (W10): one error with all that is wrong, each with its path."""

from typing import Any

import jsonschema_rs
import pytest
from tests.unit.workflow.world import call, cel, read, refusal, step, transform, workflow

from keephold.tools.workflow import PARAMETERS
from keephold.tools.workflow.reading import READERS

UNUSABLE = "config.expression: is not an expression that can be used: "

GOOD: dict[str, dict[str, Any]] = {
    "agent": {"agentId": "writer", "prompt": cel("data"), "model": "m", "retry": {"maxAttempts": 2}},
    "tool": {"name": "t", "arguments": {"x": cel("data")}, "timeoutMs": 5},
    "api": {"url": "https://example.org", "method": "POST", "headers": {"A": "b"}, "body": {"x": [cel("data")]}},
    "condition": {"expression": "true", "then": [transform("then", "1")], "else": []},
    "transform": {"expression": "1", "preserveData": True},
    "delay": {"ms": 5},
    "parallel": {"branches": [[transform("branch", "1")], []], "concurrency": 2},
    "loop": {"items": cel("[1]"), "steps": [transform("body", "item")], "maxIterations": 3, "concurrency": 2},
    "try_catch": {"try": [transform("try", "1")], "catch": [transform("catch", "error.message")]},
    "switch": {"value": cel("1"), "cases": [{"equals": 1, "steps": []}], "default": [transform("default", "1")]},
    "merge": {"values": [{}, cel("data")], "mode": "object"},
    "set_variable": {"name": "v", "value": None},
    "get_variable": {"name": "v", "default": None},
    "wait": {"handleIds": ["a", "b"], "mode": "any", "timeoutMs": 5},
}


def test_there_is_an_example_of_every_type() -> None:
    assert GOOD.keys() == READERS.keys()


@pytest.mark.parametrize("type", GOOD)
def test_a_good_step_is_taken(type: str) -> None:
    given = workflow(step("a", type, GOOD[type]), input=1, context={"k": 1}, timeoutMs=0, priority=3)
    made = read(given)
    assert (made.id, made.name, made.timeout, made.priority) == ("w", "W", None, 3)
    assert made.steps.steps[0].type == type
    jsonschema_rs.validate(PARAMETERS, given)


@pytest.mark.parametrize("type", GOOD)
def test_an_unknown_field_of_a_config_is_named_with_what_is_known(type: str) -> None:
    said = refusal(workflow(step("a", type, {**GOOD[type], "zzz": 1})))
    assert "- steps[0].config.zzz: is not known here; known are " in said


@pytest.mark.parametrize(
    ("type", "config", "says"),
    [
        ("agent", {}, "config.prompt: is missing"),
        ("agent", {"prompt": "x"}, "config.agentId: is missing"),
        ("agent", {"prompt": "x", "agentId": 7}, "config.agentId: must be a string, not 7"),
        ("tool", {}, "config.name: is missing"),
        ("tool", {"name": "t", "arguments": []}, "config.arguments: must be an object, not an array"),
        (
            "tool",
            {"name": "t", "arguments": {"a": [{"b": cel("1 +")}]}},
            "config.arguments.a[0].b: is not an expression",
        ),
        (
            "tool",
            {"name": "t", "retry": {"maxAttempts": 0}},
            "config.retry.maxAttempts: is 0, and must be from 1 to 100",
        ),
        ("tool", {"name": "t", "retry": {"attempts": 2}}, "config.retry.attempts: is not known here; did you mean"),
        ("transform", {"expression": "1", "retry": {}}, "config.retry: is not known here"),
        ("transform", {}, "config.expression: is missing; it is a CEL expression"),
        ("transform", {"expression": 3}, "config.expression: must be a string, not 3"),
        ("transform", {"expression": "nope"}, UNUSABLE + "undeclared reference to 'nope'"),
        ("transform", {"expression": "item"}, UNUSABLE + "undeclared reference to 'item'"),
        ("transform", {"expression": "1", "timeoutMs": 0}, "config.timeoutMs: is 0, and must be from 1"),
        (
            "transform",
            {"expression": "1", "preserveData": "yes"},
            "config.preserveData: must be true or false, not the string",
        ),
        ("api", {}, "config.url: is missing"),
        ("api", {"url": "file:///etc/passwd"}, "config.url: must begin with http:// or https://"),
        ("api", {"url": "http://x", "method": "CONNECT"}, "config.method: is the string 'CONNECT', and must be one of"),
        ("condition", {}, "config.expression: is missing"),
        ("condition", {"expression": "true", "then": {}}, "config.then: must be an array, not an object"),
        ("delay", {"ms": -1}, "config.ms: is -1, and must be from 0"),
        ("delay", {"ms": 1, "duration": 1}, "config: has both `ms` and `duration`"),
        ("delay", {"duration": "1s"}, "config.duration: must be an integer, not the string '1s'"),
        ("parallel", {}, "config.branches: is missing"),
        ("parallel", {"branches": []}, "config.branches: has 0; from 1 to 64"),
        ("parallel", {"branches": [[]] * 65}, "config.branches: has 65; from 1 to 64"),
        ("parallel", {"branches": [[{"id": "x"}]]}, "config.branches[0][0].type: is missing"),
        ("parallel", {"branches": [transform("x", "1")]}, "config.branches[0]: must be an array of steps"),
        ("parallel", {"branches": [[]], "concurrency": 100}, "config.concurrency: is 100"),
        ("loop", {}, "config.steps: is missing"),
        ("loop", {"steps": [], "items": 3}, "config.items: must be an array, not 3"),
        (
            "loop",
            {"steps": [], "maxIterations": 10_001},
            "config.maxIterations: is 10,001, and must be from 1 to 10,000",
        ),
        ("try_catch", {"try": []}, "config.catch: is missing"),
        ("switch", {}, "config.value: is missing"),
        ("switch", {"value": 1, "cases": [3]}, "config.cases[0]: must be an object"),
        ("switch", {"value": 1, "cases": [{"steps": []}]}, "config.cases[0].equals: is missing"),
        ("switch", {"value": 1, "cases": [{"equals": 1, "then": []}]}, "config.cases[0].then: is not known"),
        ("merge", {}, "config.values: is missing"),
        (
            "merge",
            {"values": [], "mode": "deep"},
            "config.mode: is the string 'deep', and must be one of object, array",
        ),
        ("set_variable", {"name": "v"}, "config.value: is missing"),
        ("set_variable", {"value": 1}, "config.name: is missing"),
        ("get_variable", {}, "config.name: is missing"),
        ("wait", {}, "config: says not what to wait for"),
        ("wait", {"event": "e", "handleId": "h"}, "config: has handleId and event; give one of"),
        ("wait", {"event": "e", "mode": "all"}, "config.mode: goes with `handleIds`"),
        ("wait", {"handleIds": []}, "config.handleIds: is empty"),
        ("wait", {"handleIds": ["a"], "mode": "some"}, "config.mode: is the string 'some'"),
    ],
)
def test_a_bad_config_is_refused_with_its_path(type: str, config: dict[str, Any], says: str) -> None:
    assert f"- steps[0].{says}" in refusal(workflow(step("a", type, config)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "- workflowId: is missing"),
        ({}, "- name: is missing"),
        ({}, "- steps: is missing"),
        (workflow(), "- steps: is empty"),
        (workflow(transform("a", "1"), step="x"), "- step: is not known here; did you mean `steps`?"),
        (workflow(transform("a", "1"), timeoutMs=-1), "- timeoutMs: is -1"),
        (workflow(transform("a", "1"), context=[]), "- context: must be an object, not an array"),
        (workflow(transform("a", "1"), priority="high"), "- priority: must be an integer, not the string 'high'"),
        ({**workflow(), "steps": {"a": 1}}, "- steps: must be an array, not an object"),
        ({**workflow(), "steps": ["a"]}, "- steps[0]: must be an object"),
        (
            workflow(step("a", "transfrom")),
            "- steps[0].type: no step is of type `transfrom`; did you mean `transform`?",
        ),
        (workflow(step("a", "widget")), "known are agent, tool, api,"),
        (workflow({"type": "transform"}), "- steps[0].id: is missing"),
        (workflow(transform("a b", "1")), "- steps[0].id: must be 1 to 128 characters"),
        (workflow(transform("a/b", "1")), "- steps[0].id: must be"),
        (workflow(transform("$end", "1")), "- steps[0].id: must be"),
        (workflow(transform("a", "1", name="x")), "- steps[0].name: is not known here"),
        (workflow(transform("a", "1", onSuccess="b")), "- steps[0].onSuccess: `b` is the id of no step"),
        (workflow(transform("a", "1", onError="$END")), "- steps[0].onError: `$END` is the id of no step"),
        (workflow(transform("a", "1", condition="1 +")), "- steps[0].condition: is not an expression"),
        (workflow(transform("a", "1", skipIf=True)), "- steps[0].skipIf: must be a string, not true"),
        (workflow(transform("a", "steps.b.x")), "- steps[0].config.expression: reads the result of step `b`"),
    ],
)
def test_a_bad_workflow_is_refused_with_the_path(given: dict[str, Any], says: str) -> None:
    assert says in refusal(given)


def test_ids_are_unique_also_over_nested_lists() -> None:
    loop = step("l", "loop", {"steps": [transform("a", "item")]})
    said = refusal(workflow(transform("a", "1"), loop))
    assert "- steps[1].config.steps[0].id: `a` is the id of steps[0], too" in said


def test_a_jump_stays_in_its_list() -> None:
    inner = transform("b", "1", onSuccess="a")
    said = refusal(workflow(transform("a", "1"), step("p", "parallel", {"branches": [[inner]]})))
    where = "- steps[1].config.branches[0][0].onSuccess: `a` stands in another list, at steps[0]"
    assert where in said and "a jump may go to b, $end" in said


def test_every_mistake_is_named_once_and_causes_no_other() -> None:
    wrong = step("a", "nope"), step("b", "delay", {"ms": "x"}, onError="a", onSuccess="a")
    assert refusal(workflow(*wrong)).count("\n") == 2


def test_everything_that_is_wrong_is_said_at_once() -> None:
    steps = [step("a", "nope"), transform("a", "1 +"), call("c", "t", onError="zz"), step("d", "delay", {"ms": "x"})]
    said = refusal(workflow(*steps))
    assert said.startswith("The workflow cannot be run; nothing was started.\n")
    for path in (
        "steps[0].type",
        "steps[1].id",
        "steps[1].config.expression",
        "steps[2].onError",
        "steps[3].config.ms",
    ):
        assert f"\n- {path}: " in said


def test_a_long_list_of_mistakes_is_cut() -> None:
    said = refusal(workflow(*(step(f"s{n}", "nope") for n in range(25))))
    assert said.endswith("- and 5 more")


def test_steps_are_nested_only_so_deep() -> None:
    inner = [transform("x", "1")]
    for n in range(17):
        inner = [step(f"t{n}", "try_catch", {"try": inner, "catch": []})]
    assert "nested too deeply; steps may stand 16 deep" in refusal(workflow(*inner))


def test_a_workflow_goes_straight_if_it_neither_jumps_nor_nests() -> None:
    assert read(workflow(transform("a", "1"))).straight
    assert not read(workflow(transform("a", "1", onSuccess="$end"))).straight
    assert not read(workflow(step("a", "loop", {"steps": []}))).straight
