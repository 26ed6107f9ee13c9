"""A turn of a conversation: batches one after the other, then an end that leaves nothing behind (B1, T)."""

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.errors import HoldfastError, ToolError, TurnFailed
from holdfast.handles.state import Error, Reply
from holdfast.store.base import Opened, OpenTurn, Responded, TurnBegan, TurnEnded
from holdfast.turn.batch import Batch
from holdfast.turn.ending import Ending, end_turn, wait_no_longer
from holdfast.turn.replies import error_reply
from holdfast.turn.slot import ToolCall, read_call

if TYPE_CHECKING:
    from holdfast.runtime import Runtime


class OpenBatch(msgspec.Struct, frozen=True):
    """A batch that was never answered (B9)."""

    number: int
    calls: tuple[ToolCall, ...]
    uids: tuple[str | None, ...]
    """Of each call the uid of the handle it made, if it made one."""


class Response(msgspec.Struct, frozen=True):
    """The answer to one call. `result` is the text calling code gets, `model` the one a model gets (O2).

    `code` is the stable code of an error, None otherwise.
    """

    id: str
    result: str
    is_error: bool = False
    model: str = ""
    code: str | None = None
    notifications: tuple[dict[str, Any], ...] = ()
    """News that rides on this response. Empty until something has news."""


class Turn:
    """One turn. Use it as an async context manager; leaving the block ends it, an exception or `cancel` cancels it."""

    def __init__(self, runtime: "Runtime", conversation: str, id: str, *, resume: bool = False) -> None:
        self._runtime = runtime
        self.conversation = conversation
        self.id = id
        self.ending: Ending | None = None
        """How it ended, once it has."""
        self.failed: Error | None = None
        """Why it failed, if it did: then it can only be ended (D11)."""
        self.unfinished: OpenBatch | None = None
        """Of a resumed turn, the batch that was never answered; `resume` answers it (B9)."""
        self.answered: list[Response] | None = None
        """Of a resumed turn whose newest batch was answered: what was answered, as that may not have arrived."""
        self._resume = resume
        self._ending: asyncio.Task[Ending] | None = None
        self._batch: Batch | None = None
        self._batches = 0
        self._cancelled = False

    async def __aenter__(self) -> Self:
        self._check_not_ended()
        runtime, registry = self._runtime, self._runtime.registry
        if registry.conversation(self.conversation).turn is not None:
            raise self._open_elsewhere()
        await runtime.open()
        await registry.collect_sometimes()
        before = await registry.store.turn(self.conversation)
        if before is not None:
            if before.owner is not None and registry.store.alive(before.owner):
                raise self._open_elsewhere()
            if before.owner is not None:
                await runtime.recovery.take(before.owner)
            if self._resume:
                self.id, self._batches = before.turn, before.batches
                self.unfinished = _open_batch(before.batch)
                if before.batch is None:
                    given = await registry.store.answers(self.conversation, self.id, before.batches)
                    self.answered = None if given is None else [_response(*each) for each in given]
        began = asyncio.ensure_future(self._begin(before))
        try:
            await asyncio.shield(began)
        except asyncio.CancelledError:
            began.add_done_callback(self._never_entered)  # nobody will leave the turn: it must not stay open
            raise
        return self

    async def _begin(self, before: OpenTurn | None) -> None:
        registry = self._runtime.registry
        was, owner = (before.turn, before.owner) if before is not None else (None, None)
        began = TurnBegan(self.conversation, self.id, registry.clock.now(), was, owner)
        try:
            await registry.write((began,), keep=False)
        except HoldfastError as error:
            raise self._open_elsewhere() if error.code == "turn_open" else error from None
        registry.turn_began(self.conversation, self.id)
        if before is not None and before.batch is not None and not self._resume:
            await self._runtime.recovery.abandon(before.batch)

    def _never_entered(self, began: "asyncio.Future[None]") -> None:
        if began.cancelled() or began.exception() is None:
            self._runtime.registry.run_soon(self.end())

    def _open_elsewhere(self) -> HoldfastError:
        return HoldfastError(
            f"conversation `{self.conversation}` has an open turn; end that one first", code="turn_open"
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runtime.closing:
            return  # what is unfinished stays in the store, for a turn that resumes it (R6)
        if kind is not None:
            self.cancel()
        await self.end()

    async def run(self, calls: Sequence[ToolCall], *, park_after: float | None = None) -> list[Response]:
        """Run one batch. Every call gets exactly one response, in order; nothing a tool does raises here.

        A one-shot call that waits for its completion from outside keeps the batch waiting, after `park_after` seconds
        no longer: it is answered as a handle then (D10).
        """
        self._check_ready()
        if self.unfinished is not None:
            raise HoldfastError(
                "the batch that was open when this turn was interrupted comes first: await turn.resume()",
                code="batch_open",
            )
        wrong = calls if isinstance(calls, ToolCall) else next((c for c in calls if not isinstance(c, ToolCall)), None)
        if wrong is not None:
            raise TypeError(f"turn.run takes a list of holdfast.ToolCall(id, name, arguments), not {wrong!r:.80}")
        limit = self._runtime.limits.batch_calls
        if len(calls) > limit:
            why = f"a batch may hold {limit} calls, this one has {len(calls)} ([limits] batch_calls); nothing ran"
            return _responses(calls, [error_reply(ToolError(why, code="limit_exceeded"))] * len(calls))
        trouble = self._runtime.registry.store.trouble
        if trouble is not None:
            error = ToolError(f"Nothing of this batch ran: {trouble}", code="store_unavailable")
            return _responses(calls, [error_reply(error)] * len(calls))
        self._batches += 1
        batch = self._make_batch(calls, self._batches, park_after)
        return await self._answer(calls, batch, batch.run())

    async def resume(self, *, park_after: float | None = None) -> list[Response]:
        """Answer the unfinished batch of a resumed turn: what has finished as recorded, what had not started is run,
        what had started by its tool's `on_crash` (B9)."""
        self._check_ready()
        if self.unfinished is None:
            raise HoldfastError("this turn has no unfinished batch; see turn.unfinished", code="no_open_batch")
        unfinished, self.unfinished = self.unfinished, None
        batch = self._make_batch(unfinished.calls, unfinished.number, park_after, unfinished.uids)
        return await self._answer(unfinished.calls, batch, batch.resume(self._runtime.recovery.claim))

    def _make_batch(
        self, calls: Sequence[ToolCall], number: int, park_after: float | None, uids: Sequence[str | None] = ()
    ) -> Batch:
        runtime = self._runtime
        slots = [read_call(call, at, runtime.toolbox, runtime.limits) for at, call in enumerate(calls)]
        for slot, uid in zip(slots, uids, strict=False):
            slot.uid = uid
        batch = self._batch = Batch(
            slots, runtime.registry, runtime.actions, runtime.limits, self.conversation, self.id, number, park_after
        )
        runtime.batches.add(batch)
        if self._cancelled:
            batch.cancel()
        return batch

    async def _answer(
        self, calls: Sequence[ToolCall], batch: Batch, running: Coroutine[Any, Any, list[Reply]]
    ) -> list[Response]:
        try:
            replies = await running
            if batch.opened:  # else nothing of it is in the store, and there may be no room to say so
                await self._record(calls, replies, batch.number)
        finally:
            self._batch = None
            self._runtime.batches.discard(batch)
        if batch.failed is not None:
            self.failed = batch.failed
            self.cancel()
        return _responses(calls, replies)

    def _check_ready(self) -> None:
        self._check_not_ended()
        self._check_entered()
        if self._batch is not None:
            raise HoldfastError("a batch of this turn is still running; await it first", code="batch_open")
        self._runtime.check_open()
        if self.failed is not None:
            raise TurnFailed(f"the turn has failed ({self.failed.message}); end it and open another")

    def _check_not_ended(self) -> None:
        if self._ending is not None:
            raise HoldfastError("the turn has ended; open another with rt.turn()", code="turn_ended")

    def _check_entered(self) -> None:
        if not self._is_open:
            raise HoldfastError("the turn is not open; use it with `async with`", code="turn_not_open")

    @property
    def _is_open(self) -> bool:
        return self._runtime.registry.conversation(self.conversation).turn == self.id

    async def _record(self, calls: Sequence[ToolCall], replies: Sequence[Reply], number: int) -> None:
        """The responses, written before they are given (durable before visible)."""
        responses = tuple((c.id, r.result, r.model, r.is_error, r.code) for c, r in zip(calls, replies, strict=True))
        cursors = tuple(cursor for reply in replies for cursor in reply.cursors)
        shown = tuple(uid for reply in replies for uid in reply.shown)
        op = Responded(self.conversation, self.id, number, responses, cursors, shown)
        await self._runtime.registry.responded(op)

    def cancel(self) -> None:
        """Cancel the turn (B7): its open batch is answered soon, its handles are ended when it ends (T5)."""
        self._cancelled = True
        if self._batch is not None:
            self._batch.cancel()
        if self._ending is not None and self._is_open:
            wait_no_longer(self.conversation, self._runtime.registry, self._runtime.admission)

    async def end(self) -> Ending:
        """End the turn by each live handle's policy (T). Whoever asks again gets the same ending."""
        if self._ending is None:
            self._check_entered()
            if self._batch is not None:
                self._batch.cancel()  # nothing of a turn runs on when it has ended (T4)
            self._ending = asyncio.create_task(self._end())
        try:
            return await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            self.cancel()
            await asyncio.wait([self._ending])  # not for long: nobody is waited for any more
            raise

    async def _end(self) -> Ending:
        runtime, registry = self._runtime, self._runtime.registry
        try:
            self.ending = await end_turn(
                self.conversation,
                registry,
                runtime.admission,
                runtime.replies,
                cancelled=self._cancelled,
                turn=self.id,
            )
            await registry.write((TurnEnded(self.conversation, self.id, registry.clock.now()),))
        finally:
            registry.turn_ended(self.conversation)
        return self.ending


def _open_batch(opened: Opened | None) -> OpenBatch | None:
    if opened is None:
        return None
    calls = tuple(ToolCall(id, name, arguments) for id, name, arguments, _ in opened.calls)
    return OpenBatch(opened.batch, calls, tuple(uid for *_, uid in opened.calls))


def _response(id: str, result: str, model: str, is_error: bool, code: str | None) -> Response:
    return Response(id, result, is_error, model, code)


def _responses(calls: Sequence[ToolCall], replies: Sequence[Reply]) -> list[Response]:
    return [
        Response(call.id, reply.result, reply.is_error, reply.model, reply.code)
        for call, reply in zip(calls, replies, strict=True)
    ]
