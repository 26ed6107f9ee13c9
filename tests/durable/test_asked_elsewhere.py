"""Questions and permission of a handle that another runtime on the same store runs (Q4, A6, P1)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from tests.durable.lives import in_state, only, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import TALKING, apply, reply, spawn, wait_all
from tests.turn.people import Person

import keephold
from keephold import Call, Question, Runtime, Tool, Turn
from keephold.handles.handle import Handle
from keephold.handles.question import question_key
from keephold.handles.state import Waiting
from keephold.mcp.tasks import Tasks
from keephold.policies import QuestionPolicy
from keephold.tools.base import SpawnPolicy
from keephold.turn.prompts import Answer, Approved, Denied, RunTool

KEPT = SpawnPolicy(on_turn_end="keep", settle_max_ms=100)


@keephold.tool(actions=TALKING)
async def asks(call: Call, secret: bool = False) -> str:
    asked = Question(id="q", text="?", answer_type="Text", secret=secret)
    return "answered" if await call.ask(asked) == "yes" else "wrong"


@asynccontextmanager
async def another(
    store: str, tool: Tool, person: Person | None, **arguments: int
) -> AsyncIterator[tuple[Runtime, Turn]]:
    """The second runtime and its turn; the first runs handle `a` of that tool, with that person before it."""
    tools = [replace(tool, spawn=KEPT)]
    async with Runtime(tools, store=store, prompter=person) as first:
        async with first.turn("main") as turn:
            await reply(turn, spawn(tool.name, "a", **arguments))
        async with Runtime(tools, store=store) as second, second.turn("main") as turn:
            yield second, turn


async def test_Q4_an_exclusive_question_is_refused_across_processes(store: str) -> None:
    person = Person()
    tool = replace(asks, questions={"q": QuestionPolicy(exclusive=True)})
    async with another(store, tool, person) as (second, turn):
        await person.sees()
        refused = await only(turn, apply("asks", "a", "yes"))
        assert refused.code == "question_exclusive" and await in_state(second, "a", "waiting")
        await person.says(Answer("yes"))
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "answered"


async def test_C6_the_callers_answer_from_another_process_withdraws_the_prompt(store: str) -> None:
    person = Person()
    async with another(store, asks, person) as (_, turn):
        prompt = await person.sees()
        assert (await reply(turn, apply("asks", "a", "yes")))["result"] == "answered"
        await person.sees_nothing()
        assert person.withdrawn == [prompt]


@pytest.mark.parametrize(
    ("policy", "secret"),
    [
        (QuestionPolicy(exclusive=True), False),
        (QuestionPolicy(), True),
    ],
    ids=["exclusive", "secret"],
)
async def test_A6_what_the_caller_may_not_answer_is_not_the_callers_in_another_process_either(
    store: str, policy: QuestionPolicy, secret: bool
) -> None:
    person = Person()
    async with another(store, replace(asks, questions={"q": policy}), person, secret=secret) as (second, _):
        await person.sees()
        await until(lambda: in_state(second, "a", "waiting"))
        waited = await second.wait(all=["a"], timeout=0.2, conversation="main")
        assert waited.get("timed_out") and not waited.get("needs_input")


@pytest.mark.parametrize(("said", "result"), [(Approved(), '"heard x"'), (Denied("no"), "skipped by user: no")])
async def test_P1_the_person_at_the_handles_own_runtime_is_asked(
    store: str, said: Approved | Denied, result: str
) -> None:
    @keephold.tool(actions=TALKING, run_actions={"apply": "ask"})
    async def listens(call: Call) -> str:
        return f"heard {await call.input()}"

    person = Person(said)
    async with another(store, listens, person) as (_, turn):
        response = await only(turn, apply("listens", "a", "x"))
        assert result in response.result and not response.is_error
        (prompt,) = person.seen
        assert isinstance(prompt, RunTool) and (prompt.action, prompt.id) == ("apply", "a")


@keephold.tool(actions=TALKING)
async def talks(call: Call, questions: int = 1) -> str:
    """Asks so many times, then reads a line."""
    said = [await call.ask(Question(id="q", text="?", answer_type="Text")) for _ in range(questions)]
    return f"{said} {await call.input()}"


async def by_model(rt: Runtime, handle: Handle, key: str) -> None:
    """As a batch does: without naming the question."""
    late = await rt.actions.perform(handle, "apply", {"input": "late"}, by="model")
    assert (late.code, "nothing was sent" in late.result) == ("not_running", True)


async def by_tasks_update(rt: Runtime, handle: Handle, key: str) -> None:
    tasks = Tasks(SimpleNamespace(runtime=rt, decides=lambda _: True), after=1)  # type: ignore[arg-type]
    await tasks.answer(handle, {key: {"action": "accept", "content": {"q": "late"}}})


async def by_declined_task(rt: Runtime, handle: Handle, key: str) -> None:
    tasks = Tasks(SimpleNamespace(runtime=rt, decides=lambda _: True), after=1)  # type: ignore[arg-type]
    await tasks.answer(handle, {key: {"action": "decline"}})


async def by_person(rt: Runtime, handle: Handle, key: str) -> None:
    """As `keephold send` and the dashboard do: without naming the question, or for any open one."""
    for answers in (None, ""):
        late = await rt.actions.perform(handle, "apply", {"input": "late"}, by="person", answers=answers)
        assert (late.code, "nothing was sent" in late.result) == ("not_running", True)


@pytest.mark.parametrize("answering", [by_model, by_person, by_tasks_update, by_declined_task])
@pytest.mark.parametrize("questions", [1, 2], ids=["it reads now", "it asks again"])
async def test_C6_a_late_answer_from_another_process_is_refused_and_never_input(
    store: str, answering: Callable[[Runtime, Handle, str], Awaitable[None]], questions: int
) -> None:
    async with another(store, talks, None, questions=questions) as (second, turn):
        await until(lambda: in_state(second, "a", "waiting"))
        handle = second.registry.find("a", "main")
        seen = handle.state
        assert isinstance(seen, Waiting)
        await reply(turn, apply("talks", "a", "yes"))
        await until(lambda: in_state(second, "a", "running" if questions == 1 else "waiting"))
        now = handle.state
        assert now != seen
        handle.state = handle.decided = seen  # what this process saw before the answer
        await answering(second, handle, question_key(seen.question, seen.number))
        handle.state = handle.decided = now
        for _ in range(questions):
            await reply(turn, apply("talks", "a", "in time"))
        (done,) = (await reply(turn, wait_all("a")))["completed"]
        assert done["result"] == ("['yes'] in time" if questions == 1 else "['yes', 'in time'] in time")


async def test_what_may_be_a_password_is_not_written_to_the_store_if_the_owner_has_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL can whisper: see `test_postgres_typing`."""
    monkeypatch.setattr("keephold.turn.relay.socket_of", lambda store, owner: None)
    async with another(stored_in(tmp_path), talks, None) as (second, turn):
        await until(lambda: in_state(second, "a", "waiting"))
        handle, perform = second.registry.find("a", "main"), second.actions.perform
        refused = await perform(handle, "apply", {"input": "hunter2"}, by="person", secret=True)
        assert refused.code == "owner_not_answering"
        answered = await perform(handle, "apply", {"input": "open"}, by="person")
        assert not answered.is_error
        await until(lambda: in_state(second, "a", "running"))
        typed = await perform(handle, "apply", {"input": "hunter2"}, by="person")
        assert (typed.code, "not written to the store" in typed.result) == ("owner_not_answering", True)
        assert "['open'] x" in str(await reply(turn, apply("talks", "a", "x")))


@pytest.mark.parametrize("by", ["person", "model"])
async def test_C9_input_that_cannot_be_forwarded_is_answered_with_an_error(
    store: str, by: Literal["person", "model"]
) -> None:
    async with another(store, talks, None) as (second, _):
        await until(lambda: in_state(second, "a", "waiting"))
        handle = second.registry.find("a", "main")
        async with asyncio.timeout(PATIENCE):
            failed = await second.actions.perform(handle, "apply", {"input": object()}, by=by)
        assert failed.is_error and "TypeError" in failed.result


async def test_Q7_an_answer_that_came_first_is_not_undone_by_declining(store: str) -> None:
    async with Runtime([talks], store=store) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("talks", "a"))
        handle, perform = rt.registry.find("a", "main"), rt.actions.perform
        async with asyncio.TaskGroup() as both:  # the answer is decided, and not written yet
            answer = both.create_task(perform(handle, "apply", {"input": "yes"}, by="person"))
            decline = both.create_task(perform(handle, "apply", by="person", declines=True))
        assert not answer.result().is_error and decline.result().code == "not_running"
        assert "['yes'] x" in str(await reply(turn, apply("talks", "a", "x")))


async def test_P5_the_prompt_of_a_cancelled_action_is_withdrawn() -> None:
    @keephold.tool(actions=TALKING, run_actions={"abort": "ask"})
    async def listens(call: Call) -> str:
        return f"heard {await call.input()}"

    person = Person()
    async with Runtime([listens], prompter=person) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("listens", "a"))
        abort = asyncio.create_task(rt.actions.perform(rt.registry.find("a", "main"), "abort", by="model"))
        prompt = await person.sees()
        abort.cancel()
        await asyncio.wait([abort])
        await person.sees_nothing()
        assert abort.cancelled() and person.withdrawn == [prompt]
        assert "heard x" in str(await reply(turn, apply("listens", "a", "x")))
