"""`POST /complete/<key>`: complete the wait that a key opened (K2, D8).

Only machines send this request, and they send many. So it is an ASGI application without a framework: a request costs
its commit and HTTP, nothing more.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.errors import KeepholdError, ToolError
from keephold.runtime import Runtime
from keephold.text import to_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PATH = "/complete/"
_STATUS = {"accepted": 200, "already_resolved": 409, "unknown_or_revoked": 404}
_DIGITS = 18
"""Digits of a `Content-Length`. Nobody sends more, and Python refuses to parse very long numbers."""
_JSON = (b"content-type", b"application/json")


class Completing:
    """Completes waits by their keys."""

    path = f"{PATH}{{key}}"
    """Its route in metrics: the requested path contains a key (K5)."""

    def __init__(self, runtime: Runtime, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """`headers` are added to each response."""
        self._runtime = runtime
        self._headers = (_JSON, *headers)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        status, answer = await self._answer(scope, receive)
        body = to_json(answer)
        headers = [*self._headers, (b"content-length", b"%d" % len(body))]
        if status == 405:
            headers.append((b"allow", b"POST"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: "Scope", receive: "Receive") -> tuple[int, dict[str, Any]]:
        """Return the status and the body of the response."""
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


def _says_more(scope: "Scope", limit: int) -> bool:
    """Whether `Content-Length` is too large, checked before the body is read."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return length.isdigit() and (len(length) > _DIGITS or int(length) > limit)


async def _body(receive: "Receive", limit: int) -> bytes | None:
    """Return the body; None as soon as it is too long, or if the sender has left."""
    body = b""
    while len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= limit else None
    return None
