"""Checks of handles: registration, states, names, lists, outputs; and of handles that are parked from the start."""

from typing import Any

from keephold.handles.question import Question
from keephold.handles.state import (
    Ended,
    Failure,
    Ok,
    Outcome,
    PrintedOutput,
    Progress,
    QuestionAnswered,
    QuestionAsked,
    Reply,
    Running,
    Started,
    Stopped,
    transition,
)
from keephold.store.base import (
    Browse,
    Changed,
    Collected,
    Exposed,
    KeptOutput,
    Op,
    Parking,
    Record,
    Registered,
    Resolution,
    Resolving,
    Responded,
    Revoked,
    WaitOpened,
)
from keephold.store.rules import REVOKED, TIMED_OUT, timed_out
from keephold.testing.conformance.fencing import fenced
from keephold.testing.conformance.suite import DAY, NOON, Suite, copy, record, uid, uids

NESTED = {"a": [1, 2.5, None, True, {"ü": ["\U0001f600", "\u0000", ""]}], "": {}, "big": 2**62, "small": -(2**62)}

OUTCOMES: list[Outcome] = [
    Ok(None),
    Ok(""),
    Ok("text\n"),
    Ok(NESTED),
    Ok([]),
    Ok(0.1),
    PrintedOutput(),
    Failure("it broke"),
    Failure("it broke", "command_failed", ("line 1", "line 2"), True),
    Reply('{"id":"x"}', "cut", True, "unknown_tool", ((uid(1), 5), (uid(2), 0)), ((uid(1), "waiting", 3),)),
    Reply("", ""),
]


class HandleChecks(Suite):
    """Handles, one by one and in lists."""

    async def check_S4_a_record_comes_back_as_it_was_given(self, store: Browse) -> None:
        given = record(
            1,
            id="dépl/oy:1",
            kind="workflow",
            priority=-3,
            position=7,
            batch=12,
            metadata=NESTED,
            progress=Progress(1, 2, "x"),
            resources=("file:a", "file:ü"),
            arguments=NESTED,
        )
        expected = copy(given)
        await self.commit(store, Registered(given))
        expected.owner = store.owner
        found = await self.found(store, uid(1))
        assert found == expected, (found, expected)

    async def check_E6_a_handle_is_ours_until_it_has_stopped(self, store: Browse) -> None:
        await self.begin(store, 1)
        found = await self.found(store, uid(1))
        assert (found.owner, found.fence, found.attempt) == (store.owner, 1, 1), found
        assert store.alive(store.owner)
        assert not store.alive("nobody")
        assert uids(await store.owned(store.owner)) == [uid(1)]
        assert await store.owners() == []
        assert await store.owned("nobody") == []
        await self.end(store, uid(1))
        assert (await self.found(store, uid(1))).owner is None and await store.owned(store.owner) == []

    async def check_S1_every_state_comes_back(self, store: Browse) -> None:
        question = Question(id="q", text="Sure?", answer_type={"Select": {"options": ["a", "b"]}}, pre_amble="Well.")
        await self.begin(store, 1, start=False)
        state = (await self.found(store, uid(1))).state
        for event in (
            Started(NOON + 1.25),
            QuestionAsked(NOON + 2, question),
            QuestionAnswered(NOON + 3),
            Ended(NOON + 4, Ok("x")),
        ):
            state = transition(state, event)
            await self.commit(store, Changed(uid(1), 1, event, state))
            found = (await self.found(store, uid(1))).state
            assert found == state, (found, state)
        assert isinstance(state, Stopped) and state.started == NOON + 1.25

    async def check_S3_every_outcome_comes_back(self, store: Browse) -> None:
        for number, outcome in enumerate(OUTCOMES):
            of = await self.begin(store, number)
            event = Ended(NOON + 9, outcome, "crash", 3, 9)
            await self.commit(store, Changed(of, 1, event, transition(Running(NOON, NOON + 1), event)))
            stopped = await self.stopped(store, of)
            assert stopped == Stopped(NOON, NOON + 1, NOON + 9, outcome, "crash", 3, 9), (outcome, stopped)
            assert type(stopped.outcome) is type(outcome)

    async def check_S2_a_handle_that_never_ran_stops(self, store: Browse) -> None:
        of = await self.begin(store, 1, start=False)
        await self.end(store, of, Failure("refused", "permission_denied"))
        assert (await self.stopped(store, of)).started is None

    async def check_S2_stopped_is_final(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        late = await self.ending(store, of, Ok("late"), at=NOON + 70)
        await self.end(store, of, Ok("first"))
        await self.refused(store, "already_stopped", late)
        first = (await self.stopped(store, of)).outcome
        assert first == Ok("first"), first
        for op in fenced(of, 1):
            await self.refused(store, "already_stopped", op)

    async def check_S2_of_two_ends_at_once_the_first_counts(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        ends = [await self.ending(store, of, Ok(number)) for number in range(3)]
        told: list[str] = []
        for end in ends:
            store.commit([end], lambda _: told.append("written"), lambda error: told.append(error.code))  # type: ignore[attr-defined]
        await self.commit(store)
        assert told == ["written", "already_stopped", "already_stopped"], told
        assert (await self.stopped(store, of)).outcome == Ok(0)

    async def check_S6_an_active_id_is_refused(self, store: Browse) -> None:
        await self.begin(store, 1, id="x")
        refusal = await self.refused(store, "batch_rejected", Registered(record(2, id="x")))
        assert "x" in str(refusal)
        await self.begin(store, 3, id="x", conversation="other")
        await self.refused(store, "batch_rejected", Registered(record(4, id="y")), Registered(record(5, id="y")))
        assert await store.named("main", "y") is None

    async def check_S6_the_id_of_a_stopped_handle_names_the_newest(self, store: Browse) -> None:
        for number in (1, 2, 3):
            await self.begin(store, number, id="x")
            assert await self.named(store, "x") == uid(number)
            await self.end(store, uid(number))
        assert await self.named(store, "x") == uid(3)
        assert await self.found(store, uid(1)) is not None

    async def check_S6_one_shot_calls_take_no_id(self, store: Browse) -> None:
        await self.begin(store, 1, id="x", stateful=False)
        await self.begin(store, 2, id="x", stateful=False)
        await self.begin(store, 3, id="x")
        assert await self.named(store, "x") == uid(3)
        await self.begin(store, 4, call_id="x", stateful=False)
        await self.begin(store, 5, call_id="x", stateful=False)

    async def check_S6_a_uid_is_used_once(self, store: Browse) -> None:
        await self.begin(store, 1)
        await self.refused(store, "batch_rejected", Registered(record(1, id="x", conversation="other")))
        await self.end(store, uid(1))
        await self.refused(store, "batch_rejected", Registered(record(1, id="x", stateful=False)))

    async def check_B6_a_handle_may_be_stopped_from_the_start(self, store: Browse) -> None:
        stopped = Stopped(NOON, None, NOON, Failure("refused", "permission_denied"))
        await self.commit(store, Registered(record(1, id="x", state=stopped)), Registered(record(2, id="x")))
        found = await self.found(store, uid(1))
        assert (found.state, found.owner) == (stopped, None), found
        assert uids(await store.owned(store.owner)) == [uid(2)]
        assert await self.commit(store, Collected(NOON + 1, NOON + 1)) == [1]

    async def check_O4_a_one_shot_call_is_found_by_its_label(self, store: Browse) -> None:
        await self.begin(store, 1, call_id="l", stateful=False)
        await self.end(store, uid(1))
        assert (await self._called(store, "l")) == uid(1)
        await self.begin(store, 2, call_id="l", stateful=False)
        assert (await self._called(store, "l")) == uid(2)
        await self.end(store, uid(2))
        await self.begin(store, 3, call_id="l")
        assert (await self._called(store, "l")) == uid(2), "a spawned handle is not a one-shot call"
        assert await store.called("other", "l") is None
        await self.commit(store, Exposed(uid(2), "call:l"))
        assert (await self._called(store, "l")) == uid(1), "an exposed call has a name instead"
        assert await self._called(store, "unknown") is None

    async def _called(self, store: Browse, label: str) -> str | None:
        found = await store.called("main", label)
        return None if found is None else found.uid

    async def check_D10_an_exposed_call_has_a_name(self, store: Browse) -> None:
        of = await self.begin(store, 1, stateful=False)
        assert await self.listed(store) == []
        await self.commit(store, Exposed(of, "call:label1"))
        found = await store.named("main", "call:label1")
        assert isinstance(found, Record), found
        assert (found.uid, found.id, found.stateful) == (of, "call:label1", True)
        assert await self.listed(store) == [of]
        await self.begin(store, 2, stateful=False)
        await self.refused(store, "batch_rejected", Exposed(uid(2), "call:label1"))
        await self.refused(store, "batch_rejected", Registered(record(3, id="call:label1")))

    async def check_S5_what_is_not_there_is_none(self, store: Browse) -> None:
        assert await store.handle(uid(1)) is None
        assert await store.named("main", "x") is None
        assert await store.called("main", "x") is None
        assert await self.listed(store) == []
        assert await store.journal(uid(1)) == []
        assert await store.waits(uid(1)) == []
        assert await self.resolve(store, "key") == Resolving("unknown_or_revoked")
        assert await store.wait("key") is None
        assert await store.secret("other") is None
        assert await store.due(NOON) == ([], None)
        assert await store.turn("main") is None
        assert await store.process_events("p") == []
        assert await store.notifications("main") == []
        assert await store.requests() == []
        assert await store.reply("r") is None
        assert await store.holding() == []
        assert await store.owners() == []
        assert await store.owned(None) == []
        assert await store.owned(store.owner) == []

    async def check_Y_handles_are_listed_oldest_first(self, store: Browse) -> None:
        for number in range(1, 8):
            await self.begin(store, number)
        everything = [uid(number) for number in range(1, 8)]
        assert await self.listed(store) == everything
        assert await self.listed(store, limit=3) == everything[:3]
        assert await self.listed(store, limit=3, after=uid(3)) == everything[3:6]
        assert await self.listed(store, after=uid(7)) == []
        ours = uids(await store.owned(store.owner, 4))
        assert ours == everything[:4], ours
        assert uids(await store.owned(store.owner, 4, ours[-1])) == everything[4:]
        await self.end(store, uid(3))
        assert await self.commit(store, Collected(NOON + 1000, NOON + 1000)) == [1]
        assert await self.listed(store, after=uid(3)) == everything[3:], "also after one that is gone"
        assert await self.listed(store, after=uid(3), newest=True) == everything[1::-1]

    async def check_Y_handles_are_chosen(self, store: Browse) -> None:
        await self.begin(store, 1, start=False)
        await self.begin(store, 2, turn="turn-2")
        await self.begin(store, 3, conversation="other")
        await self.begin(store, 4, stateful=False)
        await self.begin(store, 5)
        await self.end(store, uid(5))
        await self.park(store, 6)
        await self.park(store, 7)
        await self.end(store, uid(7))
        wanted: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [1, 2, 3, 5, 6, 7]),
            ({"stateful": None}, [1, 2, 3, 4, 5, 6, 7]),
            ({"stateful": False}, [4]),
            ({"conversation": "other"}, [3]),
            ({"turn": "turn-2"}, [2]),
            ({"state": "pending"}, [1]),
            ({"state": "running"}, [2, 3, 6]),
            ({"state": "stopped"}, [5, 7]),
            ({"state": "waiting"}, []),
            ({"parked": True}, [6]),
            ({"parked": False}, [1, 2, 3, 5, 7]),
            ({"conversation": "main", "state": "running", "parked": False, "turn": "turn-2"}, [2]),
            ({"state": "running", "after": uid(2), "limit": 1}, [3]),
        ]
        for chosen, numbers in wanted:
            found = await self.listed(store, **chosen)
            assert found == [uid(number) for number in numbers], (chosen, found)

    async def check_C5_cursors_only_move_forward(self, store: Browse) -> None:
        of = await self.begin(store, 1)
        for offset, expected in ((5, 5), (3, 5), (9, 9)):
            await self.commit(store, Responded("main", "turn-1", 1, (), ((of, offset), ("unknown", 1))))
            assert (await self.found(store, of)).cursor == expected

    async def check_O5_kept_output_comes_back(self, store: Browse) -> None:
        outputs = [
            KeptOutput(3, 2, 1, data=b"\xff\x00a"),
            KeptOutput(1 << 40, 1 << 39, 1 << 39, 5, 77, b"", "output-1"),
            KeptOutput(1 << 20, 1 << 20, 0, data=bytes(range(256)) * 4096),
        ]
        for number, output in enumerate(outputs):
            of = await self.begin(store, number)
            await self.end(store, of, PrintedOutput(), output=output)
            found = (await self.found(store, of)).output
            assert found == output, number

    async def check_K6_big_and_strange_values_come_back(self, store: Browse) -> None:
        big = 'ü\U0001f600\u0000"\\\u2028' * (1 << 17)
        of = await self.begin(store, 1, arguments={"text": big, "deep": NESTED})
        await self.end(store, of, Ok({"text": big}))
        found = await self.found(store, of)
        assert found.arguments == {"text": big, "deep": NESTED}
        assert (await self.stopped(store, of)).outcome == Ok({"text": big})


LATE = "Operation timed out after 50ms"


def creation(number: int, parking: Parking | None = None, **changes: Any) -> tuple[list[Op], str, str]:
    """Return the operations that make a parked handle, its uid, and the id of its key."""
    parking = Parking() if parking is None else parking
    new = record(number, **{"state": Running(NOON, NOON), "kind": "hook", "owner": None, "parking": parking, **changes})
    key_id = f"key-{new.uid}"
    opened = WaitOpened(new.uid, new.fence, key_id, "completion", "completion", "secret-1")
    return [Registered(new), opened], new.uid, key_id


class ParkedChecks(Suite):
    """Handles that are parked from the start."""

    async def create(self, store: Browse, number: int, parking: Parking | None = None, **changes: Any) -> str:
        """Make a parked handle; return the id of its key."""
        ops, _, key_id = creation(number, parking, **changes)
        await self.commit(store, *ops)
        return key_id

    async def check_W1_a_created_handle_is_parked_from_the_start(self, store: Browse) -> None:
        parking = Parking(NOON + 60, "fail_turn", "ignore", timed_out=LATE)
        await self.create(store, 1, parking, resources=("file:a",))
        parked, _ = await self.park(store, 2, parking, resources=("file:a",))
        await self.begin(store, 3)
        found = await self.found(store, uid(1))
        assert (found.owner, found.parking, found.state) == (None, parking, Running(NOON, NOON)), found
        assert await self.listed(store, parked=True) == [uid(1), parked]
        assert await self.listed(store, parked=True, conversation="main") == [uid(1), parked]
        assert uids(await store.holding()) == [uid(1), parked]
        assert uids(await store.owned(store.owner)) == [uid(3)], "nobody runs it"
        assert await store.owned(None) == [] and await store.owners() == []
        assert await store.notifications("main") == []

    async def check_W1_its_key_ends_it_and_that_is_notified(self, store: Browse) -> None:
        for number, resolution in enumerate((Resolution("ok", {"a": 1}), Resolution("cancelled"))):
            key_id = await self.create(store, number, Parking(hook=True, carriers=("turn",)))
            result = await self.resolve(store, key_id, resolution)
            stopped = await self.stopped(store, uid(number))
            assert (result.status, result.uid, result.state) == ("accepted", uid(number), stopped), result
            assert (stopped.started, stopped.stopped) == (NOON, NOON + 30)
        assert (await self.stopped(store, uid(0))).outcome == Ok({"a": 1})
        told = await store.notifications("main")
        assert [(each.uid, each.kind, each.carriers) for each in told] == [
            (uid(0), "tool.stopped", ("turn",)),
            (uid(1), "tool.stopped", ("turn",)),
        ], told
        assert await store.owned(store.owner) == [] == await store.owned(None), "no hook is due"
        late = await self.resolve(store, f"key-{uid(0)}", Resolution("ok", "late"))
        assert (late.status, late.terminal) == ("already_resolved", Resolution("ok", {"a": 1})), late

    async def check_W5_its_deadline_comes(self, store: Browse) -> None:
        for number in (1, 2):
            await self.create(store, number, Parking(NOON + 10 * number, timed_out=LATE))
        await self.create(store, 3)
        assert await store.due(NOON) == ([], NOON + 10)
        due, following = await store.due(NOON + 10)
        assert (uids(due), following) == ([uid(1)], NOON + 20), (due, following)
        await self.end(store, uid(1), timed_out(due[0].parking), "timeout")
        stopped = await self.stopped(store, uid(1))
        assert stopped.outcome == Failure(LATE, TIMED_OUT.code), stopped
        assert await self.resolution(store, f"key-{uid(1)}") == Resolution("timeout")
        (told,) = await store.notifications("main")
        assert (told.kind, told.level, LATE in told.message) == ("tool.failed", "error", True), told
        assert (await store.due(NOON + 10))[0] == []

    async def check_W5_a_timeout_from_outside_has_the_usual_message(self, store: Browse) -> None:
        key_id = await self.create(store, 1, Parking(NOON + 10, timed_out=LATE))
        await self.resolve(store, key_id, Resolution("timeout"))
        assert (await self.stopped(store, uid(1))).outcome == TIMED_OUT
        assert timed_out(None) == timed_out(Parking()) == TIMED_OUT

    async def check_W1_a_created_handle_ends_like_any_parked_call(self, store: Browse) -> None:
        await self.create(store, 1)
        await self.create(store, 2, Parking(hook=True))
        cancelled = Failure("aborted", "aborted")
        await self.end(store, uid(1), cancelled, "abort")
        await self.end(store, uid(2), cancelled, "abort")
        assert uids(await store.owned(store.owner)) == [uid(2)], "the hook of the one that has one is due"
        assert await self.resolution(store, f"key-{uid(1)}") == Resolution("cancelled")
        await self.create(store, 3)
        ((stopped, others),) = await self.commit(store, Revoked("main", NOON + 40))
        assert [of for of, _ in stopped] == [uid(3)] and others == (), (stopped, others)
        assert (await self.stopped(store, uid(3))).outcome == REVOKED

    async def check_W7_its_id_is_taken_like_any_other(self, store: Browse) -> None:
        await self.create(store, 1, Parking(NOON + 10), id="x")
        await self.refused(store, "batch_rejected", *creation(2, Parking(NOON + 5), id="x")[0])
        assert await store.wait(f"key-{uid(2)}") is None
        assert (await store.due(NOON))[1] == NOON + 10
        both = [*creation(3, Parking(NOON + 5))[0], *creation(4, id="x")[0]]
        await self.refused(store, "batch_rejected", *both)
        assert (await store.due(NOON))[1] == NOON + 10, "nothing is left of the first of two"

    async def check_W1_one_that_has_stopped_is_not_parked(self, store: Browse) -> None:
        stopped = Stopped(NOON, NOON, NOON + 1, Ok(1))
        await self.commit(store, Registered(record(1, state=stopped, parking=Parking(NOON + 10))))
        assert await store.due(NOON + 20) == ([], None) and await self.listed(store, parked=True) == []
        assert await store.notifications("main") == []
        assert await self.commit(store, Collected(NOON + DAY, NOON + DAY)) == [1]
