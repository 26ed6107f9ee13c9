"""The prompts that keephold sends to a prompter, and the decisions that it returns (Q, P).

`Runtime(prompter=…)` takes a coroutine function that gets one prompt and returns the user's decision. Prompts are shown
one at a time, in the order they come (Q5). A prompt whose answer is no longer needed is withdrawn by cancelling the
coroutine.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from keephold.handles.question import Question


class RunTool(msgspec.Struct, frozen=True, kw_only=True, tag="run_tool"):
    """May this call run? Answer with `Approved`, `Denied` or `Edited` arguments."""

    tool: str
    action: str | None
    """None: a one-shot call."""
    id: str | None
    """The id of the handle that the call names."""
    arguments: dict[str, Any]
    conversation: str
    edit: bool = False
    """The configuration wants the arguments edited (`run = "edit"`)."""
    digest: str = ""
    """The digest of tool, action, id and arguments: an approval is for exactly these."""
    problem: str | None = None
    """Why the previous decision was invalid, for example edited arguments that do not fit."""
    uid: str | None = None
    """The uid of the handle."""


class DeliverResult(msgspec.Struct, frozen=True, kw_only=True, tag="deliver_result"):
    """May the model see this result? Answer with `Approved`, `Denied` or an `Edited` text."""

    tool: str
    id: str | None
    result: str
    is_error: bool
    conversation: str
    edit: bool = False
    uid: str | None = None
    """The uid of the handle."""


class AskQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="ask_question"):
    """A question of a tool. Return an `Answer` or `Dismissed`."""

    tool: str
    id: str | None
    question: Question
    conversation: str
    may_remember: bool = False
    """Whether the answer may be remembered until the turn ends."""
    problem: str | None = None
    uid: str | None = None
    """The uid of the handle."""


Prompt = RunTool | DeliverResult | AskQuestion


class Approved(msgspec.Struct, frozen=True, tag="approved"):
    """Yes. `remember`: for this tool until the turn ends."""

    remember: bool = False


class Denied(msgspec.Struct, frozen=True, tag="denied"):
    """No. `remember`: for this tool until the turn ends."""

    reason: str | None = None
    remember: bool = False


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    """Yes, but with this instead: arguments of a call, or the text of a result."""

    value: Any


class Answer(msgspec.Struct, frozen=True, tag="said"):
    """The answer to a question. `remember`: give the same answer until the turn ends."""

    value: Any
    remember: bool = False


class Dismissed(msgspec.Struct, frozen=True, tag="cancelled"):
    """The user dismissed the prompt; or, with a `reason`, the prompt could not be shown."""

    reason: str | None = None


Decision = Approved | Denied | Edited | Answer | Dismissed
Prompter = Callable[[Prompt], Awaitable[Decision]]
"""Shows a prompt to the user and returns their decision. Cancelled when the prompt is withdrawn."""


_NOTHING = object()


class TurnDecisions:
    """The decisions that the user wants remembered until the turn ends (Q5, P5), by conversation.

    They are lost with the process, on purpose: they were made for this turn."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[tuple[str, str], Any]] = {}
        self._runs: dict[str, dict[str, bool]] = {}

    def answer(self, conversation: str, tool: str, question: str) -> tuple[bool, Any]:
        """Return whether an answer to this question of this tool is remembered, and the answer."""
        found = self._answers.get(conversation, {}).get((tool, question), _NOTHING)
        return found is not _NOTHING, found

    def answered(self, conversation: str, tool: str, question: str, answer: Any) -> None:
        self._answers.setdefault(conversation, {})[tool, question] = answer

    def may_run(self, conversation: str, tool: str) -> bool | None:
        """Return whether calls of this tool may run; None: undecided."""
        return self._runs.get(conversation, {}).get(tool)

    def decided(self, conversation: str, tool: str, may_run: bool) -> None:
        self._runs.setdefault(conversation, {})[tool] = may_run

    def forget(self, conversation: str) -> None:
        """Forget the decisions of a turn that has ended."""
        self._answers.pop(conversation, None)
        self._runs.pop(conversation, None)
