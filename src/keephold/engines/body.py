"""One attempt of a call on a worker: the tool's own code, with the engine as its journal.

The tool runs as in a runtime, by the same `Function`, `Call`, `Journal` and `CallEffects`. Only the host below
differs: records go to the engine, output and questions to the channel. When every coroutine of the call has waited
in its effects for a while, the attempt ends as suspended, and its worker is free.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from contextvars import Context, ContextVar
from types import CoroutineType, SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import msgspec

from keephold.durable.calls import Durability, DurableCall
from keephold.durable.deferred import Pending, parking
from keephold.durable.host import Keeps, WaitKind
from keephold.durable.journal import Journal
from keephold.durable.keys import Key, genuine, make_key, present
from keephold.engines import wire
from keephold.engines.base import Recorder
from keephold.engines.channel import PIECE_BYTES, Channel
from keephold.errors import KeepholdError, ToolError
from keephold.handles.clock import Clock, SystemClock
from keephold.handles.question import Question
from keephold.handles.state import Failure, Outcome, error_of
from keephold.handles.view import Handles
from keephold.store.base import Emitted, Entry, EntryKind, Journaled, Op, Parking, Resolution
from keephold.store.rules import clip
from keephold.text import to_json
from keephold.tools.attempts import retry_delay
from keephold.tools.base import Invocation, Live, Tool
from keephold.tools.call import FileDiff
from keephold.tools.guard import Guard

_log = logging.getLogger("keephold.engines")

SUSPEND_SECS = 10.0
"""How long every coroutine of a call has waited, in the same wait, when the attempt is suspended."""
_LOOK_SECS = 0.5
_FLUSH_SECS = 5.0
INLINE_BYTES = 64 << 10
"""Larger values are kept in the store of the front end, and only their hash in the engine."""
ENGINE_BYTES = 384 << 10
"""All values of a call that the engine keeps; further ones are kept in the store of the front end, too."""
_IDLE_SECS = 3600.0
"""How long a running step may hold up the suspension of its call."""
_REPLAY_SECS = 5.0
"""When a call that was aborted while it was suspended gets its cancellation, if its tool does not wait in effects."""
_HASH_BYTES = 64

_body: ContextVar["Body | None"] = ContextVar("keephold_body", default=None)
_stepping: ContextVar[Sequence[bool]] = ContextVar("keephold_stepping", default=(False,))
"""Whether the code belongs to a step that runs. A task that it has made shares the list, and learns of its end."""


def task_factory(
    loop: asyncio.AbstractEventLoop, work: Any, *, context: Context | None = None, **options: Any
) -> "asyncio.Task[Any]":
    """Make a task, and remember to which call it belongs. The loop of a worker uses it."""
    body = _body.get()
    if body is not None and context is not None and context.get(_body) is None:
        context.run(_body.set, body)  # its own tasks belong to the call, too
    task = asyncio.Task(work, loop=loop, context=context, **options)
    if body is not None:
        body.tasks.add(task)
    return task


class _Records(Journal):
    """A journal in which nothing new begins while the attempt is being suspended."""

    __slots__ = ("_may_begin",)

    def __init__(self, body: "Body", invocation: Invocation) -> None:
        super().__init__(body, invocation.uid, invocation.fence, invocation.entries)
        self._may_begin = body.may_begin

    async def run(self, step_id: str, given: bytes, function: Any, argument: Any) -> Any:
        if self.recorded("step", step_id) is None:
            await self._may_begin()
        runs = [True]
        token = _stepping.set(runs)
        try:
            return await super().run(step_id, given, function, argument)
        finally:
            runs[0] = False
            _stepping.reset(token)

    @property
    def busy(self) -> bool:
        """Whether a step runs."""
        return self._running > 0

    async def record(self, kind: EntryKind, *args: Any, **options: Any) -> Sequence[Any]:
        if kind != "step":  # a step that has failed is recorded in any case
            await self._may_begin()
        return await super().record(kind, *args, **options)


class _Waits(dict[Any, Any]):
    """The waits of a call. It calls back when one begins or ends."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def __setitem__(self, task: Any, what: Any) -> None:
        super().__setitem__(task, what)
        self._changed()

    def __delitem__(self, task: Any) -> None:
        super().__delitem__(task)
        self._changed()


class _NoHandles:
    def __getattr__(self, name: str) -> Any:
        raise ToolError(
            "a call on an engine runs on another machine than the handles of its conversation; `call.handles` works in "
            "tools without `engine`",
            code="engine_unsupported",
        )


class Body:
    """One attempt. It is the host of its call's durable side, and its keys (`durable/host.py`); and the sink of its
    tool (`tools/base.py`)."""

    store = cast(Keeps, SimpleNamespace(durable=True, inline_output=0))
    clock: Clock = SystemClock()
    traces = None
    on_woken = None

    def __init__(
        self, tool: Tool, call: wire.EngineCall, given: wire.Given, recorder: Recorder, channel: Channel,
        guard: Guard, *, suspend_secs: float = SUSPEND_SECS,
    ) -> None:  # fmt: skip
        self.call = call
        self.channel = channel
        self.closing = False
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._tool = tool
        self._given = given
        self._recorder = recorder
        self._guard = guard
        self._suspend_secs = suspend_secs
        self._secret = bytes.fromhex(call.secret)
        self._loop = asyncio.get_running_loop()
        self._waits = _Waits(self._waits_changed)
        self._wait_began = 0.0
        """When a wait has last begun or ended."""
        self._room = given.room
        """How many records the engine takes before the attempt must be suspended."""
        self._inlined = 0
        """Bytes of values that the engine has."""
        self._events = dict(given.events)
        self._tasks: list[asyncio.Task[Any]] = []
        """Its own, which are not the tool's."""
        self._following: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._durable: DurableCall | None = None
        self._live: Live | None = None
        self._over: asyncio.Future[Outcome | Pending] = self._loop.create_future()
        self._left: asyncio.Future[None] = self._loop.create_future()
        self._suspended: wire.Suspended | None = None
        self._leaving = self._lost = self._ending = False
        channel.on_input = self._input
        channel.on_end = self.end
        channel.on_lost = self.lost

    async def run(self) -> wire.Report:
        """Run the tool until the attempt is over. Raises `Lost`."""
        listens = self.call.stateful and "apply" in self._tool.actions
        self.channel.carry(self._given.unsent)
        self.channel.open(listens=listens)
        if self._given.attempt > 1:
            self.channel.say(wire.Reading(False))  # so that the front end knows that it is not suspended any more
        loading = self._begin(self._load())
        try:
            await asyncio.wait((loading, self._over), return_when=asyncio.FIRST_COMPLETED)
            if self._given.cancelled and not self.can_move:  # it has not begun (`TemporalWorker._attempt`)
                self.stop(Failure("Tool execution cancelled.", "cancelled"))
            if not self._over.done():
                self._start(loading.result())
            outcome = await self._over
            settled = getattr(self._live, "settled", None)
            if settled is not None:
                await self._unless_left(settled())
            return await self._report(outcome)
        finally:
            for task in self._tasks:
                task.cancel()
            await self.channel.close()

    def _begin(self, work: Any) -> "asyncio.Task[Any]":
        """Begin a task that is not the tool's."""
        task: asyncio.Task[Any] = Context().run(self._loop.create_task, work)
        self._tasks.append(task)
        return task

    async def _unless_left(self, work: Any) -> Any:
        """Wait for some work, but no longer than the worker stays. Return its result, or None."""
        task = self._begin(work)
        await asyncio.wait((task, self._left), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None

    async def _load(self) -> Sequence[Entry]:
        lines = await self._recorder.journal() if self._given.lines is None else self._given.lines
        self._events |= {line.name: line.value for line in lines if line.kind == "resolved"}
        return [await self._entry(line) for line in lines if line.kind != "resolved"]

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
            durability=cast(Durability, SimpleNamespace(call=lambda _: self._durable)),
            attempt=self._given.attempt,
            retry_of=call.retry_of,
            entries=entries,
            guard=self._guard,
        )
        self._durable = durable = DurableCall(self, self, invocation, call.process)
        if durable.journal is not None:
            durable.journal = journal = _Records(self, invocation)
            if call.call_id:
                durable.effects().waits = self._waits
            self._begin(self._look(journal))
        token = _body.set(self)
        try:
            self._live = self._tool.runtime.start(invocation, self)
        except ToolError as error:
            self.stop(error_of(error))
        except Exception as error:
            _log.error("tool `%s` could not be started", call.tool, exc_info=error)
            self.stop(Failure(f"The tool could not be started: {type(error).__name__}: {error}"))
        finally:
            _body.reset(token)

    async def _report(self, outcome: Outcome | Pending) -> wire.Report:
        if self._lost:
            raise wire.Lost("another attempt runs this call")
        await self._unless_left(self.channel.flush(_FLUSH_SECS))
        if self._lost:
            raise wire.Lost("the call has ended")
        ended = None if self._suspended is not None else await self._end_report(outcome)
        report = ended or self._suspended or self._at_once
        return msgspec.structs.replace(report, unsent=self.channel.unsent())

    async def _end_report(self, outcome: Outcome | Pending) -> wire.Report | None:
        """Return how the tool has ended; None if its worker leaves before that is stored."""
        if isinstance(outcome, Pending):
            terms = parking(outcome, self.clock.now(), self._tool)
            return wire.Parked(terms.deadline, terms.on_timeout, terms.on_cancel)
        retry, failures = self._tool.retry, self._given.failures + 1
        taken = self._durable is not None and self._durable.taken
        may = retry.policy != "never" and failures < retry.max_attempts and not (self._ending or taken)
        data = to_json(outcome)  # without text that is not valid, which could not be sent
        outcome, size = cast(Outcome, msgspec.json.decode(data, type=Outcome)), len(data)
        if may and isinstance(outcome, Failure) and outcome.transient:
            return wire.Again(retry_delay(retry, failures), Failure(clip(outcome.message), outcome.code))
        if size > INLINE_BYTES and self.channel.connected:
            stored = await self._unless_left(self.channel.store(msgspec.to_builtins(outcome)))
            if stored is not None:
                return wire.Ended(Failure("The front end has lost the result.", "engine_failed"), stored=stored)
            if self.can_move:
                return None
        if size > ENGINE_BYTES:
            return wire.Ended(Failure(_too_large("the result of the call", size), "limit_exceeded"))
        return wire.Ended(outcome)

    # Its end

    def end(self, grace: float) -> None:
        """End the tool (C7): its coroutine is cancelled. One that was suspended is cancelled where it waits again."""
        if not self._given.cancelled:
            self._cancel(grace)

    def _cancel(self, grace: float | None = None) -> None:
        if not self._ending and not self._over.done():
            self._ending = True
            self._end(self._tool.spawn.abort_grace_ms / 1000 if grace is None else grace)

    def lost(self) -> None:
        """Stop, because another attempt runs the call."""
        self._lost = True
        self._release()

    async def suspend(self, secs: float = _IDLE_SECS) -> None:
        """Stop in order, so that another attempt continues: no step begins, and running ones are recorded first (R6).
        After that many seconds they are cancelled."""
        if (self._leaving and secs) or self._over.done() or not self.can_move:
            return
        self._leaving = True
        if secs and self._durable is not None and self._durable.journal is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(secs):
                    await self._durable.journal.idle()
        if not self._over.done() and not self._ending and self._suspended is None:
            self._suspended = self._at_once
            self._release()

    def leave(self) -> None:
        """The worker exits: report at once, even if the tool swallows its cancellation."""
        if self.can_move and not self._over.done():
            self._suspended = self._at_once
        self.abandon()
        if not self._left.done():
            self._left.set_result(None)

    @property
    def _at_once(self) -> wire.Suspended:
        """The next attempt begins at once."""
        return wire.Suspended(due=self.clock.now())

    @property
    def can_move(self) -> bool:
        """Whether nothing is lost if another attempt continues."""
        return self._tool.on_crash == "replay"

    def _release(self) -> None:
        self.closing = True
        self._end(0)

    def _end(self, grace: float) -> None:
        if self._live is None:
            self.stop(Failure("Tool execution cancelled.", "cancelled"))
        else:
            self._live.end(grace)

    def _waits_changed(self) -> None:
        self._wait_began = self._loop.time()
        self._loop.call_soon(self._tell_waiting)  # a replay finds most events at once

    def _tell_waiting(self) -> None:
        if self.channel.waiting != bool(self._waits) and self._suspended is None:
            self.channel.say(wire.Waiting(bool(self._waits)))

    async def _look(self, journal: _Records) -> None:
        """Suspend the attempt when all of it has waited long enough, and the front end has all frames. A step that
        waits would run again."""
        loop, began, since = self._loop, self._loop.time(), 0.0
        while not self._over.done():
            await asyncio.sleep(min(_LOOK_SECS, self._suspend_secs / 4))
            waits = self._waits_for()
            if self._given.cancelled and (waits is not None or loop.time() - began > _REPLAY_SECS):
                self._cancel()
            since = 0.0 if waits is None else since or loop.time()
            long = since and loop.time() - max(since, self._wait_began) >= self._suspend_secs
            if long and not journal.busy and self.channel.empty and not self._ending and not self._has_timer():
                self._suspended = waits
                self.channel.say(wire.Suspending())
                self._release()
                return

    def _waits_for(self) -> wire.Suspended | None:
        """Return what the call waits for, if all of its coroutines do nothing else."""
        waits = self._waits
        if not waits or not all(
            _rests(task) and (task in waits or _joins(task)) for task in self.tasks if not task.done()
        ):
            return None
        dues = [each for each in waits.values() if isinstance(each, float)]
        awaiting = sorted({self.event_of(each) for each in waits.values() if isinstance(each, str)})
        return wire.Suspended(awaiting, min(dues, default=None))

    def _has_timer(self) -> bool:
        """Return whether a timeout of the tool's own runs, which would begin again with the next attempt."""
        sleeps = {id(getattr(task, "_fut_waiter", None)) for task in self._waits}
        return any(
            timer._context.get(_body) is self and not (timer._args and id(timer._args[0]) in sleeps)
            for timer in getattr(self._loop, "_scheduled", ())
            if not timer.cancelled()
        )

    # Records (`Host`)

    async def may_begin(self) -> None:
        """Wait until something new may be recorded. If the attempt is about to end, the caller waits until it is
        cancelled."""
        if not self._ending and self._given.cancelled:
            self._cancel()
            await self._loop.create_future()
        self._room -= 1
        if self._room < 0 and not self._leaving:
            self._begin(self.suspend())
        if (self._room < 0 or self._leaving) and not self._ending and not _stepping.get()[0]:
            await self._loop.create_future()

    async def write(self, ops: Sequence[Op]) -> Sequence[Any]:
        event = next((op for op in ops if isinstance(op, Emitted)), None)
        name: str | None = None
        for op in ops:
            if isinstance(op, Journaled):
                value = op.value if event is None else to_json([event.type, event.payload])
                name = op.name
                try:
                    if await self._recorder.record(await self._line(op, value)):
                        self._begin(self.suspend())
                except wire.Lost:
                    self._lost = True
                    why = "another worker runs this call; its record is refused"
                    raise KeepholdError(why, code="lease_lost") from None
        if event is not None:
            self.channel.say(wire.Emitting(name, event.type, event.payload))
        return [None] * len(ops)

    def commit(
        self, ops: Sequence[Op], done: Callable[[Sequence[Any]], None], failed: Callable[[Exception], None], *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        done([None] * len(ops))  # input, which the front end has stored

    def printed(self, uid: str) -> None:
        return None

    async def _line(self, op: Journaled, value: bytes) -> wire.Line:
        assert op.kind in ("step", "sleep", "event"), "questions and input are the front end's"
        line = wire.Line(op.kind, op.name, op.digest.hex(), msgspec.json.decode(value), op.ok)
        full = self._inlined + len(value) > ENGINE_BYTES
        if (len(value) > INLINE_BYTES or (full and len(value) > _HASH_BYTES)) and self.channel.connected:
            return msgspec.structs.replace(line, value=None, stored=await self.channel.store(line.value))
        if full and not self.channel.connected:
            raise ToolError(_too_large(f"the result of step `{op.name}`", len(value)), code="limit_exceeded")
        self._inlined += len(value)
        return line

    async def _entry(self, line: wire.Line) -> Entry:
        assert line.kind != "resolved"
        value = line.value if line.stored is None else await self.channel.fetch(line.stored)
        if line.kind == "event":  # a front end may not have it yet; there it counts once
            self.channel.say(wire.Emitting(line.name, *value))
        data = msgspec.json.encode(value)
        self._inlined += len(data) if line.stored is None else 0
        return Entry(line.kind, line.name, bytes.fromhex(line.digest), data, line.ok)

    # Keys that the worker signs itself, and events that the engine delivers (`Keys`)

    async def take(
        self, uid: str, fence: int, conversation: str, kind: WaitKind, name: str = "", parking: Parking | None = None
    ) -> Key:
        wait = kind if kind == "completion" else f"{kind}:{name}"
        self.channel.say(wire.Taking(kind, name))
        return make_key(conversation, uid, wait, self.call.secret_id, self._secret)

    def event_of(self, key: str) -> str:
        """Return the event of a key of this call."""
        presented = present(str(key))
        names = presented.names()
        if names is not None and names[1] != self.call.uid:
            raise ToolError(
                "a call on an engine can wait only for its own keys; wait for those of other calls in a tool without "
                "`engine`",
                code="engine_unsupported",
            )
        if not genuine(presented, self._secret) or names is None or not names[2].startswith("event:"):
            raise ToolError("await-event key is invalid or revoked", code="await_event_unknown_or_revoked")
        return names[2].removeprefix("event:")

    async def wait(self, key: str) -> Resolution:
        name = self.event_of(key)
        while name not in self._events:
            if self._following is None or self._following.done():
                self._following = self._begin(self._follow())
            self._arrived.clear()
            await self._arrived.wait()
        resolved: dict[str, Any] = self._events[name]
        if "stored" in resolved:
            resolved = {"status": resolved["status"], "payload": await self.channel.fetch(resolved["stored"])}
        if resolved["status"] == "revoked":
            raise ToolError("await-event key is invalid or revoked", code="await_event_unknown_or_revoked")
        return msgspec.convert(resolved, Resolution)

    async def _follow(self) -> None:
        try:
            while True:
                self._room -= 1
                if self._room < 0:
                    await self.suspend()
                self._events.update(await self._recorder.events(len(self._events)))
                self._arrived.set()
        except wire.Lost:
            if self._suspended is None and not self._over.done():
                self.lost()

    # Sink

    def output(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES):
            self.channel.say(wire.Output(data[at : at + PIECE_BYTES]))

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.channel.say(wire.Progressed(done, total, message))

    def show(self, diff: FileDiff) -> None:
        self.channel.say(wire.Showing(diff.path, diff.old, diff.new))

    def resized(self, rows: int, cols: int) -> None:
        raise AssertionError("a function is not a terminal")

    def reading(self, yes: bool) -> None:
        self.channel.say(wire.Reading(yes))

    def ask(self, question: Question, then: Callable[[Outcome], None], record: Any = None) -> None:
        if not self.channel.connected:
            then(Failure("Nobody can be asked: this call has no front end ([serve] url).", "question_unanswered"))
            return
        name = None if record is None else record(None, b"").name
        self.channel.ask(name, msgspec.to_builtins(question), then)

    def withdraw(self) -> None:
        self.channel.say(wire.Withdrawn())

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        if not self._over.done():
            self._over.set_result(outcome)

    def park(self, pending: Pending) -> None:
        if not self._over.done():
            self._over.set_result(pending)

    def abandon(self) -> None:
        self.stop(Failure("The tool did not end when it was cancelled.", "cancelled"))

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


def _rests(task: "asyncio.Task[Any]") -> bool:
    """Return whether a task waits for something that has not happened yet: a timeout of its own may just have."""
    waiter: Any = getattr(task, "_fut_waiter", None)
    return waiter is not None and not waiter.done()


def _joins(task: "asyncio.Task[Any]") -> bool:
    """Return whether a task only waits for other tasks, as `gather`, `wait` and a task group do."""
    work: Any = task.get_coro()
    while isinstance(work, CoroutineType) and isinstance(work.cr_await, CoroutineType):
        work = work.cr_await
    if isinstance(work, CoroutineType) and work.cr_code.co_filename.startswith(_ASYNCIO) and work.cr_frame is not None:
        name, local = work.cr_code.co_qualname, work.cr_frame.f_locals
        if name.startswith("TaskGroup."):  # `__aexit__`, in some versions of Python by `_aexit`
            return True
        if name == "_wait":
            return local.get("timeout_handle") is None and _are_tasks(local["fs"])
    waiter: Any = getattr(task, "_fut_waiter", None)
    return isinstance(waiter, asyncio.Task) or _are_tasks(getattr(waiter, "_children", ()))


def _are_tasks(futures: Collection[Any]) -> bool:
    """Return whether these are tasks, or such as `gather` makes of tasks, and not something else that works."""
    return bool(futures) and all(
        each.done() or isinstance(each, asyncio.Task) or _are_tasks(getattr(each, "_children", ())) for each in futures
    )


_ASYNCIO = asyncio.__file__.removesuffix("__init__.py")
