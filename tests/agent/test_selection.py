"""Some of a runtime's tools: what one agent may use (G2)."""

import pytest

import keephold
from keephold import Call, Runtime, ToolCall, ToolError
from keephold.tools.toolbox import Selection


@keephold.tool
async def read_file(path: str) -> str:
    """Read."""
    return f"read {path}"


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def read_all(call: Call) -> str:
    """Read all."""
    return "all"


@keephold.tool
async def write_file(path: str) -> str:
    """Write."""
    return f"wrote {path}"


TOOLS = (read_file, read_all, write_file)


def names(selection: Selection) -> list[str]:
    return [tool.name for tool in selection]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["*"], {"read_file", "read_all", "write_file"}),
        (["read_*"], {"read_file", "read_all"}),
        (["*_file"], {"read_file", "write_file"}),
        (["write_file", "read_all"], {"write_file", "read_all"}),
        (["Read_*", "rea"], set()),
        ([], set()),
    ],
)
async def test_G2_by_patterns(patterns: list[str], found: set[str]) -> None:
    async with Runtime(TOOLS) as rt:
        selection = Selection(rt.toolbox, patterns)
        assert set(names(selection)) - {"await", "read_output", "describe_tools"} == found
        assert {"await", "read_output"} <= set(names(selection))  # what every tool needs
        for tool in TOOLS:
            if tool.name in found:
                assert selection.find(tool.name).name == tool.name
            else:
                with pytest.raises(ToolError, match="unknown tool") as caught:
                    selection.find(tool.name)
                assert caught.value.code == "unknown_tool"


async def test_G2_what_is_allowed() -> None:
    async with Runtime(TOOLS) as rt:
        selection = Selection(rt.toolbox, ("*",), lambda tool: tool.name != "write_file")
        assert "write_file" not in names(selection)
        with pytest.raises(ToolError):
            selection.find("write_file")


async def test_C9_a_tool_that_nobody_has() -> None:
    async with Runtime(TOOLS) as rt:
        with pytest.raises(ToolError, match="nothing") as caught:
            Selection(rt.toolbox, ["read_*"]).find("nothing")
        assert caught.value.code == "unknown_tool"


async def test_G2_a_turn_of_some_tools() -> None:
    async with Runtime(TOOLS) as rt:
        selection = Selection(rt.toolbox, ["read_*"])
        async with rt.turn("main", tools=selection) as turn:
            read, refused, spawned = await turn.run(
                [
                    ToolCall("1", "read_file", {"path": "a"}),
                    ToolCall("2", "write_file", {"path": "a"}),
                    ToolCall("3", "write_file", {"action": "spawn", "id": "x"}),
                ]
            )
    assert read.result == "read a"
    assert refused.is_error and refused.code == spawned.code == "unknown_tool"
    assert "`read_file`" in refused.result and "`write_file`" not in refused.result.partition("your tools")[2]
