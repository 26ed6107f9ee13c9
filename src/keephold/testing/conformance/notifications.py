"""Checks of notifications: queued with the change they report, taken back when that is shown, delivered once, in order
and on their carriers, and dropped when the queue is full."""

from typing import Any

from keephold.handles.question import Question
from keephold.handles.state import Ended, Failure, Ok, QuestionAsked, Running, Waiting, transition
from keephold.store.base import (
    CARRIERS,
    NOTIFICATION_LIMIT,
    Answers,
    Browse,
    Carrier,
    Changed,
    Collected,
    Delivered,
    Inquired,
    Level,
    Notice,
    Notified,
    Op,
    Opened,
    QueuedNotification,
    Registered,
    Resolution,
    Responded,
    Shown,
    TakenBack,
    TurnBegan,
)
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, shared, uid

STOPPED = Notice("tool.stopped", "info", "`h1` (deploy) stopped.", ("message", "turn"))
QUESTION = Question(id="sure", text="Sure?")


def notified(number: int, level: Level = "info", kind: str = "k.n", of: str | None = None) -> Notified:
    return Notified("main", kind, level, str(number), NOON + number, of)


def messages(found: Any) -> list[str]:
    return [each.message for each in found]


class QueueChecks(Suite):
    """Queueing notifications, and taking them back."""

    async def check_N1_notifications_are_queued_in_order(self, store: Browse) -> None:
        for number in range(5):
            await self.commit(
                store,
                Notified("main", "tool.waiting", "warning", f"ü{number}", NOON + number, uid(number), ("turn",)),
                Notified("other", "custom.kind", "critical", "x", NOON),
            )
        queued = await store.notifications("main")
        assert messages(queued) == [f"ü{number}" for number in range(5)]
        assert [each.number for each in queued] == sorted({each.number for each in queued})
        first = queued[0]
        assert first == QueuedNotification(
            first.number, "main", "tool.waiting", "warning", "ü0", NOON, uid(0), ("turn",)
        ), first
        assert [(each.uid, each.carriers) for each in await store.notifications("other")] == [(None, CARRIERS)] * 5
        assert await store.notifications("main", limit=2) == queued[:2]
        assert await store.notifications("unheard of") == []

    async def check_N3_a_notification_is_queued_with_its_change(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        asked = QuestionAsked(NOON + 2, QUESTION)
        waiting = Waiting(NOON, NOON + 1, NOON + 2, QUESTION)
        await self.commit(store, Changed(of, 1, asked, waiting, notice=Notice("tool.waiting", "warning", "asks")))
        (question,) = await store.notifications("main")
        assert question == QueuedNotification(
            question.number, "main", "tool.waiting", "warning", "asks", NOON + 2, of
        ), question
        await self.commit(store, await self.ending(store, of, notice=STOPPED))
        _, end = await store.notifications("main")
        told = QueuedNotification(
            end.number, "main", STOPPED.kind, "info", STOPPED.message or "", NOON + 60, of, STOPPED.carriers
        )
        assert end == told, end
        assert await store.notifications("other") == []

    async def check_N1_a_notification_without_a_message_gets_that_of_the_state(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        asked, waiting = QuestionAsked(NOON + 2, QUESTION), Waiting(NOON, NOON + 1, NOON + 2, QUESTION)
        await self.commit(store, Changed(of, 1, asked, waiting, notice=Notice("tool.waiting", "warning", None)))
        await self.commit(store, await self.ending(store, of, notice=Notice("tool.stopped", "info", None)))
        asks, stops = await store.notifications("main")
        assert asks.message.endswith(f" asks: {QUESTION.text}"), asks
        assert stops.message.endswith(" stopped."), stops

    async def check_N3_no_change_no_notification(self, store: Browse) -> None:
        """A late operation notifies nothing, and neither does a commit that is refused."""
        of = await self.begin(store, 1)
        end = await self.ending(store, of, notice=STOPPED)
        stale = Changed(of, 7, end.event, end.state, notice=STOPPED)
        question = Changed(of, 7, QuestionAsked(NOON, QUESTION), Waiting(NOON, NOON, NOON, QUESTION), notice=STOPPED)
        for op in (stale, question):
            await self.refused(store, "lease_lost", op)
        await self.refused(store, "lease_lost", end, notified(1), stale)
        await self.commit(store, end)
        await self.refused(store, "already_stopped", end)
        assert messages(await store.notifications("main")) == [STOPPED.message]

    async def check_D9_the_end_of_a_parked_call_is_notified_once(self, store: Browse) -> None:
        """With its own message, or the store's."""
        said, _ = await self.park(store, 1)
        await self.commit(store, await self.ending(store, said, notice=STOPPED))
        (own,) = await store.notifications("main")
        assert (own.message, own.carriers) == (STOPPED.message, STOPPED.carriers), own
        unsaid, _ = await self.park(store, 2)
        await self.end(store, unsaid, Failure("no"))
        assert [(each.uid, each.kind) for each in await store.notifications("main")] == [
            (said, "tool.stopped"),
            (unsaid, "tool.failed"),
        ]
        assert (await store.notifications("main"))[1].carriers == CARRIERS

    async def check_N3_a_reply_takes_back_what_it_showed_and_no_more(self, store: Browse) -> None:
        kinds = ("tool.content", "tool.waiting", "tool.ready", "tool.stopped", "custom.kind")
        left: dict[Shown, tuple[str, ...]] = {
            "running": ("tool.waiting", "tool.ready", "tool.stopped", "custom.kind"),
            "waiting": ("tool.ready", "tool.stopped", "custom.kind"),
            "asked": ("tool.content", "tool.ready", "tool.stopped", "custom.kind"),
            "ready": ("tool.content", "tool.waiting", "tool.stopped", "custom.kind"),
            "stopped": (),
        }
        for respond in (False, True):
            for number, (shown, kept) in enumerate(left.items(), 1):
                of = uid(number)
                told = [Notified("main", kind, "info", kind, NOON, each) for kind in kinds for each in (of, uid(9))]
                await self.commit(store, *told, Notified("main", "k.n", "info", "of nobody", NOON))
                showed: tuple[tuple[str, Shown], ...] = ((of, shown), ("unheard of", "stopped"))
                wrong = TakenBack("other", ((of, "stopped"),))
                answered = Responded("main", "t1", 1, (), ((of, 5),), showed)
                await self.commit(store, wrong, answered if respond else TakenBack("main", showed))
                queued = await store.notifications("main")
                assert tuple(each.kind for each in queued if each.uid == of) == kept, (shown, queued)
                others = [each.kind for each in queued if each.uid != of]
                assert others == [*kinds, "k.n"], (shown, others)
                (gone,) = await self.commit(store, Delivered("main", "turn"))
                assert gone == tuple(queued)

    async def check_N6_what_a_handle_prints_is_one_line(self, store: Browse) -> None:
        await self.commit(store, Notified("main", "k.n", "info", "before", NOON))
        for first in range(0, 10_000, 1000):
            numbers = range(first, first + 1000)
            await self.commit(store, *(notified(number, kind="tool.content", of=uid(1)) for number in numbers))
        other = Notified("main", "tool.content", "info", "another's", NOON, uid(2))
        await self.commit(store, other, Notified("other", "tool.content", "info", "elsewhere", NOON, uid(1)))
        await self.commit(store, Notified("main", "tool.content", "info", "last", NOON + 5, uid(1)))
        before, content, another = await store.notifications("main")
        assert (before.message, another.message) == ("before", "another's")
        assert (content.message, content.at, content.uid) == ("last", NOON + 5, uid(1)), content
        assert before.number < content.number < another.number, "it keeps its number"
        assert len(await store.notifications("other")) == 1
        await self.commit(store, *(Notified("main", "tool.content", "info", "of nobody", NOON) for _ in range(2)))
        assert len(await store.notifications("main")) == 5
        await self.commit(store, Delivered("main", "turn"))
        await self.commit(store, notified(1, kind="tool.content", of=uid(1)))
        (new,) = await store.notifications("main")
        assert new.number > another.number

    async def check_N3_notifications_are_queued_and_removed_with_their_commit(self, store: Browse) -> None:
        """A refused commit that takes back, replaces, drops and delivers has done nothing of it."""
        for first in range(0, NOTIFICATION_LIMIT, 100):
            await self.commit(store, *(notified(number, of=uid(number % 7)) for number in range(first, first + 100)))
        await self.commit(
            store, Notified("main", "tool.content", "info", "old", NOON, uid(3)), Registered(record(99, id="x"))
        )
        wrong = Registered(record(98, id="x"))
        renewed = Notified("main", "tool.content", "info", "new", NOON, uid(3))
        one_more = notified(5, "warning")
        shown = TakenBack("main", ((uid(3), "running"), (uid(4), "stopped")))
        for ops in (
            [renewed],
            [one_more, one_more, one_more],
            [shown],
            [Delivered("main", "message")],
            [one_more, renewed, shown, one_more, Delivered("main", "turn"), renewed, one_more],
        ):
            await self.refused(store, "batch_rejected", *ops, wrong)
        line, *queued = await store.notifications("main")
        assert line.message == "1 earlier notification was dropped."
        await self.commit(store, one_more)
        line, *later = await store.notifications("main")
        assert line.message == "2 earlier notifications were dropped."
        assert later[:-1] == queued[1:], "the oldest goes, also after all that was taken back"

    async def check_N3_the_notifications_of_a_handle_are_deleted_with_it(self, store: Browse) -> None:
        for number in (1, 2):
            await self.begin(store, number)
            await self.commit(store, await self.ending(store, uid(number), notice=STOPPED, at=NOON + number))
        await self.commit(store, notified(7, of=uid(1)), notified(8))
        await self.commit(store, Collected(NOON + 2, NOON + DAY))
        assert [each.uid for each in await store.notifications("main")] == [uid(2), None]

    async def check_K6_no_character_is_a_reason_to_lose_an_end(self, store: Browse) -> None:
        """Databases refuse half of a surrogate pair, and some of them the character NUL."""
        strange = "ü \ud800\0 \U0001f600"
        of = await self.begin(store, 1)
        event = Ended(NOON + 2, Ok("x"))
        told = Notice("tool.failed", "error", strange)
        await self.commit(store, Changed(of, 1, event, transition(Running(NOON, NOON + 1), event), notice=told))
        inquired = Inquired("c.q.1", "main", "t1", of, NOON, {}, error=strange)
        await self.commit(store, inquired, Notified("main", "k.n", "info", strange, NOON))
        texts = [*messages(await store.notifications("main")), (await store.inquiries("main"))[0].error or ""]
        assert all(text.startswith("ü ") and text.endswith(" \U0001f600") for text in texts) and len(texts) == 3, texts


class DeliveryChecks(Suite):
    """Taking notifications off the queue."""

    async def fill(self, store: Browse, count: int, level: Level = "info", first: int = 0) -> None:
        for start in range(first, first + count, 200):
            stop = min(start + 200, first + count)
            await self.commit(store, *(notified(number, level) for number in range(start, stop)))

    async def deliver(self, store: Browse, carrier: Carrier = "turn") -> tuple[QueuedNotification, ...]:
        (delivered,) = await self.commit(store, Delivered("main", carrier))
        assert isinstance(delivered, tuple)
        return delivered

    async def check_N4_delivered_notifications_are_gone(self, store: Browse) -> None:
        await self.fill(store, 4)
        await self.commit(store, Notified("other", "k.n", "info", "other", NOON))
        queued = await store.notifications("main")
        assert await self.deliver(store) == tuple(queued)
        assert await store.notifications("main") == [] and await self.deliver(store) == ()
        assert await self.commit(store, Delivered("unheard of", "turn")) == [()]
        assert len(await store.notifications("other")) == 1
        await self.fill(store, 1)
        (last,) = await store.notifications("main")
        assert last.number > queued[-1].number, "a number is never used again"

    async def check_N4_notifications_ride_on_their_carriers_only(self, store: Browse) -> None:
        sets: list[tuple[Carrier, ...]] = [("response",), ("message",), ("turn",), ("message", "turn"), CARRIERS]
        for number, carriers in enumerate(sets):
            await self.commit(store, Notified("main", "k.n", "info", str(number), NOON, None, carriers))
        assert [each.carriers for each in await store.notifications("main")] == sets
        assert messages(await self.deliver(store, "response")) == ["0", "4"]
        assert messages(await self.deliver(store, "turn")) == ["2", "3"]
        assert messages(await self.deliver(store, "turn")) == []
        assert messages(await store.notifications("main")) == ["1"]
        assert messages(await self.deliver(store, "message")) == ["1"]

    async def check_N4_critical_notifications_come_first(self, store: Browse) -> None:
        levels: list[Level] = ["info", "error", "critical", "warning", "critical", "info"]
        for number, level in enumerate(levels):
            await self.commit(store, notified(number, level))
        assert messages(await store.notifications("main")) == ["0", "1", "2", "3", "4", "5"]
        assert messages(await self.deliver(store)) == ["2", "4", "0", "1", "3", "5"]

    async def check_N4_notifications_ride_on_a_response(self, store: Browse) -> None:
        """In its commit: notifications of what the response showed are taken back, the rest is delivered and kept with
        it."""
        await self.commit(store, TurnBegan("main", "t1", NOON), Opened("main", "t1", 1, ()))
        await self.commit(store, notified(1, of=uid(1)), notified(2, "critical"), notified(3, of=uid(3)))
        await self.commit(store, Notified("main", "k.n", "info", "4", NOON, None, ("turn",)))
        given = (("a", "10", "ten", False, None),)
        assert await self.commit(store, Responded("main", "t1", 1, given, ())) == [()], "nobody carries"
        assert len(await store.notifications("main")) == 4
        assert await store.answers("main", "t1", 1) == (Answers(given) if store.durable else None)
        await self.commit(store, Opened("main", "t1", 2, ()))
        shown: tuple[tuple[str, Shown], ...] = ((uid(3), "stopped"),)
        answered = Responded("main", "t1", 2, given, (), shown, ("response",))
        await self.refused(store, "turn_open", answered, TurnBegan("main", "t2", NOON))
        (delivered,) = await self.commit(store, answered)
        assert messages(delivered) == ["2", "1"], delivered
        assert messages(await store.notifications("main")) == ["4"]
        assert await store.answers("main", "t1", 2) == (Answers(given, delivered) if store.durable else None)
        both = Responded("main", "t1", 3, given, (), (), ("message", "turn"))
        (delivered,) = await self.commit(store, both)
        assert messages(delivered) == ["4"], "all that may ride on one of them"
        assert await self.commit(store, Responded("unheard of", "t1", 1, given, (), (), ("turn",))) == [()]

    async def check_N6_a_thousand_wait_and_a_line_says_how_many_went(self, store: Browse) -> None:
        await self.fill(store, NOTIFICATION_LIMIT)
        assert len(await store.notifications("main")) == NOTIFICATION_LIMIT, "that number may wait"
        await self.fill(store, 200, first=NOTIFICATION_LIMIT)
        await self.commit(store, Notified("other", "k.n", "info", "other", NOON))
        line, *queued = await store.notifications("main")
        said = "200 earlier notifications were dropped."
        assert line == QueuedNotification(0, "main", "keephold.dropped", "info", said, NOON + 1199), line
        assert messages(queued) == [str(number) for number in range(200, 1200)]
        assert messages(await store.notifications("other")) == ["other"]
        await self.commit(store, notified(1200, "critical"))
        critical, line, *rest = await self.deliver(store)
        assert (critical.message, line.message) == ("1200", "201 earlier notifications were dropped.")
        assert messages(rest) == [str(number) for number in range(201, 1200)]
        assert await store.notifications("main") == [], "the line is delivered, too"
        await self.fill(store, NOTIFICATION_LIMIT)
        assert messages(await store.notifications("main"))[0] == "0", "and begins again"
        await self.fill(store, 1, first=NOTIFICATION_LIMIT)
        assert messages(await store.notifications("main"))[:2] == ["1 earlier notification was dropped.", "1"]

    async def check_N6_the_less_it_matters_the_sooner_it_goes(self, store: Browse) -> None:
        levels: tuple[Level, ...] = ("critical", "error", "warning", "info")
        for number, level in enumerate(levels):
            await self.fill(store, NOTIFICATION_LIMIT // 4, level, first=number * NOTIFICATION_LIMIT // 4)
        for dropped, left in (
            (1, {"critical": 250, "error": 251, "warning": 250, "info": 249}),
            (250, {"critical": 250, "error": 500, "warning": 250, "info": 0}),
            (500, {"critical": 250, "error": 750, "warning": 0, "info": 0}),
            (750, {"critical": 250, "error": 750, "warning": 0, "info": 0}),
        ):
            line = (await store.notifications("main", 1))[0]
            done = int(line.message.split()[0]) if line.number == 0 else 0
            await self.fill(store, dropped - done, "error", first=NOTIFICATION_LIMIT + done)
            line, *queued = await store.notifications("main")
            assert line.message.startswith(f"{dropped} earlier "), line
            assert {level: sum(each.level == level for each in queued) for level in levels} == left
        oldest = min(each.number for each in queued if each.level == "error")
        assert oldest > max(each.number for each in queued if each.level == "critical") + 250, "the oldest went"
        await self.fill(store, NOTIFICATION_LIMIT, "critical")
        line, *queued = await store.notifications("main", 2 * NOTIFICATION_LIMIT)
        assert {each.level for each in queued} == {"critical"} and len(queued) == 1250, "these never go"
        await self.fill(store, 1, "info")
        line, *rest = await store.notifications("main", 2 * NOTIFICATION_LIMIT)
        assert rest == queued and line.message.startswith("1501 "), line

    async def check_N6_what_was_taken_back_makes_room(self, store: Browse) -> None:
        await self.begin(store, 1)
        await self.end(store, uid(1))
        for ops in (
            [TakenBack("main", ((uid(1), "stopped"),))],
            [TakenBack("main", ((uid(1), "running"),)), Responded("main", "t1", 1, (), (), ((uid(1), "waiting"),))],
            [Delivered("main", "message")],
            [Collected(NOON + DAY, NOON + DAY)],
        ):
            await self.fill(store, NOTIFICATION_LIMIT - 2)
            told: list[Op] = [
                Notified("main", kind, "info", kind, NOON, uid(1)) for kind in ("tool.content", "tool.waiting")
            ]
            await self.commit(store, *told)
            await self.commit(store, *ops)
            count = len(await store.notifications("main"))
            assert count in (0, NOTIFICATION_LIMIT - 2), (ops, count)
            await self.fill(store, NOTIFICATION_LIMIT - count, first=count)
            queued = await store.notifications("main")
            assert len(queued) == NOTIFICATION_LIMIT and queued[0].number > 0, (ops, queued[0])
            await self.deliver(store)

    async def check_N6_the_line_rides_on_anything_and_goes_alone(self, store: Browse) -> None:
        for number in range(NOTIFICATION_LIMIT + 2):
            await self.commit(store, Notified("main", "k.n", "info", str(number), NOON, None, ("turn",)))
        (line,) = await self.deliver(store, "response")
        assert line.message == "2 earlier notifications were dropped."
        assert messages(await store.notifications("main"))[0] == "2"
        await self.fill(store, 3, first=NOTIFICATION_LIMIT + 2)
        assert (await store.notifications("main"))[0].message == "3 earlier notifications were dropped."
        assert len(await self.deliver(store)) == NOTIFICATION_LIMIT + 1

    @shared
    async def check_N5_queued_notifications_are_delivered_after_a_crash(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON), Opened("main", "t1", 1, ()))
        await self.commit(store, notified(7, "error"))
        given = (("a", "10", "ten", False, None),)
        (carried,) = await self.commit(store, Responded("main", "t1", 1, given, (), (), ("response",)))
        await self.fill(store, NOTIFICATION_LIMIT + 5)
        of, _ = await self.park(store, 1)
        await self.resolve(store, f"key-{of}", Resolution("ok", 1))
        queued = await store.notifications("main")
        later = await self.reopened(store)
        assert await later.notifications("main") == queued
        assert queued[0].message == "6 earlier notifications were dropped." and queued[-1].uid == of
        assert await later.answers("main", "t1", 1) == Answers(given, carried), "it may not have arrived"
        await self.fill(later, 1)
        assert await self.deliver(later) != () and await self.deliver(later) == ()
        assert await (await self.reopened(later)).notifications("main") == []

    @shared
    async def check_N4_of_two_processes_one_delivers(self, store: Browse) -> None:
        other = await self.second(store)
        await self.fill(store, 5)
        await self.commit(other, notified(5))
        assert messages(await self.deliver(other)) == ["0", "1", "2", "3", "4", "5"]
        assert await self.deliver(store) == ()

    @shared
    async def check_N4_a_process_hears_of_notifications(self, store: Browse) -> None:
        """By its handle or, if it has none, by the conversation, where a turn may wait for a critical notification."""
        other = await self.second(store)
        of = await self.begin(store, 1)
        await self.word(other, of)
        for op, heard in (
            (Notified("main", "k.n", "info", "x", NOON, of), of),
            (await self.ending(store, of, notice=STOPPED), of),
            (Notified("a conversation", "k.n", "critical", "x", NOON), "a conversation"),
        ):
            self.heard[id(other)].clear()
            await self.commit(store, op)
            await self.word(other, heard)
