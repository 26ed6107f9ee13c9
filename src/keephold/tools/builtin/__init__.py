"""The tools that come with keephold (B8). Each is a function tool like a user's own: `await` and `read_output` in files
of their own, `ask_user` and `describe_tools` here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from keephold.errors import ToolError
from keephold.handles.question import Question, answer_fits, expected
from keephold.handles.state import Reply
from keephold.handles.view import Waited
from keephold.tools.base import QuestionPolicy, Tool
from keephold.tools.builtin.await_ import await_tool
from keephold.tools.builtin.read_output import read_output_tool
from keephold.tools.call import Call
from keephold.tools.function import tool
from keephold.tools.waiting import LASTING
from keephold.tools.waiting import NAMES as WAITING

READS: Mapping[str, Any] = {"readOnlyHint": True, "openWorldHint": False}
RESERVED = ("await", "read_output", "describe_tools", "ask_user")
"""Names that no other tool may have. A tool with the name of a wait tool replaces that."""
NAMES = (*RESERVED, *WAITING)


def unknown_builtins(names: Iterable[str]) -> list[str]:
    """Return the names that no built-in has; `*` stands for all."""
    return [name for name in names if name not in NAMES and name != "*"]


def source_of(name: str) -> str | None:
    """Return `builtin` if that is a built-in which recovery leaves to its turn, for a process without the tools."""
    return "builtin" if name in NAMES and name not in LASTING else None


def builtin_tools(
    tools: Sequence[Tool],
    show: Callable[[Waited], Reply],
    waiting: Sequence[Tool] = (),
    *,
    now: Callable[[str], Iterable[Tool]],
    person: bool = False,
) -> list[Tool]:
    """Return the built-ins that go with `tools`, without those that have nothing to work on (A1, B8).

    `waiting` are the wait tools, configured; `now` returns the tools of a conversation; `person`: there is a user whom
    `ask_user` can ask (Q8). A one-shot call that is parked may become a handle (D10), so `await` is included also if no
    tool is stateful.
    """
    offered: list[Tool] = []
    makes_handles = any(tool.actions for tool in tools) or any(tool.offered for tool in waiting)
    offered.append(replace(await_tool(show), offered=makes_handles))
    offered.append(
        replace(read_output_tool(), names="id", unrecorded=True, hints=READS, offered=bool(tools) or makes_handles)
    )
    if any(tool.examples or tool.summary for tool in tools):
        described = describe_tools_tool(lambda name: [tool for tool in now(name) if tool.source != "builtin"])
        offered.append(replace(described, unrecorded=True, hints=READS))
    if person:
        offered.append(replace(ask_user_tool(), hints=READS))
    taken = {tool.name for tool in tools}
    return [replace(tool, source="builtin") for tool in offered] + [t for t in waiting if t.name not in taken]


_DESCRIBED = (
    "Get the full description and examples of tools, before you use one you are not sure about. The list of tools may "
    "show only their summaries. It runs nothing. Returns `name`, `description` and `examples` of each."
)
_TOOL_NAMES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "string"}, "description": "Names of the tools, as listed."}
    },
    "required": ["tools"],
}


def describe_tools_tool(offered: Callable[[str], Iterable[Tool]]) -> Tool:
    """Make the tool; `offered` returns the tools of a conversation, which may come and go."""

    @tool(description=_DESCRIBED, parameters=_TOOL_NAMES)
    async def describe_tools(call: Call, tools: list[str]) -> list[dict[str, Any]]:
        known = {each.name: each for each in offered(call.conversation)}
        unknown = [name for name in tools if name not in known]
        if unknown:
            raise ToolError(f"unknown tools: {', '.join(unknown)}; known are: {', '.join(known)}", code="unknown_tool")
        return [
            {"name": name, "description": known[name].description, "examples": list(known[name].examples)}
            for name in dict.fromkeys(tools)
        ]

    return describe_tools


QUESTION = "answer"
_QUESTION_PARAMETERS: dict[str, Any] = {
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
    @tool(
        description="Ask the person you work for a question, and wait for the answer. Use it if only they can decide "
        "or know. Do not use it to get permission for a call: they are asked without you where that is needed. Returns "
        "their answer.",
        parameters=_QUESTION_PARAMETERS,
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
