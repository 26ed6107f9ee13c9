"""One attempt on a worker: when it is suspended, what begins until then, its cancellation, and a worker that leaves."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any

import msgspec
import pytest
from tests.engines.test_channel import Front, Recorder, call_of
from tests.patience import PATIENCE, until

from keephold import Call, tool
from keephold.engines import body as bodies
from keephold.engines.body import Body, task_factory
from keephold.engines.channel import UNSENT_BYTES
from keephold.engines.wire import Again, Carried, Ended, Given, Line, Output, Report, Suspended, Suspending, Waiting
from keephold.errors import ToolError
from keephold.handles.state import Failure, Ok
from keephold.tools.base import Tool
from keephold.tools.guard import Guard


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bodies, "_FLUSH_SECS", 0.1)
    monkeypatch.setattr(bodies, "_LOOK_SECS", 0.02)
    yield


def _body(
    tool: Tool, given: Given | None = None, *, front: Front | None = None, recorder: Recorder | None = None,
    suspend_secs: float = 0.2, **call: Any,
) -> Body:  # fmt: skip
    given, made = given or Given(1), msgspec.structs.replace(call_of(), **call)
    channel = (front or Front()).channel(made, given.attempt)
    return Body(tool, made, given, recorder or Recorder(), channel, Guard(), suspend_secs=suspend_secs)


@asynccontextmanager
async def _running(body: Body) -> AsyncIterator["asyncio.Task[Report]"]:
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    loop.set_task_factory(task_factory)
    task = asyncio.ensure_future(body.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        loop.set_task_factory(factory)


async def _report(body: Body) -> Report:
    async with _running(body) as running:
        return await asyncio.wait_for(running, PATIENCE)


def _ok(report: Report) -> Any:
    assert isinstance(report, Ended) and isinstance(report.outcome, Ok), report
    return report.outcome.value


@tool(engine="temporal", on_crash="replay")
async def waits(call: Call) -> Any:
    fx = call.durable()
    return await fx.await_event_json(await fx.external_event_key("go"))


async def test_E4_a_timeout_of_the_tools_own_ends_its_wait_as_in_a_runtime() -> None:
    @tool(engine="temporal", on_crash="replay")
    async def times_out(call: Call, how: str) -> str:
        fx = call.durable()
        key = await fx.external_event_key("go")
        try:
            if how == "timeout":
                async with asyncio.timeout(0.6):
                    await fx.await_event_json(key)
            else:
                await asyncio.wait_for(fx.await_event_json(key), 0.6)
        except TimeoutError:
            return "timed out"
        return "never"

    for how in ("timeout", "wait_for"):
        assert _ok(await _report(_body(times_out, arguments={"how": how}))) == "timed out"


async def test_a_body_is_suspended_only_after_it_has_waited_long_in_the_same_wait() -> None:
    @tool(engine="temporal", on_crash="replay")
    async def naps(call: Call, secs: float) -> int:
        for _ in range(12):
            await call.durable().sleep(secs)
        return call.attempt

    assert _ok(await _report(_body(naps, arguments={"secs": 0.07}))) == 1
    report = await _report(_body(naps, arguments={"secs": 60.0}))
    assert isinstance(report, Suspended) and report.due is not None


async def test_R6_a_step_that_waits_is_not_run_again_by_a_suspension() -> None:
    ran: list[str] = []

    @tool(engine="temporal", on_crash="replay")
    async def works(call: Call) -> int:
        async def step(name: str) -> int:
            ran.append(name)
            await call.durable().sleep(0.6)
            return call.attempt

        return int(await call.durable().run_json("pay", "pay", step))

    assert _ok(await _report(_body(works))) == 1 and ran == ["pay"]


@pytest.mark.parametrize("way", ["wait", "gather", "context"])
async def test_a_body_is_not_suspended_while_something_else_than_its_waits_works(way: str) -> None:
    may_end, done = threading.Event(), asyncio.Event()

    @tool(engine="temporal", on_crash="replay")
    async def works(call: Call) -> None:
        loop, waits = asyncio.get_running_loop(), asyncio.ensure_future(call.durable().sleep(3600))
        try:
            if way == "context":
                await loop.create_task(last(), context=Context())
            elif way == "wait":
                futures: list[asyncio.Future[Any]] = [waits, loop.run_in_executor(None, may_end.wait)]
                await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.gather(waits, loop.run_in_executor(None, may_end.wait))
        finally:
            waits.cancel()

    async def last() -> None:
        await asyncio.ensure_future(done.wait())

    body = _body(works)
    async with _running(body) as running:
        try:
            await until(lambda: body._waits)
            assert body._waits_for() is None
        finally:
            may_end.set()
            done.set()
            body.end(0)
            await running


@pytest.mark.parametrize("way", ["group", "gather", "wait", "task"])
async def test_a_body_is_suspended_while_its_coroutines_only_wait_for_each_other(way: str) -> None:
    @tool(engine="temporal", on_crash="replay")
    async def joins(call: Call) -> None:
        fx = call.durable()
        if way == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(fx.sleep(3600))
        elif way == "gather":
            await asyncio.gather(fx.sleep(3600), asyncio.gather(fx.sleep(7200)))
        else:
            task = asyncio.ensure_future(fx.sleep(3600))
            try:
                await (task if way == "task" else asyncio.wait([task]))
            finally:
                task.cancel()

    report = await _report(_body(joins))
    assert isinstance(report, Suspended) and report.due is not None


async def test_E4_a_wait_that_a_timeout_has_just_ended_is_not_suspended() -> None:
    body = _body(waits, suspend_secs=600)
    async with _running(body) as running:
        await until(body._waits_for)
        (task,) = body._waits
        task.cancel()
        assert body._waits_for() is None
        await running


async def test_text_that_is_not_valid_ends_a_call_as_in_a_runtime(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "keephold.tools")  # pytest cannot report a log with such text

    @tool(engine="temporal", on_crash="replay")
    async def lists(fails: bool) -> str:
        name = b"f\xff".decode(errors="surrogateescape")
        if fails:
            raise OSError(f"no file {name}")
        return name

    assert _ok(await _report(_body(lists, arguments={"fails": False}))) == "f\ufffd"
    report = await _report(_body(lists, arguments={"fails": True}))
    assert isinstance(report, Ended) and isinstance(report.outcome, Failure)
    assert report.outcome.message == "OSError: no file f\ufffd"


async def test_R5_the_report_of_a_failed_attempt_is_as_small_as_the_engine_wants() -> None:
    @tool(engine="temporal", on_crash="replay", retry="safe")
    async def fails() -> None:
        raise ToolError("x" * 3_000_000, transient=True, trace=["y" * 3_000_000])

    report = await _report(_body(fails))
    assert isinstance(report, Again) and len(msgspec.json.encode(report)) < 10_000


async def test_T1_a_worker_says_at_once_that_its_call_waits() -> None:
    front = Front()
    body = _body(waits, front=front, suspend_secs=600)
    async with _running(body) as running:
        await until(lambda: Waiting(True) in front.frames)
        front.epoch = "another"
        body.output(b"x")  # it hears of the other front end
        await until(lambda: front.frames.count(Waiting(True)) == 2)
        body._events["go"] = {"status": "ok", "payload": 5}
        body._arrived.set()
        assert _ok(await running) == 5
        assert front.frames[-1] == Waiting(False)


async def test_T1_an_attempt_that_continues_says_whether_it_waits_still() -> None:
    @tool(engine="temporal", on_crash="replay")
    async def works(call: Call) -> Any:
        fx = call.durable()
        await fx.await_event_json(await fx.external_event_key("go"))
        await asyncio.sleep(0.05)

    front = Front()
    assert (
        _ok(await _report(_body(works, Given(2, events={"go": {"status": "ok", "payload": 1}}), front=front))) is None
    )
    assert Waiting(False) in front.frames and Waiting(True) not in front.frames
    front = Front()
    assert isinstance(await _report(_body(works, Given(2), front=front)), Suspended)
    assert Waiting(True) in front.frames and front.frames[-1] == Suspending()


async def test_R6_a_running_step_holds_up_a_suspension_until_it_must_end_now() -> None:
    begun = asyncio.Event()

    @tool(engine="temporal", on_crash="replay")
    async def works(call: Call) -> Any:
        async def step(_: Any) -> None:
            begun.set()
            await asyncio.sleep(3600)

        await call.durable().run_json("long", None, step)

    body = _body(works)
    async with _running(body) as running:
        await begun.wait()
        suspending = asyncio.ensure_future(body.suspend())
        await asyncio.sleep(0.3)
        assert not running.done()
        await body.suspend(0)
        assert isinstance(await asyncio.wait_for(running, PATIENCE), Suspended)
        suspending.cancel()
        await asyncio.wait([suspending])


async def test_D3_a_call_is_suspended_only_when_a_front_end_knows_of_its_key() -> None:
    front = Front(0)
    async with _running(_body(waits, front=front)) as running:
        await asyncio.sleep(1)
        assert not running.done()
        front.status = 200
        report = await asyncio.wait_for(running, PATIENCE)
    assert report == Suspended(["go"]), "nothing is left to be sent"


async def test_frames_that_an_earlier_attempt_could_not_send_are_sent_first() -> None:
    @tool(engine="temporal", on_crash="replay")
    async def prints(call: Call) -> None:
        call.emit("second\n")

    front = Front()
    carried = [[1, 7, msgspec.to_builtins(Output(b"first\n"))], [1, 8, msgspec.to_builtins(Output(b"more\n"))]]
    assert _ok(await _report(_body(prints, Given(2, unsent=carried), front=front))) is None
    assert front.output == b"first\nmore\nsecond\n" and front.frames[0] == Carried(1, 7, Output(b"first\n"))


async def test_what_a_front_end_could_not_take_keeps_its_origin_in_the_next_report() -> None:
    @tool(engine="temporal", on_crash="replay")
    async def prints(call: Call) -> None:
        call.emit("second\n")

    carried = [[1, 7, msgspec.to_builtins(Output(b"first\n"))]]
    report = await _report(_body(prints, Given(2, unsent=carried), front=Front(0)))
    assert isinstance(report, Ended)
    assert [each[0] for each in report.unsent] == [1, 2] and report.unsent[0] == carried[0]


async def test_a_task_that_a_step_left_behind_begins_nothing_while_the_attempt_leaves() -> None:
    left, may_end = asyncio.Event(), asyncio.Event()

    @tool(engine="temporal", on_crash="replay")
    async def works(call: Call) -> None:
        fx = call.durable()
        tasks = list[Any]()

        async def later() -> None:
            await left.wait()
            await fx.run_json("late", None, nothing)

        async def nothing(_: Any) -> None:
            return None

        async def step(_: Any) -> None:
            tasks.append(asyncio.ensure_future(later()))

        async def long(_: Any) -> None:
            await may_end.wait()

        await fx.run_json("first", None, step)
        await fx.run_json("second", None, long)
        await tasks[0]

    recorder = Recorder()
    body = _body(works, recorder=recorder)
    async with _running(body) as running:
        await until(lambda: recorder.lines)
        suspending = asyncio.ensure_future(body.suspend())
        await asyncio.sleep(0)
        left.set()
        await asyncio.sleep(0)
        may_end.set()
        assert isinstance(await asyncio.wait_for(running, PATIENCE), Suspended)
        await suspending
    assert [line.name for line in recorder.lines] == ["first", "second"]


async def test_no_step_begins_that_the_engine_could_not_record_and_running_ones_end() -> None:
    ran: list[int] = []

    @tool(engine="temporal", on_crash="replay")
    async def wide(call: Call) -> list[int]:
        fx = call.durable()

        async def step(number: int) -> int:
            ran.append(number)
            await asyncio.sleep(0.5 if number == 0 else 0.01)
            return number

        async def inner(number: int) -> int:
            if number != 99:
                return await step(number)
            await asyncio.sleep(0.1)
            return int(await fx.run_json("inner", number, step))

        return list(await asyncio.gather(*(fx.run_json(f"s{each}", each, inner) for each in (99, *range(9)))))

    recorder = Recorder()
    report = await _report(_body(wide, Given(1, room=5), recorder=recorder))
    assert isinstance(report, Suspended) and report.due is not None
    assert sorted(ran) == [0, 1, 2, 3, 99], "a step in a running step may begin"
    assert {line.name for line in recorder.lines} == {"s99", "inner", "s0", "s1", "s2", "s3"}
    assert _ok(await _report(_body(wide, Given(2, list(recorder.lines)), recorder=recorder))) == [99, *range(9)]
    assert len(ran) == len(set(ran)) == 10


@pytest.mark.parametrize("in_pages", [True, False])
async def test_C7_an_abort_of_a_suspended_call_reaches_its_tool_where_it_waits(in_pages: bool) -> None:
    happened: list[str] = []

    @tool(engine="temporal", on_crash="replay")
    async def cleans(call: Call) -> None:
        fx = call.durable()

        async def step(name: str) -> None:
            happened.append(name)

        try:
            await fx.run_json("one", "one", step)
            await asyncio.sleep(0.01)
            await fx.await_event_json(await fx.external_event_key("go"))
            await fx.run_json("two", "two", step)
        except asyncio.CancelledError:
            happened.append("cancelled")
            await fx.run_json("clean up", "clean up", step)
            raise

    recorder = Recorder()
    assert isinstance(await _report(_body(cleans, recorder=recorder)), Suspended)
    lines, happened[:] = list(recorder.lines), []
    for events in {}, {"go": {"status": "ok", "payload": 1}}:  # its event may come with the abort
        resolved = [Line("resolved", name, value=value) for name, value in events.items()]
        given = Given(2, None if in_pages else lines, {} if in_pages else events, cancelled=True)
        body = _body(cleans, given, recorder=Recorder([*lines, *resolved]))
        async with _running(body) as running:
            body.end(0)  # the front end says so while the journal is read
            report = await asyncio.wait_for(running, PATIENCE)
        assert isinstance(report, Ended) and isinstance(report.outcome, Failure)
        assert report.outcome.code == "cancelled" and happened == ["cancelled", "clean up"]
        happened.clear()


async def test_C7_a_call_that_was_passed_on_and_aborted_before_it_began_never_begins() -> None:
    @tool(engine="temporal", retry="idempotent")
    async def begins() -> None:
        raise AssertionError("it has begun")

    report = await _report(_body(begins, Given(2, cancelled=True)))
    assert isinstance(report, Ended) and isinstance(report.outcome, Failure) and report.outcome.code == "cancelled"


async def test_R6_a_worker_that_leaves_does_not_wait_for_a_tool_that_swallows_its_cancellation() -> None:
    may_end = asyncio.Event()

    async def swallow(call: Call) -> None:
        call.emit("x" * 1_000_000)
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    front = Front(0)
    for on_crash in ("replay", "fail"):
        body = _body(tool(engine="temporal", on_crash=on_crash)(swallow), front=front)
        async with _running(body) as running:
            await until(lambda: body._live is not None)  # noqa: B023
            body._cancel(0)
            done, _ = await asyncio.wait([running], timeout=0.3)
            assert not done
            body.leave()
            report = await asyncio.wait_for(running, PATIENCE)
        assert isinstance(report, Suspended if on_crash == "replay" else Ended)
        assert len(msgspec.json.encode(report)) < 4 * UNSENT_BYTES
    may_end.set()
    await asyncio.sleep(0.01)


async def test_a_large_result_that_no_front_end_stores_does_not_hold_up_a_worker_that_leaves() -> None:
    @tool(engine="temporal", on_crash="replay")
    async def large() -> str:
        return "x" * 1_000_000

    body = _body(large, front=Front(0))
    async with _running(body) as running:
        await until(body._over.done)
        body.leave()
        assert isinstance(await asyncio.wait_for(running, PATIENCE), Suspended)
