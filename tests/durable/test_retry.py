"""Retries (R5): transient failures are tried again, with backoff, with what was done before in hand."""

import asyncio
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.durable.lives import START, HandClock, Story, approval, in_state, ok, only, power_cut, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, abort, call, fetch, opened, reply, settings, spawn, wait_all

import keephold
from keephold import Call, Key, Pending, Runtime, ToolError
from keephold.outcomes import Failure, Ok
from keephold.policies import RetryPolicy
from keephold.testing import VirtualClock
from keephold.tools.function import FunctionTool

Policy = Literal["never", "safe", "idempotent"]


TRIES: list[float] = []
"""When a flaky tool was tried."""


def flaky(fails: int, retry: RetryPolicy | Policy, *, transient: bool = True, **options: Any) -> FunctionTool:
    """A tool that fails so many times before it succeeds."""
    TRIES.clear()

    @keephold.tool(**{"actions": STATEFUL, "retry": retry, **options})
    async def flaky(call: Call) -> str:
        TRIES.append(asyncio.get_running_loop().time())
        if call.attempt <= fails:
            raise ToolError(f"busy {call.attempt}", transient=transient)
        return f"done in {call.attempt}"

    return flaky


@pytest.mark.parametrize("policy", ["safe", "idempotent"])
async def test_R5_a_transient_failure_is_tried_again(clock: VirtualClock, policy: Policy) -> None:
    async with opened(clock, [flaky(2, policy)]) as (_, turn):
        response = await only(turn, call("flaky"))
        assert (response.result, response.is_error) == ("done in 3", False)
        assert len(TRIES) == 3


async def test_R5_never_is_the_default(clock: VirtualClock) -> None:
    async with opened(clock, [flaky(1, "never")]) as (_, turn):
        assert (await only(turn, call("flaky"))).result == "busy 1"

    @keephold.tool
    async def plain() -> None: ...

    assert plain.retry.policy == "never"


async def test_R5_only_transient_errors_are(clock: VirtualClock) -> None:
    @keephold.tool(retry="idempotent", name="breaks")
    async def breaks(call: Call) -> str:
        raise ValueError(str(call.attempt))

    async with opened(clock, [flaky(1, "safe", transient=False), breaks]) as (_, turn):
        first, second = await turn.run([call("flaky"), call("breaks")])
        assert (first.result, second.result) == ("busy 1", "ValueError: 1")


async def test_R5_after_the_last_attempt_its_error_is_the_outcome(clock: VirtualClock) -> None:
    policy = RetryPolicy(policy="safe", max_attempts=4)
    async with opened(clock, [flaky(99, policy)]) as (rt, turn):
        await reply(turn, spawn("flaky", "f"))
        entry = (await reply(turn, wait_all("f")))["completed"][0]
        assert entry == {"id": "f", "state": "stopped", "result": "busy 4", "is_error": True, "transient": True}
        info = await rt.handle("f", conversation="main")
        assert (info.attempt, info.next_attempt_at, len(TRIES)) == (4, None, 4)


async def test_R5_the_pauses_grow_to_the_longest_with_jitter(clock: VirtualClock) -> None:
    policy = RetryPolicy(policy="safe", max_attempts=9, base_delay_ms=1000, max_delay_ms=20_000)
    pauses: set[float] = set()
    for _ in range(3):
        async with opened(clock, [flaky(8, policy)]) as (_, turn):
            await only(turn, call("flaky"))
        between = [after - before for before, after in pairwise(TRIES)]
        for n, pause in enumerate(between):
            longest = min(2.0**n, 20)
            assert longest / 2 <= pause <= longest
        pauses.update(between)
    assert len(pauses) > 20  # never twice the same


async def test_R5_between_attempts_it_is_running_and_says_when(clock: VirtualClock) -> None:
    policy = RetryPolicy(policy="safe", base_delay_ms=60_000, max_delay_ms=600_000)
    async with opened(clock, [flaky(1, policy)]) as (rt, turn):
        await reply(turn, spawn("flaky", "f"))
        await clock.advance(1)
        info = await rt.handle("f", conversation="main")
        assert (info.state, info.attempt) == ("running", 2)
        assert info.next_attempt_at is not None and START + 30 <= info.next_attempt_at <= START + 60
        assert (await reply(turn, fetch("flaky", "f")))["state"] == "running"
        assert [each.id for each in rt.live()] == ["f"]
        stop = await stopped(rt, "f", within=300)
        assert stop.outcome == Ok("done in 2") and stop.next_attempt_at is None
        assert stop.stopped == pytest.approx(info.next_attempt_at)


async def test_R5_the_idempotency_key_is_the_same_in_every_attempt(clock: VirtualClock) -> None:
    seen: list[tuple[int, str]] = []

    @keephold.tool(retry="idempotent")
    async def pay(call: Call) -> str:
        seen.append((call.attempt, call.idempotency_key))
        if call.attempt < 3:
            raise ToolError("busy", transient=True)
        return "paid"

    async with opened(clock, [pay]) as (_, turn):
        await turn.run([call("pay"), call("pay")])
        assert sorted(attempt for attempt, _ in seen) == [1, 1, 2, 2, 3, 3]
        assert len({key for _, key in seen}) == 2


async def test_R5_a_timeout_is_transient(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, timeout_secs=10, retry="safe")
    async def slow(call: Call) -> str:
        await asyncio.sleep(100 if call.attempt < 3 else 1)
        return f"done in {call.attempt}"

    @keephold.tool(timeout_secs=10, retry=RetryPolicy(policy="safe", max_attempts=2))
    async def slower(call: Call) -> str:
        await asyncio.sleep(100)
        return "never"

    async with opened(clock, [slow, slower]) as (_, turn):
        first, second = await turn.run([call("slow"), call("slower")])
        assert first.result == "done in 3"
        assert (second.result, second.code) == ("Tool timed out after 10 s.", "timeout")


async def test_R5_each_attempt_has_the_whole_timeout(clock: VirtualClock) -> None:
    @keephold.tool(timeout_secs=10, retry=RetryPolicy(policy="safe", base_delay_ms=60_000, max_delay_ms=60_000))
    async def slow(call: Call) -> str:
        await asyncio.sleep(9)
        if call.attempt < 3:
            raise ToolError("busy", transient=True)
        return "done"

    async with opened(clock, [slow]) as (_, turn):
        assert (await only(turn, call("slow"))).result == "done"


async def test_R5_a_sync_function_is_tried_again(clock: VirtualClock) -> None:
    threads: list[str] = []

    @keephold.tool(retry=RetryPolicy(policy="safe", base_delay_ms=10))
    def sync(call: Call) -> str:
        threads.append(threading.current_thread().name)
        if call.attempt < 3:
            raise ToolError("busy", transient=True)
        return f"done in {call.attempt}"

    async with opened(clock, [sync]) as (rt, turn):
        with clock.real():
            assert (await only(turn, call("sync"))).result == "done in 3"
        assert len(threads) == 3 and rt.live() == []


async def test_R5_a_command_that_timed_out_is_run_again(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.build]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "test -e tried && echo built && exit; touch tried; exec sleep 30"]
        timeout_secs = 3
        retry = { policy = "safe", max_attempts = 2, base_delay_ms = 10 }
        """,
    )
    async with Runtime(config=config) as rt, rt.turn("main") as turn:
        assert "built" in (await only(turn, call("build"))).result


async def test_E10_an_attempts_output_follows_a_line(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, retry="safe")
    async def prints(call: Call) -> str:
        call.emit(f"try {call.attempt}" + ("\n" if call.attempt == 1 else ""))
        if call.attempt < 3:
            raise ToolError("busy", transient=True)
        return "done"

    async with opened(clock, [prints]) as (_, turn):
        await reply(turn, spawn("prints", "p"))
        await reply(turn, wait_all("p"))
        kept = await reply(turn, call("read_output", id="p"))
        assert kept["content"] == "try 1\n--- attempt 2 ---\ntry 2\n--- attempt 3 ---\ntry 3done"


# What an attempt starts with


async def test_R5_a_retry_keeps_what_succeeded_and_forgets_what_failed(clock: VirtualClock) -> None:
    story = Story()

    @keephold.tool(on_crash="replay", retry="safe")
    async def work(call: Call) -> Any:
        fx = call.durable()
        made = await fx.run_json("create", None, story.step("create", {"id": 1}))
        error = ToolError("busy", transient=True) if call.attempt < 3 else None
        await fx.run_json("send", made, story.step(f"send {call.attempt}", error))
        return made

    async with opened(clock, [work]) as (_, turn):
        assert (await only(turn, call("work"))).result == '{"id":1}'
    assert story.did == ["create", "send 1", "send 2", "send 3"]


async def test_R5_recorded_errors_are_replayed_after_a_crash(tmp_path: Path) -> None:
    """The tool has seen the failure and gone on: after a crash it sees it again; only a retry forgets it."""
    story, store = Story(), stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, on_crash="replay", retry="safe")
    async def work(call: Call) -> Any:
        fx = call.durable()
        try:
            await fx.run_json("plan a", None, story.step("plan a", ToolError("busy", transient=True)))
        except ToolError:
            await story.cut_here()
        return await fx.run_json("plan b", None, story.step("plan b", "b"))

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
        cut = power_cut(store)
    story.dies = False
    async with Runtime([work], store=cut) as rt:
        assert (await stopped(rt, "w")).outcome == Ok("b")
    assert story.did == ["plan a", "plan b"]


# Ends between attempts, and what is never tried again

PAUSE = RetryPolicy(policy="safe", base_delay_ms=60_000, max_delay_ms=60_000)


async def test_R5_an_abort_between_attempts_is_the_end(clock: VirtualClock) -> None:
    async with opened(clock, [flaky(1, PAUSE)]) as (rt, turn):
        await reply(turn, spawn("flaky", "f"))
        await clock.advance(1)
        begun = clock.now()
        aborted = await reply(turn, abort("flaky", "f"))
        assert clock.now() == begun
        assert aborted == {"id": "f", "state": "stopped", "result": "Aborted by the assistant.", "ended_by": "abort"}
        await clock.advance(600)
        assert len(TRIES) == 1 and rt.live() == []
        assert (await rt.handle("f", conversation="main")).next_attempt_at is None


async def test_R5_a_turn_that_is_cancelled_between_attempts(clock: VirtualClock) -> None:
    async with opened(clock, [flaky(1, PAUSE)]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("flaky")]))
        await clock.advance(1)
        turn.cancel()
        assert [response.result for response in await batch] == ["Tool execution cancelled."]
        await clock.advance(600)
        assert len(TRIES) == 1 and rt.live() == []


async def test_R5_the_end_of_the_turn_between_attempts(clock: VirtualClock) -> None:
    async with Runtime([flaky(1, PAUSE)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("flaky", "f"))
            await clock.advance(1)
        assert (await rt.handle("f", conversation="main")).ended_by == "turn_end"
        await clock.advance(600)
        assert len(TRIES) == 1


async def test_R5_an_aborted_call_is_not_tried_again(clock: VirtualClock) -> None:
    """Whatever the tool says about it."""
    tries: list[int] = []

    @keephold.tool(actions=STATEFUL, retry="idempotent")
    async def stubborn(call: Call) -> str:
        tries.append(call.attempt)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise ToolError("interrupted", transient=True) from None
        return "never"

    async with opened(clock, [stubborn]) as (_, turn):
        await reply(turn, spawn("stubborn", "s"))
        await clock.advance(1)
        assert (await reply(turn, abort("stubborn", "s")))["ended_by"] == "abort"
        await clock.advance(600)
        assert tries == [1]


async def test_R5_never_for_pending(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, Pending(deadline=60), retry="idempotent")]) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await clock.advance(1)
        await rt.resolve(keys[0], {"status": "err", "payload": {"code": "busy", "message": "busy"}})
        await clock.advance(600)
        codes = {info.id: info.outcome.code for info in await rt.handles() if isinstance(info.outcome, Failure)}
        assert codes == {"a": "busy", "b": "tool_completion_timeout"} and len(keys) == 2
        assert str(await rt.resolve(keys[1], ok(1))) == "already_resolved"


# Crashes and restarts


async def test_R5_safe_does_not_retry_a_crash(tmp_path: Path) -> None:
    info = await after_a_crash(tmp_path, "safe")
    assert isinstance(info.outcome, Failure)
    assert (info.outcome.code, info.outcome.transient, info.ended_by) == ("crashed", True, "crash")


async def test_R5_for_idempotent_a_crash_counts_as_transient(tmp_path: Path) -> None:
    info = await after_a_crash(tmp_path, "idempotent")
    assert (info.outcome, info.attempt) == (Ok("life 2"), 2)


async def test_R5_for_idempotent_too_crashes_come_to_an_end(tmp_path: Path) -> None:
    """R8 ends a call that kills its process; `max_attempts` does not count these attempts."""
    info = await after_a_crash(tmp_path, RetryPolicy(policy="idempotent", max_attempts=2), lives=5)
    assert isinstance(info.outcome, Failure) and info.outcome.code == "crash_loop"
    assert CRASHED == [1, 2, 3]


async def test_R5_attempts_that_restarts_cut_short_are_not_counted(tmp_path: Path) -> None:
    fails, reached = {1, 4}, asyncio.Event()

    @keephold.tool(
        actions=STATEFUL, on_crash="replay", retry=RetryPolicy(policy="safe", max_attempts=3, base_delay_ms=1)
    )
    async def work(call: Call) -> str:
        if call.attempt in fails:
            raise ToolError(f"busy {call.attempt}", transient=True)
        reached.set()
        if call.attempt < 5:
            await asyncio.Event().wait()
        return f"done in {call.attempt}"

    store = f"sqlite:///{tmp_path / 'work.db'}"
    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await reached.wait()  # in its second attempt
    reached.clear()
    async with Runtime([work], store=store) as rt:
        await rt.open()
        await reached.wait()  # in its third
    async with Runtime([work], store=store) as rt:
        waited = await rt.wait(all=["w"], conversation="main", timeout=PATIENCE)
        assert [each["result"] for each in waited["completed"]] == ["done in 5"]
        (record,) = [each for each in await rt.handles(conversation="main") if each.id == "w"]
        why = [entry for entry in await rt.registry.store.journal(record.uid) if entry.kind == "attempt"]
    assert [b"busy 1" in why[0].value, b"busy 4" in why[1].value, len(why)] == [True, True, 2]


CRASHED: list[int] = []


async def _ran_or_stopped(rt: Runtime, times: int) -> bool:
    return len(CRASHED) > times or await in_state(rt, "w", "stopped")


async def after_a_crash(directory: Path, retry: RetryPolicy | Policy, lives: int = 1) -> keephold.HandleInfo:
    """What becomes of a call whose process dies under it in so many lives."""
    story, store, clock = Story(), stored_in(directory), HandClock()
    CRASHED.clear()

    @keephold.tool(actions=STATEFUL, retry=retry)
    async def work(call: Call) -> str:
        CRASHED.append(call.attempt)
        await story.cut_here()
        return f"life {call.attempt}"

    async with Runtime([work], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await until(lambda: len(CRASHED) == 1)
        await rt.registry.write(())
        store = power_cut(store)
    for life in range(1, lives):
        async with Runtime([work], store=store, clock=clock) as rt:
            await until(partial(_ran_or_stopped, rt, life))
            if (info := await rt.handle("w", conversation="main")).state == "stopped":
                return info
            store = power_cut(store)
    story.dies = False
    async with Runtime([work], store=store, clock=clock) as rt:
        return await stopped(rt, "w")


@pytest.mark.parametrize("ending", ["crash", "close"])
@pytest.mark.parametrize("on_crash", ["fail", "replay"])
async def test_R5_an_attempt_that_was_planned_is_made_after_a_restart(
    tmp_path: Path, ending: str, on_crash: Literal["fail", "replay"]
) -> None:
    """R6: closing loses no more than a crash, and a crash between two attempts loses nothing."""
    clock, store = HandClock(), stored_in(tmp_path)
    tool = flaky(1, PAUSE, on_crash=on_crash, on_turn_end="keep")
    async with Runtime([tool], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("flaky", "f"))
        await until(lambda: rt.live()[0].next_attempt_at is not None)
        await rt.registry.write(())
        planned = (await rt.handle("f", conversation="main")).next_attempt_at
        assert planned is not None
        if ending == "crash":
            store = power_cut(store)
    async with Runtime([tool], store=store, clock=clock) as rt:
        info = await rt.handle("f", conversation="main")
        assert (info.state, info.next_attempt_at) == ("running", planned)
        await asyncio.sleep(0.1)
        assert len(TRIES) == 1
    clock.at = planned
    async with Runtime([tool], store=store, clock=clock) as rt:
        assert (await stopped(rt, "f")).ok
        assert len(TRIES) == 2
