"""One thing after another: what is put in is done in that order, each when the one before has finished."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Job: TypeAlias = Callable[[], Awaitable[Any] | None]

_log = logging.getLogger(__name__)


class Ordered:
    """A queue of functions, plain or asynchronous. One that raises is logged and stops nothing.

    A task does the work while there is some.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    def put(self, job: Job) -> None:
        """Have it done after everything that was put before."""
        if self._closed:
            return
        self._jobs.append(job)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def reached(self) -> None:
        """Return when everything has been done that had been put when this was called."""
        await self.place()

    def place(self) -> asyncio.Future[None]:
        """A future that is done when everything has been done that was put before."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            place.cancel()
        self.put(lambda: None if place.done() else place.set_result(None))
        return place

    async def _work(self) -> None:
        try:
            while self._jobs:
                await _do(self._jobs.popleft())
        finally:
            self._worker = None

    async def close(self) -> None:
        """Do no more. What is being done is cancelled, unless it is what calls this."""
        self._closed = True
        self._jobs.clear()
        worker = self._worker
        if worker is not None and worker is not asyncio.current_task():
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def _do(job: Job) -> None:
    try:
        doing = job()
        if inspect.isawaitable(doing):
            await doing
    except Exception:
        _log.exception("a handler failed; the next update is handled all the same")
