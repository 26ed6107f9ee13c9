"""The feed: whoever listens hears every event once, in order, or is told that some are gone."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import START, stored_in
from tests.patience import PATIENCE

from keephold import KeepholdError, Runtime
from keephold.control import feed as feeding
from keephold.control.feed import Announcement, Feed, FeedItem
from keephold.store.base import Collected, Emitted, EventQuery, Registered, StoredEvent, browsable
from keephold.testing.conformance.suite import record, uid

PLACES = ("main", "other")
Stores = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little room that every way of being served is gone in a short test; no pauses."""
    monkeypatch.setattr(feeding, "_RING", 7)
    monkeypatch.setattr(feeding, "_PAGE", 5)
    monkeypatch.setattr(feeding, "PAUSE", 0.0)


class Heard:
    """Somebody who listens, at a pace of their own, and keeps what they hear; None stands where a reset was."""

    def __init__(self, feed: Feed, after: int | None, pace: int = 0, **only: str) -> None:
        self.events: list[StoredEvent | None] = []
        self.passing: list[bytes] = []
        self.only = only
        self._pace = pace
        self._feed, self._after = feed, after
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for group in self._feed.listen(self._after, **self.only):
            assert group is None or group, "an empty group says nothing"
            for each in (None,) if group is None else group:
                if isinstance(each, Announcement):
                    self.passing.append(each.block)
                else:
                    self.events.append(None if each is None else _checked(each))
            self._news.set()
            for _ in range(self._pace):
                await asyncio.sleep(0)

    @property
    def numbers(self) -> list[int]:
        return [event.seq for event in self.events if event is not None]

    async def until(self, number: int) -> None:
        """Until the event of that number, or a later one, was heard."""
        async with asyncio.timeout(PATIENCE):
            while not self.numbers or self.numbers[-1] < number:
                self._news.clear()
                await self._news.wait()

    def wants(self, event: StoredEvent) -> bool:
        return all(getattr(event, name) == value for name, value in self.only.items())

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def _checked(told: FeedItem) -> StoredEvent:
    assert told.block.startswith(b"id: %d\nevent: %s\ndata: {" % (told.event.seq, told.event.type.encode()))
    assert told.block.endswith(b"}\n\n") and told.block.count(b"\n") == 4
    return told.event


class Log:
    """Writes events, one a commit or several, and knows all that were ever written."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.all: list[StoredEvent] = []

    async def begin(self) -> None:
        ops = (Registered(record(at, conversation=place)) for at, place in enumerate(PLACES, 1))
        await self.runtime.registry.write(tuple(ops))
        await self.note()

    async def write(self, count: int = 1, process: int = 1) -> None:
        await self.runtime.registry.write(tuple(Emitted(uid(process), "built", {}, START) for _ in range(count)))
        await self.note()

    async def note(self) -> None:
        """Read what is new, as often as it takes."""
        store = browsable(self.runtime.registry.store)
        self.all += await store.events(EventQuery(after=self.all[-1].seq if self.all else 0, limit=10_000))

    async def collect(self) -> None:
        """Let everything go that is older than the newest."""
        await self.runtime.registry.write((Collected(self.all[-1].at, START),))

    @property
    def last(self) -> int:
        return self.all[-1].seq


@asynccontextmanager
async def fed(kind: str, directory: Path) -> AsyncIterator[tuple[Feed, Log]]:
    store = "memory:" if kind == "memory" else stored_in(directory)
    async with Runtime(store=store) as rt:
        feed, log = Feed(rt), Log(rt)
        await feed.open()
        await log.begin()
        try:
            yield feed, log
        finally:
            feed.close()


def expected(log: Log, heard: Heard, after: int) -> list[int]:
    return [event.seq for event in log.all if event.seq > after and heard.wants(event)]


def without_a_gap(log: Log, heard: Heard, after: int) -> None:
    """Everything was heard once and in order; where something is left out, a reset stands."""
    known = {event.seq: event for event in log.all}
    place, reset = after, False
    for event in heard.events:
        if event is None:
            reset = True
            continue
        assert event == known[event.seq] and event.seq > place
        missed = [each for each in range(place + 1, event.seq) if heard.wants(known[each])]
        assert reset or not missed, f"{missed} went by without a word"
        place, reset = event.seq, False


@Stores
@pytest.mark.parametrize("seed", range(8))
async def test_L1_nothing_is_missed_or_told_twice_whatever_the_order(kind: str, seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    everyone: list[tuple[Heard, int]] = []
    async with fed(kind, tmp_path) as (feed, log):
        for _ in range(40):
            match luck.randrange(5):
                case 0 if len(everyone) < 12:
                    after = luck.randrange(log.last + 1)
                    only: dict[str, Any] = luck.choice([{}, {"conversation": "other"}, {"uid": uid(1)}])
                    everyone.append((Heard(feed, after, luck.choice([0, 0, 3, 30]), **only), after))
                case 1:
                    for _ in range(luck.randrange(4)):
                        await asyncio.sleep(0)
                case 2 if everyone and luck.random() < 0.3:
                    heard, after = everyone.pop(luck.randrange(len(everyone)))
                    await heard.leave()
                    without_a_gap(log, heard, after)
                case _:
                    await log.write(luck.choice([1, 1, 2, 9]), luck.choice([1, 2]))
        await log.write(process=1)
        await log.write(process=2)
        for heard, after in everyone:
            wanted = expected(log, heard, after)
            await heard.until(wanted[-1])
            assert heard.numbers == wanted and None not in heard.events
        assert feed.listeners == len(everyone) and feed.last == log.last
        feed.close()
        await asyncio.gather(*(heard.task for heard, _ in everyone))
        assert feed.listeners == 0


@Stores
@pytest.mark.parametrize("seed", range(5))
async def test_S5_what_is_collected_is_told_of_and_the_rest_is_complete(kind: str, seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    everyone: list[tuple[Heard, int]] = []
    async with fed(kind, tmp_path) as (feed, log):
        for _ in range(40):
            match luck.randrange(6):
                case 0 if len(everyone) < 8:
                    after = luck.randrange(log.last + 1)
                    everyone.append((Heard(feed, after, luck.choice([0, 20])), after))
                case 1:
                    await log.collect()
                case _:
                    await log.write(luck.choice([1, 9]), luck.choice([1, 2]))
        for heard, after in everyone:
            await heard.until(log.last)
            without_a_gap(log, heard, after)
        feed.close()
        await asyncio.gather(*(heard.task for heard, _ in everyone))


@Stores
async def test_S5_who_comes_back_for_what_is_gone_is_told_once_and_then_gets_the_rest(
    kind: str, tmp_path: Path
) -> None:
    async with fed(kind, tmp_path) as (feed, log):
        await log.write(20)
        await log.write()
        await log.collect()
        await log.write(2)
        first, last = await browsable(log.runtime.registry.store).events_range()
        assert first > 3
        heard, kept, just = Heard(feed, 2), Heard(feed, first), Heard(feed, first - 1)
        for each in (heard, kept, just):
            await each.until(last)
        assert heard.events[0] is None and heard.events.count(None) == 1
        assert heard.numbers == just.numbers == list(range(first, last + 1))
        assert kept.numbers == heard.numbers[1:] and None not in (*kept.events, *just.events)
        feed.close()
        await asyncio.gather(heard.task, kept.task, just.task)


@Stores
async def test_who_comes_back_from_another_store_is_told_so_and_hears_what_comes(kind: str, tmp_path: Path) -> None:
    async with fed(kind, tmp_path) as (feed, log):
        heard = Heard(feed, 1_000_000)
        while not heard.events:  # noqa: ASYNC110 (the reset)
            await asyncio.sleep(0)
        await log.write()
        await heard.until(log.last)
        assert heard.events == [None, log.all[-1]]
        await heard.leave()


@Stores
async def test_without_a_number_a_listener_hears_what_comes_and_nothing_else(kind: str, tmp_path: Path) -> None:
    async with fed(kind, tmp_path) as (feed, log):
        await log.write(30)  # nobody listens: this is read by nobody
        heard = Heard(feed, None)
        await until_listening(feed, 1)
        before = log.last
        await log.write(3)
        late = Heard(feed, None)
        await until_listening(feed, 2)
        await log.write(1)
        await heard.until(log.last)
        await late.until(log.last)
        assert heard.numbers == list(range(before + 1, log.last + 1)) and late.numbers == [log.last]
        await heard.leave()
        await log.write(20)
        await late.until(log.last)
        await late.leave()
        assert feed.listeners == 0


async def until_listening(feed: Feed, count: int) -> None:
    while feed.listeners < count:  # noqa: ASYNC110 (it is a step of the task that listens)
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_memory_store_that_was_not_read_for_long_says_that_events_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It notes so many operations and no more while nobody reads them: numbers then leap."""
    monkeypatch.setattr(feeding, "_PAGE", 1000)
    async with fed("memory", Path()) as (feed, log):
        early = Heard(feed, 0)
        await early.until(log.last)
        await early.leave()
        for _ in range(11):
            await log.runtime.registry.write(tuple(Emitted(uid(1), "built", {}, START) for _ in range(1000)))
        late = Heard(feed, early.numbers[-1])
        _, last = await browsable(log.runtime.registry.store).events_range()
        await late.until(last)
        assert late.events[0] is None and late.events.count(None) == 1
        assert late.numbers == list(range(late.numbers[0], last + 1))
        await late.leave()


@pytest.mark.parametrize("seed", range(3))
async def test_E6_two_processes_that_write_are_heard_in_one_order(seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    async with fed("sqlite", tmp_path) as (feed, log), Runtime(store=stored_in(tmp_path)) as other:
        after = log.last
        heard = [Heard(feed, after), Heard(feed, after, 5, conversation="other"), Heard(feed, 0)]
        for number in range(20):
            writer = luck.choice([log.runtime, other])
            await writer.registry.write((Emitted(uid(luck.choice([1, 2])), "built", {}, START + number),))
        await other.registry.write((Emitted(uid(2), "built", {}, START + 100),))
        await log.note()
        for each in heard:
            await each.until(log.last)
        assert heard[0].numbers == list(range(after + 1, log.last + 1))
        assert heard[1].numbers == expected(log, heard[1], after)
        assert heard[2].numbers == list(range(1, log.last + 1))
        for each in heard:
            await each.leave()


@Stores
async def test_closing_lets_everyone_go_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    async with fed(kind, tmp_path) as (feed, log):
        heard = [Heard(feed, None), Heard(feed, 0, pace=50), Heard(feed, 0, uid=uid(9))]
        await log.write(20)
        await asyncio.sleep(0)
        feed.close()
        feed.close()
        await asyncio.gather(*(each.task for each in heard))
        assert feed.listeners == 0 and not log.runtime.registry.store.on_commit
        assert feed.committed not in log.runtime.upkeep.on_heard
        await log.write(3)  # nobody is disturbed by it
        late = Heard(feed, 0)
        await late.task
        assert late.events == []
    # that no task is left is looked at after every test


async def test_what_passes_is_told_to_those_who_listen_once_and_the_newest_counts() -> None:
    async with fed("memory", Path()) as (feed, log):
        feed.announce("requests", {"open": 9})
        heard, filtered = Heard(feed, None), Heard(feed, None, uid=uid(2))
        await until_listening(feed, 2)
        for number in range(3):
            feed.announce("requests", {"open": number})
        feed.announce("other", {})
        await log.write()
        await heard.until(log.last)
        for each in (heard, filtered):
            assert each.passing == [b'event: requests\ndata: {"open":2}\n\n', b"event: other\ndata: {}\n\n"]
            await each.leave()


async def test_a_store_that_cannot_be_read_for_a_moment_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fed("memory", Path()) as (feed, log):
        heard, store = Heard(feed, None), browsable(log.runtime.registry.store)
        await until_listening(feed, 1)
        before, real = log.last, store.events

        async def broken(*_: Any, **__: Any) -> list[StoredEvent]:
            raise KeepholdError("the disk is away", code="store_unavailable")

        monkeypatch.setattr(store, "events", broken)
        await log.runtime.registry.write((Emitted(uid(1), "built", {}, START),))
        for _ in range(5):
            await asyncio.sleep(0)
        monkeypatch.setattr(store, "events", real)
        log.runtime.upkeep.heard(None)  # as the sweep does
        await log.note()
        await heard.until(log.last)
        assert heard.numbers == list(range(before + 1, log.last + 1))
        await heard.leave()


@Stores
@pytest.mark.parametrize("only", [{}, {"conversation": "other"}, {"uid": uid(2)}])
async def test_K6_who_comes_back_after_long_lets_others_go_on(
    kind: str, only: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what they do not want is not encoded for them."""
    async with fed(kind, tmp_path) as (feed, log):
        for _ in range(10):
            await log.write(20)
        await log.write(process=2)
        passes, reads, encoded, real = 0, list[int](), list[StoredEvent](), feeding._item
        store = browsable(log.runtime.registry.store)
        events = store.events

        async def noted(*given: Any, **asked: Any) -> list[StoredEvent]:
            reads.append(passes)
            return await events(*given, **asked)

        def told(event: StoredEvent) -> FeedItem:
            encoded.append(event)
            return real(event)

        monkeypatch.setattr(store, "events", noted)
        monkeypatch.setattr(feeding, "_item", told)
        heard = Heard(feed, 0, **only)
        while not heard.numbers or heard.numbers[-1] < log.last:
            passes += 1
            await asyncio.sleep(0)
        assert heard.numbers == expected(log, heard, 0)
        assert max(reads.count(each) for each in reads) <= 3, "the feed's own reader and the listener, once or twice"
        behind = [event for event in encoded if event.seq <= log.last - 7]
        assert all(map(heard.wants, behind)), "of what is not in the ring only what is wanted is encoded"
        await heard.leave()


@Stores
async def test_two_feeds_of_one_store_both_hear_and_one_that_closes_leaves_the_other(kind: str, tmp_path: Path) -> None:
    async with fed(kind, tmp_path) as (first, log):
        second = Feed(log.runtime)
        await second.open()
        heard = [Heard(first, log.last), Heard(second, log.last)]
        await asyncio.sleep(0)
        await log.write(3)
        for each in heard:
            await each.until(log.last)
        second.close()
        await heard[1].task
        await log.write(2)
        await heard[0].until(log.last)
        await heard[0].leave()
