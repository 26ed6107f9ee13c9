"""What the wait tools are given by the runtime they are tools of."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.handles.handle import Handle
from holdfast.handles.state import EndedBy, Error
from holdfast.tools.waiting.agents import Agents
from holdfast.tools.waiting.measure import Measure
from holdfast.tools.waiting.tool import Show
from holdfast.tools.waiting.view import Text


class End(Protocol):
    """Ends a handle, in whichever process it runs."""

    def __call__(self, handle: Handle, error: Error, ended_by: EndedBy) -> Awaitable[None]:
        """Returns when it has stopped. Raises `ToolError` if it cannot be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The runtime, as far as the wait tools see it."""

    show: Show
    text: Text
    end: End
    run: Callable[[str, str, dict[str, Any]], Awaitable[Any]]
    """Calls a tool one-shot in a conversation: its name and arguments; what it returned. Raises `ToolError`."""
    has_tool: Callable[[str], bool]
    agents: Agents
    measure: Measure
