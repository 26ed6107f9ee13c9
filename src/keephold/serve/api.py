"""`/api`: the operations of `Control` over HTTP. `OPERATIONS` lists them; `/api/openapi.json` is made from it.

The API's streams are server-sent events: a handle's output, the store's events, and the last lines of handles. A client
that reconnects sends its position as `Last-Event-ID`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, suppress
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from keephold.control.control import Control
from keephold.control.feed import Feed
from keephold.control.handle_json import live_fields
from keephold.errors import KeepholdError
from keephold.serve.api_operations import OPERATIONS
from keephold.serve.operations import Endpoint, Given, Handler, described, refused
from keephold.serve.sse import EventStream, event

_GLANCE_SECS = 0.5
_GLANCES = 200
"""Handles that one stream may watch."""

Counting = Callable[[str], AbstractContextManager[None]]
"""Counts an open stream of that kind."""


class Streams:
    def __init__(self, control: Control, feed: Feed, counting: Counting) -> None:
        self._control = control
        self._feed = feed
        self._counting = counting

    async def follow(self, given: Given, request: Request) -> EventStream:
        """Stream a handle's output and state changes until it has stopped."""
        await self._control.store_view.record(given["uid"])
        followed = self._followed(given["uid"], _last(request, given.get("offset", 0)))
        return EventStream(followed, self._counting("output"))

    async def _followed(self, uid: str, offset: int) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._control.follow(uid, offset)) as following:
                async for found in following:
                    yield event(found["type"], found, found.get("offset"))
        except KeepholdError as error:
            yield event("refused", {"code": error.code, "message": error.message})

    async def events(self, given: Given, request: Request) -> EventStream:
        """Stream the events of the store, of a conversation or of a handle."""
        after = _last(request, given.get("after"))
        lost = after is None and bool(request.headers.get("last-event-id"))  # its position is not one of our numbers
        found = self._events(after, lost, given.get("conversation") or None, given.get("uid") or None)
        return EventStream(found, self._counting("events"))

    async def _events(
        self, after: int | None, lost: bool, conversation: str | None, uid: str | None
    ) -> AsyncGenerator[bytes, None]:
        if lost:
            yield event("reset", {})
        with suppress(KeepholdError):  # the store cannot be read: the stream ends, and its client reconnects
            async with aclosing(self._feed.listen(after, conversation=conversation, uid=uid)) as groups:
                async for group in groups:
                    if group is None:  # without a number: older ones may follow
                        yield event("reset", {})
                    else:
                        yield b"".join(each.block for each in group)

    async def glances(self, given: Given, request: Request) -> EventStream:
        """Stream the last line and the progress of handles when they change."""
        return EventStream(self._glanced(given["uids"]), self._counting("glances"))

    async def _glanced(self, uids: str) -> AsyncGenerator[bytes, None]:
        registry, known = self._control.runtime.registry, dict[str, Any]()
        wanted = list(dict.fromkeys(uids.split(",")))[:_GLANCES]
        while not self._feed.closed:
            for uid in wanted:
                handle = registry.loaded(uid)
                if handle is None or not handle.active:
                    continue
                fact = {"progress": None, **live_fields(handle)}
                seen = {key: fact[key] for key in ("last_line", "output_bytes", "progress", "reading", "driver")}
                if known.get(uid) != seen:
                    known[uid] = seen
                    yield event("glance", {"uid": uid, **seen})
            await asyncio.sleep(_GLANCE_SECS)


def _last(request: Request, otherwise: Any) -> Any:
    """Return the last number that the client received, if it sends one."""
    said = request.headers.get("last-event-id", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else otherwise


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def routes(control: Control, feed: Feed, counting: Counting) -> list[BaseRoute]:
    """The routes of the API; `ServeDoor` has authenticated the client."""
    does = handlers(control, feed, counting)
    limit = control.runtime.limits.arguments_bytes
    description = described(OPERATIONS, version("keephold"))

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    async def nothing(request: Request) -> Response:
        return refused("not_found", "there is nothing here; /api/openapi.json lists what there is", 404)

    async def not_so(request: Request) -> Response:
        takes = [each.method for each in OPERATIONS if each.path == request.scope["route"].path] or ["GET"]
        response = refused("not_allowed", f"this takes {', '.join(takes)}", 405)
        response.headers["allow"] = ", ".join(takes)
        return response

    found: list[BaseRoute] = [Route("/api/openapi.json", openapi)]
    found += [
        Route(each.path, Endpoint(each, does[each.id], limit).__call__, methods=[each.method]) for each in OPERATIONS
    ]
    paths = dict.fromkeys(["/api/openapi.json", *(each.path for each in OPERATIONS)])
    found += [Route(path, not_so, methods=_METHODS) for path in paths]
    return [*found, Route("/api/{rest:path}", nothing, methods=_METHODS), Route("/api", nothing, methods=_METHODS)]


def handlers(control: Control, feed: Feed, counting: Counting) -> dict[str, Handler]:
    """Return what carries out each operation: a function here, or the method of that name of the control or its
    views."""
    streams, view = Streams(control, feed, counting), control.store_view

    def of_known(ask: Callable[..., Awaitable[Any]]) -> Handler:
        """Refuse an unknown handle: the operation alone would return an empty result."""

        async def does(given: Given, request: Request) -> Any:
            await view.record(given["uid"])
            return await ask(**given)

        return does

    def named(id: str) -> Handler:
        return _asking(getattr(next(part for part in (control, control.runtime_view, view) if hasattr(part, id)), id))

    own: dict[str, Handler] = {
        # an empty field of a form does not filter
        "handles": lambda given, _: view.handles(**{name: value for name, value in given.items() if value != ""}),
        "output": lambda given, _: _output(control, **given),
        "journal": of_known(view.journal),
        "timeline": of_known(view.timeline),
        "requests": _asking(control.requests.page),
        "decide": lambda given, _: control.decide(given["id"], given["body"], by="the API"),
        "follow": streams.follow,
        "events": streams.events,
        "glances": streams.glances,
    }
    return {each.id: own.get(each.id) or named(each.id) for each in OPERATIONS}


def _asking(ask: Callable[..., Awaitable[Any]]) -> Handler:
    """Call it with the request's parameters and its body's fields, by name."""
    return lambda given, _: ask(**given.pop("body", {}), **given)


async def _output(control: Control, uid: str, format: str = "json", **wanted: Any) -> Any:
    found = await control.output(uid, **wanted)
    if format == "json" or "text" not in found:
        return found
    headers = {f"x-{name}": str(found[name]) for name in ("offset", "next", "total", "missing")}
    return Response(found["text"], media_type="text/plain; charset=utf-8", headers=headers)
