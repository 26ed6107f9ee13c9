"""The tools that come with holdfast. Each is a function tool like a user's own, one file a tool (B8)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.handles.view import Waited
from holdfast.tools.base import Reply, Tool
from holdfast.tools.builtin.await_ import await_tool
from holdfast.tools.builtin.describe_tools import describe_tools_tool
from holdfast.tools.builtin.read_output import read_output_tool

NAMES = ("await", "read_output", "describe_tools")


def builtin_tools(tools: Sequence[Tool], show: Callable[[Waited], Reply]) -> list[Tool]:
    """The built-ins to offer beside `tools`: what has nothing to work on is left out (A1, B8)."""
    offered: list[Tool] = []
    if any(tool.actions for tool in tools):
        offered.append(await_tool(show))
    if tools:
        offered.append(read_output_tool())
    if any(tool.examples or tool.summary for tool in tools):
        offered.append(describe_tools_tool(tools))
    return [replace(tool, source="builtin") for tool in offered]
