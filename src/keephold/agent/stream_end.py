"""Whether a streamed response is complete (G1). A connection that ends early can end cleanly: HTTP does not tell.

Tool calls count only with the provider's finish reason. Text also counts with the format's own end, `[DONE]` or
`message_stop`, because some local servers omit the reason.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.function import FunctionStreamedResponse
from pydantic_ai.models.test import TestStreamedResponse

_END = re.compile(rb"\n(?:data: ?\[DONE\]|event: ?message_stop)")
_LONGEST = 32
_expected: ContextVar["StreamEnd | None"] = ContextVar("expected_stream_end", default=None)


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
        self._tail = self._tail[-_LONGEST:]

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
