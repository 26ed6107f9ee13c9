"""HTTP requests in numbers: by method, route template and status. A path as it was asked for is never a label (K5)."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.serve.metrics import Prometheus

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
NO_ROUTE = "none"
"""The route of what no route was found for, and of what was refused before one was looked for."""


def route_of(scope: Scope) -> str:
    """The template of the route that a request was given to."""
    return str(getattr(scope.get("route"), "path", "") or NO_ROUTE)


class Requests:
    """Counts what goes through it: the outermost of all, so that what is refused counts as well."""

    def __init__(self, app: ASGIApp, metrics: Prometheus) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, told = time.perf_counter(), False
        method = scope["method"] if scope["method"] in _METHODS else "other"

        def tell(status: int) -> None:
            nonlocal told
            told, route = True, route_of(scope)
            self._metrics.child("keephold_http_requests_total", method, route, str(status)).inc()
            seconds = self._metrics.child("keephold_http_request_seconds", method, route)
            seconds.observe(time.perf_counter() - began)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                tell(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if not told:
                tell(500)
            raise
