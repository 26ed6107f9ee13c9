"""Tools, calls and results in the forms of OpenAI's SDK (G4): `tools` → `calls` → `turn.run` → `results`.

    completion = await client.chat.completions.create(model=…, messages=messages, tools=openai.tools(rt))
    messages.append(completion.choices[0].message)
    messages += openai.results(await turn.run(openai.calls(completion)))

With the responses API say `api="responses"` to `tools` and `results`; `calls` sees for itself. Nothing a model sends
raises: `calls` takes what there is, and the response to a call says what was wrong with it. The SDK is not needed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from keephold.adapters._parts import notification_text, part, tool_call
from keephold.runtime import Runtime
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

__all__ = ["calls", "results", "tools"]

Api = Literal["chat", "responses"]


def tools(rt: Runtime, api: Api = "chat", *, strict: bool = False) -> list[Any]:
    """Return the tools, for the request's `tools`. `strict` makes the model follow the schemas, which then differ."""
    listed = rt.tools(dialect="openai-strict" if strict else "openai")
    if _is_chat(api):
        return [{"type": "function", "function": {**tool, "strict": True} if strict else tool} for tool in listed]
    return [{"type": "function", **tool, "strict": strict} for tool in listed]  # the API's default is true


def calls(answer: Any) -> list[ToolCall]:
    """Return the function calls of an answer in order. The answer is a chat completion, its message, or a response; an
    SDK object or a dictionary.

    Pass the whole completion: only its `finish_reason` says that the last call was cut off. Such a call is answered
    with an error, even if none of its arguments had arrived.
    """
    if part(answer, "output") is not None:
        return list(_response_calls(answer))
    choices = part(answer, "choices")
    message, ended = answer, None
    if choices:
        message, ended = part(choices[0], "message"), part(choices[0], "finish_reason")
    return list(_chat_calls(message, cut=ended in ("length", "content_filter")))


def _chat_calls(message: Any, *, cut: bool) -> Iterator[ToolCall]:
    emitted = part(message, "tool_calls") or ()
    for at, call in enumerate(emitted, start=1):
        function = part(call, "function")
        if function is not None:  # calls of other kinds are not ours
            arguments = _arguments(function, cut=cut and at == len(emitted))
            yield tool_call(part(call, "id"), part(function, "name"), arguments)


def _response_calls(response: Any) -> Iterator[ToolCall]:
    output = part(response, "output")
    for at, item in enumerate(output, start=1):
        if part(item, "type") == "function_call":
            last = at == len(output) and part(response, "status") == "incomplete"
            arguments = _arguments(item, cut=last or part(item, "status") == "incomplete")
            yield tool_call(part(item, "call_id"), part(item, "name"), arguments)


def _arguments(function: Any, *, cut: bool) -> Any:
    """Return the arguments' text. If the answer was cut off before any came, return incomplete JSON, so that it is not
    read as a call without arguments."""
    arguments = part(function, "arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return "{" if cut else ""
    return arguments


def results(responses: Sequence[Response], api: Api = "chat") -> list[Any]:
    """Return what to append to the messages (chat) or the input: a result for each call in order, then the
    notifications.

    These messages have no field for `is_error`; the text of a failed call says so.
    """
    if _is_chat(api):
        given = [{"role": "tool", "tool_call_id": each.id, "content": each.model} for each in responses]
    else:
        given = [{"type": "function_call_output", "call_id": each.id, "output": each.model} for each in responses]
    notifications = notification_text(responses)
    return [*given, {"role": "user", "content": notifications}] if notifications else given


def _is_chat(api: str) -> bool:
    if api not in ("chat", "responses"):
        raise ValueError(f'api must be "chat" or "responses", not {api!r}')
    return api == "chat"
