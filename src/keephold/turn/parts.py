"""The parts of a runtime that turns, single calls and wait tools work with, made once by the runtime."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.durable.calls import Durability
from keephold.durable.deferred import ResolveOutcome, read_resolution
from keephold.errors import KeepholdError
from keephold.handles.handle import HandleInfo
from keephold.handles.registry import Registry
from keephold.handles.view import Conditions, Handles
from keephold.limits import Limits
from keephold.tools.toolbox import Offers, Toolbox
from keephold.turn.actions import Actions
from keephold.turn.admission import Admission
from keephold.turn.approvals import Approvals
from keephold.turn.batch import Batch
from keephold.turn.inquiry import Inquiries
from keephold.turn.notifications import Notifications
from keephold.turn.prompt_queue import PromptQueue
from keephold.turn.recovery import Recovery
from keephold.turn.relay import Relay
from keephold.turn.replies import Replies

if TYPE_CHECKING:
    from keephold.turn.turn import Turn

Work = Callable[[], Coroutine[Any, Any, None]]


class Lifecycle:
    """Opens a runtime once and closes it once, however often that is asked for."""

    def __init__(self, open: Work, close: Work) -> None:
        self._open = open
        self._close = close
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._process = 0

    @property
    def closing(self) -> bool:
        """Whether the runtime is being closed, is closed, or belongs to the process from which this one was forked."""
        return self._closing is not None or self._is_inherited

    @property
    def _is_inherited(self) -> bool:
        return self._opening is not None and self._process != os.getpid()

    async def open(self) -> None:
        if self._opening is None:
            self._process = os.getpid()
            self._opening = asyncio.create_task(self._open())
        self._check_not_inherited()
        if not self._opening.done():
            await asyncio.shield(self._opening)
        self._opening.result()  # raises why it could not be opened

    def check_open(self) -> None:
        """Raise if the runtime is closed."""
        self._check_not_inherited()
        if self.closing:
            raise KeepholdError("the runtime is closed; open a new one", code="runtime_closed")

    def _check_not_inherited(self) -> None:
        if self._is_inherited:
            raise KeepholdError(
                "the runtime belongs to the process from which this one was forked; open one in this process, started "
                'with the start method "spawn" of multiprocessing',
                code="runtime_closed",
            )

    async def close(self) -> None:
        if self._is_inherited:
            return  # all of it is its parent's
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_opened())
        await asyncio.shield(self._closing)

    async def _close_opened(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        await self._close()


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of one runtime."""

    lifecycle: Lifecycle
    registry: Registry
    toolbox: Toolbox
    offers: Offers
    limits: Limits
    replies: Replies
    durability: Durability
    inquiries: Inquiries
    notifications: Notifications
    approvals: Approvals
    prompt_queue: PromptQueue
    admission: Admission
    recovery: Recovery
    relay: Relay
    actions: Actions
    batches: set[Batch]
    """Those that are not answered yet."""
    turns: "set[Turn]"
    """Those that are open."""

    async def ready(self) -> None:
        """Open the runtime. Handles in memory can be read after it was closed, too."""
        if self.lifecycle.closing and not self.registry.store.durable:
            return
        self.lifecycle.check_open()
        await self.lifecycle.open()

    async def wait(
        self,
        conversation: str,
        all: Sequence[str],
        any: Sequence[str],
        timeout: float | None,
        output: Conditions = (),
        ready: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Wait as `await` does (A2, A3, A9), with values instead of texts."""
        await self.ready()
        handles = Handles(self.registry, conversation)
        waited = await handles.wait(all=all, any=any, output=output, ready=ready, timeout=timeout)
        return self.replies.values(waited)

    async def send(
        self, conversation: str, id: str, input: Any | msgspec.UnsetType, keys: Sequence[str]
    ) -> dict[str, Any]:
        """Send a handle input or keys as the user, and return its state when it has settled (C6, Q4)."""
        await self.ready()
        handle = await Handles(self.registry, conversation).find(id)
        reply = await self.actions.send(handle, input, keys)
        return msgspec.json.decode(reply.result, type=dict[str, Any])

    async def handle(self, conversation: str, id: str) -> HandleInfo:
        """Return the newest handle of an id."""
        await self.ready()
        handle = await Handles(self.registry, conversation).find(id)
        await self.registry.facts.show((handle,))
        return handle.info()

    async def handles(
        self,
        conversation: str | None,
        state: Literal["pending", "running", "waiting", "stopped"] | None,
        limit: int,
        after: str | None,
    ) -> list[HandleInfo]:
        """Return spawned handles, oldest first."""
        await self.ready()
        return await self.registry.page(conversation=conversation, state=state, limit=limit, after=after)

    async def resolve(self, key: str, resolution: Mapping[str, Any]) -> ResolveOutcome:
        """Complete the wait that a key stands for (D4, D5)."""
        await self.ready()
        return await self.durability.waits.resolve(key, read_resolution(resolution, self.limits.nesting))
