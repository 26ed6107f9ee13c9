"""Checks of pages: handles searched and sorted, counts, conversations, turns and their batches."""

from typing import Any

from keephold.handles.question import Question
from keephold.handles.state import EndedBy, Failure, Ok, Outcome, Running, Waiting
from keephold.store.base import (
    Browse,
    Collected,
    ConversationSummary,
    Described,
    Exposed,
    HandleQuery,
    Journaled,
    Opened,
    Registered,
    Revoked,
    TranscriptAppended,
    TurnBegan,
    TurnEnded,
    WaitOpened,
    made_at,
)
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, uid

TOOLS = ("build", "Deploy", "test")


class PageChecks(Suite):
    """Lists that are read a page at a time."""

    async def thirty(self, store: Browse) -> None:
        """Make thirty handles, every fifth of which has stopped, and a one-shot call."""
        for number in range(30):
            conversation = ("main", "other")[number % 2]
            await self.begin(store, number, tool=TOOLS[number % 3], conversation=conversation, start=number % 4 != 0)
            if number % 5 == 0:
                await self.end(store, uid(number), at=NOON + 100 - number)
        await self.begin(store, 50, stateful=False)

    async def pages(self, store: Browse, **wanted: Any) -> list[int]:
        """Return the numbers of all of them, read four at a time."""
        found = await self.paged(store, 4, **wanted)
        assert await self.listed(store, **wanted) == found, wanted
        return [int(each[:12], 16) for each in found]

    async def check_L3_handles_by_the_page(self, store: Browse) -> None:
        await self.thirty(store)
        stopped = [number for number in range(30) if number % 5 == 0]
        live = [number for number in range(30) if number % 5]
        for wanted, numbers in (
            ({}, list(range(30))),
            ({"state": "stopped"}, stopped),
            ({"state": "pending"}, [number for number in live if number % 4 == 0]),
            ({"state": "running"}, [number for number in live if number % 4]),
            ({"live": True}, live),
            ({"live": True, "state": "stopped"}, []),
            ({"live": True, "stateful": None}, [*live, 50]),
            ({"live": True, "stateful": False}, [50]),
            ({"live": True, "status": "completed"}, []),
            ({"state": "running", "stateful": None}, [*(number for number in live if number % 4), 50]),
            ({"stateful": None}, [*range(30), 50]),
            ({"status": "completed"}, stopped),
            ({"status": "pending"}, live),
            ({"tool": "Deploy"}, [number for number in range(30) if number % 3 == 1]),
            ({"tool": "deploy"}, []),
            ({"search": "DEPLOY"}, [number for number in range(30) if number % 3 == 1]),
            ({"search": "h2", "live": True}, [2, *range(21, 25), *range(26, 30)]),
            ({"search": uid(17)[:14]}, [17]),
            ({"search": "%"}, []),
            ({"search": "build", "kind": "tool", "state": "stopped"}, [0, 15]),
            ({"kind": "hook"}, []),
            ({"parked": True}, []),
        ):
            for conversation in (None, "main"):
                mine = [n for n in numbers if conversation is None or n == 50 or n % 2 == 0]
                narrowed: dict[str, Any] = {**wanted, "conversation": conversation}
                assert await self.pages(store, **narrowed) == mine, narrowed
                assert await self.pages(store, **narrowed, newest=True) == mine[::-1], narrowed

    async def check_L3_handles_by_their_end_and_time(self, store: Browse) -> None:
        await self.thirty(store)
        ends: dict[int, tuple[Outcome, EndedBy]] = {
            1: (Failure("no\0", "command_failed"), "self"),
            2: (Failure("late", "timeout"), "timeout"),
            3: (Failure("gone", "crashed"), "crash"),
            4: (Failure("enough", "aborted"), "abort"),
            6: (Failure("over", "cancelled"), "turn_end"),
        }
        for number, (outcome, by) in ends.items():
            await self.end(store, uid(number), outcome, ended_by=by)
        done = [number for number in range(30) if number % 5 == 0]
        at = {number: made_at(uid(number)) for number in (3, 20)}
        for wanted, numbers in (
            ({"end": "done"}, done),
            ({"end": "failed"}, [1, 2, 3]),
            ({"end": "aborted"}, [4, 6]),
            ({"end": "failed", "state": "stopped", "tool": "test"}, [2]),
            ({"end": "aborted", "live": True}, []),
            ({"since": at[20]}, list(range(20, 30))),
            ({"since": at[3], "until": at[20]}, list(range(3, 20))),
            ({"until": at[3], "stateful": None}, [0, 1, 2]),
            ({"since": at[3], "end": "failed"}, [3]),
        ):
            for conversation in (None, "main"):
                mine = [n for n in numbers if conversation is None or n % 2 == 0]
                narrowed: dict[str, Any] = {**wanted, "conversation": conversation}
                assert await self.pages(store, **narrowed) == mine, narrowed
                assert await self.pages(store, **narrowed, newest=True) == mine[::-1], narrowed
                totals = await store.totals(HandleQuery(**narrowed, after=uid(1)))
                assert sum(totals.values()) == len(mine), narrowed
        assert await self.pages(store, end="failed", state="stopped", sort="stopped") == [1, 2, 3]
        assert await store.totals() == {"pending": 5, "running": 14, "done": 6, "failed": 3, "aborted": 2}
        assert await store.totals(HandleQuery(limit=3)) == {"done": 1, "failed": 2}
        assert await store.totals(HandleQuery(limit=2, newest=True)) == {"running": 1, "pending": 1}
        assert await store.totals(HandleQuery(search="deploy", stateful=None)) == {
            "pending": 2, "running": 5, "done": 2, "failed": 1, "aborted": 1,
        }  # fmt: skip

    async def check_L3_handles_in_another_order(self, store: Browse) -> None:
        await self.thirty(store)
        every = list(range(30))
        ended = [number for number in every if number % 5 == 0]
        live = [number for number in every if number % 5]
        assert await self.pages(store, sort="stopped", newest=True) == [*ended, *live[::-1]]
        assert await self.pages(store, sort="stopped", state="stopped") == ended[::-1]
        by_tool = sorted(every, key=lambda number: (TOOLS[number % 3], number))
        assert await self.pages(store, sort="tool") == by_tool
        assert await self.pages(store, sort="tool", newest=True) == by_tool[::-1]
        by_id = sorted(every, key=lambda number: f"h{number}")
        assert await self.pages(store, sort="id") == by_id
        assert await self.pages(store, sort="id", conversation="other", live=True) == [
            number for number in by_id if number % 2 and number % 5
        ]
        assert await self.listed(store, sort="tool", after=uid(99)) == []

    async def check_L3_counts_are_of_spawned_handles(self, store: Browse) -> None:
        nothing = {"pending": 0, "running": 0, "waiting": 0, "stopped": 0, "parked": 0}
        assert await store.count() == nothing
        await self.thirty(store)
        parked, key_id = await self.park(store, 60)
        some = {"pending": 6, "running": 19, "waiting": 0, "stopped": 6, "parked": 1}
        assert await store.count() == some
        await self.park(store, 61, stateful=False)
        assert (await store.count())["parked"] == 1
        await self.resolve(store, key_id)
        await self.commit(store, Exposed(uid(50), "named"), Exposed(uid(50), "named"))
        assert await store.count() == {**some, "stopped": 7, "parked": 0}
        taken = Registered(record(99, id="h1", conversation="other"))
        await self.refused(store, "batch_rejected", Registered(record(98)), taken)
        await self.commit(store, Collected(NOON + DAY, NOON + DAY))
        assert await store.count() == {**some, "stopped": 0, "parked": 0}
        assert await store.handle(parked) is None

    async def check_Q1_who_asks_is_counted_by_owner(self, store: Browse) -> None:
        asks = Waiting(NOON, NOON, NOON, Question(id="q", text="Well?", answer_type="Text"), 1)
        assert await store.asking() == {}
        await self.commit(store, *(Registered(record(number, state=asks)) for number in (1, 2)))
        await self.commit(store, Registered(record(3, state=asks, stateful=False)), Registered(record(4)))
        assert await store.asking() == {store.owner: 3}
        await self.end(store, uid(1))
        assert await store.asking() == {store.owner: 2}

    async def check_L3_what_has_ended_is_counted_by_tool_and_how(self, store: Browse) -> None:
        assert await store.ended(0) == {}
        aborted, late, failed = Failure("no more", "aborted"), Failure("late", "timeout"), Failure("it\0broke")
        ends: tuple[tuple[str, Outcome, EndedBy, float], ...] = (
            ("build", Ok("x" * 10_000), "self", 0), ("build", Ok([[1]]), "self", 1), ("build", failed, "self", 2),
            ("build", failed, "self", 3), ("build", aborted, "abort", 4), ("test", aborted, "turn_end", 5),
            ("test", late, "timeout", 6), ("test", late, "self", 7), ("test", failed, "crash", 8),
        )  # fmt: skip
        for number, (tool, outcome, by, at) in enumerate(ends):
            await self.begin(store, number, tool=tool, conversation=f"c{number}")
            await self.end(store, uid(number), outcome, by, at=NOON + at)
        await self.begin(store, 50, stateful=False)
        await self.end(store, uid(50), at=NOON + 50)
        await self.begin(store, 51)
        found = {
            ("build", "completed", "self"): 2, ("build", "failed", "self"): 2, ("build", "failed", "abort"): 1,
            ("test", "failed", "turn_end"): 1, ("test", "timeout", "timeout"): 1, ("test", "timeout", "self"): 1,
            ("test", "failed", "crash"): 1,
        }  # fmt: skip
        assert await store.ended(0) == found == await store.ended(NOON)
        assert await store.ended(NOON + 0.5) == {**found, ("build", "completed", "self"): 1}
        assert await store.ended(NOON + 8) == {("test", "failed", "crash"): 1}
        assert await store.ended(NOON + 9) == {}

    async def check_L3_conversations_by_name(self, store: Browse) -> None:
        assert await store.summaries() == []
        late = NOON + 5 * DAY
        await self.begin(store, 1, conversation="b")
        await self.begin(store, 2, conversation="b")
        await self.end(store, uid(2))
        await self.begin(store, 3, conversation="c", stateful=False)
        await self.commit(store, TurnBegan("a", "t1", NOON), TurnEnded("a", "t1", NOON + 1), TurnBegan("b", "t", NOON))
        await self.commit(
            store, TranscriptAppended("d", "t", late, (("user", b"1"),)), Described("b", NOON + 3, {"title": "B"})
        )
        wanted = [
            ConversationSummary("a", 0, 0, NOON + 1),
            ConversationSummary("b", 2, 1, NOON + 3, {"title": "B"}),
            ConversationSummary("c", 0, 0, 0.003),
            ConversationSummary("d", 0, 0, late, {}),
        ]
        assert await store.summaries() == wanted
        for place in range(5):
            after = ("", "a", "b", "bb", "c")[place]
            beyond = [each for each in wanted if each.id > after]
            assert await store.summaries(after=after) == beyond
            assert await store.summaries(after=after, limit=2) == beyond[:2]

    async def check_T1_turns_newest_first(self, store: Browse) -> None:
        for number in range(1, 6):
            turn = f"t{number}"
            await self.commit(store, TurnBegan("main", turn, NOON + number), Opened("main", turn, 1, ()))
            if number < 5:
                await self.commit(store, TurnEnded("main", turn, NOON + number + 0.5))
        await self.commit(store, TurnBegan("other", "t9", NOON), Opened("main", "t5", 2, ()))
        turns = await store.turns("main")
        assert [turn.number for turn in turns] == sorted({turn.number for turn in turns}, reverse=True)
        assert [(turn.turn, turn.began_at, turn.ended_at, turn.batches) for turn in turns] == [
            ("t5", NOON + 5, None, 2), *((f"t{n}", NOON + n, NOON + n + 0.5, 1) for n in (4, 3, 2, 1)),
        ]  # fmt: skip
        assert {turn.owner for turn in turns} == {store.owner}
        assert await store.turns("main", limit=2) == turns[:2]
        assert await store.turns("main", before=turns[1].number) == turns[2:]
        assert await store.turns("nowhere") == []
        await self.refused(store, "turn_open", TurnEnded("main", "t5", NOON), TurnBegan("other", "x", NOON))
        assert await store.turns("main") == turns, "what is refused changes none"
        await self.commit(store, Collected(NOON + 3, NOON + DAY))
        assert [turn.turn for turn in await store.turns("main")] == ["t5", "t4", "t3"]

    async def check_E3_the_end_of_a_journal_is_read_by_the_page(self, store: Browse) -> None:
        await self.commit(store, *(Registered(record(each, state=Running(NOON, NOON))) for each in (1, 2)))
        for number in range(9):
            await self.commit(store, Journaled(uid(1), 1, "step", f"s{number}", b"d", b"%d" % number))
            if number % 3 == 0:
                await self.commit(store, Journaled(uid(1), 1, "trace", f"t{number}", b"d", b"1"))
            await self.commit(store, Journaled(uid(2), 1, "step", f"s{number}", b"d", b"0"))
        names = [f"s{number}" for number in range(9)]
        for before in (None, 9, 20, 5, 1, 0, -1):
            for limit in (1, 4, 100):
                entries, count = await store.journal_end(uid(1), before=before, limit=limit)
                wanted = names[: 9 if before is None else max(0, before)][-limit:][::-1]
                assert [entry.name for entry in entries] == wanted and count == 9, (before, limit, entries)
        assert entries == [] and (await store.journal_end(uid(1), limit=1))[0][0] in await store.journal(uid(1))
        assert await store.journal_end(uid(3)) == ([], 0)
        times = await store.step_times(uid(1), after=2, limit=3)
        assert list(times) == [("step", name) for name in names[4:7]] and sorted(times.values()) == [*times.values()]
        assert len(await store.step_times(uid(1))) == 9 and await store.step_times(uid(3)) == {}

    async def check_D3_open_waits_are_listed_by_the_page(self, store: Browse) -> None:
        for number in range(8):
            await self.park(store, number, conversation=("main", "other")[number % 2])
        await self.begin(store, 9, conversation="a third")
        for name in ("x", "y"):
            await self.commit(store, WaitOpened(uid(9), 1, f"key-{name}", "event", name, "secret-1"))
        await self.begin(store, 10)
        await self.commit(store, WaitOpened(uid(10), 1, "of one that stops", "event", "e", "secret-1"))
        await self.end(store, uid(10))
        await self.resolve(store, f"key-{uid(2)}")
        order = ["key-x", "key-y", *(f"key-{uid(number)}" for number in (0, 4, 6, 1, 3, 5, 7))]
        for conversation, wanted in ((None, order), ("main", order[2:5]), ("other", order[5:]), ("nowhere", [])):
            found: list[str] = []
            while page := await store.open_waits(
                conversation=conversation, after=found[-1] if found else None, limit=2
            ):
                for row, its in page:
                    assert row == await store.wait(row.key_id) and its == await store.handle(row.uid)
                    found.append(row.key_id)
            assert found == wanted, (conversation, found)
        places = ["main", "other", "a third", "nowhere"]
        assert await store.count_open_waits(places) == dict(zip(places, (3, 4, 2, 0), strict=True))
        assert await store.count_open_waits([]) == {}
        await self.resolve(store, f"key-{uid(4)}")
        after = await store.open_waits(after=f"key-{uid(4)}", limit=2)
        assert [row.key_id for row, _ in after] == order[4:6], "also after one that is resolved by now"
        await self.commit(store, Revoked("main", NOON + 40))
        assert await store.open_waits(conversation="main") == []
        assert (await store.count_open_waits(["main"])) == {"main": 0}
