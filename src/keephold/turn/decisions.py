"""Read a decision that comes as JSON: from the dashboard, the API, or another process (P6)."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import msgspec

from keephold.durable.keys import unmasked
from keephold.errors import KeepholdError
from keephold.handles.question import answer_fits, problem_with
from keephold.turn.prompts import (
    Answer,
    Approved,
    AskQuestion,
    Decision,
    DeliverResult,
    Denied,
    Dismissed,
    Edited,
    Prompt,
    RunTool,
)
from keephold.turn.send_input import read_answer

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
