"""Who lets an agent run (P1, Q4), and what a model that calls one may ask for (G2): the same, however it is started."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests.agent.scripted import Script, Sent, called, put, spawned
from tests.agent.talk import talking, written
from tests.turn.people import Person

import keephold
from keephold.testing import VirtualClock
from keephold.turn.prompts import Answer, Approved, AskQuestion, Denied, RunTool

WAYS = ["call", "spawn", "async", "workflow"]


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


@keephold.tool(examples=["deploy prod with key ABC"])
async def deploy(env: str) -> str:
    """Deploys, the secret way."""
    return f"deployed {env}"


def config(directory: Path, more: str = "", conversation: str = "", **agents: Script) -> Path:
    tables = [f'[agents.{name}]\nmodel = "{model}"\n{more}' for name, model in put(**agents).items()]
    return written(directory, "\n".join([conversation, *tables]))


def start(way: str, agent: str, prompt: str, **more: Any) -> Sent:
    """A call by which a model starts an agent."""
    asked = {"agentId": agent, "prompt": prompt, **more}
    step = {"id": "s", "type": "agent", "config": asked}
    return {
        "call": called("c1", agent, prompt=prompt),
        "spawn": spawned("c1", agent, "h", prompt=prompt),
        "async": called("c1", "execute_agent_async", **asked),
        "workflow": called("c1", "execute_workflow_async", workflowId="w", name="w", steps=[step]),
    }[way]


def starting(way: str, agent: str = "helper", prompt: str = "Go.", *, answers: Any = (), **more: Any) -> Script:
    """A model that starts an agent, and waits for its end where that is not the result."""
    script: Script

    def wait(_: Any) -> list[Sent]:
        (first,) = script.results(1)
        handle = json.loads(first).get("handleId") if first.startswith("{") else None
        if handle is not None:
            return [called("c2", "wait_for", handleId=handle)]
        return [called("c2", "await", all=["h"])] if way == "spawn" else [called("c2", "note", text="x")]

    script = Script([start(way, agent, prompt, **more)], wait, "Done.", answers=answers)
    return script


def answers(script: Script) -> str:
    """All that the model was answered."""
    return "\n".join(result for at in (1, 2) for result in script.results(at))


@pytest.mark.parametrize("way", WAYS)
async def test_P1_no_agent_runs_unasked(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    helper, main = Script("I ran."), starting(way)
    async with talking(main, note, clock=clock, config=config(tmp_path, helper=helper)) as talk:
        assert (await talk.prompt()).text == "Done."
    assert helper.read == []
    assert "I ran." not in answers(main)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("allowed", [True, False])
async def test_P1_the_person_is_asked_once(clock: VirtualClock, tmp_path: Path, way: str, allowed: bool) -> None:
    helper, main = Script("I ran."), starting(way)
    asks_itself = way == "workflow"
    person = Person(Answer(allowed) if asks_itself else Approved() if allowed else Denied())
    file = config(tmp_path, helper=helper)
    async with talking(main, note, clock=clock, config=file, prompter=person) as talk:
        await talk.prompt()
    (prompt,) = person.seen
    if asks_itself:
        assert isinstance(prompt, AskQuestion) and "`helper`" in prompt.question.text
    else:
        assert isinstance(prompt, RunTool)
        assert "Go." in str(prompt.arguments)
        assert prompt.tool == "helper" or prompt.arguments["agentId"] == "helper"
    assert len(helper.read) == int(allowed)
    assert ("I ran." in answers(main)) == allowed


@pytest.mark.parametrize("way", WAYS)
async def test_P1_one_that_is_to_be_skipped(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    helper, main, person = Script("I ran."), starting(way), Person()
    file = config(tmp_path, 'run = "skip"', helper=helper)
    async with talking(main, note, clock=clock, config=file, prompter=person) as talk:
        await talk.prompt()
    assert helper.read == [] and person.seen == []
    assert "skipped" in answers(main)


@pytest.mark.parametrize("way", WAYS)
async def test_P1_an_unattended_one_just_runs(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    helper, main, person = Script("I ran."), starting(way), Person()
    file = config(tmp_path, 'run = "unattended"', helper=helper)
    async with talking(main, note, clock=clock, config=file, prompter=person) as talk:
        await talk.prompt()
    assert len(helper.read) == 1 and person.seen == []
    assert "I ran." in answers(main)


@pytest.mark.parametrize("way", ["workflow"])
async def test_Q4_no_model_says_that_an_agent_may_run(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    """`auto` lets the assistant answer for a person; this it is not asked."""
    helper, main = Script("I ran."), starting(way, answers=lambda _: {"answer": True})
    file = config(tmp_path, conversation='[conversation]\ndetached = "auto"', helper=helper)
    async with talking(main, note, clock=clock, config=file) as talk:
        await talk.prompt()
    assert main.asked == []


async def test_P2_the_advice_works(clock: VirtualClock, tmp_path: Path) -> None:
    """What a refusal says is to be set, in the table that it names."""
    helper, main = Script("I ran."), starting("call")
    async with talking(main, note, clock=clock, config=config(tmp_path, helper=helper)) as talk:
        await talk.prompt()
    refused = main.results(1)[0]
    setting = refused.partition("set `")[2].partition("`")[0]
    table = refused.partition("` in [")[2].partition("]")[0]
    assert table == "agents.helper"
    helper, main = Script("I ran."), starting("call")
    async with talking(main, note, clock=clock, config=config(tmp_path, setting, helper=helper)) as talk:
        await talk.prompt()
    assert main.results(1) == ["I ran."]


@pytest.mark.parametrize("way", ["async", "workflow"])
async def test_P2_the_table_of_an_agent_is_named(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    helper, main = Script("I ran."), starting(way)
    async with talking(main, note, clock=clock, config=config(tmp_path, helper=helper)) as talk:
        await talk.prompt()
    assert "[agents." in answers(main)
    assert "[conversation.tools." not in answers(main)


@pytest.mark.parametrize("way", ["async", "workflow"])
async def test_G2_a_model_names_no_module(
    clock: VirtualClock, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that begins with `python:` is imported, and what it names is called."""
    did: list[str] = []
    module = types.ModuleType("not_for_models")
    module.__dict__.update(erase=lambda: did.append("erased"))
    monkeypatch.setitem(sys.modules, "not_for_models", module)
    helper, main = Script("I ran."), starting(way, model="python:not_for_models:erase")
    file = config(tmp_path, 'run = "unattended"', helper=helper)
    async with talking(main, note, clock=clock, config=file) as talk:
        await talk.prompt()
    assert did == [] and helper.read == []
    assert "provider:name" in answers(main)


async def test_G2_an_agent_hears_only_of_its_own_tools(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(
        [
            called("h1", "deplo", env="prod"),  # close to one that it does not have
            called("h2", "deploy", env="prod"),
            called("h3", "describe_tools", tools=["deploy"]),
            called("h4", "describe_tools", tools=["nothing"]),
            called("h5", "describe_tools", tools=["note"]),
        ],
        "Helped.",
    )
    main = Script([called("c1", "helper", prompt="Go.")], [called("c2", "describe_tools", tools=["deploy"])], "Done.")
    file = config(tmp_path, 'run = "unattended"\ntools = ["note"]', helper=helper)
    async with talking(main, note, deploy, clock=clock, config=file) as talk:
        await talk.prompt()
    near, exact, described, unknown, own = helper.results()
    for text in (near, exact, described, unknown):
        assert "note" in text
        assert "secret way" not in text and "ABC" not in text
    assert "deploy" not in near.replace("deplo`", "") and "deploy" not in unknown
    assert "Take a note." in own
    assert "secret way" in main.results()[0] and "ABC" in main.results()[0]
