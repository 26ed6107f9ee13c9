"""Replies that save the model a further call (C3, C5, C7, D9, N1)."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, fetch, opened, replies, reply, spawn, wait_all

import keephold
from keephold import Call, Pending, Runtime, ToolError, Turn
from keephold.policies import OutputPolicy, OutputView
from keephold.testing import VirtualClock

LINES = keephold.terminal(
    ["sh", "-c", "i=1; while [ $i -le 40 ]; do echo line $i; i=$((i+1)); done; printf ready; read -r _"],
    name="lines",
    rows=5,
    cols=40,
)


@pytest.mark.parametrize("shared", [True, False])
async def test_C5_fetch_of_a_terminal_shows_lines_above_its_screen(shared: bool) -> None:
    async with Runtime(tools=[LINES]) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("lines", "t"))

        async def look(**more: object) -> dict[str, object]:
            one = call("handle_fetch", id="t", **more) if shared else call("lines", action="fetch", id="t", **more)
            shown = await reply(turn, one)
            assert isinstance(shown, dict)
            return shown

        assert (await reply(turn, wait_all("t")))["needs_input"]
        plain, more, many = await look(view="screen"), await look(scrollback=3), await look(scrollback=1000)
        assert "scrollback" not in plain
        assert more["content"] == plain["content"] == "line 37\nline 38\nline 39\nline 40\nready"
        assert more["scrollback"] == "line 34\nline 35\nline 36"
        assert str(many["scrollback"]).splitlines() == [f"line {number}" for number in range(1, 37)]
        refused = await turn.run([call("lines", action="fetch", id="t", scrollback=1001)])
        assert refused[0].is_error and "`scrollback`" in refused[0].result


async def test_C3_a_reply_about_a_running_handle_shows_its_progress() -> None:
    @keephold.tool(actions=STATEFUL)
    async def slow(call: Call) -> None:
        call.progress(1, 3, "unpacking")
        await asyncio.Event().wait()

    async with Runtime(tools=[slow]) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("slow", "s"))
        shown = await reply(turn, fetch("slow", "s"))
        assert shown["progress"] == {"done": 1, "total": 3, "message": "unpacking"}


FAILS = '{"type":"error","message":"no network","trace":["dns","socket"],"transient":true}'


async def test_C3_a_one_shot_error_tells_the_model_its_trace_and_that_it_is_transient() -> None:
    @keephold.tool
    async def busy() -> None:
        raise ToolError("busy", transient=True, trace=["for the log"])

    @keephold.tool
    async def wrong() -> None:
        raise ToolError("wrong")

    fails = keephold.command(["echo", FAILS], name="wire")
    async with Runtime(tools=[fails, busy, wrong]) as rt, rt.turn("main") as turn:
        wire, once, never = await turn.run([call("wire"), call("busy"), call("wrong")])
    transient = "This error is transient: the same call may succeed later."
    assert (wire.result, wire.model) == ("no network", f"no network\n\nTrace:\ndns\nsocket\n\n{transient}")
    assert (once.result, once.model) == ("busy", f"busy\n\n{transient}")
    assert never.model == "wrong"


async def test_O1_the_trace_of_a_one_shot_error_is_cut_like_its_message() -> None:
    long = '{"type":"error","message":"no","trace":["' + "x" * 50_000 + '"],"transient":false}'
    async with Runtime(tools=[keephold.command(["echo", long], name="wire")]) as rt, rt.turn("main") as turn:
        (answer,) = await turn.run([call("wire")])
    assert "bytes truncated..." in answer.model and len(answer.model) < 16_384


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_D9_the_reply_to_a_spawn_that_parks_says_so(tmp_path: Path, store: str) -> None:
    @keephold.tool(actions=STATEFUL)
    async def approval(call: Call) -> Pending:
        await call.completion_key()
        await asyncio.sleep(0)
        return Pending(deadline=3600)

    url = store if store == "memory:" else f"sqlite:///{tmp_path / 'work.db'}"
    async with Runtime(tools=[approval], store=url) as rt, rt.turn("main") as turn:
        shown = await reply(turn, spawn("approval", "a"))
        assert (shown["state"], shown.get("parked")) == ("running", True) and shown["deadline"]


async def test_D9_a_spawn_with_a_key_is_answered_although_it_works_on(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def works(call: Call) -> Pending:
        await call.completion_key()
        await asyncio.sleep(60)
        return Pending()

    async with opened(clock, [works]) as (_, turn):
        began = asyncio.get_running_loop().time()
        assert await reply(turn, spawn("works", "w")) == {"id": "w", "state": "running"}
        assert asyncio.get_running_loop().time() - began == 1.0


async def test_C7_the_reply_to_an_abort_has_the_output_that_was_not_seen() -> None:
    chatty = keephold.command(
        ["sh", "-c", "echo one; read -r _; echo two; exec sleep 60"], stdin=True, name="chatty", actions=TALKING
    )
    async with Runtime(tools=[chatty]) as rt, rt.turn("main") as turn:
        assert (await reply(turn, spawn("chatty", "c")))["content"] == "one\n"
        sent, ended = await replies(turn, apply("chatty", "c", "go"), abort("chatty", "c"))
        assert sent["content"] == ended["content"] == "two\n"
        assert (ended["result"], ended["ended_by"]) == ("Aborted by the assistant.", "abort")
        assert "content" not in await reply(turn, fetch("chatty", "c"))  # now it was seen


async def test_O1_the_output_in_the_reply_to_an_abort_is_cut() -> None:
    @keephold.tool(actions=STATEFUL)
    async def flood(call: Call) -> None:
        call.emit("x" * 50_000)
        printed.set()
        await asyncio.Event().wait()

    printed = asyncio.Event()
    async with Runtime(tools=[flood]) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("flood", "f"))
        await printed.wait()
        shown = await reply(turn, abort("flood", "f"))
        assert "...33616 bytes truncated..." in shown["content"] and shown["result"] == "Aborted by the assistant."


async def told(turn: Turn) -> list[str]:
    return sorted(each.message for each in await turn.notifications())


@pytest.fixture
def go() -> asyncio.Event:
    """Set after the spawns were answered, so that the ends are notified together."""
    return asyncio.Event()


async def test_N1_the_notification_of_an_end_has_the_result(go: asyncio.Event) -> None:
    @keephold.tool(actions=STATEFUL)
    async def count(upto: int) -> dict[str, int]:
        await go.wait()
        return {"counted": upto}

    script = "read -r code; echo compiled; exit $code"
    build = keephold.command(["sh", "-c", script], name="build", stdin=True, actions=TALKING)
    async with Runtime(tools=[count, build]) as rt, rt.turn("main") as turn:
        await replies(turn, spawn("count", "c", upto=3), spawn("build", "b"), spawn("build", "f"))
        go.set()
        for id, code in (("b", "0"), ("f", "2")):
            await turn.send(id, code)
        await rt.wait(all=["c", "b", "f"], conversation="main")
        assert await told(turn) == [
            "`b` (build) stopped: compiled\n",
            '`c` (count) stopped: {"counted":3}',
            "`f` (build) failed: The command ended with exit code 2.\n\nOutput:\ncompiled\n",
        ]
        assert await told(turn) == []


async def test_O2_the_results_in_notifications_keep_to_the_budget(go: asyncio.Event) -> None:
    @keephold.tool(actions=STATEFUL)
    async def big() -> str:
        await go.wait()
        return "x" * 20_000

    small = dataclasses.replace(big, name="small", output=OutputPolicy(model=OutputView(limit=50)))
    async with Runtime(tools=[big, small]) as rt, rt.turn("main") as turn:
        await replies(turn, spawn("big", "b"), spawn("small", "s"))
        go.set()
        await rt.wait(all=["b", "s"], conversation="main")
        full, cut = await told(turn)
        assert "...16000 bytes truncated..." in full and 'read_output {"id":"b"}' in full
        assert "...19950 bytes truncated..." in cut

        many = [f"b{number}" for number in range(100)]
        go.clear()
        await replies(turn, *(spawn("big", id) for id in many))
        go.set()
        await rt.wait(all=many, conversation="main")
        assert set(await told(turn)) == {f"`{id}` (big) stopped." for id in many}


async def test_N5_the_result_is_in_the_notification_after_a_restart(tmp_path: Path, go: asyncio.Event) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await go.wait()
        return "kept"

    url = f"sqlite:///{tmp_path / 'work.db'}"
    async with Runtime(tools=[work], store=url) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("work", "w"))
        go.set()
        await rt.wait(all=["w"], conversation="main")
    async with Runtime(tools=[work], store=url) as rt, rt.turn("main") as turn:
        assert await told(turn) == ["`w` (work) stopped: kept"]
