"""`await`: when it is done, what it answers, what it refuses (A1–A5, A7)."""

import asyncio
import json
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, abort, call, fetch, opened, replies, reply, spawn, texts, wait_all, wait_any

import keephold
from keephold import Runtime, ToolError
from keephold.handles.waits import Wait
from keephold.testing import VirtualClock


@keephold.tool(actions=STATEFUL)
async def work(secs: float = 0, result: str = "done", fail: bool = False) -> str:
    await asyncio.sleep(secs)
    if fail:
        raise ToolError(result)
    return result


def ids(entries: list[dict[str, object]]) -> list[object]:
    return [entry["id"] for entry in entries]


def test_A1_the_canonical_schema_is_the_seeds() -> None:
    (schema,) = [tool for tool in Runtime([work]).tools("canonical") if tool["name"] == "await"]
    parameters = schema["parameters"]
    assert set(parameters["properties"]) == {"any", "all", "timeout_secs", "output", "ready"}  # the last two are A9's
    assert parameters["anyOf"] == [{"required": [name]} for name in ("any", "all", "output", "ready")]
    assert schema["description"].startswith("Block until stateful tool handles reach completion.")


async def test_A1_await_is_not_spawnable(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w"))
        (response,) = await turn.run([call("await", action="spawn", id="x", all=["w"])])
        assert response.is_error and "`action`" in response.result
        assert [info.id for info in await rt.handles()] == ["w"]


async def test_A2_done_when_all_of_all_and_one_of_any_have_stopped(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        begun = clock.now()
        await replies(turn, *(spawn("work", f"w{secs}", secs=secs) for secs in (2, 4, 6, 8)))
        both = await reply(turn, call("await", all=["w2", "w4"], any=["w6", "w8"]))
        assert clock.now() - begun == 6
        assert (ids(both["completed"]), ids(both["pending"])) == (["w6", "w2", "w4"], ["w8"])


async def test_A2_any_is_done_with_the_first_however_it_ended(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        begun = clock.now()
        *_, waited = await replies(
            turn, spawn("work", "slow", secs=9), spawn("work", "bad", secs=2, fail=True), wait_any("slow", "bad")
        )
        assert clock.now() - begun == 2
        assert waited == {
            "completed": [{"id": "bad", "state": "stopped", "result": "done", "is_error": True}],
            "pending": [{"id": "slow", "state": "running"}],
        }


async def test_A2_already_stopped_counts_and_an_empty_or_null_list_is_none(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w"), spawn("work", "long", secs=60))
        await clock.advance(1)
        begun = clock.now()
        for arguments in (
            {"all": ["w"]},
            {"any": ["w", "long"]},
            {"all": ["w"], "any": []},
            {"any": ["w"], "all": None},
        ):
            waited = await reply(turn, call("await", **arguments))
            assert ids(waited["completed"]) == ["w"]
        assert clock.now() == begun


async def test_A3_each_handle_once_grouped_by_state_in_the_order_first_named(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        await replies(turn, *(spawn("work", name, secs=60 if name > "c" else 0) for name in "abcdef"))
        waited = await reply(
            turn, call("await", any=["e", "b", "e"], all=["f", "c", "b", "a", "d", "a"], timeout_secs=1)
        )
        assert ids(waited["completed"]) == ["b", "c", "a"]
        assert ids(waited["pending"]) == ["e", "f", "d"]
        assert waited["timed_out"] is True


async def test_A3_the_aborted_the_failed_and_the_transient(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def flaky() -> str:
        raise ToolError("try again", transient=True)

    async with opened(clock, [work, flaky]) as (_, turn):
        await replies(turn, spawn("work", "w", secs=60), spawn("flaky", "f"))
        waited, _ = await replies(turn, wait_all("w", "f"), abort("work", "w"))
        assert waited == {
            "completed": [
                {"id": "w", "state": "stopped", "result": "Aborted by the assistant.", "ended_by": "abort"},
                {"id": "f", "state": "stopped", "result": "try again", "is_error": True, "transient": True},
            ],
            "pending": [],
        }


@pytest.mark.parametrize(
    "arguments", [{}, {"any": []}, {"all": []}, {"any": [], "all": []}, {"any": None}, {"all": None}]
)
async def test_A4_at_least_one_handle_id_is_required(clock: VirtualClock, arguments: dict[str, object]) -> None:
    async with opened(clock, [work]) as (_, turn):
        (response,) = await turn.run([call("await", **arguments)])
        assert (response.is_error, response.result) == (True, "At least one handle ID required")


async def test_A4_each_missing_id_is_named(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w", secs=60))
        begun = clock.now()
        (response,) = await turn.run([call("await", any=["x", "w"], all=["y", "x"])])
        assert response.is_error and clock.now() == begun
        assert response.result == "Handle `x` not found. Handle `y` not found"


async def test_A4_timeout_0_answers_at_once(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w", secs=60), spawn("work", "done"))
        await clock.advance(1)
        begun = clock.now()
        assert await reply(turn, wait_all("w", "done", timeout_secs=0)) == {
            "completed": [{"id": "done", "state": "stopped", "result": "done"}],
            "pending": [{"id": "w", "state": "running"}],
            "timed_out": True,
        }
        assert "timed_out" not in await reply(turn, wait_all("done", timeout_secs=0))
        assert clock.now() == begun


@pytest.mark.parametrize("timeout, secs", [(0.5, 0.5), ("5", 5), ("0.25", 0.25)])
async def test_A4_a_timeout_may_be_a_fraction_or_text(clock: VirtualClock, timeout: object, secs: float) -> None:
    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w", secs=100))
        begun = clock.now()
        (response,) = await turn.run([call("await", all=["w"], timeout_secs=timeout)])
        assert clock.now() - begun == secs and json.loads(response.result)["timed_out"]
        read = f'Your call of `await`: `timeout_secs`: "{timeout}" was read as {secs}.'
        assert [each.message for each in response.notifications] == ([] if timeout == secs else [read])


@pytest.mark.parametrize("timeout", [-1, "soon", True, [1]])
async def test_A4_a_timeout_that_is_negative_or_no_number_is_an_error(clock: VirtualClock, timeout: object) -> None:
    async with opened(clock, [work]) as (_, turn):
        await replies(turn, spawn("work", "w"))
        (response,) = await turn.run([call("await", all=["w"], timeout_secs=timeout)])
        assert response.is_error and "`timeout_secs`" in response.result


async def test_A5_a_timeout_aborts_nothing(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        _, waited = await replies(turn, spawn("work", "w", secs=10), wait_all("w", timeout_secs=3))
        assert waited == {"completed": [], "pending": [{"id": "w", "state": "running"}], "timed_out": True}
        assert (await rt.handle("w", conversation="main")).state == "running"
        assert (await reply(turn, wait_all("w")))["completed"][0]["result"] == "done"


@pytest.mark.parametrize("spawn_first", [True, False])
async def test_A5_what_finishes_in_the_instant_of_the_timeout_is_reported_finished(
    clock: VirtualClock, spawn_first: bool
) -> None:
    async with opened(clock, [work]) as (_, turn):
        both = [spawn("work", "w", secs=5), wait_all("w", timeout_secs=5)]
        results = await replies(turn, *(both if spawn_first else reversed(both)))
        waited = results[1 if spawn_first else 0]
        assert waited == {"completed": [{"id": "w", "state": "stopped", "result": "done"}], "pending": []}


async def test_A5_of_several_the_finished_are_reported_although_the_wait_timed_out(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        waited, *_ = await replies(
            turn, wait_all("a", "b", timeout_secs=5), spawn("work", "a", secs=5), spawn("work", "b", secs=6)
        )
        assert (ids(waited["completed"]), ids(waited["pending"]), waited["timed_out"]) == (["a"], ["b"], True)


async def test_A7_any_number_of_awaits_may_watch_one_handle(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        _, *waits = await replies(turn, spawn("work", "w", secs=3), *[wait_all("w")] * 50, *[wait_any("w")] * 50)
        assert len(waits) == 100 and all(ids(waited["completed"]) == ["w"] for waited in waits)


async def test_A7_waits_of_other_conversations_and_of_python_wake_too(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w", secs=3))
        waits = [asyncio.create_task(rt.wait(all=["w"], conversation="main")) for _ in range(3)]
        gone = asyncio.create_task(rt.wait(all=["w"], conversation="main"))
        await clock.advance(1)
        gone.cancel()  # a wait that is given up disturbs nobody
        await asyncio.wait([gone])
        await replies(turn, wait_all("w"))
        assert [ids((await each)["completed"]) for each in waits] == [["w"]] * 3


async def test_A7_finishing_a_handle_looks_at_its_own_waiters_only(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(clock, [work]) as (rt, turn):
        await turn.run([spawn("work", f"o{n}", secs=100) for n in range(500)] + [spawn("work", "w", secs=1)])
        waits = [asyncio.create_task(rt.wait(all=[f"o{n}"], conversation="main")) for n in range(500)]
        mine = asyncio.create_task(rt.wait(all=["w"], conversation="main"))
        await clock.advance(0.5)
        looks: list[Wait] = []
        look = Wait._check  # both a stop and a change come to this

        def counted(self: Wait) -> None:
            looks.append(self)
            look(self)

        monkeypatch.setattr(Wait, "_check", counted)
        await mine
        assert len(looks) == 1
        monkeypatch.undo()
        await asyncio.gather(*waits)


async def test_A7_nothing_is_polled_while_an_await_waits(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(clock, [work]) as (_, turn):
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, *rest: Any, **context: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *rest, **context)

        monkeypatch.setattr(loop, "call_at", counted)
        month = 30 * 86_400
        _, waited = await replies(turn, spawn("work", "w", secs=month), wait_all("w", timeout_secs=2 * month))
        assert ids(waited["completed"]) == ["w"]
        assert len(timers) == 3  # the tool's own, the timeout, and the retention of the handle


async def test_Y_rt_wait_gives_A3s_object_with_values_and_is_error_in_each(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        await turn.run([spawn("work", "a", result="x"), spawn("work", "b", result="why", fail=True)])
        await turn.run([spawn("work", "c", secs=60), spawn("work", "d", secs=60)])
        await turn.run([abort("work", "d")])
        found = await rt.wait(all=["a", "b", "d"], any=["c"], timeout=2, conversation="main")
        assert [(entry["id"], entry["result"], entry["is_error"]) for entry in found["completed"]] == [
            ("a", "x", False),
            ("b", "why", True),
            ("d", "Aborted by the assistant.", False),
        ]
        assert found["pending"] == [{"id": "c", "state": "running"}] and found["timed_out"] is True
        with pytest.raises(ToolError, match="`z` not found"):
            await rt.wait(all=["z"], conversation="main")


async def test_A3_an_await_shows_what_a_fetch_would(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        _, waited, fetched = await texts(turn, spawn("work", "w"), wait_all("w"), fetch("work", "w"))
        assert json.loads(waited)["completed"] == [{"id": "w", "state": "stopped", "result": "done"}]
        assert json.loads(fetched)["state"] == "running"  # it did not wait
        assert await reply(turn, fetch("work", "w")) == json.loads(waited)["completed"][0]
