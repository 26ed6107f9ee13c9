"""An MCP server that needs a login, and its authorization server on another port, both made with `mcp`."""

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenVerifier,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.applications import Starlette
from tests.e2e.driver import until
from tests.patience import PATIENCE

SCOPES = ["read", "write"]


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken], TokenVerifier):
    """Lets every user in at once. A refresh token is valid once; when it comes again, all tokens are revoked."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.issued: list[str] = []
        """All tokens, ever."""
        self.refreshed = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_hex(16)
        assert client.client_id is not None
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 300,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(authorization_code.client_id, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self.issued and refresh_token not in self.refresh:
            self.revoke()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.refreshed += 1
        return self._issue(refresh_token.client_id, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def verify_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    def revoke(self) -> None:
        self.access.clear()
        self.refresh.clear()

    def _issue(self, client: str, scopes: list[str]) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        self.access[access] = AccessToken(token=access, client_id=client, scopes=scopes)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes)
        self.issued += [access, refresh]
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes))


class Guarded:
    """The two servers."""

    def __init__(self, url: str, provider: Provider) -> None:
        self.url = url
        self.provider = provider


@contextmanager
def guarded() -> Iterator[Guarded]:
    """Serve both in a thread."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    issuer, origin = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    provider, url = Provider(), f"{origin}/mcp"
    options = ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES)
    settings = AuthSettings.model_validate(
        {
            "issuer_url": issuer,
            "resource_server_url": url,
            "required_scopes": ["read"],
            "validate_token_resource": False,
        }
    )
    routes = create_auth_routes(provider, settings.issuer_url, client_registration_options=options)
    server = MCPServer("guarded", auth=settings, token_verifier=provider)

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    apps = [Starlette(routes=routes), server.streamable_http_app(json_response=True)]
    webs = [uvicorn.Server(uvicorn.Config(app, log_level="critical")) for app in apps]

    async def serve() -> None:
        await asyncio.gather(*(web.serve([sock]) for web, sock in zip(webs, sockets, strict=True)))

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    until(lambda: all(web.started for web in webs))
    try:
        yield Guarded(url, provider)
    finally:
        for web in webs:
            web.should_exit = True
        thread.join(PATIENCE)
