"""The page of one handle: state, question, output, terminal, journal and result.

The output is read a page at a time, from an offset or up to the end, or searched for a text.
"""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from keephold.errors import KeepholdError
from keephold.ids import conversation_of
from keephold.serve.dashboard.graph import draw, numbered
from keephold.serve.dashboard.rendering import Renderer, asked_number
from keephold.serve.dashboard.timeline import moments, stretches
from keephold.serve.operations import STATUS

if TYPE_CHECKING:
    from keephold.control.control import Control
    from keephold.control.output import Match
    from keephold.serve.screens import Screens

PIECE = 1 << 16
"""Bytes of output on a page."""
LINES = ("100", "1000", "all")
"""Choices for the number of last lines; `all` is the whole piece."""
_AROUND = 300
"""Characters shown before and after a match in its line."""
_FOUND = 200
"""Handles that are searched for an id."""
BLOCK = 50
"""Journal entries that a page loads at a time: few, so that the frame that shows them is short."""
_GONE = {"handle_not_found": 404, "expired": 410, "handle_expired": 410}


def routes(renderer: Renderer, control: "Control", screens: "Screens") -> list[BaseRoute]:
    page = _Page(renderer, control, screens)
    return [Route("/handles/{uid}", page.show), Route("/handles/{uid}/steps", page.steps)]


class _Page:
    def __init__(self, renderer: Renderer, control: "Control", screens: "Screens") -> None:
        self._renderer = renderer
        self._control = control
        self._screens = screens

    async def show(self, request: Request) -> Response:
        """Show the handle of a uid, or the newest of an id."""
        uid, control, now = request.path_params["uid"], self._control, time.time()
        try:
            fact = await control.runtime_view.handle(uid)
            printed = await self._printed(request, fact)
        except KeepholdError as error:
            if error.code == "handle_not_found":
                return await self._named(request, uid)
            title = "No such handle any more" if error.code in _GONE else None
            status = (STATUS | _GONE).get(error.code, 400)
            return await self._renderer.problem(request, error.message, status, "/handles", title)
        events = await control.store_view.timeline(uid)
        workflow = await control.runtime_view.workflow(uid) if fact["kind"] == "workflow" else None
        return await self._renderer.page(
            request,
            "handle.html",
            fact=fact,
            mine=await control.requests.page(handle=uid),
            moments=moments(events, fact),
            stretches=_scaled(stretches(events, fact, now)),
            waiters=await control.runtime_view.waiters(uid),
            printed=printed,
            terminal=await self._terminal(fact),
            **await self._journal(fact, asked_number(request.query_params.get("steps"))),
            workflow=workflow and workflow | {"steps": numbered(workflow["steps"])},
            graph=workflow and draw(workflow["steps"]),
            agent=await self._agent(fact),
        )

    async def steps(self, request: Request) -> Response:
        """Show one block of a journal, for a page that scrolls to it."""
        uid, end = request.path_params["uid"], asked_number(request.query_params.get("before"))
        found = await self._control.store_view.journal(uid, before=end, limit=BLOCK + 1)
        entries = _timed(found["entries"])[:BLOCK]
        return await self._renderer.page(request, "steps.html", entries=entries, uid=uid)

    async def _journal(self, fact: dict[str, Any], steps: int | None) -> dict[str, Any]:
        """Return a journal, newest first: up to two blocks of entries, and the places of those before. A block begins
        at a multiple of its size, so that it stays the same while the journal grows."""
        count = fact["journal_entries"]
        if not count:
            return {"journal": None}
        end = count if steps is None else min(steps, count)
        inner = max(0, (end - 1) // BLOCK * BLOCK)
        start = max(0, inner - BLOCK) if end - inner < BLOCK else inner
        found = await self._control.store_view.journal(fact["uid"], before=end, limit=end - start + 1)
        entries = _timed(found["entries"])[: end - start]
        journal = {"count": count, "end": end, "start": start, "entries": entries, "block": BLOCK}
        return {"journal": journal | {"blocks": list(range(start, 0, -BLOCK))}}

    async def _named(self, request: Request, id: str) -> Response:
        """Redirect to the newest handle of an id; if several conversations have one, list the newest of each. A live
        call that is not in the store, such as a client's `await`, is drawn on the page of its conversation."""
        place = self._control.runtime_view.conversation_of(id)
        if place is not None:
            return RedirectResponse(f"/conversations/{quote(place)}", 303)
        found = await self._control.store_view.handles(search=id, oneshot=True, limit=_FOUND)
        newest: dict[str, dict[str, Any]] = {}
        for fact in found["handles"]:
            if fact["id"] == id:
                newest.setdefault(fact["conversation"], fact)
        if not newest:
            message = f"There is no handle with the id or uid “{id}”."
            return await self._renderer.problem(request, message, 404, "/handles", "No such handle")
        if len(newest) > 1:
            return await self._renderer.page(request, "namesakes.html", id=id, facts=list(newest.values()))
        (fact,) = newest.values()
        return RedirectResponse(f"/handles/{fact['uid']}", 303)

    async def _printed(self, request: Request, fact: dict[str, Any]) -> dict[str, Any]:
        """Return the requested piece of output, with links to others."""
        asked = request.query_params
        pattern, offset = asked.get("q", ""), asked_number(asked.get("from"))
        lines = asked["lines"] if asked.get("lines") in LINES else "all"
        path = request.url.path
        found: dict[str, Any] = {"q": pattern, "lines": lines, "matches": None, "earlier": None, "later": None}
        if pattern:
            looked = await self._control.output(fact["uid"], offset=offset or 0, limit=PIECE, pattern=pattern)
            if looked["next"] < looked["total"]:
                found["later"] = _address(path, q=pattern, **{"from": looked["next"]})
            matches = [_match(match, pattern, path) for match in looked["matches"]]
            return found | looked | {"matches": matches, "follows": False, "at_end": False, "text": ""}
        place: dict[str, Any] = {"from_end": PIECE} if offset is None else {"offset": offset}
        piece = await self._control.output(fact["uid"], limit=PIECE, **place)
        if piece["offset"] > 0:
            found["earlier"] = _address(path, **{"from": max(0, piece["offset"] - PIECE)})
        if piece["next"] < piece["total"]:
            found["later"] = _address(path, **{"from": piece["next"]})
        follows = found["later"] is None and fact["state"] != "stopped"
        shown = {"text": _last(piece["text"], lines), "follows": follows, "at_end": offset is None}
        return found | piece | shown

    async def _terminal(self, fact: dict[str, Any]) -> dict[str, Any] | None:
        """Return the screen of a running terminal, without `html` if another process runs it; None for other
        handles."""
        if fact["state"] == "stopped":
            return None
        screen = self._screens.now(fact["uid"])
        if screen is not None:
            return screen | {"html": Markup(screen["html"])}  # made by `screen_html`, which escapes every text
        tools = await self._control.runtime_view.tools()
        known = any(tool["name"] == fact["tool"] and tool["source"] == "terminal" for tool in tools)
        if not known and not fact["terminal"]:
            return None
        return {"html": "", "rows": 24, "cols": 80, "cursor": [1, 1], "title": "", "driver": fact["driver"]}

    async def _agent(self, fact: dict[str, Any]) -> str | None:
        """Return the conversation of this handle's sub-agent."""
        if fact["kind"] != "agent":
            return None
        id = conversation_of(fact["conversation"], fact["metadata"].get("agentId") or fact["tool"], fact["uid"])
        try:
            await self._control.store_view.conversation(id)
        except KeepholdError:  # a program's conversation is not listed
            return None
        return id


def _timed(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how long after the entry before it each was recorded; the last of these has none before it."""
    before = [*entries[1:], {"at": None}]
    return [
        entry | {"after": None if entry["at"] is None or last["at"] is None else entry["at"] - last["at"]}
        for entry, last in zip(entries, before, strict=True)
    ]


def _scaled(given: list[Any]) -> list[dict[str, Any]]:
    """Scale stretches to a bar of 1000."""
    start, end = given[0].start, max(given[-1].end, given[0].start + 0.001)
    scale = 1000 / (end - start)
    return [
        {
            "state": each.state,
            "x": round((each.start - start) * scale, 1),
            "width": round(max(2.0, (each.end - each.start) * scale), 1),
            "seconds": each.end - each.start,
        }
        for each in given
    ]


def _match(match: "Match", pattern: str, path: str) -> dict[str, Any]:
    """Return a line in three parts around the match, with a link to its position."""
    before, found, after = match["line"].partition(pattern)
    return {
        "offset": match["offset"],
        "before": before if len(before) <= _AROUND else f"…{before[-_AROUND:]}",
        "found": found,
        "after": after if len(after) <= _AROUND else f"{after[:_AROUND]}…",
        # Start at the line's beginning, if it is near and no sequences were removed from it.
        "href": _address(path, **{"from": max(0, match["offset"] - len(before[-_AROUND:].encode(errors="replace")))}),
    }


def _last(text: str, lines: str) -> str:
    if lines == "all":
        return text
    parts = text.splitlines(keepends=True)
    return "".join(parts[-int(lines) :])


def _address(path: str, **query: Any) -> str:
    return f"{path}?{urlencode(query)}#output"
