"""Checks of transcripts and descriptions of conversations, turns with their batches and inquiries, process events,
requests, secrets."""

from typing import Any

from msgspec.structs import replace

from keephold.store.base import (
    Answers,
    Browse,
    Collected,
    ConversationRow,
    Described,
    Emitted,
    Forgotten,
    Inquired,
    InquiryRow,
    Notified,
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
    TranscriptAppended,
    TranscriptLine,
    TurnBegan,
    TurnEnded,
    TurnReleased,
)
from keephold.testing.conformance.handles import NESTED
from keephold.testing.conformance.suite import DAY, NOON, Suite, shared, uid

STALE = TurnBegan("main", "t2", NOON, "unheard of")
"""An operation that is refused."""
BINARY = bytes(range(256))


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
            TurnBegan("main", "t1", NOON, "t1", "another"),
            TurnBegan("main", "t2", NOON, "t1", "another"),
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


def said(*bodies: str, conversation: str = "main", turn: str = "t1", at: float = NOON) -> TranscriptAppended:
    return TranscriptAppended(conversation, turn, at, tuple(("request", body.encode()) for body in bodies))


class TranscriptChecks(Suite):
    """Conversations that have a transcript or a description."""

    async def bodies(self, store: Browse, conversation: str = "main", after: int = 0, limit: int = 10_000) -> list[str]:
        return [line.body.decode() for line in await store.transcript(conversation, after, limit)]

    async def ids(self, store: Browse, **wanted: object) -> list[str]:
        return [row.id for row in await store.conversations(metadata=wanted)]

    async def check_G1_lines_are_numbered_in_their_conversation(self, store: Browse) -> None:
        first = TranscriptAppended("main", "t1", NOON, (("request", b'{"a":1}'), ("response", BINARY), ("shown", b"")))
        assert await self.commit(store, first) == [3]
        assert await self.commit(store, said("x", conversation="other")) == [1]
        assert await self.commit(store, said("4", turn="t2", at=NOON + 1), said("5", "6", turn="t2")) == [4, 6]
        assert await store.transcript("main") == [
            TranscriptLine(1, "t1", "request", b'{"a":1}', NOON),
            TranscriptLine(2, "t1", "response", BINARY, NOON),
            TranscriptLine(3, "t1", "shown", b"", NOON),
            TranscriptLine(4, "t2", "request", b"4", NOON + 1),
            TranscriptLine(5, "t2", "request", b"5", NOON),
            TranscriptLine(6, "t2", "request", b"6", NOON),
        ]
        assert await store.transcript("other") == [TranscriptLine(1, "t1", "request", b"x", NOON)]
        assert await store.transcript("unheard of") == []

    async def check_G1_a_long_transcript_is_whole_and_is_read_page_by_page(self, store: Browse) -> None:
        wanted = [str(number) for number in range(10_000)]
        for start in range(0, 10_000, 2500):
            await self.commit(store, said(*wanted[start : start + 2500]))
        assert await self.bodies(store) == wanted
        assert await self.commit(store, said("last")) == [10_001]
        for after in (0, 3, 9999, 10_000, 10_001, 20_000):
            assert await self.bodies(store, after=after, limit=3) == [*wanted, "last"][after : after + 3]

    async def check_G1_what_is_said_makes_the_conversation(self, store: Browse) -> None:
        assert await store.conversation("main") is None and await store.conversations() == []
        assert await self.commit(store, said()) == [0]
        assert await store.conversation("main") == ConversationRow("main", NOON, NOON, {}, 0)
        await self.commit(store, said("1", "2", at=NOON + 5))
        assert await store.conversation("main") == ConversationRow("main", NOON, NOON + 5, {}, 2)
        await self.commit(store, said("3", at=NOON + 1))
        row = ConversationRow("main", NOON, NOON + 5, {}, 3)
        assert await store.conversation("main") == row, "a clock that went back does not make it older"
        await self.commit(store, Described("other", NOON + 2, {"title": "ü"}))
        other = ConversationRow("other", NOON + 2, NOON + 2, {"title": "ü"}, 0)
        assert await store.conversation("other") == other
        assert await store.conversations() == [row, other]

    async def check_G1_turns_handles_and_notifications_make_none(self, store: Browse) -> None:
        await self.begin(store, 1)
        await self.commit(store, TurnBegan("main", "t1", NOON), Notified("main", "k.n", "info", "x", NOON))
        assert await store.conversation("main") is None and await store.conversations() == []

    async def check_G1_a_description_is_changed_key_by_key(self, store: Browse) -> None:
        await self.commit(store, Described("main", NOON, {"a": 1, "b": {"x": 1, "y": 2}, "never": None}), said("1"))
        given = ConversationRow("main", NOON, NOON, {"a": 1, "b": {"x": 1, "y": 2}}, 1)
        assert await store.conversation("main") == given
        await self.commit(store, Described("main", NOON + 3, {"a": None, "b": {"x": 3}, "c": [None]}))
        changed = replace(given, updated=NOON + 3, metadata={"b": {"x": 3}, "c": [None]})
        assert await store.conversation("main") == changed
        await self.commit(store, Described("main", NOON + 3, {}), said("2"))
        assert await store.conversation("main") == replace(changed, lines=2)
        await self.commit(store, Described("main", NOON + 3, {"b": None, "c": None}))
        assert await store.conversation("main") == replace(changed, lines=2, metadata={})
        await self.commit(store, Described("other", NOON, {"nested": NESTED}))
        other = await store.conversation("other")
        assert other is not None and other.metadata == {"nested": NESTED}

    async def check_G1_what_was_read_does_not_change(self, store: Browse) -> None:
        await self.commit(store, said("1"), Described("main", NOON, {"a": 1}))
        row, lines = await store.conversation("main"), await store.transcript("main")
        await self.commit(store, said("2", at=NOON + 1), Described("main", NOON + 1, {"a": 2}))
        assert row == ConversationRow("main", NOON, NOON, {"a": 1}, 1)
        assert lines == [TranscriptLine(1, "t1", "request", b"1", NOON)]

    async def check_G1_conversations_are_listed_newest_first(self, store: Browse) -> None:
        for number, id in enumerate(("c", "a", "é", "d", "b", "𝄞", "ﬀ")):
            await self.commit(store, said("x", conversation=id, at=NOON + number // 5))
        wanted = ["𝄞", "ﬀ", "é", "d", "c", "b", "a"]
        assert [row.id for row in await store.conversations()] == wanted
        found: list[str] = []
        before = None
        while page := await store.conversations(before=before, limit=3):
            found += [row.id for row in page]
            before = (page[-1].updated, page[-1].id)
        assert found == wanted
        await self.commit(store, Described("a", NOON + 9, {}))
        await self.commit(store, said("x", conversation="b", at=NOON + 8))
        assert [row.id for row in await store.conversations(limit=3)] == ["a", "b", "𝄞"]
        assert [row.id for row in await store.conversations(before=(NOON + 1, ""), limit=2)] == ["é", "d"]

    async def check_G1_conversations_are_found_by_metadata(self, store: Browse) -> None:
        for number in range(12):
            metadata = {"cwd": "/a" if number % 2 else "/b", "n": number, "deep": {"x": [number]}, "yes": True}
            await self.commit(store, Described(f"c{number:02}", NOON + number, metadata))
        await self.commit(store, said("x", conversation="bare"))
        assert await self.ids(store, cwd="/a") == ["c11", "c09", "c07", "c05", "c03", "c01"]
        assert await self.ids(store, cwd="/a", n=3.0) == ["c03"] == await self.ids(store, deep={"x": [3]})
        assert await self.ids(store, cwd="/c") == [] == await self.ids(store, yes=1) == await self.ids(store, no=None)
        assert len(await self.ids(store)) == 13, "of nothing that is wanted, each has all"
        page = await store.conversations(metadata={"cwd": "/b"}, before=(NOON + 8, "c08"), limit=2)
        assert [row.id for row in page] == ["c06", "c04"]

    async def check_G1_a_forgotten_conversation_is_gone(self, store: Browse) -> None:
        await self.commit(store, TurnBegan("main", "t1", NOON), Notified("main", "k.n", "info", "x", NOON))
        await self.commit(store, said("1", "2"), Described("main", NOON, {"a": 1}), said("x", conversation="other"))
        assert await self.commit(store, Forgotten("main"), Forgotten("unheard of")) == [True, False]
        assert await store.conversation("main") is None and await store.transcript("main") == []
        assert [row.id for row in await store.conversations()] == ["other"]
        assert await self.bodies(store, "other") == ["x"]
        assert await store.turn("main") is not None and len(await store.notifications("main")) == 1
        assert await self.commit(store, said("new", at=NOON + 1)) == [1], "it begins again"
        assert await store.conversation("main") == ConversationRow("main", NOON + 1, NOON + 1, {}, 1)
        assert await self.bodies(store) == ["new"]
        assert await self.commit(store, Forgotten("main"), said("newer"), Forgotten("other")) == [True, 1, True]
        assert await self.bodies(store) == ["newer"] and await store.transcript("other") == []

    async def check_G1_a_refused_commit_says_nothing(self, store: Browse) -> None:
        described = Described("main", NOON + 1, {"a": 2, "b": None})
        await self.refused(store, "turn_open", said("1"), described, STALE)
        await self.commit(store, said("1", "2"), Described("main", NOON, {"a": 1, "b": 1}))
        for ops in (
            (said("3", "4", at=NOON + 1),),
            (described,),
            (Forgotten("main"),),
            (said("3"), Forgotten("main"), said("new"), described, said("x", conversation="other")),
        ):
            await self.refused(store, "turn_open", *ops, STALE)
        assert await self.commit(store, said("3")) == [3]
        assert await self.bodies(store) == ["1", "2", "3"]

    async def check_S5_retention_leaves_transcripts_alone(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.end(store, of)
        await self.commit(store, TurnBegan("main", "t1", NOON), said("1"), Described("main", NOON, {"a": 1}))
        await self.commit(store, TurnEnded("main", "t1", NOON))
        before = await self.dump(store)
        assert await self.commit(store, Collected(NOON + 1000 * DAY, NOON + 1000 * DAY)) == [1]
        assert await store.handle(uid(1)) is None
        after = await self.dump(store)
        kept = [name for name in before if name.startswith(("transcript of ", "description of ", "conversations"))]
        assert kept and all(after[name] == before[name] for name in kept)

    @shared
    async def check_G1_two_processes_say_one_after_the_other(self, store: Browse) -> None:
        other = await self.second(store)
        numbers = [(await self.commit(each, said("x")))[0] for each in (store, other, other, store)]
        assert numbers == [1, 2, 3, 4]
        assert await other.transcript("main") == await store.transcript("main")
        await self.commit(other, Forgotten("main"))
        assert await store.conversation("main") is None
        assert await self.commit(store, said("x")) == [1]
