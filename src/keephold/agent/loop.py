"""The turn loop: the last line of the transcript decides the next step, so a turn can be resumed anywhere (G1).

- After a request, the model is asked.
- After a response with calls, they run as one batch, and their results are the next request.
- After a response without calls, the turn ends, unless the user has sent more or the end owes the model results.
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

from keephold.agent import events
from keephold.agent.compaction import compaction, too_long
from keephold.agent.requests import ModelCall, RequestFailed, well_formed
from keephold.agent.spending import Spending
from keephold.agent.transcript import TurnStop, interrupted, request, response_text, until_readable
from keephold.errors import KeepholdError
from keephold.turn.notifications import Notification, notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation

_log = logging.getLogger("keephold.agent")

PARK_AFTER_SECS = 30.0
"""How long a batch waits for a one-shot call whose completion comes from outside (D10)."""
_TOO_SHORT = "the answer was cut off: the model may not say more at once (max_tokens)"
_CUT_SHORT = {
    "length": "Not run: your response was cut off at the limit of its length, so this call may be incomplete. Send it "
    "again in a shorter response, with less text or fewer calls.",
    "content_filter": "Not run: the provider's filter stopped the response, so this call may be incomplete.",
}
"""The results of calls in a response that was cut short, by its finish reason."""
Content = str | Sequence[UserContent]
Stop = tuple[events.StopReason, str | None]
"""How a turn ends, and the reason if it did not complete."""


class TurnLoop:
    """One turn of a conversation, from the user's message to its end."""

    def __init__(
        self,
        conversation: "Conversation",
        spending: Spending,
        listener: events.Listener | None,
        content: Content | None,
    ) -> None:
        self._conversation = conversation
        self._transcript = conversation.transcript
        self.spending = spending
        self._listener = listener
        self._said: list[Content] = [] if content is None else [content]
        """Messages of the user that the model has not been sent."""
        self._turn: Turn | None = None
        self._asking: asyncio.Task[Any] | None = None
        """The running request to the model."""
        self._cancelled = self._suspended = False
        self._cut_off = False
        """The calls of the last line were made before the process died."""
        self._begun = content is None
        """Further messages of the user are interjections."""
        self._compacted = False
        """The history was shortened for the present request; that is done once."""
        self._text = ""

    # Called from outside

    def say(self, content: Content) -> None:
        """Queue a message of the user for the next request."""
        self._said.append(content)

    def cancel(self) -> None:
        """Stop the stream, answer the batch, end the handles (B7, T5)."""
        self._cancelled = True
        if self._turn is not None:
            self._turn.cancel()
        if self._asking is not None:
            self._asking.cancel()

    @property
    def left_open(self) -> bool:
        """Whether an exception has interrupted the turn after it had begun: the conversation can resume it (R9)."""
        return self._turn is not None and self._turn.interrupted and self._transcript.turn == self._turn.id

    def suspend(self) -> None:
        """Leave the turn open in the store, to be resumed: the runtime is closing (R6)."""
        self._suspended = True
        if self._asking is not None:
            self._asking.cancel()

    def _tell(self, event: events.Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:
            _log.exception("a listener of conversation %s failed", self._conversation.id)

    # The turn

    async def run(self) -> events.TurnAnswer:
        """Run the whole turn; without content, resume the one of a dead process. Failures of models and tools are in
        the answer."""
        conversation = self._conversation
        turn = self._turn = conversation.runtime.turn(conversation.id, resume=True, tools=conversation.selection)
        async with turn:
            await self._transcript.refresh()
            self._tell(events.TurnStarted(turn.id, turn.resumed))
            if turn.resumed and self._transcript.turn == turn.id:
                of_agents = await conversation.runtime.agents.spent_by_agents(conversation.id, turn.id)
                self.spending.resume(self._transcript.spent, of_agents)
                self._text = next(filter(None, map(response_text, reversed(self._transcript.spent))), "")
            if self._cancelled:
                turn.cancel()
            stop: events.StopReason
            try:
                stop, error = await self._steps(turn)
            except RequestFailed as failed:
                stop, error = "error", failed.message
            if self._cancelled:
                stop, error = "cancelled", None
            elif turn.failed is not None:
                stop, error = "error", f"the turn has failed: {turn.failed.message}"
            if stop in ("error", "cancelled"):
                turn.cancel()  # no inquiry, no waiting (T5)
            if stop != "end_turn":
                await self._transcript.note(turn.id, "ended", TurnStop(stop, error))
        answer = events.TurnAnswer(
            text=self._text, stop_reason=stop, turn=turn.id, usage=self.spending.usage, error=error
        )
        self._tell(events.TurnFinished(answer))
        return answer

    async def _steps(self, turn: Turn) -> tuple[events.StopReason, str | None]:
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
                cut = _CUT_SHORT.get(transcript.last.finish_reason or "")
                stop = await self._batch(turn, calls) if cut is None else await self._not_run(turn, calls, cut)
            elif said := self._take():
                stop = await self._open(turn, said)
            else:
                stop = await self._end(turn, transcript.last)
            if stop is not None:
                return stop
        if not self._begun:  # cancelled before it began: the message is kept
            if calls := transcript.open_calls():
                await transcript.add(turn.id, interrupted(calls))
            await self._open(turn, self._take())
        return "end_turn", None

    async def _end(self, turn: Turn, last: ModelResponse) -> Stop | None:
        if last.finish_reason == "content_filter":
            return "refusal", "the provider refused to continue"
        if last.finish_reason == "length":
            return "max_tokens", _TOO_SHORT
        ending = await turn.end()
        if not ending.again:
            return "end_turn", None
        await self._transcript.add(turn.id, ModelRequest([UserPromptPart(ending.message)]))
        self._tell(events.NotificationsDelivered(ending.message))
        return None

    def _take(self) -> list[Content]:
        said, self._said = self._said, []
        return [*said, *self._conversation.received()]

    async def _open(self, turn: Turn, said: Sequence[Content]) -> Stop | None:
        """Write the user's messages, after the notifications that wait (N4)."""
        parts = [*self._notification_parts(await turn.notifications()), *self._user(said)]
        if parts:
            await self._transcript.add(turn.id, request(parts, taken=self._conversation.seen, user=len(said)))
        return None

    def _user(self, said: Sequence[Content]) -> list[ModelRequestPart]:
        for each in said if self._begun else said[1:]:
            self._tell(events.Interjected(_shown(each)))
        self._begun = self._begun or bool(said)
        return [UserPromptPart(_storable(each)) for each in said]

    def _notification_parts(self, notifications: Sequence[Notification]) -> list[ModelRequestPart]:
        block = notification_block(notifications)
        if not block:
            return []
        self._tell(events.NotificationsDelivered(block, tuple(notifications)))
        return [UserPromptPart(block)]

    # A batch

    async def _batch(self, turn: Turn, parts: Sequence[ToolCallPart]) -> Stop | None:
        calls = tuple(ToolCall(part.tool_call_id, part.tool_name, _arguments(part)) for part in parts)
        self._tell(events.Called(calls))
        responses = await self._responses(turn, calls)
        self._tell(events.Answered(tuple(responses)))
        results: list[ModelRequestPart] = [
            ToolReturnPart(
                part.tool_name,
                response.model,
                part.tool_call_id,
                outcome="failed" if response.is_error else "success",
            )
            for part, response in zip(parts, responses, strict=True)
        ]
        results += self._notification_parts([each for response in responses for each in response.notifications])
        await self._transcript.add(turn.id, request(results, batch=turn.batches))
        said = self._take() if turn.failed is None and (not self._cancelled or not self._begun) else []
        return await self._open(turn, said) if said else None

    async def _not_run(self, turn: Turn, calls: Sequence[ToolCallPart], why: str) -> Stop | None:
        """Refuse the calls of a response that was cut short: the arguments of any of them may be incomplete."""
        self._cut_off = False
        before = self._transcript.spent[-2:-1]
        await self._transcript.add(turn.id, interrupted(calls, why))
        last = self._transcript.spent[-1].finish_reason
        if last == "content_filter":
            return "refusal", "the provider refused to continue"
        if before and before[0].finish_reason == last:  # the second in a row
            return "max_tokens", _TOO_SHORT
        return None

    async def _responses(self, turn: Turn, calls: Sequence[ToolCall]) -> list[Response]:
        """Run a batch. Of one that was cut off, return the recorded responses or resume it (B9).

        Ids of calls are unique in their batch only, so the number identifies the batch.
        """
        answered, turn.answered = turn.answered, None
        cut_off, self._cut_off = self._cut_off, False
        if cut_off and turn.batches == self._transcript.batch + 1:
            if turn.unfinished is not None and _ids(turn.unfinished.calls) == _ids(calls):
                return await turn.resume(park_after=PARK_AFTER_SECS)
            if answered is not None and _ids(answered) == _ids(calls):
                return answered
        if turn.unfinished is not None:  # another program ran this turn with a transcript of its own
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
        self._tell(events.Used(self.spending.usage))
        if not response.parts:
            return "refusal", "the provider refused to answer"
        self._text = response_text(response) or self._text
        await transcript.add(turn.id, response)
        return None

    def _check_here(self) -> None:
        if self._suspended:
            raise KeepholdError(
                "the runtime was closed in the middle of the turn; the conversation continues where it was",
                code="runtime_closed",
            )

    async def _unless_urgent(self, turn: Turn, call: ModelCall) -> ModelResponse | None:
        """Return the response; None if the turn was cancelled or a critical notification interrupts it (N4)."""
        self._asking = asyncio.create_task(call.answer())
        # An answer that streams is paid for: if the store cannot be read, retry the read instead of stopping
        # the stream.
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
        """Shorten the history; return whether that was done. If the model still takes the history, a failed summary is
        ignored."""
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
            self._tell(events.Compacted(summary))
        return summary is not None

    def _tell_retry(self, event: events.Event) -> None:
        if isinstance(event, events.Retrying):
            self._tell(event)

    async def _interrupted(self, turn: Turn, partial: str) -> None:
        """Keep the partial answer, and send the critical notifications (N4)."""
        lines: list[ModelMessage] = []
        if partial:
            self._text = partial
            name = self._conversation.assistant.name
            lines.append(ModelResponse([TextPart(partial)], model_name=name, state="interrupted"))
        parts = [] if self._cancelled else self._notification_parts(await turn.notifications())
        if parts:
            lines.append(ModelRequest(parts))
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
