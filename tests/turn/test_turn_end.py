"""The end of a turn (T1, T3, T4): nothing outlives it that its policy did not keep."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.turn.assistant import Assistant
from tests.turn.calls import STATEFUL, TALKING, call, replies, reply, settings, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Question, Runtime, Tool, Turn
from keephold.handles.handle import Handle
from keephold.testing import VirtualClock
from keephold.tools.base import OnTurnEnd
from keephold.turn.inquiry import Inquiry


def worker(policy: OnTurnEnd, timeout: float = 300) -> Tool:
    @keephold.tool(name=f"{policy}s", actions=STATEFUL, on_turn_end=policy, turn_end_timeout_secs=timeout)
    async def work(secs: float = 600) -> str:
        await asyncio.sleep(secs)
        return "done"

    return work


async def ended(rt: Runtime) -> dict[str, tuple[str, str | None]]:
    return {info.id: (info.state, info.ended_by) for info in await rt.handles()}


async def test_T1_inquire_is_the_default_and_with_nobody_to_ask_it_aborts(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await asyncio.sleep(600)
        return "done"

    assert work.spawn.on_turn_end is None and work.spawn.turn_end_timeout_secs == 300
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"))
            begun = clock.now()
        assert clock.now() == begun
        assert await ended(rt) == {"w": ("stopped", "turn_end")}


async def test_T3_abort_ends_at_once(clock: VirtualClock) -> None:
    async with Runtime([worker("abort")], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("aborts", "a"))
            ending = await turn.end()
        assert ending.results == (
            {"id": "a", "state": "stopped", "result": "Aborted at the end of the turn.", "ended_by": "turn_end"},
        )
        assert ending.kept == () and not ending.again


async def test_T3_await_waits_and_then_aborts_the_rest(clock: VirtualClock) -> None:
    async with Runtime([worker("await", timeout=30)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("awaits", "soon", secs=20), spawn("awaits", "late", secs=40))
            begun = clock.now()
            ending = await turn.end()
        assert clock.now() - begun == 30
        assert [(entry["id"], entry["result"]) for entry in ending.results] == [
            ("soon", "done"),
            ("late", "Aborted at the end of the turn: it was waited for for 30 s."),
        ]
        assert await ended(rt) == {"soon": ("stopped", "self"), "late": ("stopped", "turn_end")}


async def test_T3_mixed_abort_ends_first_and_await_is_waited_for(clock: VirtualClock) -> None:
    async with Runtime([worker("abort"), worker("await"), worker("keep")], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("awaits", "w", secs=20), spawn("aborts", "a"), spawn("keeps", "k"))
            begun = clock.now()
            ending = await turn.end()
        stopped = {info.id: info.stopped and info.stopped - begun for info in await rt.handles()}
        assert stopped == {"w": 20, "a": 0, "k": None}
        assert [entry["id"] for entry in ending.results] == ["w", "a"]
        assert list(ending.kept) == [{"id": "k", "state": "running"}]


async def test_T3_one_that_queues_behind_an_aborted_one_is_waited_for(clock: VirtualClock, tmp_path: Path) -> None:
    """What it queues behind is reading its input, but is being ended: nobody has to answer it any more."""
    config = settings(
        tmp_path,
        """
        [conversation.tools.deaf]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "trap '' TERM; while :; do read line; done"]
        scheduling = "serial"
        [conversation.tools.deaf.spawn]
        stateful = true
        stdin = true
        abort_grace_ms = 300
        settle_max_ms = 60000
        lifecycle.on_turn_end = "abort"
        """,
    )

    @keephold.tool(actions=STATEFUL, scheduling="serial", on_turn_end="await")
    async def queued() -> str:
        return "ran"

    async with Runtime([queued], clock=clock, config=config) as rt:
        async with rt.turn("main") as turn:
            running, pending = await replies(turn, spawn("deaf", "d"), spawn("queued", "q"))
            assert (running["state"], pending["state"]) == ("running", "pending")
            waited = await reply(turn, wait_all("q"))
            assert waited["pending"] == [{"id": "q", "state": "pending", "behind": "d"}]
        assert await ended(rt) == {"d": ("stopped", "turn_end"), "q": ("stopped", "self")}


async def test_T4_a_turn_never_ends_with_a_live_handle_that_was_not_kept(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def slow_to_end() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(1.5)
        return "done"

    async with Runtime([slow_to_end, worker("inquire")], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, *(spawn("slow_to_end", f"s{n}") for n in range(3)))
            await replies(turn, *(spawn("inquires", f"i{n}") for n in range(3)))
            await clock.advance(1)
            begun = clock.now()
        assert rt.live() == [] and clock.now() - begun == 1.5
        started = {info.id: info.started for info in await rt.handles()}
        assert started["s1"] is None and started["s2"] is None  # those that waited never started


async def test_T4_a_batch_that_still_runs_is_cancelled_by_the_end(clock: VirtualClock) -> None:
    @keephold.tool(scheduling="serial")
    async def slow() -> str:
        await asyncio.sleep(600)
        return "never"

    async with Runtime([slow], clock=clock) as rt:
        async with rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([call("slow"), call("slow")]))
            await clock.advance(1)
        assert rt.live() == []
        assert [response.result for response in await batch] == ["Tool execution cancelled."] * 2


async def test_T4_a_kept_handle_lives_on_and_can_be_reached_from_the_next_turn(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, on_turn_end="keep")
    async def session(call: Call) -> str:
        return f"got {await call.input()}"

    async with Runtime([session], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("session", "s"))
        async with rt.turn("main"):
            pass
        async with rt.turn("main") as turn:
            answer = await reply(turn, call("session", action="apply", id="s", input="x"))
            assert answer["result"] == "got x"


async def test_T1_the_policy_of_one_conversation_is_nobody_elses(clock: VirtualClock) -> None:
    async with Runtime([worker("abort")], clock=clock) as rt, rt.turn("other") as other:
        await replies(other, spawn("aborts", "a"))
        async with rt.turn("main") as turn:
            await replies(turn, spawn("aborts", "a"))
        assert [(info.conversation, info.state) for info in await rt.handles()] == [
            ("other", "running"),
            ("main", "stopped"),
        ]


async def test_T_ending_twice_is_harmless_and_an_ended_turn_takes_no_batch(clock: VirtualClock) -> None:
    async with Runtime([worker("abort")], clock=clock) as rt, rt.turn("main") as turn:
        await replies(turn, spawn("aborts", "a"))
        first = await turn.end()
        assert await turn.end() == first == turn.ending
        with pytest.raises(KeepholdError) as caught:
            await turn.run([spawn("aborts", "b")])
        assert caught.value.code == "turn_ended"
        async with rt.turn("main") as following:  # the conversation is free
            assert isinstance(following, Turn)


async def test_T3_all_four_policies_at_once(clock: VirtualClock) -> None:
    """`abort` ends first; `await` is waited for while the one inquiry runs, and what it chose after that."""

    async def slowly(inquiry: Inquiry) -> None:
        await asyncio.sleep(10)

    secs: dict[OnTurnEnd, int] = {"abort": 90, "await": 5, "keep": 90, "inquire": 30}
    tools, assistant = [worker(each) for each in secs], Assistant("wait", slowly)
    async with Runtime(tools, clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await replies(turn, *(spawn(f"{policy}s", policy, secs=each) for policy, each in secs.items()))
        begun = clock.now()
        ending = await turn.end()
        assert [each["id"] for each in assistant.asked[0].handles] == ["inquire"]
        stopped = {info.id: info.stopped and info.stopped - begun for info in await rt.handles()}
        assert stopped == {"abort": 0, "await": 5, "keep": None, "inquire": 30}
        assert [each["id"] for each in ending.results] == ["abort", "await", "inquire"]
        assert [each["id"] for each in ending.model] == ["abort", "await", "inquire", "keep"]
        assert ending.again


async def test_T1_each_handle_has_the_patience_of_its_own_tool(clock: VirtualClock) -> None:
    async with Runtime(
        [worker("await", timeout=30), worker("inquire", timeout=10)], clock=clock, inquiry=Assistant()
    ) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("awaits", "a"), spawn("inquires", "i"))
            begun = clock.now()
            await turn.end()
        assert {info.id: info.stopped and info.stopped - begun for info in await rt.handles()} == {"a": 30, "i": 10}


@pytest.mark.parametrize("how", ["reads", "asks"])
async def test_A6_one_that_comes_to_wait_for_the_caller_is_awaited_no_longer(clock: VirtualClock, how: str) -> None:
    @keephold.tool(actions=TALKING, on_turn_end="await")
    async def session(call: Call) -> str:
        await asyncio.sleep(20)
        return str(await (call.input() if how == "reads" else call.ask(Question(id="sure", text="Sure?"))))

    async with Runtime([session], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("session", "s"))
            begun = clock.now()
            (entry,) = (await turn.end()).results
        assert entry["ended_by"] == "turn_end" and clock.now() - begun < 20


async def test_T4_the_end_of_a_turn_compares_no_handle_with_every_other_when_it_asks(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them are to be waited for, half to be aborted: work is counted here, time is measured in `bench/`."""
    many, compared = 200, 0

    def counted(one: Handle, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    async def inquire(inquiry: Inquiry) -> Any:
        choices = [{"id": each["id"], "action": ("wait", "abort")[n % 2]} for n, each in enumerate(inquiry.handles)]
        return {"handles": choices}

    async with Runtime([worker("inquire")], clock=clock, inquiry=inquire) as rt, rt.turn("main") as turn:
        await replies(turn, *(spawn("inquires", f"i{number}", secs=5) for number in range(many)))
        monkeypatch.setattr(Handle, "__eq__", counted)
        ending = await turn.end()
        assert len(ending.results) == many and sum(each["result"] == "done" for each in ending.results) == many / 2
        assert compared <= many


async def test_R6_closing_the_runtime_ends_what_is_kept(clock: VirtualClock) -> None:
    async with Runtime([worker("keep")], clock=clock) as rt, rt.turn("main") as turn:
        await replies(turn, spawn("keeps", "k"))
    assert await ended(rt) == {"k": ("stopped", "shutdown")}
    with pytest.raises(KeepholdError) as caught:
        rt.turn("main")
    assert caught.value.code == "runtime_closed"


async def test_R6_closing_the_runtime_answers_a_batch_that_still_runs(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def slow() -> str:
        await asyncio.sleep(600)
        return "never"

    async with Runtime([slow], clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        calls = [call("slow"), call("slow"), spawn("slow", "a"), spawn("slow", "b"), wait_all("a", "b")]
        batch = asyncio.create_task(turn.run(calls))
        await clock.advance(1)
    responses = await batch
    assert [response.id for response in responses] == [each.id for each in calls]
    assert [response.result for response in responses[:2]] == ["Ended: the runtime was closed."] * 2
    assert await ended(rt) == {"a": ("stopped", "shutdown"), "b": ("stopped", "shutdown")}
