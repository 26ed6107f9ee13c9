"""A cancelled or failed turn asks and waits for nobody (T5, D11), whenever that happens; nor does a closed runtime."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import approval
from tests.leaks import marked_processes
from tests.patience import PATIENCE, until
from tests.turn.assistant import Assistant, silent, work
from tests.turn.calls import STATEFUL, call, replies, settings, spawn
from tests.turn.puppets import STORES, Puppets, heard, nothing, start, store_url, waited_for

import keephold
from keephold import KeepholdError, Pending, Runtime, Tool, Turn
from keephold.testing import VirtualClock
from keephold.tools.base import OnTurnEnd
from keephold.turn.inquiry import Inquiry

both = pytest.mark.parametrize("store", STORES)


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


def policy(name: OnTurnEnd, timeout: float = 300) -> Tool:
    return replace(work, name=f"{name}s", spawn=replace(work.spawn, on_turn_end=name, turn_end_timeout_secs=timeout))


TOOLS = [work, policy("await"), policy("abort"), policy("keep"), nothing]
ALL = [spawn(name, name) for name in ("work", "awaits", "aborts", "keeps")]


async def fates(rt: Runtime) -> dict[str, str | None]:
    """By id, who ended it; None: it lives."""
    return {info.id: info.ended_by for info in await rt.handles()}


CANCELLED = {"work": "cancel", "awaits": "cancel", "aborts": "cancel", "keeps": None}
INTERRUPTED = {"work": "turn_end", "awaits": "turn_end", "aborts": "turn_end", "keeps": None}


async def test_T5_a_turn_cancelled_before_its_end_asks_and_waits_for_nobody(clock: VirtualClock) -> None:
    assistant = Assistant("wait")
    async with Runtime(TOOLS, clock=clock, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            await turn.run(ALL)
            begun = clock.now()
            turn.cancel()
            ending = await turn.end()
        assert clock.now() == begun and assistant.asked == []
        assert await fates(rt) == CANCELLED
        assert not ending.again and ending.aborted == ""
        assert {each["result"] for each in ending.results} == {"Aborted: the turn was cancelled."}
        assert [each["id"] for each in ending.kept] == ["keeps"]


async def test_R9_an_exception_in_the_block_asks_and_waits_for_nobody(clock: VirtualClock) -> None:
    assistant = Assistant("wait")
    async with Runtime(TOOLS, clock=clock, inquiry=assistant) as rt:
        with pytest.raises(ZeroDivisionError):
            async with rt.turn("main") as turn:
                await turn.run(ALL)
                begun = clock.now()
                _ = 1 // 0
        assert clock.now() == begun and assistant.asked == []
        assert await fates(rt) == INTERRUPTED


async def test_T5_cancelled_while_the_assistant_is_asked(clock: VirtualClock) -> None:
    async with Runtime(TOOLS, clock=clock, inquiry=silent) as rt:
        async with rt.turn("main") as turn:
            await turn.run(ALL)
            ends = asyncio.create_task(turn.end())
            await clock.advance(10)
            assert not ends.done()
            begun = clock.now()
            turn.cancel()
            turn.cancel()  # twice is harmless
            ending = await ends
        assert clock.now() == begun
        assert await fates(rt) == {**CANCELLED, "aborts": "turn_end"}  # that one had gone before
        assert not ending.again and ending.aborted == ""


async def test_T5_cancelled_while_it_waits(clock: VirtualClock) -> None:
    async with Runtime([policy("await")], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("awaits", "soon", secs=20), spawn("awaits", "late")])
            ends = asyncio.create_task(turn.end())
            await clock.advance(30)
            begun = clock.now()
            turn.cancel()
            ending = await ends
        assert clock.now() == begun and await fates(rt) == {"soon": "self", "late": "cancel"}
        assert [each["result"] for each in ending.results] == ["done", "Aborted: the turn was cancelled."]


async def test_T5_cancelled_while_it_waits_for_what_the_assistant_chose(clock: VirtualClock) -> None:
    """Nobody speaks again in a cancelled turn."""
    async with Runtime([work, nothing], clock=clock, inquiry=Assistant("wait")) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w")])
        ends = asyncio.create_task(turn.end())
        await clock.advance(30)
        turn.cancel()
        ending = await ends
        assert ending.results[0]["ended_by"] == "cancel"
        assert not ending.again and ending.message == ""
        assert turn.ending == ending


@pytest.mark.parametrize("when", ["before", "during"])
async def test_T5_parked_calls_of_a_cancelled_turn_are_cancelled_whenever_that_was(
    clock: VirtualClock, when: str
) -> None:
    async with Runtime([policy("await"), approval([])], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("awaits", "w"), spawn("approve", "a")])
            await clock.advance(1)
            assert (await rt.handle("a", conversation="main")).parked
            if when == "before":
                turn.cancel()
            ends = asyncio.create_task(turn.end())
            await clock.advance(10)
            turn.cancel()
            await ends
        assert await fates(rt) == {"w": "cancel", "a": "cancel"}


async def test_T5_cancelled_after_it_may_speak_again_the_next_end_asks_nobody(clock: VirtualClock) -> None:
    assistant = Assistant("wait")
    async with Runtime([work], clock=clock, inquiry=assistant) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w", secs=60)])
        assert (await turn.end()).again
        await turn.run([spawn("work", "v")])
        turn.cancel()
        begun = clock.now()
        ending = await turn.end()
        assert clock.now() == begun and not ending.again and len(assistant.asked) == 1
        assert await fates(rt) == {"w": "self", "v": "cancel"}


@both
@pytest.mark.parametrize("when", ["asked", "awaited", "chosen"])
async def test_R9_whoever_ends_the_turn_is_cancelled(puppets: Puppets, tmp_path: Path, store: str, when: str) -> None:
    """The task that awaits `turn.end()`: what a crash would end has stopped, and the conversation is free."""
    asked = asyncio.Event()

    async def inquire(inquiry: Inquiry) -> Any:
        asked.set()
        if when == "asked":
            await asyncio.Event().wait()
        return {"handles": [{"id": each["id"], "action": "wait"} for each in inquiry.handles]}

    tool = puppets.tool(on_turn_end="await" if when == "awaited" else "inquire")
    async with Runtime([tool, nothing], store=store_url(store, tmp_path), inquiry=inquire) as rt:
        turn = rt.turn("main")

        async def session() -> None:
            async with turn:
                await heard(turn, start("a"))
                await turn.end()

        ends = asyncio.create_task(session())
        if when != "asked":
            await until(lambda: bool(rt.live()))
        await (asked.wait() if when == "asked" else waited_for(rt, "a"))
        ends.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE):
                await ends
        assert rt.live() == [] and await fates(rt) == {"a": "turn_end"}
        assert turn.ending is None
        async with rt.turn("main"):
            pass


async def test_T3_one_of_two_who_end_the_turn_is_cancelled_and_the_other_gets_its_ending(clock: VirtualClock) -> None:
    async with Runtime([policy("await")], clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("awaits", "w", secs=20)])
        one, other = asyncio.create_task(turn.end()), asyncio.create_task(turn.end())
        await clock.advance(5)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert [each["result"] for each in (await other).results] == ["done"]


async def test_T5_a_turn_is_cancelled_while_a_cancelled_end_of_it_is_given_up(clock: VirtualClock) -> None:
    async with Runtime([policy("await"), approval([])], clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("awaits", "w"), spawn("approve", "a")])
        ends = asyncio.create_task(turn.end())
        await clock.advance(5)
        ends.cancel()
        await asyncio.sleep(0)  # it is being given up
        turn.cancel()
        ending = await turn.end()
        assert turn.ending == ending and (await rt.handle("a", conversation="main")).ended_by == "cancel"
        await asyncio.gather(ends, return_exceptions=True)


@both
async def test_R9_leaving_the_block_is_cancelled(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async def session() -> None:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"))

    async with Runtime([puppets.tool(on_turn_end="await"), nothing], store=store_url(store, tmp_path)) as rt:
        program = asyncio.create_task(session())
        while not rt.live():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await waited_for(rt, "a")
        program.cancel()
        with pytest.raises(asyncio.CancelledError):
            await program
        assert rt.live() == [] and await fates(rt) == {"a": "turn_end"}
        async with rt.turn("main"):
            pass


@both
async def test_T3_results_are_news_if_whoever_ends_the_turn_is_cancelled(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    """One had its result, the other is still waited for. Nobody ever gets that ending."""
    async with Runtime([puppets.tool(on_turn_end="await"), nothing], store=store_url(store, tmp_path)) as rt:

        async def session() -> None:
            async with rt.turn("main") as turn:
                await heard(turn, start("a"), start("b"))
                await turn.end()

        ends = asyncio.create_task(session())
        await until(lambda: len(rt.live()) == 2)
        await waited_for(rt, "a", "b")
        puppets.ends("a", "precious")
        while rt.registry.find("a", "main").active:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        ends.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ends
        async with rt.turn("main") as following:
            told = [each.message for each in await following.notifications()]
        assert any(message.startswith("`a` (work) stopped") for message in told)


async def test_T5_what_swallows_its_cancellation_ends_with_the_turn(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def stubborn() -> str:
        end = clock.now() + 60
        while clock.now() < end:
            try:
                await asyncio.sleep(end - clock.now())
            except asyncio.CancelledError:
                continue
        return "late"

    async with Runtime([stubborn], clock=clock, inquiry=silent) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("stubborn", "s"))
            begun = clock.now()
            turn.cancel()
        assert clock.now() - begun <= 6
        assert await fates(rt) == {"s": "cancel"}
        await clock.advance(120)


async def test_D11_a_failed_turn_asks_and_waits_for_nobody(clock: VirtualClock) -> None:
    assistant = Assistant("wait")
    doomed = approval([], Pending(deadline=30, on_timeout="fail_turn"))
    async with Runtime([*TOOLS, doomed], clock=clock, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            await turn.run(ALL)
            begun = clock.now()
            (response,) = await turn.run([call("approve")])
            assert response.is_error and turn.failed is not None
        assert clock.now() - begun == 30 and assistant.asked == []
        assert await fates(rt) == CANCELLED


async def test_T5_a_turn_that_was_never_entered_ends_without_a_word(clock: VirtualClock) -> None:
    """Cancelled while it was being opened: nobody is in it who could be asked."""
    assistant = Assistant("wait")
    async with Runtime([work], clock=clock, inquiry=assistant) as rt:
        opening = asyncio.create_task(rt.turn("main").__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await clock.advance(1)
        async with rt.turn("main") as turn:
            assert isinstance(turn, Turn)
    assert assistant.asked == []


# Closing the runtime while a turn ends


@both
@pytest.mark.parametrize("when", ["asked", "awaited"])
async def test_R6_closing_the_runtime_ends_the_end(puppets: Puppets, tmp_path: Path, store: str, when: str) -> None:
    asked = asyncio.Event()

    async def inquire(inquiry: Inquiry) -> Any:
        asked.set()
        await asyncio.Event().wait()

    tool = puppets.tool(on_turn_end="await" if when == "awaited" else "inquire")
    rt = Runtime([tool, nothing], store=store_url(store, tmp_path), inquiry=inquire)
    turn = await rt.turn("main").__aenter__()
    await heard(turn, start("a"))
    ends = asyncio.create_task(turn.end())
    await (asked.wait() if when == "asked" else waited_for(rt, "a"))
    await rt.close()
    try:
        async with asyncio.timeout(PATIENCE):  # an inquiry has two minutes
            await ends
    except KeepholdError as error:
        assert error.code == "runtime_closed"
    assert rt.live() == []


async def test_R6_a_turn_whose_end_was_cut_short_is_over(puppets: Puppets, tmp_path: Path) -> None:
    url, tool = store_url("sqlite", tmp_path), puppets.tool(on_turn_end="await")
    rt = Runtime([tool, nothing], store=url)
    turn = await rt.turn("main").__aenter__()
    await heard(turn, start("a"))
    ends = asyncio.create_task(turn.end())
    await waited_for(rt, "a")
    await rt.close()
    await asyncio.gather(ends, return_exceptions=True)
    async with Runtime([tool, nothing], store=url) as rt:
        async with rt.turn("main") as turn:
            told = [each.message for each in await turn.notifications()]
        assert told == ["`a` (work) stopped: Ended: the runtime was closed."]


# Processes


COMMANDS = """
[conversation.tools."*"]
source = "local"
run = "unattended"
spawn = { stateful = true, abort_grace_ms = 200 }
[conversation.tools.asked]
command = "sleep 301"
[conversation.tools.aborted]
command = ["sh", "-c", "trap '' TERM; echo up; sleep 302 & wait; wait; wait"]
spawn.lifecycle.on_turn_end = "abort"
[conversation.tools.kept]
command = "sleep 303"
spawn.lifecycle.on_turn_end = "keep"
"""


@pytest.mark.parametrize("how", ["cancelled", "nobody is asked", "nonsense"])
async def test_T4_no_process_is_left_that_was_not_kept(tmp_path: Path, how: str) -> None:
    inquiry = {"cancelled": silent, "nobody is asked": None, "nonsense": Assistant("perhaps")}[how]
    config = settings(tmp_path, COMMANDS)
    async with Runtime(config=config, inquiry=inquiry) as rt, rt.turn("main") as turn:
        await turn.run([spawn(name, name) for name in ("asked", "aborted", "kept")])
        await until(lambda: _sleeping() == {"301", "302", "303"})
        if how == "cancelled":
            turn.cancel()
        await turn.end()
        assert _sleeping() == {"303"}
    assert _sleeping() == set()


def _sleeping() -> set[str]:
    """For how long our processes sleep."""
    return {what.split()[1] for what in marked_processes().values() if what.startswith("sleep ")}
