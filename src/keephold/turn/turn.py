"""A turn of a conversation: batches one after the other, then an end that leaves nothing behind (B1, T)."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from keephold.durable.deferred import ResolveOutcome
from keephold.errors import KeepholdError, ToolError, TurnFailed
from keephold.handles.handle import Handle, HandleInfo
from keephold.handles.state import Failure, Reply
from keephold.handles.view import Conditions
from keephold.ids import check_conversation, is_plain, root_of
from keephold.store import ops
from keephold.store.base import Answers, Carrier, HandleQuery, OpenTurn, QueuedNotification
from keephold.store.rules import FAILED, STOPPED
from keephold.tools.toolbox import Tools
from keephold.turn.batch import Batch
from keephold.turn.budget import size_of
from keephold.turn.ending import Ender, Ending
from keephold.turn.notifications import Notification, result_words, still_shown
from keephold.turn.replies import error_reply
from keephold.turn.tool_call import ToolCall, read_call

if TYPE_CHECKING:
    from keephold.turn.parts import Parts


class OpenBatch(msgspec.Struct, frozen=True):
    """A batch that was never answered."""

    number: int
    calls: tuple[ToolCall, ...]
    uids: tuple[str | None, ...]
    """For each call, the uid of the handle it made, or None."""


class Response(msgspec.Struct, frozen=True):
    """The answer to one call. `result` is the text calling code gets, `model` the one a model gets.

    `code` is the stable code of an error, None otherwise.
    """

    id: str
    result: str
    is_error: bool = False
    model: str = ""
    code: str | None = None
    notifications: tuple[Notification, ...] = ()
    """The notifications that this response carries: a note on how its call was read and, in the first of a batch, those
    that were queued."""


class Turn:
    """One turn. Use it as an async context manager.

    Leaving the block ends the turn. An exception that leaves the block interrupts the turn, like a crash of the
    process: `rt.turn(conversation, resume=True)` continues it. `cancel` cancels it.
    """

    def __init__(
        self, parts: "Parts", conversation: str, id: str, *, resume: bool = False, tools: Tools | None = None
    ) -> None:
        self._parts = parts
        self.conversation = conversation
        self.id = id
        self.ending: Ending | None = None
        """How it ended, once it has."""
        self.failed: Failure | None = None
        """Why it failed, or None. A turn that has failed can only be ended."""
        self.unfinished: OpenBatch | None = None
        """The batch of a resumed turn that was never answered; `resume` answers it."""
        self.answered: list[Response] | None = None
        """The responses of a resumed turn whose newest batch was answered: they may not have arrived."""
        self.resumed = False
        """Whether it continues a turn that a dead process left open."""
        self._resume = resume
        self._tools: Tools = parts.toolbox if tools is None else tools
        self._started = False
        """The notifications for the start of the turn were delivered, or a batch was answered (N4)."""
        self._ender: Ender
        self._ending: asyncio.Task[Ending] | None = None
        self._batch: Batch | None = None
        self._batches = 0
        self._trace_left: Callable[[], None] | None = None
        self._unanswered: Batch | None = None
        """The batch whose caller was cancelled: it can be resumed, until another batch is run."""
        self._cancelled = False
        self.interrupted = False
        """Whether an exception has left its block: it is open in the store, and another turn can resume it."""
        self._stopping: asyncio.Task[Ending] | None = None
        """An end that is being given up; the next one waits for it."""
        self._enders = 0
        """How many callers wait for its end."""
        self._abandoned = False
        """The caller of `end` was cancelled."""
        self._handed: list[ops.Notified] = []
        """Results that the caller of `end` is about to get."""

    @property
    def batches(self) -> int:
        """The number of batches so far, which is the number of the newest."""
        return self._batches

    async def __aenter__(self) -> Self:
        self._check_not_ended()
        parts, registry = self._parts, self._parts.registry
        if registry.conversation(self.conversation).turn is not None:
            raise self._open_elsewhere()
        await parts.lifecycle.open()
        await registry.collect_sometimes()
        before = await registry.store.turn(self.conversation)
        if before is None and not is_plain(self.conversation):
            await self._check_name()
        if before is not None:
            if before.owner == registry.store.owner:
                await registry.write((), keep=False)  # a turn that was begun meanwhile is known then
                if registry.conversation(self.conversation).turn is not None:
                    raise self._open_elsewhere()
                # It was interrupted here, and the store could not write that.
            elif before.owner is not None:
                if registry.store.alive(before.owner):
                    raise self._open_elsewhere()
                await parts.recovery.take_first(before.owner, self.conversation)
            if self._resume:
                self.id, self._batches, self.resumed = before.turn, before.batches, True
                self._started = before.batches > (0 if before.batch is None else 1)
                if registry.traces is not None:
                    await registry.traces.resuming(self.conversation, self.id)
                if before.batch is not None:
                    calls = tuple(ToolCall(id, name, arguments) for id, name, arguments, _ in before.batch.calls)
                    uids = tuple(uid for *_, uid in before.batch.calls)
                    self.unfinished = OpenBatch(before.batch.batch, calls, uids)
                else:
                    given = await registry.store.answers(self.conversation, self.id, before.batches)
                    self.answered = None if given is None else await self._recorded(given)
        began = asyncio.ensure_future(self._begin(before))
        try:
            await asyncio.shield(began)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(self._never_entered(began))
            with contextlib.suppress(asyncio.CancelledError):  # then it ends in the background
                await asyncio.shield(leaving)
            raise
        if registry.traces is not None:
            self._trace_left = registry.traces.entered(self.conversation, self.id)
        return self

    async def _recorded(self, answers: Answers) -> list[Response]:
        """Return the responses to a batch, as the store has them."""
        given = [Response(id, result, is_error, model, code) for id, result, model, is_error, code in answers.responses]
        if given and answers.notifications:
            carried = await self._parts.notifications.with_results(answers.notifications)
            given[0] = msgspec.structs.replace(given[0], notifications=carried)
        return given

    async def _check_name(self) -> None:
        """Refuse a new conversation whose name could be taken for another one (S6)."""
        store, name = self._parts.registry.store, root_of(self.conversation)
        known = await store.conversation(name) is not None
        if not known and not await store.handles(HandleQuery(conversation=name, stateful=None, limit=1)):
            check_conversation(name)

    async def _begin(self, before: OpenTurn | None) -> None:
        parts, registry = self._parts, self._parts.registry
        was, owner = (before.turn, before.owner) if before is not None else (None, None)
        began = ops.TurnBegan(self.conversation, self.id, registry.clock.now(), was, owner)
        try:
            await registry.write((began,), keep=False)
        except KeepholdError as error:
            raise self._open_elsewhere() if error.code == "turn_open" else error from None
        registry.turn_began(self.conversation, self.id)
        parts.turns.add(self)
        self._ender = Ender(parts, self.conversation, self.id)
        if self._tools is not parts.toolbox:
            parts.offers.limit(self.conversation, self._tools)
        parts.approvals.forget(self.conversation)  # decisions made between turns are not for this turn
        if before is not None and before.batch is not None and not self._resume:
            await parts.recovery.abandon(before.batch)

    async def _never_entered(self, began: "asyncio.Future[None]") -> None:
        """Interrupt a turn whose `async with` was cancelled while it was entered."""
        await asyncio.wait((began,))
        if not began.cancelled() and began.exception() is None:
            await self._interrupt()

    def _open_elsewhere(self) -> KeepholdError:
        return KeepholdError(
            f"conversation `{self.conversation}` has an open turn; end that one first", code="turn_open"
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._trace_left is not None:
            self._trace_left()
        if self._parts.lifecycle.closing:
            return  # unfinished work stays in the store, for a turn that resumes it (R6)
        try:
            if kind is None or self._cancelled:
                await self._finish(may_speak=False)
                return
        except asyncio.CancelledError:
            await self._interrupted_now()
            raise
        await self._interrupted_now()

    async def _interrupted_now(self) -> None:
        """Interrupt the turn, unless it has ended."""
        if not self._is_open or self._parts.lifecycle.closing:
            return
        leaving = asyncio.ensure_future(self._interrupt())
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await asyncio.wait([leaving])  # not for long: handles that end are waited for within bounds
            raise

    async def _interrupt(self) -> None:
        """Lose no more than a crash (R9): end what a crash would end, and leave the turn open to be resumed."""
        registry, batch = self._parts.registry, self._batch
        self.interrupted = True
        await self._stop_ending()
        if batch is not None:  # another task waits for it
            batch.interrupt()
            batch.leave("the turn was interrupted", "turn_ended")
        with contextlib.suppress(KeepholdError):
            await registry.write((), keep=False)  # a batch that is being registered is visible then
        for each in (batch, self._unanswered):
            if each is not None:
                await each.released()
        await self._ender.interrupted(self._ender.interrupt())
        with contextlib.suppress(KeepholdError):
            await registry.write((ops.TurnReleased(self.conversation, self.id),), keep=False)
        self._forget()

    async def run(self, calls: Sequence[ToolCall], *, park_after: float | None = None) -> list[Response]:
        """Run one batch. Every call gets exactly one response, in order; errors of tools do not raise here.

        A parked one-shot call keeps the batch waiting; after `park_after` seconds it is answered as a handle instead.

        Cancelling this interrupts the batch: calls that a crash would end are aborted, and `resume` waits for the
        others. If you run another batch or end the turn instead, the others are cancelled.
        """
        self._check_ready()
        if self.unfinished is not None:
            if self._unanswered is None:
                raise KeepholdError(
                    "the batch that was open when this turn was interrupted comes first: await turn.resume()",
                    code="batch_open",
                )
            self._give_up_unanswered()
        wrong = calls if isinstance(calls, ToolCall) else next((c for c in calls if not isinstance(c, ToolCall)), None)
        if wrong is not None:
            raise TypeError(f"turn.run takes a list of keephold.ToolCall(id, name, arguments), not {wrong!r:.80}")
        limit = self._parts.limits.batch_calls
        if len(calls) > limit:
            why = f"a batch may hold {limit} calls, this one has {len(calls)} ([limits] batch_calls); nothing ran"
            return _responses(calls, [error_reply(ToolError(why, code="limit_exceeded"))] * len(calls))
        trouble = self._parts.registry.store.trouble
        if trouble is not None:
            error = ToolError(f"Nothing of this batch ran: {trouble}", code="store_unavailable")
            return _responses(calls, [error_reply(error)] * len(calls))
        self._batches += 1
        batch = self._make_batch(calls, self._batches, park_after)
        return await self._answer(calls, batch, batch.run())

    async def resume(self, *, park_after: float | None = None) -> list[Response]:
        """Answer the unfinished batch of a resumed turn, or one that was interrupted. Finished calls are answered as
        recorded, queued ones are run, and interrupted ones follow their tool's `on_crash`."""
        self._check_ready()
        if self._unanswered is not None:
            await self._parts.registry.write((), keep=False)  # the store has it by then, or never
            await self._unanswered.released()
            if not self._unanswered.opened:
                self.unfinished = None
        if self.unfinished is None:
            raise KeepholdError("this turn has no unfinished batch; see turn.unfinished", code="no_open_batch")
        unfinished, self.unfinished, self._unanswered = self.unfinished, None, None
        batch = self._make_batch(unfinished.calls, unfinished.number, park_after)
        resumed = batch.resume(self._parts.recovery.claim, unfinished.uids)
        return await self._answer(unfinished.calls, batch, resumed)

    def _make_batch(self, calls: Sequence[ToolCall], number: int, park_after: float | None) -> Batch:
        parts = self._parts
        now = parts.registry.clock.now()
        parsed = [read_call(call, at, self._tools, parts.limits, now) for at, call in enumerate(calls)]
        batch = self._batch = Batch(parsed, parts, self.conversation, self.id, number, park_after)
        parts.batches.add(batch)
        if self._cancelled:
            batch.cancel()
        return batch

    async def _answer(
        self, calls: Sequence[ToolCall], batch: Batch, running: Coroutine[Any, Any, list[Reply]]
    ) -> list[Response]:
        carried: tuple[Notification, ...] = ()
        try:
            replies = await running
            if batch.opened:  # else the store has nothing of it, and there may be no room to record that
                carried = await self._record(calls, replies, batch.number)
        except asyncio.CancelledError:
            if not self._cancelled:
                uids = tuple(None if handle is None else handle.uid for handle in batch.made)
                self.unfinished, self._unanswered = OpenBatch(batch.number, tuple(calls), uids), batch
            raise
        finally:
            self._batch = None
            self._parts.batches.discard(batch)
        if batch.failed is not None:
            self.failed = batch.failed
            self.cancel()
        for meter in self._parts.registry.meters:
            meter.shown(sum(size_of(reply.model) for reply in replies))
        return _responses(calls, replies, carried, [batch.note(at) for at in range(len(calls))])

    async def wait(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        output: Conditions = (),
        ready: Sequence[str] = (),
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Wait for handles of this conversation as `await` does, with values instead of texts. `output` has patterns by
        id."""
        return await self._parts.wait(self.conversation, all, any, timeout, output, ready)

    async def send(self, id: str, input: Any = msgspec.UNSET, *, keys: Sequence[str] = ()) -> dict[str, Any]:
        """Send a handle of this conversation input or keys as the user, or answer its open question; None closes its
        input. Returns its state when it has settled. Raises `ToolError` if it is refused."""
        return await self._parts.send(self.conversation, id, input, keys)

    async def resolve(self, key: str, resolution: Mapping[str, Any]) -> ResolveOutcome:
        """Complete the wait that a key stands for: `{"status": "ok", "payload": …}` and its siblings."""
        return await self._parts.resolve(key, resolution)

    async def handle(self, id: str) -> HandleInfo:
        """Return the newest handle of that id in this conversation."""
        return await self._parts.handle(self.conversation, id)

    async def handles(
        self,
        *,
        state: Literal["pending", "running", "waiting", "stopped"] | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> list[HandleInfo]:
        """Return the spawned handles of this conversation, oldest first; `after` is the last uid of the page before."""
        return await self._parts.handles(self.conversation, state, limit, after)

    async def notifications(self) -> tuple[Notification, ...]:
        """Return the notifications to send to the model with the user's next message.

        Before the first batch these include those for the start of the turn. They are recorded as delivered.
        """
        self._check_ready()
        carrier: Carrier = "message" if self._started else "turn"
        self._started = True
        return await self._parts.notifications.take(self.conversation, carrier)

    async def urgent(self) -> None:
        """Wait until there is a critical notification for the model, or the turn has ended.

        If you stream the model's answer, stop then, keep the text so far, and send `notifications()` at once."""
        self._check_not_ended()
        self._check_entered()
        await self._parts.notifications.urgent(self.conversation)

    def _check_ready(self) -> None:
        self._check_not_ended()
        self._check_entered()
        if self._batch is not None:
            raise KeepholdError("a batch of this turn is still running; await it first", code="batch_open")
        self._parts.lifecycle.check_open()
        if self.failed is not None:
            raise TurnFailed(f"the turn has failed ({self.failed.message}); end it and open another")

    def _give_up_unanswered(self) -> None:
        """Cancel what is left of an interrupted batch, because the turn continues without it (B7)."""
        if self._unanswered is not None:
            self._unanswered.cancel()
            self._unanswered = self.unfinished = None

    def _check_not_ended(self) -> None:
        if self._ending is not None or self.interrupted:
            raise KeepholdError("the turn has ended; open another with rt.turn()", code="turn_ended")

    def _check_entered(self) -> None:
        if not self._is_open:
            raise KeepholdError("the turn is not open; use it with `async with`", code="turn_not_open")

    @property
    def _is_open(self) -> bool:
        return self._parts.registry.conversation(self.conversation).turn == self.id

    async def _record(
        self, calls: Sequence[ToolCall], replies: Sequence[Reply], number: int
    ) -> tuple[Notification, ...]:
        """Write the responses before they are returned, and return the notifications they carry."""
        responses = tuple((c.id, r.result, r.model, r.is_error, r.code) for c, r in zip(calls, replies, strict=True))
        cursors = tuple(cursor for reply in replies for cursor in reply.cursors)
        shown = still_shown(self._parts.registry, replies)
        carry: tuple[Carrier, ...] = ("response",) if self._started else ("response", "turn")
        op = ops.Responded(self.conversation, self.id, number, responses, cursors, shown, carry if calls else ())
        carried = await self._parts.notifications.carried(self._parts.registry.responded(op))
        if calls:
            self._started = True
            self._parts.notifications.delivered(self.conversation)
        return await self._parts.notifications.present(carried)

    def cancel(self) -> None:
        """Cancel the turn: its open batch is answered soon, and its handles are ended with the turn."""
        self._cancelled = True
        if self._batch is not None:
            self._batch.cancel()
        if self._ending is not None and self._is_open:
            self._ender.wait_no_longer()

    async def end(self) -> Ending:
        """End the turn by each live handle's policy. A second call returns the same ending.

        If `ending.again` is set, the turn is still open and the model gets another response: send it `ending.message`,
        run its calls, then end the turn once more.
        """
        return await self._finish(may_speak=True)

    async def _finish(self, *, may_speak: bool) -> Ending:
        if self._ending is None:
            self._check_entered()
            if self._batch is not None:
                self._batch.cancel()  # no call of a turn runs after its end (T4)
            self._give_up_unanswered()
            self._ending = asyncio.create_task(self._end(may_speak))
        ending = self._ending
        self._enders += 1
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            if ending.cancelled():
                why = "the runtime was closed" if self._parts.lifecycle.closing else "the turn was interrupted"
                raise KeepholdError(
                    f"{why} before the turn had ended; it is in the store, and "
                    "`rt.turn(conversation, resume=True)` takes it up again",
                    code="runtime_closed" if self._parts.lifecycle.closing else "turn_ended",
                ) from None
            if self._cancelled:
                self._abandoned = True
                await asyncio.wait([ending])  # not for long: the end of a cancelled turn waits for no handle
            elif self._enders == 1:
                self._abandoned = True
                await self._stop_ending()
            raise
        finally:
            self._enders -= 1

    async def _stop_ending(self) -> None:
        """R9: nobody waits for the end any more. The turn stays open, unless it has ended by now."""
        ending = self._ending
        if ending is None or ending.done():
            return
        ending.cancel()
        self._ending, self._stopping = None, ending
        self._ender.interrupt()
        await asyncio.wait([ending])
        if ending.cancelled():
            self._abandoned = False
        elif self._ending is None:  # too late: it has ended
            self._ending = ending

    def _leave(self) -> None:
        """Stop ending because the runtime is closing: unfinished work stays in the store (R6)."""
        if self._ending is not None:
            self._ending.cancel()

    async def _end(self, may_speak: bool) -> Ending:
        registry, over = self._parts.registry, True
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
            if self.ending is not None:
                return self.ending
        try:
            ending = await self._ender.round(cancelled=self._cancelled, may_speak=may_speak)
            over = not ending.again or self._cancelled
            await registry.write(self._final_ops(ending, may_speak and not self._abandoned, over))
            if self._abandoned and self._handed:
                await registry.write(self._handed)
            self._handed = []
            if over:
                self.ending = ending
            else:
                self._ending = None
        except asyncio.CancelledError:
            over = registry.closing  # else it was interrupted, and can be ended again
            raise
        finally:
            if over:
                self._forget()
        return ending

    def _forget(self) -> None:
        """Remove the turn from the parts of the runtime: it is open here no more."""
        parts, conversation = self._parts, self.conversation
        parts.turns.discard(self)
        if not parts.registry.conversation(conversation).live:  # a kept workflow still has steps to run
            parts.offers.forget(conversation)
        parts.registry.turn_ended(conversation)
        parts.approvals.forget(conversation)
        parts.inquiries.forget(conversation, self.id)
        parts.notifications.forget(conversation)

    def _final_ops(self, ending: Ending, taken: bool, over: bool) -> list[ops.Op]:
        """Return the operations of the turn's end.

        The model learns the results of handles that the end waited for: by the message of another response or, without
        one, by notifications, even if the settings turn them off (T3). Aborts are notified by the settings."""
        now, owed, heard = self._parts.registry.clock.now(), self._ender.owed, ending.again and taken
        results = [_result_notification(handle, result, now) for handle, result in owed.items()]
        told = self._ender.over if heard else [*owed, *self._ender.told]
        last: list[ops.Op] = [ops.TakenBack(self.conversation, tuple((handle.uid, "stopped") for handle in told))]
        if heard:  # by the message; if the process dies before it is sent, by notifications
            last.append(ops.HandedOut(self.conversation, tuple(_as_notification(each) for each in results)))
            self._handed = results
        else:
            last += results
        if ending.aborted:
            last.append(ops.Notified(self.conversation, "turn.aborted", "warning", ending.aborted, now))
        if over:
            last.append(ops.TurnEnded(self.conversation, self.id, now))
        return last


def _as_notification(each: ops.Notified) -> QueuedNotification:
    return QueuedNotification(
        0, each.conversation, each.kind, each.level, each.message, each.at, each.uid, each.carriers
    )


def _result_notification(handle: Handle, result: dict[str, Any], at: float) -> ops.Notified:
    """Make the notification of a handle's result at the end of its turn (T2, T3)."""
    failed = bool(result.get("is_error"))
    kind, level = (FAILED, "error") if failed else (STOPPED, "info")
    message = result_words(handle, failed, str(result.get("result", "")))
    carriers = handle.tool.spawn.notifications.deliver
    return ops.Notified(handle.conversation, kind, level, message, at, handle.uid, carriers)  # type: ignore[arg-type]


def _responses(
    calls: Sequence[ToolCall],
    replies: Sequence[Reply],
    carried: tuple[Notification, ...] = (),
    notes: Sequence[tuple[Notification, ...]] = (),
) -> list[Response]:
    carries = [(*(notes[at] if notes else ()), *(() if at else carried)) for at in range(len(calls))]
    return [
        Response(call.id, reply.result, reply.is_error, reply.model, reply.code, own)
        for call, reply, own in zip(calls, replies, carries, strict=True)
    ]
