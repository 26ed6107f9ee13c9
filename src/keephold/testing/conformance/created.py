"""Checks of handles that nobody runs from the start: they are as good as calls that a tool has parked (W1, W5, D)."""

# ruff: noqa: N802 - checks are named after the rules they prove

from typing import Any

from keephold.handles.state import Error, Ok, Running, Stopped
from keephold.store.base import Claimed, Collected, Op, Parking, Registered, Resolution, Revoked, Store, WaitOpened
from keephold.store.endings import REVOKED, TIMED_OUT, timed_out
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, uid, uids

LATE = "Operation timed out after 50ms"


def creation(number: int, parking: Parking | None = None, **changes: Any) -> tuple[list[Op], str, str]:
    """The operations that make a parked handle, its uid, and the id of its key."""
    parking = Parking() if parking is None else parking
    new = record(number, **{"state": Running(NOON, NOON), "kind": "hook", "owner": None, "parking": parking, **changes})
    key_id = f"key-{new.uid}"
    opened = WaitOpened(new.uid, new.fence, key_id, "completion", "completion", "secret-1")
    return [Registered(new), opened], new.uid, key_id


class Created(Suite):
    """Handles that are parked when they come."""

    async def create(self, store: Store, number: int, parking: Parking | None = None, **changes: Any) -> str:
        """Make a parked handle; the id of its key."""
        ops, _, key_id = creation(number, parking, **changes)
        await self.commit(store, *ops)
        return key_id

    async def check_W1_a_created_handle_is_parked_from_the_start(self, store: Store) -> None:
        parking = Parking(NOON + 60, "fail_turn", "ignore", timed_out=LATE)
        await self.create(store, 1, parking, resources=("file:a",))
        parked, _ = await self.park(store, 2, parking, resources=("file:a",))
        await self.begin(store, 3)
        found = await self.found(store, uid(1))
        assert (found.owner, found.parking, found.state) == (None, parking, Running(NOON, NOON)), found
        assert uids(await store.handles(parked=True)) == [uid(1), parked]
        assert uids(await store.handles(parked=True, conversation="main")) == [uid(1), parked]
        assert uids(await store.holding()) == [uid(1), parked]
        assert uids(await store.owned(store.owner)) == [uid(3)], "nobody runs it"
        assert await store.owned(None) == [] and await store.owners() == []
        assert await store.news("main") == []

    async def check_W1_its_key_ends_it_and_that_is_news(self, store: Store) -> None:
        for number, resolution in enumerate((Resolution("ok", {"a": 1}), Resolution("cancelled"))):
            key_id = await self.create(store, number, Parking(hook=True, carriers=("turn",)))
            result = await self.resolve(store, key_id, resolution)
            stopped = await self.stopped(store, uid(number))
            assert (result.status, result.uid, result.state) == ("accepted", uid(number), stopped), result
            assert (stopped.started, stopped.stopped) == (NOON, NOON + 30)
        assert (await self.stopped(store, uid(0))).outcome == Ok({"a": 1})
        told = await store.news("main")
        assert [(news.uid, news.kind, news.carriers) for news in told] == [
            (uid(0), "tool.stopped", ("turn",)),
            (uid(1), "tool.stopped", ("turn",)),
        ], told
        assert await store.owned(store.owner) == [] == await store.owned(None), "no hook is due"
        late = await self.resolve(store, f"key-{uid(0)}", Resolution("ok", "late"))
        assert (late.status, late.terminal) == ("already_resolved", Resolution("ok", {"a": 1})), late

    async def check_W5_its_deadline_comes(self, store: Store) -> None:
        for number in (1, 2):
            await self.create(store, number, Parking(NOON + 10 * number, timed_out=LATE))
        await self.create(store, 3)
        assert await store.due(NOON) == ([], NOON + 10)
        due, following = await store.due(NOON + 10)
        assert (uids(due), following) == ([uid(1)], NOON + 20), (due, following)
        await self.end(store, uid(1), timed_out(due[0].parking), "timeout")
        stopped = await self.stopped(store, uid(1))
        assert stopped.outcome == Error(LATE, TIMED_OUT.code), stopped
        row = await store.wait(f"key-{uid(1)}")
        assert row is not None and row.resolution == Resolution("timeout"), row
        (told,) = await store.news("main")
        assert (told.kind, told.level, LATE in told.message) == ("tool.failed", "error", True), told
        assert (await store.due(NOON + 10))[0] == []

    async def check_W5_a_timeout_from_outside_is_told_in_the_usual_words(self, store: Store) -> None:
        key_id = await self.create(store, 1, Parking(NOON + 10, timed_out=LATE))
        await self.resolve(store, key_id, Resolution("timeout"))
        assert (await self.stopped(store, uid(1))).outcome == TIMED_OUT
        assert timed_out(None) == timed_out(Parking()) == TIMED_OUT

    async def check_W1_a_created_handle_ends_like_any_parked_call(self, store: Store) -> None:
        await self.create(store, 1)
        await self.create(store, 2, Parking(hook=True))
        cancelled = Error("aborted", "aborted")
        await self.end(store, uid(1), cancelled, "abort")
        await self.end(store, uid(2), cancelled, "abort")
        assert uids(await store.owned(store.owner)) == [uid(2)], "the hook of the one that has one is due"
        assert (await store.wait(f"key-{uid(1)}")).resolution == Resolution("cancelled")  # type: ignore[union-attr]
        await self.create(store, 3)
        ((stopped, others),) = await self.commit(store, Revoked("main", NOON + 40))
        assert [of for of, _ in stopped] == [uid(3)] and others == (), (stopped, others)
        assert (await self.stopped(store, uid(3))).outcome == REVOKED

    async def check_W1_a_held_one_waits_for_a_runtime(self, store: Store) -> None:
        key_id = await self.create(store, 1, Parking(hold=True))
        assert (await self.resolve(store, key_id)).uid is None
        assert uids(await store.owned(None)) == [uid(1)]
        (claimed,) = await self.commit(store, Claimed(uid(1), None))
        assert (claimed.owner, claimed.fence) == (store.owner, 2)

    async def check_W7_its_id_is_taken_like_any_other(self, store: Store) -> None:
        await self.create(store, 1, Parking(NOON + 10), id="x")
        await self.refused(store, "batch_rejected", *creation(2, Parking(NOON + 5), id="x")[0])
        assert await store.wait(f"key-{uid(2)}") is None
        assert (await store.due(NOON))[1] == NOON + 10
        both = [*creation(3, Parking(NOON + 5))[0], *creation(4, id="x")[0]]
        await self.refused(store, "batch_rejected", *both)
        assert (await store.due(NOON))[1] == NOON + 10, "nothing is left of the first of two"

    async def check_W1_one_that_has_stopped_is_not_parked(self, store: Store) -> None:
        stopped = Stopped(NOON, NOON, NOON + 1, Ok(1))
        await self.commit(store, Registered(record(1, state=stopped, parking=Parking(NOON + 10))))
        assert await store.due(NOON + 20) == ([], None) and await store.handles(parked=True) == []
        assert await store.news("main") == []
        assert await self.commit(store, Collected(NOON + DAY, NOON + DAY)) == [1]
