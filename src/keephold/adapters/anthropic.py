"""Tools, calls and results in the forms of Anthropic's SDK (G4): `tools` → `calls` → `turn.run` → `results`.

    message = await client.messages.create(model=…, max_tokens=…, messages=messages, tools=anthropic.tools(rt))
    messages.append({"role": "assistant", "content": message.content})
    messages += anthropic.results(await turn.run(anthropic.calls(message)))

Nothing a model sends raises: the response to a call says what was wrong with it. The SDK is not needed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from keephold.adapters._parts import notification_text, part, tool_call
from keephold.runtime import Runtime
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

__all__ = ["calls", "results", "tools"]

_CUT = ("max_tokens", "model_context_window_exceeded", "refusal")
"""Why a message may end in the middle of a block."""


def tools(rt: Runtime) -> list[Any]:
    """The tools, for the request's `tools`."""
    return [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in rt.tools(dialect="anthropic")
    ]


def calls(message: Any) -> list[ToolCall]:
    """The tool calls of a message of the model, in emitted order; an object of the SDK or a dictionary.

    Give it the message as it came, with its `stop_reason`: if that says that it was cut off, a call at its end is
    answered with an error and not run, as nobody knows what is missing.
    """
    return list(_calls(message))


def _calls(message: Any) -> Iterator[ToolCall]:
    content = part(message, "content")
    blocks = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    for at, block in enumerate(blocks, start=1):
        if part(block, "type") == "tool_use":  # what the provider runs itself is of other types
            cut = at == len(blocks) and part(message, "stop_reason") in _CUT
            yield tool_call(part(block, "id"), part(block, "name"), _input(block, cut=cut))


def _input(block: Any, *, cut: bool) -> Any:
    """The arguments. Of a block that was cut off the SDK makes an object all the same; then it is a text that ends too
    early, which is what the model wrote."""
    given = part(block, "input")
    arguments = {} if given is None else given
    return msgspec.json.encode(arguments).decode().removesuffix("}") if cut else arguments


def results(responses: Sequence[Response]) -> list[Any]:
    """What to append to the messages: one message of the user with a result for each call in order, then the news, if
    any. Nothing without responses, as a message must not be empty."""
    blocks: list[dict[str, Any]] = [_result(response) for response in responses]
    news = notification_text(responses)
    if news:
        blocks.append({"type": "text", "text": news})  # behind the results, never before
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(response: Response) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": response.id, "is_error": response.is_error}
    return {**block, "content": response.model} if response.model else block
