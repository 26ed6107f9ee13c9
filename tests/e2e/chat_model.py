"""A model for `model = "python:tests.e2e.chat_model:model"` that plays `script.json` of the working directory; `helper`
plays `helper.json`.

The script is a list of responses, each with some of `thought`, `text` (a list of pieces), `calls` (a list of tools with
their arguments) and `fail`. Which one is played is counted in the history it is given, so a process that takes a
conversation up goes on with the next. After the first piece of a text it waits for the file `until`, if one is named.
What it was given last is in `given.json`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingCalls,
    DeltaThinkingPart,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)


def _next(messages: list[ModelMessage], script_file: str) -> tuple[int, dict[str, Any]]:
    Path("given.json").write_bytes(ModelMessagesTypeAdapter.dump_json(messages))
    at = sum(isinstance(message, ModelResponse) for message in messages)
    script = json.loads(Path(script_file).read_text())
    return at, script[at] if at < len(script) else {"text": ["(the script is over)"]}


async def _there(file: str) -> None:
    path = Path(file)
    while not path.exists():  # noqa: ASYNC110 (it is another process that makes it)
        await asyncio.sleep(0.01)


async def _play(
    messages: list[ModelMessage], script_file: str
) -> AsyncIterator[str | DeltaToolCalls | DeltaThinkingCalls]:
    at, says = _next(messages, script_file)
    if "fail" in says:
        raise ModelHTTPError(400, "scripted", {"message": says["fail"]})
    if "thought" in says:
        yield {0: DeltaThinkingPart(content=says["thought"])}
    for count, piece in enumerate(says.get("text", ())):
        if count and "until" in says:
            await _there(says["until"])
        yield piece
    for number, (name, arguments) in enumerate(says.get("calls", ())):
        yield {number + 1: DeltaToolCall(name, json.dumps(arguments), tool_call_id=f"{at}-{number}")}


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("no inquiry is expected here")])


def _player(
    script_file: str,
) -> Callable[[list[ModelMessage], AgentInfo], AsyncIterator[str | DeltaToolCalls | DeltaThinkingCalls]]:
    return lambda messages, info: _play(messages, script_file)


model = FunctionModel(_answer, stream_function=_player("script.json"), model_name="scripted")
helper = FunctionModel(_answer, stream_function=_player("helper.json"), model_name="helper")
