"""Delete on demand what retention deletes by itself (S5), and what a crash left: output files without a handle and,
with `vacuum`, unused space in the store's file.

A runtime collects once a minute while it works. Use this for stores without a runtime, or to keep less.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any

from msgspec import to_builtins
from msgspec.structs import astuple, replace

from keephold.errors import KeepholdError
from keephold.handles.registry import Registry
from keephold.handles.spool import in_a_file, in_the_store
from keephold.store.base import EVENTS_LIMIT, WAIT_KINDS, Browse, Collected, EventQuery, Record, Store, browsable
from keephold.store.housekeeping import SupportsVacuum, SupportsWeighing, Weight

_MANY = 100_000
"""Handles that a dry run counts at most, in a store that cannot weigh them."""
_AGAIN_SECS = 0.05
"""Seconds between two looks whether another process has finished."""
_YOUNG_SECS = 3600.0
"""A file written to this recently may belong to a call that is not committed yet."""


async def collect(registry: Registry, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
    """Delete what stopped more than `older_than` seconds ago; None: as the runtime's retention says.

    Return what was deleted, or with `dry_run` what would be: `handles` (one-shot `calls` apart), about how many
    `row_bytes` they took, the `output_bytes` of their files, `events`, `files` of no handle and their `file_bytes`, and
    `bytes`, by how much the store's own file has shrunk.
    """
    store, now = browsable(registry.store), registry.clock.now()
    ops = _ops(registry, older_than, now)
    size, (first, _) = await _disk_bytes(store), await store.events_range()
    weight = await (_weigh if dry_run else _delete)(registry, ops)
    last = await _first_after(store, ops[-1].before) if dry_run else (await store.events_range())[0]
    orphans = await _orphans(store)
    if not dry_run:
        for file in orphans:
            file.unlink(missing_ok=True)
        if vacuum:
            if not isinstance(store, SupportsVacuum):
                raise KeepholdError(
                    "only a store on a disk can be vacuumed; leave --vacuum out", code="unsupported_store"
                )
            await store.vacuum()
    return {
        "dry_run": dry_run,
        "before": ops[-1].before,
        **to_builtins(weight),
        "events": max(0, last - first),
        "files": len(orphans),
        "file_bytes": sum(orphans.values()),
        "bytes": max(0, size - await _disk_bytes(store)),
    }


def _ops(registry: Registry, older_than: float | None, now: float) -> list[Collected]:
    if older_than is not None:
        return [_op(now, older_than)]
    shorter = [
        _op(now, secs, kinds=WAIT_KINDS, statuses=(status,))
        for status, secs in registry.shorter.items()
        if secs < registry.retention
    ]
    return [*shorter, _op(now, registry.retention)]


def _op(now: float, secs: float, **which: Any) -> Collected:
    return Collected(math.nextafter(now - secs, math.inf), now, **which)  # includes what stopped at that very moment


async def _delete(registry: Registry, ops: Sequence[Collected]) -> Weight:
    weight = _NOTHING

    def seen(records: Sequence[Record]) -> None:
        nonlocal weight
        weight = _sum(weight, _weight(records))

    while True:
        async with registry.sole() as alone:
            if alone:
                for op in ops:
                    await registry.delete_expired(op, seen)
                return weight
        await asyncio.sleep(_AGAIN_SECS)


async def _weigh(registry: Registry, ops: Sequence[Collected]) -> Weight:
    """Return how much these would delete, one after the other. The last one deletes handles of any kind and status, the
    others those of one status each."""
    *shorter, longest = ops
    total = await _weight_of(registry.store, longest)
    for op in shorter:
        total = _sum(total, await _weight_of(registry.store, op))
        both = replace(longest, kinds=op.kinds, statuses=op.statuses)
        total = _sum(total, await _weight_of(registry.store, both), -1)
    return total


async def _weight_of(store: Store, op: Collected) -> Weight:
    if isinstance(store, SupportsWeighing):
        return await store.weigh(op)
    return _weight(await store.expiring(replace(op, limit=_MANY)))


def _weight(records: Sequence[Record]) -> Weight:
    spawned = sum(record.stateful for record in records)
    in_store, in_files = sum(map(in_the_store, records)), sum(map(in_a_file, records))
    return Weight(spawned, len(records) - spawned, in_store, in_files)


def _sum(one: Weight, other: Weight, sign: int = 1) -> Weight:
    return Weight(*(first + sign * second for first, second in zip(astuple(one), astuple(other), strict=True)))


_NOTHING = Weight(0, 0, 0, 0)


async def _first_after(store: Browse, before: float) -> int:
    """Return the number of the first event to keep: none older than `before`, at most `EVENTS_LIMIT`, but always the
    newest. Times grow with numbers."""
    low, high = await store.events_range()
    low = max(low, high - EVENTS_LIMIT + 1)
    while low < high:
        middle = (low + high) // 2
        found = await store.events(EventQuery(after=middle - 1, limit=1))
        if found and found[0].at < before:
            low = found[0].seq + 1
        else:
            high = middle
    return low


# Files


async def _orphans(store: Store) -> dict[Path, int]:
    """Return the output files whose handle is not in the store, and their sizes: it was never written, or its file
    could not be removed."""
    if store.directory is None or not store.directory.is_dir():
        return {}
    old: dict[Path, int] = {}
    for file in store.directory.iterdir():
        with suppress(OSError):  # it was just deleted
            facts = file.stat()
            if S_ISREG(facts.st_mode) and time.time() - facts.st_mtime > _YOUNG_SECS:
                old[file] = facts.st_size
    return {file: size for file, size in old.items() if await store.handle(file.name) is None}


async def _disk_bytes(store: Store) -> int:
    return await store.disk_bytes() if isinstance(store, SupportsVacuum) else 0
