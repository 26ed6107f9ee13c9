"""One batch: what the model emitted in one response (B1, B2, B6, B7).

Every call gets exactly one response, in request order, whatever happened. Before anything runs, all handles the batch
makes are registered, so that a call may name what another one spawns. A batch is answered by callbacks and a countdown:
a call costs a task only if its tool is one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry, call_id
from keephold.handles.state import Failure, Reply, Running, Stopped, error_of
from keephold.handles.text import to_utf8
from keephold.handles.view import Handles
from keephold.limits import Limits
from keephold.store.base import Opened, Record
from keephold.turn.actions import Actions
from keephold.turn.lanes import Lanes
from keephold.turn.recovery import waits_for_resume
from keephold.turn.replies import cancelled_reply, error_reply, failed_reply
from keephold.turn.slot import Slot

Claim = Callable[[Record], Awaitable[Record | None]]
"""Makes a call of a dead process ours; None if somebody else was first."""

CANCEL_GRACE_SECS = 0.05
"""How long a cancelled call may take to return its own result."""
_NAMES = 16
"""How often an id that is ours to choose may be somebody else's by the time it is written."""


class Batch:
    """Runs the calls of one batch and collects their replies."""

    def __init__(
        self,
        slots: Sequence[Slot],
        registry: Registry,
        actions: Actions,
        limits: Limits,
        conversation: str,
        turn: str,
        number: int,
        park_after: float | None = None,
        *,
        resumable: bool = True,
    ) -> None:
        """Not `resumable`: nobody will come back for its answers, so the store is not told that it is open."""
        self._slots = slots
        self._registry = registry
        self._actions = actions
        self._limits = limits
        self._conversation = conversation
        self._turn = turn
        self.number = number
        self._park_at = None if park_after is None else asyncio.get_running_loop().time() + park_after
        self._replies: list[Reply | None] = [None] * len(slots)
        self._left = len(slots)
        self._named: dict[str, int] = {}
        """By uid: how many unanswered calls of this batch name the handle. Such a handle is not blocked yet (A6)."""
        self._handles = Handles(registry, conversation, self._named)
        self._lanes = Lanes(slots, self._start)
        for slot in slots:
            if slot.action == "apply":
                slot.cause = f"{turn}:{number}:{slot.position}".encode()
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelled = False
        self._begun: set[int] = set()
        """Positions of calls that had begun before the batch was taken up again (B9)."""
        self.resumable = resumable
        self._names_left = _NAMES
        self._renaming: asyncio.Task[None] | None = None
        self.opened = False
        """Whether the store has it."""
        self.failed: Failure | None = None
        """A parked call timed out that takes the turn with it (D11)."""

    async def run(self) -> list[Reply]:
        """Run it. Cancelling this cancels the batch (B7)."""
        await self.begin()
        return await self.replies()

    async def begin(self) -> None:
        """Hand it to the store. What is begun later finds what this one spawns: commits finish in order."""
        await self._registry.load(self._conversation, self._ids())
        await self._name_launched()
        conflict = self._conflict()
        if conflict is not None:
            self._replies = [error_reply(conflict, slot.tool) for slot in self._slots]
            self._answered.set_result(None)
            return
        new = self._make_handles()
        if not self.resumable:
            self._registry.register(new, self._begin, self._not_begun)
            return
        calls = (
            (slot.call.id, slot.call.name, slot.given, slot.handle.uid if slot.handle is not None else None)
            for slot in self._slots
        )
        opened = Opened(self._conversation, self._turn, self.number, tuple(calls))
        self._registry.register(new, self._begin, self._not_begun, opened)

    async def resume(self, claim: Claim) -> list[Reply]:
        """Answer a batch that was begun by a process that is no more (B9)."""
        await self._registry.load(self._conversation, self._ids())
        for slot in self._slots:
            record = await self._registry.store.handle(slot.uid) if slot.uid is not None else None
            if record is None:
                continue
            anew = not isinstance(record.state, Stopped) and waits_for_resume(record, slot.tool)
            claimed = await claim(record) if anew and not self._registry.is_ours(record) else None
            if claimed is not None:
                slot.handle = self._registry.take_over(claimed)
            else:
                slot.handle = self._registry.adopt(record)
                self._begun.add(slot.position)
        names = self._registry.conversation(self._conversation).names
        for slot in self._slots:
            named = names.get(slot.handle_id or "") if slot.cause and slot.error is None else None
            if named is not None and await self._registry.recorded(named, slot.cause):
                slot.handle = named
                self._begun.add(slot.position)
        self._begin()
        return await self.replies()

    async def replies(self) -> list[Reply]:
        """What its calls are answered with, when all are. Cancelling this cancels the batch (B7)."""
        try:
            await asyncio.shield(self._answered)
        except asyncio.CancelledError:
            self.cancel()
            await asyncio.wait([self._answered])  # within CANCEL_GRACE_SECS: every call is answered by then
            raise
        return [reply for reply in self._replies if reply is not None]

    def _ids(self) -> list[str]:
        return list(dict.fromkeys(slot.handle_id for slot in self._slots if slot.handle_id is not None))

    def _not_begun(self, error: Exception) -> None:
        """The store did not take the batch: nothing of it ran."""
        code = error.code if isinstance(error, KeepholdError) else "store_unavailable"
        if code == "batch_rejected" and self._names_left and any(map(_numbered, self._slots)):
            self._names_left -= 1
            self._renaming = asyncio.get_running_loop().create_task(self._begin_again())
            return
        refusal = ToolError(f"{self._nothing_ran}: {error}", code=code)
        once = next((_once(slot) for slot in self._slots if _once(slot)), None)
        if code == "batch_rejected" and once is not None and len(self._slots) == 1:
            refusal = once  # in the words of its rule (W7)
        self._replies = [error_reply(refusal, slot.tool) for slot in self._slots]
        if not self._answered.done():
            self._answered.set_result(None)

    async def _begin_again(self) -> None:
        """W12: another call, or another process, was quicker with an id that is ours to choose."""
        try:
            await self.begin()
        except KeepholdError as error:  # the store cannot be read, or is closed
            self._names_left = 0
            self._not_begun(error)

    @property
    def _nothing_ran(self) -> str:
        return "Nothing of this batch ran" if self.resumable else "The call was not run"

    def waits_for(self, handle: Handle) -> bool:
        """Whether the call that made the handle is not answered yet."""
        return any(slot.handle is handle and self._replies[slot.position] is None for slot in self._slots)

    def leave(self) -> None:
        """The runtime is closing: what is not answered yet stays open in the store (R6, D10)."""
        if not self._answered.done():
            why = "the runtime was closed before this batch was answered"
            if self.resumable:
                why += "; it is in the store, and `rt.turn(conversation, resume=True)` takes it up again"
            self._answered.set_exception(KeepholdError(why, code="runtime_closed"))

    async def _name_launched(self) -> None:
        """W12: where the id of a spawn by another name is taken, make another one of it."""
        names = self._registry.conversation(self._conversation).names
        taken = {slot.handle_id for slot in self._slots if slot.action == "spawn" and not _numbered(slot)}
        for slot in filter(_numbered, self._slots):
            assert slot.launch is not None
            base, count = slot.launch.id, 1
            while slot.handle_id in names or slot.handle_id in taken:
                count += 1
                slot.handle_id = f"{base}_{count}"
                await self._registry.load(self._conversation, (slot.handle_id,))
            taken.add(slot.handle_id)

    def _conflict(self) -> ToolError | None:
        """B2: an id spawned twice, or one that is active, rejects the whole batch."""
        names = self._registry.conversation(self._conversation).names
        seen: set[str] = set()
        for slot in self._slots:
            id = slot.handle_id
            if slot.action != "spawn" or id is None:
                continue
            once = _once(slot)
            active = id in names and (names[id].active or once is not None)
            if once is not None and (id in seen or active):
                return once
            if id in seen or active:
                why = "is active already" if active else "is spawned twice in this batch"
                return ToolError(
                    f"{self._nothing_ran}: handle id `{id}` {why}. Choose another id"
                    + (" or abort the handle first." if active else "."),
                    code="batch_rejected",
                )
            seen.add(id)
        return None

    def _make_handles(self) -> list[tuple[Handle, Record]]:
        """A handle for every spawn that has an id, also if its arguments are wrong, and for every one-shot call."""
        known = self._registry.conversation(self._conversation)
        room = self._limits.live_handles - len(known.live)
        new, first, now = [], self._lanes.first, self._registry.clock.now()
        for slot in self._slots:
            spawn = slot.action == "spawn" and slot.handle_id is not None
            if slot.tool is None or slot.action in ("fetch", "apply", "abort") or (slot.error and not spawn):
                continue
            counts = spawn and not (slot.tool.launching is not None and slot.tool.launching.parks)
            if counts and room <= 0:
                limit = self._limits.live_handles
                slot.error = ToolError(
                    f"{limit} handles of this conversation are live, which is the limit ([limits] live_handles); "
                    "wait for some of them or abort them",
                    code="limit_exceeded",
                )
                continue
            room -= counts
            label = to_utf8(slot.call.id).decode()  # as it can be stored
            slot.handle = self._registry.new_handle(
                id=slot.handle_id if spawn and slot.handle_id else f"call:{label}",
                tool=slot.tool,
                conversation=self._conversation,
                turn=self._turn,
                call_id=label,
                stateful=spawn,
                priority=slot.tool.spawn.priority if slot.launch is None else slot.launch.priority,
                kind=slot.tool.kind if slot.launch is None else slot.launch.kind,
            )
            if slot.launch is not None and slot.launch.metadata:
                slot.handle.metadata = dict(slot.launch.metadata)
            # What is known already goes into the commit that says that the handle exists: a refused spawn has stopped
            # (B6), and a call that nothing stands in the way of runs.
            if slot.error is not None:
                slot.handle.decided = slot.handle.state = Stopped(now, None, now, error_of(slot.error))
                slot.handle.owner = None
            elif slot.position in first and self._actions.may_start(slot, self._conversation):
                slot.handle.decided = slot.handle.state = Running(now, now)
            record = self._record(slot, slot.handle)
            if not self.resumable and slot.error is None and _may_be_over_at_once(slot.handle):
                slot.handle.unwritten = record
            new.append((slot.handle, record))
        return new

    def _record(self, slot: Slot, handle: Handle) -> Record:
        return Record(
            uid=handle.uid,
            id=handle.id,
            tool=handle.tool.name,
            conversation=handle.conversation,
            turn=handle.turn,
            batch=self.number,
            position=slot.position,
            call_id="" if handle.tool.source == "builtin" else handle.call_id,  # a label finds what tools printed (O4)
            stateful=handle.stateful,
            state=handle.state,
            arguments=slot.arguments,
            kind=handle.kind,
            priority=handle.priority,
            metadata=handle.metadata,
            resources=self._actions.resources(slot, handle) if handle.tool.resources and slot.error is None else (),
            owner=handle.owner,
        )

    def _begin(self) -> None:
        self.opened = True
        if self._registry.closing:
            self.leave()
            return
        names = self._registry.conversation(self._conversation).names
        for slot in self._slots:
            if slot.handle_id is not None and slot.handle_id in names:
                slot.named = names[slot.handle_id]
                self._named[slot.named.uid] = self._named.get(slot.named.uid, 0) + 1
        self._lanes.begin()
        if not self._slots:
            self._answered.set_result(None)

    def _refuse(self, slot: Slot, error: ToolError) -> None:
        # B6: whoever awaits its handle hears what was wrong.
        self._answer(slot, error_reply(error, slot.tool) if slot.handle is None else self._actions.show(slot.handle))

    def _start(self, slot: Slot) -> None:
        if self._replies[slot.position] is not None:
            return
        if self._cancelled and slot.position not in self._begun:
            self._withdraw(slot)
            return
        if slot.error is not None and slot.position not in self._begun:
            self._refuse(slot, slot.error)
            return
        answer, parked = (lambda reply: self._answer(slot, reply)), (lambda: self._parked(slot))
        try:
            if slot.position in self._begun:
                self._actions.follow(slot, self._named, answer, parked)
            else:
                self._actions.start(slot, self._handles, self._named, answer, parked)
        except Exception as error:  # of a tool's runtime; it must not leave the call without its answer (C9)
            self._answer(slot, failed_reply(slot.call.id, error))

    def _answer(self, slot: Slot, reply: Reply) -> None:
        if self._replies[slot.position] is not None:
            return
        self._replies[slot.position] = reply
        self._left -= 1
        if slot.handle is not None and self.failed is None:
            self.failed = _fails_turn(slot.handle)
            if self.failed is not None:
                self.cancel()
        self._unname(slot)
        self._lanes.returned(slot)
        if self._left == 0 and not self._answered.done():
            self._answered.set_result(None)

    def _parked(self, slot: Slot) -> None:
        """D10: the serial lane goes on; the batch waits, if need be only for so long."""
        self._lanes.returned(slot)
        if self._park_at is not None:
            asyncio.get_running_loop().call_at(self._park_at, self._stop_waiting, slot)

    def _stop_waiting(self, slot: Slot) -> None:
        over = self._answered.done() or self._registry.closing
        if not over and self._replies[slot.position] is None and slot.handle is not None and slot.handle.parked:
            self._registry.run_soon(self.promote_to_handle(slot))

    async def promote_to_handle(self, slot: Slot, *, left: bool = False) -> None:
        """Give a one-shot call a name and answer with that: it is parked (D10), or nobody waits for it any more, though
        it may have ended by now (`left`)."""
        handle = slot.handle
        assert handle is not None
        number = 1
        while True:
            id = call_id(slot.call.id) + (f"_{number}" if number > 1 else "")
            try:
                await self._registry.load(self._conversation, (id,))
            except KeepholdError:
                if self._registry.closing:
                    return  # the next runtime finds it by its label
                raise
            taken = self._registry.conversation(self._conversation).names.get(id)
            if taken is None or not taken.active:
                break
            number += 1
        if left or (self._replies[slot.position] is None and handle.active):
            try:
                await self._registry.promote_to_handle(handle, id)
            except KeepholdError as error:
                if error.code == "batch_rejected":  # another process was quicker with the id
                    await self.promote_to_handle(slot, left=left)
                return
            self._answer(slot, self._actions.show(handle))

    def _unname(self, slot: Slot) -> None:
        handle = slot.named
        if handle is None:
            return
        self._named[handle.uid] -= 1
        if not self._named[handle.uid]:
            del self._named[handle.uid]
            self._registry.notify_watchers(handle)  # it may count as blocked from now on

    def cancel(self) -> None:
        """B7: tell every call; those that have no result of their own soon are answered without one."""
        if self._cancelled:
            return
        self._cancelled = True
        open_slots = [slot for slot in self._slots if self._replies[slot.position] is None]
        for slot in open_slots:
            slot.withdraw()
        calls = [slot.handle for slot in open_slots if slot.handle is not None and not slot.handle.stateful]
        self._actions.cancel(calls)
        asyncio.get_running_loop().call_later(CANCEL_GRACE_SECS, self._answer_the_rest)

    def _answer_the_rest(self) -> None:
        for slot in self._slots:
            if self._replies[slot.position] is None:
                self._withdraw(slot)

    def _withdraw(self, slot: Slot) -> None:
        slot.withdraw()
        if slot.handle is not None and slot.handle.run is None:
            self._actions.cancel([slot.handle])
        self._answer(slot, cancelled_reply())


def _may_be_over_at_once(handle: Handle) -> bool:
    """Whether a one-shot call, of which a crash would leave nothing to go on with, is written when it ends or, if it
    lasts, soon: most are over by then, and cost one commit instead of two. Nobody else can know of it before."""
    tool = handle.tool
    lost_with_us = tool.on_crash == "fail" and tool.retry.policy == "never" and tool.source in ("python", "builtin")
    return not handle.stateful and isinstance(handle.state, Running) and lost_with_us and tool.result == "unattended"


def _once(slot: Slot) -> ToolError | None:
    """The refusal of a spawn by another name whose id is taken, of a tool that takes none twice (W7)."""
    launching = slot.tool.launching if slot.tool is not None else None
    if launching is None or not launching.once:
        return None
    return ToolError(launching.once.format(id=slot.handle_id), code="batch_rejected")


def _numbered(slot: Slot) -> bool:
    return slot.launch is not None and slot.tool is not None and getattr(slot.tool.launching, "numbered", False)


def _fails_turn(handle: Handle) -> Failure | None:
    """The error of a one-shot call whose deadline passed and that takes the turn with it (D11)."""
    state, parking = handle.state, handle.parking
    if handle.stateful or parking is None or parking.on_timeout != "fail_turn" or not isinstance(state, Stopped):
        return None
    return state.outcome if isinstance(state.outcome, Failure) and state.ended_by == "timeout" else None
