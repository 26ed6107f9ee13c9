"""Single calls without a turn, for protocols whose clients have no turns (M5).

Each call is a batch of one. Calls begin in the order they come, so a call finds a handle that an earlier one spawned;
they run side by side. No turn ends any handle. A call whose client leaves keeps running and
can be found again by its id.
"""

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Reply
from keephold.handles.view import PATIENT, Patience
from keephold.store.base import CARRIERS, QueuedNotification, Responded, Shown
from keephold.tools.toolbox import Tools
from keephold.turn.batch import Batch
from keephold.turn.budget import size_of
from keephold.turn.notifications import still_shown
from keephold.turn.prompt_queue import PromptQueue
from keephold.turn.replies import error_reply
from keephold.turn.tool_call import ToolCall, read_call
from keephold.turn.turn import Response

if TYPE_CHECKING:
    from keephold.turn.parts import Parts


_PASSES = 30
"""Passes of the event loop in which a server has sent a reply."""


class QueuedCall:
    """A call that a queue has begun."""

    def __init__(self, queue: "CallQueue", call: ToolCall, batch: Batch) -> None:
        self._queue = queue
        self._call = call
        self._batch = batch
        self._answer: asyncio.Task[Response] | None = None
        self.left = False
        """The client has left: its answer does not count as shown, and carries no notifications."""
        self.notifications: tuple[QueuedNotification, ...] = ()
        """The notifications that the answer carries."""

    @property
    def handle(self) -> Handle | None:
        """The handle the call has made: a spawn's, or the unseen one of a one-shot call."""
        return self._batch.made[0]

    async def reply(self) -> Reply:
        """Return the reply without notifications; it does not count as shown. Cancelling this cancels the call."""
        (reply,) = await self._batch.replies()
        return reply

    async def response(self) -> Response:
        """Return the answer with its notifications (N4). Cancelling this leaves the call running."""
        if self._answer is None:
            self._answer = asyncio.create_task(self._queue._answered(self, self._call))
        return await asyncio.shield(self._answer)

    def cancel(self) -> None:
        """Cancel the call (B7)."""
        self._batch.cancel()

    def detach(self) -> None:
        """Stop waiting for the answer; the call keeps running and is found by its uid."""
        self.left = True
        self._queue._queue_again(self)
        if self._answer is None:
            self._answer = asyncio.create_task(self._queue._answered(self, self._call))

    @property
    def needs_person(self) -> bool:
        """Whether the call waits for the user, not for its tool."""
        return self._batch.needs_person

    def answer_now(self) -> None:
        """Answer with the state of the call's handle, so that the client does not give up (M7)."""
        self._batch.answer_now()

    def gone(self) -> None:
        """The client is gone. If no reply has named a handle and the user has not permitted the call, nothing starts
        any more, and its prompt is withdrawn (P7). Otherwise as `leave`."""
        self.detach()
        if self._batch.asks_permission:
            self._batch.cancel()
        else:
            self.leave()

    def leave(self) -> None:
        """The client waits no longer: a one-shot call continues as a handle that is found by `call:<label>`, and its
        end is notified. A call that only reads or waits is cancelled."""
        handle = self.handle
        self.detach()
        if handle is None or handle.stateful:
            return
        only_reads = handle.tool.unrecorded and handle.tool.hints.get("readOnlyHint")
        if only_reads or handle.kind == "timer":
            self._batch.cancel()
        elif not handle.tool.unrecorded:
            self._queue._parts.registry.run_soon(self._batch.promote_to_handle(handle, left=True))


class CallQueues:
    """The queues of one runtime, by conversation, while they are in use."""

    def __init__(self, parts: "Parts") -> None:
        self._parts = parts
        self._queues: WeakValueDictionary[str, CallQueue] = WeakValueDictionary()

    def of(self, conversation: str) -> "CallQueue":
        queue = self._queues.get(conversation)
        if queue is None:
            queue = self._queues[conversation] = CallQueue(self._parts, conversation)
        return queue


class CallQueue:
    """Takes the calls of one conversation, one by one."""

    def __init__(self, parts: "Parts", conversation: str) -> None:
        self._parts = parts
        self.conversation = conversation
        self._id = f"d-{secrets.token_hex(6)}"
        self._count = 0
        self._lock = asyncio.Lock()
        self._unrecorded: list[tuple[str, Shown]] = []
        """States that replies have shown and the store does not know of yet."""

    async def call(self, call: ToolCall, *, park_after: float | None = 30) -> Response:
        """Run one call and return its answer; errors of tools do not raise here."""
        return await (await self.begin(call, park_after=park_after)).response()

    async def begin(
        self,
        call: ToolCall,
        *,
        park_after: float | None = 30,
        prompt_queue: PromptQueue | None = None,
        tools: Tools | None = None,
        step: bool = False,
        waits: Patience = PATIENT,
        metadata: dict[str, Any] | None = None,
    ) -> QueuedCall:
        """Begin a call. `prompt_queue` gets its prompts, if it decides (K9), and its questions unless it spawns.
        `tools` are those it may use (default: those that the conversation is offered). `step`, `waits` and `metadata`
        are those of `Batch`."""
        parts, deciding = self._parts, prompt_queue if prompt_queue is not None and prompt_queue.decides else None
        async with self._lock:
            parts.lifecycle.check_open()
            await parts.lifecycle.open()
            await self._flush()
            if parts.registry.collecting_is_due:
                parts.registry.run_soon(parts.registry.collect_sometimes())
            self._count += 1
            if tools is None:
                tools = await parts.offers.of(self.conversation)
            parsed = read_call(call, 0, tools, parts.limits, parts.registry.clock.now())
            trouble = parts.registry.store.trouble
            if trouble is not None:
                error = ToolError(f"The call was not run: {trouble}", code="store_unavailable")
                parsed = replace(parsed, error=error)
            batch = Batch(
                [parsed],
                parts,
                self.conversation,
                self._id,
                self._count,
                park_after,
                resumable=False,
                prompt_queue=deciding,
                patience=park_after if deciding is None else None,  # the client's user may take their time
                step=step,
                waits=waits,
                metadata=metadata,
            )
            parts.batches.add(batch)
            try:
                await batch.begin()
            except BaseException:
                parts.batches.discard(batch)
                raise
        queued = QueuedCall(self, call, batch)
        if prompt_queue is not None and queued.handle is not None and not queued.handle.stateful:
            parts.prompt_queue.assign(queued.handle, prompt_queue)
        return queued

    async def _answered(self, queued: QueuedCall, call: ToolCall) -> Response:
        try:
            reply = await queued.reply()
        except KeepholdError as error:  # the runtime is closing
            reply = error_reply(error)
        finally:
            self._parts.batches.discard(queued._batch)
        if not queued.left:
            for meter in self._parts.registry.meters:
                meter.shown(size_of(reply.model))
            with contextlib.suppress(KeepholdError):  # the store cannot be read: notifications stay queued
                queued.notifications = await self._record(reply)
        carried = await self._parts.notifications.present(queued.notifications)
        if queued.left:
            self._queue_again(queued)
            carried = ()
        carried = (*queued._batch.note(0), *carried)
        return Response(call.id, reply.result, reply.is_error, reply.model, reply.code, carried)

    def _queue_again(self, queued: QueuedCall) -> None:
        """Queue the notifications of an answer that was not delivered again (N3)."""
        undelivered, queued.notifications = queued.notifications, ()
        if undelivered:
            self._parts.notifications.queue_again(undelivered)

    async def _record(self, reply: Reply) -> tuple[QueuedNotification, ...]:
        """Record that the reply was given, and return the queued notifications that it carries."""
        registry = self._parts.registry
        if registry.closing:
            return ()
        now_shown = still_shown(registry, (reply,))
        shown = tuple(dict.fromkeys((*now_shown, *self._unrecorded)))
        shown_uids = {uid for uid, _ in shown}
        waiting = await registry.store.notifications(self.conversation, len(shown_uids) + 1)
        op = Responded(self.conversation, self._id, self._count, (), reply.cursors, shown, CARRIERS)
        if all(queued.uid in shown_uids for queued in waiting):
            # A crash before this is written only repeats what was shown (N3).
            if reply.cursors:
                registry.run_soon(self._shown(replace(op, carry=())))
            elif now_shown:
                self._unrecorded += now_shown
                registry.run_soon(self._record_late())
            return ()
        return await self._parts.notifications.carried(registry.responded(op))

    async def _shown(self, op: Responded) -> None:
        with contextlib.suppress(KeepholdError):
            await self._parts.registry.responded(op)

    async def _record_late(self) -> None:
        """Record shown states when the reply has left: the commit may hold the event loop for an fsync."""
        for _ in range(_PASSES):
            await asyncio.sleep(0)
        await self._flush()

    async def _flush(self) -> None:
        if shown := tuple(dict.fromkeys(self._unrecorded)):
            await self._shown(Responded(self.conversation, self._id, self._count, (), (), shown))
            self._unrecorded = [each for each in self._unrecorded if each not in shown]
