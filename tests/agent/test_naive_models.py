"""Models that know only the schemas and instructions that they are sent, in every dialect and presentation (G3, G5):
no call of theirs is refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.naive import Naive, Sent
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.neutral import Asked, OfferedTool
from tests.agent.providers.script import Reply
from tests.agent.servers import model_of, provider
from tests.agent.talk import written

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.agent.events import Answered, Event
from keephold.agent.requests import instructions
from keephold.schema.dialects import DIALECTS
from keephold.schema.shared import Presentation, presentation
from keephold.tools.base import ACTIONS

both = pytest.mark.parametrize("actions", ["shared", "per_tool"])


@keephold.tool(actions=ACTIONS)
async def build(target: str, jobs: int = 1, options: dict[str, str] | None = None) -> str:
    """Build a target."""
    return f"{target} is built"


@keephold.tool(actions=ACTIONS)
async def migrate(call: Call, database: str) -> str:
    """Migrate a database; asks whether old tables are dropped."""
    return f"dropped: {await call.ask(Question('drop', 'Drop the old tables?', bool))}"


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def watch(gate: str) -> None:
    """Watch a gate until it is aborted."""
    await asyncio.Event().wait()


TOOLS = (build, migrate, watch, keephold.terminal(["cat"], name="echo", description="Repeat each line."))


class Day:
    """What the model does, batch by batch, and what it must have seen after each."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[[Naive], list[Sent]], Callable[[list[str]], bool]]] = [
            (lambda model: [model.run("build", target="app")], lambda seen: seen == ["app is built"]),
            (
                lambda model: [model.start("build", "b", target="lib"), model.wait("b")],
                lambda seen: "lib is built" in seen[1],
            ),
            (
                lambda model: [model.start("migrate", "m", database="main")],
                lambda seen: "Drop the old tables?" in seen[0] and state(seen[0]) == "waiting",
            ),
            (
                lambda model: [model.answer("migrate", "m", True), model.wait("m")],
                lambda seen: "dropped: True" in seen[1],
            ),
            (lambda model: [model.start("echo", "t")], lambda seen: state(seen[0]) == "running"),
            (
                lambda model: [model.send("echo", "t", "hello\n"), model.read("echo", "t")],
                lambda seen: "hello" in "".join(seen) and state(seen[1]) == "running",
            ),
            (
                lambda model: [model.close("echo", "t"), model.wait("t")],
                lambda seen: json.loads(seen[1])["completed"][0]["id"] == "t",
            ),
            (
                lambda model: [model.start("watch", "w", gate="north"), model.read("watch", "w")],
                lambda seen: state(seen[1]) == "running",
            ),
            (lambda model: [model.end("watch", "w")], lambda seen: state(seen[0]) == "stopped"),
        ]
        self.done = 0

    def next(self, model: Naive, seen: list[str]) -> list[Sent]:
        """The next calls; none at the end of the day."""
        if self.done:
            assert self.steps[self.done - 1][1](seen), (self.done, seen)
        self.done += 1
        return self.steps[self.done - 1][0](model) if self.done <= len(self.steps) else []


def state(reply: str) -> Any:
    return json.loads(reply)["state"]


@asynccontextmanager
async def runtime(directory: Path, actions: str, *, strict: bool = False) -> AsyncIterator[Runtime]:
    toml = f'[conversation]\nactions = "{actions}"\n[conversation.assistant]\nstrict = {str(strict).lower()}\n'
    async with Runtime(TOOLS, config=written(directory, toml)) as rt:
        yield rt


async def talked(rt: Runtime, format: str, *, strict: bool) -> None:
    day, events, wrong = Day(), list[Event](), list[AssertionError]()

    def say(asked: Asked) -> Reply:
        assert all(tool.strict == strict for tool in asked.tools)
        try:
            calls = day.next(Naive(asked.system, asked.tools), [result.text for result in asked.messages[-1].results])
        except AssertionError as error:  # a server that fails is asked again
            wrong.append(error)
            calls = []
        return Reply(calls=[*calls]) if calls else Reply(text="Done.")

    async with provider(format, say) as server, model_of(server) as model:
        answer = await rt.conversation(model=model).prompt("Go.", listener=events.append)
    assert not wrong and server.refusals == [], (wrong, server.refusals)
    assert (answer.stop_reason, answer.text) == ("end_turn", "Done."), answer.error
    responses = [each for event in events if isinstance(event, Answered) for each in event.responses]
    assert [each.result for each in responses if each.is_error] == []
    assert day.done == len(day.steps) + 1 and len(responses) == 14


@both
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
async def test_G5_a_naive_model_is_never_refused_over_any_wire(tmp_path: Path, actions: str, strict: bool) -> None:
    formats = [format for format in FORMATS if not strict or format.startswith("openai")]
    async with runtime(tmp_path, actions, strict=strict) as rt:
        await asyncio.gather(*(talked(rt, format, strict=strict) for format in formats))


@both
async def test_G5_a_naive_model_is_never_refused_in_any_dialect(tmp_path: Path, actions: Presentation) -> None:
    """Also in those whose providers have no server here."""
    async with runtime(tmp_path, actions) as rt:
        for dialect in DIALECTS:
            shown = presentation(dialect, actions)
            tools = [OfferedTool(each["name"], each["description"], each["parameters"]) for each in rt.tools(dialect)]
            day, model, seen = Day(), Naive(instructions(shown), tools), list[str]()
            async with rt.turn(dialect) as turn:
                while calls := day.next(model, seen):
                    batch = [ToolCall(str(at), name, given) for at, (name, given) in enumerate(calls)]
                    responses = await turn.run(batch)
                    seen = [each.result for each in responses]
                    assert not any(each.is_error for each in responses), (dialect, seen)
