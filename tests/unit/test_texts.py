"""Models know the built-ins only by their texts: each says what it does and returns, each parameter what it means."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from keephold import Runtime, ToolCall
from keephold.schema.dialects import tool_list
from keephold.schema.shared import HANDLE_TOOLS
from keephold.tools.base import Tool
from keephold.tools.builtin.ask_user import ask_user_tool
from keephold.tools.builtin.describe_tools import describe_tools_tool
from keephold.tools.waiting import NAMES

BUILT_INS: list[Tool] = [
    *Runtime(builtins=NAMES).toolbox,
    ask_user_tool(),
    describe_tools_tool(lambda _: ()),
    *HANDLE_TOOLS.values(),
]


@pytest.mark.parametrize("tool", BUILT_INS, ids=lambda tool: tool.name)
def test_every_built_in_says_what_when_and_what_it_returns(tool: Tool) -> None:
    (shown,) = tool_list([tool], "generic")
    said = shown["description"]
    assert 2 <= said.count(". ") + 1 <= 6 and len(said) < 500, said
    assert ("return" in said.lower() or said.startswith("Show")) and "\n" not in said and "  " not in said
    assert [name for name, own in _parameters(shown["parameters"]) if not own.get("description")] == []


def _parameters(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from schema["properties"].items()


def test_waits_say_which_is_for_what() -> None:
    said = {tool.name: tool.description for tool in BUILT_INS}
    assert "`wait_for_multiple` for several" in said["wait_for"] and "`await` for tools" in said["wait_for"]
    assert "`wait_for`" in said["wait_for_multiple"] and "tools that you started" in said["await"]


async def test_W2_unused_parameters_are_accepted_and_not_shown() -> None:
    async with Runtime(builtins=NAMES) as rt, rt.turn("main") as turn:
        for dialect in ("canonical", "generic", "openai-strict"):
            shown = {each["name"]: each["parameters"]["properties"] for each in rt.tools(dialect=dialect)}
            assert "pollIntervalMs" not in shown["wait_for"] | shown["wait_for_multiple"]
            assert "priority" not in shown["create_wait_handle"] and "priority" in shown["update_wait_handle"]
        calls = [
            ToolCall("1", "create_wait_handle", {"handleId": "h", "type": "custom", "priority": 1}),
            ToolCall("2", "wait_for", {"handleId": "h", "timeoutMs": 0, "pollIntervalMs": 100}),
        ]
        assert not any(answer.is_error for answer in await turn.run(calls))
