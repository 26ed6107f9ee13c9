"""Anthropic's messages, as a server: `POST /v1/messages`.

A message is a list of blocks; results of tools are blocks of the user's next message, before anything else in it.
Thinking is a block with a signature that must come back with it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from tests.agent.providers import anthropic_rules as rules
from tests.agent.providers.base import KEY, Event, Refusal, Wire, as_object, as_text, pieces
from tests.agent.providers.neutral import Asked, Call, OfferedTool, Result, texts
from tests.agent.providers.script import Reply, Usage

Block = dict[str, Any]

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_FAILURES = {
    429: "This request would exceed the rate limit for your organization.",
    500: "Internal server error",
    529: "Overloaded",
}
_NEVER_FORCED = ("claude-sonnet-5-5",)
"""Models that always choose themselves."""
_STOPS = {"length": "max_tokens", "filter": "refusal"}


class Anthropic(Wire):
    """Messages."""

    format = "anthropic"
    path = "/v1/messages"
    models = ("claude-sonnet-4-6", "claude-opus-5", "claude-sonnet-5-5")
    prefix = ""

    def authorise(self, headers: Mapping[str, str]) -> None:
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not given:
            raise Refusal(401, "x-api-key header is required")
        if given != KEY:
            raise Refusal(401, "invalid x-api-key")
        if "anthropic-version" not in headers:
            raise rules.invalid("anthropic-version: header is required")

    def address(self, request: Request, body: dict[str, Any]) -> tuple[str, bool]:
        return body.get("model", ""), bool(body.get("stream"))

    def unknown(self, model: str) -> Refusal:
        return Refusal(404, f"model: {model}")

    def error(self, refusal: Refusal, retry_after: float | None = None) -> dict[str, Any]:
        kind = _KINDS.get(refusal.status, "api_error")
        told = {"type": kind, "message": refusal.message}
        return {"type": "error", "error": told, "request_id": self.number("req_")}

    def failure(self, status: int) -> str:
        return _FAILURES.get(status, "Internal server error")

    # What is refused

    def check(self, body: dict[str, Any]) -> None:
        if "max_tokens" not in body:
            raise rules.invalid("max_tokens: Field required")
        if any(not block["text"] for block in rules.blocks(body.get("system", []))):
            raise rules.invalid("system: text content blocks must be non-empty")
        rules.check_messages(body.get("messages") or [])
        tools = body.get("tools") or []
        rules.check_tools(tools)
        choice = body.get("tool_choice") or {"type": "auto"}
        if choice["type"] in ("any", "tool"):
            if body["model"] in _NEVER_FORCED:
                raise rules.invalid(f"tool_choice: type '{choice['type']}' is not supported by this model")
            if not tools:
                raise rules.invalid("tool_choice: tool_choice may only be specified while providing tools.")
            if (body.get("thinking") or {}).get("type") == "enabled":
                raise rules.invalid("Thinking may not be enabled when tool_choice forces tool use.")
        if choice["type"] == "tool" and choice["name"] not in [tool["name"] for tool in tools]:
            raise rules.invalid(f"Tool '{choice['name']}' not found in provided tools")
        schema = _output_schema(body)
        if schema is not None:
            rules.check_strict(schema, "output_config.format.schema")

    # What is asked

    def read(self, asked: Asked) -> None:
        body = asked.body
        asked.system = texts(body.get("system"), "text")
        for message in body["messages"]:
            for block in rules.blocks(message["content"]):
                _read_block(asked, message["role"], block)
        for tool in body.get("tools") or []:
            strict = bool(tool.get("strict"))
            offered = OfferedTool(tool["name"], tool.get("description", ""), tool["input_schema"], strict)
            asked.tools.append(offered)
        choice = body.get("tool_choice") or {"type": "auto"}
        asked.choice = choice["name"] if choice["type"] == "tool" else choice["type"].replace("any", "required")
        asked.schema = _output_schema(body)

    # What is answered

    def whole(self, reply: Reply, asked: Asked) -> dict[str, Any]:
        message = self._message(asked, reply)
        usage = {**message["usage"], "output_tokens": reply.usage.output_tokens}
        return {**message, "content": list(self._blocks(reply)), "stop_reason": _stop(reply), "usage": usage}

    def events(self, reply: Reply, asked: Asked) -> Iterator[Event]:
        for data in self._happenings(reply, asked):
            yield Event(data, data["type"])

    def _happenings(self, reply: Reply, asked: Asked) -> Iterator[dict[str, Any]]:
        yield {"type": "message_start", "message": self._message(asked, reply)}
        yield {"type": "ping"}
        given = iter(reply.calls)
        for index, block in enumerate(self._blocks(reply)):
            yield {"type": "content_block_start", "index": index, "content_block": _begun(block)}
            text = as_text(next(given)[1]) if block["type"] == "tool_use" else ""
            for delta in _deltas(block, text, reply.piece):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ended = {"stop_reason": _stop(reply), "stop_sequence": None}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": reply.usage.output_tokens}}
        yield {"type": "message_stop"}

    def _message(self, asked: Asked, reply: Reply) -> dict[str, Any]:
        """As it is before there is content."""
        return {
            "id": self.number("msg_"),
            "type": "message",
            "role": "assistant",
            "model": asked.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(reply.usage),
        }

    def _blocks(self, reply: Reply) -> Iterator[Block]:
        if reply.thinking:
            yield {"type": "thinking", "thinking": reply.thinking, "signature": rules.signature(reply.thinking)}
        if reply.text:
            yield {"type": "text", "text": reply.text, "citations": None}
        for index, (name, given) in enumerate(reply.calls):
            id = self.call_id(reply, index, "toolu_")
            yield {"type": "tool_use", "id": id, "name": name, "input": as_object(given)}


def _begun(block: Block) -> Block:
    match block["type"]:
        case "thinking":
            return {**block, "thinking": "", "signature": ""}
        case "text":
            return {**block, "text": ""}
    return {**block, "input": {}}


def _deltas(block: Block, given: str, size: int) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "thinking":
            for piece in pieces(block["thinking"], size):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "text":
            for piece in pieces(block["text"], size):
                yield {"type": "text_delta", "text": piece}
        case "tool_use":
            yield {"type": "input_json_delta", "partial_json": ""}
            for piece in pieces(given, size):
                yield {"type": "input_json_delta", "partial_json": piece}


def _stop(reply: Reply) -> str | None:
    if reply.finish == "none":
        return None
    return _STOPS.get(reply.finish) or ("tool_use" if reply.calls else "end_turn")


def _usage(usage: Usage) -> dict[str, Any]:
    """At the start of a message; what was read from the cache is no part of the input here."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": 1,
        "service_tier": "standard",
    }


def _output_schema(body: dict[str, Any]) -> dict[str, Any] | None:
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    return wanted.get("schema") if wanted.get("type") == "json_schema" else None


def _read_block(asked: Asked, role: str, block: Block) -> None:
    match block["type"]:
        case "tool_use":
            asked.say("assistant", calls=(Call(block["id"], block["name"], block["input"]),))
        case "tool_result":
            result = Result(block["tool_use_id"], texts(block.get("content"), "text"), bool(block.get("is_error")))
            asked.say("user", results=(result,))
        case "thinking":
            asked.say("assistant", thinking=block["thinking"])
        case "text":
            asked.say("assistant" if role == "assistant" else "user", block["text"])
