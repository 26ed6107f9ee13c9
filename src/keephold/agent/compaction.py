"""Shorten a history that has grown too long, without losing what is still open (G1).

The model summarises everything but its newest calls and their results. The summary is followed by facts from the store:
open handles, and keys that were shown and are still valid.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from keephold.agent.events import Event, Usage
from keephold.agent.requests import ModelCall, RequestFailed
from keephold.agent.spending import Spending, usage_of
from keephold.agent.transcript import Transcript, response_text, until_readable
from keephold.durable.keys import present
from keephold.handles.state import name
from keephold.store.base import HandleQuery
from keephold.text import to_json

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation

FULL = 0.8
"""The share of a model's window that may be filled before its history is shortened."""
_CLIPS = (4000, 1000, 250)
"""How many characters of each message the summary is made from; the next smaller number if that is too much."""
_KEY = re.compile(r"hf1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_WISH = """\
Below is a conversation between a user, an assistant and its tools. It has grown too long and your summary will stand \
in its place. Write what the assistant needs to continue: what the user wants, in their words where it matters; what \
was decided and why; what was done, with names, paths, numbers and results; what is left; what went wrong. No preamble.

"""
_HEAD = "[Automatic summary of what was said before. It is not from the user.]\n"


def too_long(usage: Usage, limit: int | None) -> bool:
    """Return whether to shorten the history before the next request."""
    if limit is None and usage.context_window is not None:
        limit = int(usage.context_window * FULL)
    return limit is not None and usage.context_tokens > limit


async def compaction(
    conversation: "Conversation",
    transcript: Transcript,
    turn: str,
    spending: Spending,
    tell: Callable[[Event], None],
) -> str | None:
    """Shorten the history and return the summary; None if nothing can be left out."""
    kept = _kept(transcript.messages)
    old = transcript.messages[: len(transcript.messages) - kept]
    if len(old) < 2:
        return None
    summary = await _summary(conversation, old, spending, tell)
    still_open = await until_readable(lambda: _open(conversation, old))  # or the paid summary would be lost
    text = "\n\n".join(part for part in (_HEAD + summary, still_open) if part)
    await transcript.summarise(turn, kept, text)
    return text


def _kept(messages: Sequence[ModelMessage]) -> int:
    """Return how many messages at the end stay: the newest calls with their results, or the user's newest message."""
    if len(messages) >= 2 and isinstance(messages[-2], ModelResponse) and messages[-2].tool_calls:
        return 2
    return 1


async def _summary(
    conversation: "Conversation", old: Sequence[ModelMessage], spending: Spending, tell: Callable[[Event], None]
) -> str:
    problem = "the summary was empty"
    for size in _CLIPS:
        wish = ModelRequest([UserPromptPart(_WISH + "\n".join(_written(old, size)))])
        try:
            response = await ModelCall(conversation.assistant, [wish], ModelRequestParameters(), tell).answer()
        except RequestFailed as error:
            problem = error.message
            if error.too_long:
                continue
            break
        spending.count(usage_of(response))
        text = response_text(response).strip()
        if text:
            return text
    raise RequestFailed(f"the conversation has grown too long and could not be summarised: {problem}")


def _written(messages: Iterable[ModelMessage], size: int) -> Iterable[str]:
    for message in messages:
        for part in message.parts:
            match part:
                case UserPromptPart(content=content):
                    yield f"user: {_clipped(content, size)}"
                case TextPart(content=content):
                    yield f"assistant: {_clipped(content, size)}"
                case ToolCallPart(tool_name=tool, args=args):
                    yield f"assistant calls {tool}: {_clipped(args, size)}"
                case ToolReturnPart(tool_name=tool, content=content):
                    yield f"{tool} answers: {_clipped(content, size)}"


def _clipped(content: Any, size: int) -> str:
    text = _text(content)
    return text if len(text) <= size else f"{text[: size // 2]} … {text[-size // 2 :]}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return " ".join(each if isinstance(each, str) else f"[{type(each).__name__}]" for each in content)
    return to_json(content).decode()


async def _open(conversation: "Conversation", old: Sequence[ModelMessage]) -> str:
    """Return the open handles by id, and the valid keys that were shown."""
    registry = conversation.runtime.registry
    handles: dict[str, str] = {}
    for state in ("pending", "running", "waiting"):
        after: str | None = None
        while page := await registry.store.handles(HandleQuery(conversation=conversation.id, state=state, after=after)):
            handles |= {each.id: f"- {each.id}: {each.tool}, {name(each.state)}" for each in page}
            after = page[-1].uid
    lines = list(handles.values())
    if lines:
        lines.insert(0, "Handles that are open; fetch, await and abort know them by these ids:")
    keys = [key for key in dict.fromkeys(_keys(old)) if await _waits(conversation, key)]
    if keys:
        lines += ["Keys that were given out and are still good:", *(f"- {key}" for key in keys)]
    return "\n".join(lines)


def _keys(messages: Iterable[ModelMessage]) -> Iterable[str]:
    for message in messages:
        for part in message.parts:
            yield from _KEY.findall(_text(getattr(part, "content", "")))


async def _waits(conversation: "Conversation", key: str) -> bool:
    row = await conversation.runtime.registry.store.wait(present(key).key_id)
    return row is not None and row.resolution is None and not row.revoked
