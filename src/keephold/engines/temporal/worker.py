"""A worker of Temporal: runs the workflows of calls, and the tools of a configuration in their activities."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Any

import httpx2
import msgspec
from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from keephold.engines.base import EngineUnavailable, patiently
from keephold.engines.body import SUSPEND_SECS, Body, task_factory
from keephold.engines.channel import Channel, Ends
from keephold.engines.temporal.client import Place, asked
from keephold.engines.temporal.workflow import ACTIVITY, LOST, UNKNOWN, CallWorkflow
from keephold.engines.wire import Ended, EngineCall, Given, Line, Lost, Parked, Suspended
from keephold.tools.base import Tool
from keephold.tools.guard import Guard

_log = logging.getLogger("keephold.engines")

AT_ONCE = 8
"""Updates of one call that are in flight; the server refuses more than ten."""
MAX_RUNNING = 100
_CACHED = 1000
"""Workflows that a worker keeps in memory at most, 0.1 MiB each: those of running calls, and of calls that wait for a
slot. Others are read from their history when something happens to them."""
_STICKY = timedelta(seconds=3)
"""How long the server waits for the worker that has a workflow in memory, before any worker may read its history. If a
worker dies, its calls continue that much later."""
_BEAT_SECS = 2.0
"""Between heartbeats, which bring the cancellation of a call. Most calls are shorter, and cost none."""
_WATCH_SECS = 10.0
"""Between questions whether Temporal answers, so that the log of an idle worker says when it is away and when it is
back."""
_HEALTH = timedelta(seconds=5)
_HAND_OVER = timedelta(seconds=10)
_LEAVE_SECS = 10.0
"""How long a worker that exits waits for attempts after it has cancelled them."""
_LONG_ID = 200


class TemporalRecorder:
    """Records the steps of one attempt as updates of its workflow (`engines/base.py`)."""

    def __init__(self, handle: "WorkflowHandle[Any, Any]", attempt: int) -> None:
        self._handle = handle
        self._attempt = attempt
        self._flight = asyncio.Semaphore(AT_ONCE - 1)  # one is for the events

    async def record(self, line: Line) -> bool:
        async with self._flight:
            name = line.name
            if len(name) > _LONG_ID:
                name = f"{name[:100]}:{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"
            id = f"{self._attempt}:{line.kind}:{name}"  # sent twice, it counts once
            return bool(await self._update("record", [self._attempt, msgspec.to_builtins(line)], id))

    async def events(self, known: int) -> dict[str, Any]:
        found = await self._update("events", [self._attempt, known], f"{self._attempt}:events:{known}")
        if found is None:
            raise Lost("the attempt is over")
        events: dict[str, Any] = found
        return events

    async def journal(self) -> Sequence[Line]:
        lines: list[Line] = []
        while page := await _answer(partial(self._handle.query, "journal", len(lines))):
            lines += msgspec.convert(page, list[Line])
        return lines

    async def _update(self, name: str, args: list[Any], id: str) -> Any:
        try:
            return await _answer(lambda: self._handle.execute_update(name, args=args, id=id))
        except WorkflowUpdateFailedError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == LOST:
                raise Lost(str(error.cause)) from None
            raise
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:  # the workflow has ended
                raise Lost(error.message) from None
            raise


async def _answer(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await patiently(lambda: asked(ask()), "Temporal")


class TemporalWorker:
    """Runs calls of these tools that come by a task queue."""

    def __init__(
        self,
        place: Place,
        tools: Iterable[Tool],
        *,
        max_running: int | None = None,
        drain_secs: float = 30.0,
        suspend_secs: float = SUSPEND_SECS,
    ) -> None:
        self._place = place
        self._tools = {tool.name: tool for tool in tools if tool.engine == "temporal"}
        self._max_running = max_running or MAX_RUNNING
        self._drain_secs = drain_secs
        self._suspend_secs = suspend_secs
        self._guard = Guard()
        self._client: Client
        self._http: httpx2.AsyncClient
        self._ends: Ends
        self._bodies: set[Body] = set()
        self._stopping = False
        self.finished = 0
        """How many attempts have ended."""
        self.abandoned = False
        """Whether tools still run, because they swallow their cancellation."""

    @property
    def running(self) -> int:
        """How many attempts run now."""
        return len(self._bodies)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop; then let calls end for a while, and release those that can continue elsewhere."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(task_factory)  # to know which tasks are those of a call
        connecting = asyncio.ensure_future(patiently(self._place.connect, "Temporal"))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not connecting.done():
            connecting.cancel()
            await asyncio.wait((connecting,))
            self._guard.close()
            return
        self._client = connecting.result()
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx2.AsyncClient(limits=limits, trust_env=False) as self._http:
            self._ends = Ends(self._http)
            # One for both: the server answers a workflow that starts an attempt with the attempt itself.
            working = self._worker(
                self._client,
                activities=[self._attempt],
                max_concurrent_activities=self._max_running,
                max_heartbeat_throttle_interval=timedelta(seconds=_BEAT_SECS),
                graceful_shutdown_timeout=timedelta(seconds=self._drain_secs),
            )
            async with AsyncExitStack() as last:
                last.callback(loop.create_task(self._watch()).cancel)
                async with working:
                    await stop.wait()
                    self._stopping = True  # waiting calls go at once, others when their step is recorded
                    bodies = tuple(self._bodies)
                    leaving = [asyncio.ensure_future(body.suspend(self._drain_secs)) for body in bodies]
                    loop.call_later(self._drain_secs + _LEAVE_SECS, self._leave)
                    if bodies:
                        with suppress(EngineUnavailable):  # then nothing is recorded in any case
                            await last.enter_async_context(self._worker(await self._place.connect()))
                await asyncio.gather(*leaving)
                await asyncio.gather(*(self._passed_on(body.call.uid) for body in bodies))
            await self._ends.close()
        self._guard.close()

    async def _watch(self) -> None:
        with suppress(RPCError):  # a proxy may not know the question
            while True:
                await asyncio.sleep(_WATCH_SECS)
                await _answer(partial(self._client.service_client.check_health, timeout=_HEALTH))

    def _leave(self) -> None:
        """Let the attempts that still run report at once."""
        for body in self._bodies:
            self.abandoned = True
            body.leave()

    async def _passed_on(self, uid: str) -> None:
        """Wait until the workflow knows how an attempt has ended: only then does it answer a query. If this worker took
        that task with it, nobody would continue the call for as long as `_STICKY` says."""
        with suppress(RPCError, WorkflowQueryFailedError):
            await self._client.get_workflow_handle(uid).query("journal", 0, rpc_timeout=_HAND_OVER)

    def _worker(self, client: Client, **options: Any) -> Worker:
        return Worker(
            client,
            task_queue=self._place.task_queue,
            workflows=[CallWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
            sticky_queue_schedule_to_start_timeout=_STICKY,
            max_cached_workflows=min(_CACHED, 4 * self._max_running),
            build_id=version("keephold"),  # else the SDK hashes the code of all modules, which takes it a second
            **options,
        )

    @activity.defn(name=ACTIVITY)
    async def _attempt(self, given_call: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        try:
            call, begin = msgspec.convert(given_call, EngineCall), msgspec.convert(given, Given)
        except msgspec.ValidationError as error:
            _log.warning("a call cannot be read; its front end or workflow has another version: %s", error)
            raise _failure(f"this worker cannot read the call: {error}", UNKNOWN) from None
        tool = self._tools.get(call.tool)
        if tool is None:
            _log.warning("call %s needs the tool `%s`, which this worker does not have", call.uid, call.tool)
            raise _failure(f"this worker has no tool `{call.tool}`", UNKNOWN)
        if self._stopping:  # it came after the signal to stop, and has not begun
            return dict(msgspec.to_builtins(Suspended(due=time.time(), unsent=begin.unsent)))
        recorder = TemporalRecorder(self._client.get_workflow_handle(call.uid), begin.attempt)
        channel = Channel(self._http, call, begin.attempt)
        body = Body(tool, call, begin, recorder, channel, self._guard, suspend_secs=self._suspend_secs)
        self._bodies.add(body)
        beating = asyncio.get_running_loop().create_task(_beat(at_once=begin.deaths > 0))
        work = asyncio.ensure_future(body.run())
        try:
            report = await self._outlast(body, work, tool)
            if isinstance(report, Ended | Parked):
                self._ends.say(call)
            return dict(msgspec.to_builtins(report))
        except Lost as error:
            raise _failure(str(error), LOST) from None
        finally:
            self._bodies.discard(body)
            self.finished += 1
            beating.cancel()

    async def _outlast(self, body: Body, work: "asyncio.Future[Any]", tool: Tool) -> Any:
        """Wait for the attempt. A cancellation of the activity ends the tool, or releases the call for another
        worker."""
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    return work.result()
                details = activity.cancellation_details()
                if details is not None and (details.not_found or details.timed_out):
                    body.lost()
                elif details is not None and details.worker_shutdown and body.can_move:
                    await body.suspend(0)
                else:
                    body.end(tool.spawn.abort_grace_ms / 1000)


def _failure(message: str, type: str) -> ApplicationError:
    return ApplicationError(message, type=type, non_retryable=True, category=ApplicationErrorCategory.BENIGN)


async def _beat(*, at_once: bool) -> None:
    """Send heartbeats. `at_once`: a worker has died, and it counts whether the tool has begun here (R8)."""
    if not at_once:
        await asyncio.sleep(_BEAT_SECS)
    while True:
        activity.heartbeat("began")
        await asyncio.sleep(_BEAT_SECS)
