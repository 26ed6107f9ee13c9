"""Checks of lists by status, kind and metadata, of counts, and of annotations: progress, priority, metadata."""

from collections import Counter
from typing import Any

from keephold.handles.state import (
    Ended,
    EndedBy,
    Failure,
    Ok,
    Outcome,
    PrintedOutput,
    Progress,
    Reply,
    Running,
    Stopped,
    transition,
)
from keephold.store.base import (
    Annotated,
    Browse,
    Changed,
    Collected,
    Exposed,
    Kind,
    Op,
    Parking,
    Registered,
    Status,
    status_of,
)
from keephold.store.rules import CANCELLED, REVOKED, TIMED_OUT
from keephold.testing.conformance.suite import DAY, NOON, Suite, copy, record, shared, uid

ENDS: list[tuple[Outcome, EndedBy, Status]] = [
    (Ok(None), "self", "completed"),
    (PrintedOutput(), "self", "completed"),
    (Reply("r", "m", True, "unknown_tool"), "self", "completed"),
    (Ok({"outcome": {"type": "error", "code": "timeout"}, "ended_by": "timeout"}), "self", "completed"),
    (Failure("broke"), "self", "failed"),
    (CANCELLED, "abort", "failed"),
    (REVOKED, "self", "failed"),
    (Failure("gone", "crashed"), "crash", "failed"),
    (Failure("late", "timeout"), "self", "timeout"),
    (TIMED_OUT, "timeout", "timeout"),
    (Failure("late", "tool_error"), "timeout", "timeout"),
]
STATUSES: tuple[Status, ...] = ("pending", "completed", "failed", "timeout")


class ListChecks(Suite):
    """Handles by what a list asks for."""

    async def check_W1_every_end_has_its_status(self, store: Browse) -> None:
        """In every way: registered as such, ended by its owner, or parked and ended from outside."""
        wanted: dict[Status, list[str]] = {status: [] for status in STATUSES}
        number = 0
        for outcome, ended_by, status in ENDS:
            of = await self.begin(store, number)
            await self.end(store, of, outcome, ended_by)
            parked, _ = await self.park(store, number + 1)
            await self.end(store, parked, outcome, ended_by)
            born = record(number + 2, state=Stopped(NOON, None, NOON + 1, outcome, ended_by))
            await self.commit(store, Registered(born))
            wanted[status] += [of, parked, born.uid]
            number += 3
            assert status_of(await self.stopped(store, of)) == status
        wanted["pending"] = [await self.begin(store, 100), await self.begin(store, 101, start=False)]
        for status in STATUSES:
            for conversation in ("main", None):
                found = await self.listed(store, conversation=conversation, status=status)
                assert found == wanted[status], (status, conversation, found)
        counts = {("tool", status): len(wanted[status]) for status in STATUSES}
        assert await store.tally("main") == counts, await store.tally("main")

    async def check_W1_kinds_and_statuses_in_one_order(self, store: Browse) -> None:
        kinds: tuple[Kind, ...] = ("tool", "agent", "workflow", "timer", "hook", "custom")
        ops: list[Op] = []
        for number in range(60):
            conversation = "main" if number % 5 else "other"
            ops.append(
                Registered(record(number, kind=kinds[number % 6], conversation=conversation, state=_state(number)))
            )
        await self.commit(store, *ops)
        all_of_them = [number for number in range(60) if number % 5]
        for kind in (None, *kinds):
            for status in (None, *STATUSES):
                wanted = [
                    uid(number)
                    for number in all_of_them
                    if kind in (None, kinds[number % 6]) and status in (None, STATUSES[number % 4])
                ]
                found = await self.listed(store, conversation="main", kind=kind, status=status)
                assert found == wanted, (kind, status, found)
                paged = await self.paged(store, 3, conversation="main", kind=kind, status=status)
                assert paged == wanted, (kind, status, paged)
        counts = Counter((kinds[number % 6], STATUSES[number % 4]) for number in all_of_them)
        assert await store.tally("main") == counts
        assert await store.tally("nowhere") == {}
        both = await self.listed(store, kind="agent", status="completed")
        assert both == [uid(number) for number in range(60) if number % 6 == 1 and number % 4 == 1]
        nothing: Any = "x' OR 1 --"
        assert await self.listed(store, conversation="main", kind=nothing) == []
        assert await self.listed(store, conversation="main", status=nothing) == []

    async def check_W1_filters_go_together(self, store: Browse) -> None:
        await self.begin(store, 1, kind="hook", turn="turn-2")
        await self.begin(store, 2, kind="hook")
        parked, _ = await self.park(store, 3, kind="hook")
        await self.begin(store, 4)
        hooks = {"conversation": "main", "kind": "hook", "status": "pending"}
        for narrowed, wanted in (
            ({"turn": "turn-2"}, [uid(1)]),
            ({"parked": True}, [parked]),
            ({"parked": False}, [uid(1), uid(2)]),
            ({"state": "running"}, [uid(1), uid(2), parked]),
            ({"state": "stopped"}, []),
            ({"stateful": False}, []),
            ({"stateful": None}, [uid(1), uid(2), parked]),
        ):
            found = await self.listed(store, **{**hooks, **narrowed})
            assert found == wanted, (narrowed, found)

    async def check_W1_a_timer_is_listed_while_it_lasts(self, store: Browse) -> None:
        spawned = await self.begin(store, 1, kind="timer")
        slept = await self.begin(store, 2, kind="timer", stateful=False)
        await self.begin(store, 3, stateful=False)
        await self.begin(store, 4, kind="timer", stateful=False, conversation="other")
        last = await self.begin(store, 5)
        for narrowed, wanted in (
            ({}, [spawned, slept, last]),
            ({"kind": "timer"}, [spawned, slept]),
            ({"status": "pending"}, [spawned, slept, last]),
            ({"status": "pending", "kind": "timer"}, [spawned, slept]),
            ({"status": "pending", "kind": "tool"}, [last]),
            ({"status": "completed"}, []),
            ({"timers": False}, [spawned, last]),
            ({"timers": False, "kind": "timer"}, [spawned]),
            ({"after": spawned, "kind": "timer"}, [slept]),
        ):
            found = await self.listed(store, **{"conversation": "main", "timers": True, **narrowed})
            assert found == wanted, (narrowed, found)
        assert await store.tally("main") == {("timer", "pending"): 2, ("tool", "pending"): 1}
        assert await store.tally("main", timers=False) == {("timer", "pending"): 1, ("tool", "pending"): 1}
        assert await store.tally("other") == {("timer", "pending"): 1}
        await self.end(store, slept)
        assert await self.listed(store, conversation="main", kind="timer", timers=True) == [spawned]
        assert await store.tally("main") == {("timer", "pending"): 1, ("tool", "pending"): 1}

    async def check_W1_counts_follow_what_happens(self, store: Browse) -> None:
        of = await self.begin(store, 1, stateful=False)
        assert await store.tally("main") == {}
        await self.commit(store, Exposed(of, "call:x"))
        assert await store.tally("main") == {("tool", "pending"): 1}
        await self.end(store, of)
        assert await store.tally("main") == {("tool", "completed"): 1}
        other = await self.begin(store, 2)
        end = Ended(NOON + 5, Ok(1))
        wrong = Changed(uid(9), 1, end, transition(Running(NOON, NOON), end))
        await self.refused(store, "lease_lost", await self.ending(store, other), wrong)
        assert await store.tally("main") == {("tool", "completed"): 1, ("tool", "pending"): 1}
        await self.commit(store, Collected(NOON + DAY, NOON + DAY))
        assert await store.tally("main") == {("tool", "pending"): 1}

    async def check_W8_metadata_is_equal_as_json(self, store: Browse) -> None:
        values: list[Any] = [
            1,
            True,
            "1",
            None,
            [1, {"a": 2, "b": [None]}],
            {"x": 1, "y": 2},
            0,
            False,
            "",
            "ü'\"",
            2.5,
        ]
        for number, value in enumerate(values):
            await self.begin(store, number, metadata={"key": value, "n": number})
        await self.begin(store, 50, metadata={"other": 1})
        await self.begin(store, 51)
        for number, value in enumerate(values):
            found = await self.listed(store, conversation="main", metadata={"key": value})
            assert found == [uid(number)], (value, found)
            assert await self.listed(store, metadata={"key": value, "n": number}, kind="tool") == [uid(number)]
            assert await self.listed(store, metadata={"key": value, "n": number + 1}) == []
            other = {"key": value, "status": "x"}
            assert await self.listed(store, metadata=other, conversation="main", kind="tool") == []
        assert await self.listed(store, metadata={"key": {"y": 2, "x": 1}}) == [uid(5)], "keys have no order"
        assert await self.listed(store, metadata={"key": 1.0}) == [uid(0)], "as JSON has one kind of number"
        for part in ([1], {"x": 1}):
            assert await self.listed(store, metadata={"key": part}) == []


def _state(number: int) -> Any:
    """Return the state of the handle of that number, so that the statuses take turns."""
    outcome: Outcome
    match STATUSES[number % 4]:
        case "pending":
            return Running(NOON, NOON)
        case "completed":
            outcome = Ok(number)
        case "failed":
            outcome = Failure("broke")
        case "timeout":
            outcome = TIMED_OUT
    return Stopped(NOON, NOON, NOON + 1, outcome)


class AnnotationChecks(Suite):
    """Handles that are annotated."""

    async def check_W8_progress_is_kept(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        assert (await self.found(store, of)).progress is None
        for progress in (Progress(1), Progress(2.5, 10, "ü"), Progress(0, None, "")):
            (result,) = await self.commit(store, Annotated(of, progress))
            assert copy(result) == await self.found(store, of), result
            assert (await self.found(store, of)).progress == progress
        await self.end(store, of)
        assert (await self.found(store, of)).progress == Progress(0, None, "")

    async def check_W8_metadata_is_changed_key_by_key(self, store: Browse) -> None:
        of = await self.begin(store, 1, metadata={"a": 1, "b": {"x": 1, "y": 2}, "kept": None})
        changes = {"b": {"x": 3}, "c": [None], "a": None, "never": None}
        (result,) = await self.commit(store, Annotated(of, metadata=changes))
        assert result.metadata == {"b": {"x": 3}, "c": [None], "kept": None}, result.metadata
        assert (await self.found(store, of)).metadata == result.metadata
        await self.commit(store, Annotated(of, metadata={"b": None, "c": None, "kept": None}))
        assert (await self.found(store, of)).metadata == {}
        bare = await self.begin(store, 2)
        (result,) = await self.commit(store, Annotated(bare, metadata={"ü": 1}))
        assert result.metadata == {"ü": 1}

    async def check_W11_what_is_not_given_stays(self, store: Browse) -> None:
        of = await self.begin(store, 1, metadata={"a": 1}, priority=3)
        before = await self.found(store, of)
        await self.commit(store, Annotated(of))
        assert await self.found(store, of) == before
        await self.commit(store, Annotated(of, Progress(1), 0, {"b": 2}))
        await self.commit(store, Annotated(of, priority=-5))
        found = await self.found(store, of)
        assert (found.progress, found.priority, found.metadata) == (Progress(1), -5, {"a": 1, "b": 2}), found
        assert (found.state, found.owner, found.fence) == (before.state, before.owner, before.fence)

    async def check_W8_parked_and_pending_handles_too(self, store: Browse) -> None:
        parked, _ = await self.park(store, 1, Parking())
        pending = await self.begin(store, 2, start=False)
        for of in (parked, pending):
            before = await self.found(store, of)
            await self.commit(store, Annotated(of, Progress(1)))
            before.progress = Progress(1)
            assert await self.found(store, of) == before

    async def check_W8_not_of_one_that_has_stopped(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        await self.end(store, of)
        await self.refused(store, "already_stopped", Annotated(of, Progress(1)))
        await self.refused(store, "lease_lost", Annotated(uid(9), Progress(1)))

    @shared
    async def check_W8_others_hear_of_it(self, store: Browse) -> None:
        """Any process may annotate a handle."""
        other = await self.second(store)
        of = await self.begin(store, 1)
        await self.word(other, of)
        await self.commit(other, Annotated(of, Progress(1), 2, {"a": 1}))
        await self.word(store, of)
        found = await self.found(store, of)
        assert (found.progress, found.priority, found.metadata, found.owner) == (
            Progress(1), 2, {"a": 1}, store.owner,
        )  # fmt: skip
        last = await self.reopened(other)
        assert (await self.found(last, of)).progress == Progress(1)
