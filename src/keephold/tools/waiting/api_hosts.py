"""Ask the user whether a workflow may send requests to a host that the configuration does not list (K10).

The question belongs to a call of its own, so that its answer is kept: a workflow that runs again after a crash finds
the call by its name.
"""

from typing import Any

from keephold.errors import ToolError
from keephold.handles.question import Question
from keephold.text import to_json
from keephold.tools.base import QuestionPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.waiting.tool import WaitToolHost, function_tool, object_schema

ALLOW_HOST = "allow_api_host"
"""The tool that asks, and the id of its question. Only workflows call it."""
_PARAMETERS = object_schema("host request", host={"type": "string"}, request={"type": "object"})


def allow_host_tool(around: WaitToolHost) -> Tool:
    """Make the tool. It returns if the user allows the host, and raises `ToolError` if not."""

    async def allow_api_host(call: Call, host: str, request: dict[str, Any]) -> bool:
        """Ask the user whether a workflow may send requests to a host."""
        question = Question(
            id=ALLOW_HOST,
            text=f"May this workflow send requests to `{host}`?",
            pre_amble=f"The first request is:\n{to_json(request).decode()}",
            answer_type="Boolean",
        )
        try:
            allowed = await call.ask(question)
        except ToolError as error:
            if error.code != "question_unanswered":
                raise
            if around.detached != "auto":
                raise ToolError(
                    f"A workflow needs permission to send requests to `{host}`, and nobody is there to give it. To "
                    f'allow it, add "{host}" to `api_hosts` in [workflows], or set `detached = "auto"` in '
                    "[conversation].",
                    code="permission_denied",
                ) from None
            allowed = True
        if not allowed:
            raise ToolError(f"The user does not allow requests to `{host}`.", code="permission_denied")
        return True

    exclusive = {ALLOW_HOST: QuestionPolicy(exclusive=True)}
    return function_tool(_PARAMETERS, allow_api_host, source="python", questions=exclusive)
