"""The description of an API operation: path, parameters, result. Requests are checked against it, and the OpenAPI
description is made from it, so the two always agree.

A refusal has a status, a stable code and a sentence (`errors.CODES`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema_rs
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from keephold.control.handle_json import Shape
from keephold.errors import KeepholdError
from keephold.text import to_json

STATUS = {
    "bad_answer": 422,
    "conversation_not_found": 404,
    "handle_expired": 404,
    "handle_not_found": 404,
    "input_lost": 504,
    "invalid_arguments": 400,
    "invalid_handle_id": 400,
    "invalid_resolution": 400,
    "limit_exceeded": 413,
    "not_allowed": 405,
    "owner_not_answering": 504,
    "request_gone": 404,
    "runtime_closed": 503,
    "runtime_closing": 503,
    "store_unavailable": 503,
}
"""Statuses by error code; any other code is 409."""


def refusal(error: KeepholdError) -> JSONResponse:
    """Return the response for an error."""
    return refused(error.code, error.message, STATUS.get(error.code, 409))


def refused(code: str, message: str, status: int) -> JSONResponse:
    """Return the response for a refusal that is not a `KeepholdError`."""
    return JSONResponse({"error": {"code": code, "message": message}}, status)


Schema = dict[str, Any]
Given = dict[str, Any]
"""The parameters of a request, by name, and `body`."""
Handler = Callable[[Given, Request], Awaitable[Any]]
"""Carries out an operation, and returns its result, or a response."""

_DIGITS = 18
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query."""

    name: str
    schema: Schema
    description: str
    required: bool = False

    def read(self, text: str) -> Any:
        """Parse a query's value. Raises `KeepholdError`."""
        kind = self.schema["type"]
        if kind == "boolean":
            if text.lower() in _WORDS:
                return _WORDS[text.lower()]
            raise self._wrong("true or false")
        if kind == "integer":
            if not text.lstrip("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > _DIGITS:
                raise self._wrong("an integer")
            number = int(text)
            least, most = self.schema.get("minimum"), self.schema.get("maximum")
            if (least is not None and number < least) or (most is not None and number > most):
                raise self._wrong(f"an integer from {least} to {most}" if most is not None else f"at least {least}")
            return number
        if "enum" in self.schema and text not in self.schema["enum"]:
            raise self._wrong(f"one of {', '.join(self.schema['enum'])}")
        return text

    def _wrong(self, right: str) -> KeepholdError:
        return KeepholdError(f"parameter `{self.name}` must be {right}", code="invalid_arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `returns` is the type of its result; a stream has none."""

    id: str
    path: str
    summary: str
    patient: bool = False
    """It has no time limit, so it ends when its client disconnects."""
    method: Literal["GET", "POST"] = "GET"
    tag: str = "handles"
    query: Sequence[Parameter] = ()
    body: Schema | None = None
    returns: Any = None
    errors: Sequence[int] = ()
    text: bool = False
    """It can also return plain text."""


class Endpoint:
    """An operation as an ASGI application."""

    def __init__(self, operation: Operation, does: Handler, limit: int) -> None:
        self._operation = operation
        self._does = does
        self._limit = limit
        schema = operation.body
        self._check = None if schema is None else jsonschema_rs.validator_for(schema)

    async def __call__(self, request: Request) -> Response:
        operation = self._operation
        try:
            given = self._read(request)
            if self._check is not None:
                given["body"] = await self._body(request)
            doing = self._does(given, request)
            result = await (while_there(doing, disconnected(request.receive)) if operation.patient else doing)
        except KeepholdError as error:
            return refusal(error)
        if isinstance(result, Response):
            return result
        return Response(to_json(result), media_type="application/json", headers={"cache-control": "no-store"})

    def _read(self, request: Request) -> Given:
        known = {parameter.name: parameter for parameter in self._operation.query}
        given: Given = dict(request.path_params)
        for name, text in request.query_params.multi_items():
            if name not in known:
                right = ", ".join(known) or "none"
                raise KeepholdError(f"unknown parameter `{name[:64]}`; there are: {right}", code="invalid_arguments")
            if name in given and name not in request.path_params:
                raise KeepholdError(f"parameter `{name}` is given twice", code="invalid_arguments")
            given[name] = known[name].read(text)
        missing = [name for name, parameter in known.items() if parameter.required and name not in given]
        if missing:
            raise KeepholdError(f"parameter `{missing[0]}` is missing", code="invalid_arguments")
        return given

    async def _body(self, request: Request) -> Any:
        assert self._check is not None
        body = await read_body(request, self._limit, "arguments_bytes")
        try:
            value = msgspec.json.decode(body or b"{}")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise KeepholdError(f"the body is not JSON: {error}", code="invalid_arguments") from None
        try:
            problem = next(iter(self._check.iter_errors(value)), None)
        except (RecursionError, ValueError) as error:  # valid JSON that Python cannot hold
            raise KeepholdError(f"the body cannot be taken: {error}", code="invalid_arguments") from None
        if problem is not None:
            where = "/".join(str(part) for part in problem.instance_path) or "the body"
            raise KeepholdError(f"{where}: {problem.message[:300]}", code="invalid_arguments")
        return value


async def while_there(doing: Awaitable[Any], leaving: Awaitable[None]) -> Any:
    """Run this for a client; cancel it when the client has left. Return its result, else a response nobody reads."""
    work, left = asyncio.ensure_future(doing), asyncio.ensure_future(leaving)
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else Response(status_code=499)
    finally:
        work.cancel()
        left.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Return when the client disconnects."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


async def read_body(request: Request, limit: int, setting: str = "") -> bytes:
    """Return the body of a request. Raises `KeepholdError` as soon as it is too long; `setting` names the limit."""
    said = request.headers.get("content-length", "")
    body = bytearray()
    if not is_more(said, limit):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                break
        else:
            return bytes(body)
    right = f"[limits] {setting} allows more" if setting else "send less at once"
    raise KeepholdError(f"the body is larger than {limit} bytes; {right}", code="limit_exceeded")


def is_more(length: str, limit: int) -> bool:
    """Whether a `Content-Length` exceeds the limit. Python refuses to parse very many digits."""
    return length.isascii() and length.isdigit() and (len(length) > _DIGITS or int(length) > limit)


class ErrorBody(Shape):
    """Why a request was refused; `code` is stable."""

    code: str
    message: str


class ErrorResponse(Shape):
    """The body of a refused request."""

    error: ErrorBody


def shapes(operations: Sequence[Operation]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """Return the schema of each operation's result by its id, and the schemas that those refer to."""
    giving = [each for each in operations if each.returns is not None]
    found, named = msgspec.json.schema_components(
        [ErrorResponse, *(each.returns for each in giving)], ref_template="#/components/schemas/{name}"
    )
    for schema in named.values():
        schema.pop("title", None)
        if "properties" in schema:  # a response has every field but those that may be unset, which have no default
            always, properties = schema.get("required", ()), schema["properties"]
            schema["required"] = [name for name, each in properties.items() if name in always or "default" in each]
            for each in properties.values():
                each.pop("default", None)
    return {each.id: schema for each, schema in zip(giving, found[1:], strict=True)}, named


def described(operations: Sequence[Operation], version: str) -> Schema:
    """Return the OpenAPI description of operations."""
    paths: dict[str, Any] = {}
    results, schemas = shapes(operations)
    for operation in operations:
        path = operation.path.replace(":path}", "}")
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, results.get(operation.id))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "keephold",
            "version": version,
            "description": "Read, answer and abort the tool calls of a running keephold.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(operation: Operation, result: Schema | None) -> Schema:
    path = [part[1:-1].removesuffix(":path") for part in operation.path.split("/") if part.startswith("{")]
    said: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in path
        ]
        + [
            {
                "name": each.name,
                "in": "query",
                "required": each.required,
                "description": each.description,
                "schema": each.schema,
            }
            for each in operation.query
        ],
        "responses": {"200": _success(operation, result)} | {str(status): _ERROR for status in _statuses(operation)},
    }
    if operation.body is not None:
        said["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
    return said


def _success(operation: Operation, result: Schema | None) -> Schema:
    if result is None:
        content: Schema = {"text/event-stream": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": result}}
        if operation.text:
            content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": operation.summary, "content": content}


def _statuses(operation: Operation) -> list[int]:
    usual = [400, 401, 403, 503] + ([413] if operation.body is not None else [])
    return sorted({*usual, *operation.errors, *([404] if "{" in operation.path else [])})


_ERROR: Schema = {
    "description": "Refused; `code` is stable.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}},
}
