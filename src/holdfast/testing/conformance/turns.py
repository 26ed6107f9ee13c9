"""Checks of what is not a handle: turns and their batches, news, process events, requests, secrets."""

# ruff: noqa: N802 - checks are named after the rules they prove

from typing import Any

from holdfast.store.base import (
    Delivered,
    Emitted,
    Notified,
    Opened,
    OpenTurn,
    ProcessEvent,
    Replied,
    Request,
    RequestClosed,
    Requested,
    Responded,
    SecretAdded,
    Store,
    TurnBegan,
    TurnEnded,
)
from holdfast.testing.conformance.handles import NESTED
from holdfast.testing.conformance.suite import NOON, Suite, uid


class Turns(Suite):
    """One open turn a conversation, one open batch in it."""

    async def check_B1_one_open_turn_a_conversation(self, store: Store) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        assert await store.turn("main") == OpenTurn("t1", store.owner, 0), await store.turn("main")
        for wrong in (
            TurnBegan("main", "t2", NOON),
            TurnBegan("main", "t1", NOON),
            TurnBegan("main", "t3", NOON, "t2"),
        ):
            await self.refused(store, "turn_open", wrong)
        await self.commit(store, TurnBegan("other", "t9", NOON))
        await self.refused(store, "turn_open", TurnEnded("other", "t9", NOON), TurnBegan("main", "t2", NOON))
        await self.commit(store, TurnEnded("main", "t9", NOON))
        assert await store.turn("main") is not None, "that was not its turn"
        await self.commit(store, TurnEnded("main", "t1", NOON))
        assert await store.turn("main") is None
        await self.commit(store, TurnEnded("main", "t1", NOON), TurnEnded("unheard of", "t1", NOON))
        await self.refused(store, "turn_open", TurnBegan("main", "t1", NOON, "t1"))
        await self.commit(store, TurnBegan("main", "t2", NOON))
        await self.commit(store, TurnEnded("main", "t2", NOON), TurnBegan("main", "t3", NOON))
        turn = await store.turn("main")
        assert turn is not None and turn.turn == "t3"

    async def check_B9_of_two_who_resume_a_turn_one_is_first(self, store: Store) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.refused(store, "turn_open", TurnBegan("main", "t1", NOON, "t1", "another"))
        await self.refused(store, "turn_open", TurnBegan("main", "t2", NOON, "t1", "another"))
        await self.commit(store, TurnBegan("main", "t1", NOON, "t1", store.owner))

    async def check_R4_what_was_answered_can_be_read_if_anything_survives(self, store: Store) -> None:
        given = (("a", "10", "ten", False, None), ("ü", "no", "no", True, "tool_error"))
        await self.commit(store, TurnBegan("main", "t1", NOON), Opened("main", "t1", 1, ()))
        assert await store.answers("main", "t1", 1) is None
        await self.commit(store, Responded("main", "t1", 1, given, ()))
        assert await store.answers("main", "t1", 1) == (given if store.durable else None)
        assert await store.answers("main", "t1", 2) is None

    async def check_B9_the_open_batch_comes_back_exactly(self, store: Store) -> None:
        calls: tuple[tuple[str, str, dict[str, Any] | str, str | None], ...] = (
            ("a", "deploy", NESTED, uid(1)),
            ("b", "deploy", '{"env": "not  normalised" }', None),
            ("ü", "nothing", "{not json", None),
            ("", "", {}, uid(2)),
            ("big", "deploy", {"text": "ü" * (1 << 19)}, None),
        )
        opened = Opened("main", "t1", 1, calls)
        await self.commit(store, TurnBegan("main", "t1", NOON), opened)
        turn = await store.turn("main")
        assert turn == OpenTurn("t1", store.owner, 1, opened)
        assert turn is not None and turn.batch is not None
        assert [type(arguments) for _, _, arguments, _ in turn.batch.calls] == [dict, str, str, dict, dict]

    async def check_B9_an_answered_batch_is_not_open(self, store: Store) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        for number in (1, 2):
            opened = Opened("main", "t1", number, (("a", "deploy", {}, None),))
            await self.commit(store, opened)
            await self.commit(
                store, Responded("main", "t0", number, (), ()), Responded("main", "t1", number + 1, (), ())
            )
            assert await store.turn("main") == OpenTurn("t1", store.owner, number, opened)
            await self.commit(
                store,
                Responded("main", "t1", number, (("a", "r", "m", True, "timeout"), ("b", "", "", False, None)), ()),
            )
            assert await store.turn("main") == OpenTurn("t1", store.owner, number)
            await self.commit(store, Responded("main", "t1", number, (), ()))

    async def check_B9_a_batch_of_no_open_turn_is_not_open(self, store: Store) -> None:
        await self.commit(store, Opened("unheard of", "t1", 1, ()))
        assert await store.turn("unheard of") is None
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.commit(store, Opened("main", "t0", 5, ()))
        assert await store.turn("main") == OpenTurn("t1", store.owner, 0)
        await self.commit(store, TurnEnded("main", "t1", NOON))
        await self.commit(store, Opened("main", "t1", 1, ()))
        assert await store.turn("main") is None

    async def check_B9_a_resumed_turn_keeps_its_batch_another_one_does_not(self, store: Store) -> None:
        opened = Opened("main", "t1", 1, (("a", "deploy", {}, None),))
        await self.commit(store, TurnBegan("main", "t1", NOON), opened)
        await self.commit(store, TurnBegan("main", "t1", NOON, "t1"))
        assert await store.turn("main") == OpenTurn("t1", store.owner, 1, opened)
        await self.commit(store, TurnBegan("main", "t2", NOON, "t1"))
        assert await store.turn("main") == OpenTurn("t2", store.owner, 0)
        await self.commit(store, Responded("main", "t1", 1, (), ()))
        assert await store.turn("main") == OpenTurn("t2", store.owner, 0)
        await self.commit(store, TurnEnded("main", "t2", NOON))
        await self.commit(store, TurnBegan("main", "t1", NOON))
        turn = await store.turn("main")
        assert turn is not None and turn.batch is None, "it will never be answered"


class News(Suite):
    """What a conversation is to be told."""

    async def check_N4_news_is_queued_in_order(self, store: Store) -> None:
        for number in range(5):
            await self.commit(
                store,
                Notified("main", "tool.waiting", "warning", f"ü{number}", NOON + number, uid(number)),
                Notified("other", "custom.kind", "critical", "x", NOON),
            )
        queued = await store.news("main")
        assert [news.message for news in queued] == [f"ü{number}" for number in range(5)]
        assert [news.number for news in queued] == sorted({news.number for news in queued})
        first = queued[0]
        told = (first.conversation, first.kind, first.level, first.at, first.uid)
        assert told == ("main", "tool.waiting", "warning", NOON, uid(0)), told
        assert (await store.news("other"))[0].uid is None
        assert await store.news("main", limit=2) == queued[:2]

    async def check_N4_delivered_news_is_gone(self, store: Store) -> None:
        for number in range(4):
            await self.commit(store, Notified("main", "k.n", "info", str(number), NOON))
        await self.commit(store, Notified("other", "k.n", "info", "other", NOON))
        queued = await store.news("main")
        await self.commit(store, Delivered("main", queued[1].number))
        assert await store.news("main") == queued[2:]
        await self.commit(store, Delivered("unheard of", queued[-1].number))
        await self.commit(store, Notified("main", "k.n", "info", "4", NOON))
        assert [news.message for news in await store.news("main")] == ["2", "3", "4"]
        await self.commit(store, Delivered("main", (await store.news("main"))[-1].number))
        assert await store.news("main") == []
        assert len(await store.news("other")) == 1
        await self.commit(store, Notified("main", "k.n", "info", "5", NOON))
        (last,) = await store.news("main")
        assert last.number > queued[-1].number, "a number is never used again"

    async def check_N3_a_response_takes_back_what_it_showed(self, store: Store) -> None:
        for number in (1, 2, 1, 3):
            await self.commit(store, Notified("main", "tool.stopped", "info", str(number), NOON, uid(number)))
        await self.commit(store, Notified("main", "k.n", "info", "of nobody", NOON))
        await self.commit(store, Responded("main", "t1", 1, (), (), (uid(1), uid(9))))
        assert [news.message for news in await store.news("main")] == ["2", "3", "of nobody"]
        await self.commit(store, Responded("main", "t1", 2, (), ((uid(2), 5),)))
        assert len(await store.news("main")) == 3, "a cursor is not a state"


class Others(Suite):
    """Process events, requests, secrets."""

    async def check_E8_process_events_are_numbered_from_one(self, store: Store) -> None:
        payloads: list[Any] = [NESTED, None, "ü", 5, []]
        for number, payload in enumerate(payloads, 1):
            results = await self.commit(
                store, Emitted("p1", f"type{number}", payload, NOON + number), Emitted("p2", "x", None, NOON)
            )
            assert results == [number, number], results
        expected = [
            ProcessEvent("p1", number, f"type{number}", payload, NOON + number)
            for number, payload in enumerate(payloads, 1)
        ]
        assert await store.process_events("p1") == expected
        assert await store.process_events("p1", after=3) == expected[3:]
        assert await store.process_events("p1", after=1, limit=2) == expected[1:3]
        assert await store.process_events("p1", after=5) == []
        assert len(await store.process_events("p2")) == 5

    async def check_requests_are_answered_once(self, store: Store) -> None:
        of = await self.begin(store, 1)
        await self.commit(
            store,
            Requested("r1", of, store.owner, b"\x00\xff"),
            Requested("r2", of, store.owner, b""),
            Requested("r3", of, "somebody else", b"x"),
        )
        assert await store.requests() == [Request("r1", of, b"\x00\xff"), Request("r2", of, b"")]
        assert await store.reply("r1") is None
        await self.commit(store, Replied("r1", b"\xffdone"))
        assert await store.reply("r1") == b"\xffdone"
        assert await store.requests() == [Request("r2", of, b"")]
        await self.commit(store, RequestClosed("r1"), RequestClosed("r2"), RequestClosed("unknown"))
        assert await store.requests() == []
        assert await store.reply("r1") is None
        await self.commit(store, Replied("r2", b"too late"))
        assert await store.reply("r2") is None, "nobody waits for it"

    async def check_D3_secrets_are_rotated(self, store: Store) -> None:
        await self.commit(store, SecretAdded("z", b"\x00" * 32, NOON))
        assert await store.secret() == ("z", b"\x00" * 32)
        await self.commit(store, SecretAdded("a", b"\xff" * 32, NOON + 1))
        assert await store.secret() == ("a", b"\xff" * 32)
        assert await store.secret("z") == ("z", b"\x00" * 32), "keys made with it are still good"
        assert await store.secret("a") == ("a", b"\xff" * 32)
        assert await store.secret("b") is None
