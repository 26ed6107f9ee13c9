"""Delete on demand what retention deletes by itself (S5), and what a crash left: output files without a handle and,
with `vacuum`, unused space in the store's file.

A runtime collects once a minute while it works. Use this for stores without a runtime, or to keep less.
"""

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.handles.registry import Registry
from keephold.store.base import EVENTS_LIMIT, WAIT_KINDS, Browse, Collected, Store, browsable

_MANY = 100_000
"""Handles that a dry run counts at most."""
_YOUNG_SECS = 3600.0
"""A file written to this recently may belong to a call that is not committed yet."""


async def collect(registry: Registry, *, older_than: float | None, dry_run: bool, vacuum: bool) -> dict[str, Any]:
    """Delete what stopped more than `older_than` seconds ago; None: as the runtime's retention says.

    Return what was deleted, or with `dry_run` what would be: `handles` (one-shot `calls` apart), `events`, `files` and
    their `file_bytes`, and `bytes`, by how much the store's own file has shrunk.
    """
    store, now = browsable(registry.store), registry.clock.now()
    ops = _ops(registry, older_than, now)
    size, (first, _) = _size(store), await store.events_range()
    gone = [record for op in ops for record in await _go(registry, op, dry_run=dry_run)]
    if not dry_run:
        await _go_on(registry, ops[-1])
    last = await _first_after(store, ops[-1].before) if dry_run else (await store.events_range())[0]
    orphans = await _orphans(store)
    bytes_of = sum(_size_of(file) for file in orphans)
    if not dry_run:
        for file in orphans:
            file.unlink(missing_ok=True)
        if vacuum:
            await _vacuum(store)
    handles = len({record.uid for record in gone if record.stateful})
    return {
        "dry_run": dry_run,
        "before": ops[-1].before,
        "handles": handles,
        "calls": len({record.uid for record in gone}) - handles,
        "events": max(0, last - first),
        "files": len(orphans),
        "file_bytes": bytes_of,
        "bytes": max(0, size - _size(store)),
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


async def _go(registry: Registry, op: Collected, *, dry_run: bool) -> Any:
    if not dry_run:
        return await registry.delete_expired(op)
    return await registry.store.expiring(Collected(op.before, op.at, _MANY, kinds=op.kinds, statuses=op.statuses))


async def _go_on(registry: Registry, op: Collected) -> None:
    """Repeat until no event is deleted, since a pass deletes only some."""
    store = browsable(registry.store)
    first, before = (await store.events_range())[0], -1
    while first != before:
        await registry.write((replace(op, only=()),), keep=False)
        first, before = (await store.events_range())[0], first


async def _first_after(store: Browse, before: float) -> int:
    """Return the number of the first event to keep: none older than `before`, at most `EVENTS_LIMIT`, but always the
    newest. Times grow with numbers."""
    low, high = await store.events_range()
    low = max(low, high - EVENTS_LIMIT + 1)
    while low < high:
        middle = (low + high) // 2
        found = await store.events(after=middle - 1, limit=1)
        if found and found[0].at < before:
            low = found[0].seq + 1
        else:
            high = middle
    return low


# Files


async def _orphans(store: Store) -> list[Path]:
    """Return the output files whose handle is not in the store: it was never written, or its file could not be
    removed."""
    if store.directory is None or not store.directory.is_dir():
        return []
    old = [file for file in store.directory.iterdir() if file.is_file() and _age(file) > _YOUNG_SECS]
    return [file for file in old if await store.handle(file.name) is None]


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except OSError:  # it was just deleted
        return 0.0


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _size(store: Store) -> int:
    path = getattr(store, "path", None)  # only a store in a file has one
    return 0 if path is None else sum(_size_of(Path(f"{path}{end}")) for end in ("", "-wal"))


async def _vacuum(store: Store) -> None:
    """Rewrite the store's file without unused space. Other writers wait meanwhile."""
    path = getattr(store, "path", None)
    if path is None:
        raise KeepholdError("only a store in a file can be vacuumed; leave --vacuum out", code="unsupported_store")
    with ThreadPoolExecutor(1) as thread:  # a thread of the loop's own pool would stay
        await asyncio.get_running_loop().run_in_executor(thread, _rewrite, path)


def _rewrite(path: Path) -> None:
    import apsw

    from keephold.store.sqlite.opening import connect
    from keephold.store.sqlite.processes import Turnstile

    connection, turnstile = connect(path), Turnstile(path)
    try:
        with turnstile:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.Error as error:
        raise KeepholdError(
            f"store `{path}` could not be vacuumed: {error}; it is as it was. It takes as much room on the disk again",
            code="store_unavailable",
        ) from error
    finally:
        turnstile.close()
        connection.close(True)
