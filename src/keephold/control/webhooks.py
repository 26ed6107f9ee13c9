"""`POST /complete/<key>`: whoever has a key brings what it waits for (K2, D8).

The one request that comes from machines, and in numbers. So it is an ASGI application by itself, without a framework
between it and the store: what a request costs beyond its commit is what HTTP costs.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from keephold.errors import KeepholdError, ToolError
from keephold.runtime import Runtime
from keephold.text import to_json

PATH = "/complete/"
_STATUS = {"accepted": 200, "already_resolved": 409, "unknown_or_revoked": 404}
_DIGITS = 18
"""A length of more has one that nobody sends, and Python reads no number of very many."""
_JSON = (b"content-type", b"application/json")


class Completing:
    """Resolves what keys stand for."""

    path = f"{PATH}{{key}}"
    """What it is called in numbers: a path as it was asked for is a key (K5)."""

    def __init__(self, runtime: Runtime, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """`headers` are in each answer."""
        self._runtime = runtime
        self._headers = (_JSON, *headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, answer = await self._answer(scope, receive)
        body = to_json(answer)
        headers = [*self._headers, (b"content-length", b"%d" % len(body))]
        if status == 405:
            headers.append((b"allow", b"POST"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        """The status and the body of what is answered."""
        if scope["method"] != "POST":
            return 405, {"error": "a key is used by POST"}
        limit = self._runtime.limits.arguments_bytes
        body = None if _says_more(scope, limit) else await _body(receive, limit)
        if body is None:
            return 413, {"error": "the body is larger than [limits] arguments_bytes allows"}
        try:
            outcome = await self._runtime.resolve(scope["path"][len(PATH) :], msgspec.json.decode(body))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return 400, {"error": f"the body is not JSON: {error}"}
        except ToolError as error:
            return 400, {"error": error.message}
        except KeepholdError as error:
            return 503, {"error": error.message}
        shown: dict[str, Any] = {"status": outcome.status}
        return _STATUS[outcome.status], shown if outcome.terminal is None else shown | {"terminal": outcome.terminal}


def _says_more(scope: Scope, limit: int) -> bool:
    """Whether the body is too long by its `Content-Length`, before any of it is read."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return length.isdigit() and (len(length) > _DIGITS or int(length) > limit)


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The body of a request; None if it is too long, as soon as that is known, and if its sender has gone."""
    body = b""
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= limit else None
    return None
