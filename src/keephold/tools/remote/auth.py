"""Requests to an MCP server with the user's stored login (M6). The tokens are refreshed here; nobody is asked.

`OAuthClientProvider` of `mcp` is not used as it is, for four reasons. It would begin a new login when a token is
refused. It holds a lock until the server answers, so that a long call blocks the others. After a restart it knows
neither when a token expires nor where to refresh it. And its log shows answers that are not valid, with their tokens.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

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
