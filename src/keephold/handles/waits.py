"""Waiting for handles: one mechanism under `await`, `rt.wait` and the wait tools (A2, A6, A7, A9, W3).

A wait is a few groups, each a countdown over its handles: all of them, any one of them, the first that succeeds. A
handle that stops touches its own waits and nothing else. A condition is a group of one handle that counts it earlier:
when its output matches, or when it is ready. A wait ends for one of two reasons: every group is satisfied,
or all handles it still needs are blocked on the caller, who would otherwise wait for itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal

from keephold.errors import ToolError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.matching import Search
from keephold.handles.patterns import Pattern
from keephold.handles.state import Failure, Stopped


class Group:
    """Satisfied when `need` of its handles have stopped (`success`: stopped ok), or when no handle is left."""

    __slots__ = ("handles", "left", "need", "success")

    def __init__(self, handles: Iterable[Handle], need: int | None = None, *, success: bool = False) -> None:
        self.handles = tuple(dict.fromkeys(handles))
        self.left = len(self.handles)
        self.need = self.left if need is None else need
        self.success = success

    @property
    def satisfied(self) -> bool:
        return self.need <= 0 or self.left == 0

    def count(self, handle: Handle) -> None:
        self.left -= 1
        if not self.success or not _failed(handle):
            self.need -= 1


class OutputCondition(Group):
    """Satisfied when a line of the handle's output matches, or when the handle has stopped (A9)."""

    __slots__ = ("_then", "search")

    def __init__(self, handle: Handle, pattern: Pattern) -> None:
        super().__init__((handle,))
        self.search = Search(pattern, lambda: handle.output, self._looked)
        self._then: Callable[[], None] | None = None

    def begin(self, then: Callable[[], None]) -> None:
        """Search the output so far; call `then` when the search has found something or has caught up."""
        self._then = then
        self.search.printed()

    def _looked(self) -> None:
        if self.search.matched is not None:
            self.need = 0
        if self._then is not None:
            self._then()


class ReadyCondition(Group):
    """Satisfied when the handle is ready, or has stopped (A9)."""

    __slots__ = ()

    def __init__(self, handle: Handle) -> None:
        super().__init__((handle,), 0 if handle.ready else 1)


def ready_of(handle: Handle) -> Group:
    """The handle is ready or has stopped. Raises `ToolError` if its tool does not say when it is ready."""
    known = not getattr(handle.tool.runtime, "absent", False)  # else the process that runs it knows
    if handle.active and known and handle.tool.spawn.ready is None:
        raise ToolError(
            f"Handle `{handle.id}` cannot become ready: tool `{handle.tool.name}` has no `spawn.ready` setting. Wait "
            f'for a line that it prints with `output`: {{"{handle.id}": "<regex>"}}.',
            code="invalid_arguments",
        )
    return ReadyCondition(handle)


def all_of(handles: Iterable[Handle]) -> Group:
    """Every handle has stopped."""
    return Group(handles)


def any_of(handles: Iterable[Handle]) -> Group:
    """One has stopped, no matter how; also `race`: `Wait.settled` has the order."""
    return Group(handles, 1)


def first_success(handles: Iterable[Handle]) -> Group:
    """One has stopped ok, or all have failed."""
    return Group(handles, 1, success=True)


def groups_of(
    found: Mapping[str, Handle],
    all: Sequence[str],
    any: Sequence[str],
    output: Sequence[tuple[str, Pattern]] = (),
    ready: Sequence[str] = (),
) -> list[Group]:
    """Return the groups of an `await` (A2, A9); `found` has the handles by the names that the others use."""
    groups = [all_of(found[id] for id in all)] if all else []
    if any:
        groups.append(any_of(found[id] for id in any))
    groups += [OutputCondition(found[id], pattern) for id, pattern in output]
    groups += [ready_of(found[id]) for id in ready]
    return groups


class Wait(Watcher):
    """Watches handles until its groups are satisfied or all are blocked, then calls `done`."""

    __slots__ = (
        "_already_handled", "_begun", "_done", "_groups", "_line", "_of", "_on_progress", "_on_released", "conditions",
        "reason", "settled",
    )  # fmt: skip
    wants_reading = True
    """A wait ends when all handles it needs are blocked on the caller, so it needs to know who reads its input (C4)."""
    awaits = True

    def __init__(
        self,
        groups: Sequence[Group],
        done: Callable[["Wait"], None],
        *,
        already_handled: Container[str] = (),
        on_progress: Callable[[Handle], None] | None = None,
        on_released: Callable[[Handle, Search], None] | None = None,
    ) -> None:
        """`already_handled`: uids of handles that do not count as blocked, because other calls of the batch name them.
        `on_progress` is called with each handle that reports progress, `on_released` with each search in the output of
        a handle that another process takes over."""
        self._on_progress = on_progress
        self._on_released = on_released
        self._groups = groups
        self.conditions = [group for group in groups if isinstance(group, OutputCondition)]
        self._begun = False
        self._done = done
        self._already_handled = already_handled
        self._of: dict[Handle, list[Group]] = {}
        self.reason: Literal["satisfied", "needs_input"] | None = None
        self.settled: list[Handle] = []
        """Handles that stopped, in that order."""
        for group in groups:
            for handle in group.handles:
                self._of.setdefault(handle, []).append(group)
        self._line = deque(self._of)
        """The order in which to search for a handle that keeps the wait going; the last one found comes first."""

    def begin(self) -> None:
        """Count handles that have stopped already and watch the rest. May call `done` before it returns."""
        over = [handle for handle in self._of if isinstance(handle.state, Stopped)]
        for handle in sorted(over, key=_stopped_at):
            for group in self._of.pop(handle):
                group.count(handle)
            self.settled.append(handle)
        for handle in self._of:
            handle.watch(self)
        for condition in self.conditions:
            if condition.left:
                condition.begin(self._looked)
        self._begun = True
        self._check()

    def cancel(self) -> None:
        """Stop watching. `done` is not called any more."""
        for handle in self._of:
            handle.unwatch(self)
        self._of = {}
        for condition in self.conditions:
            condition.search.cancel()

    def stopped(self, handle: Handle) -> None:
        groups = self._of.pop(handle, None)
        if groups is not None:
            for group in groups:
                group.count(handle)
            if self.conditions:
                self._give_up(handle)
            self.settled.append(handle)
            self._check()

    def _give_up(self, handle: Handle) -> None:
        """Search the output of a handle no further: it has stopped."""
        for condition in self.conditions:
            if handle in condition.handles:
                condition.search.cancel()

    def handle_changed(self, handle: Handle) -> None:
        if handle in self._of:
            self._check()

    def printed(self, handle: Handle) -> None:
        for condition in self.conditions:
            if handle in condition.handles:
                condition.search.printed()

    def has_printed(self, handle: Handle, total: int) -> None:
        for condition in self.conditions:
            if handle in condition.handles:
                condition.search.expected = total

    def _looked(self) -> None:
        if self._begun:
            self._check()

    def became_ready(self, handle: Handle) -> None:
        for group in self._of.get(handle, ()):
            if isinstance(group, ReadyCondition):
                group.need = 0
        self._check()

    def released(self, handle: Handle) -> None:
        for condition in self.conditions:
            if handle in condition.handles and condition.search.matched is None and self._on_released is not None:
                self._on_released(handle, condition.search)

    def progressed(self, handle: Handle) -> None:
        if self._on_progress is not None:
            self._on_progress(handle)

    @property
    def matched(self) -> dict[str, tuple[str, ...]]:
        """By uid: the lines of live handles that matched (A9)."""
        lines: dict[str, tuple[str, ...]] = {}
        for condition in self.conditions:
            (handle,) = condition.handles
            if condition.search.matched is not None and handle.active:
                lines[handle.uid] = (*lines.get(handle.uid, ()), condition.search.matched)
        return lines

    @property
    def satisfied(self) -> bool:
        return all(group.satisfied for group in self._groups)

    def _check(self) -> None:
        if self.reason is not None:
            return
        for group in self._groups:  # as `satisfied`, without a call: this is on the path of every stop
            if group.need > 0 and group.left > 0:
                if self._all_blocked():
                    self.reason = "needs_input"
                    self._done(self)
                return
        self.reason = "satisfied"
        if self._of:
            self.cancel()
        self._done(self)

    def recheck(self) -> bool:
        """Return True if `needs_input` is no longer the reason; then the wait continues and `done` will be called
        again."""
        if self.reason != "needs_input" or self.satisfied or self._all_blocked():
            return False
        self.reason = None
        return True

    def _all_blocked(self) -> bool:
        # One needed handle that is not blocked keeps the wait going. It stays first in the queue, so that most
        # stops cost one check and not one for each live handle. (Iterating over `_of` would: a dict whose first
        # keys were removed is walked from where they were.)
        line = self._line
        for _ in range(len(line)):
            if self._keeps_going(line[0]):
                return False
            line.rotate(-1)
            if line[-1] not in self._of:
                line.pop()
        return True

    def _keeps_going(self, handle: Handle) -> bool:
        groups = self._of.get(handle, ())
        if self.conditions and any(isinstance(group, OutputCondition) and group.search.behind for group in groups):
            return True
        return any(not group.satisfied for group in groups) and not handle.blocked_on_caller(self._already_handled)


def _failed(handle: Handle) -> bool:
    return isinstance(handle.state, Stopped) and isinstance(handle.state.outcome, Failure)


def _stopped_at(handle: Handle) -> float:
    assert isinstance(handle.state, Stopped)
    return handle.state.stopped


async def all_stopped(handles: Sequence[Handle]) -> None:
    """Wait until all of these ended handles have stopped."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    everyone = {handle.uid for handle in handles}
    wait = Wait([all_of(handles)], lambda _: None if over.done() else over.set_result(None), already_handled=everyone)
    wait.begin()
    try:
        await over
    finally:
        wait.cancel()
