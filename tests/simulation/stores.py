"""Stores that take their time: one that commits when it is told to, one that commits a pass of the loop later."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.store.base import Op


class HeldStore:
    """Commits nothing until `release`. What it was given is in `held`, in order."""

    def __init__(self) -> None:
        self.held: deque[tuple[Sequence[Op], Callable[[], None]]] = deque()
        self.holding = False

    def commit(self, ops: Sequence[Op], done: Callable[[], None]) -> None:
        self.held.append((ops, done))
        if not self.holding:
            self.release()

    def release(self, count: int | None = None) -> None:
        """Commit the oldest `count`, or all; what they lead to is held again while `holding`."""
        for _ in range(len(self.held) if count is None else count):
            if not self.held:
                return
            _, done = self.held.popleft()
            done()


class NextPassStore:
    """Commits in the next pass of the loop, everything in order, as a store does that writes in groups."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def commit(self, ops: Sequence[Op], done: Callable[[], None]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._waiting.append(done)

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()
