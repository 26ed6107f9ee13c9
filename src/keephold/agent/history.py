"""The history in a form that providers accept, even if the model has sent nonsense (G1).

A model may call a tool by an impossible name, use the id of a call twice, or send arguments that are not JSON.
Providers answer 400 to every later request that repeats such a call, which ends the conversation for good. The
transcript keeps what the model sent, and the call is answered with what was wrong; only the history of a request is
mended.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

import msgspec
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from keephold.limits import Limits, nested_deeper
from keephold.schema.dialects import Dialect

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""Names that every provider accepts. A tool that is offered may have another one that this provider accepts."""
_STRICT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_IDS: dict[Dialect, re.Pattern[str]] = {
    "anthropic": _STRICT,
    "bedrock": _STRICT,
    "mistral": re.compile(r"[A-Za-z0-9]{9}"),
}
_OTHER_IDS = re.compile(r"[!-{}~]{1,40}|.*__thought__.*")
"""OpenAI's limit is 40. pydantic-ai splits ids at `|`. LiteLLM keeps Gemini's signature in ids of any length, which it
wants back. Others stay as they are: Kimi, for one, is trained on ids such as `functions.measure:0`."""
_DEEPEST = Limits().nesting
_NO_OUTPUT, _NO_MESSAGE, _NO_ANSWER, _WHITESPACE = "(no output)", "(empty message)", "(no answer)", "(only whitespace)"
"""Stand for blank texts, which Anthropic, Bedrock and gateways to either refuse."""


class History:
    """The messages of one request. `messages` is what is sent."""

    def __init__(self, messages: Sequence[ModelMessage], offered: Collection[str], dialect: Dialect) -> None:
        self._offered = offered
        self._id = _IDS.get(dialect, _OTHER_IDS)
        self._blank_results = dialect == "gemini"
        """Whether results may be blank: Gemini's are values of an object."""
        self._used: set[str] = set()
        """The ids of calls, as they are sent."""
        self._sent: dict[str, list[str]] = {}
        """The ids under which the calls of the newest response are sent, by their own ids."""
        self.messages: list[ModelMessage] = [
            self._response(each) if isinstance(each, ModelResponse) else self._request(each) for each in messages
        ]

    def _response(self, message: ModelResponse) -> ModelResponse:
        self._sent = {}
        parts: list[Any] = []
        answers = False
        for part in message.parts:
            if isinstance(part, TextPart):
                if _is_blank(part.content):
                    continue
                parts.append(part)
            else:
                parts.append(self._call(part) if isinstance(part, ToolCallPart) else part)
            answers = answers or not isinstance(part, ThinkingPart)
        if not answers:  # an answer needs something besides thoughts
            return replace(message, parts=[*parts, TextPart(_NO_ANSWER)])
        same = len(parts) == len(message.parts) and all(map(is_, parts, message.parts))
        return message if same else replace(message, parts=parts)

    def _call(self, part: ToolCallPart) -> ToolCallPart:
        id, name, arguments = part.tool_call_id, self._name(part.tool_name), _arguments(part.args)
        if id in self._used or not self._id.fullmatch(id):
            number = len(self._used)
            while (id := f"k{number:08d}") in self._used:  # nine characters, as Mistral wants
                number += 1
        self._used.add(id)
        self._sent.setdefault(part.tool_call_id, []).append(id)
        if id is part.tool_call_id and name is part.tool_name and arguments is part.args:
            return part
        return replace(part, tool_name=name, tool_call_id=id, args=arguments)

    def _request(self, message: ModelRequest) -> ModelRequest:
        parts = [self._told(part) for part in message.parts]
        return message if all(map(is_, parts, message.parts)) else replace(message, parts=parts)

    def _told(self, part: Any) -> Any:
        if isinstance(part, ToolReturnPart):
            sent = self._sent.get(part.tool_call_id)
            id, name = sent.pop(0) if sent else part.tool_call_id, self._name(part.tool_name)
            content = part.content if self._blank_results else _filled(part.content, _NO_OUTPUT)
            if id == part.tool_call_id and name is part.tool_name and content is part.content:
                return part
            return replace(part, tool_name=name, tool_call_id=id, content=content)
        if isinstance(part, UserPromptPart):
            given = part.content
            if isinstance(given, str):
                content = _filled(given, _NO_MESSAGE)
                return part if content is given else replace(part, content=content)
            contents = [_filled(each, _NO_MESSAGE) for each in given]
            return part if all(map(is_, contents, given)) else replace(part, content=contents)
        return part

    def _name(self, name: str) -> str:
        if name in self._offered or _NAME.fullmatch(name):
            return name
        name = re.sub("[^A-Za-z0-9_-]", "_", name)[:63] or "unnamed"
        return name if name[0].isalpha() or name[0] == "_" else f"_{name}"


def _is_blank(content: str) -> bool:
    return not content or content.isspace()


def _filled(content: Any, empty: str) -> Any:
    """Return the content, or what is said for one that is blank."""
    if not isinstance(content, str) or not _is_blank(content):
        return content
    return _WHITESPACE if content else empty


def _arguments(given: Any) -> Any:
    """Return the arguments; as pydantic-ai sends those that are not JSON, if they are nothing that a provider takes."""
    return {"INVALID_JSON": given} if isinstance(given, str) and given and not is_object(given) else given


def is_object(arguments: str | dict[str, Any]) -> bool:
    """Return whether these are a JSON object to everyone: finite numbers, whole characters, not too deep."""
    try:
        if isinstance(arguments, str):
            text, value = arguments, msgspec.json.decode(arguments)
        else:
            text, value = json.dumps(arguments, allow_nan=False, ensure_ascii=False), arguments
            text.encode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return False
    deep = text.count("[") + text.count("{") > _DEEPEST and nested_deeper(value, _DEEPEST)
    return isinstance(value, dict) and not deep
