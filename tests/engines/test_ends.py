"""The ends of calls on Temporal, as their front end learns of them from workers."""

import asyncio

import pytest
from tests.engines.site import front_end, spawn, working
from tests.patience import PATIENCE
from tests.temporal import Place

from keephold import tool
from keephold.engines import front

CALLS, AT_ONCE = 300, 50


async def test_many_calls_end_in_another_order_than_they_began(
    temporal: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_LOOK_SECS", 3600.0)
    may_end = [asyncio.Event() for _ in range(CALLS)]

    @tool(engine="temporal", on_crash="replay", actions=("spawn", "fetch", "abort"))
    async def waits(number: int) -> int:
        await may_end[number].wait()
        return number

    workers, served = working(temporal, [waits], max_running=CALLS), front_end(temporal, [waits])
    async with workers, served as rt, rt.turn() as turn:
        ids = [f"w{number}" for number in range(CALLS)]
        await turn.run([spawn("waits", id, number=number) for number, id in enumerate(ids)])
        for first in reversed(range(0, CALLS, AT_ONCE)):
            for event in may_end[first : first + AT_ONCE]:
                event.set()
            waited = await turn.wait(all=ids[first : first + AT_ONCE], timeout=PATIENCE)
            assert not waited["pending"], f"{first}: {len(waited['completed'])}"
