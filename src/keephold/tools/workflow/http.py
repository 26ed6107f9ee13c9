"""The request of an `api` step: HTTP only, bounded in size; a status above 399 is an error.

The author of a workflow is not trusted with this machine and its network (K10). A step reaches the hosts that the
configuration lists; for any other the user is asked, once a run. Addresses that are not public are refused, unless the
configuration allows them. Both hold for each redirect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.errors import ToolError
from keephold.tools.workflow.frame import timed_out

if TYPE_CHECKING:
    import httpx2

MAX_BODY = 1024 * 1024
MAX_REDIRECTS = 5

_OWN = ("host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type")
"""Headers that the client sets itself."""
_PORTS = {"http": 80, "https": 443}

Permit = Callable[[str, dict[str, Any], str], Awaitable[None]]
"""Ask whether requests to a host may be sent: the host, the first request, and a name for the question. Raises
`ToolError` if they may not."""


async def refuse(host: str, request: dict[str, Any], name: str) -> None:
    """Permit no host that is not listed."""
    raise ToolError(
        f"`{host}` is not in `api_hosts` of [workflows] in keephold.toml, and nobody can be asked about it",
        code="permission_denied",
    )


class Http:
    """The client of one run, made when a step needs it.

    `hosts` are patterns of hosts that may be asked; `permit` decides about others. `private`: it may reach addresses
    that are not public, and uses the proxies of the environment.
    """

    def __init__(self, *, private: bool = False, hosts: Iterable[str] = (), permit: Permit = refuse) -> None:
        self._private = private
        self._patterns = [_parsed(each) for each in hosts]
        self._permit = permit
        self._permitted: set[str] = set()
        self._asking = asyncio.Lock()
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def request(self, given: dict[str, Any], name: str, seconds: float) -> dict[str, Any]:
        """Request `{"method", "url", "headers", "body"?}` → `{"status", "headers", "body"}`. Raises `ToolError`.

        It may take that many seconds, without the time for which the user is asked. `name` identifies the step.
        """
        import httpx2  # imported when a step needs it

        if self._client is None:
            from keephold.tools.workflow.pinned import PinnedTransport

            transport = None if self._private else PinnedTransport()
            self._client = httpx2.AsyncClient(timeout=None, transport=transport)
        where = given["method"]
        try:
            request = self._request(self._client, given)
            where = f"{request.method} {shown(request.url)}"
            return await self._answer(self._client, request, where, given, name, seconds)
        except httpx2.InvalidURL as error:
            raise ToolError(f"`url` is not a URL: {error}") from None
        except httpx2.TransportError as error:
            raise ToolError(f"{where} failed: {type(error).__name__} {error}".rstrip(), transient=True) from None

    def _request(self, client: "httpx2.AsyncClient", given: dict[str, Any]) -> "httpx2.Request":
        url, headers, body = given["url"], given["headers"], given.get("body")
        if not isinstance(url, str) or not isinstance(headers, dict):
            raise ToolError("`url` must be a string and `headers` an object")
        if not all(isinstance(each, str) for each in headers.values()):
            raise ToolError("the values of `headers` must be strings")
        content: dict[str, Any] = {}
        if isinstance(body, str):
            content = {"content": body}
        elif body is not None:
            content = {"json": body}
        request = client.build_request(given["method"], url, headers=headers, **content)
        if request.url.scheme not in _PORTS:
            raise ToolError(f"`url` must begin with http:// or https://, not {request.url.scheme or 'nothing'}")
        return request

    async def _answer(
        self,
        client: "httpx2.AsyncClient",
        request: "httpx2.Request",
        where: str,
        given: dict[str, Any],
        name: str,
        seconds: float,
    ) -> dict[str, Any]:
        named = [header for header in request.headers if header.lower() not in _OWN]
        left, loop = seconds, asyncio.get_running_loop()
        for hop in range(MAX_REDIRECTS + 1):
            await self._check_host(request.url, given, f"{name}>{hop}")
            timer, began = asyncio.timeout(left), loop.time()
            try:
                async with timer:
                    response = await client.send(request, stream=True)
                    try:
                        following = response.next_request
                        if following is None:
                            return _read(response, await _body(response, where), where)
                    finally:
                        await response.aclose()
            except TimeoutError:
                if not timer.expired():
                    raise
                raise timed_out(seconds) from None
            left -= loop.time() - began
            if following.url.scheme != request.url.scheme and following.url.scheme != "https":
                raise ToolError(f"{where} redirects to {following.url.scheme}, which is not followed")
            if not _same_place(request.url, following.url):  # headers and body are for the host that the step names
                if following.headers.get("content-length", "0") != "0":
                    raise ToolError(f"{where} redirects its body to another host, which is not followed")
                for header in named:
                    following.headers.pop(header, None)
            request, given = following, {"method": following.method, "url": str(following.url)}
        raise ToolError(f"{where} redirects more than {MAX_REDIRECTS} times")

    async def _check_host(self, url: "httpx2.URL", given: dict[str, Any], name: str) -> None:
        """Raise `ToolError` if the host is neither listed nor permitted."""
        host, port = _host(url), _port(url)
        if any(_fits(host, port, url.scheme, pattern) for pattern in self._patterns):
            return
        place = f"[{host}]" if ":" in host else host
        place = place if port == _PORTS[url.scheme] else f"{place}:{port}"
        async with self._asking:  # steps that run side by side ask one after the other, and each host once
            if place not in self._permitted:
                await self._permit(place, given, name)
                self._permitted.add(place)


_Pattern = tuple[str, int | None]


def _parsed(pattern: str) -> _Pattern:
    """Return the host and the port of an entry of `api_hosts`; None: the usual port."""
    host, colon, port = pattern.lower().rpartition(":")
    if not colon or not port.isdecimal() or (host.startswith("[") and not host.endswith("]")):
        host, port = pattern.lower(), ""
    return host.strip("[]"), int(port) if port else None


def _fits(host: str, port: int, scheme: str, pattern: _Pattern) -> bool:
    wanted, at = pattern
    if port != (at or _PORTS[scheme]):
        return False
    return wanted in ("*", host) or (wanted.startswith("*.") and host.endswith(wanted[1:]))


def _host(url: "httpx2.URL") -> str:
    """Return the host of a URL as patterns are written: `example.org.` is `example.org`."""
    return url.raw_host.decode("ascii").lower().rstrip(".")


def _port(url: "httpx2.URL") -> int:
    return url.port or _PORTS[url.scheme]


def _same_place(one: "httpx2.URL", other: "httpx2.URL") -> bool:
    """Whether two URLs have the same host and port; the usual ports of `http` and `https` are the same."""
    usual = _port(one) == _PORTS[one.scheme] and _port(other) == _PORTS[other.scheme]
    return _host(one) == _host(other) and (usual or _port(one) == _port(other))


async def _body(response: "httpx2.Response", where: str) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_BODY:
            raise ToolError(f"{where} answers with more than 1 MiB", code="limit_exceeded")
    return bytes(body)


def _read(response: "httpx2.Response", body: bytes, where: str) -> dict[str, Any]:
    text = body.decode(response.charset_encoding or "utf-8", errors="replace")
    status = response.status_code
    if status >= 400:
        said = f": {text[:300]}" if text.strip() else ""
        raise ToolError(f"{where} answered {status}{said}", transient=status == 429 or status >= 500)
    read: Any = text
    if body and "json" in response.headers.get("content-type", ""):
        try:
            read = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolError(f"{where} answers with what is not JSON: {error}") from None
    return {"status": status, "headers": dict(response.headers), "body": read}


def shown(url: "httpx2.URL") -> str:
    """Return the URL without parts that may be secret."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{url.path}"
