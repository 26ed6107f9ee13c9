"""Many calls of a dead process (R1): they are claimed in groups, and the runtime answers before all of them are."""

import asyncio
from pathlib import Path

import pytest
from tests.durable.lives import START, only, power_cut, stopped, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, abort

import keephold
from keephold import Call, Runtime
from keephold.handles.state import Running
from keephold.outcomes import Failure, Ok
from keephold.store.base import Record, Registered
from keephold.tools.function import FunctionTool
from keephold.turn import recovery

CALLS = 600


def tools() -> list[FunctionTool]:
    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        return "never: a crash ends it"

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def again(call: Call, sleeps: bool = False) -> int:
        if sleeps:
            await asyncio.Event().wait()
        return call.attempt

    return [work, again]


async def left_by_a_crash(directory: Path, *sleep: int) -> str:
    """Return the URL of a store with calls of a process that has died: half of them are replayed, and some sleep."""
    store = stored_in(directory)
    async with Runtime(tools(), store=store) as rt:
        owner = rt.registry.store.owner
        records = [
            Record(
                uid=f"{number:032x}", id=f"h{number}", tool=("work", "again")[number % 2],
                conversation=f"c{number % 7}", turn="t", batch=0, position=0, call_id=f"h{number}", stateful=True,
                state=Running(START, START), arguments={"sleeps": True} if number in sleep else {}, owner=owner,
            )
            for number in range(CALLS)
        ]  # fmt: skip
        await rt.registry.write([Registered(record) for record in records])
        return power_cut(store)


async def test_R1_many_calls_are_claimed_and_ended_in_few_transactions(tmp_path: Path) -> None:
    store = await left_by_a_crash(tmp_path)
    async with Runtime(tools(), store=store) as rt:
        (dead,) = await rt.registry.store.owners()
        assert len(await rt.registry.store.owned(dead)) > recovery.GROUP, "it is open, and they wait to be claimed"
        await stopped(rt, f"h{CALLS - 2}", f"c{(CALLS - 2) % 7}")
        await stopped(rt, f"h{CALLS - 1}", f"c{(CALLS - 1) % 7}")
        assert await rt.registry.store.owned(dead) == []
        commits = rt.registry.store.commits  # type: ignore[attr-defined]
        assert commits < CALLS / 4, commits
        for number in range(CALLS):
            info = await stopped(rt, f"h{number}", f"c{number % 7}")
            assert info.outcome == Ok(2) if number % 2 else info.ended_by == "crash"


async def test_R1_a_command_waits_only_for_the_call_it_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of all calls is aborted before the others are claimed."""
    monkeypatch.setattr(recovery, "GROUP", 2)
    last = CALLS - 1
    store = await left_by_a_crash(tmp_path, last)
    async with Runtime(tools(), store=store) as rt, rt.turn(f"c{last % 7}") as turn:
        (dead,) = await rt.registry.store.owners()
        await only(turn, abort("again", f"h{last}"))
        info = await stopped(rt, f"h{last}", f"c{last % 7}")
        assert isinstance(info.outcome, Failure) and info.outcome.code == "aborted"
        assert await rt.registry.store.owned(dead), "others are claimed later"


async def test_R1_of_two_runtimes_that_recover_many_calls_at_once_one_wins_each(tmp_path: Path) -> None:
    store = await left_by_a_crash(tmp_path)
    async with Runtime(tools(), store=store) as one, Runtime(tools(), store=store) as other:
        for number in range(CALLS):
            info = await stopped(one, f"h{number}", f"c{number % 7}")
            assert info.outcome == Ok(2) if number % 2 else info.ended_by == "crash", "claimed once"
        await until(lambda: not (one.live() or other.live()))
