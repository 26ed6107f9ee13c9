"""A prompt that was sent: its answer, its updates, and its end."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from keephold.acp.rpc import ConnectionLost
from keephold.acp.wire import RpcCall
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.acp.client.session import Session

Update: TypeAlias = dict[str, Any]
"""The `update` of a `session/update`, as it came: `sessionUpdate` is its kind."""
Handler: TypeAlias = Callable[[Update], Awaitable[None] | None]
Barrier: TypeAlias = Literal["turn_complete", "response"]


class TurnResult(msgspec.Struct, frozen=True):
    """The answer to a prompt. `stop_reason`: `end_turn`, `max_tokens`, `max_turn_requests`, `refusal`, `cancelled`.

    `raw` is the whole result as it came.
    """

    stop_reason: str
    raw: dict[str, Any]


class PromptTurn:
    """A turn: `await turn` gives the agent's answer, `await turn.drained()` waits for the last handler.

    Without `on_update` the updates are kept for `async for update in turn`, which ends with the turn's last one.
    """

    def __init__(self, session: "Session", on_update: Handler | None) -> None:
        self.session = session
        self.call: RpcCall
        self.signal: asyncio.Future[str]
        """The stop reason of its `turn_complete`."""
        self._on_update = on_update
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[TurnResult] = self._loop.create_future()
        self._drained: asyncio.Future[Barrier] = self._loop.create_future()
        self._kept: deque[Update] = deque()
        self._more = asyncio.Event()
        self.cancelled = False
        """Whether `cancel` was called."""

    @property
    def id(self) -> int:
        """The id of the prompt's request; a `turn_complete` names it as a string."""
        return self.call.id

    def __await__(self) -> Generator[Any, None, TurnResult]:
        """Return the answer when it has been read. Handlers may still run: see `drained`."""
        return asyncio.shield(self._result).__await__()

    async def drained(self) -> Barrier:
        """Return when the last handler of this turn has finished, and how that is known.

        `turn_complete`: the agent's signal. `response`: everything read before the answer has been handled; an update
        that the agent sends after its answer is not covered.
        """
        return await asyncio.shield(self._drained)

    def cancel(self) -> None:
        """Ask the agent to stop. The turn ends as always, most likely with stop reason `cancelled`."""
        self.cancelled = True
        self.session.cancel()

    def __aiter__(self) -> AsyncIterator[Update]:
        if self._on_update is not None:
            raise KeepholdError("this turn's updates go to its on_update; leave that out to iterate over them")
        return self

    async def __anext__(self) -> Update:
        while not self._kept:
            if self._drained.done():
                if isinstance(error := self._drained.exception(), ConnectionLost):
                    raise error
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return self._kept.popleft()

    # For the session

    def _handle(self, update: Update) -> Awaitable[None] | None:
        if self._on_update is not None:
            return self._on_update(update)
        self._kept.append(update)
        self._more.set()
        return None

    def _answered(self, call: RpcCall) -> None:
        """Take the answer. An error need not be awaited."""
        error = call.exception()
        if error is not None:
            self._result.set_exception(error)
            self._result.exception()
            return
        result = call.result()
        raw = result if isinstance(result, dict) else {}
        self._result.set_result(TurnResult(str(raw.get("stopReason")), raw))

    def _finish(self, barrier: Barrier) -> None:
        if not self._drained.done():
            self._drained.set_result(barrier)
        self._more.set()

    def _fail(self, error: BaseException) -> None:
        if not self._drained.done():
            self._drained.set_exception(error)
            self._drained.exception()
        self._more.set()
