"""Some of a runtime's tools: what one agent may use (G2).

Chosen by patterns of names (`*` stands for anything), looked up when asked, as the tools of MCP servers come and go.
What keephold adds itself (`await`, `read_output` …) is always there.
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from keephold.errors import ToolError
from keephold.schema.arguments import ArgumentCheck
from keephold.tools.base import Action, Tool
from keephold.tools.toolbox import Toolbox


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
