"""The errors of providers and their clients as sentences for users (G1)."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    UserError,
)

_LONGEST = 500
_SAYS = ("message", "error", "detail", "error_description", "msg")
"""Keys of an error's body under which providers say what was wrong."""


def sentence(error: Exception) -> str:
    """Return what happened, with the provider's own words."""
    match error:
        case FallbackExceptionGroup():
            return "every model failed: " + "; ".join(map(sentence, error.exceptions))
        case ModelHTTPError():
            what = f"the provider of {error.model_name} answered {_status(error.status_code)}"
            return _joined(what, _words(error.body))
        case ModelConnectionError():
            words = _clipped(error.message)
            what = f"the connection to the provider of {error.model_name} failed"
            return _joined(what, words if " " in words else "")  # a single word is the name of a Python class
        case ModelAPIError() if error.body is None and isinstance(error.__cause__, ValueError):
            return f"the response of {error.model_name} is not valid JSON"  # its text may be all of the answer
        case ModelAPIError():
            return _words(error.body) or _clipped(error.message)
        case AgentRunError() | UserError():
            return _clipped(error.message)
    return _joined(f"the model's client failed with {type(error).__name__}", _clipped(str(error)))


def _joined(what: str, words: str) -> str:
    return f"{what}: {words}" if words else what


def _status(code: int) -> str:
    known = {each.value: each.phrase for each in HTTPStatus}
    return f"{code} ({known[code]})" if code in known else str(code)


def _words(body: Any, depth: int = 4) -> str:
    """Return the provider's message from the body of an error; empty if it has none in words."""
    if isinstance(body, bytes):
        body = body.decode(errors="replace")
    if isinstance(body, str):
        return _of_text(body, depth)
    if isinstance(body, list) and body:
        return _words(body[0], depth - 1) if depth else ""
    if isinstance(body, Mapping) and depth:
        return next(filter(None, (_words(body.get(key), depth - 1) for key in _SAYS)), "")
    return ""


def _of_text(text: str, depth: int) -> str:
    """Gateways send a provider's JSON as a text, or a page in HTML, which has no words for users."""
    text = text.strip()
    if text[:1] in ("{", "[") and depth:
        try:
            return _words(json.loads(text), depth - 1)
        except (ValueError, RecursionError):
            pass
    return "" if text[:1] == "<" else _clipped(text)


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
