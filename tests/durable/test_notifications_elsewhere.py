"""News between processes on one store (N3, N4, N6): who runs a handle, who resolves it and who is told may be three."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.durable.lives import approval, notifications, ok, parked
from tests.durable.program import tools as its_tools
from tests.durable.test_two_processes import program
from tests.patience import until
from tests.turn.calls import fetch, spawn, wait_all
from tests.turn.puppets import Puppets, heard, lines, nothing, over, start

from keephold import Key, Runtime
from keephold.policies import NotificationPolicy

CRASHED = "The process that ran this call ended before the call did."


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


async def next_turn(rt: Runtime) -> list[tuple[str, str]]:
    async with rt.turn("main") as turn:
        return lines(await turn.notifications())


async def test_N_a_call_that_another_process_resolves_is_news_here(store: str) -> None:
    keys = list[Key]()
    tools = [approval(keys), nothing]
    async with Runtime(tools, store=store) as one, Runtime([], store=store) as two, one.turn("main") as turn:
        await heard(turn, spawn("approve", "a"))
        await parked(one)
        await two.resolve(keys[0], ok("yes"))
        assert await heard(turn) == [("tool.stopped", "`a` (approve) stopped: yes")]
        assert await heard(turn) == []


async def test_N_a_handle_that_another_process_runs_is_news_here_once(puppets: Puppets, store: str) -> None:
    tools = [puppets.tool(on_turn_end="keep"), nothing]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        async with one.turn("main") as turn:
            await heard(turn, start("a"), start("b"))
        async with two.turn("main") as turn:
            assert await heard(turn) == []
            puppets.ends("a")
            puppets.ends("b")
            await over(one, "a", "b")
            assert await heard(turn, wait_all("b")) == [("tool.stopped", "`a` (work) stopped: done")]
            assert await heard(turn) == []
        assert await next_turn(one) == []


async def test_N6_output_of_a_handle_that_another_process_runs_is_news_again(puppets: Puppets, store: str) -> None:
    """Told or shown by one process, printed in the other: the last it prints is not lost either."""

    async def prints() -> None:
        puppets.prints("a", "x")
        await puppets.done("a")
        await until(queued)

    async def queued() -> bool:
        return await notifications(two) == [("tool.content", "info")]

    policy = NotificationPolicy(on_content=True)
    tools = [puppets.tool(on_turn_end="keep", notifications=policy), nothing]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        async with one.turn("main") as turn:
            await heard(turn, start("a"))
        async with two.turn("main") as turn:
            for _ in range(2):
                await prints()
                assert await heard(turn) == [("tool.content", "`a` (work) has new output.")]
            await prints()
            assert await heard(turn, fetch("work", "a")) == []
            await prints()


async def test_T4_the_end_of_a_turn_here_ends_nothing_that_another_process_was_left_with(
    puppets: Puppets, store: str
) -> None:
    kept = puppets.tool(on_turn_end="keep")
    aborting = replace(kept, spawn=replace(kept.spawn, on_turn_end="abort"))
    async with Runtime([kept, nothing], store=store) as one, Runtime([aborting, nothing], store=store) as two:
        async with one.turn("main") as turn:
            await heard(turn, start("a"))
        async with two.turn("main") as turn:
            ending = await turn.end()
            assert ending.results == () and ending.kept == ()
        assert [info.state for info in await one.handles()] == ["running"]


async def test_N4_two_processes_deliver_each_piece_once(store: str) -> None:
    """They take the conversation in turn, and news comes from both."""
    async with Runtime([nothing], store=store) as one, Runtime([nothing], store=store) as two:
        got: list[tuple[str, str]] = []
        for number in range(10):
            await one.notify("a.b", "info", f"{number} from one", conversation="main")
            await two.notify("a.b", "info", f"{number} from two", conversation="main")
            got += await next_turn(two if number % 2 else one)
        assert [text for _, text in got] == [f"{n} from {who}" for n in range(10) for who in ("one", "two")]


async def test_N_news_of_a_process_that_lives_and_of_one_that_was_killed(tmp_path: Path, store: str) -> None:
    """A program has parked one call and works on another. Somebody here approves; then it is killed."""
    async with program(tmp_path, "spawn", "approve", "work", store=store) as other:
        async with Runtime(store=store) as rt:
            await rt.resolve((tmp_path / "approve").read_text().strip(), ok("yes"))
        await other.kill()
        async with Runtime([*its_tools(tmp_path), nothing], store=store) as rt:
            assert await next_turn(rt) == [
                ("tool.stopped", "`approve` (approve) stopped: yes"),
                ("tool.failed", f"`work` (work) failed: {CRASHED}"),
            ]
            assert await next_turn(rt) == []
