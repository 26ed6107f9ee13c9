"""Lists that are in no index are read beside the loop: what else is asked is answered meanwhile."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.patience import PATIENCE
from tests.unit.sqlite_stores import commit, opened, registered, uid

from keephold import KeepholdError
from keephold.store.base import HandleQuery
from keephold.store.sql.listing import scans
from keephold.store.sqlite import SqliteStore
from keephold.store.sqlite.opening import reader

LONG = "SELECT hold()"


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What ends a long query."""
    over = threading.Event()

    def connect(path: Path) -> apsw.Connection:
        connection = reader(path)
        connection.create_scalar_function("hold", lambda *_: over.wait(PATIENCE), 0)
        return connection

    monkeypatch.setattr("keephold.store.sqlite.opening.reader", connect)
    return over


@pytest.mark.parametrize(
    ("asked", "looks_at_all"),
    [
        ({}, False),
        ({"conversation": "main", "kind": "hook", "status": "pending", "metadata": {}}, False),
        ({"state": "stopped", "sort": "stopped"}, False),
        ({"search": "x"}, True),
        ({"conversation": "main", "search": "x"}, True),
        ({"tool": "deploy"}, True),
        ({"kind": "agent"}, True),
        ({"status": "failed"}, True),
        ({"metadata": {"a": 1}}, True),
        ({"sort": "stopped"}, True),
        ({"state": "stopped", "sort": "stopped", "stateful": None}, True),
        ({"sort": "tool"}, True),
        ({"conversation": "main", "sort": "id"}, True),
    ],
)
def test_L3_what_is_in_no_index_is_known(asked: dict[str, Any], looks_at_all: bool) -> None:
    assert scans(HandleQuery(**asked)) is looks_at_all


async def filled(store: SqliteStore) -> None:
    await commit(store, *(registered(number, tool=f"tool{number % 2}") for number in range(10)))


async def test_L3_the_loop_goes_on_while_a_list_is_looked_for(tmp_path: Path, release: threading.Event) -> None:
    async with opened(tmp_path / "store.db") as store:
        await filled(store)
        long = asyncio.create_task(store._scanner.rows(LONG, ()))
        await asyncio.sleep(0)
        lists = [
            asyncio.create_task(store.handles(HandleQuery(search="H7"))),
            asyncio.create_task(store.handles(HandleQuery(sort="tool"))),
        ]
        await asyncio.sleep(0)
        assert len(await store.handles()) == 10 and await store.handle(uid(3)) is not None
        await commit(store, registered(10, id="h70"))
        assert not long.done() and not any(each.done() for each in lists), "all of this was answered before it"
        release.set()
        found, in_order = await asyncio.gather(*lists)
        assert [each.id for each in found] == ["h7", "h70"], "what was committed before it began is in it"
        assert [each.tool for each in in_order] == ["deploy"] + ["tool0"] * 5 + ["tool1"] * 5
        assert await long == [(1,)]


async def test_who_goes_away_or_closes_the_store_leaves_nothing_behind(
    tmp_path: Path, release: threading.Event
) -> None:
    async with opened(tmp_path / "store.db") as store:
        await filled(store)
        long = asyncio.create_task(store._scanner.rows(LONG, ()))
        gone = asyncio.create_task(store.handles(HandleQuery(search="h")))
        late = asyncio.create_task(store.handles(HandleQuery(search="h")))
        await asyncio.sleep(0)
        gone.cancel()
        closing = asyncio.create_task(store.close())
        release.set()
        assert len(await late) == 10, "it was asked before the store was closed"
        assert gone.cancelled() and long.done()
        await closing
        with pytest.raises(KeepholdError) as error:
            await store.handles(HandleQuery(search="h"))
        assert error.value.code == "store_unavailable"
    assert not [each for each in tmp_path.iterdir() if each.name.endswith(("-wal", "-shm"))], "no connection is open"


async def test_a_list_that_cannot_be_read_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await filled(store)
        with pytest.raises(KeepholdError) as error:
            await store._scanned("SELECT * FROM nowhere", ())
        assert error.value.code == "store_unavailable" and "nowhere" in error.value.message
        assert len(await store.handles(HandleQuery(search="h"))) == 10
