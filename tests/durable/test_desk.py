"""Calls handed in at a desk, on SQLite (M5, R4): most are over before the store hears of them, and however one ends, is
left, cut off or refused in that moment, whoever was told something can rely on it, and nothing is left lying about."""

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.crash.test_disk import Disk, disk, full, trouble
from tests.durable.lives import approval, notifications, ok, stored_in
from tests.mcp.clients import post_modern
from tests.mcp.serving import ROOT, environment, serving
from tests.patience import PATIENCE, until
from tests.soak import tries
from tests.turn.calls import STATEFUL
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, KeepholdError, Key, Pending, Question, Runtime, ToolCall
from keephold.handles.state import Stopped
from keephold.outcomes import Ok
from keephold.store.base import HandleQuery, Record
from keephold.turn.single_calls import QueuedCall

__all__ = ["disk"]

CUT = "line\n" * 10_000
"""More than is shown of a result."""
MILLISECONDS = (0, 1, 8, 9, 10, 11, 12, 25)
"""Around the moment when a call that goes on is written down."""


@keephold.tool
async def nap(ms: int) -> str:
    await asyncio.sleep(ms / 1000)
    return f"napped {ms}"


@keephold.tool
async def prints(call: Call, ms: int) -> str:
    call.emit(CUT)
    await asyncio.sleep(ms / 1000)
    return CUT


@keephold.tool
async def takes_key(call: Call, ms: int) -> str:
    await asyncio.sleep(ms / 1000)
    await call.completion_key()
    return f"napped {ms}"


@keephold.tool
async def parks(call: Call, ms: int) -> Pending:
    await asyncio.sleep(ms / 1000)
    await call.completion_key()
    return Pending()


@keephold.tool
async def asks(call: Call, ms: int) -> str:
    await asyncio.sleep(ms / 1000)
    with suppress(KeepholdError):
        await call.ask(Question(id="q", text="Sure?", answer_type="Boolean"))
    return f"napped {ms}"


TOOLS = [nap, prints, takes_key, parks, asks]


def orphans(store: str) -> list[str]:
    """What belongs to no handle, or is broken."""
    queries = (
        "SELECT 'journal', handle FROM journal WHERE handle NOT IN (SELECT number FROM handles)",
        "SELECT 'output', handle FROM outputs WHERE handle NOT IN (SELECT number FROM handles)",
        "SELECT 'wait', uid FROM waits WHERE uid NOT IN (SELECT uid FROM handles)",
        "SELECT 'news', uid FROM notifications WHERE uid NOT IN (SELECT uid FROM handles)",
        "SELECT 'broken', integrity_check FROM pragma_integrity_check WHERE integrity_check != 'ok'",
    )
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
        return [f"{what} {which}" for query in queries for what, which in connection.execute(query)]


async def rows(rt: Runtime) -> list[Record]:
    return list(await rt.registry.store.handles(HandleQuery(stateful=None)))


async def handed_back(rt: Runtime) -> None:
    """Until every call is answered, left or cancelled for good."""
    await until(lambda: not rt.batches and not rt.registry._tasks)
    await rt.registry.write(())


# What is told is so


async def test_O4_what_was_cut_is_read_by_its_label_whenever_the_call_ended(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    async def reads(rt: Runtime) -> None:
        for ms in MILLISECONDS:
            arguments = {"call_id": f"p{ms}", "from_end": True, "limit": 10}
            read = json.loads((await rt.call_queue("main").call(ToolCall("r", "read_output", arguments))).result)
            assert (read["content"], read["total"]) == ("line\nline\n", 2 * len(CUT))

    async with Runtime(TOOLS, store=store) as rt:
        desk = rt.call_queue("main")
        calls = [desk.call(ToolCall(f"p{ms}", "prints", {"ms": ms})) for ms in MILLISECONDS]
        for response in await asyncio.gather(*calls):
            assert f'{{"call_id":"{response.id}"}}' in response.result
        await reads(rt)
    async with Runtime(TOOLS, store=store) as rt:
        await reads(rt)
    assert orphans(store) == []


@pytest.mark.parametrize("label", ["\ud800", "", "call:1 \x00 x", "i" * 100_000])
async def test_B1_any_label_is_answered(tmp_path: Path, label: str) -> None:
    """Labels are ids of requests, which clients choose."""
    async with Runtime(TOOLS, store=stored_in(tmp_path)) as rt, asyncio.timeout(PATIENCE):
        for ms in (0, 25):
            response = await rt.call_queue("main").call(ToolCall(label, "nap", {"ms": ms}))
            assert response.id == label
            assert response.code == "not_storable" or response.result == f"napped {ms}"
        assert not rt.batches and rt.live() == []


@pytest.mark.parametrize("ms", [0, 25])
async def test_C9_what_cannot_be_stored_is_told(tmp_path: Path, ms: int) -> None:
    @keephold.tool(questions={"q": keephold.policies.QuestionPolicy(target="assistant")})
    async def asks_oddly(call: Call) -> str:
        await asyncio.sleep(ms / 1000)
        await call.ask(Question(id="q", text="Which?", default=object()))
        return "never"

    async with Runtime([asks_oddly], store=stored_in(tmp_path)) as rt, asyncio.timeout(PATIENCE):
        response = await rt.call_queue("main").call(ToolCall("1", "asks_oddly"))
        assert response.is_error and response.code == "not_storable"
        assert not rt.batches and rt.live() == []


async def test_D5_a_key_taken_at_once_is_one(tmp_path: Path) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys, actions=())], store=stored_in(tmp_path)) as rt:
        desk = rt.call_queue("main")
        waiting = asyncio.create_task(desk.call(ToolCall("a", "approve")))
        await until(lambda: len(keys) == 1)
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert (await waiting).result == "yes"
        parked = await desk.call(ToolCall("b", "approve"), park_after=0)
        assert json.loads(parked.result) == {"id": "call:b", "state": "running", "parked": True}
        assert str(await rt.resolve(keys[1], ok("later"))) == "accepted"
        assert await notifications(rt) == [("tool.stopped", "info")]


# Whoever leaves


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6, 10, 30])
async def test_N3_the_end_of_a_left_call_is_news_once(tmp_path: Path, steps: int, written: bool) -> None:
    """Also if it ends while it is being given its name."""
    go = asyncio.Event()

    @keephold.tool
    async def work() -> str:
        await go.wait()
        return "done"

    async with with_wait_tools([work, nap], store=stored_in(tmp_path)) as rt:
        visit = await rt.call_queue("main").begin(ToolCall("w", "work"))
        handle = visit.handle
        assert handle is not None
        if written:
            rt.registry.write_down(handle)
            await rt.registry.write(())
        visit.leave()
        for _ in range(steps):
            await asyncio.sleep(0)
        go.set()
        await handed_back(rt)
        await until(lambda: not handle.active)
        found = json.loads((await rt.call_queue("other").call(ToolCall("n", "list_wait_handles"))).result)
        assert found["handles"] == []  # of another conversation; and everything decided is visible by now
        assert [each.message for each in await rt.registry.store.notifications("main")] == ["`call:w` (work) stopped."]
        shown = await rt.call_queue("main").call(ToolCall("a", "await", {"all": ["call:w"]}))
        assert json.loads(shown.result)["completed"] == [{"id": "call:w", "state": "stopped", "result": "done"}]
        after = await rt.call_queue("main").call(ToolCall("n", "nap", {"ms": 0}))
        assert shown.notifications == after.notifications == () and await notifications(rt) == []


@pytest.mark.parametrize("ms", [150, 600])  # longer than what is to happen meanwhile, also on a busy machine
async def test_N4_news_does_not_go_to_a_client_that_is_gone(tmp_path: Path, ms: int) -> None:
    go = asyncio.Event()

    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await go.wait()
        return "done"

    async with (
        serving(tools=[nap, work], store=stored_in(tmp_path)) as here,
        httpx2.AsyncClient(timeout=PATIENCE) as http,
    ):
        rt = here.runtime
        await here.runtime.call_queue("mcp").call(ToolCall("s", "work", {"action": "spawn", "id": "w"}))
        gone = asyncio.create_task(post_modern(http, here.url, 2, "nap", ms=ms))
        await until(lambda: len(rt.batches) == 1)
        go.set()
        await until(lambda: not rt.registry.conversation("mcp").names["w"].active)
        gone.cancel()
        await asyncio.wait([gone])
        await handed_back(rt)
        waiting = [each.message for each in await rt.registry.store.notifications("mcp")]
        assert "`w` (work) stopped." in waiting
        answer = (await post_modern(http, here.url, 3, "nap", ms=0)).text
        assert answer.count("`w` (work) stopped: done") == 1
        await until(here.idle)


async def test_N3_a_reply_leaves_before_its_shown_states_are_recorded_and_no_other_repeats_them(tmp_path: Path) -> None:
    async with with_wait_tools([nap], store=stored_in(tmp_path)) as rt:
        queue = rt.call_queue("main")
        await queue.call(ToolCall("c", "create_wait_handle", {"handleId": "h", "type": "custom"}))
        waiting = asyncio.create_task(queue.call(ToolCall("w", "wait_for", {"handleId": "h"})))
        await until(lambda: bool(rt.registry.waiting))
        completing = asyncio.create_task(
            queue.call(ToolCall("d", "complete_wait_handle", {"handleId": "h", "result": "done"}))
        )
        assert '"completed"' in (await waiting).model
        assert await rt.registry.store.notifications("main"), "recorded while the reply could have left"
        other = await queue.call(ToolCall("n", "nap", {"ms": 0}))  # shows nothing of the handle
        assert other.notifications == () and (await completing).notifications == ()
        assert await rt.registry.store.notifications("main") == []


@pytest.mark.parametrize("runtimes", [1, 2])
async def test_N4_news_rides_once_whoever_answers(tmp_path: Path, runtimes: int) -> None:
    """Side by side, and by two runtimes of one store: each end is told once."""

    @keephold.tool(actions=STATEFUL)
    async def work(ms: int) -> str:
        await asyncio.sleep(ms / 1000)
        return "done"

    told: list[str] = []

    async def client(number: int, among: list[Runtime]) -> None:
        chance = random.Random(number)
        for n in range(12):
            id, ms = f"{number}-{n}", chance.choice(MILLISECONDS)
            spawned = ToolCall(id, "work", {"action": "spawn", "id": id, "ms": ms})
            for call in (spawned, ToolCall("n", "nap", {"ms": ms})):
                response = await chance.choice(among).call_queue("main").call(call)
                told.extend(each.message for each in response.notifications)

    async with AsyncExitStack() as stack:
        store = stored_in(tmp_path)
        among = [await stack.enter_async_context(with_wait_tools([nap, work], store=store)) for _ in range(runtimes)]
        await asyncio.gather(*(client(number, among) for number in range(4)))
        await until(lambda: not any(rt.registry.live() for rt in among))
        last = await among[0].call_queue("main").call(ToolCall("n", "nap", {"ms": 0}))
        told.extend(each.message for each in last.notifications)
    assert sorted(told) == sorted(f"`{number}-{n}` (work) stopped: done" for number in range(4) for n in range(12))


# Whatever happens to several of them

Fate = Literal["taken", "left", "cancelled", "detached"]
visits = st.tuples(
    st.sampled_from([tool.name for tool in TOOLS]),
    st.sampled_from(MILLISECONDS),
    st.sampled_from(["taken", "left", "cancelled", "detached"]),
    st.sampled_from(MILLISECONDS),
)


async def visited(rt: Runtime, label: str, plan: tuple[str, int, Fate, int]) -> tuple[QueuedCall, Any]:
    tool, ms, fate, after = plan
    visit = await rt.call_queue("main").begin(ToolCall(label, tool, {"ms": ms}), park_after=0.02)
    if fate == "taken":
        return visit, await visit.response()
    await asyncio.sleep(after / 1000)
    if fate == "left":
        visit.leave()
    elif fate == "detached":
        visit.detach()
    else:
        visit.cancel()
        return visit, await visit.response()
    return visit, None


async def happens(plans: list[tuple[str, int, Fate, int]], directory: Path) -> None:
    store = stored_in(directory)
    async with Runtime(TOOLS, store=store) as rt:
        async with asyncio.timeout(PATIENCE):
            done = await asyncio.gather(*(visited(rt, f"v{n}", plan) for n, plan in enumerate(plans)))
            await handed_back(rt)
            await until(lambda: rt.registry.live() == [])
        carried = [each.message for _, response in done if response for each in response.notifications]
        told = carried + [each.message for each in await rt.registry.store.notifications("main")]
        found = {record.call_id: record for record in await rows(rt)}
        assert sorted(found) == sorted(f"v{n}" for n in range(len(plans))), "each call has one row"
        for n, ((tool, ms, fate, _), (_, response)) in enumerate(zip(plans, done, strict=True)):
            record = found[f"v{n}"]
            state = record.state
            assert isinstance(state, Stopped) or (tool == "parks" and record.parking), (record, response)
            if fate == "taken" and tool in ("nap", "takes_key"):
                assert response.result == f"napped {ms}"
                assert isinstance(state, Stopped) and state.outcome == Ok(response.result)
            named = [message for message in told if f"`call:v{n}`" in message]
            if fate in ("left", "detached"):
                assert len(named) == (record.stateful and isinstance(state, Stopped)), (told, record)
            else:  # its end was in the answer, or is told of later
                assert len(named) <= 1, (told, record)
        before = {uid: record.state for uid, record in found.items()}
    async with Runtime(TOOLS, store=store) as rt:
        assert {record.call_id: record.state for record in await rows(rt)} == before
    assert orphans(store) == []


@settings(max_examples=tries(15, soak=25))
@given(st.lists(visits, min_size=1, max_size=8))
def test_R4_calls_that_are_taken_left_and_cancelled_at_any_moment(plans: list[tuple[str, int, Fate, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(happens(plans, Path(directory)))


# The end of everything


@pytest.mark.parametrize("tool", [tool.name for tool in TOOLS])
@pytest.mark.parametrize("moment", [0, 4, 12])
async def test_R6_closing_right_after_a_call_has_begun(tmp_path: Path, tool: str, moment: int) -> None:
    store = stored_in(tmp_path)
    rt = await Runtime(TOOLS, store=store).__aenter__()
    calls = [ToolCall(f"c{ms}", tool, {"ms": ms}) for ms in MILLISECONDS]
    begun = [await rt.call_queue("main").begin(call) for call in calls]
    answers = [asyncio.create_task(visit.response()) for visit in begun]
    await asyncio.sleep(moment / 1000)
    await rt.close()
    async with asyncio.timeout(PATIENCE):
        responses = await asyncio.gather(*answers)
    async with Runtime(TOOLS, store=store) as rt:
        found = {record.call_id: record for record in await rows(rt)}
    for response in responses:
        record = found[response.id]
        if response.code == "runtime_closed":  # it waits for somebody else, and goes on doing so
            assert record.parking is not None and not isinstance(record.state, Stopped)
            continue
        assert isinstance(record.state, Stopped) and record.owner is None
        assert record.state.ended_by == ("shutdown" if response.code == "aborted" else "self")
    assert orphans(store) == []


@pytest.mark.parametrize("size", [1, 60_000])
async def test_R4_the_end_of_an_unwritten_call_waits_for_room(tmp_path: Path, disk: Disk, size: int) -> None:
    """The store has never heard of it when the disk is full; its answer comes when it has."""
    go = asyncio.Event()

    @keephold.tool
    async def work(size: int) -> str:
        await go.wait()
        return "x" * size

    async with with_wait_tools([work], store=stored_in(tmp_path)) as rt:
        answers = [
            asyncio.create_task(rt.call_queue("main").call(ToolCall(f"w{n}", "work", {"size": size}))) for n in "123"
        ]
        await until(lambda: len(rt.registry.live()) == 3)
        async with full(disk, rt):
            go.set()
            if size > 1:  # a small one finds room in the page that there is
                await trouble(rt)
                await asyncio.sleep(0.05)
                assert not any(answer.done() for answer in answers), "durable before visible"
        async with asyncio.timeout(PATIENCE):
            responses = await asyncio.gather(*answers)
        assert [response.is_error for response in responses] == [False] * 3
        states = [record.state for record in await rows(rt)]
        assert [state.outcome for state in states if isinstance(state, Stopped)] == [Ok("x" * size)] * 3
        assert not rt.batches


async def busy(store: str, name: str) -> None:
    """Calls without end. What is told is printed first."""

    @keephold.tool
    async def ticket(call: Call, ms: int) -> Pending:
        await asyncio.sleep(ms / 1000)
        print(json.dumps({"key": await call.completion_key()}), flush=True)
        return Pending()

    async def client(rt: Runtime, number: int) -> None:
        chance = random.Random(number)
        desk = rt.call_queue(name)
        for n in range(1_000_000):
            tool = chance.choice(["nap", "nap", "prints", "takes_key", "ticket"])
            call = ToolCall(f"{number}-{n}", tool, {"ms": chance.choice(MILLISECONDS)})
            response = await desk.call(call, park_after=0)
            print(json.dumps({"id": call.id, "tool": tool, "result": response.result}), flush=True)

    async with Runtime([*TOOLS, ticket], store=store) as rt:
        await asyncio.gather(*(client(rt, number) for number in range(6)))


async def test_R4_what_two_killed_processes_have_told_is_so(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    told = await _two_killed(store, tmp_path)

    @keephold.tool
    async def ticket(call: Call, ms: int) -> Pending:
        return Pending()

    async with Runtime([*TOOLS, ticket], store=store) as rt:
        await until(lambda: rt.registry.live() == [])
        found = {(record.conversation, record.call_id): record for record in await rows(rt)}
        assert all(isinstance(each.state, Stopped) or each.parking is not None for each in found.values())
        for name, said in told.items():
            assert len(said) > 30
            for line in said:
                if "key" in line:
                    assert str(await rt.resolve(line["key"], ok(1))) in ("accepted", "already_resolved")
                    continue
                record = found[name, line["id"]]
                if line["tool"] == "ticket":
                    assert record.stateful and record.id == json.loads(line["result"])["id"]
                else:
                    assert isinstance(record.state, Stopped) and isinstance(record.state.outcome, Ok)
                    assert record.state.ended_by == "self"
                    assert line["tool"] == "prints" or record.state.outcome.value == line["result"]
    assert orphans(store) == []


def started(store: str, name: str, directory: Path) -> "subprocess.Popen[str]":
    code = f"import asyncio; from tests.durable.test_desk import busy; asyncio.run(busy({store!r}, {name!r}))"
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(directory), stdout=subprocess.PIPE, text=True
    )


def _killed(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """What a process says until it is killed, in the middle of its work."""
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(60)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    return [json.loads(line) for line in said if line.endswith("\n")]


async def _two_killed(store: str, directory: Path) -> dict[str, list[dict[str, Any]]]:
    with started(store, "first", directory) as one, started(store, "second", directory) as other:
        said = await asyncio.gather(asyncio.to_thread(_killed, one), asyncio.to_thread(_killed, other))
    return dict(zip(("first", "second"), said, strict=True))
