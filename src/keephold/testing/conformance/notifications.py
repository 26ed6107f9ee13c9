"""Checks of how news comes: with the change it tells of, until something shows it (N1–N3, N6)."""

# ruff: noqa: N802 - checks are named after the rules they prove

from typing import Any

from keephold.handles.question import Question
from keephold.handles.state import Asked, Ended, Error, Ok, Running, Waiting, transition
from keephold.store.base import (
    CARRIERS,
    NEWS_LIMIT,
    Changed,
    Collected,
    Delivered,
    Level,
    News,
    Notice,
    Notified,
    Registered,
    Responded,
    Shown,
    Store,
    TakenBack,
)
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, uid

STOPPED = Notice("tool.stopped", "info", "`h1` (deploy) stopped.", ("message", "turn"))
QUESTION = Question(id="sure", text="Sure?")


def notified(number: int, level: Level = "info", kind: str = "k.n", of: str | None = None) -> Notified:
    return Notified("main", kind, level, str(number), NOON + number, of)


def messages(news: Any) -> list[str]:
    return [each.message for each in news]


class Telling(Suite):
    """Putting news on the queue, and taking it back."""

    async def check_N1_news_is_queued_in_order(self, store: Store) -> None:
        for number in range(5):
            await self.commit(
                store,
                Notified("main", "tool.waiting", "warning", f"ü{number}", NOON + number, uid(number), ("turn",)),
                Notified("other", "custom.kind", "critical", "x", NOON),
            )
        queued = await store.news("main")
        assert messages(queued) == [f"ü{number}" for number in range(5)]
        assert [news.number for news in queued] == sorted({news.number for news in queued})
        first = queued[0]
        assert first == News(first.number, "main", "tool.waiting", "warning", "ü0", NOON, uid(0), ("turn",)), first
        assert [(news.uid, news.carriers) for news in await store.news("other")] == [(None, CARRIERS)] * 5
        assert await store.news("main", limit=2) == queued[:2]
        assert await store.news("unheard of") == []

    async def check_N3_news_is_queued_with_the_change_it_tells_of(self, store: Store) -> None:
        of = await self.begin(store, 1)
        asked = Asked(NOON + 2, QUESTION)
        waiting = Waiting(NOON, NOON + 1, NOON + 2, QUESTION)
        await self.commit(store, Changed(of, 1, asked, waiting, news=Notice("tool.waiting", "warning", "asks")))
        (question,) = await store.news("main")
        assert question == News(question.number, "main", "tool.waiting", "warning", "asks", NOON + 2, of), question
        await self.commit(store, await self.ending(store, of, news=STOPPED))
        _, end = await store.news("main")
        told = News(end.number, "main", STOPPED.kind, "info", STOPPED.message or "", NOON + 60, of, STOPPED.carriers)
        assert end == told, end
        assert await store.news("other") == []

    async def check_N1_news_without_words_gets_those_of_the_state(self, store: Store) -> None:
        of = await self.begin(store, 1)
        asked, waiting = Asked(NOON + 2, QUESTION), Waiting(NOON, NOON + 1, NOON + 2, QUESTION)
        await self.commit(store, Changed(of, 1, asked, waiting, news=Notice("tool.waiting", "warning", None)))
        await self.commit(store, await self.ending(store, of, news=Notice("tool.stopped", "info", None)))
        asks, stops = await store.news("main")
        assert asks.message.endswith(f" asks: {QUESTION.text}"), asks
        assert stops.message.endswith(" stopped."), stops

    async def check_N3_no_change_no_news(self, store: Store) -> None:
        """Whoever comes late tells nothing, and neither does a commit that is refused."""
        of = await self.begin(store, 1)
        end = await self.ending(store, of, news=STOPPED)
        stale = Changed(of, 7, end.event, end.state, news=STOPPED)
        question = Changed(of, 7, Asked(NOON, QUESTION), Waiting(NOON, NOON, NOON, QUESTION), news=STOPPED)
        for op in (stale, question):
            await self.refused(store, "lease_lost", op)
        await self.refused(store, "lease_lost", end, notified(1), stale)
        await self.commit(store, end)
        await self.refused(store, "already_stopped", end)
        assert messages(await store.news("main")) == [STOPPED.message]

    async def check_D9_the_end_of_a_parked_call_is_told_once(self, store: Store) -> None:
        """As it is said, or in words of the store's own."""
        said, _ = await self.park(store, 1)
        await self.commit(store, await self.ending(store, said, news=STOPPED))
        (own,) = await store.news("main")
        assert (own.message, own.carriers) == (STOPPED.message, STOPPED.carriers), own
        unsaid, _ = await self.park(store, 2)
        await self.end(store, unsaid, Error("no"))
        assert [(news.uid, news.kind) for news in await store.news("main")] == [
            (said, "tool.stopped"),
            (unsaid, "tool.failed"),
        ]
        assert (await store.news("main"))[1].carriers == CARRIERS

    async def check_N3_a_reply_takes_back_what_it_showed_and_no_more(self, store: Store) -> None:
        kinds = ("tool.content", "tool.waiting", "tool.stopped", "custom.kind")
        left: dict[Shown, tuple[str, ...]] = {
            "running": ("tool.waiting", "tool.stopped", "custom.kind"),
            "waiting": ("tool.stopped", "custom.kind"),
            "asked": ("tool.content", "tool.stopped", "custom.kind"),
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
                queued = await store.news("main")
                assert tuple(news.kind for news in queued if news.uid == of) == kept, (shown, queued)
                others = [news.kind for news in queued if news.uid != of]
                assert others == [*kinds, "k.n"], (shown, others)
                (gone,) = await self.commit(store, Delivered("main", "turn"))
                assert gone == tuple(queued)

    async def check_N6_what_a_handle_prints_is_one_line(self, store: Store) -> None:
        await self.commit(store, Notified("main", "k.n", "info", "before", NOON))
        for first in range(0, 10_000, 1000):
            numbers = range(first, first + 1000)
            await self.commit(store, *(notified(number, kind="tool.content", of=uid(1)) for number in numbers))
        other = Notified("main", "tool.content", "info", "another's", NOON, uid(2))
        await self.commit(store, other, Notified("other", "tool.content", "info", "elsewhere", NOON, uid(1)))
        await self.commit(store, Notified("main", "tool.content", "info", "last", NOON + 5, uid(1)))
        before, content, another = await store.news("main")
        assert (before.message, another.message) == ("before", "another's")
        assert (content.message, content.at, content.uid) == ("last", NOON + 5, uid(1)), content
        assert before.number < content.number < another.number, "it keeps its number"
        assert len(await store.news("other")) == 1
        await self.commit(store, *(Notified("main", "tool.content", "info", "of nobody", NOON) for _ in range(2)))
        assert len(await store.news("main")) == 5
        await self.commit(store, Delivered("main", "turn"))
        await self.commit(store, notified(1, kind="tool.content", of=uid(1)))
        (new,) = await store.news("main")
        assert new.number > another.number

    async def check_N3_news_comes_and_goes_with_its_commit(self, store: Store) -> None:
        """Also where a commit takes back, replaces, drops and delivers: refused, it has done nothing of it."""
        for first in range(0, NEWS_LIMIT, 100):
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
        line, *queued = await store.news("main")
        assert line.message == "1 earlier notification was dropped."
        await self.commit(store, one_more)
        line, *later = await store.news("main")
        assert line.message == "2 earlier notifications were dropped."
        assert later[:-1] == queued[1:], "the oldest goes, also after all that was taken back"

    async def check_N3_news_of_a_handle_goes_with_it(self, store: Store) -> None:
        for number in (1, 2):
            await self.begin(store, number)
            await self.commit(store, await self.ending(store, uid(number), news=STOPPED, at=NOON + number))
        await self.commit(store, notified(7, of=uid(1)), notified(8))
        await self.commit(store, Collected(NOON + 2, NOON + DAY))
        assert [news.uid for news in await store.news("main")] == [uid(2), None]

    async def check_K6_half_of_a_surrogate_pair_is_no_reason_to_lose_an_end(self, store: Store) -> None:
        of = await self.begin(store, 1)
        event = Ended(NOON + 2, Ok("x"))
        told = Notice("tool.failed", "error", "ü \ud800 \U0001f600")
        await self.commit(store, Changed(of, 1, event, transition(Running(NOON, NOON + 1), event), news=told))
        (news,) = await store.news("main")
        assert news.message.startswith("ü ") and news.message.endswith(" \U0001f600")
