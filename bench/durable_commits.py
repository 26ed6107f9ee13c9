"""Transactions that a batch costs whose n one-shot async functions finish together, counted by the SQLite store.

From `turn.run` to its responses, so one batch in a turn that is open; the most that any of the rounds took.
"""

import asyncio
import tempfile
from pathlib import Path

import keephold
from bench.rounds import Plan, Row
from keephold.store.sqlite import SqliteStore

BAR = 3
SIZES = (1, 10, 100, 1000)


@keephold.tool
async def quick(number: int) -> int:
    """Returns its argument in the next pass of the loop."""
    await asyncio.sleep(0)
    return number


async def _count(path: Path, rounds: int) -> dict[int, int]:
    store = SqliteStore(path)
    most = dict.fromkeys(SIZES, 0)
    async with keephold.Runtime([quick], store=store) as rt, rt.turn() as turn:
        for size in SIZES * rounds:
            before = store.commits
            calls = [keephold.ToolCall(f"{number}", "quick", {"number": number}) for number in range(size)]
            for response in await turn.run(calls):
                assert not response.is_error, response.result
            most[size] = max(most[size], store.commits - before)
    return most


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        most = asyncio.run(_count(Path(directory) / "ours.db", plan.rounds))
    worst = max(most.values())
    return [
        Row(
            what=f"commits for a batch of n one-shot functions, n = {', '.join(f'{size:,}' for size in SIZES)}",
            bare="",
            ours=", ".join(map(str, most.values())),
            result=str(worst),
            bar=f"≤ {BAR}",
            met=worst <= BAR,
        )
    ]
