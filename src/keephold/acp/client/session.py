"""A session with an agent: prompts and their turns, updates in order, and permission requests (X3).

An update belongs to the oldest turn that has not ended. A turn ends with its `turn_complete` where the agent offers it,
else with its answer. Updates outside a turn, or marked as background, go to `on_background`. An unmarked update that
the agent sends of its own accord just before it reads a prompt counts for that prompt's turn.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from keephold.acp.wire import ConnectionLost, Params, RpcCall, invalid_params, is_background
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.acp.client.connection import Connection

Update: TypeAlias = dict[str, Any]
"""The `update` of a `session/update`, as it came: `sessionUpdate` is its kind."""
Handler: TypeAlias = Callable[[Update], Awaitable[None] | None]
Barrier: TypeAlias = Literal["turn_complete", "response"]
Job: TypeAlias = Callable[[], Awaitable[Any] | None]
_log = logging.getLogger(__name__)
CANCELLED = {"outcome": {"outcome": "cancelled"}}
ROUND_TRIP = "_keephold/round_trip"
"""A request that no agent knows; its answer shows that everything the agent wrote before has been read."""


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


class Ordered:
    """A queue of functions, plain or asynchronous, run one after another. An exception is logged and stops nothing."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    def put(self, job: Job) -> None:
        """Run the job after everything that was put before."""
        if self._closed:
            return
        self._jobs.append(job)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def place(self) -> asyncio.Future[None]:
        """Return a future that is done when everything that was put before has been done."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            place.cancel()
        self.put(lambda: None if place.done() else place.set_result(None))
        return place

    async def _work(self) -> None:
        try:
            while self._jobs:
                await _do(self._jobs.popleft())
        finally:
            self._worker = None

    async def close(self) -> None:
        """Stop. The running job is cancelled, unless it is the caller."""
        self._closed = True
        self._jobs.clear()
        worker = self._worker
        if worker is not None and worker is not asyncio.current_task():
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


async def _do(job: Job) -> None:
    try:
        doing = job()
        if inspect.isawaitable(doing):
            await doing
    except Exception:
        _log.exception("a handler failed; the next update is handled all the same")


class PermissionRequest(msgspec.Struct, frozen=True):
    """A request for permission: the tool call, as the agent describes it, and the options."""

    session_id: str
    tool_call: dict[str, Any]
    options: tuple[dict[str, Any], ...]

    def option(self, *kinds: str) -> str | None:
        """Return the id of the first option of these kinds, the first kind first: `allow_once`, `reject_once` …"""
        for kind in kinds:
            for option in self.options:
                if option.get("kind") == kind:
                    return str(option["optionId"])
        return None


OnPermission: TypeAlias = Callable[[PermissionRequest], Awaitable[str | None] | str | None]
"""Get a request and return the id of the chosen option, or None for `cancelled`."""


def reject(permission: PermissionRequest) -> str | None:
    """Reject: the default if nobody can be asked."""
    return permission.option("reject_once", "reject_always")


def read(params: Params) -> PermissionRequest:
    """Return the request in the params of a `session/request_permission`."""
    try:
        return msgspec.convert(
            {
                "session_id": params["sessionId"],
                "tool_call": params["toolCall"],
                "options": [{"optionId": each["optionId"], **each} for each in params["options"]],
            },
            PermissionRequest,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise invalid_params(error) from None


async def decide(permission: PermissionRequest, on_permission: OnPermission) -> dict[str, Any]:
    chosen = on_permission(permission)
    if inspect.isawaitable(chosen):
        chosen = await chosen
    if chosen is None:
        return CANCELLED
    known = [option["optionId"] for option in permission.options]
    if chosen not in known:
        raise ValueError(f"on_permission returned {chosen!r}, which is none of the options {known}")
    return {"outcome": {"outcome": "selected", "optionId": chosen}}


class Session:
    """One conversation with an agent. `info` is the agent's answer when the session was made."""

    def __init__(self, connection: "Connection", id: str, on_background: Handler | None) -> None:
        self.id = id
        self.info: dict[str, Any] = {}
        self.on_background = on_background
        self._connection = connection
        self._queue = Ordered()
        self._open: list[PromptTurn] = []
        self._signals: WeakValueDictionary[str, asyncio.Future[str]] = WeakValueDictionary()
        """By the id of the prompt; turns hold them."""
        self._withdrawn: set[asyncio.Future[None]] = set()

    def prompt(self, content: str | Sequence[dict[str, Any]], *, on_update: Handler | None = None) -> PromptTurn:
        """Send a prompt: a text, or content blocks. `on_update` gets each update of the turn, one after another."""
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        turn = PromptTurn(self, on_update)
        self._open.append(turn)
        params = {"sessionId": self.id, "prompt": blocks}
        turn.call = self._connection.peer.request("session/prompt", params, answered=partial(self._answered, turn))
        turn.signal = self._signals[str(turn.id)] = asyncio.get_running_loop().create_future()
        if turn not in self._open:
            self._fail(turn.signal, ConnectionLost("the agent is gone"))
        return turn

    @property
    def busy(self) -> bool:
        """Whether a turn has not ended."""
        return bool(self._open)

    def cancel(self) -> None:
        """Ask the agent to end the running turn, and withdraw open permission requests."""
        self._connection.peer.notify("session/cancel", {"sessionId": self.id})
        for turn in self._open:
            turn.cancelled = True
        for withdrawn in self._withdrawn:
            if not withdrawn.done():
                withdrawn.set_result(None)

    async def turn_complete(self, prompt_request_id: int | str) -> str:
        """Wait for the agent's signal that the prompt's turn is complete; every earlier update has been handled by
        then.

        Returns its stop reason. Raises if the agent does not offer the signal, if it answers without having sent it, or
        if the turn has ended.
        """
        if not self._connection.offers_turn_complete:
            raise KeepholdError(
                "the agent does not offer turn_complete; `await turn.drained()` waits for what there is"
            )
        signal = self._signals.get(str(prompt_request_id))
        if signal is None:
            raise KeepholdError(f"this session has no turn of prompt {prompt_request_id}, or not any more")
        return await asyncio.shield(signal)

    async def set_mode(self, mode: str) -> None:
        """Switch to one of the modes that `info` lists."""
        await self._connection.request("session/set_mode", {"sessionId": self.id, "modeId": mode})

    async def close(self) -> None:
        """Close the session, also at the agent if it offers that. Unhandled updates are dropped."""
        try:
            if "close" in self._connection.session_capabilities:
                await self._connection.request("session/close", {"sessionId": self.id})
        finally:
            await self._close()

    async def _close(self) -> None:
        self._connection._forget(self)
        await self._queue.close()
        self._lost(ConnectionLost("the session was closed"))

    # Messages of the agent, passed by the connection in order of arrival

    def _updated(self, params: Params) -> None:
        update = params.get("update")
        if not isinstance(update, dict):
            return
        if update.get("sessionUpdate") == "turn_complete":
            self._completed(update)
        elif not self._open or is_background(params):
            self._queue.put(partial(self._background, update))
        else:
            self._queue.put(partial(self._open[0]._handle, update))

    def _background(self, update: Update) -> Any:
        return None if self.on_background is None else self.on_background(update)

    def _completed(self, params: Params) -> None:
        """Handle a `turn_complete`, in either form."""
        id, reason = str(params.get("promptRequestId")), str(params.get("stopReason"))
        for turn in [turn for turn in self._open if str(turn.id) == id]:
            self._end(turn, "turn_complete")
        signal = self._signals.get(id)
        if signal is not None:
            self._queue.put(lambda: None if signal.done() else signal.set_result(reason))

    def _answered(self, turn: PromptTurn, call: RpcCall) -> None:
        turn._answered(call)
        error = call.exception()
        if isinstance(error, ConnectionLost):
            self._lost(error)
        elif turn in self._open:
            if self._connection.offers_turn_complete:
                # The agent owes a signal. One that it wrote soon after the answer is read before the
                # answer to this request.
                self._connection.peer.request(ROUND_TRIP, {}, answered=lambda _: self._unsignalled(turn))
            else:
                self._end(turn, "response")

    def _unsignalled(self, turn: PromptTurn) -> None:
        if turn not in self._open:
            return
        self._end(turn, "response")
        self._fail(turn.signal, KeepholdError(f"the agent answered prompt {turn.id} and sent no turn_complete for it"))

    def _end(self, turn: PromptTurn, barrier: Barrier) -> None:
        self._open.remove(turn)
        self._queue.put(partial(turn._finish, barrier))

    def _fail(self, signal: asyncio.Future[str], error: KeepholdError) -> None:
        if not signal.done():
            signal.set_exception(error)
            signal.exception()  # the caller need not await it

    def _lost(self, error: ConnectionLost) -> None:
        """Fail everything that waits: the connection has ended."""
        turns, self._open = self._open, []
        for turn in turns:
            turn._fail(error)
        for signal in tuple(self._signals.values()):
            self._fail(signal, error)

    # Requests of the agent

    async def _permit(
        self, permission: PermissionRequest, on_permission: OnPermission, place: asyncio.Future[None]
    ) -> Any:
        """Ask after all earlier updates have been handled, unless the turn is cancelled."""
        if any(turn.cancelled for turn in self._open):
            return CANCELLED

        async def ask() -> dict[str, Any]:
            await place
            return await decide(permission, on_permission)

        withdrawn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._withdrawn.add(withdrawn)
        asking = asyncio.create_task(ask())
        either: set[asyncio.Future[Any]] = {asking, withdrawn}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return CANCELLED if withdrawn.done() else asking.result()
        finally:
            self._withdrawn.discard(withdrawn)
            withdrawn.cancel()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
