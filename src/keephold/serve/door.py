"""Who may reach the server (K1, K2): the checks of `mcp/http.py` for hosts and origins, and tokens.

The owner's token opens everything, as a bearer token or as the cookie that a browser gets for it. Principals' tokens
open only `/mcp`, and each principal has its own handles. Three need no token: `/healthz`, the styles of the page that
asks for the token, and `/complete/<key>`, where the key is the authority.

Browsers send a cookie even if another site's page makes the request. So for requests that change something, the cookie
counts only if the browser says that the page is ours; and browsers never send it from other sites.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.webhooks import PATH, Completing
from keephold.mcp.http import Door
from keephold.serve.operations import is_more, refused

_OPEN = ("/healthz",)
_FILES = "/static/"
OWNER = "keephold.owner"
"""Key in a request's scope: whether the sender is the owner."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_COOKIE_SECS = 30 * 86_400
_TOKEN_BYTES = 4096
"""The largest form that may hold a token."""

HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every response. A referrer could carry a token or a key to a linked site; without any referrer, browsers
send our own forms with a null origin."""


RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

Heads = Mapping[str, str]
"""The headers of a request, by lower-case name."""


class ServeDoor(Door):
    """Authenticates requests, and sends browsers the security headers of our pages."""

    def __init__(
        self,
        app: ASGIApp,
        completing: Completing,
        owner: str,
        principals: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (),
        *,
        port: int = 0,
        secure: bool = False,
        metrics_open: bool = True,
        longest: int = 16 << 20,
    ) -> None:
        """`completing` takes completions, `app` everything else. `owner` is the owner's token, `principals` maps tokens
        for `/mcp` to their principals. `metrics_open`: `/metrics` needs no token, since only this machine can reach it.
        `secure`: browsers use https. `longest`: bytes of a body."""
        super().__init__(app, dict(principals or {}), hosts)
        self._any_host = any(host in ("0.0.0.0", "::", "[::]") for host in hosts)
        self._completing = completing
        self._owner = owner.encode()
        self._port = port
        self._secure = secure
        self._longest = longest
        self._open = (*_OPEN, "/metrics") if metrics_open else _OPEN
        self._badge = hmac.new(self._owner, b"keephold dashboard cookie", hashlib.sha256).hexdigest()

    @property
    def cookie(self) -> str:
        """Return the cookie's name; it has the port, since all ports of a host share their cookies."""
        return f"keephold_{self._port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # only HTTP is served
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"].startswith(PATH):  # machines send many of these, so they skip the rest
            scope["route"] = self._completing
            strange = self._strange(scope, headers)
            if strange is None:
                await self._completing(scope, receive, send)
            else:
                await strange(scope, receive, _with_headers(send))
            return
        guarded = _with_headers(send)
        refusal = await self._answer(scope, receive, headers)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        await super().__call__(scope, receive, guarded)

    async def _answer(self, scope: Scope, receive: Receive, headers: "Heads") -> Response | None:
        """Return the door's own response, a refusal or a cookie for a token; None lets the request in."""
        wrong = self._strange(scope, headers)
        if wrong is not None:
            return wrong
        path, method = scope["path"], scope["method"]
        length = headers.get("content-length", "")
        if is_more(length, self._longest):  # before any of it is read
            return refused("limit_exceeded", f"the body is larger than {self._longest} bytes", 413)
        if path == "/login" and method == "POST":
            return await self._login(receive)
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
        if given is not None and method == "GET" and not path.startswith(("/api", "/mcp")):
            return self._welcome(given, path, scope["query_string"].decode("latin-1"))
        scope[OWNER] = self._is_owner(headers)
        if scope[OWNER]:
            return None
        if self._by_cookie(headers) and (method in _SAFE or _same_page(headers)):
            scope[OWNER] = True
            return None
        if path in self._open or path.startswith(_FILES):
            return None
        if self._by_cookie(headers):
            return refused("forbidden", "the request does not say that it comes from a page of this server", 403)
        if path == "/mcp" or path.startswith("/mcp/"):
            return None if self._tokens and self._principal(headers.get("authorization", "")) else _no_token(headers)
        if method in _SAFE and "text/html" in headers.get("accept", ""):
            return _ask_for_token(401)
        return _no_token(headers)

    def _strange(self, scope: Scope, headers: Heads) -> Response | None:
        """Refuse unknown host names, and pages of other sites."""
        if not self._any_host and self._name(headers.get("host", "")) not in self._hosts:
            return refused("forbidden", "this server is not reached by that name (Host)", 403)
        if headers.get("origin") is not None and not self._own_origin(headers):
            return refused("forbidden", "requests from pages of other origins are refused (Origin)", 403)
        site = headers.get("sec-fetch-site", "none")
        navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in _SAFE
        if site not in ("same-origin", "none") and not navigates:
            return refused("forbidden", "requests from pages of other sites are refused (Sec-Fetch-Site)", 403)
        return None

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse requests without a valid token; for `/mcp`, note the principal."""
        if not scope["path"].startswith("/mcp") or self._is_owner(headers) or self._by_cookie(headers):
            return None
        return super()._refusal(scope, headers)

    @staticmethod
    def _own_origin(headers: Heads) -> bool:
        origin, host = headers.get("origin", ""), headers.get("host", "").lower()
        return origin.lower() in (f"http://{host}", f"https://{host}")

    def _is_owner(self, headers: Heads) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._owner)

    def _by_cookie(self, headers: Heads) -> bool:
        # Not by http.cookies: it stops at invalid cookies that other programs on this host have set.
        ours = cookie_parser(headers.get("cookie", "")).get(self.cookie)
        return ours is not None and hmac.compare_digest(ours.encode(), self._badge.encode())

    # A browser, the first time

    def _welcome(self, given: str, path: str, query: str) -> Response:
        """Move the token from the address into a cookie."""
        if not hmac.compare_digest(given.encode(), self._owner):
            return _ask_for_token(401, wrong=True)
        rest = [(name, value) for name, value in parse_qsl(query) if name != "token"]
        place = "/" + path.lstrip("/")  # never `//host`
        return self._with_cookie(RedirectResponse(f"{place}?{urlencode(rest)}" if rest else place, 303))

    async def _login(self, receive: Receive) -> Response:
        body = b""
        while len(body) <= _TOKEN_BYTES:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        given = dict(parse_qsl(body.decode("latin-1"))).get("token", "")
        if not hmac.compare_digest(given.strip().encode(), self._owner):
            return _ask_for_token(401, wrong=True)
        return self._with_cookie(RedirectResponse("/", 303))

    def _with_cookie(self, response: Response) -> Response:
        response.set_cookie(
            self.cookie, self._badge, max_age=_COOKIE_SECS, httponly=True, samesite="strict", secure=self._secure
        )
        return response


def _same_page(headers: Heads) -> bool:
    """Whether the browser says that our own page makes the request; the Origin was checked before."""
    return headers.get("origin") is not None or headers.get("sec-fetch-site") == "same-origin"


def _no_token(headers: Heads) -> Response:
    why = "the token is none of this server's" if "authorization" in headers else "a token is needed"
    response = refused("unauthorized", f"{why}: `Authorization: Bearer TOKEN`", 401)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _ask_for_token(status: int, *, wrong: bool = False) -> Response:
    problem = '<p class="problem" role="alert">That is not the token of this server.</p>' if wrong else ""
    return HTMLResponse(_LOGIN.replace("<!-- problem -->", problem), status, {"cache-control": "no-store"})


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(each for each in RAW_HEADERS if each[0] not in said)]
        await send(message)

    return sending


_LOGIN = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>keephold: token needed</title>
<link rel="stylesheet" href="/static/style.css">
</head>
<body class="door">
<main id="main">
<h1>keephold</h1>
<p>This page is for whoever started the server. <code>keephold serve</code> printed an address with a token when it
started; open that, or paste the token here.</p>
<!-- problem -->
<form method="post" action="/login">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button type="submit">Open</button>
</form>
</main>
</body>
</html>
"""
