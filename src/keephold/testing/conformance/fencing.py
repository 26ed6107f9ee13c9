"""Checks of who may write to a call: fencing numbers, claims, attempts, journals."""

from typing import Literal

from keephold.handles.question import Question
from keephold.handles.state import (
    Asked,
    Ended,
    Ok,
    Running,
    Started,
    Stopped,
    Waiting,
)
from keephold.store.base import (
    Allowed,
    Attempted,
    Browse,
    Changed,
    Claimed,
    Entry,
    HandleQuery,
    Journaled,
    KeptOutput,
    Op,
    Parked,
    Parking,
    Record,
    Registered,
    Released,
    Revoked,
    Rewritten,
    WaitOpened,
    Wrote,
)
from keephold.store.endings import REVOKED
from keephold.testing.conformance.suite import NOON, Suite, record, uids


class FencingChecks(Suite):
    """Who may write: attempts, journals, fencing numbers, claims."""

    async def check_E6_a_stale_fence_is_refused(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.take_key(store, of)
        (claimed,) = await self.commit(store, Claimed(of, store.owner))
        assert isinstance(claimed, Record)
        assert (claimed.fence, claimed.attempt, claimed.owner) == (2, 2, store.owner), claimed
        for op in fenced(of, 1):
            await self.refused(store, "lease_lost", op)
        for op in fenced("unknown", 1):
            await self.refused(store, "lease_lost", op)
        await self.end(store, of)
        for op in fenced(of, 1):
            await self.refused(store, "lease_lost", op)

    async def check_E6_only_what_is_seen_is_claimed(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        before = await self.dump(store)
        for was in (None, "another"):
            assert await self.commit(store, Claimed(of, was)) == [None]
        assert await self.commit(store, Claimed("unknown", store.owner)) == [None]
        assert await self.dump(store) == before
        await self.end(store, of)
        before = await self.dump(store)
        assert await self.commit(store, Claimed(of, None), Claimed(of, store.owner)) == [None, None]
        assert await self.dump(store) == before

    async def check_E10_a_claim_withdraws_the_question(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        event = Asked(NOON + 2, Question(id="q", text="?"))
        waiting = Waiting(NOON, NOON + 1, NOON + 2, event.question)
        await self.commit(store, Changed(of, 1, event, waiting))
        (claimed,) = await self.commit(store, Claimed(of, store.owner))
        assert claimed.state == Running(NOON, NOON + 1), claimed.state
        assert (await self.found(store, of)).state == Running(NOON, NOON + 1)

    async def check_R1_a_released_call_is_nobodys(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.take_key(store, of, Parking(deadline=NOON + 10))
        assert await store.handles(HandleQuery(parked=True)) == []
        await self.commit(store, Released(of, 1))
        found = await self.found(store, of)
        assert found.owner is None and found.parking == Parking(deadline=NOON + 10), found
        assert uids(await store.handles(HandleQuery(parked=True))) == [of]
        assert uids((await store.due(NOON + 10))[0]) == [of]
        (claimed,) = await self.commit(store, Claimed(of, None))
        assert claimed is not None and claimed.owner == store.owner and claimed.fence == 2
        plain = await self.begin(store, 2)
        await self.commit(store, Released(plain, 1))
        assert await store.handles(HandleQuery(parked=True)) == [], "without terms to wait on it is not parked"
        await self.end(store, plain)
        assert await store.notifications("main") == []

    async def check_R1_a_released_call_whose_completion_was_there_first_stops(self, store: Browse) -> None:
        """It was resolved before its owner was found dead; no other operation would end it."""
        of = await self.begin(store, 1)
        key_id = await self.take_key(store, of, Parking(deadline=NOON + 10))
        await self.resolve(store, key_id)
        await self.commit(store, Released(of, 1))
        stopped = await self.stopped(store, of)
        assert (stopped.outcome, stopped.stopped) == (Ok(42), NOON + 30), stopped
        assert [each.uid for each in await store.notifications("main")] == [of]
        held = await self.begin(store, 2)
        key_id = await self.take_key(store, held, Parking(hold=True))
        await self.resolve(store, key_id)
        await self.commit(store, Released(held, 1))
        assert uids(await store.owned(None)) == [held]
        revoked = await self.begin(store, 3)
        await self.take_key(store, revoked, Parking())
        await self.commit(store, Revoked("main", NOON + 9))
        await self.commit(store, Released(revoked, 1))
        stopped = await self.stopped(store, revoked)
        assert (stopped.outcome, stopped.stopped) == (REVOKED, NOON + 9), stopped

    async def check_R5_attempts_forget_recorded_errors(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.commit(store, Attempted(of, 1, 1, NOON))
        good, bad = Entry("step", "good", b"1", b"1", True), Entry("step", "bad", b"2", b"2", False)
        for each in (good, bad):
            await self.commit(store, Journaled(of, 1, each.kind, each.name, each.digest, each.value, each.ok))
        assert await store.journal(of) == [good, bad]
        await self.commit(store, Attempted(of, 1, 2, NOON + 5.5))
        found = await self.found(store, of)
        assert (found.attempt, found.next_attempt_at, found.fence) == (2, NOON + 5.5, 1), found
        assert await store.journal(of) == [good]
        await self.commit(store, Journaled(of, 1, "step", "bad", b"2", b"3", False))
        await self.commit(store, Attempted(of, 1, 2, None))
        found = await self.found(store, of)
        assert (found.attempt, found.next_attempt_at) == (2, None), found
        assert len(await store.journal(of)) == 2, "errors are forgotten when an attempt is planned, not when it begins"
        await self.commit(store, Attempted(of, 1, 3, NOON + 9))
        await self.end(store, of)
        assert (await self.found(store, of)).next_attempt_at is None

    async def check_R5_a_claim_counts_an_attempt_that_was_cut_short_and_no_other(self, store: Browse) -> None:
        waiting = record(1)
        await self.commit(store, Registered(waiting))
        planned = await self.begin(store, 2)
        await self.commit(store, Attempted(planned, 1, 2, NOON + 5))
        cut_short = await self.begin(store, 3)
        for of, attempt in ((waiting.uid, 1), (planned, 2), (cut_short, 2)):
            (claimed,) = await self.commit(store, Claimed(of, store.owner))
            assert isinstance(claimed, Record) and (claimed.attempt, claimed.fence) == (attempt, 2), claimed

    async def check_E10_what_a_call_has_printed_so_far_is_found_again(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        for text in (b"one", b"one, two"):
            kept = KeptOutput(len(text), 1024, 1024, data=text)
            await self.commit(store, Wrote(of, 1, kept))
            found = (await self.found(store, of)).output
            assert found is not None and (found.total, bytes(found.data)) == (len(text), text), found
        await self.refused(store, "lease_lost", Wrote(of, 2, KeptOutput(0, 0, 0)))
        await self.end(store, of)
        assert (await self.found(store, of)).output == kept, "an end that tells of no output takes none away"

    async def check_P5_edited_arguments_are_what_is_recorded(self, store: Browse) -> None:
        of = await self.begin(store, 1, start=False)
        other = await self.begin(store, 2)
        for arguments in ({"env": "ü", "list": [1, None]}, {}):
            await self.commit(store, Rewritten(of, 1, arguments))
            assert (await self.found(store, of)).arguments == arguments
        assert (await self.found(store, other)).arguments == {"env": "production"}
        user = Allowed("user", NOON, "the dashboard")
        await self.commit(store, Rewritten(of, 1, None, allowed=user), Rewritten(of, 1, {"env": "x"}, ("file:a",)))
        await self.commit(store, Rewritten(of, 1, None))
        rewritten = await self.found(store, of)
        assert (rewritten.arguments, rewritten.resources, rewritten.allowed) == ({"env": "x"}, ("file:a",), user)
        assert (await self.found(store, other)).allowed is None
        await self.commit(store, Rewritten(of, 1, {}))
        found = await store.named("main", "h1")
        assert isinstance(found, Record) and found.arguments == {}
        (claimed,) = await self.commit(store, Claimed(of, store.owner))
        assert claimed.arguments == {}, "and what runs again after a crash"

    async def check_E2_the_journal_comes_back_in_order(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        other = await self.begin(store, 2)
        kinds: tuple[Literal["step", "sleep", "event", "ask", "input"], ...] = (
            "step",
            "sleep",
            "event",
            "ask",
            "input",
        )
        entries = [Entry(kind, "same", bytes([0, 255]), b"\xff" * 100, True) for kind in kinds]
        entries.append(Entry("step", "ü" * 200, b"", b"x" * (1 << 20), False))
        for each in entries:
            await self.commit(store, Journaled(of, 1, each.kind, each.name, each.digest, each.value, each.ok))
        assert await store.journal(of) == entries
        assert await store.journal(other) == []

    async def check_E3_the_same_entry_twice_is_refused(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.commit(store, Journaled(of, 1, "step", "a", b"1", b"1"))
        await self.refused(store, None, Journaled(of, 1, "step", "a", b"1", b"1"))
        await self.refused(
            store, None, Journaled(of, 1, "step", "b", b"", b""), Journaled(of, 1, "step", "b", b"", b"")
        )
        assert [each.name for each in await store.journal(of)] == ["a"]


def fenced(of: str, fence: int) -> list[Op]:
    """Every operation that carries a fencing number."""
    return [
        Changed(of, fence, Ended(NOON, Ok("x")), Stopped(NOON, NOON, NOON, Ok("x"))),
        Changed(of, fence, Started(NOON), Running(NOON, NOON)),
        Rewritten(of, fence, {"env": "elsewhere"}),
        Released(of, fence),
        Attempted(of, fence, 5, NOON),
        Journaled(of, fence, "step", "fenced", b"", b""),
        WaitOpened(of, fence, "key-fenced", "event", "e", "secret-1"),
        Parked(of, fence, Parking(), NOON),
    ]
