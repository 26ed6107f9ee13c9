"""A model that plays what the user asks for, and tools for it: what `keephold acp` is started with in tests.

A prompt is a list of steps as JSON; the model's first response is the first of them, and so on; then it says "done". So
it goes on where it was also in another process.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.profiles import ModelProfile

import keephold


def _steps(messages: list[ModelMessage]) -> tuple[list[dict[str, Any]], int]:
    """What the user has asked for last, and how much of it was played."""
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        parts = message.parts if isinstance(message, ModelRequest) else []
        for part in reversed(parts):
            said = part.content if isinstance(part, UserPromptPart) else None
            first = said if isinstance(said, str) else next((s for s in said or () if isinstance(s, str)), "")
            if first.startswith("[{"):
                return json.loads(first), sum(isinstance(each, ModelResponse) for each in messages[at:])
    return [], 0


async def _play(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, DeltaThinkingPart] | dict[int, DeltaToolCall]]:
    steps, played = _steps(messages)
    step: dict[str, Any] = steps[played] if played < len(steps) else {"text": ["done"]}
    if "fail" in step:
        raise RuntimeError(step["fail"])
    if "instructions" in step:
        yield info.instructions or ""
    if "think" in step:
        yield {0: DeltaThinkingPart(content=step["think"])}
    for piece in step.get("text", ()):
        yield piece
    if step.get("hang"):
        await asyncio.Event().wait()
    for at, (id, name, arguments) in enumerate(step.get("calls", ()), 1):
        yield {at: DeltaToolCall(name=name, json_args=json.dumps(arguments), tool_call_id=id)}


def model() -> FunctionModel:
    return FunctionModel(stream_function=_play)


def measured() -> FunctionModel:
    """The same with a context of a known size."""
    return FunctionModel(stream_function=_play, profile=ModelProfile(context_window=1000))


@keephold.tool(hints={"readOnlyHint": True})
async def look(path: Path, line: int = 0) -> str:
    """Look at a file."""
    return f"looked at {path}"


@keephold.tool(hints={"kind": "edit"})
async def change(call: keephold.Call, path: Path, new: str) -> str:
    """Change a file."""
    call.show(keephold.FileDiff(str(path), "old", new))
    return "changed"


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_turn_end="keep")
async def job(call: keephold.Call) -> str:
    """Works until it is told to finish."""
    call.emit("working\n")
    while (said := await call.input()) != "finish":
        call.emit(f"heard {said}\n")
    return "the job is finished"


@keephold.tool(actions=("spawn", "fetch", "abort"), on_turn_end="keep")
async def waits(call: keephold.Call, file: str) -> str:
    """Works until a file is there."""
    call.emit("waiting\n")
    while not Path(file).exists():  # noqa: ASYNC110 (another process makes it)
        await asyncio.sleep(0.01)
    return "it is there"


@keephold.tool
async def floods(call: keephold.Call, lines: int) -> str:
    """Prints much."""
    for number in range(lines):
        call.emit(f"line {number}\n")
        if number % 50 == 0:
            await asyncio.sleep(0.001)
    return "printed"


async def _asked(call: keephold.Call, kind: str) -> str:
    types: dict[str, Any] = {"boolean": "Boolean", "text": "Text", "select": {"Select": {"options": ["red", "blue"]}}}
    secret = kind == "secret"
    question = keephold.Question(id="q", text="Which?", answer_type=types.get(kind, "Text"), secret=secret)
    return f"answered {await call.ask(question)!r}"


@keephold.tool
async def asks(call: keephold.Call, kind: str) -> str:
    """Asks something."""
    return await _asked(call, kind)


@keephold.tool(
    actions=("spawn", "fetch", "abort"),
    on_turn_end="keep",
    questions={"q": keephold.policies.QuestionPolicy(exclusive=True)},
)
async def wonders(call: keephold.Call, kind: str) -> str:
    """Asks something that only a person may answer."""
    return await _asked(call, kind)


@keephold.tool
async def hangs(call: keephold.Call) -> str:
    """Never ends by itself."""
    call.emit("hanging\n")
    await asyncio.Event().wait()
    return ""


@keephold.tool
def fails() -> str:
    """Fails."""
    raise keephold.ToolError("it broke")


@keephold.tool
def noisy() -> str:
    """Prints where it should not, and reads what is not its own."""
    print("from Python", flush=True)
    subprocess.run(["echo", "from a program"], check=True)
    return f"read {sys.stdin.read()!r}"
