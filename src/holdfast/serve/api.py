"""`/api`: the operations of `Control` over HTTP. The lists below are the whole of it; `/api/openapi.json` is made of
them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing, suppress
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.control.control import Control
from holdfast.control.facts import live_facts
from holdfast.control.feed import Feed
from holdfast.control.looking import KINDS, PAGE, SORTS, STATES
from holdfast.control.printed import PIECE
from holdfast.errors import HoldfastError
from holdfast.serve.operations import Endpoint, Given, Operation, Parameter, described
from holdfast.serve.refusal import refused
from holdfast.serve.shapes import SCHEMAS, TEXT, list_of, page, ref
from holdfast.serve.sse import EventStream, event

_GLANCE_SECS = 0.5
_GLANCES = 200
"""Handles that one page may have an eye on."""
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_BIG = 2**53
_FOREVER = 86_400.0 * 30


Counting = Callable[[str], AbstractContextManager[None]]
"""Counts a stream of that kind while it is open."""


def routes(control: Control, feed: Feed, counting: Counting) -> list[BaseRoute]:
    """The routes of the API; `Door` has seen to who may use them."""
    made = Api(control, feed, counting).operations()
    limit = control.runtime.limits.arguments_bytes
    description = described(made, SCHEMAS, version("holdfast"))

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


def _text(name: str, description: str, *, required: bool = False) -> Parameter:
    return Parameter(name, TEXT, description, required)


def _number(name: str, description: str, least: int = 0, most: int = _BIG) -> Parameter:
    return Parameter(name, {"type": "integer", "minimum": least, "maximum": most}, description)


def _choice(name: str, choices: tuple[str, ...], description: str) -> Parameter:
    return Parameter(name, {"type": "string", "enum": list(choices)}, description)


def _flag(name: str, description: str) -> Parameter:
    return Parameter(name, {"type": "boolean"}, description)


def _body(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


_IN = _text("conversation", "Only of this conversation.")
_LIMIT = _number("limit", "At most so many.", 1, PAGE)
_AFTER = _text("after", "`next` of the page before.")
_NAMES = {"type": "array", "items": TEXT, "maxItems": 1000}


class Api:
    """The operations of a control."""

    def __init__(self, control: Control, feed: Feed, counting: Counting) -> None:
        self._control = control
        self._feed = feed
        self._counting = counting

    def operations(self) -> list[Operation]:
        """All of them."""
        return [*self._handles(), *self._acts(), *self._conversations(), *self._rest()]

    def _handles(self) -> list[Operation]:
        control, one = self._control, "/api/handles/{uid}"
        return [
            Operation(
                id="handles",
                path="/api/handles",
                summary="A page of handles.",
                query=(
                    _IN,
                    _choice("state", STATES, "Only those in this state; `live`: all that have not stopped."),
                    _choice("kind", KINDS, "Only those of this kind."),
                    _text("tool", "Only those of this tool."),
                    _text("search", "Only those whose id, tool or uid contains this."),
                    _choice("sort", SORTS, "In which order."),
                    _flag("oneshot", "One-shot calls, too."),
                    _AFTER,
                    _LIMIT,
                ),
                does=lambda given: control.handles(**given),
                returns=page("handles", ref("Facts")),
            ),
            Operation(
                id="handle",
                path=one,
                summary="Everything of a handle, but its output; of its journal the end.",
                query=(_text("conversation", "If the path has an id instead of a uid: where to look for it."),),
                does=lambda given: control.handle(given["uid"], given.get("conversation")),
                returns=ref("Handle"),
            ),
            Operation(
                id="output",
                path=f"{one}/output",
                summary="What a handle has printed: a piece, or the lines that hold a pattern.",
                query=(
                    _number("offset", "The first byte that is wanted."),
                    _number("limit", "At most so many bytes.", 1, PIECE),
                    _number("from_end", "Begin so many bytes before the end instead."),
                    _text("pattern", "Lines that contain this text, from `offset` on."),
                    _choice("format", ("json", "raw"), "`raw`: the text alone."),
                ),
                does=self._output,
                text=True,
                returns=ref("Output"),
                errors=(504,),
            ),
            Operation(
                id="follow",
                path=f"{one}/follow",
                summary="What a handle prints and how it changes, as it happens, until it has stopped.",
                query=(_number("offset", "The first byte that is wanted."),),
                streams=self._follow,
                errors=(504,),
            ),
            Operation(
                id="journal",
                path=f"{one}/journal",
                summary="A page of the journal of a handle: steps, with what went in and what came out, newest first.",
                query=(_number("before", "`next` of the page before."), _LIMIT),
                does=self._journal,
                returns=ref("Journal"),
            ),
            self._of_one("timeline", "What has happened to a handle.", "Event"),
            self._of_one("waiters", "Calls that wait for a handle now.", "Waiter"),
            Operation(
                id="workflow",
                path=f"{one}/workflow",
                summary="How far a workflow is.",
                does=lambda given: control.workflow(given["uid"]),
                returns=ref("Workflow"),
            ),
            Operation(
                id="glances",
                path="/api/glances",
                summary="The last line and the progress of handles, when they change.",
                query=(_text("uids", "Uids, with commas between them.", required=True),),
                streams=self._glancing,
            ),
        ]

    def _of_one(self, name: str, summary: str, shape: str) -> Operation:
        ask = getattr(self._control, name)

        async def does(given: Given) -> Any:
            await self._control.record(given["uid"])
            return await ask(given["uid"])

        return Operation(
            id=name, path=f"/api/handles/{{uid}}/{name}", summary=summary, does=does, returns=list_of(ref(shape))
        )

    def _acts(self) -> list[Operation]:
        control, one = self._control, "/api/handles/{uid}"
        return [
            Operation(
                id="apply",
                path=f"{one}/apply",
                method="POST",
                summary="Send a handle input or keys, or answer its open question, as a person.",
                body=_body(input={}, keys=_NAMES, secret={"type": "boolean"}),
                does=lambda given: control.apply(given["uid"], **given["body"]),
                returns=ref("Reply"),
                errors=(409, 422, 504),
            ),
            Operation(
                id="answer",
                path=f"{one}/answer",
                method="POST",
                summary="Answer the open question of a handle; with `question`, only if it is that one.",
                body=_body(("answer",), answer={}, question=TEXT),
                does=lambda given: control.answer(
                    given["uid"], given["body"]["answer"], question=given["body"].get("question")
                ),
                returns=ref("Reply"),
                errors=(409, 422, 504),
            ),
            Operation(
                id="abort",
                path=f"{one}/abort",
                method="POST",
                summary="End a handle. Twice is harmless.",
                body=_body(),
                does=lambda given: control.abort(given["uid"]),
                returns=ref("Reply"),
                errors=(409, 504),
            ),
            Operation(
                id="wait",
                path="/api/wait",
                method="POST",
                summary="Wait until handles have stopped: all of some, any of others.",
                body=_body(
                    all=_NAMES,
                    any=_NAMES,
                    timeout={"type": ["number", "null"], "minimum": 0, "maximum": _FOREVER},
                    conversation=TEXT,
                ),
                does=lambda given: control.wait(**given["body"]),
                patient=True,
                returns=ref("Waited"),
                errors=(404,),
            ),
            Operation(
                id="needs",
                path="/api/needs",
                tag="people",
                summary="Whatever waits for a person, the first of it; `stats` has how much that is.",
                query=(_LIMIT,),
                does=lambda given: control.needs(**given),
                returns=list_of(ref("Need")),
            ),
            Operation(
                id="decide",
                path="/api/needs/{id}",
                method="POST",
                tag="people",
                summary="Decide something that waits for a person.",
                body=_body(
                    ("decision",),
                    decision={"enum": ["approve", "deny", "edit", "answer", "cancel"]},
                    reason=TEXT,
                    remember={"type": "boolean"},
                    value={},
                ),
                does=lambda given: control.decide(given["id"], given["body"]),
                returns=ref("Decided"),
                errors=(409, 422, 504),
            ),
        ]

    def _conversations(self) -> list[Operation]:
        control = self._control
        where = _text("conversation", "Of this conversation.", required=True)
        return [
            Operation(
                id="conversations",
                path="/api/conversations",
                tag="conversations",
                summary="A page of conversations, by name.",
                query=(_AFTER, _LIMIT),
                does=lambda given: control.conversations(**given),
                returns=page("conversations", ref("Conversation")),
            ),
            Operation(
                id="conversation",
                path="/api/conversations/{id:path}",
                tag="conversations",
                summary="A conversation and its turns, newest first.",
                query=(_number("before", "`next` of the page before."), _LIMIT),
                does=lambda given: control.conversation(**given),
                returns=ref("Turns"),
            ),
            Operation(
                id="calls",
                path="/api/calls",
                tag="conversations",
                summary="The calls of a conversation, or of one of its turns.",
                query=(where, _text("turn", "Only of this turn.")),
                does=lambda given: control.calls(given["conversation"], given.get("turn")),
                returns=list_of(ref("Facts")),
            ),
            Operation(
                id="transcript",
                path="/api/transcript",
                tag="conversations",
                summary="What was said in a conversation.",
                query=(where, _number("after", "`next` of the page before."), _LIMIT),
                does=lambda given: control.transcript(
                    given["conversation"], given.get("after", 0), given.get("limit", 100)
                ),
                returns=page("lines", ref("Line")),
            ),
            Operation(
                id="forget",
                path="/api/forget",
                method="POST",
                tag="conversations",
                summary="Let go of what was said in a conversation.",
                body=_body(("conversation",), conversation=TEXT),
                does=lambda given: control.forget(given["body"]["conversation"]),
                returns=ref("Forgotten"),
            ),
        ]

    def _rest(self) -> list[Operation]:
        control = self._control
        return [
            Operation(
                id="events",
                path="/api/events",
                tag="events",
                summary="What happens, as it happens. `Last-Event-ID`, or `after`, goes on where a stream ended.",
                query=(
                    _number("after", "The number of the last event that is known."),
                    _IN,
                    _text("uid", "Of a handle."),
                ),
                streams=self._events,
            ),
            Operation(
                id="keys",
                path="/api/keys",
                tag="keys",
                summary="A page of the keys that are open, by their ids; the keys themselves are shown nowhere.",
                query=(_IN, _AFTER, _LIMIT),
                does=lambda given: control.keys(**given),
                returns=page("keys", ref("Key")),
            ),
            Operation(
                id="revoke",
                path="/api/keys/revoke",
                method="POST",
                tag="keys",
                summary="Make the open keys of a conversation worthless.",
                body=_body(("conversation",), conversation=TEXT),
                does=lambda given: control.revoke(given["body"]["conversation"]),
                returns=ref("Revoked"),
            ),
            Operation(
                id="notifications",
                path="/api/notifications",
                tag="events",
                summary="News that is queued, and what has become of news.",
                query=(_IN, _number("before", "`next` of the page before."), _LIMIT),
                does=lambda given: control.notifications(**given),
                returns=ref("Notifications"),
            ),
            Operation(
                id="tools",
                path="/api/tools",
                tag="server",
                summary="What can be called.",
                does=lambda given: control.tools(),
                returns=list_of(ref("Tool")),
            ),
            Operation(
                id="stats",
                path="/api/stats",
                tag="server",
                summary="Numbers of the store, and of this server since its start.",
                does=lambda given: control.stats(),
                returns=ref("Stats"),
            ),
            Operation(
                id="collect",
                path="/api/collect",
                method="POST",
                tag="server",
                summary="Let go of what retention would let go of now.",
                body=_body(
                    older_than={"type": ["number", "null"], "minimum": 0},
                    dry_run={"type": "boolean"},
                    vacuum={"type": "boolean"},
                ),
                does=lambda given: control.collect(
                    **{"older_than": None, "dry_run": False, "vacuum": False} | given["body"]
                ),
                returns={"type": "object"},
            ),
        ]

    # Not plain answers

    def _stream(self, kind: str, chunks: AsyncIterator[bytes]) -> EventStream:
        return EventStream(chunks, self._counting(kind))

    async def _journal(self, given: Given) -> Any:
        await self._control.record(given["uid"])
        return await self._control.journal(**given)

    async def _output(self, given: Given) -> Any:
        raw = given.pop("format", "json") == "raw"
        found = await self._control.output(given.pop("uid"), **given)
        if not raw or "text" not in found:
            return found
        headers = {f"x-{name}": str(found[name]) for name in ("offset", "next", "total", "missing")}
        return Response(found["text"], media_type="text/plain; charset=utf-8", headers=headers)

    async def _follow(self, given: Given, request: Request) -> EventStream:
        await self._control.record(given["uid"])
        last = request.headers.get("last-event-id", "")
        offset = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else given.get("offset", 0)
        return self._stream("output", self._followed(given["uid"], offset))

    async def _followed(self, uid: str, offset: int) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._control.follow(uid, offset)) as following:
                async for told in following:
                    yield event(told["type"], told, told.get("offset"))
        except HoldfastError as error:
            yield event("refused", {"code": error.code, "message": error.message})

    async def _events(self, given: Given, request: Request) -> EventStream:
        last = request.headers.get("last-event-id", "")
        after = given.get("after")
        if last.isascii() and last.isdigit() and len(last) < 16:
            after = int(last)
        told = self._told(after, given.get("conversation") or None, given.get("uid") or None)
        return self._stream("events", told)

    async def _told(self, after: int | None, conversation: str | None, uid: str | None) -> AsyncIterator[bytes]:
        with suppress(HoldfastError):  # the store cannot be read: the stream ends, and its client comes back
            async with aclosing(self._feed.listen(after, conversation=conversation, uid=uid)) as groups:
                async for group in groups:
                    if group is None:  # without a number: older ones may follow
                        yield event("reset", {})
                    else:
                        yield b"".join(each.block for each in group)

    async def _glancing(self, given: Given, request: Request) -> EventStream:
        return self._stream("glances", self._glances(given["uids"]))

    async def _glances(self, uids: str) -> AsyncIterator[bytes]:
        registry, known = self._control.runtime.registry, dict[str, Any]()
        wanted = list(dict.fromkeys(uids.split(",")))[:_GLANCES]
        while not self._feed.closed:
            for uid in wanted:
                handle = registry.loaded(uid)
                if handle is None or not handle.active:
                    continue
                fact = live_facts(handle, {"progress": None})
                seen = {key: fact[key] for key in ("last_line", "output_bytes", "progress", "reading", "driver")}
                if known.get(uid) != seen:
                    known[uid] = seen
                    yield event("glance", {"uid": uid, **seen})
            await asyncio.sleep(_GLANCE_SECS)
