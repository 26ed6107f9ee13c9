"""Arguments of the wrong type that can only have been meant in one way are read, and the model learns of it (C9)."""

import asyncio
from typing import Any

from tests.turn.calls import TALKING, call, opened

import keephold
from keephold import Call, Question, Runtime, ToolCall
from keephold.testing import VirtualClock


@keephold.tool(actions=TALKING)
async def measure(call: Call, depth: int, fast: bool = False) -> str:
    return f"{depth!r} {fast!r}"


@keephold.tool(actions=TALKING)
async def listen(call: Call) -> str:
    return repr(await call.input())


@keephold.tool(actions=TALKING)
async def sure(call: Call) -> str:
    return repr(await call.ask(Question("sure", "Sure?", str)))


def notes(response: Any) -> list[str]:
    return [each.message for each in response.notifications if each.kind == "call.read"]


async def test_C9_each_response_says_how_its_own_call_was_read(clock: VirtualClock) -> None:
    async with opened(clock, [measure]) as (_, turn):
        batch = [
            call("measure", depth=1),
            call("measure", depth="2"),
            call("measure", spawn="m", depth="3", fast="true"),
        ]
        first, second, third = await turn.run(batch)
        assert (first.result, second.result) == ("1 False", "2 False")  # nothing is added to the result itself
        assert notes(first) == []
        assert notes(second) == ['Your call of `measure`: `depth`: "2" was read as 2.']
        assert notes(third) == ['Your call of `measure`: `depth`: "3" was read as 3; `fast`: "true" was read as true.']
        assert [each.kind for each in second.notifications] == ["call.read"]


async def test_C9_a_lone_text_is_read_as_an_array_of_texts(clock: VirtualClock) -> None:
    async with opened(clock, [measure]) as (_, turn):
        await turn.run([call("measure", spawn="m", depth=1)])
        (waited,) = await turn.run([call("await", all="m")])
        assert not waited.is_error and '"completed":[{"id":"m"' in waited.result
        assert notes(waited) == ['Your call of `await`: `all`: "m" was read as ["m"].']


async def test_C9_a_refused_call_has_no_note(clock: VirtualClock) -> None:
    async with opened(clock, [measure]) as (_, turn):
        (response,) = await turn.run([call("measure", depth="2", fast="maybe")])
        assert response.is_error and notes(response) == []


async def test_C9_a_single_call_without_a_turn_says_it_too(clock: VirtualClock) -> None:
    async with Runtime([measure], clock=clock) as rt:
        response = await rt.call_queue("main").call(ToolCall("1", "measure", {"depth": "2"}))
        assert notes(response) == ['Your call of `measure`: `depth`: "2" was read as 2.']


async def test_C9_input_of_apply_is_never_read_as_anything_else(clock: VirtualClock) -> None:
    async with opened(clock, [listen, sure]) as (_, turn):
        await turn.run([call("listen", spawn="l"), call("sure", spawn="s")])
        sent = [call("handle_apply", id="l", input="5"), call("handle_apply", id="s", input="true")]
        applied = await turn.run(sent)
        await asyncio.sleep(1)
        assert [notes(each) for each in applied] == [[], []]
        shown = await turn.run([call("handle_fetch", id="l"), call("handle_fetch", id="s")])
        assert ["'5'" in shown[0].result, "'true'" in shown[1].result] == [True, True]


async def test_C9_the_end_of_input_may_be_text(clock: VirtualClock) -> None:
    async with opened(clock, [listen]) as (_, turn):
        await turn.run([call("listen", spawn="l"), call("handle_apply", id="l", eof="true")])
        (shown,) = await turn.run([call("handle_fetch", id="l")])
        assert '"stopped"' in shown.result and "closed the input" in shown.result
