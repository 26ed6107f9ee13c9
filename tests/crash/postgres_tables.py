"""The rows of a PostgreSQL store, read without keephold."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from keephold.store.postgres.address import address

PATIENCE = 60.0


@contextmanager
def rows_of(url: str) -> Iterator[Callable[[str], Iterable[Any]]]:
    """A function that runs queries, all at one moment: when the server has ended the sessions of the dead processes."""
    where = address(url)
    with asyncio.Runner() as runner:
        connection = runner.run(_connected(where.dsn, where.schema))
        try:
            yield lambda query: runner.run(connection.fetch(query))
        finally:
            runner.run(connection.close())


async def _connected(dsn: str, schema: str) -> Any:
    connection = await asyncpg.connect(dsn)
    sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1"
    async with asyncio.timeout(PATIENCE):
        while await connection.fetch(sessions, f"keephold {schema}"):  # noqa: ASYNC110 (a fact of the server)
            await asyncio.sleep(0.005)
    await connection.execute(f"SET search_path = {schema}; BEGIN ISOLATION LEVEL REPEATABLE READ")
    return connection
