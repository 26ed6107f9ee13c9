"""A model that plays a script: test an agent's tools, prompts and turns without a provider.

`ScriptedModel` drives real turns the way an agent's loop does. It gets a message, speaks and calls tools as its script
says, gets the responses and the notifications, answers inquiries, and speaks again where the end of a turn asks for
another response. `seen` holds everything it was given, in order, so that a test can check the conversation from the
model's side. A critical notification stops it in the middle of a sentence, as it would stop a stream.

To test a loop of your own, give it `model.openai()` or `model.anthropic()` in place of the SDK's client.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.runtime import Runtime
from keephold.turn.inquiry import Inquiry
from keephold.turn.notifications import Notification, notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class Says:
    """One response of the model: words, then tool calls as `(name, arguments)`. Without calls it has finished.

    `pace` is the time between two words, in seconds: how long the stream takes.
    """

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    pace: float = 0.0


class Heard(msgspec.Struct, frozen=True):
    """One thing that the model was given."""

    role: Literal["user", "tool", "system"]
    text: str
    """A message as it is; tool responses one below the other, each as a model gets it."""
    responses: tuple[Response, ...] = ()
    notifications: tuple[Notification, ...] = ()


class Spoken(msgspec.Struct, frozen=True):
    """One thing that the model said. `interrupted`: a critical notification came before it had finished."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    interrupted: bool = False


Line = str | Says | Callable[[Heard], "str | Says"]
"""A line of a script: words, a whole response, or a function of what the model was given last."""
Answers = Mapping[str, Any] | Callable[[Inquiry], Any]


class ScriptedModel:
    """Plays `script`, one line for each request that a provider would get.

    `answers` are for inquiries: by question id, or a function of the inquiry. `at_end` says what to do with handles
    that still run when it has finished: `"wait"` or `"abort"`, for all of them or by id, or a function that returns any
    answer, also an invalid one. Pass `Runtime(inquiry=model.inquiry)` so that inquiries reach it.
    """

    def __init__(
        self,
        script: Sequence[Line],
        *,
        answers: Answers | None = None,
        at_end: str | Answers = "wait",
    ) -> None:
        self._script = list(script)
        self._answers = answers if answers is not None else {}
        self._at_end = at_end
        self._calls = 0
        self.seen: list[Heard] = []
        self.said: list[Spoken] = []
        self.inquiries: list[Inquiry] = []
        """Inquiries, which are not part of the conversation."""

    async def converse(self, runtime: Runtime, message: str, *, conversation: str | None = None) -> Turn:
        """Play one turn, from the user's message to the end, and return the turn, which holds its `ending`."""
        async with runtime.turn(conversation) as turn:
            self._hear("user", message, notifications=await turn.notifications())
            while True:
                spoken = await self._speak(turn)
                if spoken.interrupted:
                    self._hear("system", "", notifications=await turn.notifications())
                elif spoken.calls:
                    self._hear_responses(await turn.run(spoken.calls))
                    if turn.failed is not None:
                        break
                else:
                    ending = await turn.end()
                    if not ending.again:
                        break
                    self._hear("system", ending.message)
        return turn

    def openai(self) -> "AsyncOpenAI":
        """Return a client of OpenAI's SDK that this model answers, for a loop of yours. It needs no network."""
        from keephold.testing.clients import openai_client

        return openai_client(self._reply)

    def anthropic(self) -> "AsyncAnthropic":
        """Return a client of Anthropic's SDK that this model answers, for a loop of yours. It needs no network."""
        from keephold.testing.clients import anthropic_client

        return anthropic_client(self._reply)

    async def _reply(self, given: str, results: bool) -> tuple[str, Sequence[ToolCall]]:
        self._hear("tool" if results else "user", given)
        says = self._next()
        await asyncio.sleep(says.pace * len(says.text.split(" ")))
        spoken = Spoken(says.text, self._numbered(says))
        self.said.append(spoken)
        return spoken.text, spoken.calls

    async def inquiry(self, inquiry: Inquiry) -> Any:
        """Answer an inquiry: pass this as `Runtime(inquiry=…)`."""
        self.inquiries.append(inquiry)
        if inquiry.purpose == "turn_end":
            return self._end_of_turn(inquiry)
        if callable(self._answers):
            return self._answers(inquiry)
        question = inquiry.id.split(".")[-2]
        if question not in self._answers:
            raise AssertionError(f"the script has no answer to question `{question}`: {inquiry.text}")
        return {"answer": self._answers[question]}

    def _end_of_turn(self, inquiry: Inquiry) -> Any:
        if callable(self._at_end):
            return self._at_end(inquiry)
        wanted = self._at_end
        ids = [handle["id"] for handle in inquiry.handles]
        chosen = {id: wanted if isinstance(wanted, str) else wanted.get(id, "abort") for id in ids}
        return {"handles": [{"id": id, "action": action} for id, action in chosen.items()]}

    def _hear(
        self,
        role: Literal["user", "tool", "system"],
        text: str,
        responses: Sequence[Response] = (),
        notifications: Sequence[Notification] = (),
    ) -> None:
        block = notification_block(notifications)
        whole = "\n\n".join(part for part in (text, block) if part)
        self.seen.append(Heard(role, whole, tuple(responses), tuple(notifications)))

    def _hear_responses(self, responses: Sequence[Response]) -> None:
        text = "\n".join(response.model for response in responses)
        self._hear("tool", text, responses, [each for response in responses for each in response.notifications])

    def _next(self) -> Says:
        """Return the next line of the script."""
        if not self._script:
            raise AssertionError(f"the script has no more lines, and the model was given: {self.seen[-1].text}")
        line = self._script.pop(0)
        if callable(line):
            line = line(self.seen[-1])
        says = Says(line) if isinstance(line, str) else line
        if not isinstance(says, Says):
            raise TypeError(f"a line of a script is a text, `Says(…)` or a function that returns one, not {says!r:.80}")
        return says

    async def _speak(self, turn: Turn) -> Spoken:
        says = self._next()
        text = await self._stream(turn, says)
        spoken = Spoken(says.text, self._numbered(says)) if text is None else Spoken(text, interrupted=True)
        self.said.append(spoken)
        return spoken

    def _numbered(self, says: Says) -> tuple[ToolCall, ...]:
        first, self._calls = self._calls + 1, self._calls + len(says.calls)
        return tuple(ToolCall(f"call_{number}", *call) for number, call in enumerate(says.calls, start=first))

    async def _stream(self, turn: Turn, says: Says) -> str | None:
        """Say it word by word. Return what was said so far if a critical notification interrupted it, else None."""
        urgent = asyncio.ensure_future(turn.urgent())
        words = says.text.split(" ")
        try:
            for count in range(len(words)):
                done, _ = await asyncio.wait([urgent], timeout=says.pace)
                if done:
                    return " ".join(words[:count])
        finally:
            urgent.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await urgent
        return None
