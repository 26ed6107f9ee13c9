"""A store of version 0.1 with queued news: after its migration that news is as good as any (N4–N6)."""

import shutil
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fixtures.make import HERE
from tests.unit.sqlite_stores import NOON, commit, opened, uid

from keephold.store.base import (
    CARRIERS,
    NOTIFICATION_LIMIT,
    Answers,
    Delivered,
    Notified,
    QueuedNotification,
    TakenBack,
)
from keephold.store.sqlite import SqliteStore
from keephold.store.sqlite.statements import APPLICATION_ID, migrations


def first_version(path: Path, queued: int) -> None:
    """A store as 0.1 made it, with that much news in `main` and one in `other`."""
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", APPLICATION_ID)
    connection.execute(migrations()[1])
    connection.pragma("user_version", 1)
    connection.execute("INSERT INTO secrets (id, secret, at) VALUES ('s', x'00', ?)", (time.time(),))
    insert = "INSERT INTO notifications (conversation, kind, level, message, at, uid) VALUES (?, ?, ?, ?, ?, ?)"
    for number in range(queued):
        level = "error" if number % 2 else "info"
        connection.execute(insert, ("main", "tool.stopped", level, str(number), NOON + number, uid(number)))
    connection.execute(insert, ("other", "tool.stopped", "info", "x", NOON, None))
    connection.execute("INSERT INTO batches VALUES ('main', 't', 1, '[]', '[[\"a\",\"r\",\"m\",false,null]]')")
    connection.pragma("journal_mode", "wal")
    connection.close()


async def told(store: SqliteStore, number: int) -> None:
    await commit(store, Notified("main", "k.n", "info", f"new {number}", NOON, None, ("turn",)))


async def test_N5_queued_news_of_the_first_version_is_delivered(tmp_path: Path) -> None:
    first_version(tmp_path / "store.db", 3)
    async with opened(tmp_path / "store.db") as store:
        await told(store, 1)
        await commit(store, TakenBack("main", ((uid(1), "stopped"),)))
        queued = await store.notifications("main")
        assert queued[0] == QueuedNotification(1, "main", "tool.stopped", "info", "0", NOON, uid(0), CARRIERS)
        assert [news.message for news in queued] == ["0", "2", "new 1"]
        assert queued[-1].number == 5, "after the one of the other conversation"
        assert await commit(store, Delivered("main", "response")) == [tuple(queued[:2])]
        assert await commit(store, Delivered("main", "turn")) == [tuple(queued[2:])]
        assert await store.notifications("main") == [] and len(await store.notifications("other")) == 1
        assert await store.answers("main", "t", 1) == Answers((("a", "r", "m", False, None),))


@pytest.mark.parametrize("queued", [NOTIFICATION_LIMIT - 1, NOTIFICATION_LIMIT, 2 * NOTIFICATION_LIMIT])
@pytest.mark.slow
async def test_N6_what_the_first_version_queued_counts(tmp_path: Path, queued: int) -> None:
    """It knew no bound: what is too much goes with the next news, the oldest that matters least first."""
    first_version(tmp_path / "store.db", queued)
    async with opened(tmp_path / "store.db") as store:
        assert len(await store.notifications("main", 10_000)) == queued, "nothing goes before that"
        await told(store, 1)
        surplus = queued + 1 - NOTIFICATION_LIMIT
        line, *kept = await store.notifications("main", 10_000)
        if surplus:
            gone = "1 earlier notification was" if surplus == 1 else f"{surplus} earlier notifications were"
            assert line.message == f"{gone} dropped."
        else:
            kept.insert(0, line)
        assert len(kept) == NOTIFICATION_LIMIT
        unimportant = queued // 2 + queued % 2 + 1  # the new one, too
        assert sum(news.level == "info" for news in kept) == max(unimportant - surplus, 0)


async def test_N5_the_store_of_the_first_version_has_queued_news(tmp_path: Path) -> None:
    copy = shutil.copytree(HERE / "0.1", tmp_path / "copy")
    async with opened(copy / "store.db") as store:
        for conversation, kind in (("news", "tool.stopped"), ("revoked", "tool.failed")):
            (queued,) = await store.notifications(conversation)
            assert (queued.kind, queued.carriers) == (kind, CARRIERS)
            assert await commit(store, Delivered(conversation, "message")) == [(queued,)]
    async with opened(copy / "store.db") as store:
        assert await store.notifications("news") == [] == await store.notifications("revoked")


async def test_N6_the_database_counts_what_waits(tmp_path: Path) -> None:
    """A queue that is empty leaves nothing behind, however it became so."""
    path = tmp_path / "store.db"
    async with opened(path) as store:
        for number in range(NOTIFICATION_LIMIT + 2):
            await told(store, number)
        assert _counted(path) == [("main", NOTIFICATION_LIMIT, 2)]
        await commit(store, Delivered("main", "response"))  # the line only
        assert _counted(path) == [("main", NOTIFICATION_LIMIT, 0)]
        await told(store, 0)
        await commit(store, Delivered("main", "turn"))
        assert _counted(path) == []
        await commit(store, Notified("main", "tool.content", "info", "x", NOON, uid(1)))
        await commit(store, Notified("main", "tool.content", "info", "y", NOON, uid(1)))
        assert _counted(path) == [("main", 1, 0)]
        await commit(store, TakenBack("main", ((uid(1), "running"),)))
        assert _counted(path) == []


def _counted(path: Path) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute("SELECT conversation, waiting, dropped FROM queues").fetchall()
    finally:
        connection.close()
