"""The WAL cut anywhere in its tail (R4, D5, E2): a store opens to a state that was once true.

A power cut may leave any part of what was being written: less of the file, or a file of the right length whose end was
never filled. Every commit before that is there, nothing of the one that was cut, and the next process can go on.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from tests.soak import SOAK
from tests.unit.sqlite_stores import NOON, commit, end, line, opened, registered, uid

from keephold.store.base import (
    Claimed,
    Emitted,
    Op,
    Opened,
    Parked,
    Parking,
    Resolution,
    Resolved,
    Responded,
    TurnBegan,
    WaitOpened,
)
from keephold.store.sqlite import SqliteStore
from keephold.store.sqlite.reads import Reads

HEADER, FRAME, PAGE = 32, 24, 4096
"""Bytes of what a WAL begins with, of what each of its frames begins with, and of the page in it."""
CALLS = (("c", "deploy", {"env": "production"}, uid(4)),)
COMMITS: tuple[tuple[Op, ...], ...] = (
    (TurnBegan("main", "t1", NOON), registered(1), Emitted(uid(1), "began", 1, NOON)),
    (line(1, "first"), line(1, "second")),
    (registered(2), WaitOpened(uid(2), 1, "key-2", "completion", "", "s")),
    (Parked(uid(2), 1, Parking(deadline=NOON + 60), NOON + 2),),
    (Opened("main", "t1", 1, CALLS), registered(4), Emitted(uid(1), "opened", 2, NOON)),
    (Responded("main", "t1", 1, (("c", "result", "model", False, None),), ((uid(4), 3),)), end(4)),
    (Resolved("key-2", Resolution("ok", {"large": "x" * 9000}), NOON + 30),),
    (line(1, "third", b'"' + b"y" * 5000 + b'"'), Emitted(uid(1), "stepped", 3, NOON)),
    (line(1, "fourth"),),
)
"""The last ones are those that are cut: a resolution that ends a call, a step with an event, a bare step."""
LAST = 3


class Written(NamedTuple):
    """A store that was copied while it was open, and how it was after each of its commits."""

    path: Path
    states: list[dict[str, Any]]
    sizes: list[int]
    """Of the WAL."""

    @property
    def wal(self) -> Path:
        return Path(f"{self.path}-wal")

    def state_at(self, length: int) -> int:
        """The number of the state that so much of the WAL holds."""
        return sum(size <= length for size in self.sizes) - 1


async def write(directory: Path) -> Written:
    path, copy = directory / "made" / "store.db", directory / "left" / "store.db"
    states, sizes = [], []
    async with opened(path) as store:
        for ops in ((), *COMMITS):
            if ops:
                await commit(store, *ops)
            states.append(await everything(store))
            sizes.append(Path(f"{path}-wal").stat().st_size)
        copy.parent.mkdir()
        for file in (path, Path(f"{path}-wal")):
            shutil.copy(file, copy.parent)
    assert sorted(sizes) == sizes and len(set(sizes)) == len(sizes), "every commit has made the WAL longer"
    assert all(states.count(state) == 1 for state in states)
    return Written(copy, states, sizes)


async def everything(store: Reads) -> dict[str, Any]:
    """All that was committed."""
    calls = await store.handles()
    found: dict[str, Any] = {each.uid: each for each in calls}
    for each in calls:
        found[f"journal of {each.uid}"] = await store.journal(each.uid)
        found[f"waits of {each.uid}"] = await store.waits(each.uid)
    found["events"] = await store.process_events(uid(1))
    found["what happened"], found["kept"] = await store.events(), await store.events_range()
    found["turn"], found["answers"] = await store.turn("main"), await store.answers("main", "t1", 1)
    found["news"], found["due"] = await store.notifications("main"), await store.due(NOON + 100)
    return found


class Look(Reads):
    """Reads what is there and leaves it as it is."""

    def __init__(self, path: Path) -> None:
        self._reading = apsw.Connection(str(path))
        self._reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def close(self) -> None:
        assert self._reading is not None
        self._reading.close()


async def look(path: Path) -> dict[str, Any]:
    Path(f"{path}-shm").unlink(missing_ok=True)
    with closing(Look(path)) as found:
        return await everything(found)


def lengths(written: Written) -> Iterator[int]:
    """Where to cut, from the end on."""
    whole, first = written.sizes[-1], written.sizes[-1 - LAST]
    some = set(range(whole, first - 1, -1 if SOAK else -203))  # with SOAK at every byte, which takes minutes
    yield from sorted(some | set(edges(first, whole)), reverse=True)


def edges(first: int, whole: int) -> Iterator[int]:
    """Where a frame's header begins or its page does, and a byte to either side."""
    assert (whole - HEADER) % (FRAME + PAGE) == 0, "it is of whole frames"
    for frame in range(HEADER, whole + 1, FRAME + PAGE):
        yield from (at for edge in (frame, frame + FRAME) for at in range(edge - 1, edge + 2) if first <= at <= whole)


@pytest.mark.timeout(1200 if SOAK else 240)
async def test_R4_whatever_is_left_of_the_wal_holds_the_commits_before_it(tmp_path: Path) -> None:
    written = await write(tmp_path)
    for length in lengths(written):
        os.truncate(written.wal, length)
        number = written.state_at(length)
        assert await look(written.path) == written.states[number], f"{length} bytes should hold {number} commits"
        assert written.wal.stat().st_size == length


@pytest.mark.parametrize("filled", [b"\0", b"\xa5"])
async def test_R4_a_wal_whose_end_was_never_filled(tmp_path: Path, filled: bytes) -> None:
    written = await write(tmp_path)
    whole = written.sizes[-1]
    for length in range(whole - 1, written.sizes[-1 - LAST] - 1, -7 if SOAK else -203):
        with written.wal.open("r+b") as wal:
            wal.seek(length)
            wal.write(filled * (whole - length))
        found, number = await look(written.path), written.state_at(length)
        # What was to be written may be what is there: then nothing is missing.
        assert found in written.states[number : number + 2], f"{length} bytes should hold {number} commits"


@pytest.mark.parametrize("missing", [1, 100, 4096, 4120, 5000, 20_000])
async def test_R4_the_next_process_goes_on_from_there(tmp_path: Path, missing: int) -> None:
    written = await write(tmp_path)
    length = written.sizes[-1] - missing
    os.truncate(written.wal, length)
    before = written.states[written.state_at(length)]
    for life in range(2):
        async with opened(written.path) as store:
            if not life:
                assert await everything(store) == before
                await _go_on(store)
                before = await everything(store)
            else:
                assert await everything(store) == before


async def _go_on(store: SqliteStore) -> None:
    """The dead process' call is claimed, and what was lost is recorded anew."""
    call = await store.handle(uid(1))
    assert call is not None and call.owner != store.owner
    (claimed,) = await commit(store, Claimed(uid(1), call.owner))
    assert claimed.fence == 2
    recorded = {entry.name for entry in await store.journal(uid(1))}
    for name in ("third", "fourth"):
        if name not in recorded:
            await commit(store, line(1, name, fence=2), Emitted(uid(1), name, None, NOON))
    assert [entry.name for entry in await store.journal(uid(1))] == ["first", "second", "third", "fourth"]
    events = [event.sequence for event in await store.process_events(uid(1))]
    assert events == list(range(1, len(events) + 1))
