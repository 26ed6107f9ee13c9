"""How much of a result a response shows (O1–O5): views, shares, `read_output`; and `describe_tools` (B8)."""

import asyncio
import json
import re
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, TALKING, apply, call, fetch, opened, replies, reply, spawn, texts, wait_all

import keephold
from keephold import Call, Runtime, ToolCall, ToolError
from keephold.handles.output import Span
from keephold.policies import OutputPolicy, OutputView
from keephold.testing import VirtualClock


def output(limit: int) -> OutputPolicy:
    return OutputPolicy(dispatch=OutputView(limit=limit), model=OutputView(limit=limit))


def cut(text: str) -> int:
    """The number in the marker of a view."""
    (count,) = re.findall(r"\.\.\.(\d+) (?:bytes|lines|tokens) truncated\.\.\.", text)
    return int(count)


async def test_O1_equal_passes_and_over_either_cap_is_cut(clock: VirtualClock) -> None:
    @keephold.tool
    async def text(size: int = 0, lines: int = 0) -> str:
        return "x" * size + "y\n" * lines

    async with opened(clock, [text]) as (_, turn):
        fits, many = await texts(turn, call("text", size=16_384), call("text", lines=400))
        assert (len(fits), many) == (16_384, "y\n" * 400)
        too_big, too_many = await texts(turn, call("text", size=16_385), call("text", lines=401))
        assert too_big.startswith("x" * 16_384 + "\n") and cut(too_big) == 1
        assert "...1 lines truncated..." in too_many


async def test_O2_dispatch_and_model_are_cut_from_the_kept_output_and_not_from_each_other(clock: VirtualClock) -> None:
    views = OutputPolicy(dispatch=OutputView(limit=30), model=OutputView(limit=10, window="tail"))

    @keephold.tool(actions=STATEFUL, output=views)
    async def text() -> str:
        return "".join(f"{number:02}" for number in range(50))

    async with opened(clock, [text]) as (_, turn):
        (response,) = await turn.run([call("text")])
        assert response.result.startswith("000102030405060708091011121314\n") and cut(response.result) == 70
        assert response.model.endswith("4546474849") and cut(response.model) == 90
        await replies(turn, spawn("text", "t"), wait_all("t"))
        for each in await turn.run([fetch("text", "t"), wait_all("t")]):
            assert "1314\\n" in each.result and "1314\\n" not in each.model
            assert "4546474849" in each.model and "4546474849" not in each.result


async def test_O2_where_the_views_are_the_same_so_is_the_text(clock: VirtualClock) -> None:
    @keephold.tool
    async def text() -> str:
        return "same"

    async with opened(clock, [text]) as (_, turn):
        (response,) = await turn.run([call("text")])
        assert response.model == response.result == "same"


async def test_O2_the_projector_is_replaceable(clock: VirtualClock) -> None:
    class Shout:
        def text(self, source: str | Span, view: OutputView, hint: str) -> str:
            return source.upper() if isinstance(source, str) else "SPAN"

        def value(self, value: Any, view: OutputView, hint: str) -> str:
            return str(value).upper()

    @keephold.tool(actions=STATEFUL)
    async def text(fail: bool = False) -> str:
        if fail:
            raise ToolError("failure")
        return "success"

    async with Runtime([text], clock=clock, projector=Shout()) as rt, rt.turn() as turn:
        assert await texts(turn, call("text"), call("text", fail=True)) == ["SUCCESS", "FAILURE"]
        *_, waited = await replies(turn, spawn("text", "t"), wait_all("t"))
        assert waited["completed"][0]["result"] == "SUCCESS"


async def test_O2_a_projector_that_breaks_leaves_no_call_without_an_answer(clock: VirtualClock) -> None:
    class Broken:
        def text(self, source: str | Span, view: OutputView, hint: str) -> str:
            raise LookupError("broken")

        value = text

    @keephold.tool(actions=STATEFUL)
    async def text() -> str:
        return "success"

    async with Runtime([text], clock=clock, projector=Broken()) as rt, rt.turn() as turn:
        responses = await turn.run([call("text"), spawn("text", "t"), wait_all("t")])
        assert responses[0].is_error and "broken" in responses[0].result
        (entry,) = json.loads(responses[2].result)["completed"]
        assert entry["is_error"] and "broken" in entry["result"]
    assert turn.ending is not None


async def test_O3_json_stays_json_and_errors_are_cut_like_results(clock: VirtualClock) -> None:
    @keephold.tool(output=output(200))
    async def data(fail: bool = False) -> Any:
        if fail:
            raise ToolError("e" * 1000)
        return {"text": "x" * 1000, "list": [1, 2], "short": "kept"}

    async with opened(clock, [data]) as (_, turn):
        value, error = await turn.run([call("data"), call("data", fail=True)])
        shown = json.loads(value.result)
        assert (shown["list"], shown["short"]) == ([1, 2], "kept")
        assert cut(shown["text"]) + shown["text"].count("x") == 1000
        assert error.is_error and error.result.startswith("e" * 200 + "\n") and cut(error.result) == 800


async def test_O3_an_error_of_the_call_itself_is_cut_too(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        return ""

    async with opened(clock, [work]) as (_, turn):
        responses = await turn.run(
            [
                call("work", action="x" * 100_000, id="a"),
                fetch("work", "y" * 100_000),
                call("await", all=[f"handle-{number}" for number in range(10_000)]),
            ]
        )
        assert all(response.is_error and len(response.result) < 17_000 for response in responses)
        assert all(cut(response.result) for response in responses[1:])
        assert len(responses[0].result) < 200  # a wrong action is clipped in the sentence


async def test_O3_the_marker_says_how_to_read_the_rest_and_that_works(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, output=output(50))
    async def text(call: Call, fail: bool = False) -> str:
        call.emit("emitted ")
        whole = "".join(f"{number:04}" for number in range(50))
        if fail:
            raise ToolError(whole)
        return whole

    async with opened(clock, [text]) as (_, turn):
        calls = [call("text"), call("text", fail=True)]
        one_shot = await texts(turn, *calls)
        *_, waited = await replies(turn, spawn("text", "a"), spawn("text", "b", fail=True), wait_all("a", "b"))
        for shown in (*one_shot, *(entry["result"] for entry in waited["completed"])):
            (hint,) = re.findall(r"read_output (\{.*\});", shown)
            read, at = "", 0
            while True:
                piece = await reply(
                    turn, ToolCall(id="1", name="read_output", arguments=json.loads(hint) | {"offset": at})
                )
                assert len(piece["content"]) <= 50  # within the cap
                read, at = read + piece["content"], piece["end"]
                if at == piece["total"]:
                    break
            assert read == "emitted " + "".join(f"{number:04}" for number in range(50))


async def sizes(clock: VirtualClock, *wanted: int, view: OutputView) -> list[int]:
    """How much of results of these sizes one await shows of each."""

    @keephold.tool(actions=STATEFUL, output=OutputPolicy(dispatch=view, model=view))
    async def text(size: int) -> str:
        return "x" * size

    async with opened(clock, [text]) as (_, turn):
        names = [f"t{number}" for number in range(len(wanted))]
        *_, waited = await replies(
            turn, *(spawn("text", name, size=size) for name, size in zip(names, wanted, strict=True)), wait_all(*names)
        )
        return [entry["result"].count("x") for entry in waited["completed"]]


async def test_O3_up_to_four_results_have_a_limit_each(clock: VirtualClock) -> None:
    assert await sizes(clock, 500, 500, 500, 500, view=OutputView(limit=100)) == [100] * 4


async def test_O3_more_results_share_four_limits_and_unused_shares_pass_on(clock: VirtualClock) -> None:
    assert await sizes(clock, *[500] * 8, view=OutputView(limit=100)) == [50] * 8
    assert await sizes(clock, 10, 10, 10, 10, 500, 500, 500, 500, view=OutputView(limit=100)) == [10] * 4 + [90] * 4
    assert (
        await sizes(clock, 0, 0, 0, 0, 0, 500, 500, view=OutputView(limit=100)) == [0] * 5 + [100] * 2
    )  # never over its own


async def test_O3_shares_are_counted_in_the_unit_of_the_limit(clock: VirtualClock) -> None:
    # 400 tokens for all: nine results take 25 each, which leaves the last one its whole limit of 100.
    shown = await sizes(clock, *[100] * 9, 400, view=OutputView(limit=100, mode="tokens"))
    assert shown == [100] * 9 + [400]


async def test_O3_content_of_a_running_handle_is_cut_and_moves_on(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, output=output(20))
    async def printer(call: Call) -> str:
        for number in range(2):
            call.emit(f"{number}" * 100)
            await call.input()
        return "end"

    async with opened(clock, [printer]) as (_, turn):
        first = await reply(turn, spawn("printer", "p"))
        assert first["content"].startswith("0" * 20 + "\n") and cut(first["content"]) == 80
        second = await reply(turn, apply("printer", "p", ""))
        assert second["content"].startswith("1" * 20 + "\n") and cut(second["content"]) == 80
        whole = await reply(turn, call("read_output", id="p", offset=90, limit=20))
        assert whole["content"] == "0" * 10 + "1" * 10


@keephold.tool(actions=STATEFUL, output=output(40))
async def letters(call: Call) -> str:
    for number in range(10):
        call.emit(f"line {number}\n")
    await asyncio.sleep(1)
    return "result"


@pytest.mark.parametrize(
    ("arguments", "offset", "content"),
    [
        ({}, 0, "line 0\nline 1\nline 2\nline 3\nline 4\nline "),
        ({"offset": 63}, 63, "line 9\nresult"),
        ({"offset": 7, "limit": 6}, 7, "line 1"),
        ({"from_end": True, "limit": 6}, 70, "result"),
        ({"from_end": True, "offset": 13, "limit": 6}, 63, "line 9"),
        ({"offset": 1000}, 76, ""),
        ({"limit": 1000}, 0, "line 0\nline 1\nline 2\nline 3\nline 4\nline "),  # within the cap
    ],
)
async def test_O4_read_output_reads_the_kept_output(
    clock: VirtualClock, arguments: dict[str, Any], offset: int, content: str
) -> None:
    async with opened(clock, [letters]) as (_, turn):
        one = call("letters")
        await turn.run([one, spawn("letters", "l"), wait_all("l")])
        for named in ({"id": "l"}, {"call_id": one.id}):
            read = await reply(turn, call("read_output", **named, **arguments))
            assert read == named | {"offset": offset, "end": offset + len(content), "total": 76, "content": content}


async def test_O4_read_output_finds_a_literal_pattern(clock: VirtualClock) -> None:
    async with opened(clock, [letters]) as (_, turn):
        await turn.run([spawn("letters", "l"), wait_all("l")])
        found = await reply(turn, call("read_output", id="l", pattern="e 3"))
        assert found["matches"] == [{"offset": 24, "line": "line 3"}]
        none = await reply(turn, call("read_output", id="l", pattern="line ."))  # not a regular expression
        assert none["matches"] == [] and none["end"] == none["total"]


async def test_O4_read_output_of_a_running_handle_and_of_none(clock: VirtualClock) -> None:
    async with opened(clock, [letters]) as (_, turn):
        await turn.run([spawn("letters", "l")])
        await clock.advance(0.5)
        assert (await reply(turn, call("read_output", id="l", offset=63)))["content"] == "line 9\n"
        responses = await turn.run(
            [
                call("read_output"),
                call("read_output", id="l", call_id="1"),
                call("read_output", id="none"),
                call("read_output", call_id="none"),
                call("read_output", id="l", offset=-1),
            ]
        )
        assert all(response.is_error for response in responses)


async def test_O5_the_gap_is_named_exactly(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, output=OutputPolicy(max_output=1000))
    async def flood(call: Call) -> str:
        for number in range(1000):
            call.emit(f"{number:09}\n")
        return ""

    async with opened(clock, [flood]) as (_, turn):
        await turn.run([spawn("flood", "f"), wait_all("f")])
        head = await reply(turn, call("read_output", id="f"))
        assert (head["end"], head["total"]) == (500, 10_000)
        gap = await reply(turn, call("read_output", id="f", offset=600))
        assert (gap["missing"], gap["end"]) == (8_900, 9_500) and "8900 bytes" in gap["content"]
        tail = await reply(turn, call("read_output", id="f", offset=9_500))
        assert tail["content"].startswith("000000950\n") and tail["end"] == 10_000


def names(rt: Runtime) -> list[str]:
    return [tool["name"] for tool in rt.tools()]


async def test_B8_describe_tools_is_offered_only_if_there_is_something_to_describe(clock: VirtualClock) -> None:
    async def work() -> str:
        """What it does, at length."""
        return ""

    plain = keephold.tool(name="plain")(work)
    short = keephold.tool(name="short", summary="In short.")(work)
    shown = keephold.tool(name="shown", examples=["shown {}", "shown again"])(work)
    assert "describe_tools" not in names(Runtime([plain]))
    assert "describe_tools" in names(Runtime([plain, short]))
    assert "describe_tools" in names(Runtime([plain, shown]))

    async with opened(clock, [plain, short, shown]) as (_, turn):
        described = await reply(turn, call("describe_tools", tools=["shown", "short", "shown"]))
        assert described == [
            {"name": "shown", "description": "What it does, at length.", "examples": ["shown {}", "shown again"]},
            {"name": "short", "description": "What it does, at length.", "examples": []},
        ]
        (unknown,) = await turn.run([call("describe_tools", tools=["shown", "what"])])
        assert unknown.is_error and "what" in unknown.result and "plain" in unknown.result


async def test_B8_a_tool_of_the_users_own_has_the_handles_and_the_turns_cancellation(clock: VirtualClock) -> None:
    told: list[bool] = []

    @keephold.tool(scheduling="synchronising")
    async def first_of(call: Call, handles: list[str]) -> list[str]:
        """Waits like `await` does, and is waited for by nobody."""
        try:
            waited = await call.handles.wait(any=handles)
        except asyncio.CancelledError:
            told.append(call.cancelled)
            raise
        return [handle.id for handle in waited.handles if not handle.active]

    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def work(secs: float) -> str:
        await asyncio.sleep(secs)
        return "done"

    async with opened(clock, [first_of, work]) as (_, turn):
        first, *_ = await texts(
            turn, call("first_of", handles=["a", "b"]), spawn("work", "a", secs=2), spawn("work", "b", secs=2)
        )
        assert json.loads(first) == ["a"]
        batch = asyncio.create_task(turn.run([spawn("work", "c", secs=60), call("first_of", handles=["c"])]))
        await clock.advance(5)
        turn.cancel()
        assert (await batch)[1].result == "Tool execution cancelled."
        assert told == [True]
