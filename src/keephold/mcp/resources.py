"""Handles as resources (W8): `keephold://handles/{id}` and the list `keephold://handles`, for whoever subscribes."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec

from keephold.handles.handle import Handle, Watcher
from keephold.handles.registry import Registry

LIST = "keephold://handles"
ONE = "keephold://handles/{id}"
_LISTED = 1000


def id_of(uri: str) -> str | None:
    """The id of the handle whose resource this is."""
    return unquote(uri[len(LIST) + 1 :]) if uri.startswith(LIST + "/") else None


async def read_one(registry: Registry, conversation: str, id: str) -> str:
    """One handle, as JSON. Raises `ToolError` if there is none."""
    await registry.load(conversation, (id,))
    return _json(registry.find(id, conversation).info())


async def read_list(registry: Registry, conversation: str) -> str:
    """The handles of a conversation, oldest first, as JSON: the newest of those that are live, and of the others."""
    live = await registry.page(conversation=conversation, status="pending", limit=_LISTED, newest=True)
    over = await registry.page(conversation=conversation, state="stopped", limit=_LISTED, newest=True)
    handles = sorted([*live, *over], key=lambda handle: handle.uid)
    return _json({"handles": handles, "truncated": _LISTED in (len(live), len(over))})


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Changes(Watcher):
    """Calls `changed` with every handle it watches that has changed."""

    def __init__(self, changed: Callable[[Handle], None]) -> None:
        self._changed = changed
        self._handles: list[Handle] = []
        self._registry: Registry | None = None
        self._conversation = ""
        self._id: str | None = None

    def add(self, handle: Handle) -> None:
        if handle.active:
            handle.watch(self)
            self._handles.append(handle)

    def follow(self, registry: Registry, conversation: str, id: str | None = None) -> None:
        """Watch all handles of a conversation, or those of an id, also those that are yet to come."""
        self._id = id
        self._registry, self._conversation = registry, conversation
        registry.followers.setdefault(conversation, []).append(self._told)

    def _told(self, handle: Handle) -> None:
        if self._id is None:
            self._changed(handle)
        elif handle.id == self._id and handle not in self._handles:  # else it is watched, and tells itself
            self.add(handle)
            self._changed(handle)

    def close(self) -> None:
        for handle in self._handles:
            handle.unwatch(self)
        if self._registry is not None:
            followers = self._registry.followers[self._conversation]
            followers.remove(self._told)
            if not followers:
                del self._registry.followers[self._conversation]

    def stopped(self, handle: Handle) -> None:
        self._changed(handle)

    def parked(self, handle: Handle) -> None:
        self._changed(handle)

    def touched(self, handle: Handle) -> None:
        self._changed(handle)

    def progressed(self, handle: Handle) -> None:
        self._changed(handle)
