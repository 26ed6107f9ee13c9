"""Requests to a server, and what may come of them: a server that is not there, a token that it does not know, a
refusal. Each is a `KeepholdError` that says what to do.
"""

import ipaddress
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec

from keephold.errors import KeepholdError
from keephold.handles.text import to_json

_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
PATIENT = httpx2.Timeout(None, connect=10.0)
"""For what may take as long as it takes."""


class Requests:
    """A server. Use it as an async context manager."""

    def __init__(
        self, url: str, token: str | None = None, *, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` is for tests."""
        parts = address(url)
        if parts is None:
            shown = url.partition("?")[0].rpartition("@")[2]  # what is left out may be a token, or a password (K5)
            raise KeepholdError(
                f"`{shown}` is no address of a server; one looks like http://127.0.0.1:8420", code="invalid_arguments"
            )
        path = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        """As it is shown: without a password."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._has_token = bool(token)
        # What the environment says of proxies is for the world outside, and a loopback address is not there.
        self.client = httpx2.AsyncClient(
            base_url=f"{parts.scheme}://{parts.netloc}{path}", headers=headers, timeout=_TIMEOUT, transport=transport,
            trust_env=not is_local(url),
        )  # fmt: skip

    @property
    def place(self) -> str:
        return f"the server {self.url}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()

    async def stream(self, path: str, **asked: Any) -> AsyncIterator[httpx2.ServerSentEvent]:
        """A stream of server-sent events, as they come."""
        request = self.client.build_request("GET", path, params=_given(asked), timeout=PATIENT)
        response = await self.sent(request)
        try:
            async for event in httpx2.EventSource(response):
                yield event
        except httpx2.TransportError as error:
            raise self._lost(error) from error
        finally:
            await response.aclose()

    async def get(self, path: str, **asked: Any) -> Any:
        """What a GET answers; what is None is not asked for."""
        return await self.read(await self.sent(self.client.build_request("GET", path, params=_given(asked))))

    async def post(self, path: str, body: Mapping[str, Any], *, timeout: float | None = 30.0) -> Any:
        """What a POST answers."""
        request = self.client.build_request(
            "POST", path, content=to_json(body), headers={"content-type": "application/json"},
            timeout=httpx2.Timeout(timeout, connect=10.0),
        )  # fmt: skip
        return await self.read(await self.sent(request))

    async def read(self, response: httpx2.Response) -> Any:
        """What a response says. Whatever else is at that address may say something else, and any may break off."""
        try:
            return msgspec.json.decode(await response.aread())
        except httpx2.TransportError as error:
            raise self._lost(error) from error
        except msgspec.MsgspecError:
            raise refused(response, None) from None

    async def sent(self, request: httpx2.Request, fine: tuple[int, ...] = ()) -> httpx2.Response:
        """The response, whose body is still to be read. Raises `KeepholdError` for one that is an error."""
        try:
            response = await self.client.send(request, stream=True)
            if response.is_success or response.status_code in fine:
                return response
            body = await response.aread()
        except httpx2.TransportError as error:
            raise self._lost(error) from error
        try:
            answered = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            answered = None
        if response.status_code == 401:
            raise KeepholdError(self._who(), code="server_refused")
        raise refused(response, answered)

    def _who(self) -> str:
        said = "does not know that token" if self._has_token else "needs a token"
        return (
            f"{self.place} {said}; `keephold serve` prints it when it starts: put it in KEEPHOLD_TOKEN or --token-file"
        )

    def _lost(self, error: Exception) -> KeepholdError:
        # What we may not send is told with what it is, and that may be the token (K5).
        told = "" if isinstance(error, httpx2.LocalProtocolError) else str(error)
        why = told or type(error).__name__
        return KeepholdError(
            f"no server answers at {self.url} ({why}); `keephold serve` starts one. Without --server and "
            "KEEPHOLD_SERVER the store is looked into",
            code="server_unreachable",
        )


def address(url: str) -> SplitResult | None:
    """The parts of what a server can be reached by: http or https, a host, and a port that there can be; else None."""
    try:
        parts = urlsplit(url)
        httpx2.URL(url).copy_with(port=parts.port)  # each finds faults that the other does not
    except (ValueError, httpx2.InvalidURL):
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None


def is_local(url: str) -> bool:
    """Whether the server is on this machine: a proxy does not lead there, and a token of this machine is for it."""
    parts = address(url)
    host = "" if parts is None else (parts.hostname or "").lower()
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def refused(response: httpx2.Response, answered: Any) -> KeepholdError:
    """What the server says is wrong. `{"error": {"code", "message"}}`; whatever else there is between us may answer."""
    error = answered.get("error") if isinstance(answered, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return KeepholdError(error["message"], code=str(error.get("code") or "tool_error"))
    if isinstance(error, str):
        return KeepholdError(error, code=str(answered.get("code") or "server_refused"))
    return KeepholdError(
        f"{response.url} answered {response.status_code} {response.reason_phrase}, and not as a keephold server does; "
        "is the address right?",
        code="server_refused",
    )
