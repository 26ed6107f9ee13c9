"""The assistant's side of a conversation, in the notation of the examples: `call(tool, {…})`, several in a batch."""

import itertools
import json
from typing import Any

from keephold import Response, ToolCall, Turn

_labels = itertools.count(1)


def call(tool: str, arguments: dict[str, Any]) -> ToolCall:
    """One tool call. Labels are given by the provider, not chosen by the model: a new one every time."""
    return ToolCall(id=f"toolu_{next(_labels)}", name=tool, arguments=arguments)


async def batch(turn: Turn, *calls: ToolCall) -> list[Any]:
    """What the calls of one batch are answered, each as JSON. None of them may be wrong."""
    responses = await turn.run(calls)
    assert [response.id for response in responses] == [each.id for each in calls]
    return [json.loads(_result(response)) for response in responses]


async def one(turn: Turn, tool: str, arguments: dict[str, Any]) -> Any:
    """The answer to a batch of one call, as JSON."""
    (answer,) = await batch(turn, call(tool, arguments))
    return answer


async def text(turn: Turn, tool: str, arguments: dict[str, Any]) -> str:
    """The answer to a batch of one call, as it is."""
    (response,) = await turn.run([call(tool, arguments)])
    return _result(response)


async def error(turn: Turn, tool: str, arguments: dict[str, Any]) -> str:
    """The error that a batch of one call is answered with."""
    (response,) = await turn.run([call(tool, arguments)])
    assert response.is_error, response.result
    return response.result


def _result(response: Response) -> str:
    assert not response.is_error, response.result
    return response.result
