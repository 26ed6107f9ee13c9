"""One request to a model: streamed in pieces, and retried where that can help (G1). Also the built-in instructions.

A retry never runs a tool again: nothing of a response counts before it is complete. Rate limits, an unavailable or
silent provider, an incomplete response and an empty answer are retried.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import exceptions
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse

from keephold.agent.events import Event, Restarted, Retrying, Text, Thought
from keephold.agent.providers import History, StreamEnd, has_reason, is_object, sentence
from keephold.agent.transcript import response_text
from keephold.errors import KeepholdError
from keephold.schema.shared import USE, Presentation
from keephold.text import to_utf8

if TYPE_CHECKING:
    from keephold.agent.models import Assistant


_log = logging.getLogger("keephold.agent")

ATTEMPTS = 6
INCOMPLETE_RETRIES = 3
"""A response that began is paid for, so it is retried less often than a refused request."""
BASE_DELAY_SECS = 1.0
MAX_DELAY_SECS = 30.0
PATIENCE_SECS = 120.0
"""A provider that asks for a longer pause is not retried."""

_INCOMPLETE = "the model's response ended before it was complete"
_WORTH_ANOTHER = (
    exceptions.ModelRateLimitError,
    exceptions.ModelUnavailableError,
    exceptions.ModelServerError,
    exceptions.ModelConnectionError,
    exceptions.ModelRequestTimeout,
)


class RequestFailed(KeepholdError):
    """The model gave no answer, and a retry does not help. `too_long`: the history exceeds the model's window."""

    code = "model_failed"

    def __init__(self, message: str, *, too_long: bool = False) -> None:
        super().__init__(message)
        self.too_long = too_long


def well_formed(text: str) -> str:
    """Return the text with split surrogate pairs joined and lone halves replaced.

    Gateways that cut a stream inside an emoji send such texts, which cannot be stored or printed.
    """
    return to_utf8(text).decode()


class ModelCall:
    """One request, retried until it is answered. `partial` is the text received when it is given up."""

    def __init__(
        self,
        assistant: "Assistant",
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        tell: Callable[[Event], None] | None,
    ) -> None:
        """Without `tell` the request is not streamed."""
        self._assistant = assistant
        offered = {tool.name for tool in parameters.function_tools}
        self._messages = History(messages, offered, assistant.dialect).messages
        self._parameters = parameters
        self._tell = tell
        self._stream: StreamedResponse | None = None
        self._shown = False
        """Part of the present attempt has been shown."""
        self._half = ""
        """The first half of a surrogate pair, until the second half comes."""

    async def answer(self) -> ModelResponse:
        """Return the whole response. Raises `RequestFailed`."""
        incomplete = 0
        for attempt in range(1, ATTEMPTS + 1):
            began = True
            try:
                response = await self._traced()
            except exceptions.ModelContextWindowExceededError as error:
                raise RequestFailed(sentence(error), too_long=True) from error
            except exceptions.ContentFilterError as error:
                _log.info("refused: %s", sentence(error))
                return ModelResponse([], finish_reason="content_filter", model_name=self._assistant.name)
            except (exceptions.AgentRunError, exceptions.UserError, exceptions.FallbackExceptionGroup) as error:
                if not _worth_another(error):
                    raise RequestFailed(sentence(error)) from error
                why, wanted = sentence(error), getattr(error, "retry_after", None)
                began = self._stream is not None or _is_unreadable(error) or getattr(error, "phase", None) == "read"
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                why, wanted, began = "its client cancelled the request", None, False  # not by us
            except Exception as error:  # from the model's own code, or a client that pydantic-ai does not wrap
                _log.exception("a request to %s failed", self._assistant.name)
                raise RequestFailed(sentence(error)) from error
            else:
                if not _is_empty(response):
                    return response
                why, wanted = "the model's answer was empty", None
            incomplete += began
            await self._pause(attempt, why, wanted, last=attempt == ATTEMPTS or incomplete > INCOMPLETE_RETRIES)
        raise AssertionError("the last pause raises")

    async def _traced(self) -> ModelResponse:
        from keephold.tracing import answered, chat

        with chat(self._assistant.name) as span:
            response = await self._once()
            answered(span, response.model_name, response.usage.input_tokens, response.usage.output_tokens)
        return response

    async def _once(self) -> ModelResponse:
        self._shown, self._stream, self._half = False, None, ""
        assistant = self._assistant
        options: dict[str, Any] = {
            "model_settings": assistant.settings,
            "model_request_parameters": self._parameters,
            "instrument": False,
        }
        end = StreamEnd()
        if self._tell is None:
            response = await model_request(assistant.model, self._messages, **options)
            if response.provider_name is not None and not has_reason(response):  # Anthropic's client streams this, too
                raise exceptions.UnexpectedModelBehavior(_INCOMPLETE)
            return _well_formed(response)
        with end.expected(assistant.model):
            return await self._streamed(model_request_stream(assistant.model, self._messages, **options), end)

    async def _streamed(self, request: AbstractAsyncContextManager[StreamedResponse], end: StreamEnd) -> ModelResponse:
        async with request as stream:
            self._stream = stream
            async for event in stream:
                match event:
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                        self._show(Text, text)
                    case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))) if text:
                        self._show(Thought, text)
                    case PartStartEvent(part=TextPart(content=text)) if text:
                        self._show(Text, text)
                    case PartStartEvent(part=ThinkingPart(content=text)) if text:
                        self._show(Thought, text)
            response = stream.get()
        if not end.complete(stream, response):
            raise exceptions.UnexpectedModelBehavior(_INCOMPLETE)
        return _well_formed(response)

    def _show(self, event: type[Text | Thought], text: str) -> None:
        self._shown = True
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        if text and self._tell is not None:
            self._tell(event(well_formed(text)))

    async def _pause(self, attempt: int, why: str, wanted: float | None, *, last: bool) -> None:
        if last or (wanted is not None and wanted > PATIENCE_SECS):
            later = f"; it wants to be asked again in {wanted:.0f} s" if wanted is not None else ""
            raise RequestFailed(f"{why} (asked {attempt} times{later})" if attempt > 1 else why + later)
        tell = self._tell or (lambda _: None)
        if self._shown:
            tell(Restarted())
            self._shown, self._stream = False, None
        delay = min(MAX_DELAY_SECS, BASE_DELAY_SECS * 2 ** (attempt - 1)) * random.uniform(0.8, 1.2)
        delay = max(delay, wanted or 0.0)
        _log.warning("a request to %s failed and is made again in %.1f s: %s", self._assistant.name, delay, why)
        tell(Retrying(attempt, delay, why))
        await asyncio.sleep(delay)

    def partial(self) -> str:
        if self._stream is None or not self._shown:
            return ""
        return well_formed(response_text(self._stream.get()))


def _well_formed(response: ModelResponse) -> ModelResponse:
    """Return the response with texts that can be stored."""
    return replace(response, parts=[_part(part) for part in response.parts])


def _part(part: Any) -> Any:
    given = {field: getattr(part, field, None) for field in ("content", "args", "tool_name", "tool_call_id")}
    made = {field: well_formed(text) for field, text in given.items() if isinstance(text, str)}
    if isinstance(part, ToolCallPart) and isinstance(part.args, dict) and not is_object(part.args):
        made["args"] = json.dumps(part.args, default=str)  # to be refused: `NaN` and lone surrogates are not JSON
    return part if all(text == given[field] for field, text in made.items()) else replace(part, **made)


def _is_empty(response: ModelResponse) -> bool:
    """Whether the response has no answer. Thoughts alone do not count, unless it was cut off or refused."""
    if response.finish_reason == "content_filter" or (response.finish_reason == "length" and response.parts):
        return False
    return all(
        isinstance(part, ThinkingPart) or (isinstance(part, TextPart) and not part.content.strip())
        for part in response.parts
    )


def _worth_another(error: Exception) -> bool:
    if isinstance(error, exceptions.FallbackExceptionGroup):
        return any(map(_worth_another, error.exceptions))
    return isinstance(error, _WORTH_ANOTHER) or _is_unreadable(error)


def _is_unreadable(error: Exception) -> bool:
    """Whether a response came that is not valid. pydantic-ai has no category for a body that is not JSON."""
    return isinstance(error, exceptions.UnexpectedModelBehavior) or type(error) is exceptions.ModelAPIError


TEACHING = """\
Start several in one response, and `await` them in the same response: `await` with {"all": [ids]} or {"any": [ids]}, \
and `timeout_secs`, returns when they have finished. Do not poll in a loop.
Ids are yours to choose; use each for one piece of work. You are asked about handles that run when you finish: wait \
for one, get its result and speak again, or abort it.
Messages that begin with "[Automatic" are not from the user: they tell what has happened meanwhile. Long output is \
cut; `read_output` reads the rest. A call that the user skipped was declined: ask them before you try it again."""


def instructions(shown: Presentation, *own: str) -> str:
    """Return how to use tools as they are shown, followed by the instructions of the configuration."""
    return "\n\n".join(text.strip() for text in (f"{USE[shown]}\n{TEACHING}", *own) if text.strip())
