"""Clients of OpenAI's and Anthropic's SDKs that a script answers in place of the provider.

The SDK builds its request and returns its own types. Only `post`, which would send the request, is replaced, so that
there is neither a network nor a thread, and virtual time works. A history in which a call has no result raises
`AssertionError`; the providers refuse it, too.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.extras import need
from keephold.turn.tool_call import ToolCall

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

Part = tuple[str, str, str]
"""A piece of a request: `said` and `call` are the model's, `given` and `result` are for it; the call's id; the text."""
Reply = Callable[[str, bool], Awaitable[tuple[str, Sequence[ToolCall]]]]
"""Answers what the model was given: its text, and whether it has results of tools."""
Format = tuple[Callable[[Any], Iterator[Part]], Callable[[str, Sequence[ToolCall]], dict[str, Any]]]
"""How a request is read, and how its answer is written."""


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
