"""Checks of `commit` itself: all or nothing, in order, called back once, on the loop's thread."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from keephold.handles.state import Ended, Ok, PendingState, Progress, Running, Started, transition
from keephold.store.base import (
    Allowed,
    Annotated,
    Attempted,
    Browse,
    Changed,
    Claimed,
    Collected,
    Delivered,
    Described,
    Emitted,
    Exposed,
    Forgotten,
    HandedOut,
    HandleQuery,
    HookCalled,
    Inquired,
    Journaled,
    KeptOutput,
    Notice,
    Notified,
    Op,
    Opened,
    Parked,
    Parking,
    Posted,
    QueuedNotification,
    Readied,
    Registered,
    Released,
    Replied,
    RequestClosed,
    Requested,
    Resolution,
    Resolved,
    Responded,
    Revoked,
    Rewritten,
    SecretAdded,
    TakenBack,
    TakenDown,
    TranscriptAppended,
    TurnBegan,
    TurnEnded,
    WaitOpened,
    Wrote,
)
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, shared, state_tag, uid


class CommitChecks(Suite):
    """Checks for any list of operations."""

    async def check_commit_without_operations_is_a_barrier(self, store: Browse) -> None:
        order: list[str] = []
        done = asyncio.Event()

        def last(results: Any) -> None:
            order.append("barrier")
            assert list(results) == [], results
            done.set()

        store.commit([Registered(record(1))], lambda _: order.append("first"), _unexpected)
        store.commit([], last, _unexpected)
        await done.wait()
        assert order == ["first", "barrier"], order
        assert await store.handle(uid(1)) is not None

    async def check_commit_calls_back_in_the_order_given(self, store: Browse) -> None:
        """Also across refusals and barriers, and each exactly once."""
        order: list[tuple[int, bool]] = []
        expected = []
        for number in range(50):
            wrong = number % 5 == 3
            ops: list[Op] = [] if number % 7 == 6 else [Registered(record(number, id="x" if wrong else f"h{number}"))]
            if number == 0:
                ops = [Registered(record(1000, id="x"))]
            expected.append((number, bool(ops) and wrong))
            store.commit(ops, _note(order, number, False), _note(order, number, True))
        await self.commit(store)
        assert order == expected, order

    async def check_commit_calls_back_on_the_thread_of_the_loop(self, store: Browse) -> None:
        threads: list[int] = []
        store.commit([Registered(record(1))], lambda _: threads.append(threading.get_ident()), _unexpected)
        store.commit([Registered(record(1))], _unexpected, lambda _: threads.append(threading.get_ident()))
        await self.commit(store)
        assert threads == [threading.get_ident()] * 2, threads

    async def check_commit_may_be_called_from_a_callback(self, store: Browse) -> None:
        order: list[str] = []
        finished = asyncio.Event()

        def inner(_: Any) -> None:
            order.append("inner")
            finished.set()

        def outer(_: Any) -> None:
            store.commit([Registered(record(2))], inner, _unexpected)
            order.append("outer")

        store.commit([Registered(record(1))], outer, _unexpected)
        await finished.wait()
        assert sorted(order) == ["inner", "outer"]
        assert await store.handle(uid(1)) is not None and await store.handle(uid(2)) is not None

    async def check_commit_is_readable_when_it_calls_back(self, store: Browse) -> None:
        seen: list[asyncio.Task[Any]] = []
        new = record(1)
        store.commit(
            [Registered(new)], lambda _: seen.append(asyncio.ensure_future(store.handle(new.uid))), _unexpected
        )
        await self.commit(store)
        found = await seen[0]
        assert found is not None and found.uid == new.uid

    async def check_commit_with_keep_is_a_commit(self, store: Browse) -> None:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store.commit([Registered(record(1))], answer.set_result, answer.set_exception, keep=True)
        await answer
        refusal: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store.commit([Registered(record(2, id="h1"))], _unexpected, refusal.set_result, keep=True)
        assert (await refusal).code == "batch_rejected"

    async def check_commit_of_several_sees_its_own_earlier_ones(self, store: Browse) -> None:
        """One commit may register a handle, end it and use its id again."""
        first, second = record(1, id="x"), record(2, id="x")
        start, end = Started(NOON + 1), Ended(NOON + 2, Ok("a"))
        running = transition(first.state, start)
        await self.commit(
            store,
            Registered(first),
            Changed(first.uid, 1, start, running),
            Changed(first.uid, 1, end, transition(running, end)),
            Registered(second),
        )
        assert state_tag((await self.found(store, uid(1))).state) == "stopped"
        assert isinstance((await self.found(store, uid(2))).state, PendingState)

    async def check_R4_a_refused_list_leaves_nothing_behind(self, store: Browse) -> None:
        """Everything before the refused operation is undone, of any kind."""
        await self._furnish(store)
        wrong = Registered(record(99, id="h1"))
        before = await self.dump(store)
        for number, op in enumerate(await self._one_of_each(store)):
            for ops in ([op, wrong], [wrong, op], [op, Emitted("p", "t", 1, NOON), wrong]):
                await self.refused(store, None, *ops)
            assert await self.dump(store) == before, (number, op)
        await self.refused(store, "batch_rejected", *await self._one_of_each(store), Registered(record(99, id="h50")))
        assert await store.process_events("p") == []
        assert await store.secret("new") is None
        assert await store.reply("r1") is None
        assert await store.wait("key-new") is None
        assert await self.commit(store, TurnEnded("main", "turn-1", NOON), Collected(NOON + DAY, NOON + DAY)) == [
            True,
            0,
        ]

    async def check_every_operation_can_be_committed_at_once(self, store: Browse) -> None:
        await self._furnish(store)
        ops = await self._one_of_each(store)
        results = await self.commit(store, *ops)
        assert len(results) == len(ops)

    @shared
    async def check_R4_close_writes_what_was_given(self, store: Browse) -> None:
        called: list[int] = []
        for number in range(200):
            store.commit([Registered(record(number))], _note(called, number), _unexpected)
        await store.close()
        assert called == list(range(200)), called
        later = await self.reopened(store)
        assert len(await later.handles(HandleQuery(limit=1000))) == 200

    async def _furnish(self, store: Browse) -> None:
        """Return operations that make something of everything."""
        await self.commit(store, TurnBegan("main", "turn-1", NOON), SecretAdded("secret-1", b"s" * 32, NOON))
        await self.commit(store, Opened("main", "turn-1", 1, (("a", "deploy", {}, uid(1)),)))
        await self.begin(store, 1)
        await self.begin(store, 2, stateful=False)
        await self.park(store, 3, Parking(deadline=NOON + DAY), resources=("file:a",))
        await self.park(store, 4, Parking(hook=True))
        await self.end(store, uid(4), ended_by="abort")
        await self.park(store, 5, Parking(hold=True))
        await self.begin(store, 6)
        await self.begin(store, 7)
        await self.take_key(store, await self.begin(store, 8))
        await self.commit(
            store,
            Journaled(uid(1), 1, "step", "bad", b"d", b"{}", ok=False),
            Notified("main", "tool.waiting", "warning", "`h1` waits", NOON, uid(1)),
            Requested("r1", uid(1), store.owner, b"abort"),
            Requested("r2", uid(1), store.owner, b"abort"),
            Posted("p1", "prompt", NOON, b"x"),
        )

    async def _one_of_each(self, store: Browse) -> list[Op]:
        """Return every operation once, in a legal order; each has an effect on what `_furnish` made."""
        end = Ended(NOON + 9, Ok("x"))
        queued = QueuedNotification(1, "main", "tool.stopped", "info", "y", NOON)
        return [
            Registered(record(50)),
            Registered(record(51, conversation="new", parking=Parking(deadline=NOON + DAY), resources=("file:b",))),
            Annotated(uid(1), Progress(1), 2, {"who": "me"}),
            Wrote(uid(1), 1, KeptOutput(1, 0, 1)),
            HandedOut("main", (queued,)),
            TranscriptAppended("main", "turn-1", NOON, (("user", b"{}"),)),
            Described("new", NOON, {"title": "x"}),
            Forgotten("main"),
            TurnBegan("newer", "turn-1", NOON),
            Inquired("b.q.1", "newer", "turn-1", None, NOON, {"ask": 1}, True),
            Notified("newest", "tool.stopped", "info", "first", NOON),
            Attempted(uid(1), 1, 2, NOON + 5),
            Readied(uid(1), 1),
            Journaled(uid(1), 1, "step", "good", b"\0", b"1"),
            Rewritten(uid(1), 1, {"env": "elsewhere"}, allowed=Allowed("detached")),
            WaitOpened(uid(1), 1, "key-new", "completion", "completion", "secret-1", Parking()),
            Parked(uid(1), 1, Parking(deadline=NOON + 2 * DAY), NOON + 6),
            Claimed(uid(7), store.owner),
            Parked(uid(8), 1, Parking(deadline=NOON + 2 * DAY), NOON + 6),
            Changed(uid(6), 1, end, transition(Running(NOON, NOON + 1), end), None, Notice("k.n", "info", "x")),
            Exposed(uid(2), "call:label2"),
            Released(uid(2), 1),
            Claimed(uid(2), None),
            Resolved(f"key-{uid(3)}", Resolution("ok", 1), NOON + 7),
            Resolved(f"key-{uid(5)}", Resolution("ok", 1), NOON + 7),
            HookCalled(uid(4)),
            Revoked("main", NOON + 8),
            Emitted(uid(1), "progress", {"n": 1}, NOON),
            Notified("main", "tool.stopped", "info", "more", NOON, uid(6)),
            TakenBack("main", ((uid(1), "waiting"),)),
            Responded("main", "turn-1", 1, (("a", "r", "m", False, None),), ((uid(1), 7),), ((uid(4), "stopped"),)),
            Notified("main", "tool.stopped", "info", "more", NOON, None, ("response",)),
            Responded("main", "turn-1", 1, (("a", "r", "m", False, None),), (), (), ("response",)),
            Notified("main", "tool.stopped", "info", "more", NOON, None, ("turn",)),
            Delivered("main", "turn"),
            Inquired("a.q.1", "main", "turn-1", uid(1), NOON, {"ask": 1}, True),
            Requested("r3", uid(1), store.owner, b"apply"),
            Replied("r1", b"done"),
            RequestClosed("r2"),
            Posted("p2", "standing", NOON, b"x"),
            TakenDown(("p1",)),
            SecretAdded("new", b"n" * 32, NOON),
            TurnEnded("main", "turn-1", NOON + 9),
            TurnBegan("main", "turn-2", NOON + 9),
            Opened("main", "turn-2", 1, ()),
        ]


def _note(into: list[Any], *what: Any) -> Callable[[Any], None]:
    return lambda _: into.append(what[0] if len(what) == 1 else what)


def _unexpected(what: Any) -> None:
    raise AssertionError(f"should not have been called: {what!r}")
