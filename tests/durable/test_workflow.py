"""Workflows on a real store (W10): a crash in the middle resumes at the step."""

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, journaled, ok, power_cut, stopped, stored_in
from tests.durable.workflow_program import LINES, Around, flow_tool
from tests.patience import until
from tests.turn.calls import spawn
from tests.unit.workflow.world import inline

import keephold
from keephold import Call, Runtime, ToolError
from keephold.outcomes import Failure, Ok
from keephold.policies import RetryPolicy
from keephold.tools.workflow import read_workflow, run_workflow

ROOT = Path(__file__).parents[2]


def workflow(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"workflowId": "w", "name": "W", "steps": list(steps), **more}


def transform(id: str, expression: str) -> dict[str, Any]:
    return {"id": id, "type": "transform", "config": {"expression": expression}}


def nothing(arguments: dict[str, Any]) -> Any:
    raise AssertionError("no step asks for this")


async def life(directory: Path, kill_at: int) -> tuple[int, str]:
    """One process on the store of the directory; how it ended, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.durable.workflow_program", stored_in(directory), str(directory), str(kill_at),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


@pytest.mark.parametrize("kill_at", [5, 9])
async def test_W10_a_process_that_is_killed_again_and_again_does_every_step_once(tmp_path: Path, kill_at: int) -> None:
    """Killed in the middle of a step, whose record is lost with it. Up to three are under way at once."""
    lives = 1
    while (ended := await life(tmp_path, kill_at))[0]:
        assert ended[0] == -signal.SIGKILL
        lives += 1
    result = json.loads(ended[1])
    assert result["status"] == "completed" and result["finalOutput"] == [3, 13]
    done = Counter((tmp_path / "lines").read_text().split())
    assert sorted(done) == LINES and lives > 2
    assert sum(done.values()) - len(LINES) <= 3 * (lives - 1)  # those that were in the air: one in each of three lists
    assert max(done.values()) <= lives
    timestamps = [each["timestamp"] for each in result["steps"] if each["stepId"].startswith("a")]
    assert timestamps == sorted(timestamps)


async def test_W10_a_step_costs_one_commit(tmp_path: Path) -> None:
    took: list[int] = []

    @keephold.tool(on_crash="replay")
    async def measured(call: Call) -> None:
        expressions = inline()
        given = await read_workflow(workflow(*(transform(f"s{n}", "1") for n in range(10))), expressions)
        before = store.commits
        around = Around(call, nothing)
        await run_workflow(given, call.durable(), around, expressions=expressions, now=HandClock().now)
        took.append(store.commits - before)

    async with Runtime([measured], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        store: Any = rt.registry.store
        await turn.run([keephold.ToolCall("1", "measured")])
    assert took == [11]  # and one for when it began


async def test_R5_a_run_that_is_tried_again_goes_on_at_the_step_that_failed(tmp_path: Path) -> None:
    asked: list[str] = []

    def note(arguments: dict[str, Any]) -> Any:
        asked.append(arguments["line"])
        if asked.count("b") == 1 and arguments["line"] == "b":
            raise ToolError("busy", transient=True)
        return arguments["line"]

    def noting(line: str) -> dict[str, Any]:
        return {"id": line, "type": "tool", "config": {"name": "note", "arguments": {"line": line}}}

    clock = HandClock()
    tool = flow_tool(note, clock.now, retry=RetryPolicy(policy="safe", base_delay_ms=1))
    async with Runtime([tool], store=stored_in(tmp_path)) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("flow", "w", workflow=workflow(noting("a"), noting("b"), noting("c")))])
        info = await stopped(rt, "w")
    assert isinstance(info.outcome, Ok) and info.attempt == 2 and asked == ["a", "b", "b", "c"]


async def test_W10_an_event_is_waited_for_over_a_power_cut(tmp_path: Path) -> None:
    clock, store = HandClock(), stored_in(tmp_path)
    given = workflow(
        transform("a", "input + 1"),
        {"id": "w", "type": "wait", "config": {"event": "approved", "timeoutMs": 60_000}},
        transform("b", "[steps.a, data.by]"),
        input=1,
    )
    tool = flow_tool(nothing, clock.now)
    async with Runtime([tool], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("flow", "w", workflow=given)])
        await until(lambda: journaled(rt, "w", 4))
        info = await rt.handle("w", conversation="main")
        (event,) = await rt.process_events(info.uid)
        key = (await rt.keys("w", conversation="main"))["w:1:approved"]
        cut = power_cut(store)
    assert event.type == "workflow.waiting"
    assert event.payload == {"stepId": "w", "event": "approved", "key_id": key.key_id}
    async with Runtime([tool], store=cut, clock=clock) as rt:
        assert str(await rt.resolve(key, ok({"by": "me"}))) == "accepted"
        outcome = (await stopped(rt, "w")).outcome
        assert isinstance(outcome, Ok) and outcome.value["finalOutput"] == [2, "me"]
        assert len(await rt.process_events(info.uid)) == 1


async def test_W10_the_time_of_a_run_goes_on_while_nobody_runs_it(tmp_path: Path) -> None:
    clock, store = HandClock(), stored_in(tmp_path)
    given = workflow(transform("a", "1"), {"id": "d", "type": "delay", "config": {"ms": 3_600_000}}, timeoutMs=60_000)
    tool = flow_tool(nothing, clock.now)
    async with Runtime([tool], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("flow", "w", workflow=given)])
        await until(lambda: journaled(rt, "w", 3))
        cut = power_cut(store)
    clock.at += 61
    async with Runtime([tool], store=cut, clock=clock) as rt:
        outcome = (await stopped(rt, "w")).outcome
        assert isinstance(outcome, Failure) and outcome.code == "timeout"
        assert outcome.message == "Operation timed out after 60000ms"
