"""Who is asked, and what becomes of a prompt while nobody can be (P, Q5)."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from tests.durable.lives import power_cut, stopped, stored_in
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Call, Runtime
from keephold.acp.agent.projects import Project, SessionPrompts
from keephold.turn.prompt_queue import Asking, LeftOpen, PromptQueue
from keephold.turn.prompts import Approved, Decision, Prompt, RunTool


class Absent:
    """A person who is there or not."""

    def __init__(self) -> None:
        self.here = False
        self.asked: list[str] = []

    async def __call__(self, prompt: Prompt) -> Decision:
        self.asked.append(prompt.tool)
        if not self.here:
            raise LeftOpen
        return Approved()


def ask(people: PromptQueue, tool: str, said: list[str]) -> Asking:
    prompt = RunTool(tool=tool, action=None, id=None, arguments={}, conversation="c")
    return people.ask(prompt, lambda _: said.append(tool))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_Q5_what_was_left_open_is_asked_again_in_its_order() -> None:
    person, said = Absent(), list[str]()
    people = PromptQueue(person)
    askings = [ask(people, tool, said) for tool in "abc"]
    await settled()
    assert person.asked == ["a", "b", "c"] and said == []
    askings[1].withdraw()
    person.here = True
    ask(people, "d", said)
    people.again()
    await settled()
    assert said == ["d", "a", "c"]  # `d` was being asked by then
    people.again()
    await settled()
    assert said == ["d", "a", "c"]


async def test_Q5_a_prompt_that_is_withdrawn_while_it_is_left_open_is_over() -> None:
    person, said = Absent(), list[str]()
    people = PromptQueue(person)
    asking = ask(people, "a", said)
    asking.withdraw()
    await settled()
    person.here = True
    people.again()
    await settled()
    assert said == []
    await people.close()


async def test_X6_two_agents_of_one_runtime_resume_the_calls_of_their_own_sessions(tmp_path: Path) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def slow(call: Call) -> str:
        if call.attempt == 1:
            await asyncio.Event().wait()
        return "done"

    async with Runtime([slow], store=stored_in(tmp_path)) as rt, AsyncExitStack() as turns:
        for session in "abc":
            turn = await turns.enter_async_context(rt.turn(session))
            await turn.run([spawn("slow", "s")])
        cut = power_cut(stored_in(tmp_path))
        await turns.aclose()
    runtime = Runtime([slow], store=cut)
    one, other = Project(runtime, SessionPrompts()), Project(runtime, SessionPrompts())
    async with runtime:
        await one.adopt("a")
        await other.adopt("b")
        for session in "ab":
            assert (await stopped(runtime, "s", session)).state == "stopped"
        assert (await runtime.handle("s", conversation="c")).state == "running"
