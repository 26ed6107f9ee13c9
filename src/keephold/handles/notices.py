"""What of a spawned handle is news (N1, N2)."""

from typing import TYPE_CHECKING

from keephold.handles.state import State, Stopped, Waiting
from keephold.store.endings import end_notice
from keephold.store.rows import Notice

if TYPE_CHECKING:
    from keephold.tools.base import Tool


def notice(tool: "Tool", state: State) -> Notice | None:
    """The news that a handle of the tool is in this state now, if the tool's settings want it told."""
    policy = tool.spawn.notifications
    if isinstance(state, Stopped):
        news = end_notice(state, policy.deliver)
        return news if (policy.on_failure if news.level == "error" else policy.on_success) else None
    if isinstance(state, Waiting) and policy.on_waiting:
        return Notice("tool.waiting", "warning", None, policy.deliver)
    return None
