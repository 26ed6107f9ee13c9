"""Gemini's generateContent and streamGenerateContent, as a server: `POST /{version}/models/{model}:{method}`.

Calls come whole, without an id, also in a stream; the turn after them answers all of them. Thinking is a part marked as
thought; a call after it bears a signature.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from tests.agent.providers import gemini_rules as rules
from tests.agent.providers.base import KEY, Event, Refusal, Wire, as_object, as_text, pieces
from tests.agent.providers.neutral import Asked, Call, OfferedTool, Result
from tests.agent.providers.script import Reply, Usage

Part = dict[str, Any]

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_FAILURES = {
    429: "You exceeded your current quota, please check your plan and billing details.",
    500: "An internal error has occurred. Please retry.",
    503: "The model is overloaded. Please try again later.",
}
_FINISHES = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
_CHOICES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}


class Gemini(Wire):
    """generateContent and streamGenerateContent."""

    format = "gemini"
    path = "/{version}/models/{model}:{method}"
    models = ("gemini-2.5-pro", "gemini-2.5-flash")
    prefix = ""

    def authorise(self, headers: Mapping[str, str]) -> None:
        given = headers.get("x-goog-api-key")
        if not given:
            raise Refusal(
                403,
                "Method doesn't allow unregistered callers (callers without established identity). Please use API Key "
                "or other form of API consumer identity to call this API.",
            )
        if given != KEY:
            raise rules.invalid("API key not valid. Please pass a valid API key.")

    def address(self, request: Request, body: dict[str, Any]) -> tuple[str, bool]:
        return request.path_params["model"], request.path_params["method"] == "streamGenerateContent"

    def unknown(self, model: str) -> Refusal:
        return Refusal(
            404,
            f"models/{model} is not found for API version v1beta, or is not supported for generateContent. Call "
            "ListModels to see the list of available models and their supported methods.",
        )

    def error(self, refusal: Refusal, retry_after: float | None = None) -> dict[str, Any]:
        told: dict[str, Any] = {"code": refusal.status, "message": refusal.message}
        told["status"] = _STATUSES.get(refusal.status, "UNKNOWN")
        if retry_after is not None:
            info = "type.googleapis.com/google.rpc.RetryInfo"
            told["details"] = [{"@type": info, "retryDelay": f"{retry_after:g}s"}]
        return {"error": told}

    def failure(self, status: int) -> str:
        return _FAILURES.get(status, "An error has occurred.")

    # What is refused

    def check(self, body: dict[str, Any]) -> None:
        rules.check_contents(body.get("contents") or [])
        declarations = _declarations(body)
        rules.check_declarations(declarations)
        calling = _calling(body)
        names = [own["name"] for own in declarations]
        for allowed in calling.get("allowedFunctionNames") or []:
            if calling.get("mode") != "ANY":
                raise rules.invalid("Allowed function names should only be set when function calling mode is ANY.")
            if allowed not in names:
                raise rules.invalid(f"Function {allowed} is not declared.")
        if declarations and _config(body).get("responseMimeType") == "application/json":
            raise rules.invalid("Function calling with a response mime type: 'application/json' is unsupported")
        schema = _output_schema(body)
        if schema is not None:
            rules.check_json_schema(schema, "generation_config.response_json_schema")

    # What is asked

    def read(self, asked: Asked) -> None:
        body = asked.body
        asked.system = "\n".join(part["text"] for part in (body.get("systemInstruction") or {}).get("parts", []))
        made: list[str] = []
        for content in body["contents"]:
            answers = iter(made)
            made = [] if content.get("role") == "model" else made
            for part in content["parts"]:
                _read_part(asked, content.get("role", "user"), part, made, answers)
        for own in _declarations(body):
            schema = own.get("parameters") or own.get("parametersJsonSchema") or own.get("parameters_json_schema") or {}
            asked.tools.append(OfferedTool(own["name"], own.get("description", ""), schema))
        calling = _calling(body)
        allowed = calling.get("allowedFunctionNames") or []
        asked.choice = allowed[0] if len(allowed) == 1 else _CHOICES[calling.get("mode", "AUTO")]
        asked.schema = _output_schema(body)

    # What is answered

    def whole(self, reply: Reply, asked: Asked) -> dict[str, Any]:
        return self._response(list(_parts(reply, None)), reply, asked, self.number("r"), last=True)

    def events(self, reply: Reply, asked: Asked) -> Iterator[Event]:
        id = self.number("r")
        for part in _parts(reply, reply.piece):
            yield Event(self._response([part], reply, asked, id, last=False))
        # the last event has a text of its own, which may be empty
        last = [{"text": ""}] if reply.text else []
        yield Event(self._response(last, reply, asked, id, last=True))

    def _response(self, parts: list[Part], reply: Reply, asked: Asked, id: str, *, last: bool) -> dict[str, Any]:
        candidate: dict[str, Any] = {"index": 0}
        if parts:
            candidate["content"] = {"parts": parts, "role": "model"}
        if last:
            candidate |= {"finishReason": _FINISHES[reply.finish]} if reply.finish in _FINISHES else {}
        usage = _usage(reply.usage, last=last)
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": asked.model, "responseId": id}


def _parts(reply: Reply, size: int | None) -> Iterator[Part]:
    """The parts of an answer; texts whole, or in pieces of a size."""
    for text in pieces(reply.thinking, size or len(reply.thinking) or 1):
        yield {"text": text, "thought": True}
    for text in pieces(reply.text, size or len(reply.text) or 1):
        yield {"text": text}
    signature = base64.b64encode(reply.thinking.encode()).decode()
    for number, (name, given) in enumerate(reply.calls):
        call: Part = {"functionCall": {"name": name, "args": as_object(given)}}
        if number < len(reply.ids):
            call["functionCall"]["id"] = reply.ids[number]
        yield {**call, "thoughtSignature": signature} if signature and number == 0 else call


def _usage(usage: Usage, *, last: bool) -> dict[str, Any]:
    """Known at the end; before, only what was asked. Tokens of thinking are counted apart."""
    told = {"promptTokenCount": usage.input_tokens, "totalTokenCount": usage.input_tokens}
    if usage.cached_tokens:
        told["cachedContentTokenCount"] = usage.cached_tokens
    if last:
        told["candidatesTokenCount"] = usage.output_tokens - usage.thinking_tokens
        told["thoughtsTokenCount"] = usage.thinking_tokens
        told["totalTokenCount"] = usage.input_tokens + usage.output_tokens
    return told


def _declarations(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [own for tool in body.get("tools") or [] for own in tool.get("functionDeclarations") or []]


def _calling(body: dict[str, Any]) -> dict[str, Any]:
    return (body.get("toolConfig") or {}).get("functionCallingConfig") or {}


def _config(body: dict[str, Any]) -> dict[str, Any]:
    return body.get("generationConfig") or {}


def _output_schema(body: dict[str, Any]) -> dict[str, Any] | None:
    config = _config(body)
    return config.get("responseJsonSchema") or config.get("responseSchema")


def _read_part(asked: Asked, role: str, part: Part, made: list[str], answers: Iterator[str]) -> None:
    """Calls and answers have ids if the client gave them some, and otherwise belong together by their order."""
    if call := part.get("functionCall"):
        id = call.get("id") or f"#{len(asked.calls)}"
        made.append(id)
        asked.say("assistant", calls=(Call(id, call["name"], call.get("args", {})),))
    elif answer := part.get("functionResponse"):
        response = answer["response"]
        told = response.get("error", response.get("return_value", response.get("result", response)))
        text = told if isinstance(told, str) else as_text(told)
        id = answer.get("id") or next(answers, "")
        asked.say("user", results=(Result(id, text, "error" in response),))
    elif part.get("thought"):
        asked.say("assistant", thinking=part["text"])
    else:
        asked.say("assistant" if role == "model" else "user", part.get("text", ""))
