"""Sub-agents (G2): agents of the configuration are handles with a conversation of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.scripted import Reply, Script, Sent, at_end, called, put, spawned
from tests.agent.talk import Talk, talking, written
from tests.patience import until

import keephold
from keephold import Call, ConfigError, Question, Runtime
from keephold.ids import depth_of, parent_of, root_of
from keephold.policies import QuestionPolicy
from keephold.store.base import HandleQuery
from keephold.testing import VirtualClock

STATEFUL: Any = ("spawn", "fetch", "abort")


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


@keephold.tool(actions=STATEFUL)
async def work(call: Call, secs: float = 600) -> str:
    """Takes its time."""
    await asyncio.sleep(secs)
    return "worked"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def kept(call: Call) -> str:
    """Outlives its turn."""
    await asyncio.sleep(3600)
    return "kept"


@keephold.tool(questions={"sure": QuestionPolicy(target="assistant")})
async def asks_assistant(call: Call) -> str:
    """Asks the assistant that called it."""
    return f"assistant: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


@keephold.tool
async def asks_user(call: Call) -> str:
    """Asks the person."""
    return f"user: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


@keephold.tool
async def emits(call: Call) -> str:
    """Appends to the events of its process."""
    await call.process_events().emit("emitted", 1)
    return call.process_id or ""


TOOLS = (emits, note, work, kept, asks_assistant, asks_user)


def config(directory: Path, more: str = "", **agents: Script) -> Path:
    """Agents of these scripts. `more` is put before them; a line `name.key = value` in it is of the agent's table."""
    lines = [more]
    for name, model in put(**agents).items():
        lines += [f"[agents.{name}]", f'model = "{model}"', 'run = "unattended"']
    return written(directory, "\n".join(lines))


@asynccontextmanager
async def helped(
    clock: VirtualClock | None, directory: Path, main: Script, *, more: str = "", **agents: Script
) -> AsyncIterator[Talk]:
    async with talking(main, *TOOLS, clock=clock, config=config(directory, more, **agents)) as talk:
        yield talk
        left = [f"{info.conversation} {info.id}" for info in talk.rt.live() if parent_of(info.conversation)]
        assert left == []
    assert [problem for script in agents.values() for problem in script.invalid] == []


def completed(text: str) -> dict[str, Any]:
    """Of what an await was answered: the results by id."""
    return {each["id"]: each["result"] for each in json.loads(text)["completed"]}


async def test_G2_one_shot(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([called("h1", "note", text="x")], "All is noted.")
    main = Script([called("c1", "helper", prompt="Note x."), called("c2", "note", text="y")], "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        answer = await talk.prompt()
    assert answer.text == "Done."
    assert main.results() == ["All is noted.", "noted y"]
    assert helper.told(0) == ["Note x."]
    assert helper.results() == ["noted x"]
    assert "You work for another assistant" in (helper.offered[0].instructions or "")


@pytest.mark.parametrize("spawn", [True, False])
async def test_E8_the_tools_of_an_agent_append_to_its_events(clock: VirtualClock, tmp_path: Path, spawn: bool) -> None:
    helper = Script([called("h1", "emits")], "All is emitted.")
    called_ = spawned("c1", "helper", "h", prompt="Emit.") if spawn else called("c1", "helper", prompt="Emit.")
    main = Script([called_], [called("c2", "await", all=["h"])] if spawn else "Done.", "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
        records = await talk.rt.registry.store.handles(HandleQuery(stateful=None))
        (agent,) = [each for each in records if each.tool == "helper"]
        assert [(each.type, each.payload) for each in await talk.rt.process_events(agent.uid)] == [("emitted", 1)]
    assert helper.results() == [agent.uid]


async def test_G2_spawn_fetch_apply_await(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(
        Reply(["I ", "begin. "], [called("h1", "work", secs=10)]),
        Reply("I heard. ", [called("h2", "work", secs=10)]),
        "The end.",
    )
    main = Script(
        [spawned("c1", "helper", "h", prompt="Work.")],
        [("c2", "helper", {"action": "fetch", "id": "h"})],
        [("c3", "helper", {"action": "apply", "id": "h", "input": "And hurry."})],
        [called("c4", "await", all=["h"])],
        "Done.",
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        assert (await talk.prompt()).text == "Done."
    spawn, fetch, apply = (json.loads(main.results(at)[0]) for at in (1, 2, 3))
    assert spawn["state"] == fetch["state"] == apply["state"] == "running"
    assert "I begin. " in spawn["content"] + fetch.get("content", "")
    assert "→ work" in spawn["content"] + fetch.get("content", "")
    assert helper.told(1) == ["And hurry."]
    assert completed(main.results(4)[0]) == {"h": "The end."}


async def test_G2_what_is_sent_during_the_last_words_is_answered(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(Reply(["I am ", "done."], pause=5), "Now I am.")
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [("c2", "helper", {"action": "apply", "id": "h", "input": "Wait!"})],
        [called("c3", "await", all=["h"])],
        "Done.",
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert helper.told(1) == ["Wait!"]
    assert completed(main.results(3)[0]) == {"h": "Now I am."}


async def test_R4_what_is_sent_at_the_end_of_its_turn_is_answered(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([spawned("h1", "work", "w", secs=60)], "I am done.", "Work, too.", "Again.", answers=at_end("wait"))
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [called("c2", "await", all=["h"], timeout_secs=30)],
        [("c3", "helper", {"action": "apply", "id": "h", "input": "Wait!"}), called("c4", "await", all=["h"])],
        "Done.",
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert any("Wait!" in helper.told(at) for at in range(len(helper.read)))


async def test_G2_abort_ends_what_it_started(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([spawned("h1", "work", "w"), spawned("h2", "kept", "k"), called("h3", "await", all=["w"])])
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [called("c2", "await", all=["h"], timeout_secs=5)],
        [("c3", "helper", {"action": "abort", "id": "h"})],
        "Done.",
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
        handles = await talk.rt.handles()
        (working,) = (info for info in handles if info.id == "w")
        assert await talk.rt.registry.store.turn(working.conversation) is None, "nobody will resume its turn"
    assert json.loads(main.results(3)[0])["ended_by"] == "abort"
    assert {info.id: info.state for info in handles} == {"h": "stopped", "w": "stopped", "k": "stopped"}


async def test_G2_what_it_kept_ends_with_it(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([spawned("h1", "kept", "k")], "Done.")
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
        (info,) = await talk.rt.handles()
    assert (info.id, info.state) == ("k", "stopped")
    assert info.outcome is not None and "which started it, has ended" in str(info.outcome)


async def test_G2_abort_reaches_agents_below_of_which_one_hangs(clock: VirtualClock, tmp_path: Path) -> None:
    leaf = Script(Reply(["I ", "think."], pause=100_000))
    quick = Script("Quick.")
    boss = Script(
        [
            spawned("b1", "leaf", "l", prompt="Think."),
            spawned("b2", "quick", "q", prompt="Be quick."),
            called("b3", "await", all=["l", "q"]),
        ]
    )
    main = Script(
        [spawned("c1", "boss", "b", prompt="Go.")],
        [called("c2", "await", all=["b"], timeout_secs=20)],
        [("c3", "boss", {"action": "abort", "id": "b"})],
        "Done.",
    )
    async with helped(clock, tmp_path, main, leaf=leaf, quick=quick, boss=boss) as talk:
        assert (await talk.prompt()).text == "Done."
        assert {info.id: info.state for info in await talk.rt.handles()} == dict.fromkeys("blq", "stopped")
        assert talk.rt.turns == set()


async def test_G2_cancelling_the_turn_ends_agents_below(clock: VirtualClock, tmp_path: Path) -> None:
    leaf = Script(Reply(["I ", "think."], pause=100_000))
    boss = Script([called("b1", "leaf", prompt="Think.")])
    main = Script([called("c1", "boss", prompt="Go.")])
    async with helped(clock, tmp_path, main, leaf=leaf, boss=boss) as talk:
        running = asyncio.create_task(talk.prompt())
        await until(lambda: leaf.read)
        talk.conversation.cancel()
        assert (await running).stop_reason == "cancelled"
        await until(lambda: not talk.rt.live())
        assert talk.rt.turns == set()


async def test_G2_depth_is_limited(clock: VirtualClock, tmp_path: Path) -> None:
    leaf = Script("Leaf.")
    boss = Script([called("b1", "leaf", prompt="Go."), called("b2", "note", text="x")], "Boss.")
    main = Script([called("c1", "boss", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, more="[limits]\nagent_depth = 1", leaf=leaf, boss=boss) as talk:
        await talk.prompt()
    assert leaf.read == []
    assert boss.results() == [boss.results()[0], "noted x"]
    assert "leaf" in boss.results()[0]
    offered = [tool.name for tool in boss.offered[0].function_tools]
    assert "note" in offered and "leaf" not in offered and "boss" not in offered


async def test_G2_depth_is_limited_for_execute_agent_async_too(clock: VirtualClock, tmp_path: Path) -> None:
    leaf = Script("Leaf.")
    boss = Script(
        [called("b1", "execute_agent_async", agentId="leaf", prompt="Go.")],
        lambda _: [called("b2", "wait_for", handleId=json.loads(boss.results()[0])["handleId"])],
        "Boss.",
    )
    main = Script([called("c1", "boss", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, more="[limits]\nagent_depth = 1", leaf=leaf, boss=boss) as talk:
        await talk.prompt()
    assert leaf.read == []


async def test_G2_execute_agent_async_runs_the_same_agents(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script("Helped.")
    main = Script(
        [
            called(
                "c1",
                "execute_agent_async",
                agentId="helper",
                prompt="Read.",
                systemPrompt="Be kind.",
                temperature=0.5,
                maxTokens=77,
                context=[{"role": "user", "content": "Before."}],
                documents=[{"name": "d", "content": "Paper."}],
            )
        ],
        lambda _: [called("c2", "wait_for", handleId=json.loads(main.results()[0])["handleId"])],
        "Done.",
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert '"response":"Helped."' in main.results(2)[0]
    assert '"model":"scripted"' in main.results(2)[0]
    ((told,), info) = helper.told(0), helper.offered[0]
    assert all(each in told for each in ("Before.", "Paper.", "Read."))
    assert "Be kind." in (info.instructions or "")
    assert info.model_settings is not None
    assert (info.model_settings.get("temperature"), info.model_settings.get("max_tokens")) == (0.5, 77)


async def test_G2_a_caller_cannot_widen_an_agents_tools(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([called("h1", "note", text="x"), called("h2", "asks_user")], "Helped.")
    main = Script(
        [called("c1", "execute_agent_async", agentId="helper", prompt="Go.", tools=["*"])],
        lambda _: [called("c2", "wait_for", handleId=json.loads(main.results()[0])["handleId"])],
        "Done.",
    )
    names = put(helper=helper)
    file = written(tmp_path, f'[agents.helper]\nmodel = "{names["helper"]}"\nrun = "unattended"\ntools = ["note"]')
    async with talking(main, *TOOLS, clock=clock, config=file) as talk:
        await talk.prompt()
    noted, refused = helper.results()
    assert noted == "noted x"
    assert "unknown tool `asks_user`" in refused


async def test_G2_tools_are_restricted(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([called("h1", "note", text="x"), called("h2", "asks_user"), called("h3", "nothing")], "Helped.")
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    names = put(helper=helper)
    file = written(tmp_path, f'[agents.helper]\nmodel = "{names["helper"]}"\nrun = "unattended"\ntools = ["no*"]')
    async with talking(main, *TOOLS, clock=clock, config=file) as talk:
        await talk.prompt()
    noted, refused, unknown = helper.results()
    assert noted == "noted x"
    assert "unknown tool `asks_user`" in refused
    assert "nothing" in unknown
    offered = [tool.name for tool in helper.offered[0].function_tools]
    assert "note" in offered and not {"asks_user", "work", "helper"} & set(offered)


@pytest.mark.parametrize("way", ["agent", "workflow"])
async def test_G2_restrictions_hold_for_what_runs_other_tools(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    other = Script("Other.")
    steps = [{"id": "s", "type": "tool", "config": {"toolId": "note", "input": {"text": "secret"}}}]
    by = {
        "agent": called("h1", "execute_agent_async", agentId="other", prompt="Go."),
        "workflow": called("h1", "execute_workflow_async", workflowId="w", name="w", steps=steps),
    }
    helper = Script([by[way]], Reply("Helped.", pause=60))
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    names = put(helper=helper, other=other)
    tables = [f'[agents.{name}]\nmodel = "{names[name]}"\nrun = "unattended"' for name in names]
    file = written(tmp_path, f"{tables[0]}\ntools = []\n{tables[1]}")
    async with talking(main, *TOOLS, clock=clock, config=file) as talk:
        await talk.prompt()
    assert other.read == []
    assert "unknown tool `execute_" in helper.results()[0]


async def test_G2_budgets_are_spent_for_the_parent(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(*[Reply(calls=[called("h", "note", text="x")], usage=(100, 10))] * 20)
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, more="[conversation]\nmax_tokens = 500", helper=helper) as talk:
        answer = await talk.prompt()
    assert len(helper.read) == 5
    assert answer.stop_reason == "max_turn_requests"
    assert "max_tokens = 500" in (answer.error or "")
    assert answer.usage.requests == 6
    assert talk.conversation.usage.requests == 6


async def test_G2_a_budget_of_its_own(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(*[Reply("Well. ", [called("h", "note", text="x")])] * 20)
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    names = put(helper=helper)
    file = written(tmp_path, f'[agents.helper]\nmodel = "{names["helper"]}"\nrun = "unattended"\nmax_requests = 3')
    async with talking(main, *TOOLS, clock=clock, config=file) as talk:
        assert (await talk.prompt()).stop_reason == "end_turn"
    assert len(helper.read) == 3
    assert "max_requests" in main.results()[0]
    assert "Well. " in main.results()[0]


async def test_Q2_an_agents_tool_asks_the_agent(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([called("h1", "asks_assistant")], "Helped.", answers=[{"answer": True}])
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert helper.results() == ["assistant: True"]
    assert main.asked == []
    assert len(helper.asked) == 1


async def test_Q2_an_agents_tool_asks_the_person(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([called("h1", "asks_user")], "Helped.")
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    asked = []

    async def prompter(prompt: Any) -> Any:
        asked.append(prompt)
        return keephold.prompts.Answer(False)

    file = config(tmp_path, helper=helper)
    async with talking(main, *TOOLS, clock=clock, config=file, prompter=prompter) as talk:
        await talk.prompt()
    assert helper.results() == ["user: False"]
    (prompt,) = asked
    assert root_of(prompt.conversation) == "main" and parent_of(prompt.conversation) == "main"


async def test_G2_the_end_of_an_agents_turn_asks_the_agent(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script([spawned("h1", "work", "w", secs=60)], "Soon.", "Worked.", answers=at_end("wait"))
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert main.results() == ["Worked."]
    assert "worked" in helper.told(2)[0]


async def test_G2_an_agent_that_fails_says_what_it_had_said(clock: VirtualClock, tmp_path: Path) -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    helper = Script(Reply("Half. ", [called("h1", "note", text="x")]), ModelHTTPError(401, "scripted"))
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        assert (await talk.prompt()).text == "Done."
    assert "did not finish" in main.results()[0] and "Half. " in main.results()[0]


async def test_G2_many_at_once(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(*[Reply("Helped.", pause=1)] * 40)
    calls = [called(f"c{at}", "helper", prompt=f"Task {at}.") for at in range(40)]
    main = Script(calls, "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert main.results() == ["Helped."] * 40
    assert sorted(helper.told(at)[0] for at in range(40)) == sorted(f"Task {at}." for at in range(40))


async def test_G2_an_ended_agent_is_forgotten(clock: VirtualClock, tmp_path: Path) -> None:
    import gc

    from keephold.agent.conversation import Conversation

    helper = Script("Helped.")
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
        gc.collect()
        left = [each.id for each in gc.get_objects() if isinstance(each, Conversation) and each.runtime is talk.rt]
    assert left == ["main"]


async def test_R1_an_agent_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Closing lets go of it as a crash does (R6): the next runtime takes it up, and its parent gets its result."""
    helper = Script([called("h1", "note", text="x")], Reply("Never.", pause=3600))
    main = Script([called("c1", "helper", prompt="Go.")])
    store = f"sqlite:///{tmp_path / 'work.db'}"
    async with Runtime(TOOLS, store=store, config=config(tmp_path, helper=helper)) as rt:
        running = asyncio.create_task(rt.conversation("main", model=main.model).prompt("Go."))
        await until(lambda: len(helper.read) == 2)
    with pytest.raises(keephold.KeepholdError):
        await running
    helper, main = Script("Helped."), Script("Done.")
    async with talking(main, *TOOLS, store=store, config=config(tmp_path, helper=helper)) as talk:
        await talk.conversation.open()
        assert talk.conversation.interrupted
        assert (await talk.resume()).text == "Done."
    assert helper.results() == ["noted x"]
    assert main.results() == ["Helped."]


async def test_E10_what_was_sent_to_it_comes_once(tmp_path: Path) -> None:
    """Taken into its transcript before a restart, or not yet."""
    opened = asyncio.Event()

    @keephold.tool(on_crash="replay")
    async def gate() -> str:
        """Opens when it is told to."""
        await opened.wait()
        return "open"

    tools, store = (*TOOLS, gate), f"sqlite:///{tmp_path / 'work.db'}"

    def sent(id: str, text: str) -> Sent:
        return id, "helper", {"action": "apply", "id": "h", "input": text}

    def opening(_: Any) -> list[Sent]:
        opened.set()
        return [called("c3", "await", all=["h"], timeout_secs=1)]

    helper = Script([called("h1", "gate")], Reply("Never.", pause=3600))
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [sent("c2", "Early.")],
        opening,
        [sent("c4", "Late.")],
        [called("c5", "await", all=["h"])],
    )
    async with Runtime(tools, store=store, config=config(tmp_path, helper=helper)) as rt:
        running = asyncio.create_task(rt.conversation("main", model=main.model).prompt("Go."))
        await until(lambda: len(main.read) == 5 and rt.batches)
    with pytest.raises(keephold.KeepholdError):
        await running
    assert helper.told(1) == ["Early."]
    helper, main = Script("Helped.", "Helped more.", "And more."), Script("Done.")
    async with talking(main, *tools, store=store, config=config(tmp_path, helper=helper)) as talk:
        await talk.conversation.open()
        assert (await talk.resume()).text == "Done."
    said = [part.content for message in helper.read[-1] for part in message.parts if part.part_kind == "user-prompt"]
    assert said == ["Go.", "Early.", "Late."]


def test_G2_unknown_options_are_told(tmp_path: Path) -> None:
    file = written(tmp_path, '[agents.helper]\nmodel = "x:y"\ntool = ["*"]')
    with pytest.raises(ConfigError, match="tools"):
        Runtime(config=file)


async def test_G2_an_unknown_model_is_told_to_the_caller(clock: VirtualClock, tmp_path: Path) -> None:
    file = written(tmp_path, '[agents.helper]\nmodel = "nobody:nothing"\nrun = "unattended"')
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    async with talking(main, clock=clock, config=file) as talk:
        assert (await talk.prompt()).text == "Done."
    assert "nobody:nothing" in main.results()[0]


def test_G2_lineage() -> None:
    uid = "0" * 32
    below = f"main/boss@{uid}/leaf@{uid}"
    assert (parent_of(below), root_of(below), depth_of(below)) == (f"main/boss@{uid}", "main", 2)
    assert (parent_of("a/b"), root_of("a/b"), depth_of("a/b")) == (None, "a/b", 0)
