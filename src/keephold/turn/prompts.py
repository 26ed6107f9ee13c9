"""What a person is asked, and what they may say (Q, P): the words between keephold and whoever shows a prompt.

`Runtime(prompter=…)` takes a coroutine function that gets one prompt and returns what the person said. Prompts are
asked one at a time, first come first served (Q5). A prompt that nobody needs an answer to any more is withdrawn by
cancelling the coroutine.

What a person said for the rest of the turn (Q5, P5). Lost with the process, on purpose: it was said to this turn.
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
    """The handle's id, of a call that names one."""
    arguments: dict[str, Any]
    conversation: str
    edit: bool = False
    """The configuration wants the arguments looked at in an editor (`run = "edit"`)."""
    digest: str = ""
    """Of tool, action, id and arguments: an approval is for just these (P5)."""
    problem: str | None = None
    """Why what was said to this prompt before could not be taken: edited arguments that do not fit, say."""
    uid: str | None = None
    """The handle's."""


class DeliverResult(msgspec.Struct, frozen=True, kw_only=True, tag="deliver_result"):
    """May the assistant see this result? Answer with `Approved`, `Denied` or an `Edited` text."""

    tool: str
    id: str | None
    result: str
    is_error: bool
    conversation: str
    edit: bool = False
    uid: str | None = None
    """The handle's."""


class AskQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="ask_question"):
    """A question of a tool. Answer with `Said` or `Cancelled`."""

    tool: str
    id: str | None
    question: Question
    conversation: str
    may_remember: bool = False
    """Whether the answer may be given for the rest of the turn (Q5)."""
    problem: str | None = None
    uid: str | None = None
    """The handle's."""


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
    """The answer to a question. `remember`: the same from now on until the turn ends."""

    value: Any
    remember: bool = False


class Dismissed(msgspec.Struct, frozen=True, tag="cancelled"):
    """The person does not want to be asked this; or, with a `reason`, the prompt could not be shown."""

    reason: str | None = None


Decision = Approved | Denied | Edited | Answer | Dismissed
Prompter = Callable[[Prompt], Awaitable[Decision]]
"""Shows a prompt to a person and returns what they said. Cancelled when the prompt is withdrawn."""


_NOTHING = object()


class TurnDecisions:
    """By conversation, as a conversation has one turn at a time."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[tuple[str, str], Any]] = {}
        self._runs: dict[str, dict[str, bool]] = {}

    def answer(self, conversation: str, tool: str, question: str) -> tuple[bool, Any]:
        """Whether there is an answer to this question of this tool, and which."""
        found = self._answers.get(conversation, {}).get((tool, question), _NOTHING)
        return found is not _NOTHING, found

    def answered(self, conversation: str, tool: str, question: str, answer: Any) -> None:
        self._answers.setdefault(conversation, {})[tool, question] = answer

    def may_run(self, conversation: str, tool: str) -> bool | None:
        """Whether calls of this tool may run; None: nobody has said."""
        return self._runs.get(conversation, {}).get(tool)

    def decided(self, conversation: str, tool: str, may_run: bool) -> None:
        self._runs.setdefault(conversation, {})[tool] = may_run

    def forget(self, conversation: str) -> None:
        """The turn is over."""
        self._answers.pop(conversation, None)
        self._runs.pop(conversation, None)
