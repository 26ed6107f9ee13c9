"""The HTTP face of the MCP server: who may reach it, as whom, and `POST /complete/<key>` (K1, K2, D8).

It answers only to its own names (Host) and to pages of its own (Origin), so a page of somebody else's cannot reach it
by way of a browser, also not by a name that it has pointed here. With tokens, a request must bear one, and whose it is
is its principal; a key needs nothing else, it is the authority for its one wait.

Clients of 2025 that end their session while a notification of theirs is on its way.

The SDK has answered such a notification before it passes it on, finds the session gone, logs that as an error and
answers once more. Nothing is lost and nobody has to act: no second answer is sent, and the log stays quiet.
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
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.webhooks import PATH, Completing
from keephold.errors import ConfigError
from keephold.mcp.calls import GONE, PRINCIPAL
from keephold.mcp.server import Server


class AnsweredOnce:
    """Drops whatever is sent after a response is complete."""

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
    """Keep sessions that are gone out of the log."""
    logging.getLogger("mcp.server.streamable_http").addFilter(_is_notified)


def _is_notified(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], anyio.ClosedResourceError)


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "[::]")
"""Bound to all addresses, it has names that nobody can list. That takes a token, which a stranger's page has not."""
_PRINCIPAL = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is bound there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, tokens: Mapping[str, str]) -> None:
    """Raise `ConfigError` if whoever is on the network could use the server (K1)."""
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
        if not _PRINCIPAL.fullmatch(principal):  # which may be a token, at the wrong place: not shown (K5)
            raise ConfigError(
                ["a principal's name has up to 64 letters, digits and . _ @ -, and one of them has others"]
            )
        if len(token) < 16:
            raise ConfigError([f"the token of `{principal}` has fewer than 16 characters; use a long random one"])


def http_app(
    server: Server,
    *,
    tokens: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    path: str = "/mcp",
    **transport: Any,
) -> ASGIApp:
    """The server as an ASGI application. `tokens` by principal; `hosts` are further names it is reached by.

    Further options are those of the SDK's transport. It shares an `event_store` among all sessions, and names streams
    by request ids that sessions choose: only for a server of one client.
    """
    return Door(mcp_app(server, path=path, **transport), tokens or {}, hosts, tells_gone="event_store" not in transport)


def mcp_app(server: Server, *, path: str = "/mcp", **transport: Any) -> Starlette:
    """The routes of MCP and of completions, without a door."""
    app = server.streamable_http_app(
        streamable_http_path=path,
        max_request_body_size=server.runtime.limits.line_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `Door` does it
        **transport,
    )
    app.add_middleware(AnsweredOnce)
    quiet()
    app.router.routes.append(Route(Completing.path, Completing(server.runtime)))
    return app


class Door:
    """Lets in whom it may."""

    def __init__(
        self, app: ASGIApp, tokens: Mapping[str, str], hosts: Sequence[str] = (), *, tells_gone: bool = True
    ) -> None:
        """`tells_gone`: calls are told when their client's connection ends, as nothing can be sent again."""
        self._app = app
        self._tells_gone = tells_gone
        self._tokens = {name: token.encode() for name, token in tokens.items()}
        self._hosts = {*_LOOPBACK, *(host.lower().strip("[]") for host in hosts)}
        self._any_host = bool(tokens) and any(host in ANY for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is None and self._tells_gone:
            receive = _telling(scope, receive)
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._any_host and self._name(headers.get("host", "")) not in self._hosts:
            return JSONResponse({"error": "this server is not reached by that name (Host)"}, 403)
        origin = headers.get("origin")
        if origin is not None and _place(origin) != headers.get("host", "").lower():
            return JSONResponse({"error": "requests from pages of other origins are refused (Origin)"}, 403)
        if not self._tokens or scope["path"].startswith(PATH):
            return None
        principal = self._principal(headers.get("authorization", ""))
        if principal is None:
            why = "the token is none of this server's" if "authorization" in headers else "a token is needed"
            return JSONResponse({"error": f"{why}: `Authorization: Bearer TOKEN`"}, 401, {"www-authenticate": "Bearer"})
        scope[PRINCIPAL] = principal
        # The SDK binds sessions to this, so that nobody else's session can be used, listened to or ended.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
        return None

    @staticmethod
    @lru_cache(256)
    def _name(host: str) -> str:
        """A Host header without its port, and an address of IPv6 without its brackets."""
        return re.sub(r":\d+$", "", host).lower().strip("[]")

    def _principal(self, authorization: str) -> str | None:
        """Whose token this is; every one is compared, however soon one fits."""
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode() if scheme.lower() == "bearer" else b""
        fitting = [name for name, known in self._tokens.items() if hmac.compare_digest(given, known)]
        return fitting[0] if fitting else None


def _telling(scope: Scope, receive: Receive) -> Receive:
    gone = scope[GONE] = asyncio.Event()

    async def told() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone.set()
        return message

    return told


def _place(origin: str) -> str | None:
    """Where a page is from: host and port."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
