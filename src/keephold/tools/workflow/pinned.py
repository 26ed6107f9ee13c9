"""Connections to checked addresses only (K10).

The name of a host is resolved once for each request. All addresses are checked, and the connection is made to one of
exactly these: a DNS server that answers differently the second time is not asked a second time. TLS still verifies the
name. Connections are not reused, because a connection to an address that two hosts share was verified for one of them.

A proxy of the environment would resolve the name itself, so none is used.
"""

import asyncio
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx2

from keephold.errors import ToolError
from keephold.tools.workflow.http import shown

_NAT64 = IPv6Network("64:ff9b::/96")
_RESERVED = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Relays to 6to4, and addresses for documentation: Python 3.11 takes both as global."""
_CONNECT_SECS = 10.0
"""How long one address may take, if there are others."""


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to public addresses only. Raises `ToolError` for others."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.raw_host.decode("ascii")
        where = f"{request.method} {shown(request.url)}"
        addresses = await _public_addresses(host, request.url.port, where)
        for address in addresses[:-1]:
            try:
                return await self._send(request, host, address, _CONNECT_SECS)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):  # nothing was sent
                continue
        return await self._send(request, host, addresses[-1], None)

    async def _send(self, request: httpx2.Request, host: str, address: str, secs: float | None) -> httpx2.Response:
        extensions = {**request.extensions, "timeout": {**request.extensions.get("timeout", {}), "connect": secs}}
        if host != address:
            extensions["sni_hostname"] = host  # TLS verifies this name
        to = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,  # with the `Host` of the URL as it was
            stream=request.stream,
            extensions=extensions,
        )
        return await self._inner.handle_async_request(to)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _public_addresses(host: str, port: int | None, where: str) -> list[str]:
    """Return the addresses of a host. Raises `ToolError` if there are none, or one of them is not public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ToolError(f"{where} failed: `{host}` cannot be resolved: {error}", transient=True) from None
    except UnicodeError:
        raise ToolError(f"{where} failed: `{host}` cannot be the name of a host") from None
    addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
    for address in addresses:
        if not is_public(ip_address(address)):
            raise ToolError(
                f"{where} was not asked: `{host}` is at {address}, which is not a public address; "
                "[workflows] private_addresses = true in keephold.toml lets workflows reach such"
            )
    return addresses


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address means the same machine everywhere on the internet."""
    if isinstance(address, IPv6Address):
        inside = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inside = IPv4Address(int(address) & 0xFFFFFFFF)
        if inside is not None:
            return is_public(inside)
        if address.is_site_local or address.scope_id is not None:
            return False
    if any(address in network for network in _RESERVED):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
