"""The pages with lists: open requests, handles, conversations, notifications, keys, permissions, numbers and so on.

Each view asks `Control` and fills a template; none reads the store. Lists are read a page at a time, by cursor. The
store counts the handles that stopped today outside the event loop; one-shot calls are not counted.
"""

import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles

from keephold.control.store_view import COUNTED, ENDS, KINDS, SORTS, STATES
from keephold.control.stored_output import EXAMINED
from keephold.serve.dashboard import conversation, forms, handle
from keephold.serve.dashboard.painting import palette_css
from keephold.serve.dashboard.rendering import HERE, Renderer, address, asked_number, mark, short_name
from keephold.serve.door import OWNER, SESSION
from keephold.store.housekeeping import SupportsVacuum

if TYPE_CHECKING:
    from keephold.control.control import Control
    from keephold.serve.screens import Screens
    from keephold.serve.sessions import Sessions
    from keephold.store.base import Browse


_TOOLS = 5
"""The most tools that are named."""


@dataclass(frozen=True)
class ToolToday:
    """A tool, how many of its handles have stopped, and how many of those failed."""

    name: str
    handles: int
    failed: int


@dataclass(frozen=True)
class Today:
    """The handles that have stopped today."""

    stopped: int
    outcomes: Sequence[tuple[str, int]]
    """How many ended in which way, in the words of `mark`: `done` first, then by frequency."""
    used: Sequence[ToolToday]
    """The tools with the most handles."""
    failing: Sequence[ToolToday]
    """The tools with the most failures; only those that failed."""


async def today(store: "Browse", now: float) -> Today:
    """Count the handles that have stopped since local midnight."""
    handles, failures, outcomes = Counter[str](), Counter[str](), Counter[str]()
    for (tool, status, ended_by), count in (await store.ended(_midnight(now))).items():
        shape, word = mark({"state": "stopped", "ended_by": ended_by, "ok": status == "completed"})
        outcomes[word] += count
        handles[tool] += count
        failures[tool] += count if shape == "failed" else 0
    tools = [ToolToday(name, handles[name], failures[name]) for name in sorted(handles)]
    failing = sorted((tool for tool in tools if tool.failed), key=lambda tool: -tool.failed)
    return Today(
        stopped=handles.total(),
        outcomes=sorted(outcomes.items(), key=lambda each: (each[0] != "done", -each[1], each[0])),
        used=sorted(tools, key=lambda tool: -tool.handles)[:_TOOLS],
        failing=failing[:_TOOLS],
    )


def _midnight(now: float) -> float:
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))


PAGE = 50
_RUNNING, _HAPPENED = 30, 12
"""Handles on the first page; the page of handles has the rest."""
_REQUESTS = 50
"""Open requests on the first page; more appear as these are answered."""
_END = 400
"""Bytes that are searched for the last line of an output."""
_PLACES = 200
"""Conversations on a page."""
_NOTIFICATIONS = 100
"""Past notifications on a page."""
_KEYS = 100
"""Keys on a page."""

_ORDERS = {"newest": "Newest first", "oldest": "Oldest first", "stopped": "Last stopped first"}
"""Labels of the sort orders; others are named after their column."""
GROUPS: dict[str, Callable[[dict[str, Any]], str]] = {
    "conversation": lambda fact: short_name(fact["conversation"]),
    "kind": lambda fact: str(fact["kind"]),
    "state": lambda fact: mark(fact)[1],
}

TIMES = {"hour": "The last hour", "today": "Today", "yesterday": "Yesterday", "week": "The last 7 days"}
"""Periods in which handles were made; a day is one of the server's clock."""
_STATE_WORDS = {state: state.capitalize() for state in STATES} | {"live": "Not stopped"}
_COUNTED = ("pending", "running", "waiting", *ENDS)


def routes(control: "Control", screens: "Screens", sessions: "Sessions") -> list[BaseRoute]:
    """Return the dashboard's routes: pages, forms and files."""
    renderer = Renderer(control)
    pages = Pages(control, renderer, sessions)
    files = Files(directory=HERE / "static")
    return [
        Route("/", pages.home),
        Route("/handles", pages.handles),
        Route("/conversations", pages.conversations),
        Route("/notifications", pages.notifications),
        Route("/keys", pages.keys),
        Route("/permissions", pages.permissions),
        Route("/stats", pages.stats),
        Route("/tools", pages.tools),
        Route("/sessions", pages.sessions),
        *handle.routes(renderer, control, screens),
        *conversation.routes(renderer, control),
        *forms.routes(renderer, control, sessions, pages.home),
        _palette(files),
        Mount("/static", files),
    ]


def _palette(files: "Files") -> Route:
    """Return the route of the style sheet with the colours of terminals. Code makes it, and browsers cache it like a
    file."""
    css = palette_css()
    headers = {"etag": f'"{zlib.crc32(css.encode()):08x}"', "cache-control": "no-cache"}

    async def view(request: Request) -> Response:
        response = Response(css, media_type="text/css", headers=headers)
        unchanged = files.is_not_modified(response.headers, request.headers)
        return NotModifiedResponse(response.headers) if unchanged else response

    return Route("/static/palette.css", view)


def nowhere(control: "Control") -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return the handler for unknown addresses; it answers browsers with a page."""
    renderer = Renderer(control)

    async def view(request: Request, error: Exception) -> Response:
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if wants_page and request.scope.get(OWNER):  # the page's frame shows the number of open requests
            return await renderer.problem(request, "There is nothing at this address.", 404, "/", "No such page")
        return PlainTextResponse("Not Found", 404)

    return view


class Files(StaticFiles):
    """Styles and scripts. Browsers cache them, and check each time whether they have changed."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "no-cache"
        return response


class Pages:
    """The views. live.js requests them again when something has happened."""

    def __init__(self, control: "Control", renderer: Renderer, sessions: "Sessions") -> None:
        self._control = control
        self._renderer = renderer
        self._sessions = sessions

    async def home(self, request: Request, *, status: int = 200, drafts: dict[str, Any] | None = None) -> Response:
        """Show open requests, running handles and what stopped last. `drafts` are refused inputs by request id."""
        requests = await self._control.requests.page(limit=_REQUESTS)
        listed = {each["id"] for each in requests}
        for id in set(drafts or ()) - listed:  # a request that the page would not list yet
            requests = [each for each in [await self._control.requests.get(id)] if each is not None] + requests
        running = await self._control.store_view.handles(state="live", oneshot=True, limit=_RUNNING)
        happened = await self._control.store_view.handles(state="stopped", sort="stopped", limit=_HAPPENED)
        return await self._renderer.page(
            request,
            "home.html",
            status=status,
            requests=requests,
            request_groups=request_groups(requests),
            asked={each["handle"] for each in requests},
            mcp=_mcp(request),
            running=running["handles"],
            more=running["next"] is not None,
            happened=happened["handles"],
            drafts=drafts or {},
            path="/",  # also when it answers a form
            here="/",
        )

    async def handles(self, request: Request) -> Response:
        """List handles by state, time, kind, tool, conversation and text, a page at a time."""
        asked = request.query_params
        chosen = {
            "q": asked.get("q", "").strip(),
            "text": asked.get("text", "").strip(),
            "time": _one_of(TIMES, asked.get("time")),
            "since": _local(asked.get("since")),
            "until": _local(asked.get("until")),
            "state": _one_of(STATES, asked.get("state")),
            "kind": _one_of(KINDS, asked.get("kind")),
            "tool": asked.get("tool", "").strip(),
            "conversation": asked.get("conversation", "").strip(),
            "sort": _one_of(SORTS, asked.get("sort")) or "newest",
            "group": _one_of(GROUPS, asked.get("group")),
            "oneshot": "yes" if asked.get("oneshot") else "",
        }
        since, until = _period(chosen, time.time())
        wanted: dict[str, Any] = {
            name: chosen[name] or None for name in ("conversation", "state", "kind", "tool", "text", "sort")
        }
        wanted |= {"search": chosen["q"] or None, "since": since, "until": until, "oneshot": bool(chosen["oneshot"])}
        after = asked.get("after") or None
        found = await self._control.store_view.handles(**wanted, after=after, limit=PAGE, totals=True)
        await self._add_last_lines(found["handles"])
        query = {name: value for name, value in chosen.items() if value and (name, value) != ("sort", "newest")}
        return await self._renderer.page(
            request,
            "handles.html",
            groups=_grouped(found["handles"], chosen["group"]),
            chosen=chosen,
            filtered=bool(set(query) - {"sort", "group"}),
            totals=_totals(found.get("totals"), query),
            counted=COUNTED,
            examined=EXAMINED,
            options={
                "state": _STATE_WORDS,
                "time": TIMES,
                "kind": KINDS,
                "sort": {sort: _ORDERS.get(sort, f"By {sort}") for sort in SORTS},
                "group": tuple(GROUPS),
            },
            tools=sorted(tool["name"] for tool in await self._control.runtime_view.tools()),
            first=address("/handles", query) if after else None,
            following=address("/handles", query | {"after": found["next"]}) if found["next"] else None,
        )

    async def _add_last_lines(self, facts: list[dict[str, Any]]) -> None:
        """Add the last output line of stopped handles that have none yet."""
        for fact in facts:
            if fact["state"] != "stopped" or fact["last_line"] or fact["message"] or not fact["output_bytes"]:
                continue
            printed = await self._control.output(fact["uid"], from_end=_END, limit=_END)
            lines = [line.strip() for line in str(printed["text"]).splitlines() if line.strip()]
            fact["last_line"] = lines[-1] if lines else None

    async def conversations(self, request: Request) -> Response:
        """List conversations, each sub-agent's below its parent's."""
        after = request.query_params.get("after") or None
        found = await self._control.store_view.conversations(after=after, limit=_PLACES)
        whole = after is None and found["next"] is None
        return await self._renderer.page(
            request,
            "conversations.html",
            places=_nested(found["conversations"], latest_first=whole),
            first="/conversations" if after else None,
            following=address("/conversations", {"after": found["next"]}) if found["next"] else None,
        )

    async def notifications(self, request: Request) -> Response:
        """List queued notifications, and what became of earlier ones."""
        asked = request.query_params
        place = asked.get("conversation", "").strip()
        before = asked_number(asked.get("before"))
        found = await self._control.store_view.notifications(
            conversation=place or None, before=before, limit=_NOTIFICATIONS
        )
        query = {"conversation": place} if place else {}
        return await self._renderer.page(
            request,
            "notifications.html",
            queued=found["queued"],
            history=found["history"],
            conversation=place,
            first=address("/notifications", query) if before is not None else None,
            following=address("/notifications", query | {"before": str(found["next"])}) if found["next"] else None,
        )

    async def keys(self, request: Request) -> Response:
        """List open keys by their ids; no page shows the keys themselves (K5)."""
        place, after = request.query_params.get("conversation", "").strip(), request.query_params.get("after")
        found = await self._control.store_view.keys(place or None, after or None, _KEYS)
        by_place: dict[str, list[dict[str, Any]]] = {}
        for key in found["keys"]:
            by_place.setdefault(key["conversation"], []).append(key)
        query = {"conversation": place} if place else {}
        return await self._renderer.page(
            request,
            "keys.html",
            places=by_place,
            counts=await self._control.store_view.store.count_open_waits(list(by_place)),
            first=address("/keys", query) if after else None,
            following=address("/keys", query | {"after": found["next"]}) if found["next"] else None,
        )

    async def permissions(self, request: Request) -> Response:
        """List standing permissions: decisions that hold for later calls, too."""
        return await self._renderer.page(request, "permissions.html", permissions=await self._control.permissions())

    async def stats(self, request: Request) -> Response:
        """Show numbers: now, today, since the server started, and of the store."""
        store = self._control.store_view.store
        return await self._renderer.page(
            request,
            "stats.html",
            stats=await self._control.runtime_view.stats(),
            today=await today(store, time.time()),
            lasting=isinstance(store, SupportsVacuum),
        )

    async def tools(self, request: Request) -> Response:
        tools = sorted(await self._control.runtime_view.tools(), key=lambda tool: str(tool["name"]))
        own = [tool for tool in tools if not tool["builtin"]]
        return await self._renderer.page(
            request, "tools.html", own=own, builtin=[tool for tool in tools if tool["builtin"]], mcp=_mcp(request)
        )

    async def sessions(self, request: Request) -> Response:
        """List the browsers that are logged in."""
        mine = request.scope.get(SESSION)
        await self._sessions.refresh()
        return await self._renderer.page(
            request, "sessions.html", sessions=self._sessions.all(), mine=None if mine is None else mine.id
        )


def request_groups(requests: list[dict[str, Any]]) -> list[tuple[str | None, list[dict[str, Any]]]]:
    """Return the requests in order, permissions for one tool in one conversation together where the first of them is;
    each with the key of its group, None for a request that stands alone."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in requests:
        same = f"{each['conversation']}\n{each['tool']}" if each["kind"] == "permission" else each["id"]
        groups.setdefault(same, []).append(each)
    return [(key if len(cards) > 1 else None, cards) for key, cards in groups.items()]


def _mcp(request: Request) -> str:
    """Return the address for MCP clients. The dashboard's own name is a secret, and only browsers resolve it (K9)."""
    host, colon, port = request.headers.get("host", "").partition(":")
    own = host.lower().endswith(".localhost")
    return f"http://127.0.0.1{colon}{port}/mcp" if own else f"{request.base_url}mcp"


def _local(given: str | None) -> str:
    """Return a date and time as a form sends it; anything else counts as no choice."""
    try:
        return datetime.fromisoformat(given or "").replace(tzinfo=None).isoformat("T", "minutes")
    except ValueError:
        return ""


def _period(chosen: Mapping[str, str], now: float) -> tuple[float | None, float | None]:
    """Return the first moment and the end of the chosen period; a date and time that is given narrows it."""
    today = _midnight(now)
    spans: dict[str, tuple[float | None, float | None]] = {
        "hour": (now - 3600, None),
        "today": (today, None),
        "yesterday": (_midnight(today - 3600), today),
        "week": (now - 7 * 86400, None),
    }
    since, until = spans.get(chosen["time"], (None, None))
    given = [datetime.fromisoformat(chosen[name]).timestamp() if chosen[name] else None for name in ("since", "until")]
    return (since if given[0] is None else given[0]), (until if given[1] is None else given[1])


def _totals(counts: Mapping[str, int] | None, query: dict[str, str]) -> list[tuple[str, int, str]] | None:
    """Return the states, how many handles of the list are in each, and the address of those."""
    if counts is None:
        return None
    return [
        (state, counts[state], address("/handles", query | {"state": state})) for state in _COUNTED if state in counts
    ]


def _one_of(known: Iterable[str], given: str | None) -> str:
    """Return a valid choice; anything the page does not offer counts as no choice."""
    return given if given is not None and given in known else ""


def _grouped(facts: list[dict[str, Any]], by: str) -> list[tuple[str | None, list[dict[str, Any]]]]:
    """Group the handles of a page by title, in the order the titles appear."""
    if not by:
        return [(None, facts)] if facts else []
    groups: dict[str, list[dict[str, Any]]] = {}
    for fact in facts:
        groups.setdefault(GROUPS[by](fact), []).append(fact)
    return list(groups.items())


def _nested(places: list[dict[str, Any]], *, latest_first: bool) -> list[dict[str, Any]]:
    """Add each conversation's `depth`: below its parent if the parent is on the page, else 0."""
    known = {place["id"] for place in places}
    below: dict[str | None, list[dict[str, Any]]] = {}
    for place in places:
        below.setdefault(place["parent"] if place["parent"] in known else None, []).append(place)
    if latest_first:
        for siblings in below.values():
            siblings.sort(key=lambda place: place["updated"] or 0.0, reverse=True)
    rows: list[dict[str, Any]] = []
    todo = [(place, 0) for place in reversed(below.get(None, []))]
    while todo:
        place, depth = todo.pop()
        rows.append(place | {"depth": depth})
        todo += [(child, depth + 1) for child in reversed(below.get(place["id"], []))]
    return rows
