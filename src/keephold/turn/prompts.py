"""The prompts that keephold sends to a prompter, and the decisions that it returns (Q, P).

`Runtime(prompter=…)` takes a coroutine function that gets one prompt and returns the user's decision. Prompts are shown
one at a time, in the order they come (Q5). A prompt whose answer is no longer needed is withdrawn by cancelling the
coroutine.

A decision may also come as JSON: from the dashboard, the API, or another process (P6).
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypedDict

import msgspec

from keephold.durable.keys import unmasked
from keephold.errors import KeepholdError
from keephold.handles.question import Question, answer_fits, problem_with, read_answer
from keephold.text import to_json

Until = Literal["turn", "revoked"]
"""How long a remembered decision lasts in its conversation: until the turn ends, or, without a turn, until it is
revoked or the process ends."""


def lasting(until: Until) -> str:
    """Return how long a remembered decision lasts, in the words that all prompts and lists use."""
    return "until the turn ends" if until == "turn" else "until you revoke it or its process ends"


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
    until: Literal["turn", "revoked"] = "turn"
    """How long `remember` lasts."""
    request: str = ""
    """The id by which `keephold allow` and the API decide this prompt."""


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
    digest: str = ""
    """The digest of tool, id and result: an approval is for exactly these."""
    request: str = ""
    """The id by which `keephold allow` and the API decide this prompt."""


class AskQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="ask_question"):
    """A question of a tool. Return an `Answer` or `Dismissed`."""

    tool: str
    id: str | None
    question: Question
    conversation: str
    may_remember: bool = False
    """Whether the answer may be remembered."""
    problem: str | None = None
    uid: str | None = None
    """The uid of the handle."""
    until: Literal["turn", "revoked"] = "turn"
    """How long `remember` lasts."""
    request: str = ""
    """The id by which the API decides this prompt."""


Prompt = RunTool | DeliverResult | AskQuestion


def begins(prompt: Prompt) -> str | None:
    """Return the uid of the handle that begins if the prompt is approved."""
    return prompt.uid if isinstance(prompt, RunTool) and prompt.action in (None, "spawn") else None


class Approved(msgspec.Struct, frozen=True, tag="approved"):
    """Yes. `remember`: for this tool in this conversation, as long as the prompt's `until` says."""

    remember: bool = False
    by: str | None = None
    """Who decided, for the record; None: the prompter's `who`, or `the user`."""


class Denied(msgspec.Struct, frozen=True, tag="denied"):
    """No. `remember`: for this tool in this conversation, as long as the prompt's `until` says."""

    reason: str | None = None
    remember: bool = False
    by: str | None = None


class Edited(msgspec.Struct, frozen=True, tag="edited"):
    """Yes, but with this instead: arguments of a call, or the text of a result."""

    value: Any
    by: str | None = None


class Answer(msgspec.Struct, frozen=True, tag="said"):
    """The answer to a question. `remember`: give the same answer as long as the prompt's `until` says."""

    value: Any
    remember: bool = False
    by: str | None = None


class Dismissed(msgspec.Struct, frozen=True, tag="cancelled"):
    """The user dismissed the prompt; or, with a `reason`, the prompt could not be shown."""

    reason: str | None = None


Decision = Approved | Denied | Edited | Answer | Dismissed
Prompter = Callable[[Prompt], Awaitable[Decision]]
"""Shows a prompt to the user and returns their decision. Cancelled when the prompt is withdrawn."""


class StandingPermission(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that holds for later calls, too."""

    id: str
    conversation: str
    tool: str
    question: str | None
    """The id of the question that it answers. None: it decides whether calls of the tool may run."""
    value: Any
    """The answer; of a permission, whether calls may run."""
    by: str
    """Who gave it: `the dashboard`."""
    at: float
    until: Until
    arguments: dict[str, Any] | None = None
    """The arguments of the call that the user saw when they gave it."""


def digest(tool: str, action: str | None, id: str | None, arguments: Mapping[str, Any]) -> str:
    """Identify the call that an approval is for (P5), from all that the user is shown of it."""
    return hashlib.sha256(to_json([tool, action, id, dict(sorted(arguments.items()))])).hexdigest()[:32]


LONGEST_DIALOG = 1 << 16
"""How many characters a client gets to show in a dialog. Nothing is cut, because the rest would be approved unseen."""


def too_long(text: str) -> str | None:
    """Return why a client is not asked to show this text; None if it is."""
    if len(text) <= LONGEST_DIALOG:
        return None
    return (
        f"the client was not asked to approve a text of {len(text):,} characters, because a dialog gets at most "
        f"{LONGEST_DIALOG:,}; run this where a person has a terminal or the dashboard"
    )


_WORDS: dict[type[Prompt], tuple[str, ...]] = {
    RunTool: ("approve", "deny", "edit", "cancel"),
    DeliverResult: ("approve", "deny", "edit", "cancel"),
    AskQuestion: ("answer", "cancel"),
}
"""The decisions that each kind of prompt takes."""


class Decided(TypedDict):
    """Whether a decision was `taken`, must be made `again`, or came too late."""

    status: Literal["taken", "again", "gone"]
    problem: str | None


TAKEN: Decided = {"status": "taken", "problem": None}
GONE: Decided = {
    "status": "gone",
    "problem": "nobody waits for this any more: it was decided, it ended, or its caller left",
}


def read_decision(prompt: Prompt, said: Mapping[str, Any], by: str | None = None) -> Decision:
    """Read a decision about the prompt. Raises `KeepholdError` if it is invalid, or was made about another call (P5).

    `by` is recorded as the one who decided."""
    digest, current = said.get("digest"), getattr(prompt, "digest", None)
    if digest is not None and digest != current:
        raise _wrong("this has changed since you saw it, so nothing is decided; look at it again")
    word, remember, reason = said.get("decision"), bool(said.get("remember")), said.get("reason")
    words = _WORDS[type(prompt)]
    if word not in words:
        raise _wrong(f"`decision` must be one of {', '.join(words)} here")
    match word:
        case "approve":
            return Approved(remember, by)
        case "deny":
            return Denied(reason if isinstance(reason, str) and reason.strip() else None, remember, by)
        case "edit":
            return Edited(_edited(prompt, said.get("value")), by)
        case "answer":
            assert isinstance(prompt, AskQuestion)
            return Answer(_answer(prompt, said.get("value")), remember, by)
        case _:
            return Dismissed()


def _edited(prompt: Prompt, value: Any) -> Any:
    if isinstance(prompt, DeliverResult):
        if not isinstance(value, str):
            raise _wrong("`value` must be the text that the model is to see")
        return unmasked(value, prompt.result)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _wrong(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _wrong("the arguments must be a JSON object")
    return unmasked(value, prompt.arguments) if isinstance(prompt, RunTool) else value


def _answer(prompt: AskQuestion, value: Any) -> Any:
    given = read_answer(prompt.question, value) if isinstance(value, str) else value
    if not answer_fits(prompt.question, given):
        raise _wrong(problem_with(prompt.question, given), code="bad_answer")
    return given


def _wrong(message: str, code: str = "invalid_arguments") -> KeepholdError:
    return KeepholdError(message, code=code)
