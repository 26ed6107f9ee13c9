"""Checks of deferred completion: keys, parking, resolutions, deadlines, revocation, hooks."""

from typing import Any

from keephold.handles.state import (
    Ended,
    EndedBy,
    Failure,
    Ok,
    Outcome,
    PrintedOutput,
    Reply,
    Running,
    Stopped,
    transition,
)
from keephold.store.base import (
    Browse,
    Changed,
    Claimed,
    Collected,
    HookCalled,
    KeptOutput,
    Op,
    Parked,
    Parking,
    Registered,
    Released,
    Resolution,
    Resolved,
    Resolving,
    Revoked,
    WaitOpened,
    WaitRow,
)
from keephold.store.rules import CANCELLED, REVOKED, TIMED_OUT, resolution_of
from keephold.testing.conformance.suite import DAY, NOON, Suite, record, state_tag, uid, uids

RESOLUTIONS = (
    (Resolution("ok", {"a": [1, None, "ü"]}), Ok({"a": [1, None, "ü"]}), "self"),
    (Resolution("ok", None), Ok(None), "self"),
    (Resolution("err", {"code": "tool_error", "message": "no"}), Failure("no", "tool_error"), "self"),
    (Resolution("timeout"), TIMED_OUT, "timeout"),
    (Resolution("cancelled"), CANCELLED, "cancel"),
)


class DeferredChecks(Suite):
    """Calls that wait for their completion from outside."""

    async def check_D1_a_key_is_taken_once(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        key_id = await self.take_key(store, of)
        await self.take_key(store, of)
        row = WaitRow(key_id, of, "main", "completion", "completion", "secret-1")
        assert await store.wait(key_id) == row
        assert await store.waits(of) == [row]
        await self.commit(store, WaitOpened(of, 1, "key-e", "event", "approved:ü", "secret-2"))
        event = WaitRow("key-e", of, "main", "event", "approved:ü", "secret-2")
        assert await store.waits(of) == [row, event]
        assert await store.wait("key-e") == event
        assert (await self.found(store, of)).parking is None

    async def check_D1_pending_needs_a_key(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.refused(store, "pending_tool_missing_completion_key", Parked(of, 1, Parking(), NOON + 2))
        await self.commit(store, WaitOpened(of, 1, "key-e", "event", "e", "secret-1"))
        await self.refused(store, "pending_tool_missing_completion_key", Parked(of, 1, Parking(), NOON + 2))

    async def check_D1_a_plain_result_resolves_the_key(self, store: Browse) -> None:
        outcomes: list[Outcome] = [
            Ok({"a": 1}),
            PrintedOutput(),
            Failure("no", "tool_error"),
            Failure("aborted by you", "aborted"),
            TIMED_OUT,
            Reply("r", "m"),
        ]
        for number, outcome in enumerate(outcomes):
            of = await self.begin(store, number)
            key_id = await self.take_key(store, of)
            await self.end(store, of, outcome)
            resolution = resolution_of(outcome)
            assert await self.resolution(store, key_id) == resolution, outcome
            late = await self.resolve(store, key_id, Resolution("ok", "late"))
            assert late == Resolving("already_resolved", resolution), late
            assert (await self.stopped(store, of)).outcome == outcome
        of = await self.begin(store, 50)
        await self.take_key(store, of, Parking())
        await self.end(store, of)
        of = await self.begin(store, 51)
        await self.commit(store, WaitOpened(of, 1, "key-e", "event", "e", "secret-1"))
        await self.end(store, of)
        assert await store.notifications("main") == [], "its runtime tells of a call that was not parked"

    async def check_D2_a_parked_call_is_nobodys(self, store: Browse) -> None:
        parking = Parking(NOON + 60, "fail_turn", "ignore", True, True)
        of = await self.begin(store, 1)
        await self.take_key(store, of)
        (state,) = await self.commit(store, Parked(of, 1, parking, NOON + 2, KeptOutput(1, 1, 0, data=b"x")))
        found = await self.found(store, of)
        assert state == found.state == Running(NOON, NOON + 1), state
        assert (found.owner, found.parking, found.output) == (None, parking, KeptOutput(1, 1, 0, data=b"x")), found
        assert await store.owned(store.owner) == []
        assert await store.owned(None) == []
        assert await self.listed(store, parked=True) == [of]
        assert await store.notifications("main") == []

    async def check_D4_every_resolution_ends_a_parked_call(self, store: Browse) -> None:
        for number, (resolution, outcome, ended_by) in enumerate(RESOLUTIONS):
            of, key_id = await self.park(store, number, Parking(hook=True))
            result = await self.resolve(store, key_id, resolution)
            stopped = await self.stopped(store, of)
            assert stopped == Stopped(NOON, NOON + 1, NOON + 30, outcome, ended_by), stopped  # type: ignore[arg-type]
            assert (result.status, result.uid, result.state) == ("accepted", of, stopped), result
            assert await self.resolution(store, key_id) == resolution
            assert (await self.found(store, of)).owner is None, "a resolution from outside calls no hook"
        assert await store.owned(store.owner) == [] and await store.owned(None) == []

    async def check_D5_first_resolution_wins(self, store: Browse) -> None:
        of, key_id = await self.park(store, 1)
        told: list[Any] = []
        for number in range(3):
            store.commit(
                [Resolved(key_id, Resolution("ok", number), NOON + 3)],
                lambda results: told.append(results[0]),
                told.append,
            )
        await self.commit(store)
        first = Resolution("ok", 0)
        assert [each.status for each in told] == ["accepted", "already_resolved", "already_resolved"], told
        assert told[1].terminal == told[2].terminal == first and told[1].uid is None and told[1].state is None
        assert (await self.stopped(store, of)).outcome == Ok(0)
        assert len(await store.notifications("main")) == 1

    async def check_D5_a_resolution_before_anyone_waits_is_kept(self, store: Browse) -> None:
        for number, (resolution, outcome, _) in enumerate(RESOLUTIONS):
            of = await self.begin(store, number)
            key_id = await self.take_key(store, of)
            result = await self.resolve(store, key_id, resolution)
            assert (result.status, result.uid, result.state) == ("accepted", None, None), result
            found = await self.found(store, of)
            assert (state_tag(found.state), found.owner) == ("running", store.owner), "its owner continues it"
            (state,) = await self.commit(store, Parked(of, 1, Parking(), NOON + 40, KeptOutput(1, 1, 0, data=b"x")))
            stopped = await self.stopped(store, of)
            assert state == stopped and stopped.outcome == outcome and stopped.stopped == NOON + 40, state
            found = await self.found(store, of)
            assert found.owner is None and found.output == KeptOutput(1, 1, 0, data=b"x")
        assert await self.listed(store, parked=True) == []
        assert len(await store.notifications("main")) == len(RESOLUTIONS)

    async def check_D5_a_resolved_event_stops_nothing(self, store: Browse) -> None:
        of, _ = await self.park(store, 1)
        other = await self.begin(store, 2)
        for each in (of, other):
            await self.commit(store, WaitOpened(each, 1, f"event-{each}", "event", "e", "secret-1"))
            result = await self.resolve(store, f"event-{each}", Resolution("ok", 5))
            assert (result.status, result.uid) == ("accepted", None), result
            assert await self.resolution(store, f"event-{each}") == Resolution("ok", 5)
            assert state_tag((await self.found(store, each)).state) == "running"

    async def check_D9_the_end_of_a_parked_call_is_notified(self, store: Browse) -> None:
        good, key_id = await self.park(store, 1, id="good")
        await self.resolve(store, key_id)
        bad, key_id = await self.park(store, 2, id="bad")
        await self.resolve(store, key_id, Resolution("err", {"code": "tool_error", "message": "no way"}))
        late, _ = await self.park(store, 3, id="late")
        await self.end(store, late, TIMED_OUT, "timeout")
        gone, _ = await self.park(store, 4, id="gone")
        await self.end(store, gone, CANCELLED, "abort")
        told = [(each.kind, each.level, each.message, each.at, each.uid) for each in await store.notifications("main")]
        assert told == [
            ("tool.stopped", "info", "`good` (deploy) stopped.", NOON + 30, good),
            ("tool.failed", "error", "`bad` (deploy) failed: no way", NOON + 30, bad),
            ("tool.failed", "error", f"`late` (deploy) failed: {TIMED_OUT.message}", NOON + 60, late),
            ("tool.stopped", "info", f"`gone` (deploy) stopped: {CANCELLED.message}", NOON + 60, gone),
        ], told
        assert await store.notifications("other") == []

    async def check_D7_deadlines_are_due(self, store: Browse) -> None:
        for number, deadline in ((1, NOON + 30), (2, NOON + 10), (3, None), (4, NOON + 20), (5, NOON + 20)):
            await self.park(store, number, Parking(deadline=deadline))
        running = await self.begin(store, 6)
        await self.take_key(store, running, Parking(deadline=NOON))
        assert await store.due(NOON + 5) == ([], NOON + 10)
        for _ in range(2):  # until a process ends them
            due, following = await store.due(NOON + 20)
            assert (sorted(uids(due)), following) == ([uid(2), uid(4), uid(5)], NOON + 30), (due, following)
        due, following = await store.due(NOON + 100, limit=1)
        assert len(due) == 1 and due[0].uid == uid(2), due
        await self.end(store, uid(2), TIMED_OUT, "timeout")
        await self.resolve(store, f"key-{uid(4)}")
        due, following = await store.due(NOON + 20)
        assert (uids(due), following) == ([uid(5)], NOON + 30), (due, following)
        await self.end(store, uid(5), TIMED_OUT, "timeout")
        assert await store.due(NOON + 29) == ([], NOON + 30)
        await self.commit(store, Claimed(uid(1), None))
        assert await store.due(NOON + 100) == ([], None), "somebody has it"
        for fence, deadline in ((2, NOON + 35), (3, NOON + 50), (4, NOON + 50)):
            await self.commit(store, Parked(uid(1), fence, Parking(deadline=deadline), NOON))
            if fence < 4:
                await self.commit(store, Claimed(uid(1), None))
        assert await store.due(NOON + 40) == ([], NOON + 50)
        due, following = await store.due(NOON + 50)
        assert (uids(due), following) == ([uid(1)], None), (due, following)
        await self.end(store, uid(1), TIMED_OUT, "timeout")
        await self.commit(store, Collected(NOON + DAY, NOON + DAY))
        assert await store.due(NOON + 100) == ([], None)

    async def check_R4_an_end_yields_to_the_accepted_completion(self, store: Browse) -> None:
        aborted = Ended(NOON + 40, Failure("Aborted.", "aborted"), "abort")
        for number, resolves in ((1, True), (2, False)):
            of = await self.begin(store, number)
            key_id = await self.take_key(store, of)
            if resolves:
                assert (await self.resolve(store, key_id)).status == "accepted"
            state = transition((await self.found(store, of)).state, aborted)
            (result,) = await self.commit(store, Changed(of, 1, aborted, state, yields=True))
            wanted = (Ok(42), "self") if resolves else (aborted.outcome, "abort")
            stopped = await self.stopped(store, of)
            assert (stopped.outcome, stopped.ended_by) == wanted, stopped
            assert result == (stopped if resolves else None), result
            assert await self.resolution(store, key_id) == Resolution(*(("ok", 42) if resolves else ("cancelled",)))
        notified = [(each.uid, each.kind) for each in await store.notifications("main")]
        assert notified == [(uid(1), "tool.stopped")], "the completion is notified, with any settings"

    async def check_D6_many_deadlines(self, store: Browse) -> None:
        total, settled = 1500, 1450
        ops: list[Op] = []
        for number in range(total):
            of, parking = uid(number), Parking(deadline=NOON + (number * 7) % total)
            ops.append(Registered(record(number, state=Running(NOON, NOON))))
            ops.append(WaitOpened(of, 1, f"key-{of}", "completion", "completion", "secret-1"))
            ops.append(Parked(of, 1, parking, NOON))
        for first in range(0, len(ops), 900):
            await self.commit(store, *ops[first : first + 900])
            done = [
                Resolved(f"key-{uid(number)}", Resolution("ok"), NOON) for number in range(first // 3, first // 3 + 300)
            ]
            await self.commit(store, *(op for number, op in enumerate(done, first // 3) if number < settled))
        due, following = await store.due(NOON + total, limit=30)
        wanted = sorted((NOON + (number * 7) % total, uid(number)) for number in range(settled, total))
        assert uids(due) == [of for _, of in wanted[:30]]
        assert following == wanted[30][0], following

    async def check_P1_a_held_call_waits_for_a_runtime(self, store: Browse) -> None:
        """Its outcome must pass a runtime before anyone sees it, whether it comes before or after it parked."""
        after, key_id = await self.park(store, 1, Parking(hold=True, deadline=NOON + 5))
        untouched, _ = await self.park(store, 2, Parking(hold=True, deadline=NOON + DAY))
        before = await self.begin(store, 3)
        early = await self.take_key(store, before)
        for each in (key_id, early):
            result = await self.resolve(store, each)
            assert (result.status, result.uid, result.state) == ("accepted", None, None), result
        (state,) = await self.commit(store, Parked(before, 1, Parking(hold=True, deadline=NOON + 5), NOON + 2))
        assert state == Running(NOON, NOON + 1)
        assert sorted(uids(await store.owned(None))) == [after, before]
        assert uids(await store.owned(None, limit=1, after=after)) == [before]
        assert await self.listed(store, parked=True) == [after, untouched, before]
        assert await store.due(NOON + 10) == ([], NOON + DAY), "what was resolved in time cannot time out"
        assert await store.notifications("main") == []
        late = await self.ending(store, after, TIMED_OUT, "timeout")
        await self.refused(store, "lease_lost", late)
        await self.commit(store, await self.ending(store, before, CANCELLED, "abort"))
        (claimed,) = await self.commit(store, Claimed(after, None))
        assert claimed.owner == store.owner and claimed.fence == 2
        assert await store.owned(None) == []
        await self.end(store, after, Ok("edited"))
        assert await self.resolution(store, key_id) == Resolution("ok", 42), "the first resolution stands"
        assert (await self.stopped(store, after)).outcome == Ok("edited")

    async def check_D5_a_call_may_time_out_although_its_key_was_resolved(self, store: Browse) -> None:
        """While the call has an owner, the owner decides."""
        of = await self.begin(store, 1)
        key_id = await self.take_key(store, of, Parking())
        await self.resolve(store, key_id)
        await self.end(store, of, Failure("too long", "timeout"), "timeout")
        assert (await self.resolve(store, key_id)).terminal == Resolution("ok", 42)

    async def check_D5_revoked_keys_are_worth_nothing(self, store: Browse) -> None:
        first, first_key = await self.park(store, 1)
        held, held_key = await self.park(store, 2, Parking(hold=True))
        owned = await self.begin(store, 3)
        owned_key = await self.take_key(store, owned)
        await self.commit(store, WaitOpened(owned, 1, "event", "event", "e", "secret-1"))
        settled, settled_key = await self.park(store, 4)
        await self.resolve(store, settled_key)
        elsewhere, elsewhere_key = await self.park(store, 5, conversation="other")
        waiting, waiting_key = await self.park(store, 6, Parking(hold=True))
        await self.resolve(store, waiting_key)
        await self.commit(store, WaitOpened(waiting, 1, "event-2", "event", "e", "secret-1"))
        (result,) = await self.commit(store, Revoked("main", NOON + 9))
        stopped, others = result
        assert sorted(of for of, _ in stopped) == [first, held], stopped
        for of, state in stopped:
            assert state == await self.stopped(store, of)
            assert isinstance(state, Stopped) and (state.outcome, state.stopped) == (REVOKED, NOON + 9), state
            assert (await self.found(store, of)).owner is None
        assert sorted(others) == ["event", "event-2", owned_key], others
        assert uids(await store.owned(None)) == [waiting], "its completion had come before"
        for key_id in (first_key, held_key, owned_key, "event"):
            row = await store.wait(key_id)
            assert row is not None and row.revoked and row.resolution is None, row
            assert await self.resolve(store, key_id) == Resolving("unknown_or_revoked")
        assert (await self.resolve(store, settled_key)).status == "already_resolved"
        assert (await self.resolve(store, elsewhere_key)).uid == elsewhere
        told = [(each.kind, each.uid) for each in await store.notifications("main")]
        assert sorted(told) == [("tool.failed", first), ("tool.failed", held), ("tool.stopped", settled)], told
        assert state_tag((await self.found(store, owned)).state) == "running"
        (again,) = await self.commit(store, Revoked("main", NOON + 9))
        assert [list(part) for part in again] == [[], []], again

    async def check_D5_a_call_cannot_park_on_a_revoked_key(self, store: Browse) -> None:
        """No process could end it any more."""
        of = await self.begin(store, 1)
        await self.take_key(store, of)
        await self.commit(store, Revoked("main", NOON + 2))
        (state,) = await self.commit(store, Parked(of, 1, Parking(), NOON + 3))
        assert isinstance(state, Stopped) and state.outcome == REVOKED, state

    async def check_D2_a_cancelled_call_makes_its_hook_due(self, store: Browse) -> None:
        cancels: tuple[EndedBy, ...] = ("abort", "cancel", "turn_end", "shutdown")
        for number, ended_by in enumerate(cancels):
            of, _ = await self.park(store, number, Parking(hook=True))
            await self.end(store, of, CANCELLED, ended_by)
            found = await self.found(store, of)
            assert found.owner == store.owner, ended_by
        due = [uid(number) for number in range(len(cancels))]
        assert uids(await store.owned(store.owner)) == due
        assert uids(await store.owned(store.owner, limit=2, after=due[0])) == due[1:3]
        for of in due:
            await self.commit(store, HookCalled(of))
            assert (await self.found(store, of)).owner is None
        assert await store.owned(store.owner) == [] and await store.owned(None) == []
        await self.commit(store, HookCalled(due[0]), HookCalled("unknown"))

    async def check_D2_a_due_hook_changes_hands(self, store: Browse) -> None:
        """A process that cannot call the hook releases the call; one that can claims it first."""
        of, _ = await self.park(store, 1, Parking(hook=True))
        await self.end(store, of, CANCELLED, "abort")
        stopped = await self.stopped(store, of)
        await self.commit(store, Released(of, 1))
        assert await store.owned(store.owner) == [] and uids(await store.owned(None)) == [of]
        (claimed,) = await self.commit(store, Claimed(of, None))
        await self.refused(store, "lease_lost", Released(of, 1))
        assert (claimed.owner, claimed.fence, claimed.state) == (store.owner, 2, stopped), claimed
        assert uids(await store.owned(store.owner)) == [of] and await store.owned(None) == []
        await self.commit(store, HookCalled(of))
        assert await self.commit(store, Claimed(of, None)) == [None]

    async def check_D2_nothing_else_makes_a_hook_due(self, store: Browse) -> None:
        cases: list[tuple[Parking, EndedBy]] = [
            (Parking(hook=True), "timeout"),
            (Parking(hook=True), "self"),
            (Parking(hook=True), "crash"),
            (Parking(hook=True, on_cancel="ignore"), "abort"),
            (Parking(hook=False), "abort"),
        ]
        for number, (parking, ended_by) in enumerate(cases):
            of, _ = await self.park(store, number, parking)
            await self.end(store, of, CANCELLED, ended_by)
            assert (await self.found(store, of)).owner is None, (parking, ended_by)
        owned = await self.begin(store, 50)
        await self.take_key(store, owned, Parking(hook=True))
        await self.end(store, owned, CANCELLED, "abort")
        assert await store.owned(store.owner) == [], "a call that was not parked had its own chance"

    async def check_B5_parked_calls_hold_their_resources(self, store: Browse) -> None:
        holder, key_id = await self.park(store, 1, resources=("file:a", "file:b"))
        await self.park(store, 2)
        running = await self.begin(store, 3, resources=("file:c",))
        await self.take_key(store, running, Parking())
        (found,) = await store.holding()
        assert (found.uid, found.resources) == (holder, ("file:a", "file:b"))
        await self.commit(store, Released(running, 1))
        assert sorted(uids(await store.holding())) == [holder, running]
        await self.resolve(store, key_id)
        assert uids(await store.holding()) == [running]
        end = await self.ending(store, running)
        assert isinstance(end, Changed)
        await self.commit(store, end)
        assert await store.holding() == []
