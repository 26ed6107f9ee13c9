"""Two runtimes on one store (M3, A7, D5, E6): what one runs, the other can reach."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import Story, approval, notifications, ok, only, parked, parsed, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, fetch, reply, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Pending, Question, Runtime, Tool, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import PendingState
from keephold.outcomes import Failure, Ok
from keephold.store.base import Record
from keephold.store.sqlite import SqliteStore


@keephold.tool(actions=TALKING, on_turn_end="keep")
async def session(call: Call) -> str:
    call.emit("hello\n")
    while (line := await call.input()) != "ask":
        call.emit(f"you said {line}\n")
    sure = await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))
    return f"sure: {sure}"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def slow(call: Call, secs: float = 0.3) -> str:
    call.emit("begun\n")
    await asyncio.sleep(secs)
    return "done"


async def kept(rt: Runtime, *calls: keephold.ToolCall) -> None:
    """Spawn these in a turn that ends, so that another runtime may have the next one."""
    async with rt.turn("main") as turn:
        await turn.run(calls)


async def test_M3_fetch_apply_and_abort_of_what_another_runtime_runs(store: str) -> None:
    tools = [session, slow]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        await kept(one, spawn("session", "s"), spawn("slow", "w", secs=600))
        async with two.turn("main") as turn:
            entry = await reply(turn, apply("session", "s", "hi"))
            assert entry == {"id": "s", "state": "running", "content": "you said hi\n"}
            assert (await reply(turn, fetch("slow", "w")))["state"] == "running"
            asked = await reply(turn, apply("session", "s", "ask"))
            assert (asked["state"], asked["question"]["text"]) == ("waiting", "Sure?")
            wrong = await only(turn, apply("session", "s", "perhaps"))
            assert wrong.code == "bad_answer"
            answered = await reply(turn, apply("session", "s", True))
            assert answered == {"id": "s", "state": "stopped", "result": "sure: True"}
            aborted = await reply(turn, abort("slow", "w"))
            assert (aborted["state"], aborted["ended_by"]) == ("stopped", "abort")
            late = await only(turn, apply("session", "s", "more"))
            assert late.is_error and "stopped" in late.result
        assert one.live() == [] and two.live() == []


async def test_C5_the_cursor_goes_with_the_conversation(store: str) -> None:
    tools = [session]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        await kept(one, spawn("session", "s"))  # showed "hello"
        async with two.turn("main") as turn:
            assert "content" not in await reply(turn, fetch("session", "s"))
            await reply(turn, apply("session", "s", "a"))
        async with one.turn("main") as turn:
            assert "content" not in await reply(turn, fetch("session", "s"))
            assert (await reply(turn, apply("session", "s", "b")))["content"] == "you said b\n"
            await reply(turn, abort("session", "s"))


async def test_A7_an_await_is_woken_by_the_other_runtime(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 3600)  # by its bell
    async with Runtime([slow], store=store) as one, Runtime([slow], store=store) as two:
        await kept(one, spawn("slow", "w"))
        async with two.turn("main") as turn, asyncio.timeout(PATIENCE):
            python = asyncio.create_task(two.wait(all=["w"], conversation="main"))
            waited = await reply(turn, wait_all("w"))
            assert waited["completed"] == [{"id": "w", "state": "stopped", "result": "done"}]
            assert (await python)["completed"][0]["result"] == "done"
        assert (await two.handle("w", conversation="main")).output_bytes == len("begun\n")


async def test_A7_an_await_of_a_parked_call_that_another_runtime_completes(store: str) -> None:
    keys: list[Key] = []
    tools = [approval(keys)]
    async with Runtime(tools, store=store) as one, Runtime(store=store) as two, one.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await until(lambda: len(keys) == 1)
        await parked(one)
        async with asyncio.timeout(PATIENCE):
            batch = asyncio.create_task(turn.run([wait_all("a"), call("approve")]))
            await until(lambda: len(keys) == 2)
            await parked(one, 2)
            for key in keys:
                assert str(await two.resolve(key, ok("from two"))) == "accepted"
            first, second = await batch
        assert parsed(first)["completed"][0]["result"] == "from two"
        assert second.result == "from two"


async def test_E5_an_event_that_comes_by_another_runtime(store: str) -> None:
    keys: list[Key] = []

    @keephold.tool(on_crash="replay")
    async def listens(call: Call) -> Any:
        fx = call.durable()
        keys.append(await fx.external_event_key("go"))
        return await fx.await_event_json(keys[0])

    async with Runtime([listens], store=store) as one, Runtime(store=store) as two, one.turn("main") as turn:
        async with asyncio.timeout(PATIENCE):
            batch = asyncio.create_task(turn.run([call("listens")]))
            await until(lambda: len(keys) == 1)
            await two.resolve(keys[0], ok("now"))
            assert [response.result for response in await batch] == ["now"]


async def test_D2_an_abort_by_another_runtime_of_a_parked_call(store: str) -> None:
    """Nobody owns it: whoever aborts it does so by himself, and wakes who waits elsewhere."""
    keys, called = list[Key](), list[Key]()
    approve = approval(keys)

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append(key)

    async with Runtime([approve], store=store) as one, Runtime([approve], store=store) as two:
        async with one.turn("main") as turn:
            await reply(turn, spawn("approve", "a"))
            await parked(one)
        waiting = asyncio.create_task(one.wait(all=["a"], timeout=PATIENCE, conversation="main"))
        async with two.turn("main") as turn:
            assert (await reply(turn, abort("approve", "a")))["ended_by"] == "abort"
        assert (await waiting)["completed"][0]["result"] == "pending tool completion cancelled"
        await until(lambda: len(called) >= 1)
        assert set(called) == set(keys)


async def test_B1_one_turn_a_conversation_across_runtimes(store: str) -> None:
    async with Runtime([slow], store=store) as one, Runtime([slow], store=store) as two:
        async with one.turn("main"):
            for rt in (one, two):
                with pytest.raises(KeepholdError) as caught:
                    await rt.turn("main").__aenter__()
                assert caught.value.code == "turn_open"
        async with two.turn("main") as turn:
            assert (await only(turn, call("slow", secs=0))).result == "done"
        entering = [rt.turn("race").__aenter__() for rt in (one, two)]
        raced = await asyncio.gather(*entering, return_exceptions=True)
        assert sorted(isinstance(each, KeepholdError) for each in raced) == [False, True]


async def test_S6_an_id_that_is_active_in_another_runtime_is_active(store: str) -> None:
    async with Runtime([slow], store=store) as one, Runtime([slow], store=store) as two:
        await kept(one, spawn("slow", "w", secs=600))
        async with two.turn("main") as turn:
            refused = await only(turn, spawn("slow", "w"))
            assert refused.code == "batch_rejected" and "`w`" in refused.result
            await reply(turn, abort("slow", "w"))
            assert (await reply(turn, spawn("slow", "w", secs=0)))["id"] == "w"
            assert (await stopped(two, "w")).outcome == Ok("done")


async def test_T4_the_end_of_a_turn_is_about_what_this_runtime_runs(store: str) -> None:
    """What another one runs in the conversation was kept by its own turn's end."""
    async with Runtime([slow], store=store) as one, Runtime([slow], store=store) as two:
        await kept(one, spawn("slow", "w", secs=600))
        async with two.turn("main") as turn:
            turn.cancel()
        assert (await one.handle("w", conversation="main")).state == "running"


class Hasty(SqliteStore):
    """A store that takes everyone else for dead, as one might that is cut off from the others."""

    def alive(self, owner: str) -> bool:
        return owner == self.owner


async def test_E6_what_a_stale_owner_records_is_refused(tmp_path: Path) -> None:
    story, told = Story(), list[str]()
    store = stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        fx = call.durable()
        await fx.run_json("first", None, story.step("first"))

        async def pay(given: Any) -> str:
            story.did.append(f"pay {call.attempt}")
            if call.attempt == 1:
                story.reached.set()
                await until(lambda: not story.dies)
            return f"paid by {call.attempt}"

        try:
            return await fx.run_json("pay", None, pay)
        except (KeepholdError, ToolError) as error:
            told.append(error.code)
            raise

    async with Runtime([work], store=store) as one, one.turn("main") as turn:
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
        async with Runtime([work], store=Hasty(store.removeprefix("sqlite:///"))) as two:
            info = await stopped(two, "w")
            assert info.outcome == Ok("paid by 2")
            story.dies = False
            await until(lambda: bool(told))
            await asyncio.sleep(0.05)
            assert told == ["lease_lost"]
            assert await two.handle("w", conversation="main") == info
        # The one that lost it believes the store, too.
        assert await one.handle("w", conversation="main") == info
        assert (await reply(turn, wait_all("w")))["completed"][0]["result"] == "paid by 2"
        assert one.live() == []
    assert story.did == ["first", "pay 1", "pay 2"]


async def test_E6_two_that_recover_at_once_run_the_call_once(store: str) -> None:
    story, ran = Story(), list[int]()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call, n: int) -> int:
        ran.append(n)
        if story.dies:
            await asyncio.sleep(600)
        return call.attempt

    tools: list[Tool] = [work]
    async with Runtime(tools, store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("work", f"w{n}", n=n) for n in range(20)])
        await until(lambda: len(ran) == 20)
    story.dies = False
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        for n in range(20):
            assert (await stopped(one if n % 2 else two, f"w{n}")).outcome == Ok(2)
    assert sorted(ran) == sorted([*range(20), *range(20)])


async def test_M3_a_runtime_that_closes_hands_over_to_one_that_waits(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 0.1)
    story = Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> int:
        await story.cut_here()
        return call.attempt

    async with Runtime([work], store=store) as two:
        async with Runtime([work], store=store) as one:
            turn = await one.turn("main").__aenter__()
            await reply(turn, spawn("work", "w"))
            await story.reached.wait()
            waiting = asyncio.create_task(two.wait(all=["w"], timeout=PATIENCE, conversation="main"))
            await asyncio.sleep(0.05)
            story.dies = False
        (entry,) = (await waiting)["completed"]
        assert entry["result"] == 2


async def test_D7_a_deadline_that_both_see_pass_is_one_end_and_one_piece_of_news(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 0.1)
    tools = [approval([], Pending(deadline=0.4))]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two, one.turn("main") as turn:
        await turn.run([spawn("approve", f"a{n}") for n in range(5)])
        ids = [f"a{n}" for n in range(5)]
        waits = await asyncio.gather(*(rt.wait(all=ids, timeout=PATIENCE, conversation="main") for rt in (one, two)))
        assert [len(waited["completed"]) for waited in waits] == [5, 5]
        await asyncio.sleep(0.2)
        assert await notifications(one) == await notifications(two) == [("tool.failed", "error")] * 5


async def test_D5_keys_that_another_runtime_revokes(store: str) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def listens(call: Call) -> Any:
        fx = call.durable()
        keys.append(await fx.external_event_key("go"))
        return await fx.await_event_json(keys[-1])

    tools: list[Tool] = [approval(keys), listens]
    async with Runtime(tools, store=store) as one, Runtime(store=store) as two, one.turn("main") as turn:
        await turn.run([spawn("approve", "a"), spawn("listens", "l")])
        await until(lambda: len(keys) == 2)
        await parked(one)
        waiting = asyncio.create_task(one.wait(all=["a", "l"], timeout=PATIENCE, conversation="main"))
        await asyncio.sleep(0.05)
        assert await two.revoke_keys("main") == 2
        assert len((await waiting)["completed"]) == 2
        for id in ("a", "l"):
            outcome = (await one.handle(id, conversation="main")).outcome
            assert isinstance(outcome, Failure) and outcome.code == "await_event_unknown_or_revoked"


async def test_T1_what_waits_in_effects_is_kept_by_the_turns_after_a_restart_too(store: str) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def listens(call: Call) -> Any:
        fx = call.durable()
        keys.append(await fx.external_event_key("go"))
        return await fx.await_event_json(keys[-1])

    async with Runtime([listens], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("listens", "l"))
        await until(lambda: len(keys) == 1)
    async with Runtime([listens], store=store) as rt:
        (live,) = rt.registry.live()
        await until(lambda: len(keys) == 2 and live.run is not None and live.run.waits_in_effects)
        async with rt.turn("main") as turn:
            ending = await turn.end()
        assert [entry["id"] for entry in ending.kept] == ["l"]
        await rt.resolve(keys[0], ok("now"))
        assert (await stopped(rt, "l")).outcome == Ok("now")


async def test_R7_a_kept_call_that_comes_back_leaves_the_queue_for_the_lane_alone(store: str) -> None:
    """Its process ran on while another process took the lane, behind which a call of this process queues."""
    lane, started = "serial:main", list[str]()

    async def at_rest(rt: Runtime) -> None:
        await rt.registry.write(())

    def handle(rt: Runtime, id: str) -> Handle:
        return Handle(
            Record(
                uid=rt.registry.new_uid(), id=id, tool="slow", conversation="main", turn="t", batch=1, position=0,
                call_id=id, stateful=True, state=PendingState(0.0), arguments={}, owner=rt.registry.store.owner,
            ),
            slow,
        )  # fmt: skip

    async with Runtime([slow], store=store) as one, Runtime([slow], store=store) as two:
        one.admission.lanes.take(lane, holder := handle(one, "holder"), lambda: started.append("holder"))
        await at_rest(one)
        two.admission.lanes.take(lane, handle(two, "queued"), lambda: started.append("queued"))
        await at_rest(two)
        two.admission.lanes.keep(lane, handle(two, "kept"))
        await at_rest(two)
        one.admission.lanes.leave(lane, holder)
        await at_rest(one)
        two.admission.lanes.heard(None)
        await at_rest(two)
        assert started == ["holder", "queued"]
