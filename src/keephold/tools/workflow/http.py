"""The request of an `api` step: HTTP only, bounded in size; a status above 399 is an error.

The author of a workflow is not trusted with this machine and its network, so addresses that are not public are refused,
unless the configuration allows them (K). Every address of the host is checked before each hop.
"""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.errors import ToolError

if TYPE_CHECKING:
    import httpx2

MAX_BODY = 1024 * 1024
MAX_REDIRECTS = 5

_OWN = ("host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type")
"""Headers that the client sets itself."""
_SCHEMES = ("http", "https")
_NAT64 = IPv6Network("64:ff9b::/96")


class Http:
    """The client of one run, made when a step needs it. `private`: it may reach addresses that are not public."""

    def __init__(self, *, private: bool = False) -> None:
        self._private = private
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def request(self, given: dict[str, Any]) -> dict[str, Any]:
        """Request `{"method", "url", "headers", "body"?}` → `{"status", "headers", "body"}`. Raises `ToolError`."""
        import httpx2  # imported when a step needs it

        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=None)  # the step has a timeout
        where = given["method"]
        try:
            request = self._request(self._client, given)
            where = f"{request.method} {_shown(request.url)}"
            return await self._answer(self._client, request, where)
        except httpx2.InvalidURL as error:
            raise ToolError(f"`url` is no URL: {error}") from None
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
        if request.url.scheme not in _SCHEMES:
            raise ToolError(f"`url` must begin with http:// or https://, not {request.url.scheme or 'nothing'}")
        return request

    async def _answer(self, client: "httpx2.AsyncClient", request: "httpx2.Request", where: str) -> dict[str, Any]:
        given = [name for name in request.headers if name.lower() not in _OWN]
        for _ in range(MAX_REDIRECTS + 1):
            if not self._private:
                await _check_public(request.url, where)
            response = await client.send(request, stream=True)
            try:
                following = response.next_request
                if following is None:
                    return _read(response, await _body(response, where), where)
            finally:
                await response.aclose()
            if following.url.scheme != request.url.scheme and following.url.scheme != "https":
                raise ToolError(f"{where} redirects to {following.url.scheme}, which is not followed")
            if following.url.raw_host != request.url.raw_host:  # headers and body are for the host that the step names
                for name in given:
                    following.headers.pop(name, None)
            request = following
        raise ToolError(f"{where} redirects more than {MAX_REDIRECTS} times")


async def _check_public(url: "httpx2.URL", where: str) -> None:
    """Refuse a host with an address that is not public. The name is resolved again to connect, so a DNS server under an
    attacker's control can still return another address then.
    """
    host = url.raw_host.decode("ascii")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, url.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ToolError(f"{where} failed: `{host}` cannot be resolved: {error}", transient=True) from None
    except UnicodeError:
        raise ToolError(f"{where} failed: `{host}` cannot be the name of a host") from None
    for *_, place in found:
        address = ip_address(place[0])
        if not is_public(address):
            raise ToolError(
                f"{where} was not asked: `{host}` is at {address}, which is not a public address; "
                "[workflows] private_addresses = true in keephold.toml lets workflows reach such"
            )


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address means the same machine everywhere on the internet."""
    if isinstance(address, IPv6Address):
        inside = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inside = IPv4Address(int(address) & 0xFFFFFFFF)
        if inside is not None:
            return is_public(inside)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


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


def _shown(url: "httpx2.URL") -> str:
    """Return the URL without parts that may be secret."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{url.path}"
