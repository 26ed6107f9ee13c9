"""`ask_user`: the model asks the user (Q8). No model ever answers."""

from typing import Any, Literal

from keephold.errors import ToolError
from keephold.handles.question import Question, answer_fits, expected
from keephold.tools.base import QuestionPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.function import tool

QUESTION = "answer"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 1, "description": "The question, in one sentence."},
        "context": {
            "type": "string",
            "description": "Facts that the person needs to answer. Default: none.",
        },
        "answer_type": {
            "type": "string",
            "enum": ["text", "boolean", "select"],
            "description": "`text` (default), `boolean` (yes or no), or `select` (one of `options`).",
        },
        "options": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "The choices; required for `select`, and only there.",
        },
        "default": {
            "type": ["string", "boolean"],
            "description": "The answer that Enter gives, of the `answer_type`. Default: none.",
        },
    },
    "required": ["question"],
}


def ask_user_tool() -> Tool:
    """Make the tool."""

    @tool(
        description="Ask the person you work for a question, and wait for the answer. Use it if only they can decide "
        "or know. Do not use it to get permission for a call: they are asked without you where that is needed. Returns "
        "their answer.",
        parameters=PARAMETERS,
        questions={QUESTION: QuestionPolicy(exclusive=True)},
    )
    async def ask_user(
        call: Call,
        question: str,
        context: str | None = None,
        answer_type: Literal["text", "boolean", "select"] | None = None,
        options: list[str] | None = None,
        default: str | bool | None = None,
    ) -> Any:
        return await call.ask(_question(question, context, answer_type, options, default))

    return ask_user


def _question(
    text: str, context: str | None, kind: str | None, options: list[str] | None, default: str | bool | None
) -> Question:
    answer_type: Any = "Text"
    if kind == "select" or (kind is None and options):
        if not options:
            raise ToolError('`answer_type` "select" needs `options`', code="invalid_arguments")
        answer_type = {"Select": {"options": options}}
    elif options:
        raise ToolError(f'`options` go with `answer_type` "select", not "{kind}"', code="invalid_arguments")
    elif kind == "boolean":
        answer_type = "Boolean"
    asked = Question(id=QUESTION, text=text, answer_type=answer_type, pre_amble=context, default=default)
    if default is not None and not answer_fits(asked, default):
        raise ToolError(f"`default` must be {expected(asked)}", code="invalid_arguments")
    return asked
