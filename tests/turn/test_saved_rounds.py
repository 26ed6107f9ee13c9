"""Replies that save the model a further call (C3, C5, C7, D9, N1)."""

import asyncio

import pytest
from tests.turn.calls import STATEFUL, call, fetch, reply, spawn, wait_all

import keephold
from keephold import Call, Runtime, ToolError

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
