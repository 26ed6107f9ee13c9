"""Python functions as tools, and what a program asks a runtime (Y, Y1–Y3)."""

import asyncio
import datetime
import enum
import json
import logging
import sys
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.turn.calls import STATEFUL, TALKING, abort, call, opened, replies, spawn, texts, wait_all

import keephold
from keephold import Call, ConfigError, KeepholdError, Runtime, ToolCall, ToolError
from keephold.testing import VirtualClock


async def test_Y_the_first_example(clock: VirtualClock) -> None:
    @keephold.tool
    async def word_count(text: str) -> str:
        return str(len(text.split()))

    async with keephold.Runtime(tools=[word_count], store="memory:", config=None, clock=clock) as rt:
        async with rt.turn(conversation="main") as turn:
            responses = await turn.run([ToolCall(id="1", name="word_count", arguments={"text": "a b"})])
        assert (responses[0].result, responses[0].is_error, responses[0].notifications) == ("2", False, ())
    assert await word_count("still a function") == "3"


def test_Y1_any_other_store_is_refused_by_name() -> None:
    with pytest.raises(KeepholdError) as caught:
        Runtime(store="mysql://me:secret@host/work")
    assert caught.value.code == "unsupported_store" and "sqlite:///work.db" in caught.value.message
    assert "secret" not in caught.value.message


def test_Y_a_schema_comes_from_the_signature_and_the_docstring() -> None:
    @keephold.tool
    async def search(
        call: Call,
        query: str,
        kind: Literal["file", "text"] = "text",
        limit: Annotated[int, Field(ge=1)] = 10,
        schema: dict[str, Any] | None = None,  # the name of a method of every pydantic model
    ) -> str:
        """Search the project.

        Args:
            query: What to look for.
        """
        return ""

    parameters = search.parameters
    assert search.description == "Search the project."
    assert list(parameters["properties"]) == ["query", "kind", "limit", "schema"]  # and not `call`
    assert parameters["properties"]["query"] == {"type": "string", "description": "What to look for."}
    assert parameters["properties"]["kind"] == {"type": "string", "enum": ["file", "text"], "default": "text"}
    assert parameters["properties"]["limit"]["minimum"] == 1
    assert parameters["required"] == ["query"]


async def test_Y_a_first_parameter_named_call_gets_the_call_without_an_annotation(clock: VirtualClock) -> None:
    @keephold.tool
    async def bare(call, text: str) -> str:  # type: ignore[no-untyped-def]
        return f"{call.id} {text}"

    @keephold.tool
    async def phone(number: str, call: str) -> str:
        return f"{call} {number}"

    assert list(bare.parameters["properties"]) == ["text"]
    assert phone.parameters["required"] == ["number", "call"]
    async with opened(clock, [bare, phone]) as (_, turn):
        first, second = await texts(turn, call("bare", text="a"), call("phone", number="1", call="b"))
    assert (first.split()[1], second) == ("a", "b 1")


async def test_Y_arguments_arrive_as_the_types_of_the_signature(clock: VirtualClock) -> None:
    class Colour(enum.Enum):
        RED = "red"

    class Point(BaseModel):
        x: int
        y: int = 0

    @keephold.tool
    async def typed(at: datetime.date, colour: Colour, point: Point, schema: str, copy: int = 3) -> str:
        return f"{at.year} {colour.name} {point.x + point.y} {schema} {copy}"

    async with opened(clock, [typed]) as (_, turn):
        good = call("typed", at="2026-02-03", colour="red", point={"x": 4}, schema="s")
        assert await texts(turn, good) == ["2026 RED 4 s 3"]
        for wrong in ({"at": "soon"}, {"colour": "blue"}, {"point": {"y": 1}}, {"point": {"x": 1, "z": 2}}):
            (response,) = await turn.run([call("typed", **(good.arguments | wrong))])  # type: ignore[operator]
            if wrong == {"point": {"x": 1, "z": 2}}:
                assert not response.is_error  # what a model of the tool's own allows is its business
            else:
                assert response.is_error and f"`{next(iter(wrong))}" in response.result


def test_Y_the_settings_of_the_model_that_is_asked_are_copied_and_are_a_mapping() -> None:
    settings: Any = {"model": "test"}
    asking = keephold.tool(actions=("spawn",), assistant=settings)(echo := lambda: None)
    settings.clear()
    assert asking.spawn.assistant == {"model": "test"}
    with pytest.raises(ValueError):
        keephold.tool(actions=("spawn",), assistant="abc")(echo)  # type: ignore[call-overload]


def test_Y_two_tools_of_one_name_and_tools_that_cannot_be_called_by_name_are_refused() -> None:
    @keephold.tool
    async def work() -> str:
        return ""

    with pytest.raises(ConfigError, match="two tools are named `work`"):
        Runtime([work, work])
    for signature in ("*rest", "**rest", "positional, /"):
        namespace: dict[str, Any] = {}
        exec(f"async def work({signature}): ...", namespace)
        with pytest.raises(ConfigError, match="`work`"):
            keephold.tool(namespace["work"])


class Unserialisable:
    pass


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        (-(2**80), str(-(2**80))),
        ([1, "ä", {"k": None}], '[1,"ä",{"k":null}]'),
        ({1: "int keys"}, '{"1":"int keys"}'),
        (("tuple", 1), '["tuple",1]'),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
    ],
)
async def test_Y2_a_tool_may_return_a_string_or_json_able_data(clock: VirtualClock, value: Any, shown: str) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> Any:
        return value

    async with opened(clock, [work]) as (_, turn):
        one_shot, _, waited = await texts(turn, call("work"), spawn("work", "w"), wait_all("w"))
        if isinstance(value, datetime.date):
            shown = json.loads(shown)  # the value is the string
        assert one_shot == shown
        assert json.loads(waited)["completed"][0]["result"] == shown


def recursive() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Unserialisable(), "not JSON"),
        ({"deep": [Unserialisable()]}, "not JSON"),
        ({("a", "b"): 1}, "not JSON"),
        (recursive(), "nested too deeply"),
    ],
)
async def test_Y2_a_result_that_is_not_json_is_an_error_that_says_so(clock: VirtualClock, value: Any, why: str) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> Any:
        return value

    async with opened(clock, [work]) as (_, turn):
        one_shot, _, waited = await turn.run([call("work"), spawn("work", "w"), wait_all("w")])
        assert one_shot.is_error and why in one_shot.result
        assert json.loads(waited.result)["completed"][0]["is_error"] is True


async def test_Y2_the_result_is_a_copy(clock: VirtualClock) -> None:
    mine: list[Any] = [1]

    @keephold.tool(actions=STATEFUL)
    async def work() -> Any:
        return mine

    async with opened(clock, [work]) as (rt, turn):
        await turn.run([spawn("work", "w"), wait_all("w")])
        mine.append(2)
        assert (await rt.wait(all=["w"], conversation="main"))["completed"][0]["result"] == [1]


async def test_Y2_exceptions_give_the_message_to_the_model_and_the_trace_to_the_log(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work(how: str) -> str:
        match how:
            case "own":
                raise ToolError("own words", transient=True, code="quota")
            case "value":
                raise ValueError("bad value")
            case "silent":
                raise ValueError
            case "exit":
                sys.exit(3)
            case _:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(0)).add_done_callback(lambda _: None)
                    raise KeyError("in a group")
        raise AssertionError

    with caplog.at_level(logging.ERROR, "keephold.tools"):
        async with opened(clock, [work]) as (rt, turn):
            hows = ("own", "value", "silent", "exit", "group")
            responses = await turn.run([call("work", how=how) for how in hows])
            await turn.run([spawn("work", "w", how="own"), wait_all("w")])
            outcome = (await rt.handle("w", conversation="main")).outcome
    assert all(response.is_error for response in responses)
    shown = [response.result for response in responses]
    assert shown[:4] == ["own words", "ValueError: bad value", "ValueError", "SystemExit: 3"]
    assert shown[4].startswith("ExceptionGroup")
    assert not any("Traceback" in text for text in shown)
    traced = [record.exc_info[0].__name__ for record in caplog.records if record.exc_info and record.exc_info[0]]
    assert traced == ["ValueError", "ValueError", "SystemExit", "ExceptionGroup"]
    assert (outcome.code, outcome.transient) == ("quota", True)  # type: ignore[union-attr]


async def test_Y3_what_a_tool_knows_of_its_surroundings(clock: VirtualClock) -> None:
    seen: list[Call] = []

    @keephold.tool(actions=TALKING)
    async def look(call: Call) -> list[str]:
        seen.append(call)
        return [info.id for info in await call.handles.list()]

    async with opened(clock, [look], conversation="tree") as (rt, turn):
        one = call("look")
        await turn.run([one, spawn("look", "s"), wait_all("s")])
        info = await rt.handle("s", conversation="tree")
        mine = next(each for each in seen if each.uid == info.uid)
        other = next(each for each in seen if each.uid != info.uid)
        assert (other.id, other.conversation, other.attempt, other.cancelled) == (one.id, "tree", 1, False)
        assert mine.idempotency_key != other.idempotency_key and mine.idempotency_key


async def test_Y3_output_and_progress_after_the_end_are_dropped(clock: VirtualClock) -> None:
    calls: list[Call] = []

    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        calls.append(call)
        call.emit("in time")
        return "done"

    async with opened(clock, [work]) as (rt, turn):
        await turn.run([spawn("work", "w"), wait_all("w")])
        before = await rt.handle("w", conversation="main")
        calls[0].emit("too late")
        after = await rt.handle("w", conversation="main")
        assert before.output_bytes == after.output_bytes == len("in time")


async def test_Y_handles_can_be_listed_filtered_and_paged(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work(secs: float) -> str:
        await asyncio.sleep(secs)
        return ""

    async with Runtime([work], clock=clock) as rt, rt.turn("main") as main, rt.turn("other") as other:
        await replies(main, *(spawn("work", f"m{n}", secs=n % 2 * 60) for n in range(6)))
        await replies(other, spawn("work", "o", secs=60))
        await clock.advance(1)

        async def listed(**options: Any) -> list[str]:
            return [info.id for info in await rt.handles(**options)]

        assert await listed() == ["m0", "m1", "m2", "m3", "m4", "m5", "o"]
        assert await listed(conversation="other") == ["o"]
        assert await listed(state="running") == ["m1", "m3", "m5", "o"]
        assert await listed(state="stopped", conversation="main") == ["m0", "m2", "m4"]
        assert await listed(conversation="nobody's") == []
        page = await rt.handles(limit=4)
        assert [info.id for info in page] == ["m0", "m1", "m2", "m3"]
        assert await listed(limit=4, after=page[-1].uid) == ["m4", "m5", "o"]
        assert sorted(info.id for info in rt.live()) == ["m1", "m3", "m5", "o"]
        await replies(main, abort("work", "m1"))
        assert sorted(info.id for info in rt.live()) == ["m3", "m5", "o"]


async def test_Y_a_turn_without_a_name_is_of_a_conversation_of_its_own(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await asyncio.sleep(60)
        return ""

    async with Runtime([work], clock=clock) as rt, rt.turn() as one, rt.turn() as two:
        await replies(one, spawn("work", "w"))
        await replies(two, spawn("work", "w"))
        assert one.conversation != two.conversation
