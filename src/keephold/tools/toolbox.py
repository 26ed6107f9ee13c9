"""The tools of a runtime, by name, with what is compiled once for each: argument checks and resource names.

Some of a runtime's tools: what one agent may use (G2).

Chosen by patterns of names (`*` stands for anything), looked up when asked, as the tools of MCP servers come and go.
What keephold adds itself (`await`, `read_output` …) is always there.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from keephold.errors import ConfigError, ToolError
from keephold.handles.gate import RESOURCE
from keephold.schema.arguments import ArgumentCheck, check_for
from keephold.schema.canonical import check_parameters
from keephold.tools.base import ACTIONS, Action, Invocation, Live, Sink, Tool
from keephold.tools.template import Template, values_of


def name_problem(name: str) -> str | None:
    """What is wrong with the name of a tool: providers refuse a whole request for one name they do not like."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return None
    return "a tool's name has 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`, or providers refuse it; " + (
        f"it has {len(name)} characters" if len(name) > 64 else "choose another"
    )


class Toolbox:
    """An ordered set of tools with unique names."""

    def __init__(self, tools: Iterable[Tool], *, max_running: int | None = None) -> None:
        self._slots = {} if max_running is None else {"runtime": max_running}
        self._tools: dict[str, Tool] = {}
        self._checks: dict[tuple[str, Action | None], ArgumentCheck] = {}
        self._resources: dict[str, tuple[Template, ...]] = {}
        self.unlisted: tuple[str, ...] = ()
        """MCP servers that have not said yet which tools they have."""
        for tool in tools:
            self._add(tool)

    def _add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ConfigError([f"two tools are named `{tool.name}`; give one of them another name"])
        wrong_name = name_problem(tool.name)
        if wrong_name:
            raise ConfigError([f"tool `{tool.name[:100]}`: {wrong_name}"])
        check_parameters(tool.name, tool.parameters, tool.actions, tool.action_parameters)
        self._tools[tool.name] = tool
        if tool.resources:
            where = f"resources of tool `{tool.name}`"
            self._resources[tool.name] = tuple(Template(text, where) for text in tool.resources)

    def become(self, other: "Toolbox") -> None:
        """Have the tools of another one from now on, and those of MCP servers that are here already."""
        remote = self.remote()
        self._slots, self._tools = other._slots, dict(other._tools)
        self._checks, self._resources = {}, dict(other._resources)
        for tool in remote:
            if tool.name not in self._tools:
                self._add(tool)

    def offer(self, *names: str) -> None:
        """Tell models of these tools from now on."""
        for name in names:
            if name in self._tools:
                self._tools[name] = replace(self._tools[name], offered=True)

    def remote(self) -> list[Tool]:
        """The tools of MCP servers, those that are gone included."""
        return [tool for tool in self._tools.values() if tool.source == "mcp"]

    def replace_remote(self, tools: Iterable[Tool]) -> None:
        """From now on these are the tools of MCP servers (M6): they come and go while the runtime runs."""
        for name in [tool.name for tool in self.remote()]:
            del self._tools[name]
            self._resources.pop(name, None)
            for action in (None, *ACTIONS):
                self._checks.pop((name, action), None)
        for tool in tools:
            self._add(tool)

    def __iter__(self) -> Iterator[Tool]:
        """Those that are offered to a model."""
        return (tool for tool in self._tools.values() if tool.offered)

    def served(self) -> list[Tool]:
        """Those that any client gets: what is offered, and everything that comes with keephold (M1)."""
        return [
            tool
            for tool in self._tools.values()
            if tool.offered or tool.source == "builtin" or tool.launching is not None
        ]

    def find(self, name: str) -> Tool:
        """The tool of that name, or an error that names the nearest."""
        tool = self._tools.get(name)
        if tool is None:
            offered = [each.name for each in self]
            near = difflib.get_close_matches(name, offered, 1)
            known = ", ".join(f"`{each}`" for each in offered) or "none"
            right = f"did you mean `{near[0]}`?" if near else f"known tools: {known}"
            if self.unlisted:
                servers = ", ".join(f"`{each}`" for each in self.unlisted)
                right += f"; MCP servers that are not connected yet may have it: {servers}"
            raise ToolError(f"unknown tool `{name[:100]}`; {right}", code="unknown_tool")
        return tool

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return self._tools.get(name)

    def known(self, name: str) -> Tool:
        """The tool of a handle that the store has: ours, or one that stands in for it and cannot be started."""
        return self._tools.get(name) or Tool(name=name, runtime=_Absent(), actions=ACTIONS)

    def check(self, tool: Tool, action: Action | None) -> ArgumentCheck:
        """The check of the arguments of one of the tool's actions, or of a one-shot call."""
        key = (tool.name, action)
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = check_for(_in_own_words(tool), action)
        return check

    def has_names(self, tool: Tool) -> bool:
        """Whether `names` may give any for a call of the tool."""
        if tool.resources or tool.max_running is not None or (self._slots and tool.source != "builtin"):
            return True
        return bool(getattr(tool.runtime, "slots", None)) or hasattr(tool.runtime, "slots_of")

    def names(self, invocation: Invocation) -> dict[str, int]:
        """What a call needs before it may run: its resources, and slots of its tool and runtime (B5, W11)."""
        tool = invocation.tool
        names: dict[str, int] = {}
        for resource in self._resources.get(tool.name, ()):
            options, root = getattr(tool.runtime, "options", {}), getattr(tool.runtime, "root", "")  # of a command
            names[RESOURCE + resource.render(values_of(invocation, options=options, root=root))] = 1
        if tool.max_running is not None:
            names[f"tool:{tool.name}"] = tool.max_running
        # The steps of a workflow and the calls of an agent queue themselves; it would hold them up for ever.
        if tool.source != "builtin" and tool.kind != "workflow" and getattr(tool.runtime, "takes_slot", True):
            names.update(self._slots)
        names.update(getattr(tool.runtime, "slots", {}))  # SupportsSlots
        slots_of = getattr(tool.runtime, "slots_of", None)  # SupportsSlotsOfCalls
        if slots_of is not None:
            names.update(slots_of(invocation.arguments))
        return names


class _Absent:
    """Runs nothing: this runtime has not got the tool."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise ToolError(f"this runtime has no tool `{invocation.tool.name}`", code="unknown_tool")


def _in_own_words(tool: Tool) -> Tool:
    """A built-in that needs one of several arguments says so itself, as its rule words it (A4)."""
    if tool.source != "builtin" or "anyOf" not in tool.parameters:
        return tool
    return replace(tool, parameters={key: value for key, value in tool.parameters.items() if key != "anyOf"})


class Selection:
    """The tools of a toolbox whose names fit one of the patterns and that `allowed` lets pass."""

    def __init__(
        self, toolbox: Toolbox, patterns: Sequence[str] = ("*",), allowed: Callable[[Tool], bool] = lambda _: True
    ) -> None:
        self._toolbox = toolbox
        self._patterns = tuple(patterns)
        self._allowed = allowed

    def __iter__(self) -> Iterator[Tool]:
        """Those that are offered to a model."""
        return filter(self.has, self._toolbox)

    def has(self, tool: Tool) -> bool:
        """Whether it is one of them."""
        fits = tool.source == "builtin" or any(fnmatchcase(tool.name, pattern) for pattern in self._patterns)
        return fits and self._allowed(tool)

    def find(self, name: str) -> Tool:
        """The tool of that name, or an error that names those there are; of others nothing is said."""
        tool = self._toolbox.get(name)
        if tool is None or not self.has(tool):
            known = ", ".join(f"`{each.name}`" for each in self) or "none"
            raise ToolError(f"unknown tool `{name[:100]}`; known tools: {known}", code="unknown_tool")
        return tool

    def check(self, tool: Tool, action: Action | None) -> ArgumentCheck:
        """As the toolbox does."""
        return self._toolbox.check(tool, action)
