"""What of a spawned handle is news, and in which words (N1, N2)."""

from typing import TYPE_CHECKING

from holdfast.handles.state import Error, State, Stopped, Waiting
from holdfast.store.rows import Notice
from holdfast.store.terminal import clip, news

if TYPE_CHECKING:
    from holdfast.tools.base import Tool


def notice(id: str, tool: "Tool", state: State) -> Notice | None:
    """The news that a handle is in this state now, if its tool's settings want it told."""
    policy = tool.spawn.notifications
    if isinstance(state, Stopped):
        failed = isinstance(state.outcome, Error) and not state.deliberate
        if policy.on_failure if failed else policy.on_success:
            return Notice(*news(id, tool.name, state), policy.deliver)
    elif isinstance(state, Waiting) and policy.on_waiting:
        message = clip(f"`{id}` ({tool.name}) asks: {state.question.text}")
        return Notice("tool.waiting", "warning", message, policy.deliver)
    return None


def content_notice(id: str, tool: "Tool") -> Notice:
    """The news that it has printed more."""
    return Notice("tool.content", "info", f"`{id}` ({tool.name}) has new output.", tool.spawn.notifications.deliver)
