"""Offered schemas tell the truth: calls made from them alone run, or are refused for a reason that no schema can
express, and the call that the refusal suggests works (G3, G5, C9)."""

from dataclasses import replace
from datetime import date, datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from tests.soak import SOAK, tries
from tests.turn.calls import STATEFUL, TALKING
from tests.turn.obedient import MISTYPED, Judge, call_of

import keephold
from keephold import Call, Question, Runtime, Tool
from keephold.handles.state import Ok
from keephold.schema.dialects import DIALECTS, Dialect, tool_list
from keephold.schema.shared import Presentation
from keephold.testing import VirtualClock
from keephold.tools.base import Invocation, Live, Sink
from keephold.tools.waiting import NAMES


class Place(BaseModel):
    lat: float = Field(ge=-90, le=90)
    name: str | None = None
    tags: list[Literal["home", "work"]] = []


@keephold.tool
async def optional(a: int, b: str | None = None, c: bool = True, d: float = 0.5) -> str:
    return "ok"


@keephold.tool(actions=STATEFUL)
async def nested(at: Place, around: list[Place] | None = None, by_name: dict[str, int] | None = None) -> str:
    return "ok"


@keephold.tool(actions=STATEFUL)
async def chosen(kind: Literal["a", "b"], level: Literal[1, 2, 3] = 1, value: int | str | list[int] = 0) -> str:
    return "ok"


@keephold.tool
async def bounded(
    n: Annotated[int, Field(gt=0, lt=10)],
    name: Annotated[str, Field(pattern="^[a-z]{2,5}$")],
    many: Annotated[list[int], Field(min_length=1, max_length=3)],
    step: Annotated[int, Field(multiple_of=5)] = 5,
) -> str:
    return "ok"


@keephold.tool
async def dated(on: date, at: datetime | None = None, pair: tuple[int, str] | None = None) -> str:
    return "ok"


@keephold.tool(actions=STATEFUL)
async def untold(anything: Any = None, free: dict[str, Any] | None = None, many: list[Any] | None = None) -> str:
    return "ok"


@keephold.tool(actions=TALKING)
async def listens(call: Call, times: int = 100) -> str:
    for _ in range(100):
        await call.input()
    return "ok"


@keephold.tool(actions=TALKING)
async def asks(call: Call, which: Literal["sure", "colour", "name"] = "sure") -> str:
    kinds: dict[str, Any] = {"sure": bool, "colour": Literal["red", "green"], "name": str}
    while True:
        await call.ask(Question(which, "Well?", kinds[which]))


class Stays:
    """A program that takes everything it is sent, and ends when it is told to."""

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        if not invocation.stateful:
            sink.stop(Ok("ok"))
            sink.released()
        return Stays(sink)

    def write(self, data: Any) -> None: ...

    def apply(self, arguments: Any) -> None: ...

    def end(self, grace: float) -> None:
        assert self._sink is not None
        self._sink.stop(Ok("ended"))
        self._sink.released()


def stub(tool: Tool) -> Tool:
    """The tool with its own schema and no process, for which virtual time would have to wait."""
    return replace(tool, runtime=Stays(), source="python")


PATHS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "deep": {"type": "boolean"}},
    "required": ["path"],
}
PROGRAMS = [
    stub(keephold.command(["true"], name="lists", parameters=PATHS)),
    stub(keephold.command(["cat"], name="copies", stdin=True, actions=TALKING)),
    stub(keephold.terminal("sh", name="shell", parameters=PATHS)),
]


def foreign(name: str, properties: dict[str, Any], *required: str, **more: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(required), **more}
    return Tool(name=name, runtime=Stays(), parameters=schema, source="mcp")


FOREIGN = [
    foreign("old_draft", {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}, "n",
            **{"$schema": "http://json-schema.org/draft-04/schema#"}),
    foreign("unions", {"v": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"k": {"const": 1}},
            "required": ["k"]}]}, "w": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}}]}},
            "v"),
    foreign("untyped", {"x": {}, "y": {"description": "anything"}, "z": {"enum": ["a", 1, None]}}, "x"),
    foreign("joined", {"p": {"allOf": [{"$ref": "#/$defs/P"}]}}, "p",
            **{"$defs": {"P": {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]}}}),
    foreign("open", {"k": {"type": "string"}}, additionalProperties={"type": "integer"}),
    foreign("closed", {"o": {"type": "object", "properties": {"a": {"type": "string"}}},
            "p": {"type": "object", "properties": {"b": {"type": "boolean"}}, "additionalProperties": False}}),
]  # fmt: skip
TOOLS = [optional, nested, chosen, bounded, dated, untold, listens, asks, *PROGRAMS, *FOREIGN]
OFFERED = [name for name in NAMES if name != "execute_workflow_async"]  # its steps are programs, see W10's own tests
PREPARED: list[tuple[str, dict[str, Any]]] = [
    ("listens", {"spawn": "run"}),
    ("asks", {"spawn": "ask"}),
    ("asks", {"spawn": "pick", "which": "colour"}),
    ("chosen", {"spawn": "over", "kind": "a"}),
    ("create_wait_handle", {"handleId": "hook", "type": "hook"}),
    ("create_task", {"taskId": "task", "taskName": "Task"}),
]
CALLS = 50
"""Calls in one conversation."""


async def clerk(call: Any, request: Any) -> str:
    return "ok"


def opened(clock: VirtualClock | None = None) -> Runtime:
    rt = Runtime(TOOLS, clock=clock, builtins=OFFERED)
    rt.agent("clerk")(clerk)
    return rt


def judged(dialect: Dialect, actions: Presentation, examples: int) -> Judge:
    """Run `examples` conversations of calls that are made from the schemas of a dialect."""
    listed = tool_list(opened().toolbox, dialect, actions)
    judge = Judge()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not SOAK,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(call_of(listed), min_size=CALLS, max_size=CALLS))
    def converse(calls: list[tuple[str, dict[str, Any]]]) -> None:
        clock = VirtualClock()

        async def main() -> None:
            async with opened(clock) as rt:
                await judge.run(rt, PREPARED, calls)

        clock.run(main())

    converse()
    return judge


@pytest.mark.parametrize("actions", ["shared", "per_tool"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_C9_calls_made_from_the_schemas_run_or_their_suggestions_do(dialect: Dialect, actions: Presentation) -> None:
    """With shared verbs no call is refused for a missing or mistyped argument; in strict form in 100,000 calls. A flat
    `per_tool` schema cannot express which arguments go with which action."""
    strict = (dialect, actions) == ("openai-strict", "shared")
    judge = judged(dialect, actions, tries(1, soak=100_000 // CALLS if strict else 100))
    print(judge.table(f"{dialect}, {actions}"))
    assert judge.ran
    assert not judge.stranded
    if actions == "shared":
        assert judge.examples.get(MISTYPED, []) == []
