"""One batch: what the model emitted in one response (B1, B2, B6, B7).

Every call gets exactly one response, in request order, whatever happened. Before anything runs, all handles the batch
makes are registered, so that a call may name what another one spawns. A batch is answered by callbacks and a countdown:
a call costs a task only if its tool is one.
"""

import asyncio
import logging
from collections.abc import Sequence

from holdfast.errors import ToolError
from holdfast.handles.handle import Handle
from holdfast.handles.registry import Registry
from holdfast.handles.state import error_of
from holdfast.handles.view import Handles
from holdfast.limits import Limits
from holdfast.store.base import Opened
from holdfast.tools.base import Reply
from holdfast.turn.actions import Actions
from holdfast.turn.lanes import Lanes
from holdfast.turn.replies import cancelled_reply, error_reply
from holdfast.turn.slot import Slot

_log = logging.getLogger("holdfast.turn")

CANCEL_GRACE_SECS = 0.05
"""How long a cancelled call may take to return its own result."""


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
    ) -> None:
        self._slots = slots
        self._registry = registry
        self._actions = actions
        self._limits = limits
        self._conversation = conversation
        self._turn = turn
        self._number = number
        self._replies: list[Reply | None] = [None] * len(slots)
        self._left = len(slots)
        self._named: dict[str, int] = {}
        """By uid: how many unanswered calls of this batch name the handle. Such a handle is not blocked yet (A6)."""
        self._handles = Handles(registry, conversation, self._named)
        self._lanes = Lanes(slots, self._start)
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelled = False

    async def run(self) -> list[Reply]:
        """Run it. Cancelling this cancels the batch (B7)."""
        conflict = self._conflict()
        if conflict is not None:
            return [error_reply(conflict)] * len(self._slots)
        handles = self._make_handles()
        calls = (
            (slot.call.id, slot.call.name, slot.call.arguments, slot.handle.uid if slot.handle is not None else None)
            for slot in self._slots
        )
        opened = Opened(self._conversation, self._turn, self._number, tuple(calls))
        self._registry.register(handles, self._begin, opened)
        try:
            await asyncio.shield(self._answered)
        except asyncio.CancelledError:
            self.cancel()
            await self._answered  # within CANCEL_GRACE_SECS: every call is answered by then
            raise
        return [reply for reply in self._replies if reply is not None]

    def _conflict(self) -> ToolError | None:
        """B2: an id spawned twice, or one that is active, rejects the whole batch."""
        names = self._registry.conversation(self._conversation).names
        seen: set[str] = set()
        for slot in self._slots:
            id = slot.handle_id
            if slot.action != "spawn" or id is None:
                continue
            active = id in names and names[id].active
            if id in seen or active:
                why = "is active already" if active else "is spawned twice in this batch"
                return ToolError(
                    f"Nothing of this batch ran: handle id `{id}` {why}. Choose another id"
                    + (" or abort the handle first." if active else "."),
                    code="batch_rejected",
                )
            seen.add(id)
        return None

    def _make_handles(self) -> list[Handle]:
        """A handle for every spawn that has an id, also if its arguments are wrong, and for every one-shot call."""
        known = self._registry.conversation(self._conversation)
        room = self._limits.live_handles - len(known.live)
        handles = []
        for slot in self._slots:
            spawn = slot.action == "spawn" and slot.handle_id is not None
            if slot.tool is None or slot.action in ("fetch", "apply", "abort") or (slot.error and not spawn):
                continue
            if spawn and room <= 0:
                limit = self._limits.live_handles
                slot.error = ToolError(
                    f"{limit} handles of this conversation are live, which is the limit ([limits] live_handles); "
                    "wait for some of them or abort them",
                    code="limit_exceeded",
                )
                continue
            room -= spawn
            slot.handle = self._registry.new_handle(
                id=slot.handle_id if spawn and slot.handle_id else f"call:{slot.call.id}",
                tool=slot.tool,
                conversation=self._conversation,
                turn=self._turn,
                call_id=slot.call.id,
                stateful=spawn,
                priority=slot.tool.spawn.priority,
            )
            handles.append(slot.handle)
        return handles

    def _begin(self) -> None:
        names = self._registry.conversation(self._conversation).names
        for slot in self._slots:
            if slot.handle_id is not None and slot.handle_id in names:
                slot.named = names[slot.handle_id]
                self._named[slot.named.uid] = self._named.get(slot.named.uid, 0) + 1
        self._lanes.begin()
        if not self._slots:
            self._answered.set_result(None)

    def _refuse(self, slot: Slot, error: ToolError) -> None:
        if slot.handle is None:
            self._answer(slot, error_reply(error))
        else:  # B6: whoever awaits it hears what was wrong
            self._actions.stop_unstarted(slot, error_of(error), lambda reply: self._answer(slot, reply))

    def _start(self, slot: Slot) -> None:
        if self._replies[slot.position] is not None:
            return
        if self._cancelled:
            self._withdraw(slot)
            return
        if slot.error is not None:
            self._refuse(slot, slot.error)
            return
        try:
            self._actions.start(slot, self._handles, self._named, lambda reply: self._answer(slot, reply))
        except ToolError as error:
            self._answer(slot, error_reply(error))
        except Exception as error:  # of a tool's runtime; it must not leave the call without its answer (C9)
            _log.error("call %s failed", slot.call.id, exc_info=error)
            why = f"The call failed: {type(error).__name__}: {error}"
            self._answer(slot, error_reply(ToolError(why)))

    def _answer(self, slot: Slot, reply: Reply) -> None:
        if self._replies[slot.position] is not None:
            return
        self._replies[slot.position] = reply
        self._left -= 1
        self._unname(slot)
        self._lanes.returned(slot)
        if self._left == 0 and not self._answered.done():
            self._answered.set_result(None)

    def _unname(self, slot: Slot) -> None:
        handle = slot.named
        if handle is None:
            return
        self._named[handle.uid] -= 1
        if not self._named[handle.uid]:
            del self._named[handle.uid]
            self._registry.touch(handle)  # it may count as blocked from now on

    def cancel(self) -> None:
        """B7: tell every call; those that have no result of their own soon are answered without one."""
        if self._cancelled:
            return
        self._cancelled = True
        open_slots = [slot for slot in self._slots if self._replies[slot.position] is None]
        calls = [slot.handle for slot in open_slots if slot.handle is not None and not slot.handle.stateful]
        self._actions.cancel(calls)
        asyncio.get_running_loop().call_later(CANCEL_GRACE_SECS, self._answer_the_rest)

    def _answer_the_rest(self) -> None:
        for slot in self._slots:
            if self._replies[slot.position] is None:
                self._withdraw(slot)

    def _withdraw(self, slot: Slot) -> None:
        if slot.handle is not None and slot.handle.run is None:
            self._actions.cancel([slot.handle])
        self._answer(slot, cancelled_reply())
