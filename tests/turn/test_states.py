"""The states of a handle and its end (S1–S4), through replies and through `rt.handle`."""

import asyncio
from pathlib import Path

from tests.turn.calls import STATEFUL, TALKING, abort, apply, fetch, opened, replies, reply, settings, spawn, wait_all

import keephold
from keephold import Call, Question, ToolError
from keephold.handles.state import Failure, Ok
from keephold.testing import VirtualClock


async def test_S1_S2_a_handle_goes_from_pending_through_running_and_waiting_to_stopped(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, scheduling="serial")
    async def deploy(call: Call) -> str:
        await asyncio.sleep(5)
        sure = await call.ask(Question(id="sure", text="Deploy?", answer_type="Boolean"))
        await asyncio.sleep(5)
        return f"sure: {sure}"

    async with opened(clock, [deploy]) as (rt, turn):

        async def state() -> str:
            return (await rt.handle("second", conversation="main")).state

        first, second = await replies(turn, spawn("deploy", "first"), spawn("deploy", "second"))
        assert (first["state"], second["state"]) == ("running", "pending")
        seen = [await state()]
        await replies(turn, abort("deploy", "first"))
        seen.append(await state())
        await clock.advance(6)
        seen.append(await state())
        await replies(turn, apply("deploy", "second", True))
        seen.append(await state())
        answer = await reply(turn, wait_all("second"))
        seen.append(await state())

        assert seen == ["pending", "running", "waiting", "running", "stopped"]
        assert answer["completed"] == [{"id": "second", "state": "stopped", "result": "sure: True"}]


async def test_S2_a_late_completion_never_overwrites_the_first_end(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(10)  # longer than any grace: the handle is stopped without it
        return "late success"

    async with opened(clock, [stubborn]) as (rt, turn):
        _, aborted = await replies(turn, spawn("stubborn", "s"), abort("stubborn", "s"))
        await clock.advance(20)
        assert await reply(turn, fetch("stubborn", "s")) == aborted
        assert (await rt.handle("s", conversation="main")).ended_by == "abort"


async def test_S2_of_two_ends_in_one_instant_the_first_counts(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, timeout_secs=5)
    async def work(secs: float) -> str:
        await asyncio.sleep(secs)
        return "done"

    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w", secs=5), wait_all("w"))
        first = await rt.handle("w", conversation="main")
        await clock.advance(10)
        assert await rt.handle("w", conversation="main") == first
        assert first.ended_by in ("self", "timeout")
        assert first.stopped == first.created + 5


async def test_S3_an_abort_is_an_error_that_says_who_did_it_and_is_not_shown_as_a_failure(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        call.emit("half of it\n")
        await asyncio.sleep(60)
        return "never"

    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w"))
        await clock.advance(1)
        assert await reply(turn, abort("work", "w")) == {
            "id": "w",
            "state": "stopped",
            "result": "Aborted by the assistant.",
            "ended_by": "abort",
            "content": "half of it\n",
        }
        info = await rt.handle("w", conversation="main")
        assert info.outcome == Failure("Aborted by the assistant.", "aborted") and not info.ok
        assert info.output_bytes == len("half of it\n")  # output kept
        kept = await reply(turn, keephold.ToolCall(id="1", name="read_output", arguments={"id": "w"}))
        assert kept["content"] == "half of it\n"


async def test_S3_only_a_deliberate_end_is_spared_the_mark_of_an_error(clock: VirtualClock) -> None:
    """A tool cannot hide its own failure behind a code, nor behind a CancelledError nobody asked for."""

    @keephold.tool(actions=STATEFUL)
    async def sly() -> str:
        raise ToolError("the disk is full", code="aborted")

    @keephold.tool(actions=STATEFUL)
    async def careless() -> str:
        raise asyncio.CancelledError

    async with opened(clock, [sly, careless]) as (_, turn):
        *_, waited = await replies(turn, spawn("sly", "s"), spawn("careless", "c"), wait_all("s", "c"))
        assert [(entry["is_error"], "ended_by" in entry) for entry in waited["completed"]] == [(True, False)] * 2
        one_shot = await turn.run([keephold.ToolCall(id="1", name="sly"), keephold.ToolCall(id="2", name="careless")])
        assert [response.is_error for response in one_shot] == [True, True]


async def test_S3_aborting_a_pending_handle_means_that_it_never_starts(clock: VirtualClock) -> None:
    started: list[int] = []

    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def work(number: int) -> str:
        started.append(number)
        await asyncio.sleep(5)
        return "done"

    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, *(spawn("work", f"w{n}", number=n) for n in (1, 2, 3)))
        stopped = await reply(turn, abort("work", "w2"))
        assert (stopped["state"], stopped["ended_by"]) == ("stopped", "abort")
        await replies(turn, wait_all("w1", "w3"))
        assert started == [1, 3]
        info = await rt.handle("w2", conversation="main")
        assert info.started is None and info.stopped == info.created


async def test_S3_a_timeout_is_a_transient_error_by_timeout(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, timeout_secs=3)
    async def slow() -> str:
        await asyncio.sleep(60)
        return "never"

    async with opened(clock, [slow]) as (rt, turn):
        _, waited = await replies(turn, spawn("slow", "s"), wait_all("s"))
        assert waited["completed"] == [
            {"id": "s", "state": "stopped", "result": "Tool timed out after 3 s.", "is_error": True, "transient": True}
        ]
        info = await rt.handle("s", conversation="main")
        assert (info.ended_by, info.stopped) == ("timeout", info.created + 3)
        one_shot = await turn.run([keephold.ToolCall(id="1", name="slow")])
        assert one_shot[0].is_error and one_shot[0].result == "Tool timed out after 3 s."


async def test_S3_values_are_shown_as_they_are_to_python_and_as_text_to_a_model(clock: VirtualClock) -> None:
    value = {"files": ["ä", 1, None, 2.5], "big": 2**70}

    @keephold.tool(actions=STATEFUL)
    async def data() -> object:
        return value

    @keephold.tool(actions=STATEFUL)
    async def text() -> str:
        return '"quoted" ä\n'

    async with opened(clock, [data, text]) as (rt, turn):
        compact = '{"files":["ä",1,null,2.5],"big":1180591620717411303424}'
        *_, waited = await replies(turn, spawn("data", "d"), spawn("text", "t"), wait_all("d", "t"))
        assert [entry["result"] for entry in waited["completed"]] == [compact, '"quoted" ä\n']
        found = await rt.wait(all=["d", "t"], conversation="main")
        assert [entry["result"] for entry in found["completed"]] == [value, '"quoted" ä\n']
        assert (await rt.handle("d", conversation="main")).outcome == Ok(value)


async def test_S3_a_killed_process_has_its_signal_and_is_never_success(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.dies]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "echo before; kill -9 $$"]
        spawn.stateful = true

        [conversation.tools.silent]
        source = "local"
        run = "unattended"
        result = "skip"
        command = ["sh", "-c", "kill -9 $$"]
        spawn.stateful = true

        [conversation.tools.fails]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "exit 7"]
        spawn.stateful = true
        """,
    )
    async with opened(clock, [], config=config) as (rt, turn):
        names = ("dies", "silent", "fails")
        *_, waited = await replies(turn, *(spawn(name, name) for name in names), wait_all(*names))
        assert [entry.get("is_error") for entry in waited["completed"]] == [True, True, True]
        infos = [await rt.handle(name, conversation="main") for name in names]
        assert [(info.exit_code, info.signal) for info in infos] == [(None, 9), (None, 9), (7, None)]
        assert not any(info.ok for info in infos)


async def test_S4_a_handle_tells_where_it_belongs_and_when_it_lived(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, priority=4)
    async def work(call: Call) -> str:
        call.progress(1, 3, "one of three")
        await asyncio.sleep(2)
        await call.ask(Question(id="q", text="Go on?", answer_type="Boolean"))
        return "done"

    async with opened(clock, [work], conversation="tree") as (rt, turn):
        begun = clock.now()
        await replies(turn, spawn("work", "w"))
        await clock.advance(5)
        waiting = await rt.handle("w", conversation="tree")
        await replies(turn, apply("work", "w", True))
        stopped = await rt.handle("w", conversation="tree")

        assert (waiting.id, waiting.tool, waiting.kind) == ("w", "work", "tool")
        assert (waiting.conversation, waiting.turn, waiting.priority) == ("tree", turn.id, 4)
        assert waiting.question == Question(id="q", text="Go on?", answer_type="Boolean")
        assert waiting.progress is not None
        assert (waiting.progress.done, waiting.progress.total, waiting.progress.message) == (1, 3, "one of three")
        assert (waiting.created, waiting.started, waiting.stopped) == (begun, begun, None)
        assert stopped.stopped is not None and stopped.stopped > begun + 5
        assert stopped.question is None and stopped.ended_by == "self" and stopped.ok
