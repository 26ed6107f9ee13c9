"""Requests to an MCP server with the login of the user, and logging in (M6). Requests refresh the tokens; nobody is
asked.

`OAuthClientProvider` of `mcp` is not used as it is, for four reasons. It would begin a new login when a token is
refused. It holds a lock until the server answers, so that a long call blocks the others. After a restart it knows
neither when a token expires nor where to refresh it. And its log shows answers that are not valid, with their tokens.

A login is the authorization code flow with PKCE of `mcp`; the user's browser is redirected to a loopback port. keephold
registers itself for each login, because the redirect goes to a port that is free at the moment.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from keephold.errors import KeepholdError
from keephold.tools.remote.login import Login, LoginFile

_REFRESH_SECS = 10.0
_BYTES = 1 << 20
_FINAL = ("invalid_grant", "invalid_client", "unauthorized_client")
"""The refusals after which only a new login helps."""


class StoredLogin(httpx2.Auth):
    """Sends the access token. `away` is called with the reason when the login cannot be used."""

    def __init__(self, name: str, file: LoginFile, away: Callable[[str], None]) -> None:
        self._name = name
        self._file = file
        self._away = away

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = await self._token()
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:  # revoked, or expired earlier than announced
            token = await self._token(refused=token)
            request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code == 401:
                raise self._unusable(self._again("refuses the stored login"))

    async def _token(self, refused: str | None = None) -> str:
        """Return an access token other than the refused one. All processes share the file, so it is read each time."""
        try:
            login = self._file.read()
            if login is None or login.has_expired or login.access == refused:
                async with self._file.locked():
                    login = self._file.read()  # another process may have refreshed it meanwhile
                    if login is None:
                        raise KeepholdError(self._again("needs a login"), code="mcp_disconnected")
                    if login.has_expired or login.access == refused:
                        login = await self._refreshed(login)
        except TimeoutError:
            raise self._unusable("its login could not be refreshed in time") from None
        except httpx2.HTTPError as error:
            raise self._unusable(f"its login could not be refreshed: {error or type(error).__name__}") from None
        except OSError as error:
            raise self._unusable(f"its login cannot be used: {error.strerror}") from None
        except KeepholdError as error:
            raise self._unusable(error.message) from None
        return login.access

    async def _refreshed(self, login: Login) -> Login:
        if login.refresh is None:
            raise KeepholdError(self._again("has ended the stored login"), code="mcp_disconnected")
        # A server that has issued a new refresh token does not accept the old one: the new one must be kept.
        with anyio.fail_after(_REFRESH_SECS, shield=True):
            try:
                request = await _request(self._file.url, login)
            except (ValueError, OAuthFlowError):  # the text would show the tokens
                raise KeepholdError(self._again("cannot refresh the stored login"), code="mcp_disconnected") from None
            status, body = await _post(request)
            if status == 200:
                new = _login_from(body, login)
                await asyncio.to_thread(self._file.write, new)
                return new
            if _refusal(body) in _FINAL:
                self._file.remove()
                raise KeepholdError(self._again("has ended the stored login"), code="mcp_disconnected")
        raise KeepholdError(f"its login could not be refreshed (HTTP {status})", code="mcp_disconnected")

    def _again(self, why: str) -> str:
        return f"it {why}; to log in: keephold mcp-login {self._name}"

    def _unusable(self, reason: str) -> KeepholdError:
        self._away(reason)
        return KeepholdError(reason, code="mcp_disconnected")


async def _request(url: str, login: Login) -> httpx2.Request:
    """Return the request that refreshes the tokens."""
    provider = OAuthClientProvider(url, OAuthClientMetadata(redirect_uris=None), storage=None)  # type: ignore[arg-type]
    context = provider.context
    context.current_tokens = OAuthToken.model_validate(login.tokens)
    context.client_info = OAuthClientInformationFull.model_validate(login.client)
    if login.metadata is not None:
        context.oauth_metadata = OAuthMetadata.model_validate(login.metadata)
    if login.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(login.resource)
    return await provider._refresh_token()


async def _post(request: httpx2.Request) -> tuple[int, bytes]:
    """Return the status and the body, cut to a size that no token has. Redirects are not followed."""
    body = b""
    async with httpx2.AsyncClient() as client:
        response = await client.send(request, stream=True)
        try:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _BYTES:
                    break
        finally:
            await response.aclose()
    return response.status_code, body


def _login_from(body: bytes, before: Login) -> Login:
    """Return the login with the new tokens. A server may leave out the scope and the refresh token, which then stay."""
    try:
        tokens = OAuthToken.model_validate_json(body)
        kept = {name: before.tokens.get(name) for name in ("scope", "refresh_token")}
        given = tokens.model_dump(mode="json", exclude_none=True)
        return replace(before, tokens={**kept, **given}, expires_at=expiry(tokens))
    except ValueError:  # its text would show the tokens
        raise KeepholdError("its answer to the refreshed login is not a token", code="mcp_disconnected") from None


def expiry(tokens: OAuthToken) -> float | None:
    """Return when the access token expires."""
    return None if tokens.expires_in is None else time.time() + tokens.expires_in


def _refusal(body: bytes) -> object:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer.get("error") if isinstance(answer, dict) else None


# Logging in

_PERSON_SECS = 600.0
_REQUEST_SECS = 10.0
_SERVER_SECS = 30.0
_PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
"""Any message does: a server that needs a login answers 401 before it reads one."""
_ACCEPT = {"Accept": "application/json, text/event-stream"}

Show = Callable[[str], Awaitable[None]]
"""Show the user the address of the server's login page."""


async def log_in(url: str, headers: Mapping[str, str], scope: str | None, show: Show) -> Login:
    """Return the login at a server, once the user has logged in. Raises `KeepholdError`, without any secret in it."""
    try:
        async with asyncio.timeout(_PERSON_SECS), _listening(show) as redirect:
            client = _Client(redirect_uris=[AnyUrl(redirect.address)], client_name="keephold", scope=scope)
            auth = OAuthClientProvider(url, client, _Kept(), redirect.show, redirect.result)
            async with (
                httpx2.AsyncClient(auth=auth, headers={**headers, **_ACCEPT}, timeout=_SERVER_SECS) as http,
                http.stream("POST", url, json=_PING) as response,
            ):
                return _login_of(auth, response.status_code)
    except TimeoutError:
        why = f"nobody logged in within {_PERSON_SECS / 60:g} minutes"
    except httpx2.HTTPError as error:
        why = str(error) or type(error).__name__
    except OAuthFlowError as error:
        why = _words(error)
    except ValueError:  # its text would show the answer
        why = "the server's answer is not valid"
    raise KeepholdError(why, code="mcp_error")


def _login_of(auth: OAuthClientProvider, status: int) -> Login:
    context = auth.context
    if context.current_tokens is None or context.client_info is None:
        why = f"it did not ask for a login (HTTP {status}); it may need none, or a token in `headers`"
        raise KeepholdError(why, code="mcp_error")
    if status in (401, 403):
        raise KeepholdError(f"it refuses the new login (HTTP {status})", code="mcp_error")
    return Login(
        tokens=_json(context.current_tokens) or {},
        expires_at=expiry(context.current_tokens),
        client=_json(context.client_info) or {},
        metadata=_json(context.oauth_metadata),
        resource=_json(context.protected_resource_metadata),
    )


def _json(model: Any) -> dict[str, Any] | None:
    dumped: dict[str, Any] | None = None if model is None else model.model_dump(mode="json", exclude_none=True)
    return dumped


def _words(error: OAuthFlowError) -> str:
    """Return the beginning of an error of `mcp`: the rest may be an answer of the server, with secrets (K5)."""
    found = re.match(r"[^:]*(: \d{3})?", str(error))
    words = found.group()[:200] if found else ""
    if isinstance(error, OAuthRegistrationError):
        words += "; if clients cannot register themselves there, get a token from it, and send that by `headers`"
    return words


class _Client(OAuthClientMetadata):
    """keephold as a client. `mcp` asks for the scope that the server names; a configured scope overrides it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "scope" or self.scope is None:
            super().__setattr__(name, value)


class _Kept:
    """Where `mcp` keeps what it gets. It is written to the disk when the login is complete."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """The provider has them."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """The provider has it."""


class _Redirect:
    """The address to which the server sends the browser back. Only a request with the right `state` counts: others on
    this machine can send requests, too."""

    def __init__(self, show: Show) -> None:
        self.address = ""
        self._show = show
        self._state: str | None = None
        self._result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def show(self, address: str) -> None:
        self._state = parse_qs(urlsplit(address).query)["state"][-1]
        await self._show(address)

    async def result(self) -> AuthorizationCodeResult:
        return await self._result

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._answer(head.partition(b"\r\n")[0].decode("latin-1"))
                fields = "Content-Type: text/plain\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer"
                writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\nConnection: close\r\n\r\n{text}\n".encode())
                await writer.drain()
        writer.close()

    def _answer(self, line: str) -> tuple[str, str]:
        method, _, target = line.partition(" ")
        path, _, query = target.partition(" ")[0].partition("?")
        if method != "GET" or path != "/callback":
            return "404 Not Found", "Nothing is here."
        given = {name: values[-1] for name, values in parse_qs(query, max_num_fields=20).items()}
        if self._state is None or not secrets.compare_digest(given.get("state", "").encode(), self._state.encode()):
            return "400 Bad Request", "This is not the login that keephold waits for: its state is another one."
        if self._result.done():
            return "400 Bad Request", "keephold has this answer already."
        if not given.get("code"):
            refusal = re.sub("[^a-z_]", "", given.get("error", ""))[:50] or "no code was given"
            self._result.set_exception(OAuthFlowError(f"the login was refused ({refusal})"))
            return "200 OK", "The login was refused. You can close this page."
        self._result.set_result(AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss")))
        return "200 OK", "keephold has the answer. You can close this page and return to the terminal."


@asynccontextmanager
async def _listening(show: Show) -> AsyncIterator[_Redirect]:
    redirect = _Redirect(show)
    server = await asyncio.start_server(redirect.serve, "127.0.0.1", 0, limit=1 << 16)
    redirect.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callback"
    try:
        yield redirect
    finally:
        server.close()
