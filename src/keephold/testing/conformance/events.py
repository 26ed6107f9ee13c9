"""Checks of the events: each operation with its own, in one order, without a gap, and none of what was refused."""

import asyncio
from typing import Any

from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, QuestionAnswered, QuestionAsked, Running, Stopped, Waiting
from keephold.store.base import (
    NOTIFICATION_LIMIT,
    Annotated,
    Attempted,
    Browse,
    Changed,
    Claimed,
    Collected,
    Delivered,
    Emitted,
    EventQuery,
    Exposed,
    Forgotten,
    HandedOut,
    Journaled,
    Notice,
    Notified,
    Parking,
    QueuedNotification,
    Readied,
    Registered,
    Released,
    Responded,
    Revoked,
    Rewritten,
    StoredEvent,
    TakenBack,
    TranscriptAppended,
    TurnBegan,
    TurnEnded,
    WaitOpened,
)
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, shared, uid

QUESTION = Question(id="sure", text="Sure?")
FAR = NOON + 100 * 365 * DAY
"""Later than any clock of a machine that runs this."""
Told = tuple[str, str, str | None, dict[str, Any]]


def told(events: list[StoredEvent]) -> list[Told]:
    return [(event.type, event.conversation, event.uid, event.data) for event in events]


def types(events: list[StoredEvent]) -> list[str]:
    return [event.type for event in events]


def of(number: int, type: str, **data: Any) -> Told:
    return f"handle.{type}", "main", uid(number), data


class EventChecks(Suite):
    """Checks of events."""

    async def since(self, store: Browse, *ops: Any) -> list[Told]:
        """Return the events that these operations add as one commit."""
        _, last = await store.events_range()
        await self.commit(store, *ops)
        events = await store.events(EventQuery(after=last))
        assert [event.seq for event in events] == list(range(last + 1, last + 1 + len(events))), "without a gap"
        return told(events)

    async def check_L1_the_life_of_a_handle(self, store: Browse) -> None:
        assert await store.events_range() == (1, 0) and await store.events() == []
        made = {"id": "h1", "tool": "deploy", "kind": "tool", "state": "pending", "stateful": True}
        begun = await self.since(store, Registered(record(1)))
        assert begun == [of(1, "created", **made)]
        running, waiting = Running(NOON, NOON), Waiting(NOON, NOON, NOON, QUESTION)
        assert await self.since(store, Changed(uid(1), 1, QuestionAnswered(NOON), running)) == [of(1, "running")]
        asked = await self.since(store, Changed(uid(1), 1, QuestionAsked(NOON, QUESTION), waiting))
        assert asked == [of(1, "waiting", question="sure")]
        await self.commit(store, Changed(uid(1), 1, QuestionAnswered(NOON), running))
        stepped = await self.since(store, Journaled(uid(1), 1, "step", "a", b"", b'"a result"', input=b'"an input"'))
        assert stepped == [of(1, "stepped", kind="step", name="a", ok=True)]
        again = await self.since(store, Attempted(uid(1), 1, 2, NOON + 5))
        assert again == [of(1, "attempt", attempt=2, next_at=NOON + 5)]
        assert await self.since(store, Readied(uid(1), 1)) == [of(1, "ready")]
        assert await self.since(store, Emitted(uid(1), "built", {"n": 1}, NOON)) == [
            ("process.event", "main", uid(1), {"type": "built", "sequence": 1})
        ]
        over = await self.since(store, await self.ending(store, uid(1), Failure("broke", "crashed"), "timeout"))
        assert over == [of(1, "stopped", ok=False, ended_by="timeout", code="crashed")]
        events = await store.events(EventQuery(uid=uid(1)))
        assert types(events)[0] == "handle.created" and types(events)[-1] == "handle.stopped"
        assert len(events) == 8 and "handle.stepped" not in types(events), "steps are in the journal"
        assert b"result" not in str(events).encode() and "input" not in str(events), "no value is in an event"

    async def check_L1_a_handle_changes_hands(self, store: Browse) -> None:
        await self.begin(store, 1)
        await self.begin(store, 2, stateful=False)
        assert await self.since(store, Rewritten(uid(1), 1, {})) == [of(1, "changed", what="edited")]
        assert await self.since(store, Annotated(uid(1), priority=2)) == [of(1, "changed", what="annotated")]
        assert await self.since(store, Claimed(uid(1), store.owner)) == [of(1, "changed", what="claimed")]
        assert await self.since(store, Claimed(uid(1), "somebody else")) == []
        assert await self.since(store, Released(uid(1), 2)) == [of(1, "changed", what="released")]
        assert await self.since(store, Exposed(uid(2), "named")) == [of(2, "changed", what="exposed")]
        assert await self.since(store, Exposed(uid(9), "nobody")) == []
        first = (await store.events(EventQuery(uid=uid(2))))[0]
        assert (first.data["id"], first.data["stateful"]) == ("h2", False), "as it was then"

    async def check_D1_keys_and_what_their_resolution_stops(self, store: Browse) -> None:
        await self.begin(store, 1)
        taken = WaitOpened(uid(1), 1, "k1", "completion", "completion", "s")
        opened = ("key.opened", "main", uid(1), {"key_id": "k1", "kind": "completion", "name": "completion"})
        assert await self.since(store, taken) == [opened]
        assert await self.since(store, taken) == [], "it is the same key"
        ended = await self.since(store, await self.ending(store, uid(1)))
        stop = of(1, "stopped", ok=True, ended_by="self", code=None)
        assert ended == [stop, ("key.resolved", "main", uid(1), {"key_id": "k1", "status": "ok"})]

        of_two, key_id = await self.park(store, 2, Parking(deadline=NOON + 9))
        assert told(await store.events(EventQuery(uid=of_two)))[-1] == of(2, "parked", deadline=NOON + 9)
        _, last = await store.events_range()
        await self.resolve(store, key_id)
        await self.resolve(store, key_id)
        resolved, stopped, queued = await store.events(EventQuery(after=last))
        assert resolved.data == {"key_id": key_id, "status": "ok"} and resolved.uid == of_two
        assert (stopped.type, queued.type, queued.data["kind"]) == (
            "handle.stopped",
            "notification.queued",
            "tool.stopped",
        )

    async def check_D5_revoked_keys(self, store: Browse) -> None:
        await self.begin(store, 1)
        await self.commit(store, WaitOpened(uid(1), 1, "k1", "event", "go", "s"))
        parked, key_id = await self.park(store, 2)
        revoked = await self.since(store, Revoked("main", NOON))
        assert revoked[0] == ("key.revoked", "main", uid(1), {"key_id": "k1"})
        assert [each[:3:2] for each in revoked[1:]] == [
            ("key.revoked", parked), ("handle.stopped", parked), ("notification.queued", parked),
        ]  # fmt: skip
        assert revoked[1][3] == {"key_id": key_id}

    async def check_D10_what_is_parked_from_the_start(self, store: Browse) -> None:
        terms = Parking(deadline=NOON + 1)
        begun = await self.since(store, Registered(record(1, parking=terms)))
        assert [each[0] for each in begun] == ["handle.created", "handle.parked"]
        stopped = Stopped(NOON, None, NOON, Ok(1))
        begun = await self.since(store, Registered(record(2, state=stopped)))
        assert [each[0] for each in begun] == ["handle.created", "handle.stopped"]
        assert begun[0][3]["state"] == "stopped"

    async def check_T1_turns_and_what_is_said(self, store: Browse) -> None:
        began = ("turn.began", "main", None, {"turn": "t1"})
        assert await self.since(store, TurnBegan("main", "t1", NOON)) == [began]
        other = await self.since(store, TurnBegan("main", "t2", NOON, was="t1"))
        assert other == [("turn.ended", "main", None, {"turn": "t1"}), ("turn.began", "main", None, {"turn": "t2"})]
        assert await self.since(store, TurnEnded("main", "t1", NOON)) == [], "it is not open"
        ended = await self.since(store, TurnEnded("main", "t2", NOON))
        assert ended == [("turn.ended", "main", None, {"turn": "t2"})]
        lines = await self.since(store, TranscriptAppended("main", "t2", NOON, (("user", b"1"), ("model", b"2"))))
        assert [(type, data) for type, *_, data in lines] == [
            ("conversation.said", {"line": 1, "kind": "user"}), ("conversation.said", {"line": 2, "kind": "model"}),
        ]  # fmt: skip
        assert await self.since(store, Forgotten("main")) == [("conversation.forgotten", "main", None, {})]
        assert await self.since(store, Forgotten("main")) == []

    async def check_N3_notifications_are_queued_and_removed(self, store: Browse) -> None:
        await self.begin(store, 1)
        change = await self.ending(store, uid(1), notice=Notice("tool.stopped", "info", None))
        stopped, queued = await self.since(store, change)
        (row,) = await store.notifications("main")
        data = {"number": row.number, "kind": "tool.stopped", "level": "info", "message": row.message}
        assert stopped[0] == "handle.stopped" and queued == ("notification.queued", "main", uid(1), data)
        shown = await self.since(store, TakenBack("main", ((uid(1), "stopped"), (uid(2), "running"))))
        assert shown == [("notification.removed", "main", uid(1), {**data, "by": "shown"})]

        content = Notified("main", "tool.content", "info", "first", NOON, uid(2))
        (first,) = await self.since(store, content)
        (renewed,) = await self.since(store, Notified("main", "tool.content", "info", "second", NOON, uid(2)))
        assert renewed[3] == {**first[3], "message": "second"}, "the same one with another message"
        (delivered,) = await self.since(store, Delivered("main", "turn"))
        assert delivered == ("notification.delivered", "main", uid(2), {**renewed[3], "carrier": "turn"})
        await self.commit(store, Notified("main", "k.n", "info", "x", NOON))
        carried = await self.since(store, Responded("main", "t", 1, (), (), (), ("response",)))
        assert [(type, data["carrier"]) for type, *_, data in carried] == [("notification.delivered", "response")]
        handed = QueuedNotification(0, "main", "tool.stopped", "info", "x", NOON, uid(3))
        (given,) = await self.since(store, HandedOut("main", (handed,)))
        assert given[0] == "notification.delivered" and given[3]["carrier"] == "message"

    async def check_N6_notifications_that_are_dropped_or_expire(self, store: Browse) -> None:
        for number in range(NOTIFICATION_LIMIT):
            await self.commit(store, Notified("main", "k.n", "info", str(number), NOON))
        queued, dropped = await self.since(store, Notified("main", "k.n", "info", "new", NOON))
        assert (queued[0], queued[3]["message"]) == ("notification.queued", "new")
        assert (dropped[0], dropped[3]["message"], dropped[3]["by"]) == ("notification.removed", "0", "dropped")
        await self.begin(store, 1, conversation="other")
        await self.commit(store, await self.ending(store, uid(1), notice=Notice("tool.stopped", "info", "x")))
        expired = await self.since(store, Collected(NOON + DAY, NOON + DAY))
        assert [(type, conversation, data["by"]) for type, conversation, _, data in expired] == [
            ("notification.removed", "other", "expired")
        ]

    async def check_N3_what_may_not_have_arrived_is_queued_again(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON), Notified("main", "k.n", "info", "x", NOON))
        await self.commit(store, Delivered("main", "message"))
        again = await self.since(store, TurnBegan("main", "t2", NOON, was="t1"))
        assert [each[0] for each in again] == ["turn.ended", "turn.began", "notification.queued"]

    async def check_R4_what_is_refused_leaves_no_event(self, store: Browse) -> None:
        await self.begin(store, 1)
        taken = Registered(record(9, id="h1"))
        before = await store.events_range()
        both = (Registered(record(2)), Notified("main", "k.n", "info", "x", NOON), TurnBegan("main", "t", NOON))
        await self.refused(store, "batch_rejected", *both, taken)
        await self.refused(store, "batch_rejected", taken)
        assert await store.events_range() == before
        # Several at once, one of them refused: the others' events are there, in their order.
        answers: list[Any] = []
        for ops in ((Registered(record(3)),), (Registered(record(4)), taken), (Registered(record(5)),)):
            store.commit(ops, answers.append, answers.append)
        await self.commit(store)
        assert len(answers) == 3
        assert [event.uid for event in await store.events(EventQuery(after=before[1]))] == [uid(3), uid(5)]

    async def check_L1_listeners_are_called(self, store: Browse) -> None:
        calls: list[int] = []
        store.on_commit.add(lambda: calls.append(1))
        await self.commit(store, Registered(record(1)))
        assert calls == [1]
        await self.commit(store)
        await self.refused(store, "batch_rejected", Registered(record(1)))
        assert calls == [1], "nothing has happened"
        await self.commit(store, Registered(record(2)), Registered(record(3)))
        assert calls == [1, 1]

    async def lively(self, store: Browse) -> list[StoredEvent]:
        """Return events of two conversations, with notifications among them."""
        for number in range(20):
            await self.begin(store, number, conversation=("main", "other")[number % 2])
            if number % 3 == 0:
                await self.commit(store, Notified(("main", "other")[number % 2], "k.n", "info", "x", NOON, uid(number)))
        return await store.events()

    async def check_L1_reading_continues_anywhere(self, store: Browse) -> None:
        events = await self.lively(store)
        first, last = await store.events_range()
        assert [event.seq for event in events] == list(range(first, last + 1)) and len(events) == 47
        for place in range(last + 2):
            assert await store.events(EventQuery(after=place)) == events[place:]
            assert await store.events(EventQuery(after=place, limit=3)) == events[place : place + 3]
            assert await store.events(EventQuery(before=place)) == events[: max(place - 1, 0)]
        assert await store.events(EventQuery(newest=True)) == events[::-1]
        assert await store.events(EventQuery(newest=True, before=10, limit=4)) == events[8:4:-1]
        assert await store.events(EventQuery(after=5, newest=True, before=10)) == events[8:4:-1]
        assert all(isinstance(event.at, float) and event.at > 0 for event in events)

    async def check_L1_reading_some_of_them(self, store: Browse) -> None:
        events = await self.lively(store)
        for of_one in (uid(0), uid(3), uid(77)):
            wanted = [event for event in events if event.uid == of_one]
            assert await store.events(EventQuery(uid=of_one)) == wanted
            assert await store.events(EventQuery(uid=of_one, newest=True, limit=1)) == wanted[-1:]
        for conversation in ("main", "other", "nowhere"):
            within = [event for event in events if event.conversation == conversation]
            about = [event for event in within if event.type.startswith("notification.")]
            assert await store.events(EventQuery(conversation=conversation)) == within
            assert await store.events(EventQuery(conversation=conversation, notifications=True)) == about
            assert (
                await store.events(EventQuery(conversation=conversation, notifications=True, newest=True, limit=2))
                == about[:-3:-1]
            )
        assert await store.events(EventQuery(notifications=True)) == [
            event for event in events if event.type == "notification.queued"
        ]
        assert (
            await store.events(EventQuery(after=30, notifications=True, limit=2))
            == [e for e in events[30:] if e.type == "notification.queued"][:2]
        )

    async def check_S5_old_events_go_and_numbers_are_not_used_again(self, store: Browse) -> None:
        events = await self.lively(store)
        await self.commit(store, Collected(NOON, NOON))
        assert await store.events_range() == (1, len(events)), "nothing is that old"
        await self.commit(store, Collected(FAR, FAR, conversation="main"), Collected(FAR, FAR, kinds=("hook",)))
        assert await store.events_range() == (1, len(events)), "that is about handles alone"
        await self.commit(store, Collected(FAR, FAR, limit=2))
        assert await store.events_range() == (21, len(events)), "some at a time, the oldest first"
        assert await store.events() == events[20:]
        await self.commit(store, Collected(FAR, FAR))
        assert await store.events_range() == (len(events), len(events)) and await store.events() == events[-1:]
        await self.begin(store, 50, start=False)
        assert [event.seq for event in await store.events()] == [len(events), len(events) + 1]

    @shared
    async def check_L1_two_processes_have_one_order(self, store: Browse) -> None:
        other = await self.second(store)
        both = ((store, 0), (other, 1000))

        async def work(which: Browse, base: int) -> None:
            for number in range(base, base + 25):
                await self.begin(which, number)
                await self.end(which, uid(number))

        await asyncio.gather(*(work(which, base) for which, base in both))
        events = await store.events()
        assert events == await other.events() and await store.events_range() == await other.events_range() == (1, 150)
        assert [event.seq for event in events] == list(range(1, 151))
        for _, base in both:
            mine = [event.uid for event in events if event.uid is not None and uid(base) <= event.uid < uid(base + 500)]
            assert mine == [uid(number) for number in range(base, base + 25) for _ in range(3)]

    @shared
    async def check_L1_events_outlive_the_process_and_are_heard(self, store: Browse) -> None:
        other = await self.second(store)
        await self.begin(store, 1)
        await self.word(other, uid(1))
        self.heard[id(other)].clear()
        await self.commit(store, Journaled(uid(1), 1, "step", "a", b"", b"1"))
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.word(other, "main")
        events = await other.events()
        again = await self.reopened(store)
        assert await again.events() == events
        await self.commit(again, TurnEnded("main", "t1", NOON))
        assert (await again.events())[-1].seq == events[-1].seq + 1
