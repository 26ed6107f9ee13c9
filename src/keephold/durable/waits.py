"""Waits on the outside: taking keys, resolving them, waiting for their payload (D3, D5, E5).

The rows are the truth. A coroutine that waits here is woken by the commit of a resolution made in this process, or by
the bell of another one, and reads the row again; so a lost bell costs at most a sweep.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from keephold.durable.deferred import ResolveOutcome, resolution_json
from keephold.durable.host import WaitKind
from keephold.durable.keys import Key, Presented, call_secret, genuine, is_key, key_id, make_key, new_secret, present
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Stopped
from keephold.store.base import (
    Op,
    Parking,
    Record,
    Resolution,
    Resolved,
    Resolving,
    Revoked,
    SecretAdded,
    Store,
    WaitOpened,
    WaitRow,
)

T = TypeVar("T")

_READ_AGAIN_SECS = 0.2
"""Seconds between attempts to read while the store is away."""


async def open_keys(store: Store, uid: str) -> dict[str, Key]:
    """Return a call's open keys by the name of the wait; `completion` is that of the call itself.

    Only people and programs that can read the store may call this: they could make the keys by its secret anyway.
    """
    keys: dict[str, Key] = {}
    for row in await store.waits(uid):
        if row.revoked or row.resolution is not None:
            continue
        found = await store.secret(row.secret_id)
        if found is None:
            raise KeepholdError(f"the store has lost the secret `{row.secret_id}`", code="store_unusable")
        completion = row.kind == "completion"
        wait = "completion" if completion else f"{row.kind}:{row.name}"
        keys["completion" if completion else row.name] = make_key(row.conversation, row.uid, wait, *found)
    return keys


_KINDS: dict[str, WaitKind] = {"completion": "completion", "event": "event"}


class _Awaited:
    """A wait that coroutines of this process wait for."""

    __slots__ = ("futures", "row")

    def __init__(self, row: WaitRow) -> None:
        self.row = row
        self.futures: list[asyncio.Future[Resolution | None]] = []
        """Each gets the resolution, or None: read the row."""


class Waits:
    """The keys of one runtime's store."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._secrets: dict[str, bytes] = {}
        self._awaited: dict[str, _Awaited] = {}

    # Keys

    async def take(
        self, uid: str, fence: int, conversation: str, kind: WaitKind, name: str = "", parking: Parking | None = None
    ) -> Key:
        """Return the key of a call's wait: the same key each time. Taking it is a commit."""
        wait = kind if kind == "completion" else f"{kind}:{name}"
        id = key_id(conversation, uid, wait)
        row = await self._read(lambda: self._registry.store.wait(id))
        if row is None:
            secret_id, secret = await self._read(self.newest_secret)
            await self._registry.write((WaitOpened(uid, fence, id, kind, name, secret_id, parking),))
        else:
            secret_id = row.secret_id
            secret = await self._read(lambda: self._secret(secret_id))
        return make_key(conversation, uid, wait, secret_id, secret)

    async def opening(self, uid: str, conversation: str) -> WaitOpened:
        """Return the operation that takes the completion key of a call that is parked from the start."""
        secret_id, _ = await self.newest_secret()
        return WaitOpened(uid, 1, key_id(conversation, uid, "completion"), "completion", "", secret_id)

    async def key_of(self, record: Record) -> Key:
        """Return the completion key that a call has taken."""
        row = next(row for row in await self._registry.store.waits(record.uid) if row.kind == "completion")
        return make_key(row.conversation, row.uid, row.kind, row.secret_id, await self._secret(row.secret_id))

    async def rotate(self) -> str:
        """Make new keys with a new secret. Earlier keys stay valid. Returns the secret's id."""
        return (await self._add_secret())[0]

    async def newest_secret(self) -> tuple[str, bytes]:
        """Return the id of the newest secret, and the secret. Read each time: another process may have rotated it."""
        return await self._registry.store.secret() or await self._add_secret()

    async def oldest_secret(self) -> bytes:
        """Return the first secret of the store, which every process that opens it finds."""
        found = await self._registry.store.secret(oldest=True)
        if found is None:
            await self._add_secret()
            found = await self._registry.store.secret(oldest=True)  # another process may have been first
            assert found is not None
        return found[1]

    async def _add_secret(self) -> tuple[str, bytes]:
        id, secret = new_secret()
        await self._registry.write((SecretAdded(id, secret, self._registry.clock.now()),), keep=False)
        return id, secret

    async def _secret(self, id: str) -> bytes:
        if id not in self._secrets:
            found = await self._registry.store.secret(id)
            if found is None:
                raise KeepholdError(f"the store has lost the secret `{id}`", code="store_unusable")
            self._secrets[id] = found[1]
        return self._secrets[id]

    async def verify(self, key: str) -> WaitRow | None:
        """Return the wait that a key opens. Forged, tampered, revoked, never issued: None, after the same work (D5)."""
        presented = present(str(key))
        awaited = self._awaited.get(presented.key_id)
        row = awaited.row if awaited is not None else await self._registry.store.wait(presented.key_id)
        secret = await self._secret(row.secret_id) if row is not None else None
        if genuine(presented, secret) and row is not None:
            return None if row.revoked else row
        return await self._signed_by_worker(presented, row)

    async def _signed_by_worker(self, presented: Presented, row: WaitRow | None) -> WaitRow | None:
        """Return the wait of a key that a worker of an engine has made; open the wait if nobody did before."""
        names = presented.names()
        found = await self._registry.store.secret(presented.secret_id) if names is not None else None
        secret = None if found is None or names is None else call_secret(found[1], names[1])
        if not genuine(presented, secret) or names is None or (row is not None and row.revoked):
            return None
        if row is None:
            conversation, uid, wait = names
            kind, _, name = wait.partition(":")
            record = await self._registry.store.handle(uid)
            if record is None or record.conversation != conversation or isinstance(record.state, Stopped):
                return None
            if kind not in _KINDS:  # a worker may sign any
                return None
            opened = WaitOpened(uid, record.fence, presented.key_id, _KINDS[kind], name, presented.secret_id)
            with contextlib.suppress(KeepholdError):  # it has just stopped, or another process was first
                await self._registry.write((opened,), keep=False)
            row = await self._registry.store.wait(presented.key_id)
        return row

    # Resolving

    async def resolve(self, key: str, resolution: Resolution) -> ResolveOutcome:
        """Resolve the key's wait; the first resolution counts, across processes."""
        row = await self.verify(key)
        if row is None:
            return ResolveOutcome("unknown_or_revoked")
        result = await self._resolve(row.key_id, row.uid, resolution)
        terminal = result.terminal
        return ResolveOutcome(result.status, resolution_json(terminal) if terminal is not None else None)

    async def complete(self, handle: Handle, resolution: Resolution, also: Sequence[Op] = ()) -> Resolving:
        """Resolve the completion of a call without its key; the first resolution counts.

        If the call has not taken its key yet, the resolution is kept until the call is parked. `also` is written with
        it.
        """
        id = key_id(handle.conversation, handle.uid, "completion")
        result = await self._resolve(id, handle.uid, resolution, also)
        if result.status == "unknown_or_revoked":
            with contextlib.suppress(KeepholdError):  # it has stopped: `_resolve` says so
                await self.take(handle.uid, handle.fence, handle.conversation, "completion")
            result = await self._resolve(id, handle.uid, resolution, also)
        return result

    def _resolve(
        self, id: str, uid: str, resolution: Resolution, also: Sequence[Op] = ()
    ) -> "asyncio.Future[Resolving]":
        answered: asyncio.Future[Resolving] = asyncio.get_running_loop().create_future()

        def done(results: Sequence[Resolving]) -> None:
            self._resolved(id, uid, resolution, results[-1])
            if not answered.done():
                answered.set_result(results[-1])

        def failed(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        op = Resolved(id, resolution, self._registry.clock.now())
        self._registry.commit((*also, op), done, failed)
        return answered

    def _resolved(self, id: str, uid: str, resolution: Resolution, result: Resolving) -> None:
        """Wake the coroutines that wait for a written resolution, in the same pass of the loop."""
        if result.uid is not None and result.state is not None:
            self._registry.changed_elsewhere(result.uid, result.state, result.what)
        else:
            self._registry.on_held(uid)
        self._tell(id, resolution if result.status == "accepted" else result.terminal)

    async def revoke(self, conversation: str) -> int:
        """Revoke the conversation's open keys. Calls parked on them are stopped. Returns how many keys."""
        op = Revoked(conversation, self._registry.clock.now())
        ((stopped, others),) = await self._registry.write((op,), keep=False)
        for uid, state in stopped:
            self._registry.changed_elsewhere(uid, state)
        self.recheck(tuple(self._awaited))
        return len(stopped) + len(others)

    # Waiting

    async def wait(self, key: str) -> Resolution:
        """Wait until the key is resolved."""
        row = await self._read(lambda: self.verify(key))
        while row is not None and not row.revoked:
            if row.resolution is not None:
                return row.resolution
            told: asyncio.Future[Resolution | None] = asyncio.get_running_loop().create_future()
            awaited = self._awaited.setdefault(row.key_id, _Awaited(row))
            awaited.futures.append(told)
            try:
                resolution = await told
            finally:
                awaited.futures.remove(told)
                if not awaited.futures:
                    self._awaited.pop(row.key_id, None)
            if resolution is not None:
                return resolution
            row = await self._read(partial(self._registry.store.wait, row.key_id))
        hint = "" if is_key(key) else "; it is not even a key: `await fx.external_event_key(name)` gives one"
        raise ToolError(f"await-event key is invalid or revoked{hint}", code="await_event_unknown_or_revoked")

    async def _read(self, query: Callable[[], Awaitable[T]]) -> T:
        """Read for a call that runs. Like its writes, its reads wait while the store is away."""
        while True:
            try:
                return await query()
            except KeepholdError as error:
                if error.code != "store_unavailable" or self._registry.closing:
                    raise
            await asyncio.sleep(_READ_AGAIN_SECS)

    def recheck(self, ids: Iterable[str] | None = None) -> None:
        """Let coroutines that wait for these keys, or for any, read their rows again."""
        for id in tuple(self._awaited) if ids is None else ids:
            self._tell(id, None)

    def _tell(self, id: str, resolution: Resolution | None) -> None:
        awaited = self._awaited.get(id)
        for told in awaited.futures if awaited is not None else ():
            if not told.done():
                told.set_result(resolution)
