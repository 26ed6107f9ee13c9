"""Serve MCP over HTTP: check Host, Origin and token, and serve `POST /complete/<key>` (K1, K2, D8).

The server accepts only its own names (Host) and its own pages (Origin), so that another site cannot reach it through a
browser, even by a name that resolves to this address. If tokens are set, each request needs one: the owner's, or one
that names its principal. A completion needs only its key.
"""

import asyncio
import hmac
import ipaddress
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.webhooks import PATH, Completing
from keephold.errors import ConfigError
from keephold.mcp.calls import GONE, PRINCIPAL
from keephold.mcp.server import Server
from keephold.mcp.sessions import Sessions

RETRY_MS = 2000
"""When a 2025 client resumes a lost stream. The SDKs try twice, so a restart may take twice as long."""


class AnsweredOnce:
    """Drop messages that are sent after a response is complete.

    The SDK answers a 2025 client's notification before it passes it on. If the session has ended by then, the SDK logs
    an error and answers a second time, though nothing is lost.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        complete = False

        async def once(message: Message) -> None:
            nonlocal complete
            if not complete:
                complete = message["type"] == "http.response.body" and not message.get("more_body", False)
                await send(message)

        await self._app(scope, receive, once)


def quiet() -> None:
    """Keep ended sessions, and clients that left in the middle of a request, out of the log."""
    logging.getLogger("mcp.server.streamable_http").addFilter(_is_notified)


def _is_notified(record: logging.LogRecord) -> bool:
    gone = (anyio.ClosedResourceError, ClientDisconnect)
    return record.exc_info is None or not isinstance(record.exc_info[1], gone)


LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "[::]")
"""Addresses that bind every interface. Their names cannot be listed, so they require a token, which other sites do not
have."""
_PRINCIPAL = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, tokens: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the network could use the server without a token."""
    if not is_loopback(host) and not tokens:
        raise ConfigError(
            [
                f"binding {host} lets the network in, which needs a token: put one in KEEPHOLD_TOKEN, or a file of "
                "`principal token` lines in --tokens; or bind 127.0.0.1"
            ]
        )
    if len(set(tokens.values())) < len(tokens):
        raise ConfigError(["two principals have the same token; each needs one of its own"])
    for principal, token in tokens.items():
        if not _PRINCIPAL.fullmatch(principal):  # it may be a misplaced token, so it is not shown (K5)
            raise ConfigError(
                ["a principal's name has up to 64 letters, digits and . _ @ -, and one of them has others"]
            )
        if len(token) < 16:
            raise ConfigError([f"the token of `{principal}` has fewer than 16 characters; use a long random one"])


def http_app(
    server: Server,
    *,
    tokens: Mapping[str, str] | None = None,
    owner: str | None = None,
    hosts: Sequence[str] = (),
    path: str = "/mcp",
    **transport: Any,
) -> ASGIApp:
    """Return the server as an ASGI application. `tokens` are by principal; `owner` is a token without a principal, for
    the server's own conversation. Without any token, every program that reaches it can use it. `hosts` are further
    names of the server.

    Further options are those of the SDK's transport. Without an `event_store`, sessions outlive the server, and their
    streams can be resumed. The SDK shares an `event_store` among all sessions, and names streams by request ids that
    sessions choose: use one only for a server of one client.
    """
    app = mcp_app(server, path=path, **transport)
    return Door(app, tokens or {}, hosts, owner=owner, tells_gone="event_store" not in transport)


def mcp_app(server: Server, *, path: str = "/mcp", **transport: Any) -> Starlette:
    """Return the routes of MCP and of completions, without the checks of `Door`."""
    transport.setdefault("retry_interval", RETRY_MS)
    app = server.streamable_http_app(
        streamable_http_path=path,
        max_request_body_size=server.runtime.limits.line_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `Door` checks that
        **transport,
    )
    if transport.get("event_store") is None and not transport.get("stateless_http"):
        Sessions.serve(server)
    app.add_middleware(AnsweredOnce)
    quiet()
    app.router.routes.append(Route(Completing.path, Completing(server.runtime)))
    return app


class Door:
    """Refuse requests with a wrong Host, Origin or token."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Mapping[str, str],
        hosts: Sequence[str] = (),
        *,
        owner: str | None = None,
        tells_gone: bool = True,
    ) -> None:
        """`tells_gone`: calls learn that their client's connection ended, because nothing can be sent again."""
        self._app = app
        self._tells_gone = tells_gone
        self._owner = None if owner is None else owner.encode()
        self._tokens = {name: token.encode() for name, token in tokens.items()}
        self._hosts = {*LOOPBACK, *(host.lower().strip("[]") for host in hosts)}
        self._any_host = bool(tokens or owner) and any(host in ANY for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is None and self._tells_gone:
            receive = _noting_disconnect(scope, receive)
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._any_host and self._name(headers.get("host", "")) not in self._hosts:
            return JSONResponse({"error": "this server is not reached by that name (Host)"}, 403)
        origin = headers.get("origin")
        if origin is not None and _place(origin) != headers.get("host", "").lower():
            return JSONResponse({"error": "requests from pages of other origins are refused (Origin)"}, 403)
        needed = self._tokens or self._owner is not None
        if not needed or scope["path"].startswith(PATH) or self._is_owner(headers):
            return None
        principal = self._principal(headers)
        if principal is None:
            why = "the token is not one of this server's" if "authorization" in headers else "a token is needed"
            return JSONResponse({"error": f"{why}: `Authorization: Bearer TOKEN`"}, 401, {"www-authenticate": "Bearer"})
        scope[PRINCIPAL] = principal
        # The SDK binds sessions to this user, so that another principal cannot use, hear or end them.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        return None

    @staticmethod
    @lru_cache(256)
    def _name(host: str) -> str:
        return re.sub(r":\d+$", "", host).lower().strip("[]")

    def _is_owner(self, headers: Mapping[str, str]) -> bool:
        return self._owner is not None and hmac.compare_digest(_bearer(headers), self._owner)

    def _principal(self, headers: Mapping[str, str]) -> str | None:
        """Return the token's principal. Every token is compared, so that the time says nothing."""
        given = _bearer(headers)
        fitting = [name for name, known in self._tokens.items() if hmac.compare_digest(given, known)]
        return fitting[0] if fitting else None


def _bearer(headers: Mapping[str, str]) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" else b""


def _noting_disconnect(scope: Scope, receive: Receive) -> Receive:
    gone = scope[GONE] = asyncio.Event()

    async def noted() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone.set()
        return message

    return noted


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
