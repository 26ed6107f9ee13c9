"""What the wait tools are given by the runtime they are tools of."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from keephold.handles.handle import Handle
from keephold.handles.state import EndedBy, Failure
from keephold.tools.waiting.agents import Agents
from keephold.tools.waiting.measure import Measure
from keephold.tools.waiting.tool import Show
from keephold.tools.waiting.view import Text


class End(Protocol):
    """Ends a handle, in whichever process it runs."""

    def __call__(self, handle: Handle, error: Failure, ended_by: EndedBy) -> Awaitable[None]:
        """Returns when it has stopped. Raises `ToolError` if it cannot be ended."""


class RunTool(Protocol):
    """Calls a tool one-shot in a conversation."""

    def __call__(
        self, conversation: str, name: str, arguments: dict[str, Any], *, label: str, again: bool
    ) -> Awaitable[Any]:
        """What it returned; raises `ToolError`. With `again` a call of that label may be there from before, by a
        process that died: then it is gone on with, or its outcome taken, and the tool is not called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitToolHost:
    """The runtime, as far as the wait tools see it."""

    show: Show
    text: Text
    end: End
    run: RunTool
    has_tool: Callable[[str], bool]
    agents: Agents
    measure: Measure
    detached: str = "deny"
    """What happens where nobody is there to be asked (P2)."""
    private_addresses: bool
    """Whether workflows may reach addresses that are not public."""
