"""A person in the middle of things: one tool asks, two others run, a third waits for permission (Q3–Q5, P1, P5)."""

import asyncio
from typing import Any

from tests.scenarios.assistant import batch, call, error, one
from tests.turn.people import Model, Person, attended

import keephold
from keephold.policies import QuestionPolicy
from keephold.testing import VirtualClock
from keephold.tools.base import Action
from keephold.turn.prompts import Answer, Approved, AskQuestion, Prompt, RunTool

ACTIONS: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


@keephold.tool(actions=ACTIONS)
async def migrate(call: keephold.Call, table: str) -> str:
    """Asks before it drops anything."""
    asked = keephold.Question(id="drop", text=f"Drop {table}?", answer_type="Boolean")
    return f"{table} {'dropped' if await call.ask(asked) else 'kept'}"


@keephold.tool(actions=ACTIONS, questions={"code": QuestionPolicy(exclusive=True)})
async def login(call: keephold.Call) -> str:
    """Asks for what no model may know."""
    return f"in with {await call.ask(keephold.Question(id='code', text='The code?', answer_type='Text'))}"


@keephold.tool(actions=ACTIONS)
async def build(call: keephold.Call, secs: int) -> str:
    call.emit("compiling\n")
    await asyncio.sleep(secs)
    return "built"


@keephold.tool(run="ask")
async def deploy(env: str) -> str:
    return f"deployed to {env}"


def words(prompt: Prompt) -> str:
    """What the person reads."""
    if isinstance(prompt, RunTool):
        return f"run {prompt.tool} {prompt.arguments}"
    return prompt.question.text if isinstance(prompt, AskQuestion) else prompt.result


async def test_Q5_a_question_while_two_others_run_and_a_third_waits_for_permission(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [migrate, login, build, deploy], person=person) as (rt, turn):
        began = clock.now()
        working = asyncio.create_task(
            turn.run(
                [
                    call("migrate", {"action": "spawn", "id": "m", "table": "users"}),
                    call("build", {"action": "spawn", "id": "b1", "secs": 20}),
                    call("build", {"action": "spawn", "id": "b2", "secs": 40}),
                    call("deploy", {"env": "staging"}),
                    call("await", {"all": ["b1"]}),
                ]
            )
        )
        first = await person.sees()
        assert words(first) == "run deploy {'env': 'staging'}"
        await clock.advance(30)  # the person reads; everything else goes on
        assert (await rt.handle("m", conversation="main")).state == "waiting"
        assert (await rt.handle("b1", conversation="main")).state == "stopped"
        assert (await rt.handle("b2", conversation="main")).state == "running"
        assert person.seen == [first] and not working.done()
        await person.says(Approved())
        second = await person.sees()
        assert words(second) == "Drop users?" and second.id == "m"
        responses = await working
        assert responses[3].result == "deployed to staging"
        assert '"built"' in responses[4].result
        assert clock.now() - began < 32  # nobody waited for the answer to the question

        # The assistant goes on working while the question is open, and waits for what is left.
        waiting = asyncio.create_task(batch(turn, call("await", {"all": ["m", "b2"]})))
        await clock.advance(30)
        assert not waiting.done()
        await person.says(Answer(False))
        (waited,) = await waiting
        assert [(each["id"], each["result"]) for each in waited["completed"]] == [("m", "users kept"), ("b2", "built")]
        assert person.at_once == 1 and person.withdrawn == []


async def test_Q5_the_answers_go_to_those_who_asked(clock: VirtualClock) -> None:
    person = Person()
    tables = ["users", "orders", "logs"]
    async with attended(clock, [migrate], person=person) as (_, turn):
        spawns = [call("migrate", {"action": "spawn", "id": table, "table": table}) for table in tables]
        assert [each["state"] for each in await batch(turn, *spawns)] == ["waiting"] * 3
        await person.says(Answer(True))
        # The assistant answers the last one itself, before the person comes to it.
        applied = await one(turn, "migrate", {"action": "apply", "id": "logs", "input": True})
        assert applied["result"] == "logs dropped"
        assert words(await person.says(Answer(False))) == "Drop orders?"
        waited = await one(turn, "await", {"all": tables})
        assert [each["result"] for each in waited["completed"]] == ["users dropped", "orders kept", "logs dropped"]
        assert [words(prompt) for prompt in person.seen] == ["Drop users?", "Drop orders?"]


async def test_Q4_what_only_a_person_may_answer_stays_open(clock: VirtualClock) -> None:
    person, model = Person(), Model()
    async with attended(clock, [login, build], person=person, model=model) as (_, turn):
        waiting = await one(turn, "login", {"action": "spawn", "id": "l"})
        assert waiting["question"]["text"] == "The code?"
        refused = await error(turn, "login", {"action": "apply", "id": "l", "input": "123456"})
        assert "person" in refused and "stays open" in refused
        waited = await one(turn, "await", {"all": ["l"], "timeout_secs": 60})
        assert waited == {"completed": [], "pending": [{"id": "l", "state": "waiting"}], "timed_out": True}
        assert model.seen == []  # nor is a model asked behind the person's back
        await person.says(Answer("424242"))
        assert (await one(turn, "await", {"all": ["l"]}))["completed"][0]["result"] == "in with 424242"


async def test_Q3_with_nobody_at_the_prompt_a_model_answers_for_the_one_who_waits(clock: VirtualClock) -> None:
    model = Model()
    async with attended(clock, [migrate], model=model) as (_, turn):
        answer: Any = asyncio.create_task(
            batch(
                turn,
                call("migrate", {"action": "spawn", "id": "m", "table": "users"}),
                call("await", {"all": ["m"]}),
            )
        )
        assert "Drop users?" in (await model.says(True)).text
        _, waited = await answer
        assert waited["completed"][0]["result"] == "users dropped" and "needs_input" not in waited
