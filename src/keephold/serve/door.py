"""Who may reach the server (K1, K2, K9): the checks of `mcp/http.py` for hosts and origins, tokens, and sessions.

The owner's token opens everything, as a bearer token or as the session that a browser gets for it. Principals' tokens
open only `/mcp`, and each principal has its own handles. Four need no token: `/healthz`, the styles of the page that
asks for the token, `/complete/<key>`, where the key is the authority, and `/engines/…`, for workers, which have an
authority for each call.

A session's cookie works at one host only: `<name>.localhost`, or the host of `--url`. A browser that logs in at
`127.0.0.1` is sent there with a ticket. Another port of `127.0.0.1` or `localhost` is then another site, which gets no
cookie (`serve/sessions.py`).

Browsers send a cookie even if another site's page makes the request. So for requests that change something, the cookie
counts only if the browser says that the page is ours; and browsers never send it from other sites.
"""

import hmac
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.webhooks import PATH, Completing
from keephold.engines.wire import PATH as ENGINES
from keephold.errors import KeepholdError
from keephold.mcp.http import LOOPBACK, Door
from keephold.serve.engine_channel import EngineChannel
from keephold.serve.login import ask_for_token, go_on, name_ended, no_session
from keephold.serve.operations import is_more, refusal, refused
from keephold.serve.sessions import LASTS_SECS, BrowserSession, Sessions

_OPEN = ("/healthz",)
_FILES = "/static/"
OWNER = "keephold.owner"
"""Key in a request's scope: whether the sender is the owner."""
SESSION = "keephold.session"
"""Key in a request's scope: the `BrowserSession` of its cookie, if that let it in."""
_COOKIE = "keephold.cookie"
_OWN = ".localhost"
_SAFE = ("GET", "HEAD", "OPTIONS")
_TOKEN_BYTES = 4096
"""The largest form that may hold a token."""
_WRONG = "That is not the token of this server."
_PLACE = ":/%#?=@[]!$&'()*+,;"
"""Characters of a path and a query that stay as they are."""

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
        sessions: Sessions | None = None,
        url: str | None = None,
        named: bool = True,
        metrics_open: bool = True,
        longest: int = 16 << 20,
        workers: EngineChannel | None = None,
    ) -> None:
        """`completing` takes completions, `app` everything else. `owner` is the owner's token, `principals` maps tokens
        for `/mcp` to their principals. `url` is the public address. `named`: the server has its port on both loopback
        addresses, so that names below `.localhost` lead to it and to no other. `metrics_open`: `/metrics` needs no
        token, since only this machine can reach it. `longest`: bytes of a body. `workers` takes the channels of calls
        on engines."""
        super().__init__(app, dict(principals or {}), hosts, owner=owner)
        public = urlsplit(url or "")
        self._secure = public.scheme == "https"
        self._public = public.hostname if self._secure or public.hostname not in LOOPBACK else None
        self._completing = completing
        self._workers = workers or EngineChannel(None)
        self._sessions = sessions or Sessions(owner)
        self._named = named
        self._longest = longest
        self._open = (*_OPEN, "/metrics") if metrics_open else _OPEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # only HTTP is served
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self._may_have_session(scope, headers):
            unknown = await self._refresh()
            if unknown is not None:
                await unknown(scope, receive, _with_headers(send))
                return
        if scope["path"].startswith(PATH):  # machines send many of these, so they skip the rest
            scope["route"] = self._completing
            strange = self._strange(scope, headers)
            if strange is None:
                await self._completing(scope, receive, send)
            else:
                await strange(scope, receive, _with_headers(send))
            return
        if scope["path"].startswith(ENGINES):
            scope["route"] = self._workers
            strange = self._strange(scope, headers) or await self._workers.answer(Request(scope, receive), headers)
            await strange(scope, receive, _with_headers(send))
            return
        try:
            answer = await self._answer(scope, receive, headers)
        except KeepholdError as error:  # the store cannot keep a session now
            answer = refusal(error)
        if answer is not None:
            await answer(scope, receive, _with_headers(send))
            return
        lasting = self._lasting(scope[SESSION], scope[_COOKIE], headers, send) if SESSION in scope else send
        await super().__call__(scope, receive, _with_headers(lasting))

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
            return await self._login(receive, headers)
        query = scope["query_string"].decode("latin-1")
        given = dict(parse_qsl(query)) if query and method == "GET" else {}
        if path == "/login" and "ticket" in given:
            return await self._redeem(given["ticket"], headers)
        if "token" in given and not path.startswith(("/api", "/mcp")):
            return await self._welcome(given["token"], path, query, headers)
        scope[OWNER] = self._is_owner(headers)
        if scope[OWNER]:
            return None
        session = self._session(headers)
        if session is not None and (method in _SAFE or _same_page(headers)):
            scope[OWNER], (scope[SESSION], scope[_COOKIE]) = True, session
            return None
        if path in self._open or path.startswith(_FILES):
            return None
        if session is not None:
            return refused("forbidden", "the request does not say that it comes from a page of this server", 403)
        if path == "/mcp" or path.startswith("/mcp/"):
            return None if self._tokens and self._principal(headers) else _no_token(headers)
        if method in _SAFE and "text/html" in headers.get("accept", ""):
            return no_session() if self._origin(headers) is None else ask_for_token()
        return _no_token(headers)

    def _strange(self, scope: Scope, headers: Heads) -> Response | None:
        """Refuse unknown host names, and pages of other sites."""
        name = self._name(headers.get("host", ""))
        if not self._any_host and name not in self._hosts and not self._is_own(name):
            if name.endswith(_OWN) and scope["method"] in _SAFE:
                if scope["path"].startswith(_FILES):  # the styles of the next page
                    return None
                if "text/html" in headers.get("accept", ""):
                    return name_ended(f"http://127.0.0.1{_port(headers)}/")
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
        if not scope["path"].startswith("/mcp") or scope[OWNER]:
            return None
        return super()._refusal(scope, headers)

    @staticmethod
    def _own_origin(headers: Heads) -> bool:
        origin, host = headers.get("origin", ""), headers.get("host", "").lower()
        return origin.lower() in (f"http://{host}", f"https://{host}")

    # Sessions

    def _is_own(self, name: str) -> bool:
        """Whether the host is the dashboard's own."""
        own = self._sessions.name
        return self._named and own != "" and name == f"{own}{_OWN}"

    def _may_have_session(self, scope: Scope, headers: Heads) -> bool:
        """Whether sessions or the dashboard's name matter for a request. Most requests of machines read nothing."""
        return not scope["path"].startswith(_FILES) and (
            scope["path"] == "/login"
            or b"token=" in scope["query_string"]
            or self._name(headers.get("host", "")).endswith(_OWN)
            or any(_values(headers.get("cookie", ""), self._cookie_name(headers)))
        )

    async def _refresh(self, *, lately: bool = False) -> Response | None:
        """Learn which sessions there are, or return a refusal: other servers may have ended one."""
        try:
            await self._sessions.refresh(lately=lately)
        except KeepholdError as error:
            return refusal(error)
        return None

    def _is_public(self, name: str) -> bool:
        return name == self._public

    def _origin(self, headers: Heads) -> str | None:
        """Return where the sessions of browsers that use this Host are; empty if they are right here, None if
        nowhere."""
        name = self._name(headers.get("host", ""))
        if self._is_own(name) or self._is_public(name):
            return ""
        if self._named and name in LOOPBACK:
            return f"http://{self._sessions.name}{_OWN}{_port(headers)}"  # the port may be a forwarded one
        return None

    def _cookie_name(self, headers: Heads) -> str:
        """Return the cookie's name, the same at all servers behind a load balancer. All ports of a host share their
        cookies, and a public host may have dashboards of other stores, so there it has the port that browsers use."""
        if not self._is_public(self._name(headers.get("host", ""))):
            return "keephold"
        return f"{'__Host-' if self._secure else ''}keephold{_port(headers).replace(':', '_')}"

    def _session(self, headers: Heads) -> tuple[BrowserSession, str] | None:
        """Return the session of a request, and its cookie."""
        cookies = headers.get("cookie", "")
        if not cookies or self._origin(headers) != "":
            return None
        # Another page below `.localhost` may have set a cookie of the same name for all of them, so each is tried.
        for value in _values(cookies, self._cookie_name(headers)):
            session = self._sessions.find(value)
            if session is not None:
                return session, value
        return None

    def _set_cookie(self, headers: Heads, cookie: str) -> str:
        name = self._cookie_name(headers)
        secure = "; Secure" if name.startswith("__Host-") else ""
        return f"{name}={cookie}; Max-Age={LASTS_SECS}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def _lasting(self, session: BrowserSession, cookie: str, headers: Heads, send: Send) -> Send:
        """Return `send` for a session: it sends the cookie again when that is due, and nothing of a stream after the
        session's end."""
        streams = over = False

        async def sending(message: Message) -> None:
            nonlocal streams, over
            if message["type"] == "http.response.start":
                streams = not any(name == b"content-length" for name, _ in message["headers"])
                if await self._renewed(session):
                    again = (b"set-cookie", self._set_cookie(headers, cookie).encode())
                    message["headers"] = [*message["headers"], again]
            elif streams and not over and not await self._lasts(cookie):
                over = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            if not over:
                await send(message)

        return sending

    async def _renewed(self, session: BrowserSession) -> bool:
        try:
            return await self._sessions.renew(session)
        except KeepholdError:  # it is due again at the next request
            return False

    async def _lasts(self, cookie: str) -> bool:
        return await self._refresh(lately=True) is None and self._sessions.find(cookie) is not None

    # A browser, the first time

    async def _welcome(self, given: str, path: str, query: str, headers: Heads) -> Response:
        """Move the token from the address into a session."""
        if not self._opens(given):
            return ask_for_token(_WRONG)
        rest = [(name, value) for name, value in parse_qsl(query) if name != "token"]
        place = "/" + path.lstrip("/")  # never `//host`
        place = quote(f"{place}?{urlencode(rest)}" if rest else place, safe=_PLACE)
        origin = self._origin(headers)
        if origin is None:
            return no_session()
        if not origin:
            return await self._with_session(RedirectResponse(place, 303), headers)
        return RedirectResponse(f"{origin}/login?ticket={await self._sessions.ticket(place)}", 303)

    async def _login(self, receive: Receive, headers: Heads) -> Response:
        """Take the token of the form."""
        body = b""
        while len(body) <= _TOKEN_BYTES:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        origin = self._origin(headers)
        if origin is None:
            return no_session()
        if not self._opens(dict(parse_qsl(body.decode("latin-1"))).get("token", "").strip()):
            return ask_for_token(_WRONG)
        if not origin:
            return await self._with_session(RedirectResponse("/", 303), headers)
        return go_on(f"{origin}/login?ticket={await self._sessions.ticket('/')}")

    async def _redeem(self, ticket: str, headers: Heads) -> Response:
        """Begin the session at its own host."""
        place = await self._sessions.redeem(ticket) if self._origin(headers) == "" else None
        if place is None:
            return ask_for_token("That login was used before, or is too old.")
        return await self._with_session(go_on(place), headers)

    def _opens(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._owner or b"")

    async def _with_session(self, response: Response, headers: Heads) -> Response:
        if self._session(headers) is None:  # a browser that is logged in stays in its session
            cookie = await self._sessions.begin(headers.get("user-agent", ""))
            response.headers["set-cookie"] = self._set_cookie(headers, cookie)
        return response


def _same_page(headers: Heads) -> bool:
    """Whether the browser says that our own page makes the request; the Origin was checked before."""
    return headers.get("origin") is not None or headers.get("sec-fetch-site") == "same-origin"


def _no_token(headers: Heads) -> Response:
    why = "the token is not one of this server's" if "authorization" in headers else "a token is needed"
    response = refused("unauthorized", f"{why}: `Authorization: Bearer TOKEN`", 401)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _port(headers: Heads) -> str:
    """Return the port that the browser uses, with its colon."""
    _, colon, port = headers.get("host", "").rpartition(":")
    return f"{colon}{port}" if colon and port.isascii() and port.isdigit() else ""


def _values(cookies: str, name: str) -> Iterator[str]:
    """Yield the cookies of this name. Not by `http.cookies`: it stops at invalid cookies of other programs."""
    for part in cookies.split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key == name:
            yield value


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(each for each in RAW_HEADERS if each[0] not in said)]
        await send(message)

    return sending
