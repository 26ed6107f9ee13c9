"""Turns that a dead process left open, and that nobody resumes (S5): after the retention they keep nothing."""

import time
from pathlib import Path

import pytest
from tests.durable.lives import START, HandClock, power_cut, stopped, stored_in
from tests.durable.program import tools
from tests.durable.test_two_processes import program
from tests.patience import until
from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, Runtime, upkeep
from keephold.control.retention import collect
from keephold.handles.state import PendingState
from keephold.store.base import Opened, Record, Registered

WEEK = 7 * 86_400.0


async def test_S5_what_a_killed_process_left_is_deleted_while_a_runtime_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer of the runtime does it: no turn is begun, and nothing is called."""
    async with program(tmp_path, "spawn", "work") as running:
        await running.kill()
    monkeypatch.setattr(upkeep, "SWEEP_SECS", 0.01)
    clock = HandClock(time.time())
    async with Runtime(tools(tmp_path), store=stored_in(tmp_path), clock=clock) as rt:
        store = rt.registry.store
        uid = (await stopped(rt, "work")).uid
        async with rt.turn("long"):  # of a live process
            clock.at += WEEK - 10
            await rt.registry.collect()
            assert await store.handle(uid) is not None and await store.turn("main") is not None, "it may be resumed"
            clock.at += 80  # a sweep may just have collected, and the next waits a minute
            await until(lambda: _is_gone(rt, uid))
            assert await store.turn("main") is None and await store.turn("long") is not None


async def _is_gone(rt: Runtime, uid: str) -> bool:
    return await rt.registry.store.handle(uid) is None


async def test_S5_gc_deletes_what_a_killed_process_left(tmp_path: Path) -> None:
    async with program(tmp_path, "spawn", "work") as running:
        await running.kill()
    clock = HandClock(time.time())
    async with Runtime(tools(tmp_path), store=stored_in(tmp_path), clock=clock) as rt:
        await stopped(rt, "work")
        clock.at += 60
        for dry_run in (True, False):
            freed = await collect(rt.registry, older_than=30, dry_run=dry_run, vacuum=False)
            assert freed["handles"] == 1
        assert await rt.registry.store.turn("main") is None


@keephold.tool(actions=STATEFUL)
async def later(call: Call) -> str:
    return "never"


async def test_S5_a_call_that_waits_for_a_turn_nobody_resumes_is_ended(tmp_path: Path) -> None:
    clock = HandClock()
    async with Runtime([later], store=stored_in(tmp_path), clock=clock) as rt, rt.turn("main") as turn:
        record = Record(
            uid=f"{1:032x}", id="later", tool="later", conversation="main", turn=turn.id, batch=1, position=0,
            call_id="1", stateful=True, state=PendingState(START), arguments={}, owner=rt.registry.store.owner,
        )  # fmt: skip
        opened = Opened("main", turn.id, 1, (("1", "later", {"action": "spawn", "id": "later"}, record.uid),))
        await rt.registry.write((opened, Registered(record)))
        store = power_cut(stored_in(tmp_path))
    clock.at += WEEK - 10
    async with Runtime([later], store=store, clock=clock) as rt:
        assert (await rt.handle("later", conversation="main")).state == "pending", "its turn may be resumed"
        clock.at += 20
        await rt.recovery.sweep()
        assert (await stopped(rt, "later")).ended_by == "crash"
        clock.at += WEEK + 10
        await rt.registry.collect()
        assert await rt.registry.store.handle(record.uid) is None
        assert await rt.registry.store.turn("main") is None
