"""JSON-RPC 2.0's words: what a message is, error numbers, and what can be told of a line that is no message.

The words that both sides of keephold's ACP use: the version of the protocol, and what is added to it (X2).
"""

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
"""How most programs begin a message: enough to tell whose line it was when the rest cannot be used."""


class ConnectionLost(KeepholdError):
    """The other side is gone; nothing more can be asked of it."""

    code = "acp_disconnected"


class RpcError(KeepholdError):
    """An error answer: raised when the other side gives one, and by whoever answers. `number` is JSON-RPC's code."""

    code = "acp_error"

    def __init__(self, number: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.number = number
        self.data = data

    def __str__(self) -> str:
        told = "" if self.data is None else f": {self.data}"
        return f"{self.message} ({self.number}{told})"


def unknown_method(method: str) -> RpcError:
    """The answer to a request whose method is not known here."""
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})


class Invalid(Exception):
    """What arrived is JSON and no message."""

    def __init__(self, what: str, id: Id = None) -> None:
        super().__init__(what)
        self.id = id


def decode(line: bytes) -> Any:
    """The JSON of a line; ValueError or RecursionError if it is none that can be used."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if not _SURROGATE.search(line):
            raise
        # Half a surrogate pair, as JavaScript writes a string that was cut within a character.
        return msgspec.json.decode(to_json(json.loads(line, parse_constant=_no_number)))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def id_of(message: dict[str, Any]) -> Id:
    """The id of a message, None if it has none."""
    id = message.get("id")
    if id is None or type(id) is int or isinstance(id, str):
        return id
    raise Invalid("id must be a string, an integer or null")


def error_of(error: Any) -> RpcError:
    """The error of an answer."""
    if not isinstance(error, dict):
        return RpcError(INTERNAL_ERROR, f"an error of no known form: {error}")
    number = error.get("code")
    words = str(error.get("message") or "no reason given")
    return RpcError(number if type(number) is int else INTERNAL_ERROR, words, error.get("data"))


def invalid_params(why: str) -> RpcError:
    """The answer to parameters that cannot be taken."""
    return RpcError(INVALID_PARAMS, f"Invalid params: {why}")


def internal(error: Exception) -> RpcError:
    """The answer to a request whose handling failed."""
    return RpcError(INTERNAL_ERROR, f"Internal error: {type(error).__name__}: {error}")


PROTOCOL_VERSION = 1
TURN_COMPLETE = "keephold/turnComplete"
"""In `_meta` of capabilities: that the end of a turn is told, or how it is to be."""
BACKGROUND = "keephold/background"
"""In `_meta` of an update, with the value true: it belongs to no turn."""


def table(value: Any) -> dict[str, Any]:
    """A value that should be an object; an empty one if it is not."""
    return value if isinstance(value, dict) else {}


def is_background(params: Mapping[str, Any]) -> bool:
    """Whether the update of these params belongs to no turn; either of them may say so."""
    metas = (table(params.get("_meta")), table(table(params.get("update")).get("_meta")))
    return any(meta.get(BACKGROUND) is True for meta in metas)
