"""The streams of the API, as server-sent events: what a handle prints, what happens, and the last lines of handles.

A client that comes back says by `Last-Event-ID` where it was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any

from starlette.requests import Request

from keephold.control.control import Control
from keephold.control.feed import Feed
from keephold.control.handle_json import live_facts
from keephold.errors import KeepholdError
from keephold.serve.operations import Given
from keephold.serve.sse import EventStream, event

_GLANCE_SECS = 0.5
_GLANCES = 200
"""Handles that one page may have an eye on."""

Counting = Callable[[str], AbstractContextManager[None]]
"""Counts a stream of that kind while it is open."""


class Streams:
    """The streams of a control and its feed."""

    def __init__(self, control: Control, feed: Feed, counting: Counting) -> None:
        self._control = control
        self._feed = feed
        self._counting = counting

    async def follow(self, given: Given, request: Request) -> EventStream:
        """What a handle prints and how it changes, until it has stopped."""
        await self._control.record(given["uid"])
        followed = self._followed(given["uid"], _last(request, given.get("offset", 0)))
        return EventStream(followed, self._counting("output"))

    async def _followed(self, uid: str, offset: int) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._control.follow(uid, offset)) as following:
                async for told in following:
                    yield event(told["type"], told, told.get("offset"))
        except KeepholdError as error:
            yield event("refused", {"code": error.code, "message": error.message})

    async def events(self, given: Given, request: Request) -> EventStream:
        """What happens: all of it, or of a conversation or a handle."""
        after = _last(request, given.get("after"))
        lost = after is None and bool(request.headers.get("last-event-id"))  # it says where it was, in no words of ours
        told = self._told(after, lost, given.get("conversation") or None, given.get("uid") or None)
        return EventStream(told, self._counting("events"))

    async def _told(
        self, after: int | None, lost: bool, conversation: str | None, uid: str | None
    ) -> AsyncIterator[bytes]:
        if lost:
            yield event("reset", {})
        with suppress(KeepholdError):  # the store cannot be read: the stream ends, and its client comes back
            async with aclosing(self._feed.listen(after, conversation=conversation, uid=uid)) as groups:
                async for group in groups:
                    if group is None:  # without a number: older ones may follow
                        yield event("reset", {})
                    else:
                        yield b"".join(each.block for each in group)

    async def glances(self, given: Given, request: Request) -> EventStream:
        """The last line and the progress of handles, when they change."""
        return EventStream(self._glanced(given["uids"]), self._counting("glances"))

    async def _glanced(self, uids: str) -> AsyncIterator[bytes]:
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


def _last(request: Request, otherwise: Any) -> Any:
    """The number that the client heard last, if it says one."""
    said = request.headers.get("last-event-id", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else otherwise
