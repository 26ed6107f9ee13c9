"""A model that plays a script: test an agent's tools, prompts and turns without a provider.

`ScriptedModel` drives real turns the way an agent's loop does. It gets a message, speaks and calls tools as its script
says, gets the responses and the notifications, answers inquiries, and speaks again where the end of a turn asks for
another response. `seen` holds everything it was given, in order, so that a test can check the conversation from the
model's side. A critical notification stops it in the middle of a sentence, as it would stop a stream.

To test a loop of your own, give it `model.openai()` or `model.anthropic()` in place of the SDK's client.
The SDK builds its request and returns its own types. Only `post`, which would send the request, is replaced, so that
there is neither a network nor a thread, and virtual time works. A history in which a call has no result raises
`AssertionError`; the providers refuse it, too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.extras import need
from keephold.runtime import Runtime
from keephold.turn.inquiry import Inquiry
from keephold.turn.notifications import Notification, notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

Answers = Mapping[str, Any] | Callable[[Inquiry], Any]
Part = tuple[str, str, str]
"""A piece of a request: `said` and `call` are the model's, `given` and `result` are for it; the call's id; the text."""
Reply = Callable[[str, bool], Awaitable[tuple[str, Sequence[ToolCall]]]]
"""Answers what the model was given: its text, and whether it has results of tools."""
Format = tuple[Callable[[Any], Iterator[Part]], Callable[[str, Sequence[ToolCall]], dict[str, Any]]]
"""How a request is read, and how its answer is written."""


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

        return openai_client(self._reply)

    def anthropic(self) -> "AsyncAnthropic":
        """Return a client of Anthropic's SDK that this model answers, for a loop of yours. It needs no network."""

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


def openai_client(reply: Reply) -> "AsyncOpenAI":
    """Return a client for chat completions and responses."""
    need("agent", "a scripted client of OpenAI's SDK", "openai")
    from openai import AsyncOpenAI

    chat, responses = (_chat_parts, _chat_answer), (_response_parts, _response_answer)
    client: AsyncOpenAI = _scripted(AsyncOpenAI, reply, {"/chat/completions": chat, "/responses": responses})
    return client


def anthropic_client(reply: Reply) -> "AsyncAnthropic":
    """Return a client for messages."""
    need("agent", "a scripted client of Anthropic's SDK", "anthropic")
    from anthropic import AsyncAnthropic

    client: AsyncAnthropic = _scripted(AsyncAnthropic, reply, {"/v1/messages": (_message_parts, _message_answer)})
    return client


def _scripted(sdk: Any, reply: Reply, formats: dict[str, Format]) -> Any:
    async def post(_client: Any, path: str, *, cast_to: Any, body: Any = None, stream: bool = False, **_: Any) -> Any:
        if path not in formats:
            raise AssertionError(f"a scripted model does not answer {path}, only {' and '.join(formats)}")
        if stream:
            raise AssertionError("a scripted model does not stream: send the request without `stream`")
        read, write = formats[path]
        said = await reply(*_newest(list(read(body))))
        return cast_to.model_validate({"model": body["model"], **write(*said)})

    return type(f"Scripted{sdk.__name__}", (sdk,), {"post": post})(api_key="scripted")


def _newest(parts: list[Part]) -> tuple[str, bool]:
    """Return the text since the model last spoke, and whether results are in it. Every call must have its result."""
    results = {id for kind, id, _ in parts if kind == "result"}
    missing = [id for kind, id, _ in parts if kind == "call" and id not in results]
    if missing:
        raise AssertionError(f"the request has no result for {', '.join(missing)}; send one for each call")
    spoken = [at for at, (kind, *_) in enumerate(parts, start=1) if kind in ("said", "call")]
    newest = parts[spoken[-1] if spoken else 0 :]
    return "\n".join(text for *_, text in newest if text), any(kind == "result" for kind, *_ in newest)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block["text"] for block in content if isinstance(block.get("text"), str))


def _given(role: str) -> str:
    return "said" if role == "assistant" else "given"


def _conversation(items: Any) -> Iterator[Any]:
    """Yield the messages as JSON, also those that are objects of the SDK, without the instructions at the start."""
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    plain = msgspec.to_builtins(items, enc_hook=lambda each: each.model_dump(mode="json", exclude_none=True))
    return dropwhile(lambda item: item.get("role") in ("system", "developer"), plain)


# Chat completions


def _chat_parts(body: dict[str, Any]) -> Iterator[Part]:
    for message in _conversation(body["messages"]):
        text = _text(message.get("content"))
        if message["role"] == "tool":
            yield "result", message["tool_call_id"], text
        else:
            yield _given(message["role"]), "", text
        for call in message.get("tool_calls") or ():
            yield "call", call["id"], ""


def _chat_answer(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call)}} for call in calls
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {"id": "scripted", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}


def _json(call: ToolCall) -> str:
    return msgspec.json.encode(call.arguments).decode()


# Responses


def _response_parts(body: dict[str, Any]) -> Iterator[Part]:
    for item in _conversation(body["input"]):
        match item.get("type", "message"):
            case "function_call":
                yield "call", item["call_id"], ""
            case "function_call_output":
                yield "result", item["call_id"], _text(item["output"])
            case "message":
                yield _given(item["role"]), "", _text(item["content"])


def _response_answer(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "scripted", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    made = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": _json(call)} for call in calls
    ]
    return {
        "id": "scripted", "object": "response", "created_at": 0, "status": "completed", "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "output": [message, *made] if text else made,
        "usage": {
            "input_tokens": 0, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0,
        },
    }  # fmt: skip


# Anthropic's messages


def _message_parts(body: dict[str, Any]) -> Iterator[Part]:
    for message in _conversation(body["messages"]):
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match block["type"]:
                case "tool_use":
                    yield "call", block["id"], ""
                case "tool_result":
                    yield "result", block["tool_use_id"], _text(block.get("content"))
                case "text":
                    yield _given(message["role"]), "", block["text"]


def _message_answer(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    made = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in calls]
    return {
        "id": "scripted", "type": "message", "role": "assistant", "stop_sequence": None,
        "content": [{"type": "text", "text": text}, *made] if text else made,
        "stop_reason": "tool_use" if made else "end_turn", "usage": {"input_tokens": 0, "output_tokens": 0},
    }  # fmt: skip
