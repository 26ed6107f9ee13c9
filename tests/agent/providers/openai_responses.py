"""OpenAI's responses, as a server: `POST /v1/responses`.

Input is a list of items; each call is answered by one output, anywhere after it. Thinking is a reasoning item with a
summary; its encrypted content must come back as it was given out.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from tests.agent.providers import openai_rules as rules
from tests.agent.providers.base import Event, Refusal, Wire, as_text, now, pieces
from tests.agent.providers.neutral import Asked, Call, OfferedTool, Result, decoded, texts
from tests.agent.providers.script import Reply, Usage

Item = dict[str, Any]

_REASONS = {"length": "max_output_tokens", "filter": "content_filter"}


class OpenAIResponses(Wire):
    """Responses."""

    format = "openai-responses"
    path = "/v1/responses"
    models = ("gpt-5.5", "gpt-5.4-mini")
    prefix = "/v1"

    def authorise(self, headers: Mapping[str, str]) -> None:
        rules.authorise(headers)

    def address(self, request: Request, body: dict[str, Any]) -> tuple[str, bool]:
        return body.get("model", ""), bool(body.get("stream"))

    def unknown(self, model: str) -> Refusal:
        return rules.unknown(model)

    def error(self, refusal: Refusal, retry_after: float | None = None) -> dict[str, Any]:
        return rules.error(refusal)

    def failure(self, status: int) -> str:
        return rules.failure(status)

    # What is refused

    def check(self, body: dict[str, Any]) -> None:
        _check_input(_items(body))
        tools = body.get("tools") or []
        rules.check_count(tools)
        for at, tool in enumerate(tools):
            rules.check_name(tool["name"], f"tools[{at}].name")
            strict = tool.get("strict", True) is not False  # unlike chat completions: strict unless it says otherwise
            where = f"tools[{at}].parameters"
            rules.check_parameters(tool["name"], tool.get("parameters") or {}, strict=strict, where=where)
        output = _output_format(body)
        if output:
            strict = bool(output.get("strict"))
            rules.check_output(output["name"], output["schema"], strict=strict, where="text.format.schema")

    # What is asked

    def read(self, asked: Asked) -> None:
        body = asked.body
        asked.system = body.get("instructions") or ""
        for item in _items(body):
            _read_item(asked, item)
        for tool in body.get("tools") or []:
            strict = tool.get("strict", True) is not False
            offered = OfferedTool(tool["name"], tool.get("description") or "", tool.get("parameters") or {}, strict)
            asked.tools.append(offered)
        asked.choice = _choice(body.get("tool_choice", "auto"))
        asked.schema = (_output_format(body) or {}).get("schema")

    # What is answered

    def whole(self, reply: Reply, asked: Asked) -> dict[str, Any]:
        items = [self._item(kind, content, reply) for kind, content in _contents(reply)]
        return self._response(asked, self.number("resp_"), items, reply)

    def events(self, reply: Reply, asked: Asked) -> Iterator[Event]:
        for number, (kind, data) in enumerate(self._happenings(reply, asked)):
            yield Event({"type": kind, "sequence_number": number, **data}, kind)

    def _happenings(self, reply: Reply, asked: Asked) -> Iterator[tuple[str, dict[str, Any]]]:
        id = self.number("resp_")
        begun = self._response(asked, id, [], None)
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        done: list[Item] = []
        for index, (kind, content) in enumerate(_contents(reply)):
            item = self._item(kind, content, reply)
            place = {"output_index": index, "item_id": item["id"]}
            yield "response.output_item.added", {"output_index": index, "item": _empty(item)}
            if kind == "reasoning":
                yield from _summary(item, {**place, "summary_index": 0}, reply.piece)
            elif kind == "message":
                yield from _text(item, {**place, "content_index": 0}, reply.piece)
            else:
                yield from _arguments(item, place, reply.piece)
            yield "response.output_item.done", {"output_index": index, "item": item}
            done.append(item)
        if reply.finish == "none":
            return
        ended = self._response(asked, id, done, reply)
        yield f"response.{ended['status']}", {"response": ended}

    def _item(self, kind: str, content: Any, reply: Reply) -> Item:
        status = "completed" if reply.finish == "stop" else "incomplete"
        match kind:
            case "reasoning":
                summary = [{"type": "summary_text", "text": content}]
                kept = _encrypted(content)
                return {"id": self.number("rs_"), "type": "reasoning", "summary": summary, "encrypted_content": kept}
            case "message":
                part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
                item = {"id": self.number("msg_"), "type": "message", "status": status}
                return {**item, "role": "assistant", "content": [part]}
        index, (name, given) = content
        call = {"id": self.number("fc_"), "type": "function_call", "status": status}
        return {**call, "call_id": self.call_id(reply, index, "call_"), "name": name, "arguments": as_text(given)}

    def _response(self, asked: Asked, id: str, items: list[Item], reply: Reply | None) -> dict[str, Any]:
        """The object itself; without a reply, as it is before there is one."""
        reason = None if reply is None else _REASONS.get(reply.finish)
        finished = "completed" if reason is None else "incomplete"
        return {
            "id": id,
            "object": "response",
            "created_at": now(),
            "status": "in_progress" if reply is None else finished,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "instructions": asked.body.get("instructions"),
            "metadata": {},
            "model": asked.model,
            "output": items,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": "medium", "summary": None},
            "store": asked.body.get("store", True),
            "temperature": 1.0,
            "text": asked.body.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.body.get("tool_choice", "auto"),
            "tools": asked.body.get("tools") or [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None if reply is None else _usage(reply.usage),
            "user": None,
        }


def _contents(reply: Reply) -> Iterator[tuple[str, Any]]:
    if reply.thinking:
        yield "reasoning", reply.thinking
    if reply.text:
        yield "message", reply.text
    for call in enumerate(reply.calls):
        yield "function_call", call


def _empty(item: Item) -> Item:
    """An item as it is when it begins."""
    match item["type"]:
        case "reasoning":
            return {**item, "summary": []}
        case "message":
            return {**item, "status": "in_progress", "content": []}
    return {**item, "status": "in_progress", "arguments": ""}


def _summary(item: Item, place: dict[str, Any], size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    part = item["summary"][0]
    yield "response.reasoning_summary_part.added", {**place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"], size):
        yield "response.reasoning_summary_text.delta", {**place, "delta": piece}
    yield "response.reasoning_summary_text.done", {**place, "text": part["text"]}
    yield "response.reasoning_summary_part.done", {**place, "part": part}


def _text(item: Item, place: dict[str, Any], size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    part = item["content"][0]
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"], size):
        yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**place, "part": part}


def _arguments(item: Item, place: dict[str, Any], size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for piece in pieces(item["arguments"], size):
        yield "response.function_call_arguments.delta", {**place, "delta": piece}
    whole = {"name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", {**place, **whole}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _encrypted(thinking: str) -> str:
    return base64.b64encode(b"encrypted:" + thinking.encode()).decode()


def _items(body: dict[str, Any]) -> list[Item]:
    given = body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])


def _output_format(body: dict[str, Any]) -> dict[str, Any] | None:
    wanted = (body.get("text") or {}).get("format") or {}
    return wanted if wanted.get("type") == "json_schema" else None


def _choice(choice: Any) -> str:
    if isinstance(choice, str):
        return choice
    if choice["type"] == "allowed_tools":
        names = [tool["name"] for tool in choice["tools"]]
        return names[0] if len(names) == 1 and choice["mode"] == "required" else str(choice["mode"])
    return str(choice["name"])


def _read_item(asked: Asked, item: Item) -> None:
    match item.get("type", "message"):
        case "function_call":
            asked.say("assistant", calls=(Call(item["call_id"], item["name"], decoded(item["arguments"])),))
        case "function_call_output":
            asked.say("user", results=(Result(item["call_id"], texts(item["output"], "input_text")),))
        case "reasoning":
            asked.say("assistant", thinking="".join(part["text"] for part in item.get("summary") or []))
        case "message":
            text = texts(item["content"], "input_text", "output_text")
            if item["role"] in ("system", "developer"):
                asked.system = "\n".join(part for part in (asked.system, text) if part)
            else:
                asked.say("assistant" if item["role"] == "assistant" else "user", text)


def _check_input(items: list[Item]) -> None:
    if not items:
        message = "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided."
        raise Refusal(400, message, code="missing_required_parameter", param="input")
    calls: set[str] = set()
    answered: set[str] = set()
    for at, item in enumerate(items):
        match item.get("type", "message"):
            case "function_call":
                rules.check_length(item["call_id"], f"input[{at}].call_id", 64)
                rules.check_name(item["name"], f"input[{at}].name")
                rules.check_arguments(item["arguments"], f"input[{at}].arguments")
                _once(item["call_id"], calls, "function call")
            case "function_call_output":
                if item["call_id"] not in calls:
                    message = f"No tool call found for function call output with call_id {item['call_id']}."
                    raise Refusal(400, message, param="input")
                _once(item["call_id"], answered, "function call output")
            case "reasoning":
                _check_reasoning(item)
    for call in sorted(calls - answered):
        raise Refusal(400, f"No tool output found for function call {call}.", param="input")


def _once(call: str, seen: set[str], what: str) -> None:
    if call in seen:
        raise Refusal(
            400, f"Duplicate {what} with call_id {call}. Remove duplicate items from your input.", param="input"
        )
    seen.add(call)


def _check_reasoning(item: Item) -> None:
    known = _encrypted("".join(part["text"] for part in item.get("summary") or []))
    if item.get("encrypted_content") not in (None, known):
        raise Refusal(400, f"The encrypted content for item {item.get('id')} could not be verified.", param="input")
