"""The page of one conversation: its turns over time, who waited for whom, its transcript, its sub-agents.

A page has a few turns, newest first, and some lines of the transcript, by default the last. The model layer wrote the
lines (`agent/transcript.py`); a line that is not understood is shown as JSON.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from keephold.errors import KeepholdError
from keephold.serve.dashboard.rendering import Renderer, address, asked_number
from keephold.serve.dashboard.timeline import MOST, NAMES, Stretch, lanes, stretches
from keephold.turn.notifications import AUTOMATIC

if TYPE_CHECKING:
    from keephold.control.control import Control


SHORT = 700
"""Characters of a message that are shown at once; longer ones are folded."""


@dataclass(frozen=True)
class Message:
    """One message of the transcript."""

    who: str
    """`user`, `assistant`, `call`, `result`, `notification`, or `note`."""
    title: str
    content: Any
    """A text, or data."""
    line: int
    at: float
    wrong: bool = False

    @property
    def long(self) -> bool:
        """Whether it is folded: all long ones, and every result that is not short."""
        return not isinstance(self.content, str) or len(self.content) > SHORT or self.content.count("\n") > 12


def messages(lines: Sequence[Mapping[str, Any]]) -> list[Message]:
    return [message for line in lines for message in _messages(line)]


def _messages(line: Mapping[str, Any]) -> Iterator[Message]:
    number, at, body = line["line"], line["at"], line["body"]
    match line["kind"], body:
        case (("request" | "response"), {"parts": list(parts)}):
            for part in parts:
                if isinstance(part, Mapping):
                    yield from _part(part, number, at)
        case "summary", {"text": text}:
            yield Message("note", "Summary of earlier messages", text, number, at)
        case "ended", {"stop_reason": reason, **rest}:
            error = rest.get("error")
            yield Message("note", f"The turn ended: {reason}", error or "", number, at, wrong=error is not None)
        case kind, _:
            yield Message("note", str(kind), body, number, at)


def _part(part: Mapping[str, Any], number: int, at: float) -> Iterator[Message]:
    content, name = part.get("content"), part.get("tool_name")
    match part.get("part_kind"):
        case "user-prompt":
            text = _joined(content)
            automatic = text.startswith(AUTOMATIC)
            who, title = ("notification", "Notification") if automatic else ("user", "User")
            yield Message(who, title, text, number, at)
        case "text" if content:
            yield Message("assistant", "Model", str(content), number, at)
        case "thinking" if content:
            yield Message("note", "Thought", str(content), number, at)
        case "tool-call":
            yield Message("call", str(name), part.get("args"), number, at)
        case "tool-return":
            yield Message("result", str(name), content, number, at)
        case "retry-prompt":
            yield Message("result", str(name or "Again"), content, number, at, wrong=True)
        case "system-prompt":
            yield Message("note", "Instructions", str(content), number, at)


def _joined(content: Any) -> str:
    """Return the text of a message; other content is only mentioned."""
    if isinstance(content, str):
        return content
    pieces = content if isinstance(content, list) else []
    return "\n".join(piece if isinstance(piece, str) else "[…]" for piece in pieces)


TURNS = 5
"""Turns of one page."""
LINES = 60
"""Transcript lines of one page."""
ZOOMS = (1, 4, 16, 64)
"""How many times as long as the page is wide a timeline may be."""
_BELOW = 200
_INQUIRIES = 20


def routes(renderer: Renderer, control: "Control") -> list[BaseRoute]:
    return [Route("/conversations/{id:path}", _Page(renderer, control).show)]


class _Page:
    def __init__(self, renderer: Renderer, control: "Control") -> None:
        self._renderer = renderer
        self._control = control

    async def show(self, request: Request) -> Response:
        """Show the conversation of that name."""
        id, asked = request.path_params["id"], request.query_params
        before = asked_number(asked.get("before"))
        try:
            conversation = await self._control.store_view.conversation(id, before=before, limit=TURNS)
        except KeepholdError as error:
            return await self._renderer.problem(request, error.message, 404, "/conversations")
        path = f"/conversations/{quote(id)}"
        zoom = next((each for each in ZOOMS if asked.get("zoom") == str(each)), 1)
        turns = [await self._turn(id, turn, zoom) for turn in conversation["turns"]]
        if not turns and before is None:
            turns = [await self._turn(id, None, zoom)]
        zoomed = {"zoom": zoom} if zoom > 1 else {}
        here = {} if before is None else {"before": before}
        following = conversation["next"]
        return await self._renderer.page(
            request,
            "conversation.html",
            conversation=conversation,
            turns=turns,
            zoom=zoom,
            NAMES=NAMES,
            zooms=[(each, address(path, here | ({"zoom": each} if each > 1 else {}))) for each in ZOOMS],
            newest=address(path, zoomed) if before is not None else None,
            older=address(path, {"before": following, **zoomed}) if following is not None else None,
            below=await self._below(id),
            inquiries=await self._control.store_view.inquiries(id, _INQUIRIES),
            **await self._transcript(id, conversation["lines"], asked_number(asked.get("line")), path),
        )

    async def _turn(self, id: str, turn: dict[str, Any] | None, zoom: int) -> dict[str, Any]:
        """Return a turn with its calls; without a turn, the newest calls."""
        now = time.time()
        calls = await self._control.runtime_view.calls(id, None if turn is None else turn["turn"])
        shown = calls[-MOST:]
        went: dict[str, list[Stretch]] = {}
        for fact in shown:
            if fact["stateful"] or fact["tool"] == "ask_user":  # other one-shot calls need no events
                went[fact["uid"]] = stretches(await self._control.store_view.timeline(fact["uid"]), fact, now)
        return {
            "turn": turn,
            "calls": shown,
            "lanes": lanes(calls, went, now, zoom),
            "start": min((fact["created"] for fact in shown), default=now),
        }

    async def _transcript(self, id: str, count: int, line: int | None, path: str) -> dict[str, Any]:
        after = max(0, count - LINES) if line is None else line
        found = await self._control.store_view.transcript(id, after, LINES) if count else {"lines": [], "next": None}
        earlier = f"{path}?line={max(0, after - LINES)}#said" if after > 0 else None
        later = f"{path}?line={found['next']}#said" if found["next"] is not None else None
        return {"transcript": messages(found["lines"]), "earlier": earlier, "later": later}

    async def _below(self, id: str) -> list[dict[str, Any]]:
        """Return the conversations of the sub-agents that this one started."""
        found = await self._control.store_view.conversations(after=f"{id}/", limit=_BELOW)
        return [place for place in found["conversations"] if place["parent"] == id]
