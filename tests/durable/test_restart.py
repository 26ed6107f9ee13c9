"""What the next runtime finds (D7, R1, S5): parked calls, results, output, and what became of the rest."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.durable.lives import (
    START,
    HandClock,
    Story,
    approval,
    notifications,
    ok,
    only,
    parked,
    parsed,
    power_cut,
    stopped,
    stored_in,
)
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, abort, call, fetch, reply, spawn, wait_all

import keephold
from keephold import Call, ConfigError, Key, Pending, Runtime
from keephold.outcomes import Failure, Ok
from keephold.policies import OutputPolicy, OutputView
from keephold.tools.function import FunctionTool

WIDE = OutputPolicy(
    dispatch=OutputView(limit=1 << 23, max_lines=1 << 20), model=OutputView(limit=1 << 23, max_lines=1 << 20)
)


@pytest.fixture(params=["close", "crash"])
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_D7_a_parked_call_survives_and_its_deadline_stays(tmp_path: Path, ending: str) -> None:
    keys: list[Key] = []
    clock, store = HandClock(), stored_in(tmp_path)
    approve = approval(keys, Pending(deadline=3600))
    async with Runtime([approve], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a", what="x"))
        await parked(rt)
        before = await rt.handle("a", conversation="main")
        cut = power_cut(store)
    clock.at += 1800
    place = cut if ending == "crash" else store
    async with Runtime([approve], store=place, clock=clock) as rt, rt.turn("main") as turn:
        info = await rt.handle("a", conversation="main")
        assert (info.state, info.parked, info.deadline, info.uid) == ("running", True, START + 3600, before.uid)
        assert (info.created, info.attempt) == (before.created, 1)
        assert await rt.handles(state="running") == [info]
        assert rt.live() == []
        assert (await reply(turn, fetch("approve", "a")))["deadline"] == "2026-01-01T01:00:00Z"
        waiting = asyncio.create_task(turn.run([wait_all("a")]))
        await asyncio.sleep(0.02)
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert parsed((await waiting)[0])["completed"] == [{"id": "a", "state": "stopped", "result": "yes"}]
    assert len(keys) == 1  # the tool did not run again


async def test_D7_a_deadline_that_passed_while_nobody_ran_fires_at_the_start(tmp_path: Path, ending: str) -> None:
    keys: list[Key] = []
    clock, store = HandClock(), stored_in(tmp_path)
    approve = approval(keys, Pending(deadline=60))
    async with Runtime([approve], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        cut = power_cut(store)
    clock.at += 3600
    async with Runtime(store=cut if ending == "crash" else store, clock=clock) as rt:  # whoever opens it, tools or not
        info = await stopped(rt, "a")
        assert (info.ended_by, info.stopped) == ("timeout", START + 3600)
        assert isinstance(info.outcome, Failure) and info.outcome.code == "tool_completion_timeout"
        assert await notifications(rt) == [("tool.failed", "error")]
        answer = await rt.resolve(keys[0], ok("late"))
        assert (str(answer), answer.terminal) == ("already_resolved", {"status": "timeout"})


async def test_D7_a_deadline_in_another_process_is_kept_by_whoever_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parked call has no owner: a runtime that is there when the time comes ends it, and not by a sweep."""
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 3600)
    store = stored_in(tmp_path)
    async with Runtime([approval([], Pending(deadline=0.3))], store=store) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await until(lambda: rt.live() == [])
    async with Runtime(store=store) as rt:
        assert (await stopped(rt, "a")).ended_by == "timeout"


async def test_D7_a_one_shot_call_that_was_let_go_of_survives(tmp_path: Path, ending: str) -> None:
    keys: list[Key] = []
    store = stored_in(tmp_path)
    approve = approval(keys)
    async with Runtime([approve], store=store) as rt, rt.turn("main") as turn:
        await turn.run([keephold.ToolCall("c1", "approve")], park_after=0.01)
        cut = power_cut(store)
    async with Runtime([approve], store=cut if ending == "crash" else store) as rt, rt.turn("main") as turn:
        assert (await reply(turn, fetch("approve", "call:c1")))["parked"] is True
        (response,) = await turn.run([keephold.ToolCall("c1", "approve")], park_after=0.01)
        assert parsed(response)["id"] == "call:c1_2"
        await rt.resolve(keys[0], ok("yes"))
        assert (await stopped(rt, "call:c1")).outcome == Ok("yes")


# R1: by `on_crash`


async def crash_in(tool: FunctionTool, story: Story, directory: Path, clock: HandClock | None = None) -> str:
    """The store after the process died in a call of the tool, spawned as `w`."""
    store = stored_in(directory)
    async with Runtime([tool], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn(tool.name, "w"))
        async with asyncio.timeout(PATIENCE):
            await story.reached.wait()
        await rt.registry.write(())
        cut = power_cut(store)
    story.dies = False
    return cut


async def test_R1_fail_is_the_default_and_says_that_it_crashed(tmp_path: Path) -> None:
    story, ran = Story(), list[int]()

    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        ran.append(call.attempt)
        await story.cut_here()
        return "done"

    cut = await crash_in(work, story, tmp_path)
    async with Runtime([work], store=cut) as rt, rt.turn("main") as turn:
        info = await stopped(rt, "w")
        assert isinstance(info.outcome, Failure)
        assert (info.ended_by, info.outcome.transient, info.outcome.code) == ("crash", True, "crashed")
        entry = parsed(await only(turn, fetch("work", "w")))
        assert (entry["is_error"], entry["transient"]) == (True, True)
    assert ran == [1]


async def test_R1_a_key_of_a_call_that_crashed_is_resolved_by_that(tmp_path: Path) -> None:
    """D1: taking it is a commit; the call has ended since, and that is the answer."""
    story, keys = Story(), list[Key]()

    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> Pending:
        keys.append(await call.completion_key())
        await story.cut_here()
        return Pending()

    cut = await crash_in(work, story, tmp_path)
    async with Runtime([work], store=cut) as rt:
        await stopped(rt, "w")
        answer = await rt.resolve(keys[0], ok("late"))
        assert str(answer) == "already_resolved"
        assert answer.terminal is not None and answer.terminal["payload"]["code"] == "crashed"


def external(story: Story, keys: list[Key], key_first: bool = True) -> FunctionTool:
    @keephold.tool(actions=STATEFUL, on_crash="external", deadline_secs=600)
    async def work(call: Call) -> Pending:
        if key_first:
            keys.append(await call.completion_key())
        await story.cut_here()
        keys.append(await call.completion_key())
        return Pending(deadline=60)

    return work


async def test_R1_external_is_parked_from_the_commit_that_took_the_key(tmp_path: Path) -> None:
    story, keys, clock = Story(), list[Key](), HandClock()
    work = external(story, keys)
    cut = await crash_in(work, story, tmp_path, clock)
    clock.at += 300
    async with Runtime([work], store=cut, clock=clock) as rt:
        info = await rt.handle("w", conversation="main")
        assert (info.state, info.parked, info.deadline) == ("running", True, START + 600)
        assert rt.live() == []
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert (await stopped(rt, "w")).outcome == Ok("yes")
    assert len(keys) == 1


async def test_R1_external_that_was_resolved_while_nobody_ran(tmp_path: Path) -> None:
    story, keys = Story(), list[Key]()
    work = external(story, keys)
    cut = await crash_in(work, story, tmp_path)
    async with Runtime(store=cut) as rt:
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
    async with Runtime([work], store=cut) as rt:
        assert (await stopped(rt, "w")).outcome == Ok("yes")


async def test_R1_external_whose_deadline_passed_while_nobody_ran(tmp_path: Path) -> None:
    story, keys, clock = Story(), list[Key](), HandClock()
    work = external(story, keys)
    cut = await crash_in(work, story, tmp_path, clock)
    clock.at += 601
    async with Runtime([work], store=cut, clock=clock) as rt:
        assert (await stopped(rt, "w")).ended_by == "timeout"


async def test_R1_external_without_a_key_fails_like_any_other(tmp_path: Path) -> None:
    story, keys = Story(), list[Key]()
    work = external(story, keys, key_first=False)
    cut = await crash_in(work, story, tmp_path)
    async with Runtime([work], store=cut) as rt:
        assert (await stopped(rt, "w")).ended_by == "crash"


async def test_R1_external_that_returns_parks_on_the_terms_it_returns(tmp_path: Path) -> None:
    story, keys, clock = Story(), list[Key](), HandClock()
    story.dies = False
    async with Runtime([external(story, keys)], store=stored_in(tmp_path), clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("work", "w"))
        await parked(rt)
        assert (await rt.handle("w", conversation="main")).deadline == START + 60


def test_R1_external_needs_a_deadline() -> None:
    with pytest.raises(ConfigError, match="deadline"):

        @keephold.tool(on_crash="external")
        async def work(call: Call) -> None: ...


async def test_R1_calls_of_a_tool_nobody_has_stay_until_somebody_has_it(tmp_path: Path) -> None:
    story = Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> str:
        await story.cut_here()
        return f"attempt {call.attempt}"

    cut = await crash_in(work, story, tmp_path)
    for tools in ([], [approval([])]):
        async with Runtime(tools, store=cut) as rt:
            await asyncio.sleep(0.05)
            info = await rt.handle("w", conversation="main")
            assert (info.state, info.tool, info.attempt) == ("running", "work", 1)
            assert rt.live() == []
    async with Runtime([work], store=cut) as rt:
        assert (await stopped(rt, "w")).outcome == Ok("attempt 2")


async def test_R1_a_queued_call_whose_turn_is_over_never_starts(tmp_path: Path) -> None:
    """B6: whoever awaits it is told. It was pending behind another serial one."""
    story, ran = Story(), list[str]()

    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def work(call: Call) -> str:
        ran.append(call.id)
        await story.cut_here()
        return "done"

    store = stored_in(tmp_path)
    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("work", "w"), spawn("work", "q")])
        await story.reached.wait()
        cut = power_cut(store)
    story.dies = False
    async with Runtime([work], store=cut) as rt, rt.turn("main"):
        for id in ("w", "q"):
            info = await stopped(rt, id)
            assert isinstance(info.outcome, Failure) and info.outcome.code == "crashed"
        assert (await rt.handle("q", conversation="main")).started is None
    assert len(ran) == 1


# S5: what has stopped, and what it printed


@pytest.mark.parametrize("size", [0, 20, 100 * 1024, 3 * 1024 * 1024])
@pytest.mark.parametrize("stop", ["return", "fail", "abort", "park"])
async def test_S5_results_and_output_are_readable_after_a_restart(
    tmp_path: Path, ending: str, size: int, stop: Literal["return", "fail", "abort", "park"]
) -> None:
    clock, store = HandClock(), stored_in(tmp_path)
    text = "".join(f"line {n:09}\n" for n in range(size // 15))

    @keephold.tool(actions=STATEFUL, output=WIDE)
    async def work(call: Call) -> Any:
        call.emit(text)
        if stop == "fail":
            raise keephold.ToolError("it broke")
        if stop == "abort":
            await asyncio.sleep(600)
        if stop == "park":
            await call.completion_key()
            return Pending()
        return {"lines": size // 15}

    async with Runtime([work], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("work", "w"))
        if stop == "abort":
            await until(lambda: [info.output_bytes for info in rt.live()] == [len(text)])
            await reply(turn, abort("work", "w"))
        elif stop == "park":
            await parked(rt)
        else:
            await stopped(rt, "w")
        before = await rt.handle("w", conversation="main")
        cut = power_cut(store)
    async with Runtime([work], store=cut if ending == "crash" else store, clock=clock) as rt, rt.turn("main") as turn:
        after = await rt.handle("w", conversation="main")
        assert after == before and after.output_bytes == len(text)
        assert await rt.handles() == [before]
        whole = await reply(turn, call("read_output", id="w", limit=1 << 23))
        assert whole["content"].startswith(text)
        if text:
            found = await reply(turn, call("read_output", id="w", pattern=f"line {size // 15 - 1:09}"))
            assert [match["line"] for match in found["matches"]] == [text.splitlines()[-1]]
        entry = await reply(turn, fetch("work", "w"))
        expected = {
            "return": f'{{"lines":{size // 15}}}',
            "fail": "it broke",
            "abort": "Aborted by the assistant.",
            "park": None,
        }
        assert entry.get("result") == expected[stop]


async def test_S5_a_page_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    store, clock = stored_in(tmp_path), HandClock()
    async with Runtime([approval([])], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", f"a{n}") for n in range(5)])  # the clock stands: in emitted order
        clock.at -= 60  # and is set back
        await turn.run([spawn("approve", "a5"), spawn("approve", "a6")])
        await parked(rt, 7)
    async with Runtime(store=store, clock=clock) as rt:
        seen: list[str] = []
        after = None
        while page := await rt.handles(conversation="main", limit=3, after=after):
            seen += [info.id for info in page]
            after = page[-1].uid
        assert seen == [f"a{n}" for n in range(7)]
        assert await rt.handles(conversation="other") == []
        assert await rt.handles(state="stopped") == []


@pytest.mark.parametrize("step", [0.0, -60.0, 60.0])
async def test_S6_an_id_names_the_newest_handle_that_bore_it(tmp_path: Path, step: float) -> None:
    """Whatever the time of day was set to in between."""
    store, clock = stored_in(tmp_path), HandClock()

    @keephold.tool(actions=STATEFUL)
    async def work(n: int) -> int:
        return n

    async with Runtime([work], store=store, clock=clock) as rt, rt.turn("main") as turn:
        for n in range(6):
            await reply(turn, spawn("work", "w", n=n))
            assert (await stopped(rt, "w")).outcome == Ok(n)
            clock.at += step
    async with Runtime([work], store=store, clock=clock) as rt:
        assert (await rt.handle("w", conversation="main")).outcome == Ok(5)


async def test_S5_an_unknown_handle_is_not_found(tmp_path: Path) -> None:
    async with Runtime(store=stored_in(tmp_path)) as rt:
        with pytest.raises(keephold.ToolError) as caught:
            await rt.handle("nobody", conversation="main")
        assert caught.value.code == "handle_not_found"


async def test_C5_the_cursor_is_where_it_was(tmp_path: Path) -> None:
    """What a reply showed before the restart is not shown again; what is new is."""
    story, store = Story(), stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> Pending:
        call.emit("first\n")
        await call.completion_key()
        story.reached.set()
        await until(lambda: not story.dies)
        call.emit("second\n")
        return Pending()

    async with Runtime([work], store=store) as rt, rt.turn("main") as turn:
        spawned = await reply(turn, spawn("work", "w"))
        await story.reached.wait()
        fetched = await reply(turn, fetch("work", "w"))
        assert spawned.get("content", "") + fetched.get("content", "") == "first\n"
        story.dies = False
        await parked(rt)
    async with Runtime([work], store=store) as rt, rt.turn("main") as turn:
        assert (await reply(turn, fetch("work", "w")))["content"] == "second\n"
        assert "content" not in await reply(turn, fetch("work", "w"))
