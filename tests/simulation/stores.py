"""Stores that take their time: one that commits when it is told to, one that commits a pass of the loop later."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from keephold.store.base import Done, Failed, Op
from keephold.store.memory import MemoryStore

T = TypeVar("T")


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing, as the reads of a memory store do."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waited")


class HeldStore(MemoryStore):
    """Commits nothing until `release`. What it was given is in `held`, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.held: deque[tuple[Sequence[Op], Callable[[], None]]] = deque()
        self.on_hold = False

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        self.held.append((ops, partial(super().commit, ops, done, failed, keep=keep)))
        if not self.on_hold:
            self.release()

    def release(self, count: int | None = None) -> None:
        """Commit the oldest `count`, or all; what they lead to is held again while `on_hold`."""
        for _ in range(len(self.held) if count is None else count):
            if not self.held:
                return
            _, commit = self.held.popleft()
            commit()


class NextPassStore(MemoryStore):
    """Commits in the next pass of the loop, everything in order, as a store does that writes in groups."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Callable[[], None]] = []

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._waiting.append(partial(super().commit, ops, done, failed, keep=keep))

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for commit in waiting:
            commit()
