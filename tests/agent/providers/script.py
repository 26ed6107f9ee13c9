"""What a provider says: one script for all of them, in no provider's words.

A script is a list of turns, taken one for each request that the provider accepts, or one function that is given every
request. A turn is a value of this module, or a function of the request that returns one (a coroutine function may take
its time). `inquiries` are taken by requests that want structured output, if there are any; otherwise those take the
next turn like any other. A request beyond the end is refused, and the server's block ends with an error.

In a file: `{"turns": [{"type": "reply", "text": "…"}, …], "inquiries": [{"type": "reply", "answer": …}]}`.
"""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, Literal

import msgspec
from tests.agent.providers.neutral import Asked

Finish = Literal["stop", "length", "filter", "none"]
"""`none`: the reason is left out, as some local servers do."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens: those read from the cache are part of the input, those of thinking are part of the output."""

    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    thinking_tokens: int = 0


class Reply(msgspec.Struct, frozen=True, tag="reply", kw_only=True):
    """An answer of the model. One without text and calls is the empty response that providers give now and then.

    `calls` are names with arguments; arguments that are text are sent as they are, where the format can. `ids` are the
    ids of the first calls; the provider makes the others. `answer` is structured output: it is sent as the request
    wants it, as a call of the tool it forces or as JSON text. `piece` is how many characters a streamed piece has.
    """

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, dict[str, Any] | str]] = []
    ids: list[str] = []
    answer: Any = msgspec.UNSET
    usage: Usage = Usage()
    finish: Finish = "stop"
    piece: int = 8

    def to(self, asked: Asked) -> "Reply":
        """The reply with its `answer` in the form that the request wants."""
        if self.answer is msgspec.UNSET:
            return self
        wanted = asked.wanted
        assert wanted is not None, "the script answers with structured output, which the request does not want"
        if wanted.tool is not None:
            return msgspec.structs.replace(self, calls=[(wanted.tool, self.answer)], answer=msgspec.UNSET)
        text = msgspec.json.encode(self.answer).decode()
        return msgspec.structs.replace(self, text=text, answer=msgspec.UNSET)


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """An error of the provider, in its own form and, without a message, in its own words."""

    status: int
    message: str = ""
    retry_after: float | None = None


class Break(msgspec.Struct, frozen=True, tag="break", kw_only=True):
    """A reply whose connection is cut after so many events; one that is not streamed is cut in its middle."""

    after: int = 2
    reply: Reply = Reply(text="Something that nobody will read to its end.")


class Hang(msgspec.Struct, frozen=True, tag="hang", kw_only=True):
    """A reply that goes silent after so many events, until the client goes or the server ends."""

    after: int = 2
    reply: Reply = Reply(text="Something that nobody will read to its end.")


Turn = Reply | Fail | Break | Hang
Saying = Callable[[Asked], Turn | Awaitable[Turn]]
Step = Turn | Saying


class Overrun(Exception):
    """A request came that the script has no turn for."""


class Script:
    """Hands out the turns."""

    def __init__(self, turns: Sequence[Step] | Saying, inquiries: Sequence[Step] = ()) -> None:
        self._always = turns if callable(turns) else None
        self._turns = [] if callable(turns) else list(turns)
        self._inquiries = list(inquiries)
        self._separate = bool(inquiries)

    @property
    def left(self) -> int:
        """How many turns nobody has asked for."""
        return len(self._turns) + len(self._inquiries)

    async def next(self, asked: Asked) -> Turn:
        turn = self._take(asked)
        if callable(turn):
            said = turn(asked)
            return await said if isawaitable(said) else said
        return turn

    def _take(self, asked: Asked) -> Step:
        kind, queue = "turn", self._turns
        if self._separate and asked.wanted is not None:
            kind, queue = "inquiry", self._inquiries
        elif self._always is not None:
            return self._always
        if not queue:
            raise Overrun(f"the script has no {kind} left for a request with {len(asked.messages)} messages")
        return queue.pop(0)


class ScriptFile(msgspec.Struct, forbid_unknown_fields=True):
    """A script in a file."""

    turns: list[Turn]
    inquiries: list[Turn] = []


def read_script(data: bytes) -> Script:
    """A script from JSON."""
    decoded = msgspec.json.decode(data, type=ScriptFile)
    return Script(decoded.turns, decoded.inquiries)
