"""OpenAI's chat completions, as a server: `POST /v1/chat/completions`.

The format has no words for thinking; its tokens are counted. Results of tools are messages of their own, and the
history must answer every call once, right after the message that made it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from tests.agent.providers import openai_rules as rules
from tests.agent.providers.base import Event, Refusal, Wire, as_text, now, pieces
from tests.agent.providers.neutral import Asked, Call, OfferedTool, Result, decoded, texts
from tests.agent.providers.script import Reply, Usage

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")


class OpenAIChat(Wire):
    """Chat completions."""

    format = "openai-chat"
    path = "/v1/chat/completions"
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
        _check_messages(body.get("messages") or [])
        tools = body.get("tools") or []
        rules.check_count(tools)
        for at, tool in enumerate(tools):
            own = tool["function"]
            rules.check_name(own["name"], f"tools[{at}].function.name")
            where = f"tools[{at}].function.parameters"
            strict = bool(own.get("strict"))
            rules.check_parameters(own["name"], own.get("parameters", {}), strict=strict, where=where)
        if "tool_choice" in body and not tools:
            message = "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
            raise Refusal(400, message, param="tool_choice")
        output = (body.get("response_format") or {}).get("json_schema")
        if output:
            strict = bool(output.get("strict"))
            rules.check_output(output["name"], output.get("schema", {}), strict=strict, where="response_format")

    # What is asked

    def read(self, asked: Asked) -> None:
        body = asked.body
        for message in body["messages"]:
            self._read_message(asked, message)
        for tool in body.get("tools") or []:
            own = tool["function"]
            strict = bool(own.get("strict"))
            asked.tools.append(OfferedTool(own["name"], own.get("description", ""), own.get("parameters", {}), strict))
        asked.choice = _choice(body.get("tool_choice", "auto"))
        asked.schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")

    def _read_message(self, asked: Asked, message: dict[str, Any]) -> None:
        text = texts(message.get("content"), "text")
        match message["role"]:
            case "system" | "developer":
                asked.system = "\n".join(part for part in (asked.system, text) if part)
            case "tool":
                asked.say("user", results=(Result(message["tool_call_id"], text),))
            case "assistant":
                calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
                made = tuple(Call(id, own["name"], decoded(own["arguments"])) for id, own in calls)
                asked.say("assistant", text, calls=made)
            case _:
                asked.say("user", text)

    # What is answered

    def whole(self, reply: Reply, asked: Asked) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": self.call_id(reply, index, "call_"),
                    "type": "function",
                    "function": {"name": name, "arguments": as_text(given)},
                }
                for index, (name, given) in enumerate(reply.calls)
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return {**self._head(asked, "chat.completion"), "choices": [choice], "usage": _usage(reply.usage)}

    def events(self, reply: Reply, asked: Asked) -> Iterator[Event]:
        head = self._head(asked, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return Event({**head, "choices": [choice], "usage": None})

        yield chunk({"role": "assistant", "content": "" if reply.text else None, "refusal": None})
        for piece in pieces(reply.text, reply.piece):
            yield chunk({"content": piece})
        for index, (name, given) in enumerate(reply.calls):
            begun = {"type": "function", "function": {"name": name, "arguments": ""}}
            yield chunk({"tool_calls": [{"index": index, "id": self.call_id(reply, index, "call_"), **begun}]})
            for piece in pieces(as_text(given), reply.piece):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, _finish(reply))
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            yield Event({**head, "choices": [], "usage": _usage(reply.usage)})
        yield Event("[DONE]")

    def _head(self, asked: Asked, kind: str) -> dict[str, Any]:
        return {
            "id": self.number("chatcmpl-"),
            "object": kind,
            "created": now(),
            "model": asked.model,
            "service_tier": "default",
            "system_fingerprint": None,
        }


def _choice(choice: Any) -> str:
    if isinstance(choice, str):
        return choice
    if choice["type"] == "allowed_tools":
        allowed = choice["allowed_tools"]
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        return names[0] if len(names) == 1 and allowed["mode"] == "required" else str(allowed["mode"])
    return str(choice["function"]["name"])


def _finish(reply: Reply) -> str | None:
    if reply.finish == "stop":
        return "tool_calls" if reply.calls else "stop"
    return {"length": "length", "filter": "content_filter", "none": None}[reply.finish]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking_tokens, "audio_tokens": 0},
    }


def _check_messages(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise Refusal(
            400,
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            code="empty_array",
            param="messages",
        )
    unanswered: dict[str, int | None] = {}
    for at, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            message_text = f"Invalid value: '{role}'. Supported values are: {', '.join(map(repr, _ROLES))}."
            raise Refusal(400, message_text, code="invalid_value", param=f"messages[{at}].role")
        if role == "tool":
            _answer(unanswered, message["tool_call_id"], at)
            continue
        _all_answered(unanswered, at)
        unanswered = {}
        if message.get("content") is None and not message.get("tool_calls"):
            text = "Invalid value for 'content': expected a string, got null."
            raise Refusal(400, text, param=f"messages.[{at}].content")
        for number, call in enumerate(message.get("tool_calls") or []):
            where = f"messages[{at}].tool_calls[{number}]"
            rules.check_length(call["id"], f"{where}.id", 40)
            rules.check_name(call["function"]["name"], f"{where}.function.name")
            rules.check_arguments(call["function"]["arguments"], f"{where}.function.arguments")
            if call["id"] in unanswered:
                text = f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call['id']}'."
                raise Refusal(400, text, param=f"{where}.id")
            unanswered[call["id"]] = None
    _all_answered(unanswered, len(messages))


def _answer(unanswered: dict[str, int | None], call: str, at: int) -> None:
    """A message of a tool: it must answer one of the calls right before it, which nobody has answered yet."""
    if call not in unanswered:
        text = (
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
        )
        raise Refusal(400, text, param=f"messages.[{at}].role")
    if (first := unanswered[call]) is not None:
        text = (
            f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call}', "
            f"in messages[{first}] and messages[{at}]."
        )
        raise Refusal(400, text, param=f"messages.[{at}].tool_call_id")
    unanswered[call] = at


def _all_answered(calls: dict[str, int | None], at: int) -> None:
    missing = [call for call, answered in calls.items() if answered is None]
    if missing:
        raise Refusal(
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}",
            param=f"messages.[{at}].role",
        )
