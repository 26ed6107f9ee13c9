"""The page of one conversation: its turns over time, who waited for whom, what was said, the agents below it.

Turns are a few a page, newest first; what was said is a page of lines, the last unless asked otherwise.
"""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from keephold.errors import KeepholdError
from keephold.serve.dashboard.rendering import Look
from keephold.serve.dashboard.timeline import MOST, Stretch, lanes, stretches
from keephold.serve.dashboard.transcript import messages

if TYPE_CHECKING:
    from keephold.control.control import Control

TURNS = 5
"""Turns of a page."""
LINES = 60
"""Lines of what was said, of a page."""
_BELOW = 200
_INQUIRIES = 20


def routes(look: Look, control: "Control") -> list[BaseRoute]:
    """The page."""
    return [Route("/conversations/{id:path}", _Page(look, control).show)]


class _Page:
    def __init__(self, look: Look, control: "Control") -> None:
        self._look = look
        self._control = control

    async def show(self, request: Request) -> Response:
        """A conversation, by its name."""
        id, asked = request.path_params["id"], request.query_params
        before = _number(asked.get("before"))
        try:
            conversation = await self._control.conversation(id, before=before, limit=TURNS)
        except KeepholdError as error:
            return await self._look.problem(request, error.message, 404, "/conversations")
        path = f"/conversations/{quote(id)}"
        turns = [await self._turn(id, turn) for turn in conversation["turns"]]
        if not turns and before is None:
            turns = [await self._turn(id, None)]
        following = conversation["next"]
        return await self._look.page(
            request,
            "conversation.html",
            conversation=conversation,
            turns=turns,
            newest=path if before is not None else None,
            older=f"{path}?{urlencode({'before': following})}" if following is not None else None,
            below=await self._below(id),
            inquiries=await self._inquiries(id),
            **await self._said(id, conversation["lines"], _number(asked.get("line")), path),
        )

    async def _turn(self, id: str, turn: dict[str, Any] | None) -> dict[str, Any]:
        """A turn with its calls. Of calls without turns: the newest."""
        now = time.time()
        calls = await self._control.calls(id, None if turn is None else turn["turn"])
        shown = calls[-MOST:]
        went: dict[str, list[Stretch]] = {}
        for fact in shown:
            if fact["stateful"] or fact["tool"] == "ask_user":  # another one-shot call's facts tell all of it
                went[fact["uid"]] = stretches(await self._control.timeline(fact["uid"]), fact, now)
        return {
            "turn": turn,
            "calls": shown,
            "lanes": lanes(calls, went, now),
            "start": min((fact["created"] for fact in shown), default=now),
        }

    async def _said(self, id: str, count: int, line: int | None, path: str) -> dict[str, Any]:
        after = max(0, count - LINES) if line is None else line
        found = await self._control.transcript(id, after, LINES) if count else {"lines": [], "next": None}
        earlier = f"{path}?{urlencode({'line': max(0, after - LINES)})}#said" if after > 0 else None
        later = f"{path}?{urlencode({'line': found['next']})}#said" if found["next"] is not None else None
        return {"said": messages(found["lines"]), "earlier": earlier, "later": later}

    async def _inquiries(self, id: str) -> list[dict[str, Any]]:
        """What was asked of the model on the side (Q6), newest first."""
        return await self._control.inquiries(id, _INQUIRIES)

    async def _below(self, id: str) -> list[dict[str, Any]]:
        """The conversations of the agents that this one started."""
        found = await self._control.conversations(after=f"{id}/", limit=_BELOW)
        return [place for place in found["conversations"] if place["parent"] == id]


def _number(given: str | None) -> int | None:
    return int(given) if given is not None and given.isdecimal() and len(given) < 16 else None
