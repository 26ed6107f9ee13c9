"""Workflows that are made to kill or to stop the server (K6, W10): each is an error of the model's, in bounded words.

The loop is looked after by a task that counts its turns: where the code of before held the loop for seconds, or took
gigabytes, it must go on turning.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
from tests.serve.application import application
from tests.unit.waiting.calls import Caller
from tests.unit.workflow.world import Around, Effects, cel, failed, inline, run, step, transform, workflow
from tests.wait_tools import with_wait_tools

import keephold
from keephold import ToolError
from keephold.tools.waiting.view import fitting
from keephold.tools.workflow import read_workflow
from keephold.tools.workflow.expressions import Expressions
from keephold.worker import WorkerDied, WorkerTooSlow

MIB = 1024 * 1024
LONG = "x" * 900_000
SUMS = "input.list.all(x, (input.text + string(x)).size() > 0)"
"""Every round keeps a copy of the text until the end: 4.5 GB of them."""
BOMB = {"text": LONG, "list": list(range(5000))}


@keephold.tool
async def echo(data: Any) -> Any:
    return data


@asynccontextmanager
async def calling() -> AsyncIterator[Caller]:
    async with with_wait_tools([echo]) as rt:
        yield Caller(rt)


async def execute(ask: Caller, *steps: Any, **more: Any) -> dict[str, Any]:
    """Run a workflow to its end; the reply of `wait_for`."""
    started = await ask("execute_workflow_async", workflowId="w", name="W", steps=list(steps), **more)
    ended: dict[str, Any] = await ask.wait_for(started["handleId"])
    return ended


async def test_K6_the_bomb_is_an_error_of_its_step_and_the_server_answers_meanwhile() -> None:
    """It took 22.9 GB, and the server died; each restart replayed the workflow and died again."""
    async with application() as served, served.client() as http:
        ask, me = Caller(served.runtime), psutil.Process()
        before = me.memory_info().rss
        started = await ask(
            "execute_workflow_async",
            workflowId="w",
            name="W",
            input=BOMB,
            steps=[transform("bomb", SUMS, {"continueOnError": True}), transform("after", "error.message")],
        )
        ended = asyncio.ensure_future(ask.wait_for(started["handleId"]))
        answers, workers = 0, set()
        while not ended.done():
            assert (await http.get("/healthz")).status_code == 200
            answers += 1
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker has just died
                workers |= {each.pid for each in me.children() if "keephold.worker_process" in each.cmdline()}
        outcome = (await served.runtime.handle(started["handleId"], conversation="main")).outcome
        assert isinstance(outcome, keephold.outcomes.Ok)
        said = outcome.value["finalOutput"]
        assert (
            said.startswith(f"the expression `{SUMS}` failed: it ") and "MiB of memory" in said
        ) or "0.5 s of" in said
        assert answers > 3 and workers
        worker: Any = served.runtime.expressions._worker
        assert psutil.Process(worker.pid).rlimit(psutil.RLIMIT_AS) == (512 * MIB, 512 * MIB)
        assert me.memory_info().rss - before < 400 * MIB
        ended.result()


MEMORY = "[input.text]" + ".map(a, a + a)" * 12
TIME = "input.list.all(x, !input.text.matches('(x+x+)+y'))"
NATIVE = "dyn(input.list.all(x, input.text.upperAscii().size() > 0)) == 1"
"""Our function is called by the library, which calls Python, where memory ends."""


async def test_K6_a_limit_is_an_error_of_any_expression_and_of_no_other_workflow() -> None:
    steps = [
        transform("before", "1"),
        step("tool", "tool", {"name": "echo", "arguments": {"data": [cel("1"), cel(MEMORY)]}, "continueOnError": True}),
        transform("skipped", "1", {"continueOnError": True}, condition=TIME),
        step("chosen", "condition", {"expression": NATIVE, "continueOnError": True}),
        step("each", "loop", {"items": cel(MEMORY), "steps": [], "continueOnError": True}),
        transform("after", "2"),
    ]
    async with calling() as ask:
        bad = asyncio.ensure_future(execute(ask, *steps, input=BOMB))
        good = [execute(ask, transform("a", f"{n} + 1"), transform("b", "data + 1")) for n in range(5)]
        assert [each["result"]["finalOutput"] for each in await asyncio.gather(*good)] == [n + 2 for n in range(5)]
        result = (await bad)["result"]
        errors = {each["stepId"]: each.get("error") for each in result["steps"]}
        assert errors["before"] is None and errors["after"] is None and result["status"] == "completed"
        for id in ("tool", "skipped", "chosen", "each"):
            assert "0.5 s of processor time" in errors[id] or "512 MiB of memory" in errors[id], errors


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "steps that are none": ({"steps": [{}] * 300_000}, "missing `id`, `type` in `steps[0]`"),
    "too many steps": ({"steps": [transform(f"s{n}", "1") for n in range(2001)]}, "steps[2000]: is step 2,001"),
    "wrong jumps": (
        {"steps": [transform(f"s{n}", "1", onSuccess="nowhere") for n in range(2000)]},
        "steps[0].onSuccess: `nowhere` is the id of no step; from here a jump may go to s0, s1",
    ),
    "unknown fields": (
        {"steps": [transform("a", "1", {f"k{n}": 1 for n in range(80_000)})]},
        "steps[0].config.k0: is not known here",
    ),
    "a long field": ({"steps": [transform("a", "1", {LONG: 1})]}, "is not known here"),
    "a long type": ({"steps": [step("a", LONG)]}, "no step is of type `xxx"),
    "a long id": ({"steps": [step(LONG, "delay")]}, "steps[0].id: must be 1 to 128 characters"),
    "a long tool": ({"steps": [step("a", "tool", {"name": LONG})]}, "there is no tool `xxx"),
    "long expressions": (
        {"steps": [transform(f"s{n}", f"[{'1, ' * 600}{n}]") for n in range(500)]},
        "500 expressions with 902,390 characters together",
    ),
    "many expressions": (
        {"steps": [step("a", "set_variable", {"name": "v", "value": [cel("1")] * 6000})]},
        "6,000 expressions with 6,000 characters together; at most 5,000 with 200,000",
    ),
    "parts beside an expression": (
        {"steps": [step("a", "set_variable", {"name": "v", "value": [[]] * 200_000 + [cel("1")]})]},
        "steps[0].config.value: has more than 10,000 arrays and objects beside its expressions",
    ),
    "paths": (
        {"steps": [step("a", "set_variable", {"name": "v", "value": {LONG[:400_000]: [cel("nope")] * 4000}})]},
        "undeclared reference to 'nope'",
    ),
    "references": (
        {"steps": [transform(f"s{n}", f"steps.{'y' * 400}{n}") for n in range(400)]},
        "reads the result of step `yyy",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_K6_a_hostile_definition_is_refused_in_few_words(kind: str) -> None:
    given, why = HOSTILE[kind]
    async with calling() as ask:
        began = time.thread_time()
        refused = await ask.error("execute_workflow_async", workflowId="w", name="W", **given)
        assert why in refused["error"] and len(refused["error"]) < 10_000
        assert time.thread_time() - began < 2, "work of the loop, however busy the machine is"
        assert (await ask("list_wait_handles"))["stats"]["total"] == 0


async def test_K6_what_expressions_give_is_bounded_in_a_step_and_in_a_run() -> None:
    many = step("a", "set_variable", {"name": "v", "value": [cel("input")] * 20})
    assert "give more than 4 MiB together" in (await failed(workflow(many, input=LONG))).message
    each = step("l", "loop", {"items": list(range(100)), "steps": [transform("t", "input")]})
    assert "are over 16 MiB" in (await failed(workflow(each, input=LONG))).message


async def test_K6_waits_for_many_unknown_handles_are_refused_in_few_words() -> None:
    async with calling() as ask:
        ended = await execute(ask, step("w", "wait", {"handleIds": [f"h{n}" for n in range(50_000)]}))
        assert "Wait handle h0 not found. Wait handle h1 not found" in ended["error"] and len(ended["error"]) < 10_000


async def test_K6_a_large_result_is_shown_without_a_walk_through_it() -> None:
    async with calling() as ask:
        ended = await execute(ask, step("a", "set_variable", {"name": "v", "value": [0] * 400_000}))
        assert isinstance(ended["result"], str)
    began = time.thread_time()
    assert isinstance(fitting({"steps": [0] * 2_000_000}), str)
    assert time.thread_time() - began < 2
    texts = {"a": ["x" * 5000] * 5}
    assert fitting(texts) is texts and fitting([[]] * 6001) == "[" + "[]," * 6000 + "[]]"


async def test_W10_jumps_loops_and_attempts_are_bounded_together_and_let_others_run() -> None:
    around = Around({"busy": lambda _: _busy()})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    retry = {"maxAttempts": 100, "baseDelayMs": 0, "maxDelayMs": 0}
    endless = {
        "a jump": [transform("a", "1", onSuccess="a")],
        "a skipped step": [step("a", "get_variable", {"name": "v", "default": 1}, onSuccess="a")],
        "attempts": [step("a", "tool", {"name": "busy", "retry": retry}, onError="a")],
        "loops without steps": [
            step("a", "loop", {"items": [0] * 100, "steps": [step("b", "loop", {"items": [0] * 100, "steps": []})]})
        ],
    }
    for kind, steps in endless.items():
        turns = 0
        caught = await failed(workflow(*steps), around, max_steps=2000)
        assert caught.code == "limit_exceeded" and "has executed 2,000 steps" in caught.message, kind
        assert turns >= 2000 / 50, kind
    assert len(around.asked) <= 2000
    counting.cancel()
    await asyncio.wait([counting])


def _busy() -> Any:
    raise ToolError("busy", transient=True)


async def test_W10_concurrent_lists_are_bounded_in_all_steps_together() -> None:
    running = most = 0

    async def work(_: Any) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return 1

    inner = step("in", "loop", {"items": [0] * 20, "concurrency": 64, "steps": [step("t", "tool", {"name": "work"})]})
    outer = step("out", "loop", {"items": [0] * 64, "concurrency": 64, "steps": [inner]})
    result = await run(workflow(outer), Around({"work": work}))
    assert result["steps"][-1]["result"]["iterations"] == 64 and 64 <= most <= 64 + 128


# Replays


class Moody:
    """A worker that answers as it is told: `dies` has the requests it dies of, counted from 1."""

    def __init__(self, *dies: int) -> None:
        self._inner, self._dies, self._count = inline()._worker, dies, 0

    async def request(self, body: Any) -> Any:
        if body[0] == "evaluate":
            self._count += 1
            if self._count in self._dies:
                raise (WorkerTooSlow if self._count % 2 else WorkerDied)("it took too much")
        return await self._inner.request(body)

    def close(self) -> None: ...


FLOW = [
    transform("guarded", "1", {"continueOnError": True}, condition="true"),
    step("tool", "tool", {"name": "wrap", "arguments": {"data": cel("1")}, "continueOnError": True}),
    step("if", "condition", {"expression": "true", "then": [transform("then", "2")], "continueOnError": True}),
    transform("pure", "3", {"continueOnError": True}),
    transform("end", "[has(steps.then), steps.tool, steps.pure]"),
]


@pytest.mark.parametrize("dies", [(1,), (2,), (3,), (4,), (1, 2, 3, 4), (3, 4)])
async def test_W10_a_limit_that_was_hit_stays_hit_in_a_replay(dies: tuple[int, ...]) -> None:
    """A replay runs on another machine, or on a busy one: there the same expression may have a value."""
    fx, tools = Effects(), {"wrap": lambda arguments: {"got": arguments["data"]}}
    around = Around(tools)
    first = await run(workflow(*FLOW), around, fx, expressions=Expressions(Moody(*dies)))
    again = Around(tools)
    assert await run(workflow(*FLOW), again, Effects(fx.entries, failed=fx.failed)) == first
    assert again.asked == []


async def test_W10_a_value_that_a_replay_does_not_get_again_ends_it_before_anything_is_repeated() -> None:
    fx, tools = Effects(), {"wrap": lambda arguments: {"got": arguments["data"]}}
    await run(workflow(*FLOW), Around(tools), fx)
    again, second = Around(tools), Effects(fx.entries, failed=fx.failed)
    caught = await failed(workflow(*FLOW), again, second, expressions=Expressions(Moody(2)))
    assert caught.code == "limit_exceeded" and "step `tool` cannot be replayed" in caught.message
    assert again.asked == [] and second.ran == []


async def test_K6_compiling_is_work_of_the_worker_too() -> None:
    class Dead:
        async def request(self, body: Any) -> Any:
            raise WorkerTooSlow("it took too much")

        def close(self) -> None: ...

    with pytest.raises(ToolError, match="the expression `1` cannot be compiled: it took too much") as caught:
        await read_workflow(workflow(transform("a", "1")), Expressions(Dead()))
    assert caught.value.code == "limit_exceeded"
