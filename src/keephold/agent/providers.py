"""How providers differ from what they promise (G1): the histories that they accept, streams that end early, and errors.

A model may call a tool by an impossible name, use the id of a call twice, or send arguments that are not JSON.
Providers answer 400 to every later request that repeats such a call, which ends the conversation for good. The
transcript keeps what the model sent, and the call is answered with what was wrong; only the history of a request is
mended (`History`).

A connection that ends early can end cleanly: HTTP does not tell (`StreamEnd`). Tool calls count only with the
provider's finish reason. Text also counts with the format's own end, `[DONE]` or `message_stop`, because some local
servers omit the reason.
"""

import json
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from http import HTTPStatus
from operator import is_
from typing import Any

import msgspec
from pydantic_ai import exceptions
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
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.function import FunctionStreamedResponse
from pydantic_ai.models.test import TestStreamedResponse

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
_LONGEST_ERROR = 500
_SAYS = ("message", "error", "detail", "error_description", "msg")
"""Keys of an error's body under which providers say what was wrong."""
_END = re.compile(rb"\n(?:data: ?\[DONE\]|event: ?message_stop)")
_LONGEST_PIECE = 32
_expected: ContextVar["StreamEnd | None"] = ContextVar("expected_stream_end", default=None)


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


# Errors


def sentence(error: Exception) -> str:
    """Return what happened, with the provider's own words."""
    match error:
        case exceptions.FallbackExceptionGroup():
            return "every model failed: " + "; ".join(map(sentence, error.exceptions))
        case exceptions.ModelHTTPError():
            what = f"the provider of {error.model_name} answered {_status(error.status_code)}"
            return _joined(what, _words(error.body))
        case exceptions.ModelConnectionError():
            words = _clipped(error.message)
            what = f"the connection to the provider of {error.model_name} failed"
            return _joined(what, words if " " in words else "")  # a single word is the name of a Python class
        case exceptions.ModelAPIError() if error.body is None and isinstance(error.__cause__, ValueError):
            return f"the response of {error.model_name} is not valid JSON"  # its text may be all of the answer
        case exceptions.ModelAPIError():
            return _words(error.body) or _clipped(error.message)
        case exceptions.AgentRunError() | exceptions.UserError():
            return _clipped(error.message)
    return _joined(f"the model's client failed with {type(error).__name__}", _clipped(str(error)))


def _joined(what: str, words: str) -> str:
    return f"{what}: {words}" if words else what


def _status(code: int) -> str:
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"{code} ({known[code]})" if code in known else str(code)


def _words(body: Any, depth: int = 4) -> str:
    """Return the provider's message from the body of an error; empty if it has none in words."""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if isinstance(body, str):
        return _of_text(body, depth)
    if isinstance(body, list) and body:
        return _words(body[0], depth - 1) if depth else ""
    if isinstance(body, Mapping) and depth:
        return next(filter(None, (_words(body.get(key), depth - 1) for key in _SAYS)), "")
    return ""


def _of_text(text: str, depth: int) -> str:
    """Gateways send a provider's JSON as a text, or a page in HTML, which has no words for users."""
    text = text.strip()
    if text[:1] in ("{", "[") and depth:
        try:
            return _words(json.loads(text), depth - 1)
        except (ValueError, RecursionError):
            pass
    return "" if text[:1] == "<" else _clipped(text)


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]} …"


# Streams that end early


def has_reason(response: ModelResponse) -> bool:
    """Whether the provider said why the response ended."""
    return bool(response.finish_reason or (response.provider_details or {}).get("finish_reason"))


class StreamEnd:
    """The end of one streamed response, seen in the bytes of its event stream: no library reports it."""

    def __init__(self) -> None:
        self._seen = False
        self._tail = b"\n"

    @contextmanager
    def expected(self, model: Model[Any]) -> Iterator[None]:
        """Watch the request that the model makes in this block."""
        for client in _http_clients(model):
            if _watch not in client.event_hooks["response"]:
                client.event_hooks["response"].append(_watch)
        token = _expected.set(self)
        try:
            yield
        finally:
            _expected.reset(token)

    def feed(self, data: bytes) -> None:
        self._tail += data
        self._seen = self._seen or _END.search(self._tail) is not None
        self._tail = self._tail[-_LONGEST_PIECE:]

    def complete(self, stream: StreamedResponse, response: ModelResponse) -> bool:
        """Return whether nothing of the response is missing."""
        if response.state == "incomplete" or response.finish_reason == "error":
            return False
        if isinstance(stream, FunctionStreamedResponse | TestStreamedResponse):  # a function: it has returned
            return True
        # for OpenAI's chat format, pydantic-ai sets `stop` if the provider sent no reason
        said = getattr(stream, "_has_finish_reason", has_reason(response))
        return said or (self._seen and not response.tool_calls)


def _http_clients(model: Any) -> Iterator[Any]:
    """Yield the HTTP clients of SDKs whose formats have an end of their own: OpenAI's, Anthropic's, Groq's."""
    for inner in (*getattr(model, "models", ()), getattr(model, "wrapped", None)):
        if inner is not None:
            yield from _http_clients(inner)
    client = getattr(getattr(model, "client", None), "_client", None)
    if hasattr(client, "event_hooks"):
        yield client


async def _watch(response: Any) -> None:
    end, read = _expected.get(), response.aiter_bytes
    if end is None:
        return

    async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        async with aclosing(read(chunk_size)) as pieces:
            async for data in pieces:
                end.feed(data)
                yield data

    response.aiter_bytes = aiter_bytes
