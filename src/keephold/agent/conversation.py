"""A conversation with a model: its transcript in the store, and one turn after the other (G1)."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from pydantic_ai.messages import InstructionPart, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from keephold.agent.events import Listener, StopReason, TurnAnswer, Usage
from keephold.agent.loop import Content, TurnLoop
from keephold.agent.models import Assistant
from keephold.agent.requests import instructions
from keephold.agent.spending import Allowance, Spending, need_price, total
from keephold.agent.transcript import Transcript, response_text
from keephold.errors import KeepholdError
from keephold.schema.shared import presentation
from keephold.store.base import ConversationRow, Described, TranscriptLine
from keephold.tools.toolbox import Selection

if TYPE_CHECKING:
    from keephold.runtime import Runtime


class Conversation:
    """One conversation. `Runtime.conversation` makes it.

    `prompt` runs a whole turn and returns how it ended; a listener gets the events meanwhile (`keephold.agent.events`).
    Every message is stored before anything follows from it. If the process dies, another one resumes the conversation
    by its id.
    """

    def __init__(
        self,
        runtime: "Runtime",
        id: str,
        assistant: Assistant,
        *,
        selection: Selection,
        own_instructions: Sequence[str] = (),
        allowance: Allowance | None = None,
        context_tokens: int | None = None,
        above: Callable[[], Spending | None] = lambda: None,
    ) -> None:
        self.runtime = runtime
        self.id = id
        self.assistant = assistant
        self.selection = selection
        self.context_tokens = context_tokens
        self.transcript = Transcript(runtime.registry, id)
        self.usage = Usage(context_window=assistant.model.context_window)
        """The usage of this object's turns."""
        self.interrupted = False
        """The process of a turn died: `resume`, or the next `prompt`, resumes the turn."""
        self.inbox: Callable[[], list[Content]] = list
        """A source of further messages, besides `say`. After a restart it returns all of them again (E10)."""
        self.seen = 0
        """How many messages the inbox has returned."""
        self._own_instructions = own_instructions
        self._allowance = allowance or Allowance()
        self._above = above
        need_price(assistant.model, Spending(self._allowance, above).max_cost)
        self._opening: asyncio.Lock = asyncio.Lock()
        self._opened = False
        self._loop: TurnLoop | None = None
        self._parameters: ModelRequestParameters | None = None

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""
        return self._loop is not None

    @property
    def spending(self) -> Spending | None:
        """The spending of the running turn."""
        return None if self._loop is None else self._loop.spending

    def _spent(self, taken: Usage) -> None:
        for meter in self.runtime.registry.meters:
            meter.spent(
                self.assistant.name,
                input_tokens=taken.input_tokens,
                output_tokens=taken.output_tokens,
                cost=taken.cost,
            )

    async def open(self) -> None:
        """Read the transcript. `prompt` does it if you have not."""
        async with self._opening:
            if self._opened:
                return
            await self.runtime.open()
            await self.runtime.agents.enter(self.assistant)
            await self.transcript.load()
            store = self.runtime.registry.store
            before = await store.turn(self.id)
            self.interrupted = (
                before is not None
                and before.turn == self.transcript.turn
                and (before.owner is None or not store.alive(before.owner))
            )
            if self.interrupted and self.transcript.ended is not None:
                await self.end_interrupted()
            self._opened = True

    async def end_interrupted(self) -> None:
        """End the interrupted turn: one that ended before its process could record that, or that nobody will resume."""
        async with self.runtime.turn(self.id, resume=True, tools=self.selection) as turn:
            turn.cancel()
        self.interrupted = False

    async def use(self, assistant: Assistant) -> None:
        """Ask another model from the next turn on. Raises `KeepholdError` if `max_cost` is set and its price is not
        known."""
        need_price(assistant.model, Spending(self._allowance, self._above).max_cost)
        await self.runtime.agents.enter(assistant)
        self.assistant = assistant
        self.usage = msgspec.structs.replace(self.usage, context_window=assistant.model.context_window)

    async def prompt(self, content: Content, *, listener: Listener | None = None) -> TurnAnswer:
        """Run one whole turn: send the user's message, return the model's answer. An interrupted turn is resumed in it.

        Failures of models and tools are in the answer. Raises `KeepholdError` if no turn can run, if the store fails,
        or if the runtime closes.
        """
        if not content:
            raise KeepholdError("a prompt needs a text", code="invalid_arguments")
        return await self._run(content, listener)

    async def resume(self, *, listener: Listener | None = None) -> TurnAnswer:
        """Resume the interrupted turn."""
        await self.open()
        if not self.interrupted:
            raise KeepholdError("this conversation has no turn that was interrupted", code="no_open_batch")
        return await self._run(None, listener)

    async def _run(self, content: Content | None, listener: Listener | None) -> TurnAnswer:
        if self._loop is not None:
            raise KeepholdError("a turn of this conversation is running; `say` adds to it", code="turn_open")
        if inspect.iscoroutinefunction(listener):
            raise KeepholdError(
                "a listener is called and not awaited; make it a plain function that queues what it shows later",
                code="invalid_arguments",
            )
        spending = Spending(self._allowance, self._above, self.assistant.model.context_window, self._spent)
        loop = self._loop = TurnLoop(self, spending, listener, content)
        self._tools_changed()
        unlisten = self.runtime.on_tools.add(self._tools_changed)
        try:
            await self.open()
            spending.start(self.usage.context_tokens)
            await self.runtime.connected(0)
            return await loop.run()
        finally:
            unlisten()
            self._loop = None
            self.interrupted = loop.left_open
            self.usage = total(self.usage, spending.usage)

    def say(self, content: Content) -> None:
        """Add a message to the running turn. The model gets it with the next request.

        The listener gets `Interjected` when the message is taken; a message that comes too late for this turn is not
        taken.
        """
        if self._loop is None:
            raise KeepholdError("no turn is running; `prompt` begins one", code="turn_not_open")
        self._loop.say(content)

    def received(self) -> list[Content]:
        """Return the inbox messages that are not in the transcript yet."""
        came = self.inbox()
        self.seen += len(came)
        return came[max(0, len(came) - (self.seen - self.transcript.taken)) :] if came else []

    @property
    def finished(self) -> TurnAnswer | None:
        """How the last turn ended, if the conversation was reopened and has nothing left to do."""
        last, ended = self.transcript.last, self.transcript.ended
        if ended is not None and self.transcript.turn is not None and not self.interrupted:
            text = next(filter(None, map(response_text, reversed(self.transcript.spent))), "")
            stop = cast(StopReason, ended.stop_reason)
            return TurnAnswer(
                text=text, stop_reason=stop, turn=self.transcript.turn, usage=self.usage, error=ended.error
            )
        if self.interrupted or not isinstance(last, ModelResponse) or last.tool_calls or self.transcript.turn is None:
            return None
        return TurnAnswer(text=response_text(last), stop_reason="end_turn", turn=self.transcript.turn, usage=self.usage)

    def cancel(self) -> None:
        """Cancel the running turn, if any: `prompt` returns soon, with `cancelled`."""
        if self._loop is not None:
            self._loop.cancel()

    def suspend(self) -> None:
        """Leave the running turn open, to be resumed: the runtime is closing (R6)."""
        if self._loop is not None:
            self._loop.suspend()

    async def lines(self) -> list[TranscriptLine]:
        """Return the stored transcript."""
        await self.runtime.open()
        return await self.transcript.read()

    async def describe(self, **metadata: Any) -> None:
        """Store metadata of the conversation, such as its title; None removes a key."""
        registry = self.runtime.registry
        await self.runtime.open()
        await registry.write((Described(self.id, registry.clock.now(), metadata),))

    async def description(self) -> ConversationRow | None:
        """Return the conversation's metadata and times; None if nothing was said in it."""
        await self.runtime.open()
        return await self.runtime.registry.store.conversation(self.id)

    def _tools_changed(self) -> None:
        self._parameters = None

    def parameters(self) -> ModelRequestParameters:
        """Return the tools and instructions that go with every request."""
        if self._parameters is None:
            strict, dialect = self.assistant.strict, self.assistant.dialect
            shown = presentation(dialect, self.runtime.toolbox.actions)
            tools = self.selection.listed(dialect)
            self._parameters = ModelRequestParameters(
                function_tools=[
                    ToolDefinition(
                        name=each["name"],
                        parameters_json_schema=each["parameters"],
                        description=each["description"],
                        strict=strict,
                    )
                    for each in tools
                ],
                instruction_parts=[InstructionPart(content=instructions(shown, *self._own_instructions))],
            )
        return self._parameters
