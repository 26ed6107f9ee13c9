"""The turn loop (G1): the last line of the transcript says what comes next, so a turn that was cut off goes on.

- A request: the model is asked.
- A response with calls: they run as one batch, and their results are the next request.
- A response without: the turn ends by T, unless the user has said more meanwhile, or the end owes the model results.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from keephold.agent.compaction import compaction, too_long
from keephold.agent.events import (
    Answer,
    Answered,
    Called,
    Compacted,
    Event,
    Interjected,
    Listener,
    NotificationsDelivered,
    Retrying,
    StopReason,
    TurnFinished,
    TurnStarted,
    Used,
)
from keephold.agent.requests import ModelCall, RequestFailed, well_formed
from keephold.agent.spending import Spending
from keephold.agent.transcript import TurnEnded, interrupted, request, response_text, until_readable
from keephold.errors import KeepholdError
from keephold.turn.notifications import Notification, notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation

_log = logging.getLogger("keephold.agent")

PARK_AFTER_SECS = 30.0
"""How long a batch waits for a one-shot call that waits for its completion from outside (D10)."""
Content = str | Sequence[UserContent]
Stop = tuple[StopReason, str | None]
"""How a turn ends, and why if that is not as it should."""


class TurnLoop:
    """One turn of a conversation, from what the user says to its end."""

    def __init__(
        self, conversation: "Conversation", spending: Spending, listener: Listener | None, content: Content | None
    ) -> None:
        self._conversation = conversation
        self._transcript = conversation.transcript
        self.spending = spending
        self._listener = listener
        self._said: list[Content] = [] if content is None else [content]
        """What the user has said and the model has not been sent."""
        self._turn: Turn | None = None
        self._asking: asyncio.Task[Any] | None = None
        """What is asked of the model."""
        self._cancelled = self._left = False
        self._cut_off = False
        """The calls of the last line were made before the process died."""
        self._begun = content is None
        """What the user says from now on comes in between."""
        self._compacted = False
        """For the present request: once must do."""
        self._text = ""

    # What others do to it

    def say(self, content: Content) -> None:
        """The user says something more: it goes with the next request."""
        self._said.append(content)

    def cancel(self) -> None:
        """The stream stops, the batch is answered, handles end (B7, T5)."""
        self._cancelled = True
        if self._turn is not None:
            self._turn.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def leave(self) -> None:
        """The runtime is being closed: the turn stays open in the store, and is resumed (R6)."""
        self._left = True
        if self._asking is not None:
            self._asking.cancel()

    def _tell(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:
            _log.exception("a listener of conversation %s failed", self._conversation.id)

    # The turn

    async def run(self) -> Answer:
        """The whole turn; without content, that of a process that died. What models and tools do is in the answer."""
        conversation = self._conversation
        turn = self._turn = conversation.runtime.turn(conversation.id, resume=True, tools=conversation.selection)
        async with turn:
            await self._transcript.refresh()
            self._tell(TurnStarted(turn.id, turn.resumed))
            if turn.resumed and self._transcript.turn == turn.id:
                of_agents = await conversation.runtime.agency.spent_by_agents(conversation.id, turn.id)
                self.spending.resume(self._transcript.spent, of_agents)
                self._text = next(filter(None, map(response_text, reversed(self._transcript.spent))), "")
            if self._cancelled:
                turn.cancel()
            stop: StopReason
            try:
                stop, error = await self._steps(turn)
            except RequestFailed as failed:
                stop, error = "error", failed.message
            if self._cancelled:
                stop, error = "cancelled", None
            elif turn.failed is not None:
                stop, error = "error", f"the turn has failed: {turn.failed.message}"
            if stop in ("error", "cancelled"):
                turn.cancel()  # nobody is asked and nothing is waited for (T5)
            if stop != "end_turn":
                await self._transcript.note(turn.id, "ended", TurnEnded(stop, error))
        answer = Answer(text=self._text, stop_reason=stop, turn=turn.id, usage=self.spending.usage, error=error)
        self._tell(TurnFinished(answer))
        return answer

    async def _steps(self, turn: Turn) -> tuple[StopReason, str | None]:
        transcript = self._transcript
        calls = transcript.open_calls()
        self._cut_off = bool(calls) and turn.resumed and transcript.turn == turn.id
        if calls and not self._cut_off:
            await transcript.add(turn.id, interrupted(calls))
        if not isinstance(transcript.last, ModelResponse):
            await self._open(turn, self._take())
        while not self._cancelled and turn.failed is None:
            if not isinstance(transcript.last, ModelResponse):
                stop = await self._ask(turn)
            elif calls := transcript.open_calls():
                stop = await self._batch(turn, calls)
            elif said := self._take():
                stop = await self._open(turn, said)
            else:
                stop = await self._end(turn, transcript.last)
            if stop is not None:
                return stop
        if not self._begun:  # cancelled before it began: it was said all the same
            if calls := transcript.open_calls():
                await transcript.add(turn.id, interrupted(calls))
            await self._open(turn, self._take())
        return "end_turn", None

    async def _end(self, turn: Turn, last: ModelResponse) -> Stop | None:
        if last.finish_reason == "content_filter":
            return "refusal", "the provider refused to go on"
        if last.finish_reason == "length":
            return "max_tokens", "the answer was cut off: the model may not say more at once (max_tokens)"
        ending = await turn.end()
        if not ending.again:
            return "end_turn", None
        await self._transcript.add(turn.id, ModelRequest([UserPromptPart(ending.message)]))
        self._tell(NotificationsDelivered(ending.message))
        return None

    def _take(self) -> list[Content]:
        """What the user has said and the model has not been sent."""
        said, self._said = self._said, []
        return [*said, *self._conversation.received()]

    async def _open(self, turn: Turn, said: Sequence[Content]) -> Stop | None:
        """What the user said, with the news that rides on it (N4)."""
        parts = [*self._news(await turn.notifications()), *self._user(said)]
        if parts:
            await self._transcript.add(turn.id, request(parts, taken=self._conversation.seen))
        return None

    def _user(self, said: Sequence[Content]) -> list[ModelRequestPart]:
        for each in said if self._begun else said[1:]:
            self._tell(Interjected(_shown(each)))
        self._begun = self._begun or bool(said)
        return [UserPromptPart(_storable(each)) for each in said]

    def _news(self, news: Sequence[Notification]) -> list[ModelRequestPart]:
        block = notification_block(news)
        if not block:
            return []
        self._tell(NotificationsDelivered(block, tuple(news)))
        return [UserPromptPart(block)]

    # A batch

    async def _batch(self, turn: Turn, parts: Sequence[ToolCallPart]) -> Stop | None:
        calls = tuple(ToolCall(part.tool_call_id, part.tool_name, _arguments(part)) for part in parts)
        self._tell(Called(calls))
        responses = await self._responses(turn, calls)
        self._tell(Answered(tuple(responses)))
        results: list[ModelRequestPart] = [
            ToolReturnPart(
                part.tool_name,
                response.model,
                part.tool_call_id,
                outcome="failed" if response.is_error else "success",
            )
            for part, response in zip(parts, responses, strict=True)
        ]
        results += self._news([each for response in responses for each in response.notifications])
        await self._transcript.add(turn.id, request(results, batch=turn.batches))
        said = self._take() if turn.failed is None and (not self._cancelled or not self._begun) else []
        return await self._open(turn, said) if said else None

    async def _responses(self, turn: Turn, calls: Sequence[ToolCall]) -> list[Response]:
        """Of a batch that was cut off, what is recorded or can be resumed (B9); else it is run.

        Ids of calls are unique in their batch only, so the number tells which batch this is.
        """
        answered, turn.answered = turn.answered, None
        cut_off, self._cut_off = self._cut_off, False
        if cut_off and turn.batches == self._transcript.batch + 1:
            if turn.unfinished is not None and _ids(turn.unfinished.calls) == _ids(calls):
                return await turn.resume(park_after=PARK_AFTER_SECS)
            if answered is not None and _ids(answered) == _ids(calls):
                return answered
        if turn.unfinished is not None:  # of somebody else, who has run this turn with another transcript
            await turn.resume(park_after=0)
        return await turn.run(calls, park_after=PARK_AFTER_SECS)

    # A request

    async def _ask(self, turn: Turn) -> Stop | None:
        conversation, transcript = self._conversation, self._transcript
        self._check_here()
        exhausted = self.spending.exhausted()
        if exhausted is not None:
            return "max_turn_requests", f"stopped after {exhausted}"
        if not self._compacted and too_long(self.spending.usage, conversation.context_tokens):
            await self._compact(turn)
            self._check_here()
            if self._cancelled:
                return None
        call = ModelCall(conversation.assistant, transcript.messages, conversation.parameters(), self._tell)
        try:
            response = await self._unless_urgent(turn, call)
        except RequestFailed as error:
            if not error.too_long or self._compacted or not await self._compact(turn, forced=True):
                raise
            return None
        if response is None:
            self._check_here()
            await self._interrupted(turn, call.partial())
            return None
        self._compacted = False
        self.spending.add(response)
        self._tell(Used(self.spending.usage))
        if not response.parts:
            return "refusal", "the provider refused to answer"
        self._text = response_text(response) or self._text
        await transcript.add(turn.id, response)
        return None

    def _check_here(self) -> None:
        if self._left:
            raise KeepholdError(
                "the runtime was closed in the middle of the turn; the conversation goes on where it was",
                code="runtime_closed",
            )

    async def _unless_urgent(self, turn: Turn, call: ModelCall) -> ModelResponse | None:
        """The response; None if the turn was cancelled, or if there is critical news, which cannot wait (N4)."""
        self._asking = asyncio.create_task(call.answer())
        # If the store cannot be read, the answer is still paid for: the stream goes on, and the read is retried.
        urgent = asyncio.create_task(until_readable(turn.urgent))
        try:
            await asyncio.wait((self._asking, urgent), return_when=asyncio.FIRST_COMPLETED)
            done = self._asking.done() and not self._asking.cancelled()
            response: ModelResponse | None = self._asking.result() if done else None
            return response
        finally:
            for task in (self._asking, urgent):
                task.cancel()
            await asyncio.wait((self._asking, urgent))
            self._asking = None

    async def _compact(self, turn: Turn, *, forced: bool = False) -> bool:
        """Make the history shorter; whether that was done. Without need, a summary that fails is done without."""
        self._compacted = True
        call = compaction(self._conversation, self._transcript, turn.id, self.spending, self._tell_retry)
        self._asking = asyncio.create_task(call)
        try:
            await asyncio.wait((self._asking,))
            summary = None if self._asking.cancelled() else self._asking.result()
        except RequestFailed as error:
            if forced:
                raise
            _log.warning("conversation %s: %s", self._conversation.id, error)
            summary = None
        finally:
            self._asking.cancel()
            self._asking = None
        if summary is not None:
            self._tell(Compacted(summary))
        return summary is not None

    def _tell_retry(self, event: Event) -> None:
        if isinstance(event, Retrying):
            self._tell(event)

    async def _interrupted(self, turn: Turn, partial: str) -> None:
        """Keep what has come, and go on with what is urgent (N4)."""
        lines: list[ModelMessage] = []
        if partial:
            self._text = partial
            name = self._conversation.assistant.name
            lines.append(ModelResponse([TextPart(partial)], model_name=name, state="interrupted"))
        news = [] if self._cancelled else self._news(await turn.notifications())
        if news:
            lines.append(ModelRequest(news))
        if lines:
            await self._transcript.add(turn.id, *lines)


def _ids(calls: Iterable[ToolCall | Response]) -> list[str]:
    return [call.id for call in calls]


def _arguments(part: ToolCallPart) -> Any:
    return {} if part.args is None or part.args == "" else part.args


def _storable(content: Content) -> Content:
    if isinstance(content, str):
        return well_formed(content)
    return [well_formed(each) if isinstance(each, str) else each for each in content]


def _shown(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "".join(each if isinstance(each, str) else f"[{type(each).__name__}]" for each in content)
