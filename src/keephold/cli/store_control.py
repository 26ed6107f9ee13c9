"""The operations of commands on a store: what is stored is read, what a process runs is asked of that process.

Looking needs no runtime, which takes a while to import: it is there for commands that act.
"""

from collections.abc import Iterable
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from keephold.control.handle_json import OutputSize, as_json
from keephold.control.resolve_handle import find, place_of
from keephold.control.store_view import StoreView
from keephold.durable.keys import LONGEST, masked_part
from keephold.handles.state import Stopped
from keephold.store.base import Record, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from keephold.control.open_requests import PostedRequests
    from keephold.runtime import Runtime
    from keephold.turn import attach_protocol as frames
    from keephold.turn.relay import Relay

_TAIL_BYTES = 4096


class Stored:
    """Looks into an open store."""

    def __init__(self, store: Store, *, url: str | None = None, relay: "Relay | None" = None) -> None:
        """`relay` reaches processes through the store; without it, a runtime is opened at `url` if that is needed."""
        self._store, self._url, self._through = store, url, relay
        self._view = StoreView(store, longest_page=2**53)  # the command decides how long a page is
        self.handles, self.conversations = self._view.handles, self._view.conversations
        self.place = place_of(store)

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        return [as_json(each) for each in await self._view.glances(await find(self._store, ids, conversation))]

    async def handle(self, uid: str, *, keys: bool = False) -> dict[str, Any]:
        record = await self._view.record(uid)
        shown: dict[str, Any] = {"output": _output(self._store, record)}
        if keys:
            from keephold.durable.waits import open_keys

            found = {} if isinstance(record.state, Stopped) else await open_keys(self._store, uid)
            shown["keys"] = {name: str(key) for name, key in found.items()}
        return await self._view.described(record, **shown)

    @cached_property
    def _posted(self) -> "PostedRequests":
        from keephold.control.open_requests import PostedRequests  # most commands do not need it

        return PostedRequests(self._store)

    async def requests(self) -> tuple[list[dict[str, Any]], int]:
        return await self._posted.page(limit=2**53), 0

    async def request(self, id: str) -> dict[str, Any]:
        from keephold.control.open_requests import still_open

        return still_open(id, await self._posted.get(id))

    async def permissions(self) -> list[dict[str, Any]]:
        return await self._posted.permissions()

    @asynccontextmanager
    async def talk(self, fact: dict[str, Any], want: "frames.Want") -> "AsyncIterator[frames.Talk]":
        from keephold.control.stored_output import talking

        record = await self._view.record(fact["uid"])
        async with self._relay(record) as relay, talking(self._store, record, want, relay) as talk:
            yield talk

    @asynccontextmanager
    async def _relay(self, record: Record) -> "AsyncIterator[Relay | None]":
        """Yield a way to reach the process that runs a handle through the store, if it has no socket here."""
        from keephold.cli.store import without_tools
        from keephold.turn.owner_connection import running

        to = running(self._store, record)
        if self._through is not None or to is None or to.path is not None:
            yield self._through
        else:
            async with without_tools(self._url) as runtime:
                yield runtime.relay


class Acting(Stored):
    """Acts on a store as well, by a runtime that has no tools."""

    def __init__(self, runtime: "Runtime") -> None:
        from keephold.control.control import Control

        super().__init__(runtime.registry.store, relay=runtime.relay)
        self._control = control = Control(runtime)
        self.abort, self.retry, self.wait = control.abort, control.retry, control.wait
        self.complete, self.revoke, self.forget = control.complete, control.revoke, control.forget
        self.decide = partial(control.decide, by="the command line")
        self.revoke_permission = control.revoke_permission

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
        from keephold.cli.store import keep_as_configured

        keep_as_configured(self._control.runtime.registry)
        return await self._control.collect(older_than=older_than, dry_run=dry_run, vacuum=vacuum)


def _output(store: Store, record: Record) -> OutputSize | None:
    """The end of what it printed. While it runs that is known to its owner alone, unless its process is kept."""
    from keephold.control.stored_output import stored_output

    with stored_output(store, record) as output:
        if output is None:
            return None
        end = output.before(output.total, _TAIL_BYTES + LONGEST)
        before, tail = (part.decode(errors="replace") for part in (end[:-_TAIL_BYTES], end[-_TAIL_BYTES:]))
        return OutputSize(output.total, masked_part(before, tail, ""))
