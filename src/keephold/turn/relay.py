"""Handles of other processes on the same store: what only their owner can do is asked of it (M3).

A request is a row; the bell tells the owner, who acts and writes the reply. An owner that lives and is silent for 5 s
is an error that says so; of one that is dead the handle is recovered first.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Reply
from keephold.store.base import Replied, Request, RequestClosed, Requested
from keephold.tools.base import Action
from keephold.tools.run import FORCE_SECS
from keephold.turn.replies import aborted, error_reply
from keephold.turn.slot import Slot, slot_of

if TYPE_CHECKING:
    from keephold.turn.actions import Actions
    from keephold.turn.recovery import Recovery

SILENT_SECS = 5.0
_LOOK_SECS = 0.2
"""How often to see whether the owner of a handle lives while it is asked for something."""
_TAKEN = b""
"""The reply of an owner that has begun and is not done yet."""


class _Wanted(msgspec.Struct):
    """A request, as it is stored."""

    action: Action
    cursor: int
    arguments: dict[str, Any] = {}
    """What else the call says: of `apply` its input, of a terminal's also keys, a size, a view."""
    cause: str = ""
    by: Literal["assistant", "person"] = "assistant"
    declines: bool = False


class Relay:
    """Asks other processes, and does what they ask."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._awaited: dict[str, asyncio.Event] = {}
        self._taken: set[str] = set()
        self.actions: Actions
        self.recovery: Recovery

    def elsewhere(self, handle: Handle) -> bool:
        """Whether another process runs the handle."""
        return handle.active and handle.owner is not None and handle.owner != self._registry.store.owner

    # Asking

    def ask(self, handle: Handle, slot: Slot, answer: Callable[[Reply], None]) -> None:
        """Have the owner of a handle do what the slot's call wants."""
        self._registry.run_soon(self._ask(handle, slot, answer))

    async def _ask(self, handle: Handle, slot: Slot, answer: Callable[[Reply], None]) -> None:
        assert slot.action is not None
        try:
            reply = await self._request(
                handle, _Wanted(slot.action, handle.cursor, slot.arguments, slot.cause.decode(), slot.by, slot.declines)
            )
            if reply is not None:
                answer(reply)
            elif slot.cause and await self._registry.recorded(handle, slot.cause):
                answer(self.actions.show(handle))
            else:  # nobody there did it, and nobody there will
                self.actions.act(slot, handle, answer)
        except KeepholdError as error:
            answer(error_reply(error if isinstance(error, ToolError) else ToolError(error.message, code=error.code)))

    async def _request(self, handle: Handle, wanted: _Wanted) -> Reply | None:
        registry, store, owner = self._registry, self._registry.store, handle.owner
        assert owner is not None
        id, rung = secrets.token_hex(12), asyncio.Event()
        self._awaited[id] = rung
        try:
            await registry.write((Requested(id, handle.uid, owner, msgspec.json.encode(wanted)),), keep=False)
            body, asked_at = None, asyncio.get_running_loop().time()
            while not body:
                if not store.alive(owner):
                    await self.recovery.take(owner)
                    await registry.refresh((handle.uid,))
                    if handle.owner == owner and wanted.action == "abort":
                        await self.recovery.end_left(handle.uid, owner, aborted(wanted.by))
                        await registry.refresh((handle.uid,))
                    if not self.elsewhere(handle):
                        return None
                    if handle.owner == owner:
                        raise _gone(handle)
                    return await self._request(handle, wanted)  # somebody who has the tool was first
                with contextlib.suppress(TimeoutError):  # nothing rings when a process dies
                    async with asyncio.timeout(_LOOK_SECS):
                        await rung.wait()
                rung.clear()
                body = await store.reply(id)
                patience = SILENT_SECS if body is None else SILENT_SECS + _longest(handle)
                if not body and asyncio.get_running_loop().time() > asked_at + patience:
                    raise _silent(handle)
            await registry.refresh((handle.uid,))
            return msgspec.json.decode(body, type=Reply)
        finally:
            del self._awaited[id]
            registry.commit((RequestClosed(id),), lambda _: None, lambda _: None)

    def look(self, ids: Iterable[str] | None) -> None:
        """Replies may have come: to those requests, or to any."""
        for id in tuple(self._awaited) if ids is None else ids:
            if id in self._awaited:
                self._awaited[id].set()

    # Doing what others ask

    async def serve(self) -> None:
        """Take every request that waits for us."""
        for request in await self._registry.store.requests():
            if request.id not in self._taken:
                self._taken.add(request.id)
                self._serve(request)

    def _serve(self, request: Request) -> None:
        handle = self._registry.loaded(request.uid)
        wanted = msgspec.json.decode(request.body, type=_Wanted)
        self._reply(request.id, _TAKEN)

        def answer(reply: Reply) -> None:
            self._reply(request.id, msgspec.json.encode(reply))
            self._taken.discard(request.id)

        if handle is None:
            answer(error_reply(ToolError("the handle is not run here any more; ask again", code="handle_not_found")))
            return
        handle.cursor = max(handle.cursor, wanted.cursor)
        slot = slot_of(handle, wanted.action, wanted.arguments, by=wanted.by)
        slot.cause, slot.declines = wanted.cause.encode(), wanted.declines
        try:
            self.actions.act(slot, handle, answer)
        except ToolError as error:
            answer(error_reply(error))

    def _reply(self, id: str, body: bytes) -> None:
        self._registry.commit((Replied(id, body),), lambda _: None, lambda _: None, keep=True)


def _longest(handle: Handle) -> float:
    """How long an owner that has begun may take: to settle, or to end what does not want to."""
    spawn = handle.tool.spawn
    return max(spawn.settle_max_ms, spawn.abort_grace_ms) / 1000 + FORCE_SECS


def _silent(handle: Handle) -> ToolError:
    return ToolError(
        f"The process that runs handle `{handle.id}` lives but did not answer within {SILENT_SECS:g} s; it may be "
        "stopped or busy. Try again.",
        code="owner_not_answering",
    )


def _gone(handle: Handle) -> ToolError:
    return ToolError(
        f"The process that ran handle `{handle.id}` is gone, and this one has no tool `{handle.tool.name}` to go on "
        "with it. Start a runtime that has the tool, or abort it.",
        code="owner_not_answering",
        transient=True,
    )
