"""What was recorded of a scene, and what belongs to which turn in it."""

from dataclasses import dataclass, field
from typing import Any

from keephold.acp.check.probe import Entry, is_answer
from keephold.acp.extension import TURN_COMPLETE, is_background

TURN_KINDS = frozenset(
    ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
)
"""Updates that are part of a turn. Others tell of the session (its title, its commands) and may come at any time."""


@dataclass
class Recording:
    """Everything that was said, and the prompts that were sent. `problem`: why the scene could not be played out."""

    log: list[Entry]
    capabilities: dict[str, Any]
    info: dict[str, Any] = field(default_factory=dict)
    prompts: list[Entry] = field(default_factory=list)
    problem: str | None = None

    @property
    def signals_offered(self) -> bool:
        """Whether the agent offers `turn_complete`, in either form."""
        return TURN_COMPLETE in table(self.capabilities, "_meta") or "turnComplete" in self.session_capabilities

    @property
    def session_capabilities(self) -> dict[str, Any]:
        """Which of `list`, `resume`, `close` … the agent offers."""
        return table(self.capabilities, "sessionCapabilities")

    def response(self, prompt: Entry) -> Entry | None:
        """The answer to a prompt."""
        id = prompt.message["id"]
        return next((entry for entry in self.log[prompt.number + 1 :] if is_answer(entry, id)), None)

    def updates(self, prompt: Entry) -> list[Entry]:
        """The updates of the prompt's turn: of its session, up to the next prompt there."""
        return [entry for entry in self._after(prompt) if kind(entry) in TURN_KINDS and not is_background(entry.params)]

    def signals(self, prompt: Entry) -> list[Entry]:
        """Every `turn_complete` of the prompt's session up to the next prompt there, whatever id it names."""
        return [entry for entry in self._after(prompt) if is_signal(entry)]

    def _after(self, prompt: Entry) -> list[Entry]:
        session = prompt.params["sessionId"]
        later = [other.number for other in self.prompts if other.params["sessionId"] == session]
        end = min((number for number in later if number > prompt.number), default=len(self.log))
        between = self.log[prompt.number + 1 : end]
        return [entry for entry in between if not entry.ours and entry.params.get("sessionId") == session]


def kind(entry: Entry) -> str | None:
    """Which update it is; None if it is none."""
    return table(entry.params, "update").get("sessionUpdate") if entry.method == "session/update" else None


def is_signal(entry: Entry) -> bool:
    """Whether it is a `turn_complete`, in either form."""
    return entry.method == "_keephold/turn_complete" or kind(entry) == "turn_complete"


def signal_fields(entry: Entry) -> tuple[Any, Any]:
    """`promptRequestId` and `stopReason` of a `turn_complete`."""
    fields = entry.params if entry.method == "_keephold/turn_complete" else table(entry.params, "update")
    return fields.get("promptRequestId"), fields.get("stopReason")


def stop_reason(response: Entry) -> Any:
    """The stop reason of a prompt's answer, `error` for an error."""
    if "error" in response.message:
        return "error"
    return table(response.message, "result").get("stopReason")


def table(value: dict[str, Any], key: str) -> dict[str, Any]:
    """A value that is an object; empty if it is not."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}
