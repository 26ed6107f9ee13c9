"""Durable effects while nothing goes wrong (E1, E3, E5, E8, E9): the rules of steps, events, sleeps and processes."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.durable.lives import ok, only, stopped, stored_in
from tests.turn.calls import STATEFUL, abort, call, opened, reply, spawn

import keephold
from keephold import Call, ConfigError, Effects, Key, Runtime, ToolCall, ToolError
from keephold.durable.journal import Journal
from keephold.outcomes import Failure, Ok
from keephold.testing import VirtualClock
from keephold.tools.function import FunctionTool

Body = Callable[[Effects, Call], Awaitable[Any]]


def effectful(body: Body, **options: Any) -> FunctionTool:
    """A tool with durable effects that does this."""

    @keephold.tool(**{"name": "work", "actions": STATEFUL, "on_crash": "replay", **options})
    async def work(call: Call) -> Any:
        return await body(call.durable(), call)

    return work


async def refused(clock: VirtualClock, body: Body) -> str:
    """The code of the error that a call with this body ends with."""
    async with opened(clock, [effectful(body)]) as (_, turn):
        response = await only(turn, call("work"))
        assert response.is_error, response.result
        return response.code or ""


async def double(given: Any) -> Any:
    return given * 2


async def test_E1_effects_are_declared_never_inferred(clock: VirtualClock) -> None:
    @keephold.tool
    async def undeclared(call: Call) -> None:
        call.durable()

    @keephold.tool(on_crash="external", deadline_secs=60)
    async def external(call: Call) -> None:
        call.durable()

    async with opened(clock, [undeclared, external]) as (_, turn):
        for each in await turn.run([call("undeclared"), call("external")]):
            assert each.code == "durable_effects_unavailable" and 'on_crash="replay"' in each.result


async def test_E1_a_call_without_an_id_has_no_effects(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> None:
        raise AssertionError("never reached")

    async with opened(clock, [effectful(body)]) as (_, turn):
        response = await only(turn, ToolCall("", "work"))
        assert response.code == "durable_effects_missing_call_id"


def test_E1_a_sync_function_cannot_have_effects() -> None:
    with pytest.raises(ConfigError, match="async"):

        @keephold.tool(on_crash="replay")
        def sync(call: Call) -> None: ...


async def test_E1_a_step_gives_the_function_its_input_and_returns_its_result(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> list[Any]:
        async def pair(given: Any) -> Any:
            return given, {"n": 1}

        results = [await fx.run_json(f"s{n}", given, double) for n, given in enumerate((21, "ab", [1]))]
        return [*results, await fx.run_json("pair", None, pair)]

    async with opened(clock, [effectful(body)]) as (_, turn):
        # A tuple comes back as the list it will be on replay, too.
        assert (await only(turn, call("work"))).result == '[42,"abab",[1,1],[null,{"n":1}]]'


# E3


async def test_E3_an_empty_step_id(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> None:
        await fx.run_json("", 1, double)

    assert await refused(clock, body) == "durable_effect_empty_step_id"


async def test_E3_a_step_id_is_used_once_and_that_is_checked_before_the_function_runs(clock: VirtualClock) -> None:
    ran: list[Any] = []

    async def note(given: Any) -> None:
        ran.append(given)
        await asyncio.sleep(1)

    async def body(fx: Effects, call: Call) -> list[str]:
        codes = []
        for second in (fx.run_json("s", 1, note), fx.run_json("s", 2, note)):
            try:
                await second
            except ToolError as error:
                codes.append(error.code)
        both = await asyncio.gather(fx.run_json("t", 3, note), fx.run_json("t", 3, note), return_exceptions=True)
        return codes + [error.code for error in both if isinstance(error, ToolError)]

    async with opened(clock, [effectful(body)]) as (_, turn):
        assert (
            await only(turn, call("work"))
        ).result == '["durable_effect_duplicate_step_id","durable_effect_duplicate_step_id"]'
        assert ran == [1, 3]


async def test_E3_the_id_of_a_failed_step_is_used_too(clock: VirtualClock) -> None:
    async def fails(given: Any) -> None:
        raise ToolError("no")

    async def body(fx: Effects, call: Call) -> None:
        with pytest.raises(ToolError):
            await fx.run_json("s", 1, fails)
        await fx.run_json("s", 1, double)

    assert await refused(clock, body) == "durable_effect_duplicate_step_id"


async def test_E3_two_calls_do_not_share_their_steps(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> Any:
        async def which(given: Any) -> str:
            return call.id

        return await fx.run_json("s", 1, which)

    async with opened(clock, [effectful(body)]) as (_, turn):
        responses = await turn.run([ToolCall("1", "work"), ToolCall("2", "work")])
        assert [response.result for response in responses] == ["1", "2"]


@pytest.mark.parametrize(
    "value", [object(), {"deep": [b"\xff", object()]}, {1, object()}, "\ud800", math.nan, math.inf]
)
@pytest.mark.parametrize("where", ["input", "result"])
async def test_E3_what_is_not_json_is_a_clear_error_and_nothing_is_recorded(
    clock: VirtualClock, value: Any, where: str
) -> None:
    ran: list[Any] = []

    async def give(given: Any) -> Any:
        ran.append(given)
        return value

    async def body(fx: Effects, call: Call) -> str:
        with pytest.raises(ToolError, match="step `s` is not JSON") as caught:
            await fx.run_json("s", value if where == "input" else 1, give)
        assert caught.value.code == "durable_effect_not_json"
        return "refused"

    async with opened(clock, [effectful(body)]) as (rt, turn):
        await reply(turn, spawn("work", "w"))
        info = await stopped(rt, "w")
        assert info.outcome == Ok("refused")
        assert await rt.registry.store.journal(info.uid) == []
        assert len(ran) == (where == "result")


async def test_E3_numbers_come_back_as_they_went(clock: VirtualClock) -> None:
    values = [0, -1, 2**53 + 1, 2**70, 0.1, 1e300, -0.0, True]

    async def body(fx: Effects, call: Call) -> bool:
        async def give(given: Any) -> Any:
            return values

        return repr(await fx.run_json("s", None, give)) == repr(values)

    async with opened(clock, [effectful(body)]) as (_, turn):
        assert (await only(turn, call("work"))).result == "true"


async def test_E2_what_a_step_raises_the_tool_gets(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> list[Any]:
        async def fails(given: Any) -> None:
            raise given

        async def breaks(given: Any) -> None:
            raise KeyError("x")

        async def own(given: Any) -> None:
            raise ToolError("mine", code="mine", transient=True)

        told = []
        for id, function in (("breaks", breaks), ("own", own)):
            try:
                await fx.run_json(id, 1, function)
            except ToolError as error:
                told.append([error.code, error.transient, "x" in error.message])
        return told

    async with opened(clock, [effectful(body)]) as (_, turn):
        assert (await only(turn, call("work"))).result == '[["tool_error",false,true],["mine",true,false]]'


# E5


async def test_E5_a_sleep_lasts_as_long_as_it_says(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> None:
        await fx.sleep(3600)
        await fx.sleep(0)
        await fx.sleep(-5)
        await asyncio.gather(fx.sleep(100), fx.sleep(50))

    async with opened(clock, [effectful(body)]) as (_, turn):
        begun = clock.now()
        await only(turn, call("work"))
        assert clock.now() - begun == pytest.approx(3700)


async def test_E5_the_same_name_gives_the_same_key_and_no_other_call_has_it(clock: VirtualClock) -> None:
    keys: list[Key] = []

    async def body(fx: Effects, call: Call) -> None:
        keys.extend([await fx.external_event_key("n"), await fx.external_event_key("n")])
        keys.extend([await fx.external_event_key("other"), await call.completion_key()])

    async with opened(clock, [effectful(body)]) as (_, turn):
        await turn.run([call("work"), call("work")])
        assert keys[0] == keys[1] and keys[4] == keys[5]
        assert len(set(keys)) == 6 and len({key.key_id for key in keys}) == 6


async def test_E5_an_event_needs_a_name(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> None:
        await fx.external_event_key("")

    assert await refused(clock, body) == "durable_effect_empty_event_key"


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("resolution", "outcome"),
    [
        (ok({"answer": 42}), Ok({"answer": 42})),
        ({"status": "err", "payload": {"code": "denied", "message": "Ann said no"}}, Failure("Ann said no", "denied")),
        ({"status": "timeout"}, Failure("the awaited event timed out", "durable_effect_event_timeout")),
        ({"status": "cancelled"}, Failure("the awaited event was cancelled", "durable_effect_event_cancelled")),
    ],
)
async def test_E5_what_an_event_brings(
    clock: VirtualClock, resolution: dict[str, Any], outcome: Ok | Failure, early: bool
) -> None:
    keys: list[Key] = []

    async def body(fx: Effects, call: Call) -> Any:
        keys.append(await fx.external_event_key("ready"))
        await asyncio.sleep(10 if early else 0)
        return await fx.await_event_json(keys[0])

    async with opened(clock, [effectful(body)]) as (rt, turn):
        await reply(turn, spawn("work", "w"))
        await clock.advance(5)
        assert str(await rt.resolve(keys[0], resolution)) == "accepted"
        second = await rt.resolve(keys[0], ok("second"))
        assert (str(second), second.terminal) == ("already_resolved", resolution)
        assert (await stopped(rt, "w")).outcome == outcome


async def test_E5_a_key_as_plain_text_and_one_that_several_wait_for(clock: VirtualClock) -> None:
    keys: list[Key] = []

    async def body(fx: Effects, call: Call) -> Any:
        keys.append(await fx.external_event_key("ready"))
        return await asyncio.gather(*(fx.await_event_json(str(keys[0])) for _ in range(3)))

    async with opened(clock, [effectful(body)]) as (rt, turn):
        await reply(turn, spawn("work", "w"))
        await clock.advance(5)
        await rt.resolve(keys[0], ok(1))
        assert (await stopped(rt, "w")).outcome == Ok([1, 1, 1])


async def test_E5_a_key_that_is_not_of_this_store(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> None:
        await fx.await_event_json("hf1.00000000.WyJhIl0.AAAA")

    assert await refused(clock, body) == "await_event_unknown_or_revoked"


async def test_E5_whoever_waits_for_an_event_can_be_aborted(clock: VirtualClock) -> None:
    async def body(fx: Effects, call: Call) -> None:
        await fx.await_event_json(await fx.external_event_key("never"))

    async with opened(clock, [effectful(body)]) as (_, turn):
        await reply(turn, spawn("work", "w"))
        await clock.advance(5)
        assert (await reply(turn, abort("work", "w")))["ended_by"] == "abort"


# E8


async def test_E8_the_events_of_a_process_are_numbered_and_read_after_a_number(clock: VirtualClock) -> None:
    processes: list[str | None] = []

    async def body(fx: Effects, call: Call) -> None:
        processes.append(call.process_id)
        await fx.emit_process_event("opened", {"n": 1})
        await asyncio.sleep(5)
        await call.process_events().emit("noted")
        await fx.emit_process_event("closed", [None])

    async with opened(clock, [effectful(body)]) as (rt, turn):
        await turn.run([spawn("work", "w"), spawn("work", "v")])
        begun = clock.now()
        info, other = await stopped(rt, "w"), await stopped(rt, "v")
        assert processes == [info.uid, other.uid]
        events = await rt.process_events(info.uid)
        assert [(event.sequence, event.type, event.payload) for event in events] == [
            (1, "opened", {"n": 1}),
            (2, "noted", None),
            (3, "closed", [None]),
        ]
        assert [event.at for event in events] == pytest.approx([begun, begun + 5, begun + 5])
        assert {event.process_id for event in events} == {info.uid}
        assert await rt.process_events(info.uid, after=2) == events[2:]
        assert await rt.process_events(info.uid, after=3) == []
        assert await rt.process_events(info.uid, after=0, limit=1) == events[:1]
        assert [event.sequence for event in await rt.process_events(other.uid)] == [1, 2, 3]
        assert await rt.process_events("nobody") == []


async def test_E8_a_one_shot_call_belongs_to_no_process(clock: VirtualClock) -> None:
    async def durable(fx: Effects, call: Call) -> None:
        assert call.process_id is None
        await fx.emit_process_event("opened", {})

    async def plain(fx: Effects, call: Call) -> None:
        await call.process_events().emit("opened", {})

    for body in (durable, plain):
        assert await refused(clock, body) == "durable_effect_process_event_unavailable"


@pytest.mark.parametrize(
    ("type", "payload", "code"),
    [("", {}, "durable_effect_empty_process_event_type"), ("t", object(), "durable_effect_not_json")],
)
async def test_E8_an_event_has_a_type_and_a_json_payload(
    clock: VirtualClock, type: str, payload: Any, code: str
) -> None:
    async def body(fx: Effects, call: Call) -> list[str]:
        codes = []
        for emit in (fx.emit_process_event, call.process_events().emit):
            try:
                await emit(type, payload)
            except ToolError as error:
                codes.append(error.code)
        return codes

    async with opened(clock, [effectful(body)]) as (rt, turn):
        await reply(turn, spawn("work", "w"))
        info = await stopped(rt, "w")
        assert info.outcome == Ok([code, code])
        assert await rt.process_events(info.uid) == []


async def test_all_who_wait_until_no_step_runs_learn_of_it() -> None:
    journal, running = Journal(cast(Any, None), "u", 1, ()), asyncio.Event()

    async def step(*_: Any) -> None:
        await running.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "_do", step)
        tasks = [asyncio.ensure_future(each) for each in (journal.run("s", b"", None, None), journal.idle())]
        tasks.append(asyncio.ensure_future(journal.idle()))
        await asyncio.sleep(0)
        running.set()
        _, left = await asyncio.wait(tasks, timeout=5)
        for task in left:
            task.cancel()
    assert not left


# E9


async def test_E9_a_tool_can_tell_whether_anything_survives(tmp_path: Path) -> None:
    async def body(fx: Effects, call: Call) -> bool:
        return fx.durable

    for store, told in (("memory:", "false"), (stored_in(tmp_path), "true")):
        async with Runtime([effectful(body)], store=store) as rt, rt.turn("main") as turn:
            assert (await only(turn, call("work"))).result == told


async def test_E9_requires_durable_refuses_to_start_where_nothing_does(tmp_path: Path) -> None:
    ran: list[int] = []

    async def body(fx: Effects, call: Call) -> str:
        ran.append(1)
        return "ran"

    work = effectful(body, requires_durable=True)
    async with Runtime([work]) as rt, rt.turn("main") as turn:
        one_shot, spawned = await turn.run([call("work"), spawn("work", "w")])
        assert one_shot.code == "requires_durable" and "sqlite:///" in one_shot.result
        assert "sqlite:///" in spawned.result and not ran
        info = await rt.handle("w", conversation="main")
        assert (info.state, info.started) == ("stopped", None)
    async with Runtime([work], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        assert (await only(turn, call("work"))).result == "ran"
