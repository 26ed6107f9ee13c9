"""A conversation's handles, as a tool or a batch sees them: find, list, wait (B8, `call.handles`)."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle, HandleInfo, Watcher
from keephold.handles.matching import Search
from keephold.handles.observing import NOTHING
from keephold.handles.patterns import Pattern, compiled
from keephold.handles.waits import Group, OutputCondition, Wait, groups_of

if TYPE_CHECKING:
    from keephold.handles.registry import Registry


_Times = list[float]
Conditions = Mapping[str, str] | Sequence[Mapping[str, str]]
"""Which lines to wait for: patterns by id, or objects of `id` and `pattern`, for several patterns of one handle."""
_MOST_CONDITIONS = 64
_FIRST_SECS = 1.0
"""How long a wait without patience waits for the facts of other processes."""


def conditions(given: Conditions | None) -> list[tuple[str, Pattern]]:
    """Return ids and their patterns (A9). Raises `ToolError` for a pattern that RE2 refuses."""
    if isinstance(given, Mapping):
        given = [{"id": id, "pattern": pattern} for id, pattern in given.items()]
    given = given or ()
    if len(given) > _MOST_CONDITIONS:  # before they are compiled, which takes milliseconds each
        raise ToolError(
            f"{len(given)} patterns; at most {_MOST_CONDITIONS} are taken at once. Join alternatives with `|`.",
            code="invalid_arguments",
        )
    read = []
    for each in given:
        try:
            read.append((each["id"], compiled(each["pattern"])))
        except ValueError as error:
            raise ToolError(
                f"the pattern for handle `{each['id']}` is not a regular expression (RE2 syntax): {error}",
                code="invalid_arguments",
            ) from None
    return read


class Waited(msgspec.Struct, frozen=True):
    """The result of a wait."""

    handles: tuple[Handle, ...]
    """Each handle once, in the order first named."""
    timed_out: bool = False
    needs_input: bool = False
    first: Handle | None = None
    """The handle that stopped first, if one did."""
    matched: Mapping[str, tuple[str, ...]] | None = None
    """By uid: the lines of output that matched, in the order of the conditions (A9)."""


class WaitQuery(NamedTuple):
    """The groups of a wait, and all their handles."""

    groups: Sequence[Group]
    handles: tuple[Handle, ...]
    """Each handle once, in the order first named."""
    timeout: float | None
    on_progress: Callable[[Handle], None] | None = None
    """Called with each handle that reports progress."""


class Patience(NamedTuple):
    """How long the tools of a call may wait (M7)."""

    longest: float | None = None
    """Seconds after which the client gives up, so that a tool that waits returns before; None: it does not."""
    unknown: float = 0.0
    """Seconds for which an unknown id is waited for: over HTTP no batch orders the calls, so the call that spawns it
    may come next."""


PATIENT = Patience()


class Handles:
    """The handles of one conversation. `already_handled`: uids that other calls of the same batch name (A6)."""

    __slots__ = ("_patience", "_registry", "already_handled", "conversation")

    def __init__(
        self,
        registry: "Registry",
        conversation: str,
        already_handled: Container[str] = (),
        patience: Patience = PATIENT,
    ) -> None:
        self._registry = registry
        self.already_handled = already_handled
        self.conversation = conversation
        self._patience = patience

    def within(self, timeout: float | None) -> float | None:
        """Return how long a tool may wait: as long as it was asked to, and not longer than the client does."""
        given = [each for each in (timeout, self._patience.longest) if each is not None]
        return min(given, default=None)

    def named(self, id: str) -> Handle:
        """Return the newest handle of an id that is loaded because the batch names it. Raises like `find`."""
        return self._registry.find(id, self.conversation)

    async def find(self, id: str) -> Handle:
        """Return the newest handle of that id. Raises `ToolError` if there is none, or only its tombstone."""
        await self._registry.load(self.conversation, (id,))
        return self.named(id)

    async def arrive(self, ids: Sequence[str]) -> None:
        """Wait a moment for handles of unknown ids, as the call's `Patience` says. Loads no handle that is loaded."""
        registry, conversation, came = self._registry, self.conversation, asyncio.Event()
        if not self._patience.unknown or not (unknown := self._unknown(ids)):
            return
        await registry.load(conversation, unknown)
        if not (unknown := self._unknown(unknown)):
            return

        def follow(_: Handle) -> None:
            came.set()

        registry.follow(conversation, follow)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.unknown):
                    while self._unknown(unknown):
                        await came.wait()
                        came.clear()
        finally:
            registry.unfollow(conversation, follow)
        await registry.load(conversation, self._unknown(unknown))  # another process may have made them

    def _unknown(self, ids: Sequence[str]) -> "Sequence[str]":
        known = self._registry.conversation(self.conversation)
        return [id for id in ids if id not in known.names and id not in known.expired]

    async def find_call(self, call_id: str) -> Handle:
        """Return the newest one-shot call of that label."""
        return await self._registry.find_call(call_id, self.conversation)

    async def list(self, limit: int = 1000) -> "list[HandleInfo]":
        """Return spawned handles, oldest first."""
        return await self._registry.page(conversation=self.conversation, limit=limit)

    async def wait(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        output: Conditions = (),
        ready: Sequence[str] = (),
        timeout: float | None = None,
        on_progress: Callable[[Handle], None] | None = None,
    ) -> Waited:
        """Wait until every one of `all` and, if given, one of `any` has stopped (A2), and the conditions of `output`
        and `ready` hold (A9); ids are bound to handles now (S6)."""
        patterns = conditions(output)
        found = await self._bound((*any, *all, *(id for id, _ in patterns), *ready))
        groups = groups_of(found, all, any, patterns, ready)
        waiting = self.wait_for(WaitQuery(groups, tuple(dict.fromkeys(found.values())), timeout, on_progress))
        if not self._registry.meters:
            return await waiting
        began = time.monotonic()
        waited = await waiting
        status = "timeout" if waited.timed_out else "needs_input" if waited.needs_input else "completed"
        for meter in self._registry.meters:
            meter.waited("await", status, time.monotonic() - began)
        return waited

    async def _bound(self, ids: Sequence[str]) -> dict[str, Handle]:
        """Return the handles of these ids. Raises `ToolError` with a sentence for each that is missing (A4)."""
        missing: dict[str, str] = {}
        found: dict[str, Handle] = {}
        await self.arrive(ids)
        await self._registry.load(self.conversation, ids)
        for id in ids:
            try:
                found[id] = self.named(id)
            except ToolError as error:
                missing[id] = error.message
        if missing:
            raise ToolError(". ".join(missing.values()), code="handle_not_found")
        return found

    def wait_for(self, query: WaitQuery) -> Coroutine[Any, Any, Waited]:
        """Wait for any combination of groups."""
        if self._registry.store.durable and any(map(self._registry.runs_elsewhere, query.handles)):
            return self._wait_elsewhere(query)
        if not self._registry.meters and self._registry.traces is None:
            return self._wait_for(query)
        return self._observed(query)

    async def _wait_elsewhere(self, query: WaitQuery) -> Waited:
        """Wait while the output of other processes is followed, and their facts are asked for (A6)."""
        registry = self._registry
        found = registry.output_elsewhere
        assert found is not None
        handles, timeout = query.handles, query.timeout
        outputs = [(group.handles[0], group.search) for group in query.groups if isinstance(group, OutputCondition)]
        elsewhere = [(handle, search) for handle, search in outputs if registry.runs_elsewhere(handle)]
        for handle, search in elsewhere:
            await found.look(handle, search)
        tasks = [registry.run_soon(found.follow(handle, search)) for handle, search in elsewhere]
        registry.facts.begin(handles)
        try:
            if timeout is not None and timeout <= 0:
                with _asking(registry, handles):
                    await registry.facts.answered(handles, _FIRST_SECS)
                    return await self._observed(query)
            return await self._observed(query)
        finally:
            for task in tasks:
                task.cancel()

    async def _observed(self, query: WaitQuery) -> Waited:
        traces = self._registry.traces
        woke: _Times = []
        with NOTHING if traces is None else traces.wait("await", [handle.id for handle in query.handles]):
            waited = await self._wait_for(query, woke)
        for meter in self._registry.meters if woke else ():
            meter.woken(time.perf_counter() - woke[-1])
        return waited

    async def _wait_for(self, query: WaitQuery, woke: "_Times | None" = None) -> Waited:
        """`woke` gets the times at which this coroutine could have resumed."""
        groups, handles, timeout, on_progress = query
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def wake(_: Wait) -> None:
            if not over.done():
                over.set_result(None)
                if woke is not None:
                    woke.append(time.perf_counter())

        moved: list[asyncio.Task[None]] = []

        def follow(handle: Handle, search: Search) -> None:
            found = self._registry.output_elsewhere
            if found is not None:
                moved.append(self._registry.run_soon(found.follow(handle, search)))

        wait = Wait(groups, wake, already_handled=self.already_handled, on_progress=on_progress, on_released=follow)
        wait.begin()
        if wait.reason != "satisfied" and (timeout is None or timeout > 0):
            for handle in handles:
                if handle.run is not None:
                    handle.run.awaited()
                elif self._registry.runs_elsewhere(handle):
                    self._registry.facts.sync(handle)
            if over.done() and wait.recheck():  # a question that an inquiry answers is not blocked on the caller (Q3)
                over = loop.create_future()
        if over.done():
            wait.cancel()
            self._registry.facts.done(handles)
            if woke is not None:
                woke.clear()  # it has not slept
            return Waited(handles, False, wait.reason == "needs_input", _first(wait), wait.matched)
        if timeout is not None and timeout <= 0:
            wait.cancel()
            return Waited(handles, True, matched=wait.matched)
        timer = loop.call_later(timeout, lambda: _wake(over)) if timeout is not None else None
        self._registry.waiting.add(over)
        try:
            await over
            if wait.reason == "satisfied":  # the usual end, and the one whose speed counts
                first = wait.settled[0] if wait.settled else None
                return Waited(handles, False, False, first, wait.matched if wait.conditions else None)
            while wait.recheck() and (timer is None or loop.time() < timer.when()):
                self._registry.waiting.discard(over)
                over = loop.create_future()
                self._registry.waiting.add(over)
                await over
            if wait.reason is None:
                await asyncio.sleep(0)  # A5: a handle that stops in this instant has stopped in time
                wait.recheck()
        finally:
            self._registry.waiting.discard(over)
            if wait.reason != "satisfied":
                wait.cancel()
            self._registry.facts.done(handles)
            if timer is not None:
                timer.cancel()
            for task in moved:
                task.cancel()
        # Handles may have stopped between the timer and this line; a wait that is satisfied now did not time out.
        timed_out = wait.reason is None and not wait.satisfied
        needs_input = wait.reason == "needs_input" and not wait.satisfied
        return Waited(handles, timed_out, needs_input, _first(wait), wait.matched)


class _Asking(Watcher):
    __slots__ = ()
    wants_reading = True


@contextlib.contextmanager
def _asking(registry: "Registry", handles: Sequence[Handle]) -> Iterator[None]:
    """Ask the owners of handles of other processes for their facts meanwhile."""
    watcher = _Asking()
    others = [handle for handle in handles if registry.runs_elsewhere(handle)]
    for handle in others:
        handle.watch(watcher)
        registry.facts.sync(handle)
    try:
        yield
    finally:
        for handle in others:
            handle.unwatch(watcher)
        registry.facts.done(others)


def _first(wait: Wait) -> Handle | None:
    return wait.settled[0] if wait.settled else None


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
