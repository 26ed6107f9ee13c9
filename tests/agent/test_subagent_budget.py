"""What agents spend (G2): for the turn that started them, as long as they work, and for no other."""

import asyncio
from pathlib import Path

import pytest
from tests.agent.scripted import Reply, Script, called, put, spawned
from tests.agent.talk import talking, until, written

import holdfast
from holdfast import HoldfastError, Runtime
from holdfast.testing import VirtualClock

HUNDRED = (90, 10)
"""What a response takes, in tokens."""


@holdfast.tool
async def nap(secs: float = 60) -> str:
    """Takes its time."""
    await asyncio.sleep(secs)
    return "rested"


def config(directory: Path, max_tokens: int, helper: Script) -> Path:
    (name,) = put(helper=helper).values()
    return written(
        directory,
        f'[conversation]\nmax_tokens = {max_tokens}\n[agents.helper]\nmodel = "{name}"\nrun = "unattended"\n'
        'on_turn_end = "keep"',
    )


def napping(count: int) -> list[Reply]:
    return [Reply(calls=[called(f"h{at}", "nap")], usage=HUNDRED) for at in range(count)]


BY = {
    "spawn": spawned("c1", "helper", "h", prompt="Go."),
    "execute_agent_async": called("c1", "execute_agent_async", agentId="helper", prompt="Go."),
}


@pytest.mark.parametrize("way", BY)
async def test_G2_an_agent_that_outlives_its_turn_spends_for_it(
    clock: VirtualClock, tmp_path: Path, way: str
) -> None:
    helper = Script(*napping(50))
    main = Script(Reply(calls=[BY[way]], usage=HUNDRED), Reply("Done.", usage=HUNDRED))
    async with talking(main, nap, clock=clock, config=config(tmp_path, 500, helper)) as talk:
        assert (await talk.prompt()).stop_reason == "end_turn"
        await until(lambda: not talk.rt.live())
        (handle,) = await talk.rt.handles()
    assert len(helper.read) == 3  # two hundred were the turn's own
    assert "max_tokens = 500" in str(handle.outcome)


@pytest.mark.parametrize("way", BY)
async def test_G2_it_spends_nothing_of_the_next_turn(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    helper = Script(*napping(50))
    main = Script(
        Reply(calls=[BY[way]], usage=HUNDRED),
        Reply("Done.", usage=HUNDRED),
        Reply(calls=[called("c2", "nap", secs=600)], usage=HUNDRED),
        Reply("Done again.", usage=HUNDRED),
    )
    async with talking(main, nap, clock=clock, config=config(tmp_path, 500, helper)) as talk:
        await talk.prompt()
        answer = await talk.prompt("Something else.")
    assert (answer.stop_reason, answer.text) == ("end_turn", "Done again.")
    assert answer.usage.requests == 2
    assert len(helper.read) == 3


async def test_G2_what_was_spent_before_a_restart_counts_for_those_above(tmp_path: Path) -> None:
    """Also what the agents of the turn had taken, not only its own responses."""
    store = f"sqlite:///{tmp_path / 'work.db'}"
    quick = [Reply(calls=[called(f"h{at}", "nap", secs=0)], usage=HUNDRED) for at in range(3)]
    helper = Script(*quick, Reply("Never.", pause=3600))
    main = Script(Reply(calls=[called("c1", "helper", prompt="Go.")], usage=HUNDRED))
    async with Runtime([nap], store=store, config=config(tmp_path, 500, helper)) as rt:
        running = asyncio.create_task(rt.conversation("main", model=main.model).prompt("Go."))
        await until(lambda: len(helper.read) == 4)
    with pytest.raises(HoldfastError):
        await running
    helper = Script(*quick, "Never.")
    main = Script("Never.")
    async with talking(main, nap, store=store, config=config(tmp_path, 500, helper)) as talk:
        await talk.conversation.open()
        answer = await talk.resume()
    assert len(helper.read) == 1  # one hundred of the turn, three of the agent before, one now
    assert answer.stop_reason == "max_turn_requests" and "max_tokens = 500" in (answer.error or "")
    assert main.read == []
