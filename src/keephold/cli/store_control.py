"""The operations of commands on a store: what is stored is read, what a process runs is asked of that process.

Looking needs no runtime, which takes a while to import: it is there for commands that act.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from keephold.control.handle_json import OutputSize, as_json
from keephold.control.resolve_handle import find, place_of
from keephold.control.store_view import StoreView
from keephold.durable.keys import LONGEST, masked_part
from keephold.errors import KeepholdError
from keephold.handles.state import Stopped
from keephold.store.base import Record, Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from keephold.control.control import Control
    from keephold.runtime import Runtime
    from keephold.turn import attach_protocol as frames
    from keephold.turn.relay import Relay

_TAIL_BYTES = 4096


class Stored:
    """Performs the commands' operations on an open store; those that act need a `runtime`, which has no tools."""

    def __init__(self, store: Store, runtime: "Runtime | None" = None, *, url: str | None = None) -> None:
        self._store = store
        self._url = url
        self.store_view = StoreView(store, longest_page=2**53)  # the command decides how long a page is
        self._acting = runtime

    @property
    def place(self) -> str:
        return place_of(self._store)

    @property
    def _runtime(self) -> "Runtime":
        assert self._acting is not None, "opened for looking"
        return self._acting

    async def _record(self, uid: str) -> Record:
        record = await self._store.handle(uid)
        if record is None:
            raise KeepholdError(f"Handle `{uid}` expired while it was looked at", code="handle_expired")
        return record

    # Looking

    async def find(self, ids: Iterable[str], conversation: str | None) -> list[dict[str, Any]]:
        return [as_json(each) for each in await self.store_view.glances(await find(self._store, ids, conversation))]

    async def handle(self, uid: str, *, keys: bool = False) -> dict[str, Any]:
        record = await self._record(uid)
        shown = {"keys": await _keys(self._store, record)} if keys else {}
        return await self.store_view.described(record, output=_output(self._store, record), **shown)

    async def handles(self, **wanted: Any) -> dict[str, Any]:
        return await self.store_view.handles(**wanted)

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        return await self.store_view.conversations(after=after, limit=limit)

    async def requests(self) -> list[dict[str, Any]]:
        from keephold.control.posted_requests import PostedRequests

        return await PostedRequests(self._store, own=False).page(limit=2**53)

    async def request(self, id: str) -> dict[str, Any]:
        from keephold.control.posted_requests import PostedRequests, gone

        found = await PostedRequests(self._store, own=False).get(id)
        if found is None:
            raise gone(id)
        return found

    async def permissions(self) -> list[dict[str, Any]]:
        from keephold.control.posted_requests import PostedRequests

        return await PostedRequests(self._store, own=False).permissions()

    def talk(self, fact: dict[str, Any], want: "frames.Want") -> "AbstractAsyncContextManager[frames.Talk]":
        return self._talk(fact["uid"], want)

    @asynccontextmanager
    async def _talk(self, uid: str, want: "frames.Want") -> "AsyncIterator[frames.Talk]":
        from keephold.control.stored_output import talking

        record = await self._record(uid)
        async with self._relay(record) as relay, talking(self._store, record, want, relay) as talk:
            yield talk

    @asynccontextmanager
    async def _relay(self, record: Record) -> "AsyncIterator[Relay | None]":
        """Yield a way to reach the process that runs a handle through the store, if it has no socket here."""
        from keephold.cli.store import without_tools
        from keephold.turn.owner_connection import running

        to = running(self._store, record)
        if self._acting is not None:
            yield self._acting.relay
        elif to is None or to.path is not None:
            yield None
        else:
            async with without_tools(self._url) as runtime:
                yield runtime.relay

    # Acting

    @property
    def _control(self) -> "Control":
        from keephold.control.control import Control

        return Control(self._runtime)

    async def abort(self, uid: str) -> dict[str, Any]:
        return await self._control.abort(uid)

    async def decide(self, id: str, said: dict[str, Any]) -> dict[str, Any]:
        return dict(await self._control.decide(id, said, by="the command line"))

    async def revoke_permission(self, id: str) -> dict[str, Any]:
        return dict(await self._control.revoke_permission(id))

    async def retry(self, uid: str) -> dict[str, Any]:
        return dict(await self._control.retry(uid))

    async def wait_for(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        output: Sequence[dict[str, str]] = (),
        ready: Sequence[str] = (),
        timeout: float | None = None,
    ) -> dict[str, Any]:
        return dict(await self._control.wait(all=all, any=any, output=output, ready=ready, timeout=timeout))

    async def complete(self, key: str, resolution: dict[str, Any]) -> dict[str, Any]:
        return await self._control.complete(key, resolution)

    async def revoke(self, conversation: str) -> dict[str, Any]:
        return dict(await self._control.revoke(conversation))

    async def forget(self, conversation: str) -> dict[str, Any]:
        return dict(await self._control.forget(conversation))

    async def collect(self, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
        from keephold.cli.store import keep_as_configured

        keep_as_configured(self._runtime.registry)
        return await self._control.collect(older_than=older_than, dry_run=dry_run, vacuum=vacuum)


async def _keys(store: Store, record: Record) -> dict[str, str]:
    from keephold.durable.waits import open_keys

    if isinstance(record.state, Stopped):
        return {}
    return {name: str(key) for name, key in (await open_keys(store, record.uid)).items()}


def _output(store: Store, record: Record) -> OutputSize | None:
    """The end of what it printed. While it runs that is known to its owner alone, unless its process is kept."""
    from keephold.control.stored_output import stored_output

    output = stored_output(store, record)
    if output is None:
        return None
    end = output.before(output.total, _TAIL_BYTES + LONGEST)
    output.close()
    before, tail = (part.decode(errors="replace") for part in (end[:-_TAIL_BYTES], end[-_TAIL_BYTES:]))
    return OutputSize(output.total, masked_part(before, tail, ""))
