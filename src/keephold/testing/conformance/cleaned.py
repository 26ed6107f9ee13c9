"""Checks of letting go of some handles, and of reading what will go before it goes (S5, W8)."""

# ruff: noqa: N802 - checks are named after the rules they prove

from typing import Any

from msgspec.structs import replace

from keephold.handles.state import Error, Ok, Outcome
from keephold.store.base import Collected, Expired, HookCalled, Inquired, Kind, Parking, Store, TurnBegan, TurnEnded
from keephold.store.endings import CANCELLED, TIMED_OUT
from keephold.testing.conformance.suite import DAY, NOON, Suite, copy, uid, uids

ALL = Collected(NOON + DAY, NOON + DAY)


class Cleaned(Suite):
    """Handles that are let go of by what they are, and not before they were read."""

    async def stop(self, store: Store, number: int, outcome: Outcome | None = None, **changes: Any) -> str:
        """A handle that has stopped, in the order of the numbers."""
        of = await self.begin(store, number, **changes)
        await self.end(store, of, outcome, at=NOON + 100 - number)
        return of

    async def left(self, store: Store) -> list[str]:
        return uids(await store.handles(stateful=None))

    async def some(self, store: Store) -> None:
        """Five that differ in what one can ask for, and one that lives."""
        kinds: tuple[Kind, ...] = ("tool", "hook", "agent")
        outcomes: tuple[Outcome, ...] = (Ok(1), Error("broke"), TIMED_OUT)
        for number in range(6):
            conversation = "main" if number < 4 else "other"
            await self.stop(store, number, outcomes[number % 3], kind=kinds[number // 2], conversation=conversation)
        await self.begin(store, 9)

    async def check_W8_a_part_goes_and_the_rest_stays(self, store: Store) -> None:
        for part, gone in (
            ({"conversation": "other"}, [4, 5]),
            ({"kinds": ("hook",)}, [2, 3]),
            ({"kinds": ("hook", "agent")}, [2, 3, 4, 5]),
            ({"statuses": ("failed",)}, [1, 4]),
            ({"statuses": ("failed", "timeout")}, [1, 2, 4, 5]),
            ({"conversation": "main", "kinds": ("tool", "hook"), "statuses": ("completed",)}, [0, 3]),
            ({"conversation": "main", "statuses": ("pending",)}, []),
            ({"conversation": "nowhere"}, []),
            ({"statuses": ("failed",), "before": NOON + 97}, [4]),
        ):
            await self.some(store)
            op: Collected = replace(ALL, **part)
            first = sorted(gone, reverse=True)
            assert uids(await store.expiring(op)) == [uid(number) for number in first], part
            assert await self.commit(store, op) == [len(gone)], part
            assert await self.left(store) == [uid(number) for number in (*range(6), 9) if number not in gone], part
            assert await store.expiring(op) == []
            for number in gone:
                tombstone = await store.named("main" if number < 4 else "other", f"h{number}")
                assert isinstance(tombstone, Expired) and tombstone.uid == uid(number), part
            await self.end(store, uid(9))
            await self.commit(store, ALL)
            assert await self.left(store) == [], "what a part has left goes like anything else"
            await self.commit(store, replace(ALL, at=NOON + 1000 * DAY))  # the tombstones, too: the next begins anew

    async def check_W8_a_part_is_let_go_of_in_parts(self, store: Store) -> None:
        for number in range(8):
            await self.stop(store, number, kind="hook" if number % 2 else "tool")
        op = replace(ALL, kinds=("hook",), limit=3)
        assert uids(await store.expiring(op)) == [uid(7), uid(5), uid(3)], "what stopped first goes first"
        assert [(await self.commit(store, op))[0] for _ in range(3)] == [3, 1, 0]
        assert uids(await store.expiring(ALL)) == [uid(6), uid(4), uid(2), uid(0)]

    async def check_S5_an_open_turn_keeps_a_part_as_well(self, store: Store) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        of = await self.stop(store, 1)
        op = replace(ALL, conversation="main")
        assert await store.expiring(op) == [] == await store.expiring(ALL)
        assert await self.commit(store, op, replace(ALL, only=(of,))) == [0, 0]
        await self.commit(store, TurnEnded("main", "t1", NOON + DAY))
        assert uids(await store.expiring(op)) == [of]
        assert await self.commit(store, op) == [1]

    async def check_Q6_a_part_is_of_handles_alone(self, store: Store) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.commit(store, Inquired("c.q.1", "main", "t1", None, NOON, {"n": 1}), TurnEnded("main", "t1", NOON))
        await self.stop(store, 1)
        for part in ({"conversation": "main"}, {"kinds": ("tool",)}, {"statuses": ("completed",)}):
            await self.commit(store, replace(ALL, **part))
            assert len(await store.inquiries("main")) == 1, part
        await self.commit(store, replace(ALL, only=()))
        assert await store.inquiries("main") == [], "with `only` it is the same retention, of handles that were read"

    async def check_W8_what_goes_can_be_read_first(self, store: Store) -> None:
        for number in (1, 2, 3):
            await self.stop(store, number)
        await self.begin(store, 4)
        _, key_id = await self.park(store, 5)
        before = await self.dump(store)
        read = [copy(each) for each in await store.expiring(ALL)]
        assert await self.dump(store) == before, "reading changes nothing"
        assert uids(read) == [uid(3), uid(2), uid(1)] and read == [await self.found(store, each.uid) for each in read]
        await self.resolve(store, key_id)  # it has expired, too, but nobody has read it
        assert await self.commit(store, replace(ALL, only=tuple(uids(read)))) == [3]
        assert await self.left(store) == [uid(4), uid(5)]
        assert uids(await store.expiring(ALL)) == [uid(5)]
        assert await self.commit(store, replace(ALL, only=())) == [0]
        assert await self.left(store) == [uid(4), uid(5)]

    async def check_W8_no_more_goes_than_may(self, store: Store) -> None:
        live = await self.begin(store, 1)
        hooked, _ = await self.park(store, 2, Parking(hook=True))
        await self.end(store, hooked, CANCELLED, "abort")
        late = await self.begin(store, 3)
        await self.end(store, late, at=NOON + DAY)
        old = await self.stop(store, 4)
        everything = (live, hooked, late, old, "unheard of")
        assert uids(await store.expiring(ALL)) == [old]
        assert await self.commit(store, replace(ALL, only=everything, kinds=("hook",))) == [0]
        assert await self.commit(store, replace(ALL, only=everything)) == [1]
        assert await self.left(store) == [live, hooked, late]
        await self.commit(store, HookCalled(hooked))
        assert uids(await store.expiring(ALL)) == [hooked]
