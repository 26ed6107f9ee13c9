"""Traces: turn → call → attempt → step → wait, one tree, over restarts, and nothing where nobody wants them."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import ok, parked, power_cut, stopped, stored_in
from tests.patience import until
from tests.spans import Spans, said, spans, trace_of
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, spawn, wait_all
from tests.turn.people import Asked

import keephold
from keephold import Call, Key, Pending, Question, Runtime, ToolError
from keephold.turn.prompts import Approved, RunTool

__all__ = ["spans"]


@keephold.tool(actions=TALKING, on_crash="replay")
async def release(call: Call, what: str = "it") -> str:
    """Does a step, then asks."""

    async def build(given: Any) -> str:
        return f"built {given}"

    built = await call.durable().run_json("build", what, build)
    return f"{built}, {await call.ask(Question(id='sure', text='Sure?'))}"


async def test_one_tree_for_a_turn_with_spawn_await_step_and_question(spans: Spans) -> None:
    async with Runtime([release]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("release", "r"), wait_all("r")])
        await turn.run([apply("release", "r", "yes")])
        await turn.run([wait_all("r")])
    assert len({trace_of(span) for span in spans.all}) == 1
    top = ["invoke_agent", "execute_tool release"]
    assert spans.path(spans.one("step")) == [*top, "attempt", "step"]
    assert spans.path(spans.one("wait question")) == [*top, "attempt", "wait question"]
    waits = spans.named("wait await")
    assert [spans.path(each) for each in waits] == [["invoke_agent", "execute_tool await", "attempt", "wait await"]] * 2
    made = spans.one("execute_tool release")
    assert {name: value for name, value in said(made).items() if name.startswith("gen_ai")} == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "release",
        "gen_ai.tool.call.id": said(made)["gen_ai.tool.call.id"],
        "gen_ai.conversation.id": "main",
    }
    assert said(spans.one("step"))["keephold.step"] == "build"
    assert said(spans.one("invoke_agent"))["gen_ai.operation.name"] == "invoke_agent"
    assert all(span.end_time is not None for span in spans.all)


async def test_what_its_caller_and_its_code_do_belongs_to_it(spans: Spans) -> None:
    @keephold.tool
    async def look(call: Call) -> str:
        with spans.tracer.start_as_current_span("query"):
            return "seen"

    @keephold.tool
    def compute() -> str:
        with spans.tracer.start_as_current_span("sum"):
            return "computed"

    with spans.tracer.start_as_current_span("request"):
        async with Runtime([look, compute]) as rt, rt.turn("main") as turn:
            with spans.tracer.start_as_current_span("iteration"):
                await turn.run([call("look"), call("compute")])
    before = ["request", "invoke_agent", "iteration"]
    assert spans.path(spans.one("query")) == [*before, "execute_tool look", "attempt", "query"]
    assert spans.path(spans.one("sum")) == [*before, "execute_tool compute", "attempt", "sum"]


async def test_a_call_without_a_turn_belongs_to_the_request_it_came_with(spans: Spans) -> None:
    async with Runtime([release]) as rt:
        with spans.tracer.start_as_current_span("tools/call release"):
            await rt.call_queue("main").call(spawn("release", "r"))
        await rt.call_queue("main").call(abort("release", "r"))
    assert spans.path(spans.one("execute_tool release")) == ["tools/call release", "execute_tool release"]


async def test_permission_is_a_wait_of_the_call(spans: Spans) -> None:
    @keephold.tool(run="ask")
    async def delete() -> str:
        return "gone"

    person = Asked()
    async with Runtime([delete], prompter=person) as rt, rt.turn("main") as turn:
        running = asyncio.create_task(turn.run([call("delete")]))
        assert isinstance(await person.sees(), RunTool)
        await person.says(Approved())
        await running
    assert spans.path(spans.one("wait permission")) == ["invoke_agent", "execute_tool delete", "wait permission"]


async def test_each_attempt_is_one_and_errors_are_told_by_their_code(spans: Spans) -> None:
    @keephold.tool(retry=keephold.policies.RetryPolicy(policy="safe", max_attempts=2, base_delay_ms=1))
    async def flaky() -> str:
        raise ToolError("the password is hunter2", code="tool_error", transient=True)

    async with Runtime([flaky]) as rt, rt.turn("main") as turn:
        await turn.run([call("flaky"), call("flaky", unknown=1)])
    assert [said(span)["keephold.attempt"] for span in spans.named("attempt")] == [1, 2]
    (failed,) = spans.named("execute_tool flaky")
    assert (said(failed)["error.type"], failed.status.is_ok) == ("tool_error", False)
    assert "hunter2" not in "".join(span.to_json() for span in spans.all)


async def test_a_batch_that_is_refused_leaves_no_span_open(spans: Spans) -> None:
    async with Runtime([release]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("release", "r"), spawn("release", "r")])
        await turn.run([spawn("release", "s", what=[1])])
    assert [span.name for span in spans.all] == ["execute_tool release", "invoke_agent"]
    assert said(spans.all[0])["error.type"] == "invalid_arguments"


async def test_D1_a_resolution_and_the_call_that_waited_know_of_each_other(spans: Spans, tmp_path: Path) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending()

    async with Runtime([approve], store=stored_in(tmp_path)) as rt:
        await rt.call_queue("main").call(spawn("approve", "a"))
        await parked(rt)
        with spans.tracer.start_as_current_span("POST /complete/{key}"):
            await rt.resolve(keys[0], ok("yes"))
        await until(lambda: bool(spans.named("resolve") and spans.named("execute_tool approve")))
    resolve, waited = spans.one("resolve"), spans.one("execute_tool approve")
    assert spans.path(resolve) == ["POST /complete/{key}", "resolve"]
    assert [link.context.span_id for link in resolve.links] == [waited.context.span_id if waited.context else 0]
    assert [link.context.span_id for link in waited.links] == [resolve.context.span_id if resolve.context else 0]
    assert spans.path(spans.one("wait completion")) == ["execute_tool approve", "wait completion"]
    assert str(keys[0]) not in "".join(span.to_json() for span in spans.all)


async def test_R1_a_replayed_call_and_a_resumed_turn_go_on_in_their_trace(spans: Spans, tmp_path: Path) -> None:
    first = Runtime([release], store=stored_in(tmp_path))
    async with first as rt, rt.turn("main") as turn:
        await turn.run([spawn("release", "r")])
        await until(lambda: bool(spans.named("step")))
        await until(lambda: rt.registry.conversation("main").open_questions == 1)
        after = power_cut(stored_in(tmp_path))
        before = trace_of(spans.one("step"))
        spans.exporter.clear()
        async with Runtime([release], store=after) as again, again.turn("main", resume=True) as resumed:
            await until(lambda: again.registry.conversation("main").open_questions == 1)
            await resumed.run([apply("release", "r", "yes")])
            await stopped(again, "r")
    recovered = next(span for span in spans.named("execute_tool release") if said(span).get("keephold.recovered"))
    assert trace_of(recovered) == before
    assert recovered.parent is not None
    turns = [span for span in spans.named("invoke_agent") if trace_of(span) == before]
    assert len(turns) == 2  # that of the first life, which was cut off and lives on, and the resumed one
    assert spans.named("step") == []


async def test_D9_the_completion_of_a_call_parked_in_an_earlier_life(spans: Spans, tmp_path: Path) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        return Pending()

    async with Runtime([approve], store=stored_in(tmp_path)) as rt:
        await rt.call_queue("main").call(spawn("approve", "a"))
        await parked(rt)
    left = spans.one("execute_tool approve")
    assert said(left)["keephold.left"]
    spans.exporter.clear()
    async with Runtime([approve], store=stored_in(tmp_path)) as rt:
        await rt.resolve(keys[0], ok("yes"))
        await until(lambda: bool(spans.named("resolve") and spans.named("execute_tool approve")))
    completed, resolve = spans.one("execute_tool approve"), spans.one("resolve")
    assert trace_of(completed) == trace_of(left)
    assert completed.parent is not None and left.context is not None and resolve.context is not None
    assert completed.parent.span_id == left.context.span_id
    assert [link.context.span_id for link in completed.links] == [resolve.context.span_id]
    assert [link.context.span_id for link in resolve.links] == [left.context.span_id]


async def test_nothing_is_traced_or_stored_where_nobody_wants_it(tmp_path: Path) -> None:
    async with Runtime([release], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("release", "r")])
        assert rt.registry.traces is None
        uid = (await rt.handle("r", conversation="main")).uid
        await until(lambda: rt.registry.conversation("main").open_questions == 1)
        assert {entry.kind for entry in await rt.registry.store.journal(uid)} == {"step"}


@pytest.mark.cold
def test_a_program_that_traces_nothing_imports_no_opentelemetry() -> None:
    code = (
        "import sys, json, keephold; keephold.Runtime(); print(json.dumps([m for m in sys.modules if 'opentel' in m]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []
