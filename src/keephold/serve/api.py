"""`/api`: the operations of `Control` over HTTP. `OPERATIONS` is the whole of it; `/api/openapi.json` is made of it."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from keephold.control.control import Control
from keephold.control.feed import Feed
from keephold.serve.api_operations import OPERATIONS
from keephold.serve.api_streams import Counting, Streams
from keephold.serve.operations import Endpoint, Given, Handler, Operation, described
from keephold.serve.refusal import refused
from keephold.serve.shapes import SCHEMAS

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def routes(control: Control, feed: Feed, counting: Counting) -> list[BaseRoute]:
    """The routes of the API; `Door` has seen to who may use them."""
    made = Api(control, feed, counting).operations()
    limit = control.runtime.limits.arguments_bytes
    description = described(made, SCHEMAS, version("keephold"))

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    async def nothing(request: Request) -> Response:
        return refused("not_found", "there is nothing here; /api/openapi.json lists what there is", 404)

    async def not_so(request: Request) -> Response:
        takes = [each.method for each in made if each.path == request.scope["route"].path] or ["GET"]
        response = refused("not_allowed", f"this takes {', '.join(takes)}", 405)
        response.headers["allow"] = ", ".join(takes)
        return response

    found: list[BaseRoute] = [Route("/api/openapi.json", openapi)]
    found += [Route(each.path, Endpoint(each, limit).__call__, methods=[each.method]) for each in made]
    paths = dict.fromkeys(["/api/openapi.json", *(each.path for each in made)])
    found += [Route(path, not_so, methods=_METHODS) for path in paths]
    return [*found, Route("/api/{rest:path}", nothing, methods=_METHODS), Route("/api", nothing, methods=_METHODS)]


class Api:
    """The operations of a control. One asks for what has its name there, unless something else is said here."""

    def __init__(self, control: Control, feed: Feed, counting: Counting) -> None:
        streams = Streams(control, feed, counting)
        self._control = control
        self._streams = {"follow": streams.follow, "events": streams.events, "glances": streams.glances}
        self._handlers: dict[str, Handler] = {
            # an empty field of a form narrows nothing
            "handles": lambda given: control.handles(**{name: value for name, value in given.items() if value != ""}),
            "output": lambda given: _output(control, **given),
            "journal": self._of_known(control.journal),
            "timeline": self._of_known(control.timeline),
            "decide": lambda given: control.decide(given["id"], given["body"]),
        }

    def operations(self) -> list[Operation]:
        """All of them, each with what does it."""
        return [
            replace(each, streams=self._streams[each.id])
            if each.id in self._streams
            else replace(each, does=self._handlers.get(each.id) or _asking(getattr(self._control, each.id)))
            for each in OPERATIONS
        ]

    def _of_known(self, ask: Callable[..., Awaitable[Any]]) -> Handler:
        """Asked of a handle that there is; of another, nothing would be told."""

        async def does(given: Given) -> Any:
            await self._control.record(given["uid"])
            return await ask(**given)

        return does


def _asking(ask: Callable[..., Awaitable[Any]]) -> Handler:
    """Asked with the parameters of a request and what its body has, by name."""
    return lambda given: ask(**given.pop("body", {}), **given)


async def _output(control: Control, uid: str, format: str = "json", **wanted: Any) -> Any:
    found = await control.output(uid, **wanted)
    if format == "json" or "text" not in found:
        return found
    headers = {f"x-{name}": str(found[name]) for name in ("offset", "next", "total", "missing")}
    return Response(found["text"], media_type="text/plain; charset=utf-8", headers=headers)
