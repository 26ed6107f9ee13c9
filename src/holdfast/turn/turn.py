"""A turn of a conversation: batches one after the other, then an end that leaves nothing behind (B1, T)."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.errors import HoldfastError, ToolError
from holdfast.store.base import Responded
from holdfast.tools.base import Reply
from holdfast.turn.batch import Batch
from holdfast.turn.ending import Ending, end_turn, wait_no_longer
from holdfast.turn.replies import error_reply
from holdfast.turn.slot import ToolCall, read_call

if TYPE_CHECKING:
    from holdfast.runtime import Runtime


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

    def __init__(self, runtime: "Runtime", conversation: str, id: str) -> None:
        self._runtime = runtime
        self.conversation = conversation
        self.id = id
        self.ending: Ending | None = None
        """How it ended, once it has."""
        self._ending: asyncio.Task[Ending] | None = None
        self._batch: Batch | None = None
        self._batches = 0
        self._cancelled = False

    async def __aenter__(self) -> Self:
        self._check_not_ended()
        known = self._runtime.registry.conversation(self.conversation)
        if known.turn is not None:
            raise HoldfastError(
                f"conversation `{self.conversation}` has an open turn; end that one first", code="turn_open"
            )
        self._runtime.registry.turn_began(self.conversation, self.id)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.cancel()
        await self.end()

    async def run(self, calls: Sequence[ToolCall]) -> list[Response]:
        """Run one batch. Every call gets exactly one response, in order; nothing a tool does raises here."""
        self._check_not_ended()
        self._check_entered()
        if self._batch is not None:
            raise HoldfastError("a batch of this turn is still running; await it first", code="batch_open")
        self._runtime.check_open()
        wrong = calls if isinstance(calls, ToolCall) else next((c for c in calls if not isinstance(c, ToolCall)), None)
        if wrong is not None:
            raise TypeError(f"turn.run takes a list of holdfast.ToolCall(id, name, arguments), not {wrong!r:.80}")
        replies = await self._replies(calls)
        return [
            Response(call.id, reply.result, reply.is_error, reply.model, reply.code)
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _check_not_ended(self) -> None:
        if self._ending is not None:
            raise HoldfastError("the turn has ended; open another with rt.turn()", code="turn_ended")

    def _check_entered(self) -> None:
        if not self._is_open:
            raise HoldfastError("the turn is not open; use it with `async with`", code="turn_not_open")

    @property
    def _is_open(self) -> bool:
        return self._runtime.registry.conversation(self.conversation).turn == self.id

    async def _replies(self, calls: Sequence[ToolCall]) -> Sequence[Reply]:
        runtime = self._runtime
        limit = runtime.limits.batch_calls
        if len(calls) > limit:
            why = f"a batch may hold {limit} calls, this one has {len(calls)} ([limits] batch_calls); nothing ran"
            return [error_reply(ToolError(why, code="limit_exceeded"))] * len(calls)
        slots = [read_call(call, at, runtime.toolbox, runtime.limits) for at, call in enumerate(calls)]
        self._batches += 1
        batch = self._batch = Batch(
            slots, runtime.registry, runtime.actions, runtime.limits, self.conversation, self.id, self._batches
        )
        if self._cancelled:
            batch.cancel()
        try:
            replies = await batch.run()
            await self._record(calls, replies)
        finally:
            self._batch = None
        return replies

    async def _record(self, calls: Sequence[ToolCall], replies: Sequence[Reply]) -> None:
        """The responses, written before they are given (durable before visible)."""
        responses = tuple((c.id, r.result, r.is_error) for c, r in zip(calls, replies, strict=True))
        cursors = tuple(cursor for reply in replies for cursor in reply.cursors)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        op = Responded(self.conversation, self.id, self._batches, responses, cursors)
        self._runtime.registry.responded(op, lambda: None if written.done() else written.set_result(None))
        await written

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
        runtime = self._runtime
        try:
            self.ending = await end_turn(
                self.conversation, runtime.registry, runtime.admission, runtime.replies, cancelled=self._cancelled
            )
        finally:
            runtime.registry.turn_ended(self.conversation)
        return self.ending
