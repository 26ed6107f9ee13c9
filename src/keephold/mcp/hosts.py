"""Which conversation a client has that started its server, on stdin and stdout or behind the socket (M5, M7).

Hosts start their servers without asking where. If all of them used one conversation, two of them would meet: an id that
one has taken is refused to the other, and one reads the notifications of the other. A conversation is therefore named
by the client and by a digest of the directory it started the server in. Several hosts start servers in `/` or in the
home directory, which says nothing about the project: there the client's first root counts, if it names one within a
second.
"""

import asyncio
import contextlib
import hashlib
import os
import re
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mcp.server.context import CallNext, HandlerResult
from mcp_types import ListRootsRequest, ListRootsResult

from keephold.ids import made_id

if TYPE_CHECKING:
    from keephold.mcp.calls import Context

MCP = "mcp"
"""The first part of the names, where the owner has named no conversation."""
ROOTS_SECS = 1.0
"""How long a client may take to name its roots."""
_LONGEST = 40
"""Characters of a client's name."""
_SEPARATORS = str.maketrans(":/@", "---")
"""Signs that have a meaning in the names of conversations: a client must not choose that of another."""
_HOSTED = re.compile("[^:]+:[0-9a-f]{12}")


class Host:
    """The client of one connection."""

    def __init__(self, cwd: str, conversation: str | None = None) -> None:
        """`conversation` is the one that was named for it."""
        self._named = conversation
        self._place = cwd
        self._vague = conversation is None and cwd in ("/", _home())
        self._asking: asyncio.Task[None] | None = None

    def conversation(self, base: str, ctx: "Context") -> str:
        """Return the conversation of the client that sent a request."""
        if self._named is not None:
            return self._named
        params = ctx.session.client_params
        client = made_id("" if params is None else params.client_info.name, _LONGEST).translate(_SEPARATORS)
        digest = hashlib.sha256(os.fsencode(self._place)).hexdigest()[:12]
        return f"{base}:{client or 'client'}:{digest}"

    async def find_place(self, ctx: "Context") -> None:
        """Ask the client for its roots, once, if the directory says nothing. Requests that come meanwhile wait too, and
        keep their order."""
        if not self._vague:
            return
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(ctx))
        await asyncio.shield(self._asking)

    async def _ask(self, ctx: "Context") -> None:
        capabilities = ctx.session.client_capabilities
        if capabilities is not None and capabilities.roots is not None and ctx.session.can_send_request:
            with contextlib.suppress(Exception):  # it does not answer, or not in time: the directory counts
                async with asyncio.timeout(ROOTS_SECS):
                    listed = await ctx.session.send_request(ListRootsRequest(), ListRootsResult)
                if listed.roots:
                    self._place = _path(str(listed.roots[0].uri))
        self._vague = False


HOST: ContextVar[Host | None] = ContextVar("keephold.host", default=None)
"""The client of this connection; None over HTTP, where the token tells who it is."""


def is_hosted(name: str) -> bool:
    """Return whether the part of a conversation's name after its base is that of a host. No principal's is."""
    return _HOSTED.fullmatch(name) is not None


async def find_place(ctx: "Context", call_next: CallNext) -> HandlerResult:
    """The middleware: every request but those that open a connection waits until the conversation is known."""
    host = HOST.get()
    if host is not None and ctx.request_id is not None and ctx.method not in ("initialize", "ping", "server/discover"):
        await host.find_place(ctx)
    return await call_next(ctx)


def _path(uri: str) -> str:
    """Return the path of a root, so that it is the same project as for a host that starts its server there."""
    parts = urlsplit(uri)
    return unquote(parts.path).rstrip("/") if parts.scheme == "file" else uri


def _home() -> str | None:
    with contextlib.suppress(RuntimeError):
        return str(Path.home())
    return None
