"""How far a workflow is, read off its journal, and the picture of it."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from tests.soak import tries
from tests.unit.workflow.test_replay import life, surroundings, workflows
from tests.unit.workflow.world import (
    Around,
    Effects,
    Killed,
    call,
    cel,
    failed,
    failing,
    run,
    step,
    transform,
    workflow,
)

from keephold.control.workflows import Workflow, workflow_json
from keephold.serve.dashboard.graph import MOST, Frame, Node, draw, numbered
from keephold.testing import VirtualClock

NOW = 1_767_225_600.0

RICH = [
    transform("first", "[1, 2, 3]"),
    transform("passed", "1", skipIf="true"),
    step("both", "parallel", {"branches": [[transform("left", "1"), transform("left2", "2")], [call("right", "bad")]]}),
    step("each", "loop", {"items": cel("[1, 2, 3]"), "steps": [transform("square", "item"), call("note", "good")]}),
    step("if", "condition", {"expression": "true", "then": [transform("yes", "1")], "else": [transform("no", "2")]}),
    step("try", "try_catch", {"try": [call("push", "bad")], "catch": [transform("undo", "error.message")]}),
    step("which", "switch", {"value": 2, "cases": [{"equals": 1, "steps": [transform("one", "1")]},
                                                  {"equals": 2, "steps": [transform("two", "2")]}]}),
    transform("jump", "data", onSuccess="last"),
    transform("over", "1"),
    transform("last", "data"),
]  # fmt: skip


def around() -> Around:
    return Around({"good": lambda _: "ok", "bad": failing("it is broken")})


def journal(fx: Effects) -> list[dict[str, Any]]:
    """The entries of a run, as `Control.journal` gives them."""
    return [entry(name, msgspec.json.decode(value)[1], name not in fx.failed) for name, value in fx.entries.items()]


def entry(name: str, value: Any, ok: bool) -> dict[str, Any]:
    if not ok:
        message, code, transient, trace = value
        value = {"message": message, "code": code, "transient": transient, "trace": trace}
    return {"kind": "step", "name": name, "ok": ok, "input": None, "value": value}


def everyone(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in steps:
        yield each
        for inner in each["lists"]:
            yield from everyone(inner["steps"])


def states(shown: Workflow) -> dict[str, str]:
    return {each["id"]: each["state"] for each in everyone(shown["steps"])}


async def test_W10_a_workflow_that_has_ended_tells_what_became_of_every_step() -> None:
    fx = Effects()
    await run(workflow(*RICH), around(), fx)
    shown = workflow_json(workflow(*RICH), journal(fx), active=False, now=NOW)
    found = states(shown)
    assert shown["current"] == []
    assert {id for id, state in found.items() if state == "skipped"} == {"passed", "no", "one", "over"}
    assert {id for id, state in found.items() if state == "failed"} == {"right", "push"}
    assert {state for id, state in found.items()} == {"done", "failed", "skipped"}
    by_id = {each["id"]: each for each in everyone(shown["steps"])}
    assert by_id["square"]["visits"] == 3 and by_id["each"]["lists"][0]["times"] == 3
    assert by_id["right"]["error"] == "it is broken"


async def test_W10_wherever_a_run_is_cut_off_the_current_step_is_the_one_that_it_was_at() -> None:
    whole = Effects()
    await run(workflow(*RICH), around(), whole)
    for commit in range(2, whole.commits + 1):  # the first says that it began
        fx = Effects(dies_at=commit, written=False)
        with pytest.raises(Killed):
            await run(workflow(*RICH), around(), fx)
        shown = workflow_json(workflow(*RICH), journal(fx), active=True, now=NOW)
        for name in (name for name in fx.ran if name not in fx.entries):
            *outer, last = name.split("/")
            cut_at = {part.partition(":")[0] for part in (*outer[::2], last)}
            assert cut_at <= set(shown["current"]), (name, shown)
        assert "last" not in shown["current"] or fx.ran[-1] == "last:1"
        assert all(state != "failed" for id, state in states(shown).items() if id not in ("right", "push"))


async def test_W10_a_step_that_ended_the_run_has_failed_and_what_was_to_come_is_skipped() -> None:
    fx, given = Effects(), workflow(transform("a", "1"), call("b", "bad"), transform("c", "2"))
    await failed(given, around(), fx)
    shown = workflow_json(given, journal(fx), active=False, now=NOW)
    assert states(shown) == {"a": "done", "b": "failed", "c": "skipped"}
    assert shown["steps"][1]["error"] == "it is broken" and shown["steps"][1]["ended"] == NOW


async def test_W10_a_delay_is_current_until_its_time_has_come() -> None:
    given = workflow(step("wait", "delay", {"ms": 5000}), transform("then", "1"))
    written = [entry("start", NOW, True), entry("wait:1", {"at": NOW, "result": 5000}, True)]
    assert (workflow_json(given, written, active=True, now=NOW + 1))["current"] == ["wait"]
    assert (workflow_json(given, written, active=True, now=NOW + 6))["current"] == ["then"]


async def test_W10_an_attempt_that_may_be_made_again_is_not_the_end_of_a_step() -> None:
    given = workflow(call("a", "bad", {"retry": {"maxAttempts": 2}}), transform("b", "1"))
    error = {"at": NOW, "error": {"message": "busy", "code": "tool_error", "transient": True}}
    written = [entry("start", NOW, True), entry("a:1", error, True)]
    (first, _) = (workflow_json(given, written, active=True, now=NOW))["steps"]
    assert (first["state"], first["attempt"]) == ("current", 2)
    written.append(entry("a:1~2", {"at": NOW + 1, "result": 1}, True))
    (first, second) = (workflow_json(given, written, active=True, now=NOW))["steps"]
    assert (first["state"], second["state"]) == ("done", "current")


async def test_W10_a_step_inside_one_that_timed_out_is_not_current() -> None:
    given = workflow(
        step("a", "try_catch", {"try": [step("wait", "delay", {"ms": 5000}), transform("b", "1")], "catch": [],
             "timeoutMs": 2000}, onError="c"),
        transform("c", "2"),
    )  # fmt: skip
    written = [entry("start", {"at": NOW}, True), entry("a:1?", {"at": NOW}, True)]
    written += [entry("a:1", {"at": NOW, "list": "try"}, True)]
    written += [entry("a:1/try/wait:1", {"at": NOW, "result": 5000}, True)]
    assert workflow_json(given, written, active=True, now=NOW + 1)["current"] == ["a", "wait"]
    for later in (3, 9):
        shown = workflow_json(given, written, active=True, now=NOW + later)
        assert states(shown) == {"a": "failed", "wait": "failed", "b": "skipped", "c": "current"}
        assert shown["steps"][0]["error"] == "it timed out after 2000 ms"


async def test_W10_a_journal_of_an_earlier_version_shows_the_steps_that_have_ended() -> None:
    """It had the time of its end under the name of a step with lists, or of one that was skipped."""
    given = workflow(
        RICH[4],
        transform("passed", "1", skipIf="true"),
        step("each", "loop", {"items": [1, 2], "steps": [transform("x", "item"), transform("y", "item")]}),
    )  # fmt: skip
    written = [entry("start", NOW, True), entry("if:1/then/yes:1", {"at": NOW, "result": 1}, True)]
    written += [entry("if:1", NOW, True), entry("passed:1", NOW, True)]
    written += [entry(f"each:1/0/{id}:1", {"at": NOW, "result": 1}, True) for id in ("x", "y")]
    written += [entry("each:1/1/x:1", {"at": NOW, "result": 2}, True)]
    shown = workflow_json(given, written, active=True, now=NOW)
    before = {"if": "done", "yes": "done", "no": "skipped", "passed": "skipped", "x": "done"}
    assert states(shown) == before | {"each": "current", "y": "current"}


@settings(max_examples=tries(30, soak=200))
@drawn(workflows())
def test_W10_any_workflow_is_shown_as_its_result_has_it(steps: list[dict[str, Any]]) -> None:
    given, fx, clock = workflow(*steps, input={}, timeoutMs=4200), Effects(), VirtualClock()
    result = clock.run(life(given, fx, surroundings(), clock))
    records = (result[3] if isinstance(result, list) else result)["steps"]
    ended = {each["stepId"]: each for each in records}
    shown = workflow_json(given, journal(fx), active=False, now=clock.now())
    assert shown["current"] == []
    for each in everyone(shown["steps"]):
        record = ended.get(each["id"])
        if record is None:
            assert each["state"] in ("skipped", "failed"), each
        elif not record["success"]:
            assert each["state"] == "failed", each
        else:
            skipped = isinstance(record["result"], dict) and record["result"].get("skipped")
            assert each["state"] == ("skipped" if skipped else "done"), each


@pytest.mark.parametrize(
    "steps", [None, 7, [], [1, {"id": "a"}, {"id": 2, "type": "x"}], [{"id": "a", "type": "loop"}]]
)
async def test_arguments_that_are_no_workflow_are_shown_as_far_as_they_are(steps: Any) -> None:
    shown = workflow_json({"workflowId": 3, "steps": steps}, [], active=False, now=NOW)
    assert [each["id"] for each in shown["steps"]] == (["a"] if steps == [{"id": "a", "type": "loop"}] else [])
    draw(shown["steps"])


# The picture


def overlap(one: Node | Frame, other: Node | Frame) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def within(inner: Node | Frame, outer: Frame) -> bool:
    return (
        outer.x <= inner.x
        and inner.x + inner.width <= outer.x + outer.width
        and outer.y <= inner.y
        and inner.y + inner.height <= outer.y + outer.height
    )


async def test_steps_stand_apart_within_their_frames_and_within_the_picture() -> None:
    deep = step("outer", "loop", {"steps": [step("p", "parallel", {"branches": [RICH, [transform("z", "1")]]})]})
    given = workflow(deep, transform("back", "1", onError="outer"))
    shown = workflow_json(given, [], active=True, now=NOW)
    picture = draw(shown["steps"])
    assert picture is not None
    assert len(picture.nodes) == len(list(everyone(shown["steps"])))
    for at, node in enumerate(picture.nodes):
        assert not any(overlap(node, other) for other in picture.nodes[at + 1 :])
        assert node.x >= 0 and node.x + node.width <= picture.width and node.y + node.height <= picture.height
    lists = [frame for frame in picture.frames if not frame.outer]
    for at, frame in enumerate(lists):
        for other in lists[at + 1 :]:
            assert not overlap(frame, other) or within(other, frame) or within(frame, other)
    for line in picture.edges:
        assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in line.points)
    assert {line.kind for line in picture.edges} == {"flow", "success", "error"}


async def test_the_list_numbers_steps_in_the_order_of_the_picture_and_a_huge_workflow_is_only_listed() -> None:
    shown = workflow_json(workflow(*RICH), [], active=True, now=NOW)
    picture = draw(shown["steps"])
    assert picture is not None
    listed = {each["id"]: each["number"] for each in everyone(numbered(shown["steps"]))}
    assert [listed[node.step["id"]] for node in picture.nodes] == list(range(1, len(listed) + 1))
    given = workflow(*(transform(f"s{n}", "1") for n in range(MOST + 1)))
    many = workflow_json(given, [], active=True, now=NOW)
    assert draw(many["steps"]) is None and draw([]) is None
