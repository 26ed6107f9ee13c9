"""A store that is worked on for a month does not grow: what is old is deleted as fast as new work comes (S5).

A day has turns with one-shot calls, spawned handles whose end is notified, calls that wait for a result from outside,
steps, large output and a transcript, which the user forgets after a week. The usual run is a short sample: few calls a
day, and tombstones that last a week instead of 90 days.
"""

import asyncio
from types import SimpleNamespace

import pytest
from tests.durable.lives import START, HandClock
from tests.soak import SOAK, postgres_in_soak, tries
from tests.turn.calls import call, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Pending, Runtime
from keephold.store import open_store
from keephold.store.base import Forgotten, TranscriptAppended
from keephold.store.housekeeping import housekeeping_of
from keephold.store.rows import TOMBSTONE_SECS
from keephold.store.sql import operations, transaction

DAY, WEEK = 86_400.0, 7 * 86_400.0
DAYS, TURNS = tries(30, soak=120), tries(2, soak=60)
"""Days, and turns a day; five calls a turn."""


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def approve(call: Call) -> Pending:
    """Waits for a result from outside."""
    await call.completion_key()
    return Pending(deadline=3600)


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def printing(call: Call) -> str:
    """Prints much."""
    call.emit("x" * 70_000)
    return "done"


@keephold.tool(actions=("spawn", "fetch", "abort"), on_crash="replay")
async def stepping(call: Call) -> str:
    """Records a step."""

    async def made(given: object) -> object:
        return given

    await call.durable().run_json("make", "y" * 1000, made)
    return "made"


@keephold.tool
async def quick() -> str:
    """Returns at once."""
    return "quick"


async def work(rt: Runtime, clock: HandClock, day: int) -> None:
    conversation = f"day-{day}"
    for number in range(TURNS):
        async with rt.turn(conversation) as turn:
            ids = [f"{name}-{number}" for name in "aps"]
            tools = zip(("approve", "printing", "stepping"), ids, strict=True)
            await turn.run([call("quick"), *(spawn(tool, id) for tool, id in tools)])
            (key,) = (await rt.keys(ids[0], conversation=conversation)).values()
            await rt.resolve(key, {"status": "ok", "payload": "yes"})
            await turn.run([wait_all(*ids)])
        said = (("said", b'{"text":"hello"}'),) * 4
        await rt.registry.write((TranscriptAppended(conversation, f"t{number}", clock.at, said),))
        clock.at += DAY / TURNS
        await rt.registry.collect_sometimes()
    if day >= 7:
        await rt.registry.write((Forgotten(f"day-{day - 7}"),))


@postgres_in_soak
@pytest.mark.timeout(tries(120, soak=3600))
async def test_S5_the_size_of_a_store_levels_off_under_steady_work(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, kept = HandClock(), TOMBSTONE_SECS if SOAK else WEEK
    monkeypatch.setattr(operations, "TOMBSTONE_SECS", kept)
    monkeypatch.setattr(transaction, "time", SimpleNamespace(time=clock.now))
    keeping = housekeeping_of(open_store(store))
    rows: list[dict[str, int]] = []
    sizes: list[int] = []
    async with Runtime([approve, printing, stepping, quick], store=store, clock=clock) as rt:
        for day in range(DAYS):
            await work(rt, clock, day)
            facts = await asyncio.to_thread(keeping.info)
            rows.append(facts.rows | {"output files": facts.output_files})
            sizes.append(await rt.registry.store.used_bytes())
        level = 8 + int(kept / DAY)  # from then on as much is deleted a day as is made
        assert level < DAYS - 5
        for table in rows[-1]:
            assert rows[-1][table] <= max(each[table] for each in rows[level : level + 3]), table
        assert sizes[-1] <= 1.1 * max(sizes[level : level + 3])
        assert rows[-1]["events"] < 10 * rows[-1]["handles"]

        assert (await rt.handle("p-0", conversation=f"day-{DAYS - 1}")).state == "stopped"
        for day, code in ((DAYS - 10, "handle_expired"), (0, "handle_not_found")):
            with pytest.raises(KeepholdError) as refused:
                await rt.handle("p-0", conversation=f"day-{day}")
            assert refused.value.code == code
    assert await asyncio.to_thread(keeping.check) == []
    assert clock.at == pytest.approx(START + DAYS * DAY)
