"""Checks of turns with their batches and inquiries, process events, requests, secrets."""

from typing import Any

from keephold.store.base import (
    Answers,
    Browse,
    Collected,
    Emitted,
    Inquired,
    InquiryRow,
    Opened,
    OpenTurn,
    Post,
    Posted,
    ProcessEvent,
    Replied,
    Request,
    RequestClosed,
    Requested,
    Responded,
    SecretAdded,
    TakenDown,
    TurnBegan,
    TurnEnded,
    TurnReleased,
)
from keephold.testing.conformance.handles import NESTED
from keephold.testing.conformance.suite import DAY, NOON, Suite, uid


class TurnChecks(Suite):
    """One open turn a conversation, one open batch in it."""

    async def check_R9_a_released_turn_is_as_a_dead_ones(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON), Opened("main", "t1", 1, ()))
        await self.commit(store, TurnReleased("main", "t0"), TurnReleased("unheard of", "t1"))
        assert await store.turn("main") == OpenTurn("t1", store.owner, 1, Opened("main", "t1", 1, ()))
        await self.commit(store, TurnReleased("main", "t1"))
        left = await store.turn("main")
        assert left is not None and (left.turn, left.batch) == ("t1", Opened("main", "t1", 1, ())), left
        assert left.owner is not None and not store.alive(left.owner), left
        (row,) = await store.turns("main")
        assert row.owner == left.owner and row.ended_at is None, row
        await self.commit(store, TurnBegan("main", "t1", NOON, "t1", left.owner))
        await self.refused(store, "turn_open", TurnBegan("main", "t1", NOON, "t1", left.owner))  # one is first

    async def check_B1_one_open_turn_a_conversation(self, store: Browse) -> None:
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

    async def check_B9_of_two_who_resume_a_turn_one_is_first(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.refused(store, "turn_open", TurnBegan("main", "t1", NOON, "t1", "another"))
        await self.refused(store, "turn_open", TurnBegan("main", "t2", NOON, "t1", "another"))
        await self.commit(store, TurnBegan("main", "t1", NOON, "t1", store.owner))

    async def check_R4_what_was_answered_can_be_read_if_anything_survives(self, store: Browse) -> None:
        given = (("a", "10", "ten", False, None), ("ü", "no", "no", True, "tool_error"))
        await self.commit(store, TurnBegan("main", "t1", NOON), Opened("main", "t1", 1, ()))
        assert await store.answers("main", "t1", 1) is None
        await self.commit(store, Responded("main", "t1", 1, given, ()))
        assert await store.answers("main", "t1", 1) == (Answers(given) if store.durable else None)
        assert await store.answers("main", "t1", 2) is None

    async def check_B9_the_open_batch_comes_back_exactly(self, store: Browse) -> None:
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

    async def check_B9_an_answered_batch_is_not_open(self, store: Browse) -> None:
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

    async def check_B9_a_batch_of_no_open_turn_is_not_open(self, store: Browse) -> None:
        await self.commit(store, Opened("unheard of", "t1", 1, ()))
        assert await store.turn("unheard of") is None
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.commit(store, Opened("main", "t0", 5, ()))
        assert await store.turn("main") == OpenTurn("t1", store.owner, 0)
        await self.commit(store, TurnEnded("main", "t1", NOON))
        await self.commit(store, Opened("main", "t1", 1, ()))
        assert await store.turn("main") is None

    async def check_B9_a_resumed_turn_keeps_its_batch_another_one_does_not(self, store: Browse) -> None:
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


class InquiryChecks(Suite):
    """Inquiries, which are kept as long as their turn is."""

    async def inquire(self, store: Browse, number: int, turn: str, at: float = NOON, **changes: Any) -> None:
        fields: dict[str, Any] = {"conversation": "main", "uid": uid(number), "request": {"n": number}}
        await self.commit(store, Inquired(id=f"c.q.{number}", turn=turn, at=at, **{**fields, **changes}))

    async def check_Q6_inquiries_are_recorded(self, store: Browse) -> None:
        await self.inquire(store, 1, "t1", NOON + 5, request=NESTED, answer=NESTED)
        await self.inquire(store, 2, "t2", NOON, uid=None, error="timed out: ü")
        await self.inquire(store, 3, "t1", NOON + 1, answer=False)
        await self.inquire(store, 4, "t1", conversation="other")
        rows = await store.inquiries("main")
        assert rows == [
            InquiryRow("c.q.1", "main", "t1", uid(1), NOON + 5, NESTED, NESTED),
            InquiryRow("c.q.2", "main", "t2", None, NOON, {"n": 2}, None, "timed out: ü"),
            InquiryRow("c.q.3", "main", "t1", uid(3), NOON + 1, {"n": 3}, False),
        ], rows
        assert await store.inquiries("main", "t1") == [rows[0], rows[2]]
        assert await store.inquiries("main", "t1", limit=1) == rows[:1]
        assert await store.inquiries("main", limit=2) == rows[:2]
        assert await store.inquiries("main", newest=True) == rows[::-1]
        assert await store.inquiries("main", newest=True, limit=2) == [rows[2], rows[1]]
        assert await store.inquiries("main", "t1", newest=True, limit=5) == [rows[2], rows[0]]
        assert await store.inquiries("main", "t3") == [] == await store.inquiries("unheard of")

    async def check_Q6_inquiries_go_with_their_turn(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.inquire(store, 1, "t1")
        await self.commit(store, TurnBegan("main", "t2", NOON + 10, "t1"))
        await self.inquire(store, 2, "t2", NOON + 11)
        await self.commit(store, TurnEnded("main", "t2", NOON + 20))
        for before, left in ((10, ["c.q.1", "c.q.2"]), (20, ["c.q.2"]), (21, [])):
            await self.commit(store, Collected(NOON + before, NOON + DAY))
            assert [row.id for row in await store.inquiries("main")] == left, before

    async def check_Q6_a_resumed_turn_keeps_its_inquiries(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.inquire(store, 1, "t1")
        await self.commit(store, TurnEnded("main", "t1", NOON + 10))
        await self.commit(store, TurnBegan("main", "t1", NOON + 20))
        await self.commit(store, Collected(NOON + DAY, NOON + DAY))
        assert len(await store.inquiries("main")) == 1
        await self.commit(store, TurnEnded("main", "t1", NOON + DAY))
        await self.commit(store, Collected(NOON + 2 * DAY, NOON + 2 * DAY))
        assert await store.inquiries("main") == []

    async def check_Q6_a_call_that_outlives_its_turn_may_inquire(self, store: Browse) -> None:
        """An inquiry after the turn has ended is kept as long as if the turn had ended with it."""
        await self.commit(store, TurnBegan("main", "t1", NOON))
        await self.inquire(store, 0, "t1")
        await self.commit(store, TurnEnded("main", "t1", NOON + 10))
        await self.inquire(store, 1, "t1", NOON + 30)
        await self.inquire(store, 2, "never begun", NOON + 30)
        await self.commit(store, Collected(NOON + 30, NOON + DAY))
        assert [row.id for row in await store.inquiries("main")][-2:] == ["c.q.1", "c.q.2"]
        await self.commit(store, Collected(NOON + 31, NOON + DAY))
        assert await store.inquiries("main") == []


class OtherChecks(Suite):
    """Process events, requests, secrets."""

    async def check_E8_process_events_are_numbered_from_one(self, store: Browse) -> None:
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
        assert await store.process_events("p1", limit=2, newest=True) == expected[3:]
        assert await store.process_events("p1", after=4, limit=2, newest=True) == expected[4:]
        assert len(await store.process_events("p2")) == 5

    async def check_requests_are_answered_once(self, store: Browse) -> None:
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

    async def check_M3_a_request_is_withdrawn_or_answered_and_never_both(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        for id in ("taken", "withdrawn"):
            await self.commit(store, Requested(id, of, store.owner, b"x"))
        assert await self.commit(store, Replied("taken", b""), RequestClosed("taken", unanswered=True)) == [True, False]
        assert await store.reply("taken") == b""
        results = await self.commit(store, RequestClosed("withdrawn", unanswered=True), Replied("withdrawn", b""))
        assert results == [True, False], results
        assert await self.commit(store, RequestClosed("taken"), RequestClosed("taken")) == [True, False]

    async def check_P6_posts_are_listed_until_they_are_taken_down(self, store: Browse) -> None:
        await self.commit(
            store,
            Posted("p1", "prompt", NOON, b"\x00\xff"),
            Posted("s1", "standing", NOON, b""),
            Posted("p0", "prompt", NOON - 1, b"x"),
        )
        first, second = (
            Post("p1", "prompt", store.owner, NOON, b"\x00\xff"),
            Post("p0", "prompt", store.owner, NOON - 1, b"x"),
        )
        assert await store.posts("prompt") == [first, second], "in the order they came"
        assert [post.id for post in await store.posts("standing")] == ["s1"]
        await self.commit(store, Posted("p1", "prompt", NOON + 1, b"y"))
        assert (await store.posts("prompt"))[0] == Post("p1", "prompt", store.owner, NOON + 1, b"y")
        await self.commit(store, TakenDown(("p1", "s1", "unknown")), TakenDown(()))
        assert await store.posts("prompt") == [second] and await store.posts("standing") == []
        await self.commit(store, Posted("fact:a:1", "fact", NOON, b"1"), Posted("fact:b:1", "fact", NOON, b"2"))
        assert [post.body for post in await store.posts("fact", "fact:b:")] == [b"2"]
        assert await store.posts("watch", "fact:b:") == []

    async def check_D3_secrets_are_rotated(self, store: Browse) -> None:
        await self.commit(store, SecretAdded("z", b"\x00" * 32, NOON))
        assert await store.secret() == ("z", b"\x00" * 32)
        await self.commit(store, SecretAdded("a", b"\xff" * 32, NOON + 1))
        assert await store.secret() == ("a", b"\xff" * 32)
        assert await store.secret("z") == ("z", b"\x00" * 32), "keys made with it are still good"
        assert await store.secret("a") == ("a", b"\xff" * 32)
        assert await store.secret("b") is None
