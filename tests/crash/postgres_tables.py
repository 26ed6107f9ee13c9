"""The rows of a PostgreSQL store, read without keephold, and a new store. A test may have a loop of its own, so the
work is done on another thread."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import asyncpg

from keephold.store.postgres.address import Address, address
from keephold.store.postgres.store import PostgresStore

PATIENCE = 60.0


@contextmanager
def rows_of(url: str) -> Iterator[Callable[[str], Iterable[Any]]]:
    """A function that runs queries, all at one moment: when the server has ended the sessions of the dead processes."""
    where = address(url)
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        runner = asyncio.Runner()
        stack.callback(lambda: thread.submit(runner.close).result())

        def run(work: Coroutine[Any, Any, Any]) -> Any:
            return thread.submit(runner.run, work).result()

        connection = run(_connected(where))
        try:
            yield lambda query: run(connection.fetch(query))
        finally:
            run(connection.close())


def prepared(url: str) -> None:
    """Make the store: a child that is killed too early would leave none to look at."""

    async def make() -> None:
        store = PostgresStore(url)
        await store.open(lambda _: None)
        await store.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, make()).result()


async def _connected(where: Address) -> Any:
    ((host, port),) = where.servers
    connection = await asyncpg.connect(where.dsn, host=host, port=port)
    sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1"
    async with asyncio.timeout(PATIENCE):
        while await connection.fetch(sessions, f"keephold {where.schema}"):  # noqa: ASYNC110 (a fact of the server)
            await asyncio.sleep(0.005)
    await connection.execute(f"SET search_path = {where.schema}; BEGIN ISOLATION LEVEL REPEATABLE READ")
    return connection
