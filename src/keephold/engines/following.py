"""A call on an engine, as its front end follows it: from the request to the engine to the outcome.

The engine has the call's steps, its events and its outcome; the store here has the handle, its output, its input and
the answers to its questions. Workers send frames of the channel (`engines/wire.py`), which are stored before they are
acknowledged.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from keephold.durable.deferred import Pending, resolution_json
from keephold.durable.journal import Journal
from keephold.durable.keys import call_secret
from keephold.engines.base import Engine, patiently
from keephold.engines.wire import (
    AT,
    Asking,
    Emitting,
    Ended,
    EngineCall,
    Frame,
    Parked,
    Printed,
    Progressed,
    Reading,
    Report,
    Said,
    Showing,
    Suspending,
    Taking,
    Talk,
    Withdrawn,
)
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome
from keephold.store.base import Annotated, Attempted, Emitted, Journaled, Op, Wrote
from keephold.tools.base import Invocation
from keephold.tools.call import FileDiff, input_size, with_input
from keephold.tools.run import Run

if TYPE_CHECKING:
    from keephold.engines.front import FrontEnd

_log = logging.getLogger("keephold.engines")

_EVENT_BYTES = 4 * 1024
"""A larger payload of an event is kept in the store, and the worker fetches it."""
_POLLS_AT_ONCE = 200
"""Calls whose end is waited for by a request that stays open. Temporal refuses more than 1,200 in a namespace, and
those of workers with them; other calls wait until one has ended, or a sweep finds that they have ended."""
T = TypeVar("T")


class Following:
    """A call on an engine, as this runtime follows it."""

    kept = True

    def __init__(
        self, front: "FrontEnd", engine: Engine, invocation: Invocation, sink: Run, entries: Sequence[Any]
    ) -> None:
        self._front = front
        self.engine = engine
        self._invocation = invocation
        self.uid = invocation.uid
        self._sink = sink
        self._handle: Handle = sink.handle
        at = (self._handle.metadata or {}).get(AT) or [0, 0, False]
        self._attempt, self._received, self.suspended = self._stored = int(at[0]), int(at[1]), bool(at[2])
        self.started = self._attempt > 0
        """Whether the engine has it."""
        self._epoch = secrets.token_hex(4)
        self._journal = Journal(front.registry, self.uid, invocation.fence, entries)
        self._inputs: list[Any] = list(self._journal.inputs)
        self._taken, self._unread, self._closed = 0, 0, bool(self._inputs) and self._inputs[-1] is None
        self._answer: tuple[int, Outcome] | None = None
        self._answers: dict[str, Outcome] = {}
        """Recorded since this front end has the call, by the name of the record."""
        self._grace: float | None = None
        self._news, self._awake = asyncio.Event(), asyncio.Event()
        self._polls = self._ends = False
        self._applying = asyncio.Lock()
        self._watched: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        front.calls[self.uid] = self
        if self.suspended:
            front.sweep_later()
        self._spawn(self._live())

    # Live

    def write(self, data: Any) -> None:
        self.write_recorded(data, b"")

    def write_recorded(self, data: Any, cause: bytes) -> None:
        if self._front.url is None:
            raise ToolError("no worker can fetch input: this program serves no HTTP", code="input_not_read")
        self._unread = with_input(self._unread, input_size(data), closed=self._closed)
        self._closed = data is None
        self._journal.store_input(data, cause, partial(self._deliver, data))

    def _deliver(self, data: Any) -> None:
        self._inputs.append(data)
        self._tell()

    def end(self, grace: float) -> None:
        self._grace = grace
        self._tell()
        if self.started:
            self._spawn(self._cancel())

    def let_go(self) -> None:
        """Forget the call, which runs on: another runtime takes it back."""
        self._front.calls.pop(self.uid, None)
        for task in self._tasks:
            task.cancel()

    records_input = True

    @property
    def has_key(self) -> bool:
        return "" in self._watched

    @property
    def waits_in_effects(self) -> bool:
        return self.suspended

    # Following

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self) -> None:
        try:
            await self._look_for_keys()
            if not self.started:
                async with self._front.starting:
                    call = await self._call()
                    await self._patiently(lambda: self.engine.start(call))
                self.started = True
                if self._grace is not None:
                    self._spawn(self._cancel())
            await self._finish(await self._result())
        except asyncio.CancelledError:
            raise
        except _Over:
            self._stop(Failure("Tool execution cancelled.", "cancelled"))
            await self._withdraw()
        except Exception as error:
            _log.error("call %s cannot be followed", self.uid, exc_info=error)
            self._stop(Failure(f"The engine refused the call: {type(error).__name__}: {error}", "engine_failed"))

    async def _withdraw(self) -> None:
        """Cancel a call that was ended before the engine said that it has it: the answer may have been lost."""
        self.started, task = True, asyncio.current_task()
        self._front.leaving.add(task)
        try:
            await self._patiently(lambda: self.engine.cancel(self.uid))
        except Exception as error:
            _log.error("call %s may still run at the engine", self.uid, exc_info=error)
        finally:
            self._front.leaving.discard(task)

    def look_for_keys(self) -> None:
        self._spawn(self._look_for_keys())

    async def _look_for_keys(self) -> None:
        for row in await self._front.registry.store.waits(self.uid):
            self._watch(row.kind, row.name)

    async def _call(self) -> EngineCall:
        invocation, tool = self._invocation, self._invocation.tool
        secret_id, secret = await self._front.durability.waits.newest_secret()
        return EngineCall(
            uid=self.uid,
            id=self._handle.id,
            tool=tool.name,
            arguments=invocation.arguments,
            call_id=invocation.call_id,
            conversation=invocation.conversation,
            turn=invocation.turn,
            stateful=invocation.stateful,
            secret_id=secret_id,
            secret=call_secret(secret, self.uid).hex(),
            url=self._front.url,
            process=self._front.durability.call(invocation).process,
            retry_of=invocation.retry_of,
            repeats=tool.on_crash == "replay" or tool.retry.policy == "idempotent",
        )

    async def _result(self) -> Report:
        """Wait for the end. While the call is suspended or over the limit, nothing is asked of the engine."""
        front = self._front
        while True:
            self._awake.clear()
            if self.is_quiet:
                if not self.suspended:
                    front.unpolled[self] = None
                front.sweep_later()
                await self._awake.wait()
                front.unpolled.pop(self, None)
                continue
            front.polls += 1
            self._polls = True
            result = asyncio.ensure_future(self._patiently(lambda: self.engine.result(self.uid)))
            slept = asyncio.ensure_future(self._suspends())
            try:
                done, _ = await asyncio.wait((result, slept), return_when=asyncio.FIRST_COMPLETED)
                if result in done:
                    return result.result()
            finally:
                for each in (result, slept):
                    each.cancel()
                front.polls -= 1
                self._polls = False
                if front.unpolled:
                    other = next(iter(front.unpolled))
                    del front.unpolled[other]
                    other._awake.set()

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits for its end."""
        full = self._front.polls >= _POLLS_AT_ONCE
        return self.started and not (self._polls or self._ends) and (self.suspended or full)

    async def _suspends(self) -> None:
        while not self.suspended:
            await self._news.wait()

    def wake(self, *, ends: bool = False) -> None:
        """It continues, or ends."""
        self.suspended, self._ends = False, self._ends or ends
        self._awake.set()

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat until the engine answers. Raises `_Over` if the call is ended before it was started."""
        return await patiently(work, f"the engine of call {self.uid}", self._check_over)

    def _check_over(self) -> None:
        if self._grace is not None and not self.started:
            raise _Over

    async def _cancel(self) -> None:
        await self._patiently(lambda: self.engine.cancel(self.uid))
        self.wake(ends=True)

    async def _finish(self, report: Report) -> None:
        async with self._applying:
            for attempt, number, frame in report.unsent:
                if (attempt, number) > (self._attempt, self._received):
                    self._begin(attempt)
                    await self._apply(msgspec.convert(frame, Frame))
                    self._received = number
        if isinstance(report, Parked):
            call = self._invocation
            await self._front.durability.waits.take(call.uid, call.fence, call.conversation, "completion")
            deadline = report.deadline
            left = None if deadline is None else max(0.001, deadline - self._front.registry.clock.now())
            self._sink.park(Pending(left, report.on_timeout, report.on_cancel))
            self._gone()
        else:
            assert isinstance(report, Ended), "an engine returns only the end"
            stored = None if report.stored is None else await self._value(report.stored)
            outcome = report.outcome if stored is None else msgspec.convert(stored[0], Outcome)
            self._stop(outcome, crashed=report.crashed)

    def _stop(self, outcome: Outcome, *, crashed: bool = False) -> None:
        self._gone()
        if crashed and isinstance(outcome, Failure):
            self._sink.crashed(outcome)
        else:
            self._sink.stop(outcome)
        self._sink.released()

    def _gone(self) -> None:
        self._front.calls.pop(self.uid, None)
        self._tell()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    # Events from outside

    def _watch(self, kind: str, name: str) -> None:
        """Deliver an event to the engine when its key is resolved."""
        if kind == "completion":
            self._watched.add("")
        elif name not in self._watched:
            self._watched.add(name)
            self._spawn(self._pass_on(name))

    async def _pass_on(self, name: str) -> None:
        call, waits = self._invocation, self._front.durability.waits
        key = await waits.take(call.uid, call.fence, call.conversation, "event", name)
        try:
            resolution = resolution_json(await waits.wait(key))
        except ToolError:
            resolution = {"status": "revoked"}
        payload = msgspec.json.encode(resolution.get("payload"))
        if len(payload) > _EVENT_BYTES and self._front.url is not None:
            resolution["stored"], resolution["payload"] = await self._keep(payload), None
        await self._patiently(lambda: self.engine.resolve(self.uid, name, resolution))
        self.wake()

    # The channel

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def talk(self, talk: Talk) -> Said | tuple[int, str]:
        """Take what a worker says, store it, and answer."""
        if talk.attempt < self._attempt:
            return 409, "a later attempt runs this call"
        if talk.fetch is not None or talk.value is not msgspec.UNSET:
            return await self._values(talk)
        async with self._applying:
            self._begin(talk.attempt)
            for number, frame in enumerate(talk.frames, talk.first):
                if number > self._received:  # a worker sends the next frames only when these are acknowledged
                    await self._apply(frame)
                    self._received = number
            if (self._attempt, self._received, self.suspended) != self._stored:
                await self._store()
        self._received_inputs(talk.inputs)
        said = self._said(talk)
        if talk.wait and not self._has_news(said):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(talk.wait, 30.0)):
                    await self._news.wait()
            said = self._said(talk)
        return said

    def _has_news(self, said: Said) -> bool:
        return bool(said.inputs or said.answer is not None or said.end is not None)

    def _said(self, talk: Talk) -> Said:
        answer = self._answer[1] if self._answer is not None and self._answer[0] == talk.ask else None
        return Said(self._received, self._epoch, self._inputs[talk.inputs :], answer, self._grace)

    def _received_inputs(self, count: int) -> None:
        if count > self._taken:
            self._taken = count
            self._unread = sum(map(input_size, self._inputs[count:]))

    def _begin(self, attempt: int) -> None:
        """Note a new attempt."""
        if attempt <= self._attempt:
            return
        self._sink.withdraw()
        self._sink.reading(False)
        self._attempt, self._received, self._answer = attempt, 0, None
        self.wake()
        self._handle.attempt = attempt
        if attempt > 1:
            self._sink.mark_attempt()

    async def _store(self) -> None:
        """Write output and place together: what is acknowledged is not sent again, and nothing else is missing."""
        registry, output = self._front.registry, self._handle.output
        place = (self._attempt, self._received, self.suspended)
        ops: list[Op] = [Annotated(self.uid, metadata={AT: list(place)})]
        self._handle.metadata = {**(self._handle.metadata or {}), AT: list(place)}
        if output is not None:
            ops.append(Wrote(self.uid, self._invocation.fence, output.keep(registry.store.inline_output)))
        if self._attempt != self._stored[0]:
            ops.append(Attempted(self.uid, self._invocation.fence, self._attempt, None))
        await registry.write(ops)
        self._stored = place

    async def _apply(self, frame: Frame) -> None:
        """Take a frame. One that cannot be taken is logged, and does not hold up those behind it."""
        try:
            await self._take_frame(frame)
        except KeepholdError as error:
            if error.code in ("lease_lost", "already_stopped", "store_unavailable"):
                raise
            _log.warning("a frame of call %s is refused: %s", self.uid, error)
        except Exception as error:
            _log.error("a frame of call %s cannot be taken", self.uid, exc_info=error)

    async def _take_frame(self, frame: Frame) -> None:
        sink = self._sink
        match frame:
            case Printed(data):
                sink.output(data)
            case Progressed(done, total, message):
                sink.progress(done, total, message)
            case Reading(yes, inputs):
                sink.reading(yes and inputs == len(self._inputs))  # else it gets what was sent before
            case Asking():
                self._ask(frame)
            case Withdrawn():
                sink.withdraw()
            case Showing(path, old, new):
                sink.show(FileDiff(path, old, new))
            case Emitting():
                await self._emit(frame)
            case Taking(kind, name):
                await self._take(kind, name)
            case Suspending():
                self.suspended = True
                self._tell()
                self._front.sweep_later()

    def _ask(self, asking: Asking) -> None:
        question = msgspec.convert(asking.question, Question)
        if asking.name is not None:
            entry = self._journal.recorded("ask", asking.name)
            known = self._answers.get(asking.name) if entry is None else Ok(msgspec.json.decode(entry.value))
            if known is not None:
                self._answered(asking.number, None, known)
                return
        record = None if asking.name is None else partial(self._journal.op, "ask", asking.name, given=question)
        self._sink.ask(question, partial(self._answered, asking.number, asking.name), record)

    def _answered(self, number: int, name: str | None, outcome: Outcome) -> None:
        if name is not None and isinstance(outcome, Ok):
            self._answers[name] = outcome
        self._answer = (number, outcome)
        self._tell()

    async def _take(self, kind: Any, name: str) -> None:
        call = self._invocation
        await self._front.durability.waits.take(call.uid, call.fence, call.conversation, kind, name)
        self._watch(kind, name)

    async def _emit(self, frame: Emitting) -> None:
        registry, call = self._front.registry, self._invocation
        process = self._front.durability.call(call).process
        if process is None:
            return
        event = Emitted(process, frame.type, frame.payload, registry.clock.now())
        once = () if frame.name is None else (Journaled(call.uid, call.fence, "event", frame.name, b"", b"null"),)
        try:
            await registry.write((*once, event))
        except KeepholdError as error:
            if error.code != "durable_effect_duplicate_step_id":
                raise

    async def _values(self, talk: Talk) -> Said | tuple[int, str]:
        """Store a large value under its hash, or return one."""
        if talk.fetch is None:
            return Said(self._received, self._epoch, stored=await self._keep(msgspec.json.encode(talk.value)))
        found = await self._value(talk.fetch)
        return (410, "there is no such value") if found is None else Said(self._received, self._epoch, value=found[0])

    async def _value(self, stored: str) -> tuple[Any] | None:
        for entry in await self._front.registry.store.journal(self.uid):
            if entry.kind == "step" and entry.name == _stored(stored):
                return (msgspec.json.decode(entry.value),)
        return None

    async def _keep(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        entry = Journaled(self.uid, self._invocation.fence, "step", _stored(name), b"", data)
        try:
            await self._front.registry.write((entry,))
        except KeepholdError as error:
            if error.code != "durable_effect_duplicate_step_id":
                raise
        return name


class _Over(Exception):
    """The call is ended, and the engine has not said that it has it."""


def _stored(name: str) -> str:
    return f"value:{name}"
