"""Checks of transcripts and descriptions of conversations."""

from msgspec.structs import replace

from keephold.store.base import (
    Browse,
    Collected,
    ConversationRow,
    Described,
    Forgotten,
    Notified,
    TranscriptAppended,
    TranscriptLine,
    TurnBegan,
    TurnEnded,
)
from keephold.testing.conformance.handles import NESTED
from keephold.testing.conformance.suite import DAY, NOON, Suite, shared, uid

STALE = TurnBegan("main", "t2", NOON, "unheard of")
"""An operation that is refused."""
BINARY = bytes(range(256))


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

    async def check_G1_a_transcript_is_read_page_by_page(self, store: Browse) -> None:
        await self.commit(store, said(*"abcdefg"))
        assert await self.bodies(store, after=0, limit=3) == ["a", "b", "c"]
        assert await self.bodies(store, after=3, limit=3) == ["d", "e", "f"]
        assert await self.bodies(store, after=6, limit=3) == ["g"]
        assert await self.bodies(store, after=7) == [] == await self.bodies(store, after=100)

    async def check_G1_a_long_transcript_is_whole(self, store: Browse) -> None:
        wanted = [str(number) for number in range(10_000)]
        for start in range(0, 10_000, 2500):
            await self.commit(store, said(*wanted[start : start + 2500]))
        assert await self.bodies(store) == wanted
        assert await self.commit(store, said("last")) == [10_001]
        assert await self.bodies(store, after=10_000) == ["last"]

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
        assert await self.commit(store, said("new", at=NOON + 1)) == [1], "it begins anew"
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
    async def check_G1_a_transcript_outlives_its_process(self, store: Browse) -> None:
        await self.commit(store, said("1", "2"), Described("main", NOON, {"nested": NESTED}))
        row, lines = await store.conversation("main"), await store.transcript("main")
        later = await self.reopened(store)
        assert row is not None and await later.conversation("main") == row and await later.transcript("main") == lines
        assert await self.commit(later, said("3")) == [3]

    @shared
    async def check_G1_two_processes_say_one_after_the_other(self, store: Browse) -> None:
        other = await self.second(store)
        numbers = [(await self.commit(each, said("x")))[0] for each in (store, other, other, store)]
        assert numbers == [1, 2, 3, 4]
        assert await other.transcript("main") == await store.transcript("main")
        await self.commit(other, Forgotten("main"))
        assert await store.conversation("main") is None
        assert await self.commit(store, said("x")) == [1]
