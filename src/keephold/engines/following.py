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
from keephold.engines import wire
from keephold.engines.base import Engine, patiently
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome
from keephold.store.base import ENGINE_AT, Annotated, Attempted, Emitted, Journaled, Op, Wrote
from keephold.tools.base import Invocation
from keephold.tools.call import FileDiff, input_size, with_input
from keephold.tools.run import Run

if TYPE_CHECKING:
    from keephold.engines.front import FrontEnd

_log = logging.getLogger("keephold.engines")

_EVENT_BYTES = 4 * 1024
"""A larger payload of an event is kept in the store, and the worker fetches it."""
_EVENTS_BYTES = 128 * 1024
"""Payloads of all events of a call that the engine has. Further ones are kept in the store if they are larger than
their hash."""
_HASH_BYTES = 64
_AGAIN_SECS = 5.0
_TURN_SECS = 20.0
"""How long one call is followed before another call has its turn."""
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
        at = (self._handle.metadata or {}).get(ENGINE_AT) or [0, 0, 0, 0, False]
        self._attempt, self._received, self.suspended = int(at[0]), int(at[1]), bool(at[4])
        self._newest = int(at[2]), int(at[3])
        """Origin of the newest frame that was applied: its attempt, and its number there."""
        self._stored = self._place
        self.waits_in_effects = self.suspended
        """Whether it waits for an event or sleeps (T1)."""
        self.started = self._attempt > 0
        """Whether the engine has it."""
        self._epoch = secrets.token_hex(4)
        self._journal = Journal(front.registry, self.uid, invocation.fence, entries)
        self._inputs: list[Any] = list(self._journal.inputs)
        self._taken, self._unread, self._closed = 0, 0, bool(self._inputs) and self._inputs[-1] is None
        self._answer: tuple[int, Outcome] | None = None
        answers = ((entry.name, Ok(msgspec.json.decode(entry.value))) for entry in entries if entry.kind == "ask")
        self._answers: dict[str | None, Outcome] = dict(answers)
        """By the name of the record."""
        self._grace: float | None = None
        self._changed, self._awake = asyncio.Event(), asyncio.Event()
        self._ends = False
        self._applying = asyncio.Lock()
        self._watched: set[str] = set()
        self._inlined = 0
        """Bytes of payloads that the engine has."""
        self._tasks: set[asyncio.Task[None]] = set()
        front.calls[self.uid] = self
        self._spawn(self._live())

    # Live

    def write_recorded(self, data: Any, cause: bytes = b"") -> None:
        if self._front.url is None:
            raise ToolError("no worker can fetch input: this program serves no HTTP", code="input_not_read")
        self._unread = with_input(self._unread, input_size(data), closed=self._closed)
        self._closed = data is None
        self._journal.store_input(data, cause, partial(self._deliver, data))

    write = write_recorded

    def _deliver(self, data: Any) -> None:
        self._inputs.append(data)
        self._tell()

    def end(self, grace: float) -> None:
        self._grace = grace
        self._tell()
        if self.started:
            self._spawn(self._cancel())

    def release(self) -> None:
        """Forget the call, which runs on: another runtime takes it back."""
        self._front.calls.pop(self.uid, None)
        for task in self._tasks:
            task.cancel()

    records_input = True

    @property
    def has_key(self) -> bool:
        return "" in self._watched

    # Following

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self) -> None:
        try:
            await self._patiently(self._look_for_keys)
            if not self.started:
                async with self._front.starting:
                    call = await self._patiently(self._call)
                    await self._patiently(lambda: self.engine.start(call))
                self.started = True
                if self._grace is not None:
                    self._spawn(self._cancel())
            report = await self._result()
            await self._patiently(lambda: self._finish(report))
        except _Over:  # the engine may have it, although its answer was lost
            await self._give_up(Failure("Tool execution cancelled.", "cancelled"))
        except Exception as error:
            _log.error("call %s cannot be followed", self.uid, exc_info=error)
            why = f"The engine refused the call: {type(error).__name__}: {error}"
            await self._give_up(Failure(why, "engine_failed"))

    async def _give_up(self, outcome: Outcome) -> None:
        """Stop the handle, and cancel the call, which nobody follows any more."""
        self._stop(outcome)
        self.started, task = True, asyncio.current_task()
        self._front.leaving.add(task)
        try:
            await self._patiently(lambda: self.engine.cancel(self.uid))
        except Exception as error:
            _log.error("call %s may still run at the engine", self.uid, exc_info=error)
        finally:
            self._front.leaving.discard(task)

    def look_for_keys(self) -> None:
        self._spawn(patiently(self._look_for_keys, ""))

    async def _look_for_keys(self) -> None:
        for row in await self._front.registry.store.waits(self.uid):
            self._watch(row.kind, row.name)

    async def _call(self) -> wire.EngineCall:
        invocation, tool = self._invocation, self._invocation.tool
        secret_id, secret = await self._front.durability.waits.newest_secret()
        return wire.EngineCall(
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

    async def _result(self) -> wire.Report:
        """Wait for the end. If the call is suspended or over the limit, the engine is asked only now and then."""
        front = self._front
        report: wire.Report | None = None
        try:
            while report is None:
                if self._ends:
                    async with front.reads:
                        report = await self._followed()
                elif not self.suspended and front.may_poll(self):
                    front.polls.add(self)
                    report = await self._followed()
                    self._let_another_poll()
                elif not await self._woken():
                    async with front.looks:
                        report = await self._patiently(lambda: self.engine.result(self.uid, wait=False))
        finally:
            self._let_another_poll()
        return report

    async def _followed(self) -> wire.Report | None:
        """Wait for the end, for so long as one call has its turn."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_SECS):
                return await self._patiently(lambda: self.engine.result(self.uid))
        return None

    async def _woken(self) -> bool:
        """Return True when the call ends or may be polled, or False after a while."""
        unpolled = self._front.unpolled
        try:
            async with asyncio.timeout(self._front.look_secs):
                while not self._ends and (self.suspended or not self._front.may_poll(self)):
                    self._awake.clear()
                    if self.suspended:
                        self._let_another_poll()
                    else:
                        unpolled[self] = None
                    await self._awake.wait()
                return True
        except TimeoutError:
            return False
        finally:
            unpolled.pop(self, None)

    def _let_another_poll(self) -> None:
        """Give the place of this call to the next. It has the place at once: this call, which runs on, would otherwise
        be the first to take it again."""
        front = self._front
        front.polls.discard(self)
        while front.unpolled and front.may_poll(other := next(iter(front.unpolled))):
            del front.unpolled[other]
            if not other.suspended:
                front.polls.add(other)
                other._awake.set()

    def wake(self, *, ends: bool = False) -> None:
        """It continues, or ends."""
        self.suspended, self._ends = False, self._ends or ends
        self._awake.set()

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat until the engine answers. Raises `_Over` if the call is ended before it was started."""
        return await patiently(work, f"the engine `{self._invocation.tool.engine}`", self._check_over)

    def _check_over(self) -> None:
        if self._grace is not None and not self.started:
            raise _Over

    async def _cancel(self) -> None:
        await self._patiently(lambda: self.engine.cancel(self.uid))
        self.wake(ends=True)

    async def _finish(self, report: wire.Report) -> None:
        async with self._applying:
            for attempt, number, frame in report.unsent:
                self._begin(attempt)
                await self._apply(attempt, number, msgspec.convert(frame, wire.Frame))
        if isinstance(report, wire.Parked):
            call = self._invocation
            await self._front.durability.waits.take(call.uid, call.fence, call.conversation, "completion")
            deadline = report.deadline
            left = None if deadline is None else max(0.001, deadline - self._front.registry.clock.now())
            self._sink.park(Pending(left, report.on_timeout, report.on_cancel))
            self._gone()
        else:
            assert isinstance(report, wire.Ended), "an engine returns only the end"
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
        """Deliver an event when its key is resolved. If that fails, it is tried again while the call is followed."""
        while True:
            try:
                call, waits = self._invocation, self._front.durability.waits
                key = await waits.take(call.uid, call.fence, call.conversation, "event", name)
                try:
                    resolution = resolution_json(await waits.wait(key))
                except ToolError:
                    resolution = {"status": "revoked"}
                payload = msgspec.json.encode(resolution.get("payload"))
                self._inlined += len(payload)
                large = len(payload) > (_EVENT_BYTES if self._inlined <= _EVENTS_BYTES else _HASH_BYTES)
                if large and self._front.url is not None:
                    resolution["stored"], resolution["payload"] = await self._keep(payload), None
                await self._patiently(lambda: self.engine.resolve(self.uid, name, resolution))  # noqa: B023
                self.wake()
                return
            except _Over:
                return
            except Exception as error:
                if isinstance(error, KeepholdError) and error.code in ("lease_lost", "already_stopped"):
                    return
                _log.error("event `%s` of call %s is not delivered yet", name, self.uid, exc_info=error)
            await asyncio.sleep(_AGAIN_SECS)

    # The channel

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def talk(self, talk: wire.Talk) -> wire.TalkAnswer | tuple[int, str]:
        """Take what a worker says, store it, and answer."""
        if talk.attempt >= self._attempt and (talk.fetch is not None or talk.value is not msgspec.UNSET):
            return await self._values(talk)
        async with self._applying:
            if talk.attempt < self._attempt:
                return 409, "a later attempt runs this call"
            self._begin(talk.attempt)
            for number, frame in enumerate(talk.frames, talk.first):
                if number > self._received:  # a worker sends the next frames only when these are acknowledged
                    await self._apply(*wire.origin(talk.attempt, number, frame))
                    self._received = number
            if self._place != self._stored:
                await self._store()
        if talk.inputs > self._taken:
            self._taken, self._unread = talk.inputs, sum(map(input_size, self._inputs[talk.inputs :]))
        said = self._answer_to(talk)
        if talk.wait and not said.inputs and said.answer is None and said.end is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(talk.wait, 30.0)):
                    await self._changed.wait()
            said = self._answer_to(talk)
        return said

    def _answer_to(self, talk: wire.Talk) -> wire.TalkAnswer:
        answer = self._answer[1] if self._answer is not None and self._answer[0] == talk.ask else None
        return wire.TalkAnswer(self._received, self._epoch, self._inputs[talk.inputs :], answer, self._grace)

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

    @property
    def _place(self) -> tuple[int, int, int, int, bool]:
        return (self._attempt, self._received, *self._newest, self.suspended)

    async def _store(self) -> None:
        """Write output and place together: what is acknowledged is not sent again, and nothing else is missing."""
        registry, output = self._front.registry, self._handle.output
        place = self._place
        at = {ENGINE_AT: list(place)}
        ops: list[Op] = [Annotated(self.uid, metadata=at)]
        self._handle.metadata = {**(self._handle.metadata or {}), **at}
        if output is not None:
            ops.append(Wrote(self.uid, self._invocation.fence, output.keep(registry.store.inline_output)))
        if self._attempt != self._stored[0]:
            ops.append(Attempted(self.uid, self._invocation.fence, self._attempt, None))
        await registry.write(ops)
        self._stored = place

    async def _apply(self, attempt: int, number: int, frame: wire.Frame) -> None:
        """Take a frame once, by its origin. One that cannot be taken is logged, and holds up none behind it."""
        if (attempt, number) <= self._newest:
            return
        try:
            await self._take_frame(frame)
        except KeepholdError as error:
            if error.code in ("lease_lost", "already_stopped", "store_unavailable"):
                raise
            _log.warning("a frame of call %s is refused: %s", self.uid, error)
        except Exception as error:
            _log.error("a frame of call %s cannot be taken", self.uid, exc_info=error)
        self._newest = attempt, number

    async def _take_frame(self, frame: wire.Frame) -> None:
        sink = self._sink
        match frame:
            case wire.Output(data):
                sink.output(data)
            case wire.Progressed(done, total, message):
                sink.progress(done, total, message)
            case wire.Reading(yes, inputs):
                sink.reading(yes and inputs == len(self._inputs))  # else it gets what was sent before
            case wire.Asking():
                self._ask(frame)
            case wire.Withdrawn():
                sink.withdraw()
            case wire.Showing(path, old, new):
                sink.show(FileDiff(path, old, new))
            case wire.Emitting():
                await self._emit(frame)
            case wire.Taking(kind, name):
                call = self._invocation
                await self._front.durability.waits.take(call.uid, call.fence, call.conversation, kind, name)
                self._watch(kind, name)
            case wire.Waiting(yes):
                self.waits_in_effects = yes
            case wire.Suspending():
                self.suspended = self.waits_in_effects = True
                self._ends = self._grace is not None

    def _ask(self, asking: wire.Asking) -> None:
        question = msgspec.convert(asking.question, Question)
        if (known := self._answers.get(asking.name)) is not None:
            self._answered(asking.number, None, known)
            return
        record = None if asking.name is None else partial(self._journal.op, "ask", asking.name, given=question)
        self._sink.ask(question, partial(self._answered, asking.number, asking.name), record)

    def _answered(self, number: int, name: str | None, outcome: Outcome) -> None:
        if name is not None and isinstance(outcome, Ok):
            self._answers[name] = outcome
        self._answer = (number, outcome)
        self._tell()

    async def _emit(self, frame: wire.Emitting) -> None:
        call = self._invocation
        process = self._front.durability.call(call).process
        if process is not None:
            event = Emitted(process, frame.type, frame.payload, self._front.registry.clock.now())
            once = () if frame.name is None else (Journaled(call.uid, call.fence, "event", frame.name, b"", b"null"),)
            await self._write_once(*once, event)

    async def _write_once(self, *ops: Op) -> None:
        """Write operations together, unless the entry of the journal among them is written already."""
        try:
            await self._front.registry.write(ops)
        except KeepholdError as error:
            if error.code != "durable_effect_duplicate_step_id":
                raise

    async def _values(self, talk: wire.Talk) -> wire.TalkAnswer | tuple[int, str]:
        """Store a large value under its hash, or return one."""
        if talk.fetch is None:
            kept = await self._keep(msgspec.json.encode(talk.value))
            return wire.TalkAnswer(self._received, self._epoch, stored=kept)
        if (found := await self._value(talk.fetch)) is None:
            return 410, "there is no such value"
        return wire.TalkAnswer(self._received, self._epoch, value=found[0])

    async def _value(self, stored: str) -> tuple[Any] | None:
        for entry in await self._front.registry.store.journal(self.uid):
            if entry.kind == "step" and entry.name == f"value:{stored}":
                return (msgspec.json.decode(entry.value),)
        return None

    async def _keep(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        await self._write_once(Journaled(self.uid, self._invocation.fence, "step", f"value:{name}", b"", data))
        return name


class _Over(Exception):
    """The call is ended, and the engine has not said that it has it."""
