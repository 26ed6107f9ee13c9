"""The tools that come with keephold. Each is a function tool like a user's own, one file a tool (B8)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from keephold.handles.state import Reply
from keephold.handles.view import Waited
from keephold.tools.base import Tool
from keephold.tools.builtin.ask_user import ask_user_tool
from keephold.tools.builtin.await_ import await_tool
from keephold.tools.builtin.describe_tools import describe_tools_tool
from keephold.tools.builtin.read_output import read_output_tool
from keephold.tools.waiting import LASTING
from keephold.tools.waiting import NAMES as WAITING

READS: Mapping[str, Any] = {"readOnlyHint": True, "openWorldHint": False}
RESERVED = ("await", "read_output", "describe_tools", "ask_user")
"""Names that no other tool may have. A tool with the name of a wait tool replaces that."""
NAMES = (*RESERVED, *WAITING)


def unknown_builtins(names: Iterable[str]) -> list[str]:
    """Return the names that no built-in has; `*` stands for all."""
    return [name for name in names if name not in NAMES and name != "*"]


def source_of(name: str) -> str | None:
    """Return `builtin` if that is a built-in which recovery leaves to its turn, for a process without the tools."""
    return "builtin" if name in NAMES and name not in LASTING else None


def builtin_tools(
    tools: Sequence[Tool],
    show: Callable[[Waited], Reply],
    waiting: Sequence[Tool] = (),
    *,
    now: Callable[[str], Iterable[Tool]],
    person: bool = False,
) -> list[Tool]:
    """Return the built-ins that go with `tools`, without those that have nothing to work on (A1, B8).

    `waiting` are the wait tools, configured; `now` returns the tools of a conversation; `person`: there is a user whom
    `ask_user` can ask (Q8). A one-shot call that is parked may become a handle (D10), so `await` is included also if no
    tool is stateful.
    """
    offered: list[Tool] = []
    makes_handles = any(tool.actions for tool in tools) or any(tool.offered for tool in waiting)
    offered.append(replace(await_tool(show), offered=makes_handles))
    offered.append(
        replace(read_output_tool(), names="id", unrecorded=True, hints=READS, offered=bool(tools) or makes_handles)
    )
    if any(tool.examples or tool.summary for tool in tools):
        described = describe_tools_tool(lambda name: [tool for tool in now(name) if tool.source != "builtin"])
        offered.append(replace(described, unrecorded=True, hints=READS))
    if person:
        offered.append(replace(ask_user_tool(), hints=READS))
    taken = {tool.name for tool in tools}
    return [replace(tool, source="builtin") for tool in offered] + [t for t in waiting if t.name not in taken]
