"""Run functions that are not coroutines, and let them wait for coroutines.

The rules of the operations are plain functions, because on SQLite nothing is between them and the database. Here they
run in a greenlet. When they need the server, the greenlet hands an awaitable to the task that runs it, and continues
with the result.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


async def bridged(work: Callable[..., T], *arguments: Any) -> T:
    """Call the function. Inside it, `wait_for` may be used."""
    inside = greenlet(work)
    asked = inside.switch(*arguments)
    while not inside.dead:
        try:
            answer = await asked
        except BaseException as error:
            asked = inside.throw(error)
        else:
            asked = inside.switch(answer)
    return cast(T, asked)


def wait_for(awaitable: Awaitable[T]) -> T:
    """Wait in a function that `bridged` has called."""
    outside = getcurrent().parent
    assert outside is not None
    return cast(T, outside.switch(awaitable))
