"""What a call may be and how it is answered: actions, replies, errors of the call itself, nulls (C1–C3, C9, C10)."""

import asyncio
import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from tests.turn.calls import (
    STATEFUL,
    TALKING,
    apply,
    call,
    fetch,
    opened,
    replies,
    reply,
    spawn,
    texts,
    wait_all,
)

import keephold
from keephold import Call, ConfigError, Question, Runtime, ToolCall, ToolError
from keephold.testing import VirtualClock


@keephold.tool(actions=STATEFUL)
async def check(package: str, level: int = 3) -> str:
    return f"{package} at {level}"


@keephold.tool
async def plain(action: str = "", id: str = "") -> str:
    return f"{action}:{id}"


async def test_C1_a_call_is_stateful_iff_it_has_an_action(clock: VirtualClock) -> None:
    async with opened(clock, [check]) as (rt, turn):
        one_shot, spawned = await turn.run([call("check", package="a"), spawn("check", "c", package="b")])
        assert one_shot.result == "a at 3"
        assert json.loads(spawned.result) == {"id": "c", "state": "running"}
        assert [info.id for info in await rt.handles()] == ["c"]  # one-shot calls are nobody's handles


async def test_C1_without_an_action_a_call_takes_neither_id_nor_input(clock: VirtualClock) -> None:
    async with opened(clock, [check]) as (_, turn):
        for extra in ({"id": "c"}, {"input": "x"}):
            (response,) = await turn.run([call("check", package="a", **extra)])
            assert response.is_error and f"`{next(iter(extra))}`" in response.result


async def test_C1_for_a_tool_without_actions_they_are_ordinary_arguments(clock: VirtualClock) -> None:
    async with opened(clock, [plain]) as (rt, turn):
        assert await texts(turn, call("plain", action="spawn", id="x")) == ["spawn:x"]
        assert await rt.handles() == []


async def test_C1_a_return_value_never_changes_the_path(clock: VirtualClock) -> None:
    running = {"type": "running", "content": "hello"}

    @keephold.tool(actions=STATEFUL)
    async def pretends() -> dict[str, str]:
        return running

    async with opened(clock, [pretends]) as (rt, turn):
        text, _, waited = await texts(turn, call("pretends"), spawn("pretends", "p"), wait_all("p"))
        assert json.loads(text) == running
        assert json.loads(json.loads(waited)["completed"][0]["result"]) == running
        assert [info.state for info in await rt.handles()] == ["stopped"]


@pytest.mark.parametrize("taken", ["action", "id", "input"])
def test_C1_a_stateful_tool_with_a_parameter_of_ours_is_a_configuration_error(taken: str) -> None:
    parameters = {"type": "object", "properties": {taken: {"type": "string"}}}

    async def run() -> str:
        return ""

    with pytest.raises(ConfigError, match=f"`mine`.*`{taken}`"):
        Runtime([keephold.tool(name="mine", parameters=parameters, actions=STATEFUL)(run)])
    Runtime([keephold.tool(name="mine", parameters=parameters)(run)])


async def test_C2_an_action_the_tool_does_not_have_is_answered_with_those_it_has(clock: VirtualClock) -> None:
    async with opened(clock, [check]) as (_, turn):
        await replies(turn, spawn("check", "c", package="a"))
        for action in ("apply", "stop", "", 7, ["spawn"]):
            (response,) = await turn.run([call("check", action=action, id="c", input="x")])
            assert response.is_error
            assert all(f'"{action}"' in response.result for action in STATEFUL)


async def test_C2_spawn_without_id_is_an_error_that_says_so(clock: VirtualClock) -> None:
    async with opened(clock, [check]) as (rt, turn):
        (response,) = await turn.run([call("check", action="spawn", package="a")])
        assert response.is_error and "`id`" in response.result
        assert await rt.handles() == []


async def test_C2_the_action_set_limits_the_assistant_alone(clock: VirtualClock) -> None:
    @keephold.tool(actions=("spawn", "fetch"), timeout_secs=5)
    async def forget() -> str:
        await asyncio.sleep(60)
        return "never"

    async with Runtime([forget], clock=clock) as rt:
        async with rt.turn("main") as turn:
            (refused,) = await turn.run([call("forget", action="abort", id="f")])
            assert refused.is_error and '"spawn", "fetch"' in refused.result
            await replies(turn, spawn("forget", "timed"), wait_all("timed"))
            await replies(turn, spawn("forget", "left"))
        ends = {info.id: info.ended_by for info in await rt.handles()}
        assert ends == {"timed": "timeout", "left": "turn_end"}


async def test_C3_the_replies_of_each_state(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, scheduling="serial")
    async def talk(call: Call, fail: bool = False) -> str:
        call.emit("hello\n")
        await call.input()
        await call.ask(Question(id="q", text="Why?", answer_type="Text", pre_amble="Well.", default="because"))
        if fail:
            raise ToolError("no reason", transient=True, trace=["line 1"])
        return "reason"

    async with opened(clock, [talk]) as (_, turn):
        running, pending = await replies(turn, spawn("talk", "t"), spawn("talk", "behind", fail=True))
        assert running == {"id": "t", "state": "running", "content": "hello\n"}
        assert pending == {"id": "behind", "state": "pending"}
        assert await reply(turn, fetch("talk", "t")) == {"id": "t", "state": "running"}  # no content: left out
        question = {"id": "q", "text": "Why?", "answer_type": "Text", "pre_amble": "Well.", "default": "because"}
        assert await reply(turn, apply("talk", "t", "go")) == {"id": "t", "state": "waiting", "question": question}
        stopped = await reply(turn, apply("talk", "t", "so"))
        assert stopped == {"id": "t", "state": "stopped", "result": "reason"}
        await replies(turn, apply("talk", "behind", "go"))
        failed = await reply(turn, apply("talk", "behind", "so"))
        # A trace is a wire tool's to give; of a function it goes to the log.
        assert failed == {
            "id": "behind",
            "state": "stopped",
            "result": "no reason",
            "is_error": True,
            "transient": True,
        }


async def test_C3_a_spawn_that_has_a_handle_answers_in_this_form_also_when_it_failed(clock: VirtualClock) -> None:
    async with opened(clock, [check]) as (_, turn):
        responses = await turn.run([spawn("check", "c"), wait_all("c"), fetch("check", "c")])
        assert not any(response.is_error for response in responses)
        failed = json.loads(responses[0].result)
        assert (failed["id"], failed["state"], failed["is_error"]) == ("c", "stopped", True)
        assert "missing `package`" in failed["result"]
        assert json.loads(responses[1].result)["completed"] == [failed]
        assert json.loads(responses[2].result) == failed


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (call("chekc"), ["`chekc`", "`check`"]),
        (ToolCall(id="1", name="check", arguments="{"), ["not valid JSON"]),
        (ToolCall(id="1", name="check", arguments="[1]"), ["JSON object"]),
        (ToolCall(id="1", name="check", arguments="null"), ["missing `package`"]),
        (ToolCall(id="1", name="check", arguments=[1]), ["JSON object"]),  # type: ignore[arg-type]
        (ToolCall(id="1", name="check", arguments='{"package": "\ud800"}'), ["not valid JSON"]),
        (ToolCall(id="1", name="check", arguments={"package": "\ud800"}), ["not JSON"]),
        (ToolCall(id="1", name="check", arguments={"package": object()}), ["not JSON"]),
        (call("check"), ["missing `package`"]),
        (call("check", package=5), ["`package` must be a string, not 5"]),
        (call("check", package="a", level="high"), ["`level` must be an integer"]),
        (call("check", package="a", lvl=1), ["unknown argument `lvl`", "`level`"]),
        (fetch("check", "gone"), ["Handle `gone` not found"]),
        (call("other", action="fetch", id="c"), ["Handle `c` belongs to tool `check`, not to `other`"]),
        (call("check", action="fetch"), ["`id`"]),
        (call("check", action="fetch", id=5), ["`id` must be a string"]),
        (call("check", action="fetch", id="c", package="a"), ["`package`"]),
    ],
)
async def test_C9_a_wrong_call_is_told_what_was_wrong_and_what_would_be_right(
    clock: VirtualClock, bad: ToolCall, words: list[str]
) -> None:
    @keephold.tool(actions=STATEFUL)
    async def other() -> str:
        return "other"

    async with opened(clock, [check, other]) as (_, turn):
        await replies(turn, spawn("check", "c", package="a"))
        response, sibling = await turn.run([bad, call("check", package="fine")])
        assert response.is_error
        assert all(word in response.result for word in words), response.result
        assert sibling.result == "fine at 3"  # and the turn goes on


async def test_C9_arguments_are_an_object_or_its_json_text(clock: VirtualClock) -> None:
    async with opened(clock, [check, plain]) as (_, turn):
        calls = [
            ToolCall(id="1", name="check", arguments='{"package": "ä", "level": 12345678901234567890123}'),
            ToolCall(id="2", name="check", arguments={"package": "ä", "level": 12345678901234567890123}),
            ToolCall(id="3", name="plain", arguments=""),
            ToolCall(id="4", name="plain", arguments=" \n"),
            ToolCall(id="5", name="plain"),
        ]
        assert await texts(turn, *calls) == ["ä at 12345678901234567890123"] * 2 + [":"] * 3


async def test_C9_nothing_a_tool_does_is_an_exception_out_of_the_turn(clock: VirtualClock) -> None:
    class Odd(BaseException):
        pass

    def breaks(value: int) -> int:
        raise LookupError("a validator that breaks")

    @keephold.tool(actions=STATEFUL)
    async def odd() -> str:
        raise Odd("not even an Exception")

    @keephold.tool(actions=STATEFUL)
    async def unbound(number: Annotated[int, AfterValidator(breaks)]) -> str:
        return "never"

    async with opened(clock, [odd, unbound]) as (_, turn):
        responses = await turn.run([call("odd"), call("unbound", number=1)])
        assert [response.is_error for response in responses] == [True, True]
        assert "not even an Exception" in responses[0].result
        assert "a validator that breaks" in responses[1].result
        *_, waited = await replies(turn, spawn("odd", "o"), spawn("unbound", "u", number=1), wait_all("o", "u"))
        assert [entry["is_error"] for entry in waited["completed"]] == [True, True]


async def test_C9_a_label_that_is_no_text_is_still_answered(clock: VirtualClock) -> None:
    async with opened(clock, [check]) as (_, turn):
        (response,) = await turn.run([ToolCall(id="\ud800", name="check", arguments={"package": "a"})])
        assert (response.id, response.result) == ("\ud800", "a at 3")


async def test_C10_null_for_an_optional_argument_means_left_out(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def search(query: str, limit: int = 10, after: str | None = "start") -> str:
        return f"{query} {limit} {after}"

    async with opened(clock, [search]) as (_, turn):
        assert await texts(turn, call("search", query="q", limit=None)) == ["q 10 start"]
        assert await texts(turn, call("search", query="q", after=None)) == ["q 10 None"]  # its own schema has null
        (missing,) = await turn.run([call("search", query=None)])
        assert missing.is_error and "`query`" in missing.result
        strict: dict[str, Any] = {"query": "q", "limit": None, "after": "x", "input": None}  # all names, as some must
        _, waited = await replies(turn, spawn("search", "s", **strict), wait_all("s"))
        assert waited["completed"][0]["result"] == "q 10 x"
        assert await texts(turn, call("search", action=None, id=None, **strict)) == ["q 10 x"]
        assert (await reply(turn, call("await", all=["s"], any=None, timeout_secs=None)))["pending"] == []


async def test_C10_null_is_an_input_like_any_other(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def reader(call: Call) -> str:
        try:
            await call.input()
        except EOFError:
            return "closed"
        return "read"

    async with opened(clock, [reader]) as (_, turn):
        _, closed = await replies(turn, spawn("reader", "r"), apply("reader", "r", None))
        assert closed["result"] == "closed"
        (missing,) = await turn.run([call("reader", action="apply", id="r")])
        assert missing.is_error and "`input`" in missing.result
