"""One tool call that a client knows: its question, and its end in words and as data."""

import asyncio
from typing import Any

import msgspec

from keephold.acp.agent.describing import CallDescription
from keephold.acp.agent.updates import fenced
from keephold.handles.form import fields_of, label_of
from keephold.handles.handle import Handle
from keephold.handles.question import Question, form_of, select_options
from keephold.handles.state import Failure, Ok, PrintedOutput, Reply, Stopped, Waiting
from keephold.turn.prompts import AskQuestion, DeliverResult, Prompt, RunTool
from keephold.turn.replies import Replies
from keephold.turn.tool_call import ToolCall


class ShownCall:
    """One tool call that the client knows."""

    __slots__ = (
        "action", "asked", "conversation", "diffs", "due", "handle", "handle_id", "id", "kind", "label", "note",
        "question", "renamed", "sent", "status", "terminal", "title", "tool",
    )  # fmt: skip

    def __init__(self, id: str, call: ToolCall, described: CallDescription, conversation: str) -> None:
        self.id = id
        self.label, self.tool = call.id, call.name
        self.title, self.kind, self.action, self.handle_id, _ = described
        self.conversation = conversation
        self.handle: Handle | None = None
        self.status = "pending"
        self.asked = False
        """The user was asked whether it may run."""
        self.renamed = False
        """Its title at the client is replaced by the open prompt's."""
        self.question: Question | None = None
        self.note = ""
        """How to answer its question, if the client cannot ask it."""
        self.diffs: list[dict[str, Any]] = []
        self.terminal: str | None = None
        """The client's terminal that shows its output; empty while it is being made."""
        self.sent = float("-inf")
        self.due: asyncio.TimerHandle | None = None
        """The timer for its next output."""

    @property
    def over(self) -> bool:
        return self.status in ("completed", "failed")


def call_id(turn: str, label: str, count: int) -> str:
    """Return the client's id for a call: the turn's first, second … call of that label."""
    return f"{turn}.{label}" if count == 1 else f"{turn}.{label}.{count}"


def has_made(shown: ShownCall, handle: Handle) -> bool:
    """Return whether this call of a batch made the handle. Equal calls match in order."""
    if shown.handle is not None or shown.over or (shown.label, shown.tool) != (handle.call_id, handle.tool.name):
        return False
    return shown.action is None or (shown.action == "spawn" and shown.handle_id == handle.id)


def is_about(shown: ShownCall, prompt: Prompt) -> bool:
    """Return whether a prompt is about this call. Equal calls match in order."""
    if shown.over or shown.tool != prompt.tool or shown.conversation != prompt.conversation:
        return False
    if isinstance(prompt, RunTool):
        same = shown.handle_id == prompt.id if prompt.id is not None else shown.action is None
        return same and shown.action == prompt.action and shown.asked == (prompt.problem is not None)
    handle = shown.handle
    if (
        handle is None
        or (prompt.id is not None and handle.id != prompt.id)
        or handle.stateful != (prompt.id is not None)
    ):
        return False
    if isinstance(prompt, AskQuestion):
        return isinstance(handle.state, Waiting) and handle.state.question == prompt.question
    assert isinstance(prompt, DeliverResult)
    return handle.withheld


def agent_name(conversation: str) -> str:
    return conversation.rpartition("/")[2].rpartition("@")[0] or "agent"


def in_words(question: Question) -> str:
    options, form = select_options(question), form_of(question)
    parts = [question.pre_amble, f"**{question.text}**"]
    if options is not None:
        parts.append("\n".join(f"- {option}" for option in options))
    if form is not None:
        labels = (label_of(name, field, name in form["required"]) for name, field in fields_of(form))
        parts.append("\n".join(f"- {label}" for label in labels))
    return "\n\n".join(part for part in parts if part)


End = tuple[bool, str, Any]
"""Whether it failed, the words, and the data (`rawOutput`)."""


def ended(replies: Replies, handle: Handle, state: Stopped, most: int, *, in_terminal: bool = False) -> End:
    """Return the end of a handle. An aborted one has failed, because ACP has no other status; the words say why. With
    `in_terminal`, its output is shown elsewhere and not repeated."""
    never_ran = state.started is None
    if not handle.stateful:
        reply = replies.outcome(handle)
        failed = reply.is_error or never_ran or isinstance(state.outcome, Failure)
        is_output = bool(reply.model) and not never_ran and handle.tool.source in ("local", "terminal")
        if in_terminal and isinstance(state.outcome, PrintedOutput):
            return failed, "", {"exit_code": state.exit_code}
        return failed, fenced(reply.model) if is_output else reply.model, response_output(reply.model)
    printed = "" if in_terminal else replies.tail(handle, most)
    shown = fenced(printed) if printed else ""
    match state.outcome:
        case Failure(message, code):
            return True, "\n\n".join(part for part in (message, shown) if part), {"error": message, "code": code}
        case PrintedOutput():
            return never_ran, shown, {"exit_code": state.exit_code}
        case Ok(value):
            said = replies.printed(handle)
            return never_ran, "\n\n".join(part for part in (shown, said) if part), value
        case Reply(_, model, is_error):
            return is_error or never_ran, model, response_output(model)


def response_output(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
    return text or None
