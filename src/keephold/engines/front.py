"""The front end of calls that run on an engine: their tool's runtime here, and the channel of their workers.

A handle of such a call is an ordinary handle, which a `Following` keeps up to date. If this process dies, the call runs
on, and the next runtime on the store takes it back (`take_back`), by its uid.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from keephold.durable.calls import Durability
from keephold.durable.keys import Key, call_secret, make_key, present
from keephold.engines.base import Engine, EngineUnavailable
from keephold.engines.following import Following
from keephold.engines.wire import Said, Talk, bearer
from keephold.handles.registry import Registry
from keephold.handles.state import Stopped
from keephold.tools.base import Invocation, KeepingSink, Live, Sink, SupportsKeeping, Tool, ToolRuntime
from keephold.tools.run import Run

_SWEEP_SECS = 15.0
_STARTS_AT_ONCE = 16


class FrontEnd:
    """The calls of one runtime that run on engines."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.engines = engines
        self.calls: dict[str, Following] = {}
        self.url: str | None = None
        """Where workers reach this front end, or another one of the same store."""
        self.registry: Registry
        self.durability: Durability
        self.starting = asyncio.Semaphore(_STARTS_AT_ONCE)
        self.leaving: set[asyncio.Task[None] | None] = set()
        """Tasks that cancel calls which the engine may have got although its answer was lost."""
        self.polls = 0
        """Calls whose end is waited for by an open request; `following.py` limits them."""
        self.unpolled: dict[Following, None] = {}
        """Running calls over that limit."""
        self._sweeping: asyncio.TimerHandle | None = None

    def connect(self, registry: Registry, durability: Durability) -> None:
        self.registry, self.durability = registry, durability

    def on_engine(self, tool: Tool) -> Tool:
        """Return the tool with its engine as its runtime. Raises `KeyError` if there is no such engine."""
        if tool.engine is None:
            return tool
        return replace(tool, runtime=EngineRuntime(self, self.engines[tool.engine], tool.runtime))

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for call in tuple(self.calls.values()):
            call.let_go()
        for task in self.leaving:
            if task is not None:
                task.cancel()
        for engine in self.engines.values():
            await engine.close()

    async def talk(self, uid: str, given: str, talk: Talk) -> Said | tuple[int, str]:
        """Answer a worker: a `Said`, or the status and the reason of a refusal."""
        secret_id, _, signature = given.partition(".")
        found = await self.registry.store.secret(secret_id) if secret_id else None
        expected = bearer(call_secret(found[1] if found is not None else b"", uid))
        if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")) or found is None:
            return 403, "this is not the authority of that call"
        call = self.calls.get(uid)
        if call is None:
            record = await self.registry.store.handle(uid)
            if record is None or isinstance(record.state, Stopped) or record.parking is not None:
                return 410, "the call has ended"
            return 421, "another front end has the call"
        return await call.talk(talk)

    def resolved(self, uid: str) -> None:
        """A key of a call was resolved here. Its worker may not have said that it made one."""
        if uid in self.calls:
            self.calls[uid].look_for_keys()

    def heard(self) -> None:
        """Another process has changed something."""
        for call in self.calls.values() if self.url is None else ():
            call.look_for_keys()

    def sweep_later(self, secs: float = _SWEEP_SECS) -> None:
        """Look now and then for suspended calls that have ended without a message of their worker."""
        if self._sweeping is None and not self.registry.closing:
            self._sweeping = asyncio.get_running_loop().call_later(secs, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        self.registry.run_soon(self._look())

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        for engine in self.engines.values():
            quiet = {call.uid for call in self.calls.values() if call.engine is engine and call.is_quiet}
            with contextlib.suppress(EngineUnavailable):
                for uid in await engine.closed(quiet) if quiet else ():
                    if uid in self.calls:
                        self.calls[uid].wake(ends=True)
        if any(call.is_quiet for call in self.calls.values()):
            self.sweep_later(max(_SWEEP_SECS, 10 * (clock() - began)))  # of many calls, less often


class EngineRuntime:
    """Runs the calls of a tool on an engine."""

    def __init__(self, front: FrontEnd, engine: Engine, inner: ToolRuntime) -> None:
        self._front = front
        self._engine = engine
        self.inner = inner

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        return Following(self._front, self._engine, invocation, cast(Run, sink), invocation.entries)

    async def take_back(self, invocation: Invocation, sink: KeepingSink) -> SupportsKeeping:
        entries = await self._front.durability.entries(invocation.uid)
        return Following(self._front, self._engine, invocation, cast(Run, sink), entries)

    async def cancelled(self, key: Key, arguments: dict[str, Any]) -> None:
        """D2: the hook runs here, where the call was parked. It gets the key that the worker signed."""
        hook, presented = getattr(self.inner, "cancelled", None), present(key)
        names, found = presented.names(), await self._front.registry.store.secret(presented.secret_id)
        if hook is not None and names is not None and found is not None:
            await hook(make_key(*names, presented.secret_id, call_secret(found[1], names[1])), arguments)

    def link(self, uid: str) -> str | None:
        """Return the address of the engine's page about a call."""
        return self._engine.link(uid)
