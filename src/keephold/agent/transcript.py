"""A conversation's transcript: lines in the store, and the history that a model is given (G1).

A line is written before anything follows from it: a response before its calls run, their results before the next
request. So the last line decides how a turn is resumed after a crash. A summary replaces all lines up to a number; the
lines themselves stay.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from keephold.errors import KeepholdError
from keephold.handles.registry import Registry
from keephold.store.base import TranscriptAppended, TranscriptLine

T = TypeVar("T")
_log = logging.getLogger("keephold.agent")
_MESSAGE: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)
_PAGE = 10_000
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.1, 5.0
_TAKEN, _BATCH, _USER = "keephold/taken", "keephold/batch", "keephold/user"
"""Metadata keys of requests."""
INTERRUPTED = "Tool execution was interrupted; nobody knows how far it came."


class Summary(msgspec.Struct, frozen=True):
    """A text that replaces the lines up to number `upto`, but not what the user has said in `said`."""

    upto: int
    text: str
    said: tuple[int, ...] = ()


class TurnStop(msgspec.Struct, frozen=True):
    """How a turn ended that did not complete."""

    stop_reason: str
    error: str | None


class Transcript:
    """The lines of one conversation."""

    def __init__(self, registry: Registry, conversation: str) -> None:
        self._registry = registry
        self._conversation = conversation
        self.messages: list[ModelMessage] = []
        """The history for the model; consecutive requests are merged."""
        self._numbers: list[int] = []
        """The number of each message's last line."""
        self.turn: str | None = None
        """The turn of the newest message."""
        self.taken = 0
        """How many messages sent to a sub-agent are in the transcript (E10)."""
        self.batch = 0
        """The number of the turn's newest batch whose results are in the transcript."""
        self.spent: list[ModelResponse] = []
        """The responses of that turn."""
        self.ended: TurnStop | None = None
        """How that turn ended, if it did not complete."""
        self._said: dict[int, list[ModelRequestPart]] = {}
        """The user's messages of that turn, by the number of their line."""
        self._known = 0
        """The number of the newest line that was read."""

    async def load(self) -> None:
        self._take(await self.read())

    async def refresh(self) -> None:
        """Read the lines that another process may have added."""
        new = await self.read(after=self._known)
        if any(line.kind == "summary" for line in new):
            await self.load()
        else:
            self._add(new, 0)

    def _take(self, lines: Sequence[TranscriptLine]) -> None:
        summaries = [msgspec.json.decode(line.body, type=Summary) for line in lines if line.kind == "summary"]
        self.messages, self._numbers, upto = [], [], 0
        self.turn, self.batch, self.spent, self.ended, self.taken, self._said = None, 0, [], None, 0, {}
        kept: tuple[int, ...] = ()
        if summaries:
            upto, kept = summaries[-1].upto, summaries[-1].said
            self._append(ModelRequest([UserPromptPart(summaries[-1].text)]), upto)
        self._add(lines, upto, kept)

    def _add(self, lines: Sequence[TranscriptLine], upto: int, kept: Sequence[int] = ()) -> None:
        """Add lines; those up to `upto` are in the summary, except the user's messages in `kept`."""
        for line in lines:
            self._known = line.number
            if line.kind == "ended":
                self.ended = msgspec.json.decode(line.body, type=TurnStop)
            if line.kind in ("request", "response"):
                message = _MESSAGE.validate_json(line.body)
                self._count(message, line.turn, line.number)
                if line.number > upto:
                    self._append(message, line.number)
                elif line.number in kept:
                    self._append(ModelRequest(_of_user(message)), upto)

    async def read(self, after: int = 0) -> list[TranscriptLine]:
        store, lines = self._registry.store, list[TranscriptLine]()
        while page := await store.transcript(self._conversation, lines[-1].number if lines else after, _PAGE):
            lines += page
            if len(page) < _PAGE:
                break
        return lines

    async def responses(self) -> list[ModelResponse]:
        said = [_MESSAGE.validate_json(line.body) for line in await self.read() if line.kind == "response"]
        return [message for message in said if isinstance(message, ModelResponse)]

    async def add(self, turn: str, *messages: ModelMessage) -> None:
        """Write messages in one commit, then add them."""
        lines = tuple((message.kind, _MESSAGE.dump_json(message, exclude_none=True)) for message in messages)
        (last,) = await self._registry.write(
            (TranscriptAppended(self._conversation, turn, self._registry.clock.now(), lines),)
        )
        for number, message in enumerate(messages, last - len(messages) + 1):
            self._count(message, turn, number)
            self._append(message, number)
        self._known = max(self._known, last)

    async def note(self, turn: str, kind: str, body: Any) -> None:
        """Write a line that is not for the model."""
        line = (kind, msgspec.json.encode(body))
        await self._registry.write((TranscriptAppended(self._conversation, turn, self._registry.clock.now(), (line,)),))

    async def summarise(self, turn: str, kept: int, text: str) -> None:
        """Replace all but the last `kept` messages by `text`, and by what the user has said in this turn."""
        upto = self._numbers[-kept - 1] if kept else self._numbers[-1]
        said = {number: parts for number, parts in self._said.items() if number <= upto}
        await self.note(turn, "summary", Summary(upto, text, tuple(said)))
        tail, numbers = (self.messages[-kept:], self._numbers[-kept:]) if kept else ([], [])
        self.messages, self._numbers = [], []
        self._append(ModelRequest([UserPromptPart(text), *(part for parts in said.values() for part in parts)]), upto)
        for message, number in zip(tail, numbers, strict=True):
            self._append(message, number)

    def _count(self, message: ModelMessage, turn: str, number: int) -> None:
        if turn != self.turn:
            self.turn, self.batch, self.spent, self.ended, self._said = turn, 0, [], None, {}
        said = message.metadata or {}
        self.taken, self.batch = said.get(_TAKEN, self.taken), said.get(_BATCH, self.batch)
        if isinstance(message, ModelResponse):
            self.spent.append(message)
        elif _USER in said:
            self._said[number] = _of_user(message)

    def _append(self, message: ModelMessage, number: int) -> None:
        last = self.messages[-1] if self.messages else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            self.messages[-1] = replace(last, parts=_in_order([*last.parts, *message.parts]))
            self._numbers[-1] = number
        else:
            self.messages.append(message)
            self._numbers.append(number)

    @property
    def last(self) -> ModelMessage | None:
        return self.messages[-1] if self.messages else None

    def open_calls(self) -> list[ToolCallPart]:
        return list(self.last.tool_calls) if isinstance(self.last, ModelResponse) else []


async def until_readable(read: Callable[[], Awaitable[T]]) -> T:
    """Read from the store, and retry while the store is unavailable; cancel it to give up."""
    pause = _FIRST_PAUSE_SECS
    while True:
        try:
            return await read()
        except KeepholdError as error:
            if error.code != "store_unavailable":
                raise
            _log.warning("%s; reading again in %g s", error, pause)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECS)


def request(parts: Sequence[ModelRequestPart], *, taken: int = 0, batch: int = 0, user: int = 0) -> ModelRequest:
    """Return a request that records how many sent messages it includes, its batch, and how many of its last parts are
    the user's."""
    said = {key: value for key, value in ((_TAKEN, taken), (_BATCH, batch), (_USER, user)) if value}
    return ModelRequest(parts, metadata=said or None)


def _of_user(message: ModelMessage) -> list[Any]:
    return list(message.parts[-(message.metadata or {})[_USER] :])


def response_text(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def _in_order(parts: Sequence[Any]) -> list[Any]:
    """Sort results first: providers want them directly after their calls."""
    return sorted(parts, key=lambda part: not isinstance(part, ToolReturnPart))


def interrupted(calls: Iterable[ToolCallPart], why: str = INTERRUPTED) -> ModelRequest:
    """Return results for calls whose fate is unknown, or that did not run."""
    return ModelRequest([ToolReturnPart(call.tool_name, why, call.tool_call_id, outcome="failed") for call in calls])
