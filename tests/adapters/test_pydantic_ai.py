"""keephold's tools in pydantic-ai's own agent: the calls of a response are one batch, whatever they are mixed with."""

import asyncio
import json
from typing import Any, Literal

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import FunctionToolResultEvent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage
from tests.adapters.scripted import Said, Script, spawn

import keephold
from keephold import Runtime, ToolError
from keephold.adapters.pydantic_ai import KeepholdToolset
from keephold.errors import TurnFailed
from keephold.testing import VirtualClock

MODES = pytest.mark.parametrize("mode", ["parallel", "sequential", "parallel_ordered_events"])
Mode = Literal["parallel", "sequential", "parallel_ordered_events"]


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build(target: str) -> str:
    """Build a target."""
    return f"{target} built"


@keephold.tool
async def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@keephold.tool
async def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


def agent_of(script: Script, source: Any, **options: Any) -> Agent[None, Any]:
    return Agent(script.model, toolsets=[KeepholdToolset(source)], **options)


async def run(script: Script, rt: Runtime, mode: Mode = "parallel", **options: Any) -> Any:
    with ToolManager.parallel_execution_mode(mode):
        return (await agent_of(script, rt, **options).run("go")).output


@MODES
@pytest.mark.parametrize("end_strategy", ["early", "graceful", "exhaustive"])
async def test_B1_a_response_is_one_batch(mode: Mode, end_strategy: str) -> None:
    """An `await` that stands before the spawn it names is right in one batch only (B3)."""
    script = Script([("1", "await", {"all": ["a"]}), spawn("2", "build", "a", target="app")], "done")
    async with Runtime([build]) as rt:
        assert await run(script, rt, mode, end_strategy=end_strategy) == "done"
    (one, awaited), (two, spawned) = script.results()
    assert (one, two) == ("1", "2")
    assert json.loads(awaited)["completed"] == [{"id": "a", "state": "stopped", "result": "app built"}]
    assert json.loads(spawned)["id"] == "a"


@MODES
async def test_B2_a_conflict_rejects_the_whole_response(mode: Mode) -> None:
    twice = [spawn("1", "build", "a", target="x"), ("2", "add", {"a": 1}), spawn("3", "build", "a", target="y")]
    script = Script(twice, "done")
    async with Runtime([build, add]) as rt:
        await run(script, rt, mode)
    assert [part.outcome for part in script.returns()] == ["failed"] * 3
    assert all("`a` is spawned twice" in text for _, text in script.results())


async def test_B3_four_calls_run_beside_each_other() -> None:
    begun: list[int] = []
    everyone = asyncio.Event()

    @keephold.tool
    async def meet(number: int) -> str:
        """Return when all four have begun."""
        begun.append(number)
        if len(begun) == 4:
            everyone.set()
        await everyone.wait()
        return f"met {number}"

    script = Script([(f"c{n}", "meet", {"number": n}) for n in (4, 2, 3, 1)], "done")
    async with Runtime([meet]) as rt:
        await run(script, rt)
    assert script.results() == [(f"c{n}", f"met {n}") for n in (4, 2, 3, 1)]


@MODES
@pytest.mark.parametrize("alone", [False, True])
async def test_B1_calls_of_other_tools_may_stand_between(mode: Mode, alone: bool) -> None:
    """Also if they must run alone, between two calls of ours."""
    script = Script(
        [("1", "await", {"all": ["a"]}), ("2", "plain", {}), spawn("3", "build", "a", target="app")], "done"
    )
    async with Runtime([build]) as rt:
        agent = agent_of(script, rt)

        @agent.tool_plain(sequential=alone)
        def plain() -> str:
            return "a function of pydantic-ai"

        with ToolManager.parallel_execution_mode(mode):
            await agent.run("go")
    assert [id for id, _ in script.results()] == ["1", "2", "3"]
    assert script.results()[1][1] == "a function of pydantic-ai"
    assert json.loads(script.results()[0][1])["completed"][0]["result"] == "app built"


@MODES
async def test_B1_also_under_other_names(mode: Mode) -> None:
    script = Script([("1", "hf_await", {"all": ["a"]}), spawn("2", "hf_make", "a", target="x")], "done")
    async with Runtime([build]) as rt:
        agent = Agent(script.model, toolsets=[KeepholdToolset(rt).renamed({"make": "build"}).prefixed("hf")])
        with ToolManager.parallel_execution_mode(mode):
            await agent.run("go")
    assert json.loads(script.results()[0][1])["completed"][0]["result"] == "x built"


async def test_B1_also_if_somebody_watches() -> None:
    script = Script([("1", "await", {"all": ["a"]}), spawn("2", "build", "a", target="app")], "done")
    async with Runtime([build]) as rt:
        await run(script, rt, "sequential", capabilities=[Instrumentation()])
    assert json.loads(script.results()[0][1])["completed"][0]["result"] == "app built"


@MODES
async def test_B1_each_response_is_a_batch_of_its_own(mode: Mode) -> None:
    """Also if the model uses the same call ids again."""
    ids = ("a", "b")
    script = Script(*([("1", "await", {"all": [id]}), spawn("2", "build", id, target=id)] for id in ids), "done")
    async with Runtime([build]) as rt:
        await run(script, rt, mode)
    for request, id in enumerate(ids, start=1):
        assert json.loads(script.results(request)[0][1])["completed"][0]["result"] == f"{id} built"


async def test_C9_wrong_calls_are_answered_and_never_end_the_run() -> None:
    wrong: Said = [
        ("1", "add", '{"a": '),
        ("2", "add", {"a": "many"}),
        ("3", "add", ""),
        ("4", "add", "[1]"),
        ("5", "fail", {"why": "no disk"}),
    ]
    script = Script(*[wrong] * 4, "done")
    async with Runtime([add, fail]) as rt:
        assert await run(script, rt) == "done"
    for request in (1, 2, 3, 4):
        assert {part.outcome for part in script.returns(request)} == {"failed"}
        texts = [text for _, text in script.results(request)]
        for text, says in zip(texts, ("not valid JSON", "`a`", "`a`", "must be a JSON object", "no disk"), strict=True):
            assert says in text


async def test_G3_the_schemas_are_in_the_dialect_of_the_model() -> None:
    openai = OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key="none"))
    script = Script("done")
    models: list[tuple[Any, Any]] = [
        (openai, "openai"),
        (script.model, "generic"),
        (FallbackModel(openai, openai), "openai"),
        (FallbackModel(openai, script.model), "generic"),
    ]
    rt = Runtime([build])
    for model, dialect in models:
        offered = await KeepholdToolset(rt).get_tools(RunContext(deps=None, model=model, usage=RunUsage()))
        assert [each.tool_def.parameters_json_schema for each in offered.values()] == [
            tool["parameters"] for tool in rt.tools(dialect)
        ]
    await run(script, rt)
    await rt.close()
    assert [tool.name for tool in script.offered[0].function_tools] == [tool["name"] for tool in rt.tools()]
    assert not any(tool.strict for tool in script.offered[0].function_tools)


async def test_streamed_runs_are_the_same() -> None:
    said: Said = [("1", "await", {"all": ["a"]}), spawn("2", "build", "a", target="app")]
    script = Script(said, "done", said, "done")
    async with Runtime([build]) as rt:
        agent = agent_of(script, rt)
        async with agent.run_stream("go") as result:
            assert await result.get_output() == "done"
        heard = []
        async with agent.run_stream_events("go") as events:
            async for event in events:
                if isinstance(event, FunctionToolResultEvent):
                    heard.append(event.part.tool_call_id)
    assert sorted(heard) == ["1", "2"]
    for request in (1, 3):
        assert json.loads(script.results(request)[0][1])["completed"][0]["result"] == "app built"


async def test_D11_a_turn_that_fails_takes_the_run_with_it(clock: VirtualClock) -> None:
    @keephold.tool
    async def approve(call: keephold.Call) -> keephold.Pending:
        """Wait for somebody."""
        await call.completion_key()
        return keephold.Pending(deadline=5, on_timeout="fail_turn")

    script = Script([("1", "approve", {}), ("2", "add", {"a": 1})], "never")
    async with Runtime([approve, add], clock=clock) as rt:
        with pytest.raises(TurnFailed, match="timed out"):
            await run(script, rt)
        assert len(script.read) == 1
        assert not rt.live()


async def test_a_toolset_needs_a_runtime_or_a_turn() -> None:
    with pytest.raises(TypeError, match=r"keephold\.Runtime or a keephold\.Turn"):
        KeepholdToolset([build])  # type: ignore[arg-type]
