"""What a workflow needs of the world around it, and how it ends when it fails."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from keephold.errors import ToolError


class Surroundings(Protocol):
    """The conversation that a workflow runs in."""

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any:
        """Call a tool one-shot; its result. Raises `ToolError`.

        `entry` names the call, once in a workflow. After a crash it is asked for by that name again, and may be under
        way, or over, from before.
        """

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        """Run an agent, as a call of its own like a tool's; its result. Raises `ToolError`."""

    async def wait(self, ids: Sequence[str], mode: Literal["all", "any", "race"], timeout: float | None) -> Any:
        """Wait for handles; what they ended with. Raises `ToolError`."""

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """How far it is."""


class WorkflowFailed(ToolError):
    """The workflow failed, or its time was up. `partial` is its result so far, with the status that says which."""

    def __init__(self, cause: ToolError, partial: Mapping[str, Any]) -> None:
        super().__init__(cause.message, code=cause.code, transient=cause.transient, trace=cause.trace)
        self.partial = dict(partial)
