"""A crash in the middle resumes at the step (W10): killed at every commit, a run gives what it would have given.

Each workflow is run once to its end. Then it is killed at its first commit, its second, and so on, with that commit
written and without, and run again with what the journal has. The result must be the same to the last timestamp, no step
that was recorded may run again, and a step whose record was lost may run once more, and no other.
"""

import itertools
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soak import tries
from tests.unit.workflow.world import (
    Around,
    Effects,
    Killed,
    call,
    cel,
    failing,
    run,
    step,
    transform,
    workflow,
)

from keephold import ToolError
from keephold.testing import VirtualClock
from keephold.tools.workflow import WorkflowFailed


def surroundings() -> Around:
    return Around({
        "wrap": lambda arguments: {"got": arguments["data"]},
        "bad": failing(),
        "busy": failing("busy", transient=True),
    })  # fmt: skip


async def life(given: dict[str, Any], fx: Effects, around: Around, clock: VirtualClock) -> Any:
    """What it gives, or how it fails."""
    try:
        return await run(given, around, fx, now=clock.now, max_steps=40)
    except WorkflowFailed as failed:
        return [failed.message, failed.code, failed.transient, failed.partial]


def check(given: dict[str, Any]) -> Any:
    """Kill it everywhere; what it gives unbroken."""
    clock, whole, unbroken = VirtualClock(), Effects(), surroundings()
    expected = clock.run(life(given, whole, unbroken, clock))
    assert len(whole.ran) == whole.commits == len(whole.entries)
    for dies_at in range(1, whole.commits + 1):
        for written in (True, False):
            clock, around = VirtualClock(), surroundings()
            first = Effects(dies_at=dies_at, written=written)
            with pytest.raises(Killed):
                clock.run(life(given, first, around, clock))
            second = Effects(dict(first.entries), failed=[id for id in first.failed if id in first.entries])
            assert clock.run(life(given, second, around, clock)) == expected, (dies_at, written)
            again = set(first.ran) & set(second.ran)
            assert len(again) == (0 if written else 1) and again.isdisjoint(first.entries)
            assert set(first.ran) | set(second.ran) == set(whole.ran)
            assert len(unbroken.asked) <= len(around.asked) <= len(unbroken.asked) + len(again)
    return expected


BRANCHES = [
    [step("d1", "delay", {"ms": 3000}), call("p1", "wrap"), step("v1", "set_variable", {"name": "v", "value": 1})],
    [call("p2", "wrap"), step("d2", "delay", {"ms": 1000}), step("v2", "set_variable", {"name": "v", "value": 2})],
    [call("p3", "bad"), transform("never", "1")],
]


def back(id: str, condition: str, to: str) -> dict[str, Any]:
    """A step that jumps back while the condition holds."""
    return transform(id, "data", condition=condition, onSuccess=to)


RETRY = {"retry": {"maxAttempts": 3, "baseDelayMs": 1000}}
WORKFLOWS: dict[str, list[dict[str, Any]]] = {
    "chain": [transform("a", "input + 1"), call("b", "wrap"), transform("c", "data.got + 1")],
    "failure": [transform("a", "input + 1"), call("b", "bad"), transform("c", "data")],
    "jump on error": [call("a", "bad", onError="c"), transform("b", "1"), transform("c", "error.message")],
    "jump back": [transform("a", "data + 1"), call("b", "wrap", {"preserveData": True}), back("c", "data < 4", "a")],
    "endless": [transform("a", "data + 1"), back("b", "true", "a")],
    "retry": [call("a", "busy", RETRY, onError="b"), transform("b", "error.code")],
    "parallel": [step("p", "parallel", {"branches": BRANCHES}), transform("after", "[vars.v, data.failureCount]")],
    "narrow": [step("p", "parallel", {"branches": BRANCHES, "concurrency": 1}), transform("after", "steps.p1")],
    "loop": [step("l", "loop", {"items": [1, 2, 3], "steps": [call("x", "wrap"), transform("y", "data.got + index")]})],
    "side by side": [
        step("l", "loop", {"items": [3000, 1000, 0], "concurrency": 2, "steps": [
            step("x", "delay", {"ms": cel("item")}), call("y", "wrap"), transform("z", "data.got.delayed + index"),
        ]}),
    ],
    "try": [step("t", "try_catch", {"try": [call("a", "bad")], "catch": [call("b", "wrap")]})],
    "choices": [
        step("c", "condition", {"expression": "data == 1", "then": [call("a", "wrap")], "else": [call("b", "bad")]}),
        step("s", "switch", {"value": cel("data.got"), "cases": [{"equals": 1, "steps": [transform("e", "'one'")]}]}),
        transform("skipped", "1", skipIf="data == 'one'"),
    ],
    "cut off": [
        step("t", "try_catch", {"try": [step("p", "parallel", {"branches": BRANCHES})], "catch": [], "timeoutMs": 2000},
             onError="c"),
        transform("c", "[error.code, string(has(steps.v1)), string(has(steps.d2))]"),
    ],
    "out of time": [step("d", "delay", {"ms": 9000}), step("p", "parallel", {"branches": BRANCHES}), call("z", "wrap")],
}  # fmt: skip


@pytest.mark.parametrize("name", WORKFLOWS)
def test_W10_killed_at_every_commit_the_result_is_the_same(name: str) -> None:
    check(workflow(*WORKFLOWS[name], input=1, timeoutMs=11_500))


def test_W10_the_workflows_above_end_as_they_are_meant_to() -> None:
    def end(name: str) -> Any:
        clock = VirtualClock()
        given = workflow(*WORKFLOWS[name], input=1, timeoutMs=11_500)
        return clock.run(life(given, Effects(), surroundings(), clock))

    assert end("parallel")["finalOutput"] == [2, 1]
    assert end("cut off")["finalOutput"] == ["timeout", "false", "true"]
    assert end("side by side")["finalOutput"]["results"] == [3000, 1001, 2]
    assert end("out of time")[3]["status"] == "timeout"
    assert end("endless")[1] == "limit_exceeded"


@pytest.mark.parametrize("name", ["parallel", "loop", "side by side", "try", "choices", "cut off"])
def test_R1_a_journal_of_an_earlier_version_is_replayed(name: str) -> None:
    """It had the time alone, under the name of a step with nested steps that of its end."""
    given = workflow(*WORKFLOWS[name], input=1, timeoutMs=11_500)
    clock, fx, around = VirtualClock(), Effects(), surroundings()
    result = clock.run(life(given, fx, around, clock))
    ends = {each["stepId"]: datetime.fromisoformat(each["timestamp"]).timestamp() for each in result["steps"]}
    for entry, written in fx.entries.items():
        was, value = msgspec.json.decode(written)
        if not value.keys() & {"result", "error", "cut"}:
            id = entry.rpartition("/")[2].partition(":")[0]
            at = value["at"] if entry.endswith("?") else ends.get(id, value["at"])
            fx.entries[entry] = msgspec.json.encode([was, at])
    again, asked = Effects(fx.entries, failed=fx.failed), surroundings()
    assert clock.run(life(given, again, asked, clock)) == result and again.ran == [] and asked.asked == []


# Any workflow

_LEAVES = ("transform", "wrap", "bad", "delay", "set", "get", "fails")


@st.composite
def workflows(draw: st.DrawFn) -> list[dict[str, Any]]:
    numbers = itertools.count(1)

    def steps(depth: int) -> list[dict[str, Any]]:
        made = [one(depth) for _ in range(draw(st.integers(1, 3)))]
        for at, each in enumerate(made):  # jumps go forward, so that it ends
            targets = [later["id"] for later in made[at + 1 :]] + ["$end"]
            for key in draw(st.sets(st.sampled_from(["onSuccess", "onError"]))):
                each[key] = draw(st.sampled_from(targets))
        return made

    def one(depth: int) -> dict[str, Any]:
        id = f"s{next(numbers)}"
        kinds = (*_LEAVES, "parallel", "loop", "try") if depth < 2 else _LEAVES
        made = of_kind(id, draw(st.sampled_from(kinds)), depth)
        if draw(st.booleans()):
            made["condition"] = draw(st.sampled_from(["has(vars.v)", "data != null", "error == null"]))
        flags = draw(st.sets(st.sampled_from(["continueOnError", "preserveData"])))
        made["config"] |= dict.fromkeys(flags, True)
        return made

    def of_kind(id: str, kind: str, depth: int) -> dict[str, Any]:
        match kind:
            case "wrap" | "bad":
                return call(id, kind)
            case "delay":
                return step(id, "delay", {"ms": draw(st.sampled_from([0, 500, 1000, 2000]))})
            case "set":
                return step(id, "set_variable", {"name": "v", "value": id})
            case "get":
                return step(id, "get_variable", {"name": "v"})
            case "fails":
                return transform(id, "input.nope")
            case "parallel":
                branches = [steps(depth + 1) for _ in range(draw(st.integers(1, 3)))]
                return step(id, "parallel", {"branches": branches, "concurrency": draw(st.integers(1, 3)), **limit()})
            case "loop":
                items = draw(st.lists(st.integers(0, 3), max_size=3))
                config = {"items": items, "concurrency": draw(st.integers(1, 2)), **limit()}
                return step(id, "loop", {"steps": steps(depth + 1), **config})
            case "try":
                return step(id, "try_catch", {"try": steps(depth + 1), "catch": steps(depth + 1), **limit()})
        return transform(id, "[string(size(steps)), vars.?v.orValue('')]")

    def limit() -> dict[str, int]:
        return draw(st.sampled_from([{}, {}, {"timeoutMs": 700}, {"timeoutMs": 1500}]))

    return steps(0)


@settings(max_examples=tries(30, soak=60))
@given(workflows())
@pytest.mark.slow
def test_W10_any_workflow_that_is_killed_at_any_commit_gives_the_same(steps: list[dict[str, Any]]) -> None:
    check(workflow(*steps, input={}, timeoutMs=4200))


# Trying the whole run again (R5): successes are kept, errors are not


def test_R5_another_attempt_goes_on_at_the_step_that_ended_the_run() -> None:
    """An error that something went on from stays as it was: what came after it depends on it."""
    calm = False

    def sometimes(arguments: dict[str, Any]) -> Any:
        if not calm:
            raise ToolError("busy", transient=True)
        return "done"

    inner = [call("x", "wrap"), call("y", "sometimes")]
    steps = [call("a", "sometimes", {"continueOnError": True}), step("l", "loop", {"items": [1, 2], "steps": inner})]
    around, clock, first = surroundings(), VirtualClock(), Effects()
    around.tools["sometimes"] = sometimes
    failed = clock.run(life(workflow(*steps), first, around, clock))
    assert failed[:3] == ["step `l` failed: step `y` failed: busy", "tool_error", True]
    assert first.failed == ["l:1/0/y:1"]
    calm = True
    kept = {id: entry for id, entry in first.entries.items() if id not in first.failed}
    result = clock.run(life(workflow(*steps), Effects(kept), around, clock))
    assert result["finalOutput"]["results"] == ["done", "done"] and result["steps"][0]["error"] == "busy"
    assert [name for name, _ in around.asked] == ["sometimes", "wrap", "sometimes", "sometimes", "wrap", "sometimes"]
