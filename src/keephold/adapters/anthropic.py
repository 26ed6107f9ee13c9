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
"""Reasons for which a message may end inside a block."""


def tools(rt: Runtime) -> list[Any]:
    """Return the tools, for the request's `tools`."""
    return [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in rt.tools(dialect="anthropic")
    ]


def calls(message: Any) -> list[ToolCall]:
    """Return the tool calls of the model's message in order. The message is an SDK object or a dictionary.

    Pass the message as it came, with its `stop_reason`. If the message was cut off, a call at its end is answered with
    an error and not run, because part of it may be missing.
    """
    return list(_calls(message))


def _calls(message: Any) -> Iterator[ToolCall]:
    content = part(message, "content")
    blocks = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    for at, block in enumerate(blocks, start=1):
        if part(block, "type") == "tool_use":  # calls that the provider runs have other types
            cut = at == len(blocks) and part(message, "stop_reason") in _CUT
            yield tool_call(part(block, "id"), part(block, "name"), _input(block, cut=cut))


def _input(block: Any, *, cut: bool) -> Any:
    """Return the arguments. For a block that was cut off, the SDK makes an object; return incomplete JSON instead."""
    given = part(block, "input")
    arguments = {} if given is None else given
    return msgspec.json.encode(arguments).decode().removesuffix("}") if cut else arguments


def results(responses: Sequence[Response]) -> list[Any]:
    """Return the message to append: a result for each call, then the notifications. Empty without responses."""
    blocks: list[dict[str, Any]] = [_result(response) for response in responses]
    notifications = notification_text(responses)
    if notifications:
        blocks.append({"type": "text", "text": notifications})  # always after the results
    return [{"role": "user", "content": blocks}] if blocks else []


def _result(response: Response) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": response.id, "is_error": response.is_error}
    return {**block, "content": response.model} if response.model else block
