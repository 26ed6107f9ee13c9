"""JSON-RPC 2.0 messages and errors, and the names that both sides of keephold's ACP use (X2)."""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec

from keephold.errors import KeepholdError
from keephold.text import to_json

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002
REQUEST_CANCELLED = -32800

Id: TypeAlias = str | int | None
Params: TypeAlias = dict[str, Any]

_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
OPENING = re.compile(
    rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(?P<id>-?\d{1,18}|"(?:[^"\\]|\\.){0,512}")'
    rb'\s*,\s*"(?P<next>method|result|error)"'
)
"""How most programs begin a message: enough to identify the sender's request if the rest cannot be read."""


class ConnectionLost(KeepholdError):
    """The other side is gone; requests cannot be answered."""

    code = "acp_disconnected"


class RpcError(KeepholdError):
    """An error answer, received or to be sent. `number` is JSON-RPC's code."""

    code = "acp_error"

    def __init__(self, number: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.number = number
        self.data = data

    def __str__(self) -> str:
        told = "" if self.data is None else f": {self.data}"
        return f"{self.message} ({self.number}{told})"


def unknown_method(method: str) -> RpcError:
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})


class Invalid(Exception):
    """The line is JSON but not a message."""

    def __init__(self, what: str, id: Id = None) -> None:
        super().__init__(what)
        self.id = id


def decode(line: bytes) -> Any:
    """Return the JSON of a line. Raises ValueError or RecursionError if it cannot be used."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if not _SURROGATE.search(line):
            raise
        # Half a surrogate pair: JavaScript writes it for a string that was cut inside a character.
        return msgspec.json.decode(to_json(json.loads(line, parse_constant=_no_number)))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def id_of(message: dict[str, Any]) -> Id:
    """Return the id of a message; None if it has none."""
    id = message.get("id")
    if id is None or type(id) is int or isinstance(id, str):
        return id
    raise Invalid("id must be a string, an integer or null")


def error_of(error: Any) -> RpcError:
    if not isinstance(error, dict):
        return RpcError(INTERNAL_ERROR, f"an error of no known form: {error}")
    number = error.get("code")
    words = str(error.get("message") or "no reason given")
    return RpcError(number if type(number) is int else INTERNAL_ERROR, words, error.get("data"))


def invalid_params(why: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: {why}")


def internal(error: Exception) -> RpcError:
    return RpcError(INTERNAL_ERROR, f"Internal error: {type(error).__name__}: {error}")


PROTOCOL_VERSION = 1
TURN_COMPLETE = "keephold/turnComplete"
"""In `_meta` of capabilities: whether, or how, the end of a turn is signalled."""
BACKGROUND = "keephold/background"
"""In `_meta` of an update, with the value true: the update belongs to no turn."""


def table(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def is_background(params: Mapping[str, Any]) -> bool:
    """Return whether the update belongs to no turn; params or update may say so."""
    metas = (table(params.get("_meta")), table(table(params.get("update")).get("_meta")))
    return any(meta.get(BACKGROUND) is True for meta in metas)
