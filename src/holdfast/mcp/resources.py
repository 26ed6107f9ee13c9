"""Handles as resources (W8): `holdfast://handles/{id}` and the list `holdfast://handles`, for whoever subscribes."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from holdfast.handles.handle import Handle, Watcher
from holdfast.handles.registry import Registry

LIST = "holdfast://handles"
ONE = "holdfast://handles/{id}"
_LISTED = 1000


def uri_of(id: str) -> str:
    """The resource of a handle."""
    return f"{LIST}/{quote(id, safe=':')}"


def id_of(uri: str) -> str | None:
    """The id of the handle whose resource this is."""
    return unquote(uri[len(LIST) + 1 :]) if uri.startswith(LIST + "/") else None


async def read_one(registry: Registry, conversation: str, id: str) -> str:
    """One handle, as JSON. Raises `ToolError` if there is none."""
    await registry.load(conversation, (id,))
    return _json(registry.find(id, conversation).info())


async def read_list(registry: Registry, conversation: str) -> str:
    """The newest handles of a conversation, as JSON; those that are live are always among them."""
    page = await registry.page(conversation=conversation, limit=_LISTED)
    return _json({"handles": page, "truncated": len(page) == _LISTED})


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Changes(Watcher):
    """Calls `changed` with every handle it watches that has changed."""

    def __init__(self, changed: Callable[[Handle], None]) -> None:
        self._changed = changed
        self._handles: list[Handle] = []
        self._followed: list[Callable[[Handle], None]] | None = None

    def add(self, handle: Handle) -> None:
        if handle.active:
            handle.watch(self)
            self._handles.append(handle)

    def follow(self, registry: Registry, conversation: str) -> None:
        """Watch all handles of a conversation, also those that are yet to come."""
        self._followed = registry.followers.setdefault(conversation, [])
        self._followed.append(self._changed)

    def close(self) -> None:
        for handle in self._handles:
            handle.unwatch(self)
        if self._followed is not None:
            self._followed.remove(self._changed)

    def stopped(self, handle: Handle) -> None:
        self._changed(handle)

    def parked(self, handle: Handle) -> None:
        self._changed(handle)

    def touched(self, handle: Handle) -> None:
        self._changed(handle)

    def progressed(self, handle: Handle) -> None:
        self._changed(handle)
