"""A session with an agent: prompts, and updates that are handled one at a time, in the order they came (X3).

An update belongs to the oldest turn that has not ended. A turn ends with its `turn_complete` where the agent offers
it, else with its answer. What comes when no turn is open, or is marked as background, goes to `on_background`. (What an
agent sends of its own accord just before it reads a prompt cannot be told from the turn's updates unless it is marked.)
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from keephold.acp.client.asking import CANCELLED, OnPermission, Permission, decide
from keephold.acp.client.ordered import Ordered
from keephold.acp.client.turns import Barrier, Handler, Turn, Update
from keephold.acp.extension import is_background
from keephold.acp.rpc import ConnectionLost
from keephold.acp.wire import Call, Params
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.acp.client.connection import Connection

ROUND_TRIP = "_keephold/round_trip"
"""A request that no agent knows; its answer shows that what the agent had written before has been read."""


class Session:
    """One conversation with an agent. `info` is what it answered when the session was made."""

    def __init__(self, connection: "Connection", id: str, on_background: Handler | None) -> None:
        self.id = id
        self.info: dict[str, Any] = {}
        self.on_background = on_background
        self._connection = connection
        self._queue = Ordered()
        self._open: list[Turn] = []
        self._signals: WeakValueDictionary[str, asyncio.Future[str]] = WeakValueDictionary()
        """By the id of the prompt; turns hold them."""
        self._withdrawn: set[asyncio.Future[None]] = set()

    def prompt(self, content: str | Sequence[dict[str, Any]], *, on_update: Handler | None = None) -> Turn:
        """Send a prompt: a text, or content blocks. `on_update` gets each update of the turn, one after another."""
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        turn = Turn(self, on_update)
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
        """Ask the agent to end the turn that runs. Whoever is being asked for permission is not asked any more."""
        self._connection.peer.notify("session/cancel", {"sessionId": self.id})
        for turn in self._open:
            turn.cancelled = True
        for withdrawn in self._withdrawn:
            if not withdrawn.done():
                withdrawn.set_result(None)

    async def turn_complete(self, prompt_request_id: int | str) -> str:
        """Wait for the agent's signal that the prompt's turn is complete; every update before it has been handled then.

        Returns its stop reason. An error if the agent does not offer the signal, or answers without having sent it, or
        if there is no such turn any more.
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
        """End the session, also at the agent if it knows how. Updates that have not been handled are dropped."""
        try:
            if "close" in self._connection.session_capabilities:
                await self._connection.request("session/close", {"sessionId": self.id})
        finally:
            await self._close()

    async def _close(self) -> None:
        self._connection._forget(self)
        await self._queue.close()
        self._lost(ConnectionLost("the session was closed"))

    # What the agent says, told by the connection in order of arrival

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
        """A `turn_complete`, in either form."""
        id, reason = str(params.get("promptRequestId")), str(params.get("stopReason"))
        for turn in [turn for turn in self._open if str(turn.id) == id]:
            self._end(turn, "turn_complete")
        signal = self._signals.get(id)
        if signal is not None:
            self._queue.put(lambda: None if signal.done() else signal.set_result(reason))

    def _answered(self, turn: Turn, call: Call) -> None:
        turn._answered(call)
        error = call.exception()
        if isinstance(error, ConnectionLost):
            self._lost(error)
        elif turn in self._open:
            if self._connection.offers_turn_complete:
                # It owes a signal. One that was written soon after the answer is read before the answer to this.
                self._connection.peer.request(ROUND_TRIP, {}, answered=lambda _: self._unsignalled(turn))
            else:
                self._end(turn, "response")

    def _unsignalled(self, turn: Turn) -> None:
        if turn not in self._open:
            return
        self._end(turn, "response")
        self._fail(turn.signal, KeepholdError(f"the agent answered prompt {turn.id} and sent no turn_complete for it"))

    def _end(self, turn: Turn, barrier: Barrier) -> None:
        self._open.remove(turn)
        self._queue.put(partial(turn._finish, barrier))

    def _fail(self, signal: asyncio.Future[str], error: KeepholdError) -> None:
        if not signal.done():
            signal.set_exception(error)
            signal.exception()  # nobody needs to await it

    def _lost(self, error: ConnectionLost) -> None:
        """Nothing more will come: whoever waits hears of it at once."""
        turns, self._open = self._open, []
        for turn in turns:
            turn._fail(error)
        for signal in tuple(self._signals.values()):
            self._fail(signal, error)

    # What the agent asks

    async def _permit(self, permission: Permission, on_permission: OnPermission, place: asyncio.Future[None]) -> Any:
        """Ask when everything the agent said before has been handled, unless the turn is or gets cancelled."""
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
