"""Who writes: the loop's thread what takes a moment, by what was measured and by what is known; else the writer's."""

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.unit.sqlite_stores import commit, end, give, line, opened, registered, uid

from keephold.store.base import Op
from keephold.store.sqlite import writer


class Who:
    """Counts who writes, which takes as long as is said."""

    def __init__(self) -> None:
        self.secs = 0.0
        self.wrote: Counter[str] = Counter()

    def __call__(self, point: str) -> None:
        if point == "before":
            self.wrote["loop" if threading.current_thread() is threading.main_thread() else "thread"] += 1
        else:
            time.sleep(self.secs)  # as if the disk took so long

    def take(self) -> Counter[str]:
        wrote, self.wrote = self.wrote, Counter()
        return wrote


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is no matter how quick the machine is."""
    monkeypatch.setattr(writer, "QUICK", 0.2)
    monkeypatch.setattr(writer, "MOMENT", 0.8)


@pytest.mark.slow
async def test_a_slow_disk_is_the_threads_and_a_quick_one_the_loops_again(tmp_path: Path) -> None:
    who = Who()
    async with opened(tmp_path / "store.db", fault=who) as store:
        for number in range(5):
            await commit(store, registered(number))
        assert who.take() == {"loop": 5}
        who.secs = 0.3
        for number in range(5, 20):
            await commit(store, registered(number))
        assert who.take()["thread"] >= 3, "it takes a few to be sure"
        who.secs = 0.0
        for number in range(20, 60):
            await commit(store, registered(number))
        assert who.take()["loop"] >= 5


async def test_a_group_may_take_longer_than_a_commit_of_as_many_operations(tmp_path: Path) -> None:
    who = Who()
    async with opened(tmp_path / "store.db", fault=who) as store:
        store._writer._syncing = 0.5
        await commit(store, registered(1), line(1, "a"), end(1))
        assert who.take() == {"thread": 1}
        store._writer._syncing = 0.5
        await asyncio.gather(give(store, registered(2)), give(store, registered(3)))
        assert who.take() == {"loop": 1}


@pytest.mark.parametrize("ops", [
    [registered(number) for number in range(writer.FEW + 1)],
    [registered(1, arguments={"text": "x" * writer.LARGE, "more": "y"})],
], ids=["many", "large"])  # fmt: skip
async def test_what_is_much_is_the_threads_however_quick_it_has_been(tmp_path: Path, ops: list[Op]) -> None:
    who = Who()
    async with opened(tmp_path / "store.db", fault=who) as store:
        await commit(store, *ops)
        assert who.take() == {"thread": 1}


@pytest.mark.parametrize("point", ["before", "after"])
def test_R4_an_interrupt_while_the_loop_writes_leaves_nothing_unanswered(tmp_path: Path, point: str) -> None:
    """Ctrl-C, which Python raises in the main thread wherever that is."""
    armed = [False]

    def interrupt(at: str) -> None:
        if at == point and armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    async def work() -> None:
        async with opened(tmp_path / "store.db", fault=interrupt) as store:
            await commit(store, registered(1))
            armed[0] = True
            given = give(store, registered(2))
            try:
                await asyncio.sleep(1)
            finally:
                async with asyncio.timeout(PATIENCE):
                    await given
                    await commit(store, registered(3))
                    seen.extend(record.uid for record in await store.handles())

    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert seen == [uid(1), uid(2), uid(3)]
