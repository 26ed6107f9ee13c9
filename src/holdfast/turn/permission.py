"""Permission (P1–P3): whether a call may run, and whether its result may be delivered.

Nobody is asked yet: a tool whose mode needs a person is decided by `detached`. Its `deny` names the setting that would
allow the call; `auto` leaves the decision to the assistant, who made it by calling.
"""

from typing import Literal

from holdfast.errors import ToolError
from holdfast.handles.handle import Handle
from holdfast.handles.state import Error, Ok, Outcome
from holdfast.tools.base import Action, RunMode, Tool

Detached = Literal["deny", "defaults", "auto"]

SKIPPED = "Tool skipped by user."
NOT_DELIVERED = "Result delivery skipped by configuration."


class Permission:
    """Decides by the tools' modes and the conversation's `detached`."""

    def __init__(self, detached: Detached) -> None:
        self._detached = detached

    def to_run(self, tool: Tool, action: Action | None) -> Outcome | None:
        """None: go ahead. Otherwise how the call ends without running."""
        mode = tool.run
        if action is not None:
            mode = tool.run_actions.get(action, tool.run if action == "spawn" else "unattended")
        if mode == "unattended" or (mode in ("ask", "edit") and self._detached == "auto"):
            return None
        if mode == "skip":
            return Ok(SKIPPED)
        setting = "run" if action is None or action not in tool.run_actions else f"run_actions.{action}"
        return _denied(tool, f'run (`{setting} = "{mode}"`)', setting)

    def to_deliver(self, handle: Handle, outcome: Outcome) -> Outcome:
        """The outcome as it may be seen (P1's result modes); acts once, before the end is visible."""
        mode: RunMode = handle.tool.result
        if mode == "unattended" or (mode in ("ask", "edit") and self._detached == "auto"):
            return outcome
        if mode == "skip":  # a failure stays one: a killed process is never shown as success (S3)
            return Error(NOT_DELIVERED, outcome.code) if isinstance(outcome, Error) else Ok(NOT_DELIVERED)
        return _denied(handle.tool, f'show its result (`result = "{mode}"`)', "result")


def _denied(tool: Tool, what: str, setting: str) -> Error:
    return Error(
        f"Tool `{tool.name}` needs permission to {what} and nobody is there to give it. "
        f'To allow it, set `{setting} = "unattended"` in [conversation.tools.{tool.name}], '
        'or `detached = "auto"` in [conversation].',
        "permission_denied",
    )


def require(outcome: Outcome | None) -> str | None:
    """For fetch, apply and abort: None to go on, the text of a skip, or the refusal as an error."""
    if isinstance(outcome, Error):
        raise ToolError(outcome.message, code=outcome.code)
    return str(outcome.value) if isinstance(outcome, Ok) else None
