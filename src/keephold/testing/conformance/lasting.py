"""Checks of time: what is deleted, what the next process finds, and what another process sees."""

import asyncio
from typing import Any, Literal

from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, Failure, Ok, Outcome, Running, Started, transition
from keephold.store.base import (
    NOBODY,
    Browse,
    Changed,
    Claimed,
    Collected,
    Described,
    Emitted,
    HookCalled,
    Inquired,
    Journaled,
    KeptOutput,
    Kind,
    Notified,
    Op,
    Opened,
    OpenTurn,
    Parking,
    Post,
    Posted,
    Record,
    Registered,
    Released,
    Replied,
    Request,
    Requested,
    Resolution,
    Resolving,
    SecretAdded,
    TakenDown,
    TranscriptAppended,
    TurnBegan,
    TurnEnded,
)
from keephold.store.rules import CANCELLED, TIMED_OUT
from keephold.testing.conformance.suite import DAY, NOON, Suite, copy, record, shared, state_tag, uid, uids

HOUR = 3600.0


class RetentionChecks(Suite):
    """Stopped handles stay readable, then a tombstone says that they were there."""

    async def collect(self, store: Browse, before: float, at: float, limit: int = 1000) -> int:
        (gone,) = await self.commit(store, Collected(before, at, limit))
        assert isinstance(gone, int)
        return gone

    async def check_S5_what_stopped_long_ago_leaves_a_tombstone(self, store: Browse) -> None:
        for number in (1, 2, 3):
            await self.begin(store, number)
        await self.begin(store, 4, stateful=False)
        await self.commit(store, Journaled(uid(1), 1, "step", "a", b"", b""), Emitted(uid(1), "t", 1, NOON))
        await self.end(store, uid(1), at=NOON + 10)
        await self.end(store, uid(2), at=NOON + 20)
        await self.end(store, uid(4), at=NOON + 5)
        assert await self.collect(store, NOON + 20, NOON + HOUR) == 2
        assert await self.tombstone(store, "h1") == uid(1)
        tombstone = await store.named("main", "h1")
        assert await store.expired(uid(1)) == tombstone and await store.expired(uid(2)) is None
        assert await store.expired("h1") == tombstone and await store.expired("h2") is None
        assert await store.handle(uid(1)) is None and await store.handle(uid(4)) is None
        assert await store.called("main", "label4") is None
        assert await store.journal(uid(1)) == [] and await store.process_events(uid(1)) == []
        for number in (2, 3):
            assert await self.named(store, f"h{number}") == uid(number)
        assert await self.listed(store, stateful=None) == [uid(2), uid(3)]
        assert await self.collect(store, NOON + 20, NOON + HOUR) == 0

    async def check_S5_an_open_turn_keeps_what_it_knows(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        for number, conversation in ((1, "main"), (2, "other")):
            await self.begin(store, number, conversation=conversation)
            await self.end(store, uid(number))
        assert await self.collect(store, NOON + DAY, NOON + 2 * DAY) == 1
        assert await store.handle(uid(1)) is not None and await store.handle(uid(2)) is None
        await self.commit(store, TurnEnded("main", "t1", NOON + DAY))
        assert await self.collect(store, NOON + DAY, NOON + 2 * DAY) == 1
        assert await self.tombstone(store, "h1")

    async def check_S5_letting_go_is_done_in_parts(self, store: Browse) -> None:
        for number in range(10):
            await self.begin(store, number)
            await self.end(store, uid(number))
        assert [await self.collect(store, NOON + DAY, NOON + DAY, 4) for _ in range(4)] == [4, 4, 2, 0]
        assert await self.listed(store, stateful=None) == []

    async def check_S5_live_and_parked_calls_stay(self, store: Browse) -> None:
        await self.begin(store, 1, start=False)
        await self.begin(store, 2)
        await self.park(store, 3)
        before = await self.dump(store)
        assert await self.collect(store, NOON + 1000 * DAY, NOON + 1000 * DAY) == 0
        assert await self.dump(store) == before

    async def check_K6_room_is_made_by_handles_that_were_told_and_have_files(self, store: Browse) -> None:
        """The first to have stopped first, at any age; turns, inquiries and events stay."""
        in_file = KeptOutput(1, 1, 0, in_file=1, file="f")
        for number in range(1, 6):
            await self.begin(store, number)
            op = await self.ending(store, uid(number), at=NOON + 60 - number)
            output = in_file if number in (2, 3, 4) else KeptOutput(1, 1, 0, data=b"x")
            await self.commit(store, replace(op, output=output))
        await self.begin(store, 6)
        await self.commit(store, Notified("main", "tool.stopped", "info", "x", NOON, uid(4)))
        await self.commit(store, TurnBegan("main", "t1", NOON), TurnEnded("main", "t1", NOON))

        def room(early: Literal["seen", "any"], *, files: bool, limit: int = 10) -> Collected:
            return Collected(NOON + DAY, NOON + DAY, limit, early=early, files=files)

        assert uids(await store.expiring(room("seen", files=True))) == [uid(3), uid(2)]
        assert uids(await store.expiring(room("any", files=True))) == [uid(4), uid(3), uid(2)]
        assert uids(await store.expiring(room("seen", files=False, limit=2))) == [uid(5), uid(3)]
        assert await self.commit(store, replace(room("any", files=True), only=(uid(4), uid(6)))) == [1]
        assert await self.commit(store, room("any", files=False)) == [4]
        assert await self.listed(store) == [uid(6)], "it has not stopped"
        assert len(await store.turns("main")) == 1 and (await store.events_range())[0] == 1
        assert await store.used_bytes() >= 0

    async def check_S5_letting_go_touches_nothing_else(self, store: Browse) -> None:
        await self.commit(store, Notified("main", "k.n", "info", "hello", NOON), Emitted("p", "t", 1, NOON))
        await self.begin(store, 1, conversation="other", stateful=False)
        await self.commit(store, TurnBegan("third", "t1", NOON), SecretAdded("s", b"s", NOON))
        await self.commit(store, TurnBegan("fourth", "t1", NOON))
        await self.begin(store, 2, conversation="fourth")
        await self.end(store, uid(2))
        before = await self.dump(store)
        assert await self.collect(store, NOON + DAY, NOON + DAY) == 0
        assert await self.dump(store) == before
        assert await store.turn("third") == OpenTurn("t1", store.owner, 0)
        assert await store.handle(uid(2)) is not None
        assert len(await store.process_events("p")) == 1

    async def check_S5_time_counts_not_the_order_of_commits(self, store: Browse) -> None:
        for number, at in ((1, NOON + 30), (2, NOON + 10), (3, NOON + 20), (4, NOON + 40)):
            await self.begin(store, number)
            await self.end(store, uid(number), at=at)
        assert await self.collect(store, NOON + 25, NOON + DAY, 1) == 1
        assert await self.listed(store) == [uid(1), uid(3), uid(4)]
        assert await self.collect(store, NOON + 25, NOON + DAY) == 1
        assert await self.listed(store) == [uid(1), uid(4)]

    async def check_D5_resolutions_of_one_shot_calls_are_kept_as_well(self, store: Browse) -> None:
        of, key_id = await self.park(store, 1, stateful=False)
        await self.resolve(store, key_id)
        assert await self.collect(store, NOON + DAY, NOON + DAY) == 1
        assert await store.handle(of) is None
        assert (await self.resolve(store, key_id)).status == "already_resolved"
        await self.collect(store, NOON, NOON + 92 * DAY)
        assert await self.resolve(store, key_id) == Resolving("unknown_or_revoked")

    async def check_S6_an_id_with_a_tombstone_is_free(self, store: Browse) -> None:
        await self.begin(store, 1, id="x")
        await self.end(store, uid(1))
        await self.collect(store, NOON + DAY, NOON + DAY)
        await self.begin(store, 2, id="x")
        assert await self.named(store, "x") == uid(2)
        await self.end(store, uid(2), at=NOON + 2 * DAY)
        await self.collect(store, NOON + 3 * DAY, NOON + 3 * DAY)
        assert await self.tombstone(store, "x") == uid(2)
        await self.collect(store, NOON, NOON + 92 * DAY)
        assert await self.tombstone(store, "x") == uid(2), "only the older tombstone is over"

    async def check_S5_a_tombstone_stays_for_ninety_days(self, store: Browse) -> None:
        of, key_id = await self.park(store, 1)
        await self.resolve(store, key_id)
        await self.collect(store, NOON + HOUR, NOON + HOUR)
        await self.collect(store, NOON, NOON + 89 * DAY)
        assert await self.tombstone(store, "h1")
        late = await self.resolve(store, key_id, Resolution("ok", "late"))
        assert late == Resolving("already_resolved", Resolution("ok", 42)), "D5: kept as long as the tombstone"
        await self.collect(store, NOON, NOON + 91 * DAY)
        assert await store.named("main", "h1") is None and await store.expired(of) is None
        assert await self.resolve(store, key_id) == Resolving("unknown_or_revoked")
        assert await store.handle(of) is None

    async def check_S5_the_newest_ten_thousand_tombstones_stay(self, store: Browse) -> None:
        total, part = 10_020, 1000
        running, end = Running(NOON, NOON + 1), Ended(NOON + 2, Ok(1))
        stopped = transition(running, end)
        for first in range(0, total, part):
            ops: list[Op] = []
            for number in range(first, min(first + part, total)):
                ops += [Registered(record(number, state=running)), Changed(uid(number), 1, end, stopped)]
            await self.commit(store, *ops)
            while await self.collect(store, NOON + DAY, NOON + DAY + first) == 1000:
                pass
        await self.begin(store, total, conversation="other")
        await self.end(store, uid(total))
        await self.collect(store, NOON + DAY, NOON + 2 * DAY)
        assert await store.named("main", "h0") is None
        assert await self.tombstone(store, f"h{total - 1}")
        assert await self.tombstone(store, f"h{total - 9_000}")
        assert await self.tombstone(store, f"h{total}", "other")

    async def check_S5_output_files_go_with_their_handle(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        output = KeptOutput(5, 5, 0, 0, 5, b"", "output-1")
        if store.directory is not None:
            store.directory.mkdir(parents=True, exist_ok=True)
            (store.directory / "output-1").write_bytes(b"12345")
        await self.end(store, of, output=output)
        await self.collect(store, NOON + DAY, NOON + DAY)
        assert store.directory is None or not (store.directory / "output-1").exists()


class RestartChecks(Suite):
    """Checks of what the next process finds."""

    @shared
    async def check_R4_everything_is_there_after_a_restart(self, store: Browse) -> None:
        opened = Opened("main", "t1", 1, (("a", "deploy", {"x": "ü"}, uid(1)), ("b", "deploy", "{", None)))
        await self.commit(store, TurnBegan("main", "t1", NOON), opened, SecretAdded("s", b"\xff" * 32, NOON))
        await self.begin(store, 1, metadata={"a": [1]})
        await self.begin(store, 2, stateful=False)
        await self.park(store, 3, Parking(deadline=NOON + 9), resources=("file:a",))
        _, key_id = await self.park(store, 4, Parking(hold=True))
        await self.resolve(store, key_id)
        await self.begin(store, 5)
        await self.end(store, uid(5), output=KeptOutput(2, 2, 0, data=b"\xff\x00"))
        await self.commit(
            store,
            Journaled(uid(1), 1, "step", "a", b"\xff", b"1"),
            Emitted(uid(1), "t", {"a": 1}, NOON),
            Notified("main", "k.n", "info", "hello", NOON, None, ("message",)),
            Inquired("a.q.1", "main", "t1", uid(1), NOON, {"ask": "ü"}, [1]),
            TranscriptAppended("main", "t1", NOON, (("user", b"1"), ("model", b"2"))),
            Described("main", NOON, {"a": [1]}),
        )
        before, old = await self.dump(store), store.owner
        later = await self.reopened(store)
        after = await self.dump(later)
        different = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        assert different <= {"owners", "ours"}, different
        assert later.owner != old and not later.alive(old) and later.alive(later.owner)
        assert await later.owners() == [old]
        assert uids(await later.owned(old)) == [uid(1), uid(2)]
        assert await later.owned(later.owner) == []
        turn = await later.turn("main")
        assert turn == OpenTurn("t1", old, 1, opened), turn
        await self.commit(later, TurnBegan("main", "t1", NOON, "t1"))
        assert await later.turn("main") == OpenTurn("t1", later.owner, 1, opened)
        more = TranscriptAppended("main", "t1", NOON, (("user", b"3"),))
        assert await self.commit(later, Emitted(uid(1), "t", None, NOON), more) == [2, 3]

    @shared
    async def check_E6_a_dead_owners_call_is_claimed(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        old = store.owner
        later = await self.reopened(store)
        (claimed,) = await self.commit(later, Claimed(of, old))
        assert isinstance(claimed, Record)
        assert (claimed.owner, claimed.fence, claimed.attempt) == (later.owner, 2, 2), claimed
        assert await later.owners() == [] and uids(await later.owned(later.owner)) == [of]
        assert await self.commit(later, Claimed(of, old)) == [None]

    @shared
    async def check_D2_a_hook_survives_the_process_that_had_to_call_it(self, store: Browse) -> None:
        of, _ = await self.park(store, 1, Parking(hook=True))
        await self.end(store, of, CANCELLED, "abort")
        old = store.owner
        later = await self.reopened(store)
        assert await later.owners() == [old]
        assert uids(await later.owned(old)) == [of]
        await self.commit(later, HookCalled(of))
        assert await later.owners() == [] and await later.owned(old) == []


class SharingChecks(Suite):
    """Checks of two processes with one store."""

    @shared
    async def check_E6_each_process_is_an_owner(self, store: Browse) -> None:
        other = await self.second(store)
        assert other.owner != store.owner
        assert store.alive(other.owner) and other.alive(store.owner)
        of = await self.begin(store, 1)
        assert await other.owners() == [store.owner] and await store.owners() == []
        assert uids(await other.owned(store.owner)) == [of]
        await store.close()
        assert not other.alive(store.owner)

    @shared
    async def check_E6_one_of_two_claims_wins(self, store: Browse) -> None:
        calls = [await self.begin(store, number) for number in range(20)]
        dead = store.owner
        first = await self.reopened(store)
        second = await self.second(first)
        claims = [self.commit(each, Claimed(of, dead)) for of in calls for each in (first, second)]
        results = [result for (result,) in await asyncio.gather(*claims)]
        for number, of in enumerate(calls):
            winners = [each for each in results[2 * number : 2 * number + 2] if each is not None]
            assert len(winners) == 1, winners
            now = await self.found(first, of)
            assert (now.owner, now.fence) == (winners[0].owner, 2), now

    @shared
    async def check_E6_the_loser_is_refused(self, store: Browse) -> None:
        """Its fencing number is stale."""
        of = await self.begin(store, 1)
        other = await self.second(store)
        await self.commit(store, Released(of, 1))
        await self.commit(other, Claimed(of, NOBODY))
        end = Ended(NOON + 5, Ok("mine"))
        await self.refused(store, "lease_lost", Changed(of, 1, end, transition(Running(NOON, NOON + 1), end)))
        await self.commit(other, Changed(of, 2, end, transition(Running(NOON, NOON + 1), end)))

    @shared
    async def check_D5_of_two_processes_one_resolves(self, store: Browse) -> None:
        other = await self.second(store)
        for number in range(10):
            of, key_id = await self.park(store, number)
            results = await asyncio.gather(
                *(self.resolve(each, key_id, Resolution("ok", place)) for place, each in enumerate((store, other)))
            )
            assert sorted(result.status for result in results) == ["accepted", "already_resolved"], results
            won = 0 if results[0].status == "accepted" else 1
            assert results[1 - won].terminal == Resolution("ok", won)
            for each in (store, other):
                assert (await self.stopped(each, of)).outcome == Ok(won)

    @shared
    async def check_A7_a_process_hears_what_another_changed(self, store: Browse) -> None:
        other = await self.second(store)
        of, key_id = await self.park(store, 1)
        await self.word(other, of)
        for heard in self.heard.values():
            heard.clear()
        await self.resolve(other, key_id)
        await self.word(store, of)
        assert state_tag((await self.found(store, of)).state) == "stopped"
        kept = await self.take_key(store, await self.begin(store, 2))
        await self.resolve(other, kept)
        await self.word(store, kept)

    @shared
    async def check_requests_reach_the_owner_and_come_back(self, store: Browse) -> None:
        other = await self.second(store)
        of = await self.begin(store, 1)
        await self.commit(other, Requested("r1", of, store.owner, b"abort"))
        assert await other.requests() == [] and await store.requests() == [Request("r1", of, b"abort")]
        await self.word(store, of)
        await self.commit(store, Replied("r1", b"done"))
        assert await other.reply("r1") == b"done" and await store.requests() == []

    @shared
    async def check_P6_posts_are_seen_by_others_and_end_with_their_process(self, store: Browse) -> None:
        other = await self.second(store)
        await self.commit(store, Posted("p1", "prompt", NOON, b"a"), Posted("s1", "standing", NOON, b"b"))
        assert await other.posts("prompt") == [Post("p1", "prompt", store.owner, NOON, b"a")]
        await self.word(other, "p1")
        await self.commit(other, TakenDown(("p1",)), Posted("p1", "prompt", NOON + 1, b"mine now"))
        assert (await store.posts("prompt"))[0].body == b"a", "others change nothing of it"
        reopened = await self.reopened(store)
        assert await reopened.posts("prompt") == [] and await reopened.posts("standing") == []

    @shared
    async def check_B4_a_post_is_of_one_process_until_that_one_is_dead(self, store: Browse) -> None:
        """So it can be what only one process at a time may have."""
        other = await self.second(store)
        held = Posted("lane:x", "lane", NOON, b"mine")
        assert await self.commit(store, held, held) == [None, None]
        mine = Post("lane:x", "lane", store.owner, NOON, b"mine")
        taking = Posted("lane:x", "lane", NOON + 1, b"theirs")
        assert await self.commit(other, taking) == [mine]
        assert await self.commit(other, replace(taking, instead_of="another")) == [mine]
        assert await self.commit(other, replace(taking, instead_of=store.owner)) == [None]
        assert await self.commit(store, TakenDown(("lane:x",)), held) == [
            None,
            Post("lane:x", "lane", other.owner, NOON + 1, b"theirs"),
        ]
        await self.commit(other, TakenDown(("lane:x",)))
        await self.word(store, "lane:x")
        assert await self.commit(store, held) == [None]

    @shared
    async def check_S6_ids_and_turns_are_one_for_all_processes(self, store: Browse) -> None:
        other = await self.second(store)
        told: list[str] = []
        for number, each in enumerate((store, other, store, other)):
            try:
                await self.commit(each, Registered(record(number, id="x")), TurnBegan("main", f"t{number}", NOON))
                told.append("written")
            except KeepholdError as error:
                told.append(error.code)
        assert told == ["written", "batch_rejected", "batch_rejected", "batch_rejected"], told
        await self.refused(other, "turn_open", TurnBegan("main", "t9", NOON))
        results = await asyncio.gather(
            *(
                self.commit(each, Changed(uid(0), 1, Started(NOON + 1), Running(NOON, NOON + 1)))
                for each in (store, other)
            )
        )
        assert results == [[None], [None]]


ALL = Collected(NOON + DAY, NOON + DAY)


class SelectiveDeletionChecks(Suite):
    """Handles that are deleted by kind or status, and only after they were read."""

    async def stop(self, store: Browse, number: int, outcome: Outcome | None = None, **changes: Any) -> str:
        """Return a handle that has stopped, in the order of the numbers."""
        of = await self.begin(store, number, **changes)
        await self.end(store, of, outcome, at=NOON + 100 - number)
        return of

    async def left(self, store: Browse) -> list[str]:
        return await self.listed(store, stateful=None)

    async def some(self, store: Browse) -> None:
        """Make five handles that differ in kind and status, and one that has not stopped."""
        kinds: tuple[Kind, ...] = ("tool", "hook", "agent")
        outcomes: tuple[Outcome, ...] = (Ok(1), Failure("broke"), TIMED_OUT)
        for number in range(6):
            conversation = "main" if number < 4 else "other"
            await self.stop(store, number, outcomes[number % 3], kind=kinds[number // 2], conversation=conversation)
        await self.begin(store, 9)

    async def check_W8_a_part_goes_and_the_rest_stays(self, store: Browse) -> None:
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
                conversation = "main" if number < 4 else "other"
                assert await self.tombstone(store, f"h{number}", conversation) == uid(number), part
            await self.end(store, uid(9))
            await self.commit(store, ALL)
            assert await self.left(store) == [], "what a part has left goes like anything else"
            await self.commit(store, replace(ALL, at=NOON + 1000 * DAY))  # the tombstones, too

    async def check_W8_a_part_is_deleted_in_parts(self, store: Browse) -> None:
        for number in range(8):
            await self.stop(store, number, kind="hook" if number % 2 else "tool")
        op = replace(ALL, kinds=("hook",), limit=3)
        assert uids(await store.expiring(op)) == [uid(7), uid(5), uid(3)], "what stopped first goes first"
        assert [(await self.commit(store, op))[0] for _ in range(3)] == [3, 1, 0]
        assert uids(await store.expiring(ALL)) == [uid(6), uid(4), uid(2), uid(0)]

    async def check_S5_an_open_turn_keeps_a_part_as_well(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        of = await self.stop(store, 1)
        op = replace(ALL, conversation="main")
        assert await store.expiring(op) == [] == await store.expiring(ALL)
        assert await self.commit(store, op, replace(ALL, only=(of,))) == [0, 0]
        await self.commit(store, TurnEnded("main", "t1", NOON + DAY))
        assert uids(await store.expiring(op)) == [of]
        assert await self.commit(store, op) == [1]

    async def check_Q6_a_part_is_of_handles_alone(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.commit(store, Inquired("c.q.1", "main", "t1", None, NOON, {"n": 1}), TurnEnded("main", "t1", NOON))
        await self.stop(store, 1)
        for part in ({"conversation": "main"}, {"kinds": ("tool",)}, {"statuses": ("completed",)}):
            await self.commit(store, replace(ALL, **part))
            assert len(await store.inquiries("main")) == 1, part
        await self.commit(store, replace(ALL, only=()))
        assert await store.inquiries("main") == [], "with `only` it is the same retention, of handles that were read"

    async def check_W8_what_goes_can_be_read_first(self, store: Browse) -> None:
        for number in (1, 2, 3):
            await self.stop(store, number)
        await self.begin(store, 4)
        _, key_id = await self.park(store, 5)
        before = await self.dump(store)
        read = [copy(each) for each in await store.expiring(ALL)]
        assert await self.dump(store) == before, "reading changes nothing"
        assert uids(read) == [uid(3), uid(2), uid(1)] and read == [await self.found(store, each.uid) for each in read]
        await self.resolve(store, key_id)  # it has expired, too, but was not read
        assert await self.commit(store, replace(ALL, only=tuple(uids(read)))) == [3]
        assert await self.left(store) == [uid(4), uid(5)]
        assert uids(await store.expiring(ALL)) == [uid(5)]
        assert await self.commit(store, replace(ALL, only=())) == [0]
        assert await self.left(store) == [uid(4), uid(5)]

    async def check_W8_no_more_goes_than_may(self, store: Browse) -> None:
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
        assert uids(await store.expiring(ALL)) == [hooked] and await self.commit(store, ALL) == [1]
