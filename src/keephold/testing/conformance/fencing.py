"""Checks of who may write to a call: fencing numbers, claims, attempts, journals."""

from typing import Literal

from keephold.handles.question import Question
from keephold.handles.state import (
    Ended,
    Ok,
    QuestionAsked,
    Running,
    Started,
    Stopped,
    Waiting,
)
from keephold.store.base import (
    NOBODY,
    Allowed,
    Attempted,
    Browse,
    Changed,
    Claimed,
    Counted,
    Entry,
    Journaled,
    KeptOutput,
    Op,
    Parked,
    Parking,
    Readied,
    Record,
    Registered,
    Released,
    Retried,
    Revoked,
    Rewritten,
    WaitOpened,
    Wrote,
)
from keephold.store.rows import Standing
from keephold.store.rules import REVOKED
from keephold.testing.conformance.suite import NOON, Suite, record, uid, uids


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
        event = QuestionAsked(NOON + 2, Question(id="q", text="?"))
        waiting = Waiting(NOON, NOON + 1, NOON + 2, event.question)
        await self.commit(store, Changed(of, 1, event, waiting))
        (claimed,) = await self.commit(store, Claimed(of, store.owner))
        assert claimed.state == Running(NOON, NOON + 1), claimed.state
        assert (await self.found(store, of)).state == Running(NOON, NOON + 1)

    async def check_R1_a_released_call_is_nobodys(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.take_key(store, of, Parking(deadline=NOON + 10))
        assert await self.listed(store, parked=True) == []
        await self.commit(store, Released(of, 1))
        found = await self.found(store, of)
        assert found.owner is None and found.parking == Parking(deadline=NOON + 10), found
        assert await self.listed(store, parked=True) == [of]
        assert uids((await store.due(NOON + 10))[0]) == [of]
        (claimed,) = await self.commit(store, Claimed(of, None))
        assert claimed is not None and claimed.owner == store.owner and claimed.fence == 2
        plain = await self.begin(store, 2)
        await self.commit(store, Released(plain, 1))
        assert await self.listed(store, parked=True) == [], "without terms to wait on it is not parked"
        await self.end(store, plain)
        assert await store.notifications("main") == []

    async def check_R6_a_running_call_that_is_released_can_be_claimed_and_counts_no_death(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.commit(store, Counted(of, 1, 1))
        await self.commit(store, Released(of, 1))
        found = await self.found(store, of)
        assert found.owner == NOBODY and not store.alive(NOBODY), found
        assert uids(await store.owned(NOBODY)) == [of]
        (claimed,) = await self.commit(store, Claimed(of, NOBODY))
        assert claimed is not None and (claimed.owner, claimed.fence, claimed.deaths) == (store.owner, 2, 0), claimed
        await self.refused(store, "lease_lost", Released(of, 1))

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

    async def check_R8_a_claim_counts_the_death_of_a_process_that_ran_the_call(self, store: Browse) -> None:
        """Not of one that had not started it, or released it when it closed."""
        of = await self.begin(store, 1)
        for op, deaths, attempt, standing in (
            (None, 1, 2, None),
            (Counted(of, 2, 1, "alone"), 2, 3, None),
            (Counted(of, 3, 2, "released"), 2, 4, None),
            (Counted(of, 4, 2, "queued"), 2, 4, "queued"),
            (None, 2, 4, None),
            (None, 3, 5, None),
        ):
            ops = () if op is None else (op,)
            *_, claimed = await self.commit(store, *ops, Claimed(of, store.owner, standing == "queued"))
            found = await self.found(store, of)
            for each in (claimed, found):
                assert (each.deaths, each.attempt, each.standing) == (deaths, attempt, standing), each
        waiting, planned = record(2), await self.begin(store, 3)
        await self.commit(store, Registered(waiting), Attempted(planned, 1, 2, NOON))
        for other, attempt in ((waiting.uid, 1), (planned, 2)):
            (claimed,) = await self.commit(store, Claimed(other, store.owner))
            assert (claimed.deaths, claimed.attempt, claimed.fence) == (0, attempt, 2), claimed

    async def check_R7_a_claim_of_a_kept_process_counts_neither_an_attempt_nor_a_death(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        standings: tuple[Standing | None, ...] = (None, "alone", "released")
        for fence, standing in enumerate(standings, 2):
            await self.commit(store, Counted(of, fence - 1, 0, standing))
            (claimed,) = await self.commit(store, Claimed(of, store.owner, kept=True))
            for each in (claimed, await self.found(store, of)):
                assert (each.fence, each.deaths, each.attempt, each.standing) == (fence, 0, 1, None), each

    async def check_R8_parking_sets_the_count_back(self, store: Browse) -> None:
        parks: tuple[Op, ...] = (Parked(uid(1), 1, Parking(), NOON), Released(uid(2), 1))
        for number, park in enumerate(parks, 1):
            of = await self.begin(store, number)
            await self.take_key(store, of, Parking())
            await self.commit(store, Counted(of, 1, 3, "alone"))
            await self.commit(store, park)
            found = await self.found(store, of)
            assert (found.deaths, found.standing) == (0, None), found

    async def check_R8_a_count_is_never_refused(self, store: Browse) -> None:
        """It is written with operations on other calls, which must not fail because of it."""
        of, other = await self.begin(store, 1), await self.begin(store, 2)
        await self.commit(store, Counted(of, 1, 2, "alone"))
        await self.end(store, other)
        before = await self.dump(store)
        await self.commit(store, Counted(of, 2, 0), Counted(other, 1, 7), Counted("unknown", 1, 1))
        assert await self.dump(store) == before
        await self.refused(store, "already_stopped", Counted(of, 1, 5), Journaled(other, 1, "step", "a", b"", b""))

    async def check_R8_a_retry_has_a_copy_of_the_journal(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        entries = [Entry("step", "a", b"1", b"1", True, b"0"), Entry("step", "b", b"2", b"2", False)]
        for each in entries:
            op = Journaled(of, 1, each.kind, each.name, each.digest, each.value, each.ok, each.input)
            await self.commit(store, op)
        again = record(2, id="h1", retry_of=of)
        await self.refused(store, "batch_rejected", Retried(again, of))
        await self.end(store, of)
        await self.commit(store, Retried(again, of))
        await self.commit(store, Journaled(again.uid, 1, "step", "c", b"", b"3"))
        found = await self.found(store, again.uid)
        assert (found.retry_of, found.owner, found.deaths) == (of, store.owner, 0), found
        assert [each.name for each in await store.journal(again.uid)] == ["a", "b", "c"]
        assert (await store.journal(again.uid))[:2] == await store.journal(of) == entries
        assert await self.named(store, "h1") == again.uid
        await self.refused(store, "handle_expired", Retried(record(3), "unknown"))

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

    async def check_A9_a_call_is_ready_in_the_attempt_that_said_so(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        assert (await self.found(store, of)).ready == 0
        await self.commit(store, Attempted(of, 1, 2, None))
        await self.commit(store, Readied(of, 1))
        await self.commit(store, Readied(of, 1))
        found = await self.found(store, of)
        assert (found.attempt, found.ready) == (2, 2), found
        await self.commit(store, Attempted(of, 1, 3, None))
        assert (await self.found(store, of)).ready == 2
        await self.end(store, of)
        await self.refused(store, "already_stopped", Readied(of, 1))

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
        Readied(of, fence),
        Journaled(of, fence, "step", "fenced", b"", b""),
        WaitOpened(of, fence, "key-fenced", "event", "e", "secret-1"),
        Parked(of, fence, Parking(), NOON),
    ]
