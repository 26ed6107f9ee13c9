"""The tools of a runtime by name, with the argument checks and resource names that are compiled once for each.

A call may use only the tools that its conversation is offered (K10). Others are unknown to it, in the same words as
tools that do not exist. `Offers` says which those are:

- a model is offered all tools but the wait tools, and of those the ones that the configuration or the program names,
- an agent is offered some of them (G2): those whose names match its patterns, looked up when asked, because the tools
  of MCP servers come and go,
- a client of our MCP server is offered the same tools, and of the built-ins those that are chosen for clients
  (`ServedTools`).

The steps of a workflow may use what the conversation of the workflow is offered.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, cast

from keephold.errors import ConfigError, ToolError
from keephold.handles.gate import RESOURCE
from keephold.schema.arguments import ArgumentCheck, check_for
from keephold.schema.canonical import check_parameters
from keephold.schema.dialects import Dialect, tool_list
from keephold.schema.shared import HANDLE_TOOLS, PREFIX, Presentation, verbs_for
from keephold.tools.base import ACTIONS, Action, Invocation, Live, Sink, SupportsSlots, Tool

if TYPE_CHECKING:
    from keephold.tools.template import Template


def name_problem(name: str) -> str | None:
    """Say why a tool's name is invalid: providers refuse a whole request for one name they do not accept."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return None
    return "a tool's name has 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`, or providers refuse it; " + (
        f"it has {len(name)} characters" if len(name) > 64 else "choose another"
    )


class Tools(Protocol):
    """The tools that a conversation is offered."""

    def __iter__(self) -> Iterator[Tool]:
        """Iterate over those that are listed."""

    def find(self, name: str) -> Tool:
        """Return the tool of that name. Raises the error for an unknown tool, also if the tool is only not offered."""

    def check(self, tool: Tool, action: Action | None) -> ArgumentCheck: ...


_ALWAYS = frozenset(("await", "read_output"))
"""Built-ins that may be called even where no tool is stateful and they are not listed: a one-shot call that is parked
becomes a handle, and the output of any call may be cut. They reach handles of their conversation only."""


def _may_be_called(tool: Tool) -> bool:
    """Whether a tool is offered, or was: the tool of an MCP server that is away says so itself (M6)."""
    return tool.offered or tool.name in _ALWAYS or tool.source == "mcp"


def has(tools: Tools, name: str) -> bool:
    """Whether the tool of that name may be called."""
    try:
        tools.find(name)
    except ToolError:
        return False
    return True


class Toolbox:
    """An ordered set of tools with unique names."""

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        max_running: int | None = None,
        actions: Presentation | None = None,
        base: "Toolbox | None" = None,
    ) -> None:
        """`base`: a toolbox whose tools are there, too, and that is asked for resources and slots."""
        self._base = base
        self.finders: list[Callable[[str], Toolbox | None]] = []
        """Return the toolbox of a conversation that has tools of its own (X6)."""
        self._slots = {} if max_running is None else {"runtime": max_running}
        self._tools: dict[str, Tool] = {}
        self._checks: dict[tuple[str, Action | None], ArgumentCheck] = {}
        self._resources: dict[str, tuple[Template, ...]] = {}
        self.actions = actions
        """How stateful tools are shown to models; None: as usual in a dialect (G5)."""
        self.unlisted: tuple[str, ...] = ()
        """MCP servers that have not listed their tools yet."""
        for tool in tools:
            self._add(tool)

    def _add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ConfigError([f"two tools are named `{tool.name}`; give one of them another name"])
        wrong_name = name_problem(tool.name)
        if tool.name in HANDLE_TOOLS:
            wrong_name = f"names that begin with `{PREFIX}` are those of keephold's own tools; choose another"
        if wrong_name:
            raise ConfigError([f"tool `{tool.name[:100]}`: {wrong_name}"])
        check_parameters(tool.name, tool.parameters, tool.actions, tool.action_parameters)
        self._tools[tool.name] = tool
        if tool.resources:
            from keephold.tools.template import Template  # Jinja is slow to import

            where = f"resources of tool `{tool.name}`"
            self._resources[tool.name] = tuple(Template(text, where) for text in tool.resources)

    def of(self, conversation: str) -> "Toolbox":
        """Return the toolbox of a conversation: one with tools that only this conversation has, else this one."""
        found = (find(conversation) for find in self.finders)
        return next((toolbox for toolbox in found if toolbox is not None), self)

    def become(self, other: "Toolbox") -> None:
        """Adopt the tools of another toolbox, and keep those of MCP servers."""
        remote = self.remote()
        self._slots, self._tools, self.actions = other._slots, dict(other._tools), other.actions
        self._checks, self._resources = {}, dict(other._resources)
        for tool in remote:
            if tool.name not in self._tools:
                self._add(tool)

    def offer(self, *names: str) -> None:
        """Offer these tools to models from now on."""
        for name in names:
            if name in self._tools:
                self._tools[name] = replace(self._tools[name], offered=True)

    def remote(self) -> list[Tool]:
        """The tools of MCP servers, including those that are gone."""
        return [tool for tool in self._tools.values() if tool.source == "mcp"]

    def replace_remote(self, tools: Iterable[Tool]) -> None:
        """Replace the tools of MCP servers (M6), which come and go while the runtime runs."""
        for name in [tool.name for tool in self.remote()]:
            del self._tools[name]
            self._resources.pop(name, None)
            for action in (None, *ACTIONS):
                self._checks.pop((name, action), None)
        for tool in tools:
            self._add(tool)

    def held(self, name: str) -> bool:
        """Whether a tool that is not one of `remote` has the name."""
        own = self._tools.get(name)
        if own is not None and own.source != "mcp":
            return True
        return self._base is not None and self._base.get(name) is not None

    def __iter__(self) -> Iterator[Tool]:
        """The tools that are offered to a model."""
        return (tool for tool in self.every() if tool.offered)

    def listed(self, dialect: Dialect) -> list[dict[str, Any]]:
        """Return the offered tools as a model of that dialect sees them."""
        return tool_list(self, dialect, self.actions)

    def every(self) -> Iterator[Tool]:
        """Iterate over all tools, also those that nobody is offered."""
        inherited = () if self._base is None else self._base.every()
        return chain((tool for tool in inherited if tool.name not in self._tools), self._tools.values())

    def find(self, name: str) -> Tool:
        """Return the tool of that name, if models are offered it."""
        return self.one_of(self, name, _may_be_called)

    def one_of(self, listed: Iterable[Tool], name: str, may_use: Callable[[Tool], bool]) -> Tool:
        """Return the tool of that name, or raise an error that names only tools that are listed (K10)."""
        tool = self.get(name)
        if tool is not None and may_use(tool):
            return tool
        tools = list(listed)
        offered = [*(each.name for each in tools), *(verbs_for(tools) if self.actions != "per_tool" else ())]
        near = nearest(name, offered)
        known = ", ".join(f"`{each}`" for each in offered) or "none"
        right = f"did you mean `{near[0]}`?" if near else f"known tools: {known}"
        if unlisted := (*(() if self._base is None else self._base.unlisted), *self.unlisted):
            servers = ", ".join(f"`{each}`" for each in unlisted)
            right += f"; MCP servers that are not connected may have it, and the log says why: {servers}"
        what = f"unknown tool `{name[:100]}`" if name else "the call names no tool"
        raise ToolError(f"{what}; {right}", code="unknown_tool")

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None. The tools for handles are there if a tool is stateful (K10)."""
        tool = self._tools.get(name)
        if tool is None and name in HANDLE_TOOLS and any(each.actions for each in self.every()):
            return HANDLE_TOOLS[name]
        return self._base.get(name) if tool is None and self._base is not None else tool

    def known(self, name: str) -> Tool:
        """Return the tool of a stored handle: ours, or a substitute that cannot be started."""
        if name not in self._tools and self._base is not None:
            return self._base.known(name)
        return self._tools.get(name) or Tool(name=name, runtime=_Absent(), actions=ACTIONS)

    def check(self, tool: Tool, action: Action | None) -> ArgumentCheck:
        """Return the check of the arguments of one of the tool's actions, or of a one-shot call."""
        key = (tool.name, action)
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = check_for(_in_own_words(tool), action)
        return check

    def has_names(self, tool: Tool) -> bool:
        """Whether `names` may return any for a call of the tool."""
        if tool.resources or tool.max_running is not None or (self._slots and tool.source != "builtin"):
            return True
        return hasattr(tool.runtime, "slots_of")

    def names(self, invocation: Invocation) -> dict[str, int]:
        """Return the names of the resources and slots that a call needs before it may run (B5, W11)."""
        tool = invocation.tool
        names: dict[str, int] = {}
        for resource in self._resources.get(tool.name, ()):
            from keephold.tools.template import values_of

            options, root = getattr(tool.runtime, "options", {}), getattr(tool.runtime, "root", "")  # of a command
            cwd = getattr(tool.runtime, "directory", "") or root
            names[RESOURCE + resource.render(values_of(invocation, options=options, root=root, cwd=cwd))] = 1
        if tool.max_running is not None:
            names[f"tool:{tool.name}"] = tool.max_running
        # The steps of a workflow and the calls of an agent queue themselves; it would block them forever.
        if tool.source != "builtin" and tool.kind != "workflow" and getattr(tool.runtime, "takes_slot", True):
            names.update(self._slots)
        if hasattr(tool.runtime, "slots_of"):
            names.update(cast(SupportsSlots, tool.runtime).slots_of(invocation.arguments))
        return names


def nearest(name: str, offered: list[str]) -> list[str]:
    """Return the tool that was meant, if any. Models prefix names: `functions.measure`, `default_api__measure`."""
    name = name[-200:]
    ends = [each for each in offered if re.search(rf"[^A-Za-z0-9]{re.escape(each)}$", name, re.IGNORECASE)]
    parts = [each for each in re.split("[^A-Za-z0-9_-]", name) if each in offered]
    return sorted(ends, key=len)[-1:] or parts[-1:] or difflib.get_close_matches(name[:100], offered, 1)


class _Absent:
    """A runtime for tools that this process does not have."""

    absent = True
    """Nothing is known of the tool's settings."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise ToolError(f"this runtime has no tool `{invocation.tool.name}`", code="unknown_tool")


def _in_own_words(tool: Tool) -> Tool:
    """A built-in that needs one of several arguments reports the error itself, in the words of its rule (A4). It takes
    fractions of a second, although models are shown an integer (A1)."""
    if tool.source != "builtin" or "anyOf" not in tool.parameters:
        return tool
    own = {key: value for key, value in tool.parameters.items() if key != "anyOf"}
    seconds = {name: {**own["properties"][name], "type": "number", **bound} for name, bound in tool.bounds.items()}
    return replace(tool, parameters={**own, "properties": {**own["properties"], **seconds}})


class Selection:
    """The tools of a toolbox whose names match one of the patterns and that `allowed` accepts."""

    def __init__(
        self, toolbox: Toolbox, patterns: Sequence[str] = ("*",), allowed: Callable[[Tool], bool] = lambda _: True
    ) -> None:
        self._toolbox = toolbox
        self._patterns = tuple(patterns)
        self._allowed = allowed

    def __iter__(self) -> Iterator[Tool]:
        """The tools that are offered to a model."""
        return filter(self.has, self._toolbox)

    def listed(self, dialect: Dialect) -> list[dict[str, Any]]:
        return tool_list(self, dialect, self._toolbox.actions)

    def has(self, tool: Tool) -> bool:
        """Whether the tool may be used."""
        if tool.name in HANDLE_TOOLS:
            return any(each.actions for each in self)
        fits = tool.source == "builtin" or any(fnmatchcase(tool.name, pattern) for pattern in self._patterns)
        return fits and self._allowed(tool)

    def find(self, name: str) -> Tool:
        """Return the tool of that name, if it is offered and may be used."""
        return self._toolbox.one_of(self, name, lambda tool: _may_be_called(tool) and self.has(tool))

    def check(self, tool: Tool, action: Action | None) -> ArgumentCheck:
        return self._toolbox.check(tool, action)


_AGENTS, _WORKFLOWS = "execute_agent_async", "execute_workflow_async"
_SERVED = frozenset(
    (
        *_ALWAYS,
        "sleep",
        "create_wait_handle",
        "wait_for",
        "wait_for_multiple",
        "complete_wait_handle",
        "list_wait_handles",
        "cancel_wait_handle",
        _AGENTS,
        _WORKFLOWS,
    )
)
"""Built-ins for clients that chose none. Each costs tokens in every request, so the others are there on request."""


def is_builtin(tool: Tool) -> bool:
    return tool.source == "builtin" or tool.launching is not None


class ServedTools:
    """The tools that clients of the MCP server may call (M1): those that models are offered, and chosen built-ins."""

    def __init__(self, toolbox: Toolbox, has_agents: Callable[[], bool], builtins: Iterable[str] | None = None) -> None:
        """`builtins`: exactly these, by name; `*` is all. None: those that can be used here."""
        self._toolbox = toolbox
        self._has_agents = has_agents
        self._chosen = None if builtins is None else frozenset(builtins)
        self.check = toolbox.check

    def __iter__(self) -> Iterator[Tool]:
        return filter(self._lists, self._toolbox.every())

    def find(self, name: str) -> Tool:
        return self._toolbox.one_of(
            self, name, lambda tool: tool.name in _ALWAYS or tool.name in HANDLE_TOOLS or self._lists(tool)
        )

    def _lists(self, tool: Tool) -> bool:
        if not is_builtin(tool):
            return tool.offered
        if tool.name == _AGENTS and not self._has_agents():
            return False
        if self._chosen is not None:
            return tool.name in self._chosen or "*" in self._chosen
        if tool.name == _WORKFLOWS and not tool.offered:  # without tools and agents its steps could do nothing
            return self._has_agents() or any(each.offered and not is_builtin(each) for each in self._toolbox.every())
        return tool.offered or tool.name in _SERVED


class One:
    """A tool that only keephold itself calls, and no other."""

    def __init__(self, toolbox: Toolbox, name: str) -> None:
        self._toolbox = toolbox
        self._name = name
        self.check = toolbox.check

    def __iter__(self) -> Iterator[Tool]:
        return iter(())

    def find(self, name: str) -> Tool:
        return self._toolbox.one_of(self, name, lambda tool: tool.name == self._name)


class Offers:
    """Which tools each conversation is offered (K10)."""

    def __init__(self, toolbox: Toolbox, of_agent: Callable[[str], Awaitable[Tools | None]]) -> None:
        """`of_agent` returns the tools of the agent that a conversation belongs to, by its name and the store."""
        self._toolbox = toolbox
        self._of_agent = of_agent
        self._limited: dict[str, Tools] = {}
        self.finders: list[Callable[[str], Tools | None]] = []
        """Return the tools of a conversation that they know."""

    def limit(self, conversation: str, tools: Tools) -> None:
        """Offer only these tools in a conversation, from now on."""
        self._limited[conversation] = tools

    def forget(self, conversation: str) -> None:
        """Forget the limit: no turn is open, and nothing runs in the conversation."""
        self._limited.pop(conversation, None)

    def now(self, conversation: str) -> Tools:
        """Return the tools of a conversation that is in use here."""
        found = (self._limited.get(conversation), *(find(conversation) for find in self.finders))
        return next((tools for tools in found if tools is not None), self._toolbox.of(conversation))

    async def of(self, conversation: str) -> Tools:
        """Return the tools of any conversation. After a crash, an agent's calls may run again before the agent does."""
        if conversation not in self._limited:
            of_agent = await self._of_agent(conversation)
            if of_agent is not None:
                return of_agent
        return self.now(conversation)
