"""One attempt of a call on a worker: the tool's own code, with the engine as its journal.

The tool runs as in a runtime, by the same `Function`, `Call`, `Journal` and `CallEffects`. Only the host below
differs: records go to the engine, output and questions to the channel. When every coroutine of the call has waited
in its effects for a while, the attempt ends as suspended, and its worker is free.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, cast
from weakref import WeakSet

import msgspec

from keephold.durable.calls import Durability, DurableCall
from keephold.durable.deferred import Pending, parking
from keephold.durable.host import WaitKind
from keephold.durable.keys import Key, genuine, key_id, make_key, present
from keephold.engines.base import Recorder
from keephold.engines.channel import PIECE_BYTES, Channel
from keephold.engines.wire import (
    Again,
    Emitting,
    Ended,
    EngineCall,
    Given,
    Line,
    Lost,
    Parked,
    Printed,
    Progressed,
    Reading,
    Report,
    Showing,
    Suspended,
    Suspending,
    Taking,
    Withdrawn,
)
from keephold.errors import KeepholdError, ToolError
from keephold.handles.clock import SystemClock
from keephold.handles.question import Question
from keephold.handles.state import Failure, Outcome, error_of
from keephold.handles.view import Handles
from keephold.store.base import Emitted, Entry, Journaled, Op, Parking, Resolution
from keephold.text import to_json
from keephold.tools.base import Invocation, Live, Tool
from keephold.tools.call import FileDiff
from keephold.tools.guard import Guard
from keephold.tools.run import retry_delay

_log = logging.getLogger("keephold.engines")

SUSPEND_SECS = 10.0
"""How long every coroutine of a call has waited when the attempt is suspended."""
_LOOK_SECS = 0.5
_FLUSH_SECS = 5.0
INLINE_BYTES = 64 << 10
"""Larger values are kept in the store of the front end, and only their hash in the engine."""
ENGINE_BYTES = 384 << 10
"""All values of a call that the engine keeps; further ones are kept in the store of the front end, too."""
_IDLE_SECS = 30.0
_HASH_BYTES = 64

_body: ContextVar["Body | None"] = ContextVar("keephold_body", default=None)


def task_factory(
    loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None, **options: Any
) -> "asyncio.Task[Any]":
    """Make a task, and remember to which call it belongs. The loop of a worker uses it."""
    task = asyncio.Task(work, loop=loop, context=context, **options)
    body = _body.get() if context is None else context.get(_body)
    if body is not None:
        body.tasks.add(task)
    return task


@dataclass
class _Keeps:
    durable: bool = True
    inline_output: int = 0


class _EngineHost:
    """Writes the records of one attempt to the engine (`durable/host.py`)."""

    def __init__(self, body: "Body") -> None:
        self._body = body
        self.store = _Keeps()
        self.clock = SystemClock()
        self.traces = None
        self.on_woken = None
        self.closing = False

    async def write(self, ops: Sequence[Op]) -> Sequence[Any]:
        event = next((op for op in ops if isinstance(op, Emitted)), None)
        name: str | None = None
        for op in ops:
            if isinstance(op, Journaled):
                assert op.kind in ("step", "sleep", "event"), "questions and input are the front end's"
                value = op.value if event is None else to_json([event.type, event.payload])
                name = op.name
                await self._body.record(op.kind, op.name, op.digest, value, op.ok)
        if event is not None:
            self._body.channel.say(Emitting(name, event.type, event.payload))
        return [None] * len(ops)

    def commit(
        self, ops: Sequence[Op], done: Callable[[Sequence[Any]], None], failed: Callable[[Exception], None], *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        done([None] * len(ops))  # input, which the front end has stored

    def printed(self, uid: str) -> None:
        return None


class _EngineKeys:
    """Keys that the worker signs itself, and events that the engine delivers (`durable/host.py`)."""

    def __init__(self, body: "Body") -> None:
        self._body = body
        call = body.call
        self._secret = bytes.fromhex(call.secret)
        self._names: dict[str, str] = {}

    async def take(
        self, uid: str, fence: int, conversation: str, kind: WaitKind, name: str = "", parking: Parking | None = None
    ) -> Key:
        wait = kind if kind == "completion" else f"{kind}:{name}"
        self._names[key_id(conversation, uid, wait)] = name
        self._body.channel.say(Taking(kind, name))
        return make_key(conversation, uid, wait, self._body.call.secret_id, self._secret)

    def name(self, key: str) -> str:
        """Return the event of a key of this call."""
        presented = present(str(key))
        names = presented.names()
        if names is not None and names[1] != self._body.call.uid:
            raise ToolError(
                "a call on an engine can wait only for its own keys; wait for those of other calls in a tool without "
                "`engine`",
                code="engine_unsupported",
            )
        if not genuine(presented, self._secret) or names is None or not names[2].startswith("event:"):
            raise ToolError("await-event key is invalid or revoked", code="await_event_unknown_or_revoked")
        return names[2].removeprefix("event:")

    async def wait(self, key: str) -> Resolution:
        resolved = await self._body.event(self.name(key))
        if "stored" in resolved:
            resolved = {"status": resolved["status"], "payload": await self._body.channel.fetch(resolved["stored"])}
        if resolved["status"] == "revoked":
            raise ToolError("await-event key is invalid or revoked", code="await_event_unknown_or_revoked")
        return msgspec.convert(resolved, Resolution)


class _EngineDurability:
    """Makes the durable side of the one call of an attempt (`durable/calls.py`)."""

    def __init__(self, body: "Body", keys: _EngineKeys) -> None:
        self._body = body
        self._keys = keys

    def call(self, invocation: Invocation) -> DurableCall:
        made = DurableCall(self._body.host, self._keys, invocation, self._body.call.process)
        self._body.began(made)
        return made


class _NoHandles:
    def __getattr__(self, name: str) -> Any:
        raise ToolError(
            "a call on an engine runs on another machine than the handles of its conversation; `call.handles` works in "
            "tools without `engine`",
            code="engine_unsupported",
        )


class Body:
    """One attempt. It is the sink of its tool (`tools/base.py`)."""

    def __init__(
        self, tool: Tool, call: EngineCall, given: Given, recorder: Recorder, channel: Channel, guard: Guard, *,
        suspend_secs: float = SUSPEND_SECS,
    ) -> None:  # fmt: skip
        self.call = call
        self.channel = channel
        self.host = _EngineHost(self)
        self.durable: DurableCall | None = None
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._tool = tool
        self._given = given
        self._recorder = recorder
        self._guard = guard
        self._suspend_secs = suspend_secs
        self._keys = _EngineKeys(self)
        self._inlined = 0
        """Bytes of values that the engine has."""
        self._events = dict(given.events)
        self._looking: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._live: Live | None = None
        self._over: asyncio.Future[Outcome | Pending] = asyncio.get_running_loop().create_future()
        self._suspended: Suspended | None = None
        self._lost = False
        self._ending = False
        channel.on_input = self._input
        channel.on_end = self.end
        channel.on_lost = self.lost

    async def run(self) -> Report:
        """Run the tool until the attempt is over. Raises `Lost`."""
        listens = self.call.stateful and "apply" in self._tool.actions
        self.channel.open(listens=listens)
        if self._given.attempt > 1:
            self.channel.say(Reading(False))  # so that the front end knows that it is not suspended any more
        loading = asyncio.get_running_loop().create_task(self._load(), context=Context())
        try:
            await asyncio.wait((loading, self._over), return_when=asyncio.FIRST_COMPLETED)
            if not self._over.done():
                self._start(loading.result())
            outcome = await self._over
            settled = getattr(self._live, "settled", None)
            if settled is not None:
                await settled()
            return await self._report(outcome)
        finally:
            for task in (loading, self._looking, self._following):
                if task is not None:
                    task.cancel()
            await self.channel.close()

    async def _load(self) -> Sequence[Entry]:
        lines = await self._recorder.journal() if self._given.lines is None else self._given.lines
        return [await self._entry(line) for line in lines]

    def _start(self, entries: Sequence[Entry]) -> None:
        call = self.call
        invocation = Invocation(
            tool=self._tool,
            arguments=call.arguments,
            uid=call.uid,
            call_id=call.call_id,
            conversation=call.conversation,
            turn=call.turn,
            stateful=call.stateful,
            handles=cast(Handles, _NoHandles()),
            durability=cast(Durability, _EngineDurability(self, self._keys)),
            attempt=self._given.attempt,
            retry_of=call.retry_of,
            entries=entries,
            guard=self._guard,
        )
        token = _body.set(self)
        try:
            self._live = self._tool.runtime.start(invocation, self)
        except ToolError as error:
            self.stop(error_of(error))
        finally:
            _body.reset(token)

    async def _report(self, outcome: Outcome | Pending) -> Report:
        if self._lost:
            raise Lost("another attempt runs this call")
        if self._suspended is not None:
            self.channel.say(Suspending())
        await self.channel.flush(_FLUSH_SECS)
        if self._lost:
            raise Lost("the call has ended")
        unsent = self.channel.unsent()
        if self._suspended is not None:
            return msgspec.structs.replace(self._suspended, unsent=unsent)
        if isinstance(outcome, Pending):
            terms = parking(outcome, self.host.clock.now(), self._tool)
            return Parked(terms.deadline, terms.on_timeout, terms.on_cancel, unsent)
        retry, failures = self._tool.retry, self._given.failures + 1
        taken = self.durable is not None and self.durable.taken
        may = retry.policy != "never" and failures < retry.max_attempts and not (self._ending or taken)
        if may and isinstance(outcome, Failure) and outcome.transient:
            return Again(retry_delay(retry, failures), outcome, unsent)
        size = len(msgspec.json.encode(outcome))
        if size > INLINE_BYTES and self.channel.connected:
            stored = await self.channel.store(msgspec.to_builtins(outcome))
            return Ended(Failure("The front end has lost the result.", "engine_failed"), unsent, stored)
        if size > ENGINE_BYTES:
            return Ended(Failure(_too_large("the result of the call", size), "limit_exceeded"), unsent)
        return Ended(outcome, unsent)

    # Its end

    def end(self, grace: float) -> None:
        """End the tool (C7): its coroutine is cancelled."""
        if not self._ending and not self._over.done():
            self._ending = True
            self._end(grace)

    def lost(self) -> None:
        """Stop, because another attempt runs the call."""
        self._lost = True
        self._release()

    async def suspend(self) -> None:
        """Stop in order, so that another attempt continues: running steps are recorded first (R6)."""
        if self._suspended is None and not self._over.done() and self.can_move:
            self._suspended = Suspended([], self.host.clock.now())
            self.host.closing = True
            if self.durable is not None and self.durable.journal is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_IDLE_SECS):
                        await self.durable.journal.idle()
            self._release()

    @property
    def can_move(self) -> bool:
        """Whether nothing is lost if another attempt continues."""
        return self._tool.on_crash == "replay"

    def _release(self) -> None:
        self.host.closing = True
        self._end(0)

    def _end(self, grace: float) -> None:
        if self._live is None:
            self.stop(Failure("Tool execution cancelled.", "cancelled"))
        else:
            self._live.end(grace)

    def began(self, durable: DurableCall) -> None:
        """The tool uses its durable side: from now on it may wait there. A sync function calls this in its thread."""
        self.durable = durable
        self._over.get_loop().call_soon_threadsafe(self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._looking = self._over.get_loop().create_task(self._look(), context=Context())

    async def _look(self) -> None:
        """Suspend the attempt when all of it has waited long enough."""
        since: float | None = None
        loop = asyncio.get_running_loop()
        while not self._over.done():
            await asyncio.sleep(min(_LOOK_SECS, self._suspend_secs / 4))
            waits = self._waits()
            if not waits:
                since = None
            elif self._given.cancelled:
                self.end(self._tool.spawn.abort_grace_ms / 1000)
            else:
                since = loop.time() if since is None else since
                if loop.time() - since >= self._suspend_secs and not self._ending:
                    self._suspended = waits
                    self._release()
                    return

    def _waits(self) -> Suspended | None:
        """Return what the call waits for, if all of its coroutines do nothing else."""
        effects = self.durable._effects if self.durable is not None else None
        if effects is None or not effects.waits:
            return None
        if any(task not in effects.waits and not _joins(task) for task in self.tasks if not task.done()):
            return None
        dues = [each for each in effects.waits.values() if isinstance(each, float)]
        awaiting = sorted({self._keys.name(each) for each in effects.waits.values() if isinstance(each, str)})
        return Suspended(awaiting, min(dues, default=None))

    # Records

    async def record(self, kind: str, name: str, digest: bytes, value: bytes, ok: bool) -> None:
        """Record a line in the engine."""
        try:
            line = await self._line(kind, name, digest, value, ok)
            if await self._recorder.record(line) and self._suspended is None:
                asyncio.get_running_loop().create_task(self.suspend(), context=Context())
        except Lost:
            self._lost = True
            raise KeepholdError("another worker runs this call; its record is refused", code="lease_lost") from None

    async def _line(self, kind: Any, name: str, digest: bytes, value: bytes, ok: bool) -> Line:
        decoded = msgspec.json.decode(value)
        full = self._inlined + len(value) > ENGINE_BYTES
        if (len(value) > INLINE_BYTES or (full and len(value) > _HASH_BYTES)) and self.channel.connected:
            return Line(kind, name, digest.hex(), None, ok, await self.channel.store(decoded))
        if full and not self.channel.connected:
            raise ToolError(_too_large(f"the result of step `{name}`", len(value)), code="limit_exceeded")
        self._inlined += len(value)
        return Line(kind, name, digest.hex(), decoded, ok)

    async def _entry(self, line: Line) -> Entry:
        value = line.value if line.stored is None else await self.channel.fetch(line.stored)
        if line.kind == "event":  # a front end may not have it yet; there it counts once
            self.channel.say(Emitting(line.name, *value))
        data = msgspec.json.encode(value)
        self._inlined += len(data) if line.stored is None else 0
        return Entry(line.kind, line.name, bytes.fromhex(line.digest), data, line.ok)

    async def event(self, name: str) -> dict[str, Any]:
        """Wait for an event of this call."""
        while name not in self._events:
            if self._following is None or self._following.done():
                self._following = asyncio.get_running_loop().create_task(self._follow(), context=Context())
            self._arrived.clear()
            await self._arrived.wait()
        found: dict[str, Any] = self._events[name]
        return found

    async def _follow(self) -> None:
        try:
            while True:
                self._events.update(await self._recorder.events(len(self._events)))
                self._arrived.set()
        except Lost:
            if self._suspended is None and not self._over.done():
                self.lost()

    # Sink

    def output(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES):
            self.channel.say(Printed(data[at : at + PIECE_BYTES]))

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.channel.say(Progressed(done, total, message))

    def show(self, diff: FileDiff) -> None:
        self.channel.say(Showing(diff.path, diff.old, diff.new))

    def resized(self, rows: int, cols: int) -> None:
        raise AssertionError("a function is not a terminal")

    def reading(self, yes: bool) -> None:
        self.channel.say(Reading(yes))

    def ask(self, question: Question, then: Callable[[Outcome], None], record: Any = None) -> None:
        if not self.channel.connected:
            then(Failure("Nobody can be asked: this call has no front end ([serve] url).", "question_unanswered"))
            return
        name = None if record is None else record(None, b"").name
        self.channel.ask(name, msgspec.to_builtins(question), then)

    def withdraw(self) -> None:
        self.channel.withdrawn()
        self.channel.say(Withdrawn())

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        if not self._over.done():
            self._over.set_result(outcome)

    def park(self, pending: Pending) -> None:
        if not self._over.done():
            self._over.set_result(pending)

    def abandon(self) -> None:
        self.stop(Failure("The tool did not end when it was told to.", "cancelled"))

    def released(self) -> None:
        pass

    def _input(self, value: Any) -> bool:
        """Give input to the tool. Return whether it could take it."""
        write = getattr(self._live, "write_recorded", None)
        if write is None:  # it has not begun
            return False
        try:
            write(value, b"")
        except ToolError:  # it has not read what came before
            return False
        return True


def _too_large(what: str, size: int) -> str:
    return f"{what} has {size} bytes; without a front end ([serve] url) an engine keeps {ENGINE_BYTES} of a call"


def _joins(task: "asyncio.Task[Any]") -> bool:
    """Return whether a task only waits for other tasks, as `gather`, `wait` and a task group do."""
    work: Any = task.get_coro()
    for inner in _chain(work):
        work = inner
    waiter = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, asyncio.Task) or type(waiter).__name__ == "_GatheringFuture":
        return True
    code = getattr(work, "cr_code", None)
    if code is None or not code.co_filename.startswith(_ASYNCIO):
        return False
    local = work.cr_frame.f_locals if work.cr_frame is not None else {}
    return code.co_qualname == "TaskGroup.__aexit__" or (
        code.co_qualname == "_wait" and local.get("timeout_handle") is None
    )


_ASYNCIO = asyncio.__file__.removesuffix("__init__.py")


def _chain(work: Any) -> Iterator[Any]:
    while isinstance(work, CoroutineType) and work.cr_await is not None:
        work = work.cr_await
        if isinstance(work, CoroutineType):
            yield work
