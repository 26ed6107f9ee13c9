"""Sync functions: a daemon thread each, at most 64; what is ended lingers until its thread ends (Y2)."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, TALKING, abort, call, fetch, opened, replies, reply, spawn, texts, wait_all

import keephold
from keephold import Call, ConfigError, Question, Runtime
from keephold.testing import VirtualClock


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Threads wait for it; however a test ends, they are let go."""
    event = threading.Event()
    yield event
    event.set()


async def test_Y2_a_sync_function_runs_in_a_daemon_thread_of_its_own(clock: VirtualClock) -> None:
    threads: list[threading.Thread] = []

    @keephold.tool(actions=STATEFUL)
    def work(number: int) -> str:
        threads.append(threading.current_thread())
        return f"{number}"

    async with opened(clock, [work]) as (_, turn):
        with clock.real():
            assert await texts(turn, *(call("work", number=n) for n in range(3))) == ["0", "1", "2"]
            *_, waited = await replies(turn, spawn("work", "w", number=9), wait_all("w"))
            assert waited["completed"][0]["result"] == "9"
    assert len(set(threads)) == 4 and all(thread.daemon for thread in threads)
    assert threading.main_thread() not in threads


async def test_Y2_never_in_asyncios_executor(clock: VirtualClock, go: threading.Event) -> None:
    """A tool that blocks must not take the threads that asyncio needs for itself."""
    running = threading.Semaphore(0)

    @keephold.tool(actions=STATEFUL)
    def blocks() -> str:
        running.release()
        go.wait(PATIENCE)
        return "done"

    async with opened(clock, [blocks]) as (rt, turn):
        with ThreadPoolExecutor(1) as pool, clock.real():
            asyncio.get_running_loop().set_default_executor(pool)
            await replies(turn, *(spawn("blocks", f"b{n}") for n in range(8)))
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), PATIENCE) == "free"
            go.set()
            await until(lambda: not rt.live())


async def test_Y2_at_most_64_threads_and_the_rest_wait_their_turn(clock: VirtualClock, go: threading.Event) -> None:
    lock = threading.Lock()
    running = highest = 0
    full = threading.Event()

    @keephold.tool(actions=STATEFUL)
    def work() -> str:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
            if running == 64:
                full.set()
        go.wait(PATIENCE)
        with lock:
            running -= 1
        return "done"

    async with opened(clock, [work]) as (_, turn):
        with clock.real():
            states = await replies(turn, *(spawn("work", f"w{n}") for n in range(80)))
            assert [state["state"] for state in states] == ["running"] * 64 + ["pending"] * 16
            await until(full.is_set)
            go.set()
            waited = await reply(turn, wait_all(*(f"w{n}" for n in range(80))))
            assert len(waited["completed"]) == 80
    assert highest == 64


async def test_Y2_it_gets_emit_and_progress_and_their_order_holds(clock: VirtualClock, go: threading.Event) -> None:
    emitted = threading.Event()

    @keephold.tool(actions=STATEFUL)
    def work(call: Call) -> str:
        for number in range(1000):
            call.emit(f"{number} ")
            call.progress(number, 1000)
        emitted.set()
        go.wait(PATIENCE)
        call.emit("last")
        return "done"

    async with opened(clock, [work]) as (rt, turn):
        with clock.real():
            await replies(turn, spawn("work", "w"))
            await until(emitted.is_set)
            await asyncio.sleep(0)  # what a thread said last is handed over by the loop
            content = (await reply(turn, fetch("work", "w")))["content"]
            assert content.startswith("0 1 2 ") and content.endswith(" 999 ")
            go.set()
            await replies(turn, wait_all("w"))
            info = await rt.handle("w", conversation="main")
            whole = await reply(turn, call("read_output", id="w"))
        assert whole["content"] == "".join(f"{number} " for number in range(1000)) + "lastdone"
        assert info.progress is not None and info.progress.done == 999


@pytest.mark.parametrize("what", ["input", "ask"])
async def test_Y2_it_gets_neither_ask_nor_input(clock: VirtualClock, what: str) -> None:
    @keephold.tool(actions=STATEFUL)
    def work(call: Call) -> str:
        if what == "input":
            return str(call.input())
        return str(call.ask(Question(id="q", text="?", answer_type="Text")))

    async with opened(clock, [work]) as (_, turn):
        with clock.real():
            (response,) = await turn.run([call("work")])
        assert response.is_error and f"call.{what}() needs an async function" in response.result


def test_Y2_it_cannot_have_apply() -> None:
    def work() -> str:
        return "done"

    with pytest.raises(ConfigError, match=r"`work`.*sync"):
        keephold.tool(actions=TALKING)(work)


async def test_Y2_exceptions_and_exits_of_a_thread_are_errors_of_its_call(clock: VirtualClock) -> None:
    @keephold.tool
    def work(how: str) -> str:
        if how == "exit":
            raise SystemExit(4)
        raise ValueError("bad")

    async with opened(clock, [work]) as (_, turn):
        with clock.real():
            responses = await turn.run([call("work", how="exit"), call("work", how="raise")])
        assert [response.result for response in responses] == ["SystemExit: 4", "ValueError: bad"]
        assert all(response.is_error for response in responses)


async def test_Y2_on_abort_the_handle_stops_at_once_and_lingers(clock: VirtualClock, go: threading.Event) -> None:
    began, told = threading.Event(), threading.Event()

    @keephold.tool(actions=STATEFUL)
    def work(call: Call) -> str:
        began.set()
        go.wait(PATIENCE)
        if call.cancelled:
            told.set()
        return "too late"

    async with opened(clock, [work]) as (rt, turn):
        with clock.real():
            await replies(turn, spawn("work", "w"))
            await until(began.is_set)
            assert (await reply(turn, abort("work", "w")))["ended_by"] == "abort"
            (live,) = rt.live()
            assert (live.id, live.state, live.lingering) == ("w", "stopped", True)
            go.set()
            await until(told.is_set)
            await until(lambda: not rt.live())
        info = await rt.handle("w", conversation="main")
        assert (info.ended_by, info.lingering, info.ok) == ("abort", False, False)


async def test_Y2_resources_are_freed_when_the_thread_ends(clock: VirtualClock, go: threading.Event) -> None:
    order: list[str] = []

    @keephold.tool(actions=STATEFUL, resources=["x"])
    def work(name: str) -> str:
        order.append(f"{name} starts")
        if name == "first":
            go.wait(PATIENCE)
        order.append(f"{name} ends")
        return name

    async with opened(clock, [work]) as (_, turn):
        with clock.real():
            await replies(turn, spawn("work", "first", name="first"), abort("work", "first"))
            assert (await reply(turn, spawn("work", "second", name="second")))["state"] == "pending"
            waiting = asyncio.create_task(turn.run([wait_all("second")]))
            go.set()
            await waiting
    assert order == ["first starts", "first ends", "second starts", "second ends"]


async def test_Y2_B4_the_serial_turn_of_a_spawned_handle_is_freed_when_the_thread_ends(
    clock: VirtualClock, go: threading.Event
) -> None:
    @keephold.tool(actions=STATEFUL, scheduling="serial")
    def work(wait: bool) -> str:
        if wait:
            go.wait(PATIENCE)
        return "done"

    async with opened(clock, [work]) as (rt, turn):
        with clock.real():
            await replies(turn, spawn("work", "a", wait=True), spawn("work", "b", wait=False), abort("work", "a"))
            assert (await rt.handle("b", conversation="main")).state == "pending"
            go.set()
            waited = await reply(turn, wait_all("b"))
            assert waited["completed"][0]["result"] == "done"


@pytest.mark.slow
async def test_Y2_B4_the_serial_turn_of_a_one_shot_call_is_freed_when_the_thread_ends(
    clock: VirtualClock, go: threading.Event
) -> None:
    order: list[str] = []

    @keephold.tool(scheduling="serial", timeout_secs=3)
    def work(name: str) -> str:
        order.append(f"{name} starts")
        if name == "first":
            go.wait(PATIENCE)
        order.append(f"{name} ends")
        return name

    async with opened(clock, [work]) as (rt, turn):
        with clock.real():
            first = call("work", name="first")
            batch = asyncio.create_task(turn.run([first, call("work", name="second")]))
            await until(lambda: any(info.lingering for info in rt.live()))
            go.set()
            responses = await batch
    assert [response.result for response in responses] == ["Tool timed out after 3 s.", "second"]
    assert order == ["first starts", "first ends", "second starts", "second ends"]


async def test_Y2_closing_does_not_wait_for_a_thread(clock: VirtualClock, go: threading.Event) -> None:
    began = threading.Event()

    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    def work() -> str:
        began.set()
        go.wait(PATIENCE)
        return "too late"

    with clock.real():
        async with Runtime([work], clock=clock) as rt, rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"))
            await until(began.is_set)
        info = await rt.handle("w", conversation="main")
        assert (info.ended_by, info.lingering) == ("shutdown", True)
        go.set()
        await until(lambda: not rt.live())
