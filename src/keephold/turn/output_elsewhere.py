"""Searches the output of handles that other processes run, for `await` (A9): over the socket of the owner, or by
requests in the store if that cannot be reached."""

import asyncio

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.matching import Search
from keephold.handles.registry import Registry
from keephold.turn.attach_protocol import Gap, HandleStatus, Want, all_frames
from keephold.turn.owner_connection import OwnerAddress, linked, socket_of
from keephold.turn.relayed_streams import Polls

_AGAIN_SECS = 1.0
"""Seconds between two attempts to reach an owner that has died: another process may take the handle over."""


class SearchElsewhere:
    """Searches by connections to the owners."""

    def __init__(self, registry: Registry, polls: Polls) -> None:
        self._registry = registry
        self._polls = polls

    async def look(self, handle: Handle, search: Search) -> None:
        """Search the output so far. Raises `ToolError` if the owner lives and does not answer."""
        to = self._owner(handle)
        if to is not None:
            try:
                await self._receive(to, Want(uid=handle.uid, want="read", since=search.offset), search)
            except ToolError:
                raise
            except KeepholdError as error:
                raise ToolError(error.message, code=error.code) from None

    async def follow(self, handle: Handle, search: Search) -> None:
        while self._registry.runs_elsewhere(handle) and search.matched is None:
            try:
                to = self._owner(handle)
                if to is not None:
                    await self._receive(to, Want(uid=handle.uid, want="follow", since=search.offset), search)
                    return
            except KeepholdError:
                pass  # it has died, or is closing: its next owner is asked
            await asyncio.sleep(_AGAIN_SECS)
        search.printed()  # this process runs it now

    def _owner(self, handle: Handle) -> OwnerAddress | None:
        """Return where the handle is run; None if its owner has died."""
        store, owner = self._registry.store, handle.owner
        if owner is None or not store.alive(owner):
            return None
        return OwnerAddress(handle.uid, handle.id, handle.tool.name, socket_of(store, owner), owner)

    async def _receive(self, to: OwnerAddress, want: Want, search: Search) -> None:
        offset = want.since
        async with linked(to, want, self._polls) as link:
            async for _, payload in all_frames(link):
                if isinstance(payload, bytes):
                    await search.feed(payload, offset)
                    offset += len(payload)
                elif isinstance(payload, Gap):
                    await search.feed(b"", payload.offset - payload.missing, payload.missing)
                    offset = payload.offset
                elif isinstance(payload, HandleStatus):
                    offset = payload.offset
                if search.matched is not None:
                    return
