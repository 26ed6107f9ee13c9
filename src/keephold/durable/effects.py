"""Durable effects: what `call.durable()` returns to a tool (E).

`Effects` is the protocol; nothing in it depends on this machine, so that another engine can implement it. `CallEffects`
implements it with the journal of the call, and waits whose rows outlive it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import msgspec

from keephold.durable.host import Host, Keys
from keephold.durable.journal import Journal, to_bytes
from keephold.durable.keys import Key
from keephold.errors import KeepholdError, ToolError
from keephold.handles.observing import NOTHING
from keephold.store.base import Emitted


class Effects(Protocol):
    """Effects that are done once and recorded."""

    durable: bool
    """Whether records survive the process (E9)."""

    async def run_json(self, step_id: str, input: Any, function: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run the function with the input, once; a replay returns what it returned, or raises what it raised."""

    def recorded(self, step_id: str) -> bool:
        """Return whether a step of that id was recorded before this replay began."""

    async def external_event_key(self, name: str) -> Key:
        """Return the key with which something outside delivers the event of that name."""

    async def await_event_json(self, key: str) -> Any:
        """Wait until the key is resolved, and return the payload."""

    async def sleep(self, seconds: float) -> None:
        """Sleep. A replay sleeps the rest."""

    async def emit_process_event(self, type: str, payload: Any = None) -> None:
        """Append to the events of the process this call belongs to; once, also under replay."""


class CallEffects:
    """The effects of one call in one attempt."""

    def __init__(
        self, host: Host, waits: Keys, journal: Journal, *, uid: str, fence: int, conversation: str,
        process: str | None,
    ) -> None:  # fmt: skip
        self._host = host
        self._waits = waits
        self._journal = journal
        self._uid = uid
        self._fence = fence
        self._conversation = conversation
        self._process = process
        self.durable = host.store.durable
        self.waits: dict[asyncio.Task[Any] | None, str | float] = {}
        """Its coroutines that wait: for the event of a key, or until a time of day (T1)."""

    async def run_json(self, step_id: str, input: Any, function: Callable[[Any], Awaitable[Any]]) -> Any:
        self._check_open()
        if not step_id:
            raise ToolError(
                'a journaled step needs a non-empty id: run_json("create", …)', code="durable_effect_empty_step_id"
            )
        given = to_bytes(input, f"the input of step `{step_id}`")
        self._journal.use(step_id)
        return await self._journal.run(step_id, given, function, input)

    def recorded(self, step_id: str) -> bool:
        return self._journal.recorded("step", step_id) is not None

    async def external_event_key(self, name: str) -> Key:
        self._check_open()
        if not name:
            raise ToolError("an event key needs a non-empty name", code="durable_effect_empty_event_key")
        return await self._waits.take(self._uid, self._fence, self._conversation, "event", name)

    async def await_event_json(self, key: str) -> Any:
        self._check_open()
        with self._waiting(key), self._traced("event"):
            resolution = await self._waits.wait(key)
        await self._woken()
        match resolution.status:
            case "ok":
                return resolution.payload
            case "err":
                raise ToolError(resolution.payload["message"], code=resolution.payload["code"])
            case "timeout":
                raise ToolError("the awaited event timed out", code="durable_effect_event_timeout")
            case "cancelled":
                raise ToolError("the awaited event was cancelled", code="durable_effect_event_cancelled")

    async def sleep(self, seconds: float) -> None:
        self._check_open()
        name, now = self._journal.number("sleep"), self._host.clock.now()
        entry = self._journal.recorded("sleep", name)
        if entry is None:
            due = now + max(0.0, seconds)
            await self._journal.record("sleep", name, to_bytes(due, "the time to sleep"))
        else:
            due = float(entry.value)
        with self._waiting(due), self._traced("sleep"):
            while (left := due - self._host.clock.now()) > 0:  # noqa: ASYNC110 (nobody but time can tell)
                await asyncio.sleep(left)  # again if the time of day and the loop's disagree
        await self._woken()

    async def emit_process_event(self, type: str, payload: Any = None) -> None:
        self._check_open()
        event = process_event(self._process, type, payload, self._host.clock.now())
        name = self._journal.number("event")
        if self._journal.recorded("event", name) is None:
            await self._journal.record("event", name, b"null", also=(event,))

    @contextmanager
    def _waiting(self, what: str | float) -> Iterator[None]:
        task = asyncio.current_task()
        self.waits[task] = what
        try:
            yield
        finally:
            del self.waits[task]

    async def _woken(self) -> None:
        if self._host.on_woken is not None:
            await self._host.on_woken(self._uid)

    def _traced(self, what: str) -> AbstractContextManager[object]:
        traces = self._host.traces
        return NOTHING if traces is None else traces.wait(what)

    def _check_open(self) -> None:
        if self._host.closing:
            raise KeepholdError(
                "the runtime is being closed; this call continues from here in the next one", code="runtime_closing"
            )


class ProcessEvents:
    """`call.process_events()`: appends without the journal, so at least once."""

    def __init__(self, host: Host, process: str | None) -> None:
        self._host = host
        self._process = process

    async def emit(self, type: str, payload: Any = None) -> None:
        """Append an event."""
        await self._host.write((process_event(self._process, type, payload, self._host.clock.now()),))


def process_event(process: str | None, type: str, payload: Any, now: float) -> Emitted:
    """Return the operation that appends an event to a process, if there is one."""
    if process is None:
        raise ToolError(
            "this call belongs to no process; spawn the tool, or call it in a workflow or an agent",
            code="durable_effect_process_event_unavailable",
        )
    if not type:
        raise ToolError("a process event needs a non-empty type", code="durable_effect_empty_process_event_type")
    given = to_bytes(payload, f"the payload of process event `{type}`")
    return Emitted(process, type, msgspec.json.decode(given), now)
