"""Models know the built-ins only by their texts: each says what it does and returns, each parameter what it means."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from tests.agent.providers import anthropic_rules, gemini_rules, openai_rules

import keephold
from keephold import Runtime, ToolCall
from keephold.agent.requests import instructions
from keephold.config import load_config
from keephold.errors import ConfigError
from keephold.mcp.server import Server
from keephold.schema.dialects import DIALECTS, Dialect, tool_list
from keephold.schema.shared import HANDLE_TOOLS, Presentation
from keephold.text import to_json
from keephold.tools.base import ACTIONS, Tool
from keephold.tools.builtin import ask_user_tool, describe_tools_tool
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


@pytest.mark.parametrize("actions", ["shared", "per_tool"])
async def test_instructions_name_only_tools_and_parameters_that_are_listed(
    tmp_path: Path, actions: Presentation
) -> None:
    @keephold.tool(actions=ACTIONS)
    async def work(call: keephold.Call) -> str:
        return "done"

    (tmp_path / "keephold.toml").write_text(f'[conversation]\nactions = "{actions}"\n')
    runtime = Runtime([work], config=tmp_path / "keephold.toml")
    told = f"{Server(runtime).instructions} {instructions(actions)}"
    shown = await listed(runtime)
    known = {tool["name"] for tool in shown} | {key for tool in shown for key in tool["inputSchema"]["properties"]}
    assert set(re.findall("`([a-z_]+)`", told)) - known <= (set() if actions == "shared" else set(ACTIONS))


LISTED_BYTES = 8000
"""Of `tools/list` without any tools, as JSON: 2,000 tokens of four bytes."""


async def listed(runtime: Runtime, **options: Any) -> list[dict[str, Any]]:
    async with runtime:
        shown = await Server(runtime, **options).list_tools()
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in shown]


async def test_M1_a_server_without_tools_lists_the_built_ins_of_use_here_in_few_tokens() -> None:
    shown = await listed(Runtime())
    assert [tool["name"] for tool in shown] == [
        "await",
        "read_output",
        "sleep",
        "create_wait_handle",
        "wait_for",
        "wait_for_multiple",
        "complete_wait_handle",
        "list_wait_handles",
        "cancel_wait_handle",
    ]
    assert len(to_json(shown)) <= LISTED_BYTES


@keephold.tool(actions=ACTIONS)
async def build(target: str, jobs: int = 1) -> str:
    """Build a target of the project and return its log.

    Args:
        target: Name of the target, such as `all`.
        jobs: How many jobs run at once.
    """
    return target


@keephold.tool(actions=ACTIONS)
async def search(query: str, path: str = ".", context: int = 2, kinds: list[str] | None = None) -> str:
    """Search files for a regular expression. Use it to find where a name is defined or used, not to read whole files.
    Returns at most 200 matching lines, each with its path, its number and the lines around it.

    Args:
        query: Regular expression in Python's syntax, matched against each line of each text file.
        path: Directory or file to search, relative to the root of the repository (default: everything).
        context: How many lines are shown before and after each match, 0 to 20 (default: 2).
        kinds: Endings of file names to search, such as `py` (default: all text files).
    """
    return query


FORMS: tuple[Presentation, Presentation] = ("shared", "per_tool")
WIRE = DIALECTS[1:]


def fifty(tool: Tool) -> list[Tool]:
    return [replace(tool, name=f"{tool.name}{number}") for number in range(50)]


def tokens(tools: list[Tool], dialect: Dialect, form: Presentation) -> int:
    """Of four bytes."""
    return len(to_json(tool_list(tools, dialect, form))) // 4


def test_G5_shared_verbs_of_fifty_tools_take_half_the_tokens_of_an_action_each() -> None:
    """Half with small tools; of what is added to the texts of any tools, a third. The documentation has the numbers."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "agent.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    kept = {name: [int(number.replace(",", "")) for number in numbers] for name, *numbers in rows}
    assert kept.keys() == set(WIRE)
    for dialect in WIRE:
        for tool in (build, search):
            own = tokens(fifty(replace(tool, actions=())), dialect, "shared")
            shared, per_tool = (tokens(fifty(tool), dialect, form) for form in FORMS)
            print(f"{dialect} {tool.name}: own {own}, shared {shared}, per_tool {per_tool}, {shared / per_tool:.2f} ×")
            assert shared - own <= (per_tool - own) / 3
            if tool is build:
                assert shared <= 0.5 * per_tool, (dialect, shared, per_tool)
                assert kept[dialect] == pytest.approx([own, shared, per_tool], rel=0.05), "the table of agent.md is old"


@pytest.mark.parametrize("form", FORMS)
def test_G3_no_provider_refuses_fifty_stateful_tools(form: Presentation) -> None:
    for dialect in WIRE:
        offered = tool_list([*fifty(build), *fifty(search)], dialect, form)
        openai_rules.check_count(offered)
        for tool in offered:
            openai_rules.check_name(tool["name"], "tools")
            strict = dialect == "openai-strict"
            openai_rules.check_parameters(tool["name"], tool["parameters"], strict=strict, where="tools")
        anthropic_rules.check_tools([{"name": each["name"], "input_schema": each["parameters"]} for each in offered])
        if dialect == "gemini":
            gemini_rules.check_declarations(offered)


async def test_M1_agents_and_workflows_are_listed_where_there_is_something_to_run() -> None:
    names = {tool["name"] for tool in await listed(Runtime([keephold.tool(name="plain")(lambda: "")]))}
    assert {"plain", "execute_workflow_async"} <= names and not {"execute_agent_async", "ask_user"} & names
    rt = Runtime()

    @rt.agent("helper")
    async def helper(call: keephold.Call, request: Any) -> str:
        return "done"

    assert {"execute_agent_async", "execute_workflow_async"} <= {tool["name"] for tool in await listed(rt)}


async def test_K10_clients_may_call_the_built_ins_that_are_chosen_for_them() -> None:
    assert [tool["name"] for tool in await listed(Runtime(), builtins=["gc_wait_handles"])] == ["gc_wait_handles"]
    assert {"create_task", "gc_wait_handles"} <= {tool["name"] for tool in await listed(Runtime(), builtins=["*"])}
    with pytest.raises(ConfigError, match="builtins: there is no built-in `gc`; use \\*, await"):
        Server(Runtime(), builtins=["gc"])
    async with Runtime() as rt, Client(Server(rt, builtins=["sleep"])) as client:
        refused = await client.call_tool("gc_wait_handles", {})
        assert refused.is_error and "unknown tool `gc_wait_handles`" in str(refused.content)
        assert not (await client.call_tool("sleep", {"durationMs": 0})).is_error
        assert "wait_for" not in (client.instructions or "")


def test_M1_the_configuration_names_built_ins(tmp_path: Path) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text('[mcp]\nbuiltins = ["sleep"]\n')
    assert load_config(file).mcp.builtins == ["sleep"]
    file.write_text('[mcp]\nbuiltins = ["slep"]\n')
    with pytest.raises(ConfigError, match=r"builtins.*must be one of.*did you mean"):
        load_config(file)


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
