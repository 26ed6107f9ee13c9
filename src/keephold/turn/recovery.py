"""Recovery: the calls of a dead process are run again, ended, or left parked (R1, R5, D2); and deadlines (D7).

A runtime claims only calls of dead owners whose tool it has. Claiming raises the call's fencing number, so of two
runtimes that recover at once one wins each call, and later writes of the dead owner are refused.

Calls are claimed in groups, one transaction for each group. They run again when all calls of the dead owners are
claimed, because crash loops decide their order (R8). If there is more than one group, the runtime is open before that:
a turn or a command that needs certain calls claims those first (`take_first`).

The deadlines of parked calls share one timer, for the next one. A deadline is a time of day in the store. It fires late
rather than never: one that passed while no process ran is found at the start and by every sweep.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from keephold.durable.calls import Durability
from keephold.durable.keys import Key
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle, OnStop
from keephold.handles.registry import Registry, notice
from keephold.handles.state import Ended, EndedBy, Failure, Outcome, PendingState, State, Stopped, transition
from keephold.handles.view import Handles
from keephold.store import ops
from keephold.store.base import Entry, HandleQuery, KeptOutput, Opened, OpenTurn, Record, Resolution, newest_retry
from keephold.store.rules import end_notice, ended, gone, timed_out
from keephold.tools.base import Invocation, SupportsCancelHook, SupportsKnowing, Tool
from keephold.tools.keeper.record import read_record
from keephold.tools.keeping import end_kept, is_elsewhere, kept_output
from keephold.tools.marks import reap
from keephold.tools.toolbox import Toolbox
from keephold.turn.admission import Admission
from keephold.turn.crash_loops import in_order

if TYPE_CHECKING:
    from keephold.turn.actions import Actions

_log = logging.getLogger("keephold.recovery")

GROUP = 250
"""Calls that are claimed together, and for which the start of a runtime waits."""
_AT_ONCE = 50
"""Calls that are run again before the loop does something else."""
HOOK_AGAIN_SECS = 5.0
"""When a hook that failed with a transient error is called again."""
CRASHED = Failure("The process that ran this call ended before the call did.", "crashed", transient=True)


def waits_for_resume(state: State, source: str | None) -> bool:
    """B9: a call that never started, or can be started again, is left to the process that resumes its turn.

    `source` is that of its tool."""
    return isinstance(state, PendingState) or source == "builtin"


class _Claimed(NamedTuple):
    """A call that this runtime has claimed and is about to run again."""

    handle: Handle
    record: Record


def survives_crash(handle: Handle) -> bool:
    """Return whether a crash of its process does not end a call: a `replay` call, a kept process, an `external` call
    that has its key, one that may be repeated, is between two attempts, or is parked or being parked."""
    run, tool = handle.run, handle.tool
    # A one-shot call that became a handle (D10) has a process that is not kept.
    keeps = tool.on_crash == "keep" and handle.stateful and (run is None or run.live is None or run.kept)
    if tool.on_crash == "replay" or keeps or tool.engine is not None:
        return True
    if handle.parked or handle.next_attempt_at is not None or (run is not None and run.is_parking):
        return True
    if tool.on_crash == "external" and run is not None and run.has_key:
        return True
    return tool.retry.policy == "idempotent" and handle.attempt < tool.retry.max_attempts


class Recovery:
    """Takes over the calls of dead owners."""

    def __init__(
        self,
        registry: Registry,
        toolbox: Toolbox,
        durability: Durability,
        admission: Admission,
    ) -> None:
        self._registry = registry
        self._toolbox = toolbox
        self._durability = durability
        self._admission = admission
        self._hooks: set[str] = set()
        self._taking = asyncio.Lock()
        self._claiming = asyncio.Lock()
        self._reaped = set[str | None]()
        self.actions: Actions
        self.leaves_calls = False
        """Whether calls are left to a runtime that has the tools of their own program (R1)."""
        self.adopts: list[Callable[[str], bool]] = []
        """Whether calls of a conversation are resumed here, because another project may have another tool of a name
        (X6): if any says so, or there is none."""

    async def start(self) -> None:
        """At the start of a runtime: restore the resources that parked calls hold, and sweep. If there is more than one
        group of calls to recover, sweep in the background."""
        for record in await self._registry.store.holding():
            self._admission.hold(self._registry.adopt(record), dict.fromkeys(record.resources, 1))
        store, count = self._registry.store, 0
        for owner in await self._dead():
            count += len(await store.owned(owner, limit=GROUP + 1))
        if count <= GROUP:
            await self.sweep()
        else:
            self._registry.run_soon(self.sweep())
        self._registry.run_soon(self._end_unknown())

    async def _end_unknown(self) -> None:
        """End kept processes whose calls have stopped without them, and remove files that a crash has left (R7)."""
        store = self._registry.store
        files = [] if store.directory is None else list(store.directory.glob("*.kept"))
        for file in (each for each in files if each.stem.isascii()):  # others are not a keeper's
            record = await store.handle(file.stem)
            if record is None or isinstance(record.state, Stopped):
                kept = record is not None and record.output is not None and record.output.file is not None
                fence = record.fence if record is not None else sys.maxsize
                with contextlib.suppress(KeepholdError):
                    if await end_kept(self._admission.guard.keeper, file.stem, fence):
                        self._admission.guard.keeper.forget(file.stem, output=not kept)

    async def sweep(self) -> None:
        """Recover the calls of owners that have died, and those without an owner that need one."""
        await self.take(*await self._dead())
        await self.unowned()

    async def _dead(self) -> list[str]:
        store = self._registry.store
        return [owner for owner in await store.owners() if not store.alive(owner)]

    async def take(self, *owners: str) -> None:
        """Recover the calls of dead owners whose tools this runtime has."""
        async with self._taking:  # when this returns, calls that another sweep has claimed are admitted, too
            claimed, turns = list[_Claimed](), dict[str, OpenTurn | None]()
            for owner in owners:
                after = ""
                while records := await self._registry.store.owned(owner, GROUP, after):
                    if self._registry.closing:
                        return
                    claimed += await self._claim_all(records, turns)
                    after = records[-1].uid
            await self._resume(claimed)

    async def take_first(self, owner: str, conversation: str, uid: str | None = None) -> None:
        """Recover a dead owner's calls of a conversation, or only one of them, and its others in the background."""
        store, claimed = self._registry.store, list[_Claimed]()
        if uid is not None:
            record = await store.handle(uid)
            claimed += await self._claim_all([record] if record is not None and record.owner == owner else [], {})
        else:
            query = HandleQuery(conversation=conversation, live=True, stateful=None, limit=GROUP)
            turns = dict[str, OpenTurn | None]()
            while records := await store.handles(query):
                claimed += await self._claim_all([each for each in records if each.owner == owner], turns)
                query = replace(query, after=records[-1].uid)
        await self._resume(claimed)
        self._registry.run_soon(self.take(owner))

    async def _claim_all(self, records: Sequence[Record], turns: dict[str, OpenTurn | None]) -> "list[_Claimed]":
        """Claim the calls of a dead owner whose tools are here, with one commit. Return those to be run again: this
        runtime has them from now on."""
        tools = dict[str, Tool]()
        for record in records:
            self._reap(record)
            tool = self._tool(record)
            if tool is None:
                continue
            if not (waits_for_resume(record.state, tool.source) and await self._is_open(record, turns)):
                tools[record.uid] = tool
            elif record.state.created + self._registry.retention <= self._registry.clock.now():
                await self._end_unresumed(record)
        async with self._claiming:  # when this returns, calls that another sweep has claimed are in memory, too
            # The store writes what arrives in one pass of the loop as one transaction, and each call stands for itself.
            recovering = (self._recover(record, tools[record.uid]) for record in records if record.uid in tools)
            found = await asyncio.gather(*recovering, return_exceptions=True)
            taken = [self._take_over(each, tools[each.uid]) for each in found if isinstance(each, Record)]
        for each in found:
            if isinstance(each, Exception):  # the next sweep tries again
                _log.warning("a call of a dead process could not be recovered: %s", each, exc_info=each)
        return taken

    def _reap(self, record: Record) -> None:
        """Kill the processes of a dead owner, before anything says that its calls have ended: its guard may have died
        with it (R2)."""
        tool = self._known(record)
        if record.owner not in self._reaped and tool is not None and tool.source in ("local", "terminal"):
            self._reaped.add(record.owner)
            reap()

    def _take_over(self, record: Record, tool: Tool) -> "_Claimed":
        handle = self._registry.take_over(record)
        handle.tool = tool
        return _Claimed(handle, record)

    async def _resume(self, claimed: "Sequence[_Claimed]") -> None:
        """Run claimed calls again."""
        if not claimed or self._registry.closing:
            return
        loops, records = self._admission.loops, [each.record for each in claimed]
        handles = {record.uid: handle for handle, record in claimed}
        await loops.resuming(records)
        try:
            for number, record in enumerate(in_order(records)):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if not isinstance(handles[record.uid].decided, Stopped):  # it may have been aborted meanwhile
                    await self._run_again(handles[record.uid], record)
        finally:
            loops.resumed(records)

    def _known(self, record: Record) -> Tool | None:
        adopted = not self.adopts or any(adopts(record.conversation) for adopts in self.adopts)
        return self._toolbox.of(record.conversation).get(record.tool) if adopted else None

    def _tool(self, record: Record) -> Tool | None:
        """Return the tool of a call, with the policies that the call itself chose."""
        tool = None if self.leaves_calls else self._known(record)
        if tool is None or tool.launching is None:
            unknown = (
                tool is not None
                and isinstance(tool.runtime, SupportsKnowing)
                and not tool.runtime.knows(record.arguments)
            )
            return None if unknown else tool
        try:
            return tool.launching.read(record.arguments, self._registry.clock.now(), None).of(tool)
        except ToolError:  # its agent, say, is not registered here: a runtime that has it resumes the call
            return None

    async def _is_open(self, record: Record, turns: dict[str, OpenTurn | None]) -> bool:
        """Return whether the batch of the call was never answered."""
        name = record.conversation
        if name not in turns:
            turns[name] = await self._registry.store.turn(name)
        turn = turns[name]
        return turn is not None and turn.waits_for(record)

    async def abandon(self, batch: Opened) -> None:
        """End the calls that were left for a resumed batch, because the new turn does not resume it (T5)."""
        for *_, uid in batch.calls:
            record = await self._registry.store.handle(uid) if uid is not None else None
            if record is None or isinstance(record.state, Stopped) or record.owner is None:
                continue
            tool = self._known(record)
            source = None if tool is None else tool.source
            if waits_for_resume(record.state, source) and not self._registry.is_ours(record):
                await self._end_unresumed(record)

    async def _end_unresumed(self, record: Record) -> None:
        """End a call that was left for the process that resumes its turn."""
        claimed = await self.claim(record)
        if claimed is not None:
            await self._end(claimed, record.attempt)

    async def claim(self, record: Record, *, queued: bool = False, kept: bool = False) -> Record | None:
        """Claim a dead owner's call; None if another process was first, or it has stopped. `queued`, `kept`: as in
        `Claimed`."""
        asked = ops.TakenBack(record.conversation, ((record.uid, "asked"),))  # its question died with its process
        claimed: Record | None
        claimed, _ = await self._registry.write((ops.Claimed(record.uid, record.owner, queued, kept), asked))
        if claimed is not None and self._registry.traces is not None:
            await self._registry.traces.taken(claimed)
        return claimed

    async def _recover(self, record: Record, tool: Tool) -> Record | None:
        """Claim a call, and end or park it, or return it to be run again."""
        if isinstance(record.state, Stopped):
            self._call_hook(record)
            return None
        runs_on = tool.engine is not None or (tool.on_crash == "keep" and record.stateful)
        if runs_on and not isinstance(record.state, PendingState) and record.parking is None:
            await self._take_back(record, tool)
            return None
        was_alone = record.standing == "alone"
        claimed = await self.claim(record, queued=True)
        if claimed is None:
            return None
        if claimed.parking is not None:
            await self._release(claimed)
            return None
        # R5: if repeating is harmless, a crash does not end it. R8 ends crash loops, not `max_attempts`.
        repeats = tool.retry.policy == "idempotent" or runs_on  # one that would run on has not started yet
        if tool.on_crash != "replay" and claimed.next_attempt_at is None and not repeats:
            await self._end(claimed, record.attempt)
        elif was_alone:
            await self._end(claimed, record.attempt, self._admission.loops.stopped(claimed))
        else:
            return claimed
        return None

    async def _take_back(self, record: Record, tool: Tool) -> None:
        """Take back a call that has run on: an engine runs it, or its process is kept, and may have ended meanwhile
        (R7). A process on another host is left alone."""
        directory = self._registry.store.directory if tool.engine is None else None
        if directory is not None and is_elsewhere(directory, record.uid):
            return
        claimed = await self.claim(record, kept=True)
        if claimed is None:
            return
        found = None if directory is None else read_record(directory, record.uid)
        if directory is not None:
            claimed.output = None if found is None else kept_output(directory, found)
        handle, _ = self._take_over(claimed, tool)
        await self._admission.take_back(handle, self._invocation(claimed, tool))

    async def end_left(self, uid: str, owner: str, error: Failure, by: EndedBy) -> None:
        """End a dead owner's call although its tool is not here, because it is aborted (C7)."""
        record = await self._registry.store.handle(uid)
        if record is None or record.owner != owner or isinstance(record.state, Stopped):
            return
        reap()
        claimed = await self.claim(record)
        if claimed is not None and claimed.parking is not None:
            await self._release(claimed)
        elif claimed is not None:
            output = await self._end_kept(claimed)
            await self._end(claimed, record.attempt, error, by, output)
            directory = self._registry.store.directory
            if output is not None and directory is not None and not is_elsewhere(directory, uid):
                # On another host, the next runtime there ends it by what is left.
                self._admission.guard.keeper.forget(uid, output=False)

    async def _end_kept(self, record: Record) -> KeptOutput | None:
        """End the process of a call, if it is kept, and return its output."""
        directory = self._registry.store.directory
        if directory is None or read_record(directory, record.uid) is None:
            return None
        await end_kept(self._admission.guard.keeper, record.uid, record.fence)
        found = read_record(directory, record.uid)
        return None if found is None else kept_output(directory, found)

    async def _release(self, record: Record) -> None:
        """Park a call that has taken its key (`external`)."""
        (state,) = await self._registry.write((ops.Released(record.uid, record.fence),))
        self._registry.changed_elsewhere(record.uid, state)

    async def _end(
        self,
        record: Record,
        attempt: int,
        error: Failure = CRASHED,
        by: EndedBy = "crash",
        output: KeptOutput | None = None,
    ) -> None:
        """End a call with its process, unless its completion was accepted before (R4)."""
        event = Ended(self._registry.clock.now(), error, by)
        state = transition(record.state, event)
        same = ops.Attempted(record.uid, record.fence, attempt, None)  # the claim began none
        tool = self._known(record)
        notification = notice(tool, state) if tool is not None and record.stateful else None
        if error.code == "crash_loop" and isinstance(state, Stopped):
            notification = end_notice(state)  # also if the tool's settings want no notification
        change = ops.Changed(record.uid, record.fence, event, state, output, notification, yields=True)
        _, completed = await self._registry.write((same, change))
        self._registry.changed_elsewhere(record.uid, completed or state)

    async def _run_again(self, handle: Handle, record: Record) -> None:
        """Run a claimed call again: with its journal in hand, or when its next attempt is due."""
        tool = handle.tool
        self._admission.loops.watch(handle, record.deaths)
        if isinstance(record.state, PendingState) and record.retry_of is None:
            self.actions.start_again(handle, record)  # it may wait for permission, and nobody has given that
            return
        journaled = tool.on_crash == "replay" or tool.retry.policy != "never"  # else nothing in it counts
        entries = await self._durability.entries(record.uid) if journaled else ()
        self._admission.admit(handle, self._invocation(record, tool, entries))

    def _invocation(self, record: Record, tool: Tool, entries: Sequence[Entry] = ()) -> Invocation:
        return Invocation(
            tool=tool,
            arguments=record.arguments,
            uid=record.uid,
            call_id=record.call_id,
            conversation=record.conversation,
            turn=record.turn,
            stateful=record.stateful,
            handles=Handles(self._registry, record.conversation),
            durability=self._durability,
            attempt=record.attempt,
            retry_of=record.retry_of,
            fence=record.fence,
            entries=entries,
            guard=self._admission.guard,
        )

    async def retry(self, uid: str) -> Record:
        """Repeat a call that failed or was ended, and return the new handle. One that was stopped because it ended its
        process continues with its journal (R8); any other starts from its beginning.

        Raises `KeepholdError` if the handle has not stopped, or is done, or its tool is not here."""
        store = self._registry.store
        record = await store.handle(uid)
        if record is None:
            raise gone(uid)
        stopped = record.state if isinstance(record.state, Stopped) else None
        outcome = None if stopped is None else stopped.outcome
        if stopped is None or not isinstance(outcome, Failure):
            why = "has not stopped" if outcome is None else "did not fail"
            raise KeepholdError(
                f"handle `{record.id}` {why}, so it cannot be retried; make a new call", code="not_retryable"
            )
        tool = self._tool(record)
        if tool is None and not self.leaves_calls:
            raise KeepholdError(
                f"there is no tool `{record.tool}` here; retry handle `{record.id}` where its tool is, or with "
                "`keephold retry --store`",
                code="not_retryable",
            )
        newest = await newest_retry(store, record)
        if newest is not None:
            raise KeepholdError(
                f"handle `{record.id}` was retried before; its newest retry has the uid {newest.uid}",
                code="not_retryable",
            )
        again = self._registry.repeated(record, record.retry_of or uid)
        looped = outcome.code == "crash_loop"
        await self._registry.write((ops.Retried(again, uid) if looped else ops.Registered(again),), keep=False)
        if tool is not None and stopped.started is None:  # nobody has allowed it
            self.actions.start_again(*self._take_over(again, tool))
        elif tool is not None:
            await self._run_again(*self._take_over(again, tool))
        return again

    async def completed(self, handle: Handle) -> bool:
        """Return whether the store has the completion of a call that runs here: recovery ends the call with it (R4)."""
        if handle.run is None or not handle.run.has_key:
            return False
        return await self._completion(handle.uid) is not None

    async def _completion(self, uid: str) -> Resolution | None:
        waits = await self._registry.store.waits(uid)
        return next((wait.resolution for wait in waits if wait.kind == "completion"), None)

    # Calls without an owner

    async def unowned(self) -> None:
        """Call the hooks of cancelled calls, and deliver completions that need a runtime with the tool."""
        after = ""
        while records := await self._registry.store.owned(None, after=after):
            for record in records:
                after = record.uid
                await self._unowned(record)

    def held(self, uid: str) -> None:
        """Check for the held completion of a call."""
        handle = self._registry.loaded(uid)
        if handle is None or (handle.parking is not None and handle.parking.hold):
            self._registry.run_soon(self.unowned())

    async def _unowned(self, record: Record) -> None:
        if self._known(record) is None:
            return
        if isinstance(record.state, Stopped):
            self._call_hook(record)
            return
        resolution = await self._completion(record.uid)
        if resolution is not None and not self._admission.is_delivering(record.uid):
            handle = self._registry.adopt(record)
            if isinstance(handle.decided, Stopped):
                return  # its end is being written
            end = ended(resolution, self._registry.clock.now())
            handle.watch(OnStop(self._admission.closed))  # another process may be asked, and be first
            self._admission.deliver(handle, end.outcome, partial(self._deliver, handle, end))

    def _deliver(self, handle: Handle, end: Ended, shown: Outcome) -> None:
        """End a call with the part of a held completion that may be seen (P1)."""
        if handle.active:
            if shown is not end.outcome:
                self._registry.withhold(handle)  # nor what it printed before it parked
            self._registry.end(handle, shown, end.ended_by)

    def cancelled(self, uid: str) -> None:
        """Call the hook of a parked call that was cancelled."""
        self._registry.run_soon(self._cancelled(uid))

    async def _cancelled(self, uid: str) -> None:
        record = await self._registry.store.handle(uid)
        if record is not None:
            self._call_hook(record)

    def _call_hook(self, record: Record) -> None:
        if record.uid not in self._hooks and not self._registry.closing:
            self._hooks.add(record.uid)
            self._registry.run_soon(self.call_hook(record))

    async def call_hook(self, record: Record) -> None:
        """D2: end the work outside. A hook that fails with a transient error is called again, and so is one that could
        not be called because the store could not be read."""
        tool = self._known(record)
        key: Key | None = None
        try:
            if tool is None:  # a runtime that has it will
                await self._registry.write((ops.Released(record.uid, record.fence),))
                return
            if isinstance(tool.runtime, SupportsCancelHook):
                key = await self._durability.waits.key_of(record)
                await tool.runtime.cancelled(key, record.arguments)
        except Exception as error:
            _log.error("the on_cancel hook of tool `%s` failed (call %s)", record.tool, record.uid, exc_info=error)
            unread = isinstance(error, KeepholdError) and error.code == "store_unavailable" and key is None
            if unread or (isinstance(error, ToolError) and error.transient):
                asyncio.get_running_loop().call_later(HOOK_AGAIN_SECS, self._call_hook, record)
                return
        finally:
            self._hooks.discard(record.uid)
        await self._registry.write((ops.HookCalled(record.uid),))


_LONGEST = 3600.0
"""The longest timer, in seconds: the time of day may be changed."""


class Deadlines:
    """Ends parked calls whose deadline has passed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._next: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, deadline: float) -> None:
        """Set the timer for a parked call with this deadline."""
        if not self._registry.closing and (self._next is None or deadline < self._next):
            self._arm(deadline)

    def _arm(self, at: float) -> None:
        self.stop()
        self._next = at
        delay = min(max(0.0, at - self._registry.clock.now()), _LONGEST)
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._next = self._timer = None
        self._registry.run_soon(self.check())

    async def check(self) -> None:
        """End the calls that are due, and set the timer for the next."""
        registry = self._registry
        while True:
            records, following = await registry.store.due(registry.clock.now())
            handles = [registry.adopt(record) for record in records]
            ended = [each for each in handles if each.parked and registry.end(each, timed_out(each.parking), "timeout")]
            if not ended:
                break  # those that are still found are being ended, by another process perhaps
            await registry.write(())  # or they would be found again
        if following is not None and not registry.closing:
            self.expect(following)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._next = self._timer = None
