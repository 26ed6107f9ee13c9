"""The one ASGI application: MCP, completions, the API, terminals, metrics and the dashboard, behind one door."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from keephold.control.control import Control
from keephold.control.feed import Feed
from keephold.control.webhooks import Completing
from keephold.errors import KeepholdError
from keephold.mcp.http import mcp_app
from keephold.mcp.server import Server
from keephold.serve import api, attach_http
from keephold.serve.dashboard import pages
from keephold.serve.door import RAW_HEADERS, ServeDoor
from keephold.serve.engine_channel import EngineChannel
from keephold.serve.handover import Lasting
from keephold.serve.metrics import Prometheus, Requests
from keephold.serve.operations import refusal
from keephold.serve.screens import Screens
from keephold.serve.sessions import Sessions
from keephold.serve.tracing import traced
from keephold.store.base import TakenDown

_CHECK_SECS = 1.0
"""Seconds between two checks whether the store can write."""
_ANSWER_SECS = 3.0
"""Seconds that such a check may take: a server that hangs does not refuse to write."""


class App:
    """Everything that `keephold serve` answers, over one runtime. `open` it after the runtime."""

    def __init__(self, server: Server, control: Control, metrics: Prometheus) -> None:
        self.runtime = server.runtime
        self._server = server
        self._control = control
        self._metrics = metrics
        metrics.requests = control.requests.count
        self.feed = Feed(self.runtime)
        self.screens = Screens(self.runtime)
        self.sessions = Sessions()
        self._lasting: Lasting | None = None
        self._announcing = False
        self._checked_at = float("-inf")
        """When `/healthz` last tried to write."""
        self._answers = True
        """Whether the store has answered then."""
        self._posted: frozenset[str] = frozenset()
        """The ids of the open prompts of other processes."""

    async def open(self) -> None:
        """Start the feed of events."""
        await self.feed.open()
        self.runtime.upkeep.on_heard.add(self._heard)
        self.runtime.approvals.on_changed.add(self._requests_changed)

    def _heard(self) -> None:
        if self.feed.listeners and not self.feed.closed:
            self.runtime.registry.run_soon(self._look_elsewhere())

    async def _look_elsewhere(self) -> None:
        """Announce requests of other processes that have come or gone."""
        posted = frozenset(post.id for post in await self._control.requests.elsewhere.posts("prompt"))
        if posted != self._posted:
            self._posted = posted
            self._requests_changed()

    def _requests_changed(self) -> None:
        """Send one event for many changes: a batch may ask a thousand things at once."""
        if not self._announcing:
            self._announcing = True
            asyncio.get_running_loop().call_soon(self._announce_requests)

    def _announce_requests(self) -> None:
        self._announcing = False
        self.feed.announce("requests", {"open": len(self.runtime.approvals.open) + len(self._posted)})

    async def leave(self) -> None:
        """End all streams, because another server serves their clients from now on."""
        if self._lasting is not None:
            self._lasting.end()
        await self._server.close()

    async def close(self) -> None:
        """End all streams, so that the server can end."""
        self.feed.close()
        await self.screens.close()
        await self._server.close()

    def asgi(
        self,
        owner: str,
        principals: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (),
        *,
        sessions: Sessions | None = None,
        url: str | None = None,
        named: bool = True,
        loopback: bool = True,
    ) -> ASGIApp:
        """Return the application behind its door (`ServeDoor`)."""
        self.sessions = sessions or Sessions(owner)
        inner = mcp_app(self._server)
        inner.router.routes += self._routes()
        inner.add_exception_handler(KeepholdError, _unable)
        inner.add_exception_handler(ClientDisconnect, _left)
        inner.add_exception_handler(404, pages.nowhere(self._control))
        guarded = ServeDoor(
            inner,
            Completing(self.runtime, RAW_HEADERS),
            owner,
            principals,
            hosts,
            sessions=self.sessions,
            url=url,
            named=named,
            metrics_open=loopback,
            longest=self.runtime.limits.line_bytes,
            workers=EngineChannel(self.runtime.front_end),
        )
        self._lasting = Lasting(Requests(traced(guarded), self._metrics))
        return self._lasting

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/healthz", self._health),
            Route("/metrics", self._metrics.page),
            *attach_http.routes(self._control),
            *api.routes(self._control, self.feed, self._metrics.stream),
            *self.screens.routes(),
            *pages.routes(self._control, self.screens, self.sessions),
        ]

    async def _health(self, request: Request) -> Response:
        """Answer `/healthz`: 503 while the store cannot write, or the server closes. `clock_jump_secs` says by how much
        the time of day was set since the server began, if it was."""
        problem = "the server is closing" if self.runtime.closing else await self._store_problem()
        jump = self.runtime.upkeep.jump
        facts: dict[str, Any] = {"ok": problem is None} | ({"clock_jump_secs": jump} if jump else {})
        if problem is not None:
            facts["problem"] = problem
        return JSONResponse(facts, 200 if problem is None else 503, {"cache-control": "no-store"})

    async def _store_problem(self) -> str | None:
        """Try to write, at most once a second: a full disk is not noticed otherwise until somebody needs it."""
        registry, now = self.runtime.registry, asyncio.get_running_loop().time()
        if now >= self._checked_at + _CHECK_SECS:
            self._checked_at = now
            try:
                async with asyncio.timeout(_ANSWER_SECS):
                    with contextlib.suppress(KeepholdError):
                        await registry.write((TakenDown(()),), keep=False)
                self._answers = True
            except TimeoutError:
                self._answers = False
        if not self._answers:
            return "the store does not answer"
        return None if registry.store.trouble is None else "the store cannot write"


async def _unable(request: Request, error: Exception) -> Response:
    """Answer plainly that the store cannot be read or is closed; a dashboard page would have to read it."""
    assert isinstance(error, KeepholdError)
    return refusal(error)


async def _left(request: Request, error: Exception) -> Response:
    """Answer a client that left in the middle of its body, or was too slow; nobody reads it."""
    return Response(status_code=499)
