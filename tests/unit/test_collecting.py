"""Deleting much, gently: in parts, without reading what nobody needs, and the disk gets its space back (S5)."""

from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import START, HandClock, stored_in
from tests.unit.sqlite_stores import uid

import keephold
from keephold import KeepholdError, Runtime
from keephold.control.retention import collect
from keephold.handles.state import Ok, Stopped
from keephold.store.base import Collected, KeptOutput, Op, Record, Registered, SecretAdded

DAY = 86_400.0


@keephold.tool(actions=("spawn", "fetch"))
async def deploy() -> str:
    """Deploys."""
    return "done"


def over(number: int, result: str = "done", **more: Any) -> Registered:
    state = Stopped(START, None, START + number, Ok(result))
    return Registered(
        Record(
            uid=uid(number), id=f"h{number}", tool="deploy", conversation="main", turn="t1", batch=1, position=0,
            call_id=f"c{number}", stateful=True, state=state, arguments={}, **more,
        )
    )  # fmt: skip


async def some(rt: Runtime, count: int, result: str = "done") -> None:
    for first in range(0, count, 500):
        await rt.registry.write([over(number, result) for number in range(first + 1, min(first + 500, count) + 1)])


class Watched:
    """Notes which deletions a registry commits, and writes something else after each."""

    def __init__(self, rt: Runtime) -> None:
        self.parts: list[Collected] = []
        self.between = 0
        self._rt = rt
        rt.registry.observe_commits(self._note)

    def _note(self, ops: Any, done: Any, failed: Any) -> Any:
        parts = [op for op in ops if isinstance(op, Collected)]
        self.parts += parts
        if parts:
            self._rt.registry.store.commit((SecretAdded(f"s{len(self.parts)}", b"", 0.0),), self._wrote, failed)
        return ops, done, failed

    def _wrote(self, results: Any) -> None:
        self.between += 1


async def test_S5_many_expired_handles_are_deleted_in_parts_between_which_others_write(tmp_path: Path) -> None:
    clock = HandClock()
    async with Runtime([deploy], store=stored_in(tmp_path), clock=clock) as rt:
        await some(rt, 1000)
        watched = Watched(rt)
        clock.at += 30 * DAY
        await rt.registry.collect()
        assert await rt.registry.store.handles() == []
        assert len(watched.parts) > 1 and max(op.limit for op in watched.parts) <= 500
        assert watched.between >= len(watched.parts) - 1


async def test_S5_reading_an_expired_handle_does_not_wait_until_all_are_deleted(tmp_path: Path) -> None:
    clock = HandClock()
    async with Runtime([deploy], store=stored_in(tmp_path), clock=clock) as rt:
        await some(rt, 300)
        rt.registry._collect_at = clock.at + 60 * DAY  # not by the timer
        clock.at += 30 * DAY
        watched = Watched(rt)
        with pytest.raises(KeepholdError) as refused:
            await rt.handle("h7", conversation="main")
        assert refused.value.code == "handle_expired"
        assert sum(op.limit for op in watched.parts) == 1
        assert len(await rt.registry.store.handles()) == 299


async def test_S5_a_dry_run_weighs_what_would_be_deleted(tmp_path: Path) -> None:
    clock = HandClock()
    async with Runtime([deploy], store=stored_in(tmp_path), clock=clock) as rt:
        directory = rt.registry.store.directory
        assert directory is not None
        (directory / uid(9001)).write_bytes(b"x" * 100_000)
        kept = KeptOutput(total=100_000, head=100_000, ring=0, in_file=100_000, file=uid(9001))
        waiting: list[Op] = [over(9001, output=kept), over(9002, "y" * 5000)]
        await some(rt, 50)
        await rt.registry.write(waiting)
        rt.registry.shorter = {"completed": DAY}  # of wait handles only: none of these
        clock.at += 30 * DAY
        would = await collect(rt.registry, older_than=None, dry_run=True, vacuum=False)
        assert (would["handles"], would["calls"], would["output_bytes"]) == (52, 0, 100_000)
        assert 5000 < would["row_bytes"] < 50_000
        assert len(await rt.registry.store.handles()) == 52
        done = await collect(rt.registry, older_than=None, dry_run=False, vacuum=False)
        assert (done["handles"], done["calls"], done["output_bytes"]) == (52, 0, 100_000)
        assert not (directory / uid(9001)).exists()


async def test_S5_the_file_shrinks_when_much_was_deleted(tmp_path: Path) -> None:
    clock, path = HandClock(), tmp_path / "work.db"
    async with Runtime([deploy], store=stored_in(tmp_path), clock=clock) as rt:
        await some(rt, 1500, "z" * 30_000)
        used = await rt.registry.store.used_bytes()
        clock.at += 30 * DAY
        await rt.registry.collect()
    assert used > 40_000_000
    assert path.stat().st_size < 20_000_000, "all but what is spared for what comes next"


async def test_S5_a_small_file_keeps_its_space(tmp_path: Path) -> None:
    clock, path = HandClock(), tmp_path / "work.db"
    async with Runtime([deploy], store=stored_in(tmp_path), clock=clock) as rt:
        await some(rt, 300, "z" * 30_000)
        clock.at += 30 * DAY
        await rt.registry.collect()
    assert path.stat().st_size > 9_000_000
