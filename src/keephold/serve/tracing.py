"""HTTP requests as spans: the `traceparent` of a request is the parent of its work.

`traced` returns the application unchanged if the program has no tracer provider. Spans are named by route templates
and never contain paths or queries (K5).
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.serve.metrics import NO_ROUTE, route_of
from keephold.tracing import tracer


def traced(app: ASGIApp) -> ASGIApp:
    """Return the application with a span around each request, if there is a tracer provider."""
    made = tracer()
    return app if made is None else _Traced(app, made)


class _Traced:
    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = str(scope["method"])
        attributes: Mapping[str, Any] = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        parent = propagate.extract(dict(Headers(scope=scope).items()))
        span = self._tracer.start_span(method, parent, SpanKind.SERVER, attributes)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                _say(span, method, route_of(scope), message["status"])
            await send(message)

        token = contexts.attach(trace.set_span_in_context(span))
        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise
        finally:
            contexts.detach(token)
            span.end()


def _say(span: Span, method: str, route: str, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if route != NO_ROUTE:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)
