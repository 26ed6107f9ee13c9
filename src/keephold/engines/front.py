"""The front end of calls that run on an engine: their tool's runtime here, and the channel of their workers.

A handle of such a call is an ordinary handle, which a `Following` keeps up to date. If this process dies, the call runs
on, and the next runtime on the store takes it back (`take_back`), by its uid.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from keephold.durable.calls import Durability
from keephold.durable.keys import Key, call_secret, make_key, present
from keephold.engines.base import Engine
from keephold.engines.following import Following
from keephold.engines.wire import ELSEWHERE, Talk, TalkAnswer, bearer
from keephold.handles.registry import Registry
from keephold.handles.state import Stopped
from keephold.tools.base import (
    Invocation,
    KeepingSink,
    Live,
    Sink,
    SupportsCancelHook,
    SupportsKeeping,
    Tool,
    ToolRuntime,
)
from keephold.tools.run import Run

_log = logging.getLogger("keephold.engines")

_STARTS_AT_ONCE = 16
_POLLS_AT_ONCE = 200
"""Calls whose end is waited for by a request that stays open. Temporal refuses more than 1,200 in a namespace, and
those of workers with them."""
_POLLS_UNTOLD = 16
"""The same, of calls that no worker has said to end, if workers say so."""
_LOOK_SECS = 15.0
_LOOKS_PER_SEC, _LOOKS_AT_ONCE = 100, 8


class FrontEnd:
    """The calls of one runtime that run on engines."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.engines = engines
        self.calls: dict[str, Following] = {}
        self.url: str | None = None
        """Where workers reach this front end, or another one of the same store."""
        self.warned = False
        """Whether a warning has said that there is no such address."""
        self.registry: Registry
        self.durability: Durability
        self.starting = asyncio.Semaphore(_STARTS_AT_ONCE)
        self.leaving: set[asyncio.Task[None] | None] = set()
        """Tasks that cancel calls which the engine may have got although its answer was lost."""
        self.reads = asyncio.Semaphore(_POLLS_AT_ONCE)
        """For calls that end."""
        self.polls: set[Following] = set()
        """Running calls whose end is waited for."""
        self.unpolled: dict[Following, None] = {}
        """Running calls that wait for their turn. The first has waited longest."""
        self.looks = asyncio.Semaphore(_LOOKS_AT_ONCE)
        self.told = False
        """Whether workers say which calls end."""

    def connect(self, registry: Registry, durability: Durability) -> None:
        self.registry, self.durability = registry, durability

    def on_engine(self, tool: Tool) -> Tool:
        """Return the tool with its engine as its runtime. Raises `KeyError` if there is no such engine."""
        if tool.engine is None:
            return tool
        return replace(tool, runtime=EngineRuntime(self, self.engines[tool.engine], tool.runtime))

    async def close(self) -> None:
        for call in tuple(self.calls.values()):
            call.release()
        for task in self.leaving:
            if task is not None:
                task.cancel()
        for engine in self.engines.values():
            await engine.close()

    def may_poll(self, call: Following) -> bool:
        """Whether the end of a running call may be waited for."""
        return call in self.polls or len(self.polls) < (_POLLS_UNTOLD if self.told else _POLLS_AT_ONCE)

    @property
    def look_secs(self) -> float:
        """How long nothing was known of a call when the engine is asked for it."""
        return _LOOK_SECS + len(self.calls) / _LOOKS_PER_SEC

    async def talk(self, uid: str, given: str, read: Callable[[], Awaitable[Talk]]) -> TalkAnswer | tuple[int, str]:
        """Answer a worker, or return the status and reason of a refusal. `read` is called only for a worker that has
        shown the authority of the call, because a talk may be of any size."""
        if not await self._may(uid, given):
            return 403, "this is not the authority of that call"
        talk = await read()
        call = await self._call(uid)
        return await call.talk(talk) if isinstance(call, Following) else call

    async def ends(self, authorities: Mapping[str, str]) -> list[str]:
        """Ask the engine for the outcome of calls that a worker says end. Return those that another front end has."""
        found = {uid: await self._call(uid) for uid, given in authorities.items() if await self._may(uid, given)}
        for call in found.values():
            if isinstance(call, Following):
                self.told = True
                call.wake(ends=True)
        return [uid for uid, call in found.items() if isinstance(call, tuple) and call[0] == ELSEWHERE]

    async def _may(self, uid: str, given: str) -> bool:
        """Whether this is the authority of that call."""
        secret_id, _, signature = given.partition(".")
        found = await self.registry.store.secret(secret_id) if secret_id else None
        expected = bearer(call_secret(found[1] if found is not None else b"", uid))
        return hmac.compare_digest(expected.encode(), signature.encode(errors="replace")) and found is not None

    async def _call(self, uid: str) -> Following | tuple[int, str]:
        """Return the call, or the status and the reason of a refusal."""
        if uid in self.calls:
            return self.calls[uid]
        record = await self.registry.store.handle(uid)
        if record is None or isinstance(record.state, Stopped) or record.parking is not None:
            return 410, "the call has ended"
        return ELSEWHERE, "another front end has the call"

    def resolved(self, uid: str) -> None:
        """A key of a call was resolved here. Its worker may not have said that it made one."""
        if uid in self.calls:
            self.calls[uid].look_for_keys()

    def heard(self) -> None:
        """Another process has changed something."""
        for call in self.calls.values() if self.url is None else ():
            call.look_for_keys()


class EngineRuntime:
    """Runs the calls of a tool on an engine."""

    def __init__(self, front: FrontEnd, engine: Engine, inner: ToolRuntime) -> None:
        self._front = front
        self._engine = engine
        self.inner = inner

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        if self._front.url is None and not self._front.warned:
            self._front.warned = True
            _log.warning(
                "calls on an engine that this program starts show their output, progress and keys only when they end, "
                "and cannot ask anybody: workers cannot reach it. Start them at `keephold serve`, with [serve] url"
            )
        return Following(self._front, self._engine, invocation, cast(Run, sink), invocation.entries)

    async def take_back(self, invocation: Invocation, sink: KeepingSink) -> SupportsKeeping:
        entries = await self._front.durability.entries(invocation.uid)
        return Following(self._front, self._engine, invocation, cast(Run, sink), entries)

    async def cancelled(self, key: Key, arguments: dict[str, Any]) -> None:
        """D2: the hook runs here, where the call was parked. It gets the key that the worker signed."""
        presented = present(key)
        names, found = presented.names(), await self._front.registry.store.secret(presented.secret_id)
        if isinstance(self.inner, SupportsCancelHook) and names is not None and found is not None:
            theirs = make_key(*names, presented.secret_id, call_secret(found[1], names[1]))
            await self.inner.cancelled(theirs, arguments)
