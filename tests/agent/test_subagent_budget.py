"""What agents spend (G2): for the turn that started them, as long as they work, and for no other."""

import asyncio
from pathlib import Path

import pytest
from tests.agent.scripted import Reply, Script, called, put, spawned
from tests.agent.talk import talking, written
from tests.patience import until

import keephold
from keephold import KeepholdError, Runtime
from keephold.testing import VirtualClock

HUNDRED = (90, 10)
"""What a response takes, in tokens."""


@keephold.tool
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
async def test_G2_an_agent_that_outlives_its_turn_spends_for_it(clock: VirtualClock, tmp_path: Path, way: str) -> None:
    helper = Script(*napping(50))
    main = Script(Reply(calls=[BY[way]], usage=HUNDRED), Reply("Done.", usage=HUNDRED))
    async with talking(main, nap, clock=clock, config=config(tmp_path, 500, helper)) as talk:
        assert (await talk.prompt()).stop_reason == "end_turn"
        await clock.advance(3600)
        assert talk.rt.live() == []
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


async def test_G2_what_an_agent_spent_before_a_restart_counts(tmp_path: Path) -> None:
    """The turn that started it has taken that, too."""
    store, opened = f"sqlite:///{tmp_path / 'work.db'}", asyncio.Event()

    @keephold.tool(on_crash="replay")
    async def gate() -> str:
        """Opens when it is told to."""
        await opened.wait()
        return "open"

    helper = Script(*[Reply(calls=[called(f"h{at}", "nap", secs=0)]) for at in range(2)], [called("h2", "gate")])
    main = Script([called("c1", "helper", prompt="Go.")])
    async with Runtime([nap, gate], store=store, config=config(tmp_path, 10_000, helper)) as rt:
        running = asyncio.create_task(rt.conversation("main", model=main.model).prompt("Go."))
        await until(lambda: any(info.tool == "gate" for info in rt.live()))
    with pytest.raises(KeepholdError):
        await running
    helper, main = Script("Helped."), Script("Done.")
    async with talking(main, nap, gate, store=store, config=config(tmp_path, 10_000, helper)) as talk:
        running = asyncio.create_task(talk.resume())
        await until(lambda: talk.rt.batches)
        opened.set()
        answer = await running
    assert answer.text == "Done."
    assert answer.usage.requests == 6


async def test_G2_what_an_agent_spent_that_ended_before_a_restart_counts(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'work.db'}"
    helper = Script([called("h1", "nap", secs=0)], "Helped.")
    main = Script([called("c1", "helper", prompt="Go.")], Reply("Never.", pause=3600))
    async with Runtime([nap], store=store, config=config(tmp_path, 10_000, helper)) as rt:
        running = asyncio.create_task(rt.conversation("main", model=main.model).prompt("Go."))
        await until(lambda: len(main.read) == 2)
    with pytest.raises(KeepholdError):
        await running
    main = Script("Done.")
    async with talking(main, nap, store=store, config=config(tmp_path, 10_000, helper)) as talk:
        await talk.conversation.open()
        answer = await talk.resume()
    assert answer.usage.requests == 4
