"""A real store and a model of it, side by side, driven by Hypothesis (D5, E2–E7, R4, S2).

Commits of one or two processes go into the store, alone or several in one transaction, and at any moment the machine
loses its power: what was committed is copied to a new place, where a new process finds it and the old ones are dead.
After every step everything that can be read is what the model says, for every process that looks.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.simulation.journal_draws import (
    CONVERSATIONS,
    DEADLINES,
    ENDS,
    carries,
    conversations,
    kinds,
    notices,
    parkings,
    resolutions,
    shows,
    stale,
)
from tests.simulation.journal_model import Call, Model
from tests.simulation.notification_model import LIMIT
from tests.soak import tries
from tests.unit.sqlite_stores import NOON, give, record, uid

from keephold.errors import KeepholdError
from keephold.handles.question import Question
from keephold.handles.state import (
    Ended,
    EndedBy,
    Failure,
    Outcome,
    PendingState,
    QuestionAnswered,
    QuestionAsked,
    Running,
    Started,
    StateEvent,
    Stopped,
    Waiting,
    transition,
)
from keephold.store.base import (
    CARRIERS,
    NOTIFICATION_LIMIT,
    Attempted,
    Carrier,
    Changed,
    Claimed,
    Delivered,
    Emitted,
    EntryKind,
    HandleQuery,
    HookCalled,
    Inquired,
    Journaled,
    Notice,
    Notified,
    Op,
    Opened,
    Parked,
    Parking,
    QueuedNotification,
    Registered,
    Released,
    Resolution,
    Resolved,
    Responded,
    Revoked,
    Rewritten,
    Shown,
    TakenBack,
    TurnBegan,
    TurnEnded,
    WaitOpened,
)
from keephold.store.sql import operations as queues
from keephold.store.sqlite import SqliteStore

MEMORY = Path("/dev/shm")
"""Where a commit costs nothing: a power cut is a copy here, so nothing need be on a disk."""


class JournalMachine(RuleBasedStateMachine):
    """Each rule is a commit. With `rest` it is written, with those that were held back before it, in one transaction,
    and compared; without it the next one belongs to the same transaction."""

    def __init__(self) -> None:
        super().__init__()
        queues.NOTIFICATION_LIMIT = LIMIT  # type: ignore[attr-defined]
        self._runner = asyncio.Runner()
        self._place = Path(tempfile.mkdtemp(prefix="keephold-journal-", dir=MEMORY if MEMORY.is_dir() else None))
        self._model = Model()
        self._stores: list[SqliteStore] = []
        self._given: list[tuple[SqliteStore, tuple[Op, ...], Any]] = []
        self._lives = 0
        self._now = NOON
        self._stopped: dict[str, Stopped] = {}
        self._resolutions: dict[str, Resolution] = {}
        self._fences: dict[str, int] = {}

    # Processes

    @initialize()
    def a_process_opens_the_store(self) -> None:
        self._runner.run(self._open())

    async def _open(self) -> None:
        store = SqliteStore(self._place / str(self._lives) / "store.db")
        await store.open(lambda _: None)
        self._stores.append(store)

    @precondition(lambda self: len(self._stores) == 1)
    @rule()
    def another_process_opens_it(self) -> None:
        self._runner.run(self._open())

    @precondition(lambda self: len(self._stores) == 2)
    @rule(which=st.integers(0, 1))
    def one_of_them_closes(self, which: int) -> None:
        self._write()
        self._runner.run(self._stores.pop(which).close())

    @rule()
    def the_power_is_cut(self) -> None:
        """What was not committed has never been."""
        self._write()
        old, new = (self._place / str(life) for life in (self._lives, self._lives + 1))
        new.mkdir()
        for name in ("store.db", "store.db-wal"):
            shutil.copy(old / name, new)
        self._close()
        self._lives += 1
        self._runner.run(self._open())

    def _close(self) -> None:
        for store in self._stores:
            self._runner.run(store.close())
        self._stores = []

    # Calls

    @rule(data=st.data(), conversation=conversations, name=st.integers(1, 4), again=st.sampled_from((0, 0, 0, 1)),
          parking=st.none() | parkings, rest=st.booleans())  # fmt: skip
    def register(
        self, data: st.DataObject, conversation: str, name: int, again: int, parking: Parking | None, rest: bool
    ) -> None:
        """A call comes, and may be started and even parked at once."""
        number, at = max(len(self._model.calls) - again, 0), self._tick()
        new = record(number, id=f"h{name}", conversation=conversation, state=PendingState(at))
        ops: list[Op] = [Registered(new), Changed(new.uid, 1, Started(at), Running(at, at))]
        if parking is not None:
            ops += [_completion(new.uid, 1), Parked(new.uid, 1, parking, at)]
        self._do(data, rest, *ops[: data.draw(st.sampled_from((1, 2, 4, 4)))])

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), off=stale, told=st.none() | notices, rest=st.booleans())
    def go_on(self, data: st.DataObject, off: int, told: Notice | None, rest: bool) -> None:
        """Start, ask, or get an answer."""
        of = self._one(data)
        event: StateEvent
        match of.record.state:
            case PendingState():
                event = Started(self._tick())
            case Running() if not of.parked:
                event = QuestionAsked(self._tick(), Question(id="sure", text="Sure?"))
            case Waiting():
                event = QuestionAnswered(self._tick())
            case _:
                return
        state = transition(of.record.state, event)
        self._do(data, rest, Changed(of.record.uid, of.record.fence + off, event, state, None, told))

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), off=stale, number=st.integers(1, 9), rest=st.booleans())
    def edit(self, data: st.DataObject, off: int, number: int, rest: bool) -> None:
        """Other arguments than those it came with."""
        of = self._one(data).record
        self._do(data, rest, Rewritten(of.uid, of.fence + off, {"number": number}))

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), end=st.sampled_from(ENDS), off=stale, told=st.none() | notices, rest=st.booleans())
    def end(self, data: st.DataObject, end: tuple[Outcome, EndedBy], off: int, told: Notice | None, rest: bool) -> None:
        """The end of a call that may have one already: then somebody comes late (S2)."""
        of = self._one(data, stopped=True)
        event, before = Ended(self._tick(), *end), of.record.state
        late = Stopped(NOON, None, event.at, event.outcome, event.ended_by)
        state = late if isinstance(before, Stopped) else transition(before, event)
        self._do(data, rest, Changed(of.record.uid, of.record.fence + off, event, state, None, told))

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), kind=kinds, names=st.sets(st.integers(1, 5), min_size=1, max_size=3), ok=st.booleans(),
          off=stale, rest=st.booleans())  # fmt: skip
    def journal(self, data: st.DataObject, kind: EntryKind, names: set[int], ok: bool, off: int, rest: bool) -> None:
        """Lines of a journal; one that is there already, and all of them are refused."""
        of = self._one(data, stopped=True).record
        fence = of.fence + off
        lines = [Journaled(of.uid, fence, kind, f"{n}", b"#", f"{n}".encode(), ok) for n in sorted(names)]
        self._do(data, rest, *lines)

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), planned=st.booleans(), off=stale, rest=st.booleans())
    def attempt(self, data: st.DataObject, planned: bool, off: int, rest: bool) -> None:
        """Another attempt is planned, or begins."""
        of = self._one(data).record
        at = self._tick() + 5 if planned else None
        self._do(data, rest, Attempted(of.uid, of.fence + off, of.attempt + (not planned), at))

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), rest=st.booleans(), right=st.sampled_from((True, True, True, False)))
    def claim(self, data: st.DataObject, rest: bool, right: bool) -> None:
        of = self._one(data, stopped=True).record
        self._do(data, rest, Claimed(of.uid, of.owner if right else "somebody"))

    @precondition(lambda self: any(call.hook_due or self._external(call) for call in self._model.calls.values()))
    @rule(data=st.data(), off=stale, rest=st.booleans())
    def release(self, data: st.DataObject, off: int, rest: bool) -> None:
        able = [call for call in self._model.calls.values() if call.hook_due or self._external(call)]
        of = data.draw(st.sampled_from(able)).record
        self._do(data, rest, Released(of.uid, of.fence + off))

    def _external(self, call: Call) -> bool:
        return call.record.owner is not None and call.record.parking is not None and not call.stopped

    @precondition(lambda self: any(call.parked for call in self._calls()))
    @rule(data=st.data(), rest=st.booleans())
    def cancel_what_is_parked(self, data: st.DataObject, rest: bool) -> None:
        of = data.draw(st.sampled_from([call.record for call in self._calls() if call.parked]))
        event = Ended(self._tick(), Failure("aborted by you", "aborted"), "abort")
        self._do(data, rest, Changed(of.uid, of.fence, event, transition(of.state, event)))

    @precondition(lambda self: any(call.hook_due for call in self._model.calls.values()))
    @rule(data=st.data(), rest=st.booleans())
    def call_the_hook(self, data: st.DataObject, rest: bool) -> None:
        due = [call for call in self._model.calls.values() if call.hook_due]
        self._do(data, rest, HookCalled(data.draw(st.sampled_from(due)).record.uid))

    # Waits

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), off=stale, parking=st.none() | parkings, rest=st.booleans())
    def take_the_completion_key(self, data: st.DataObject, off: int, parking: Parking | None, rest: bool) -> None:
        of = self._one(data).record
        self._do(data, rest, _completion(of.uid, of.fence + off, parking))

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), name=st.sampled_from("ab"), off=stale, rest=st.booleans())
    def take_an_event_key(self, data: st.DataObject, name: str, off: int, rest: bool) -> None:
        of = self._one(data).record
        self._do(data, rest, WaitOpened(of.uid, of.fence + off, f"{name}-{of.uid}", "event", name, "s"))

    @precondition(lambda self: self._calls())
    @rule(data=st.data(), off=stale, parking=parkings, rest=st.booleans())
    def park(self, data: st.DataObject, off: int, parking: Parking, rest: bool) -> None:
        """Mostly with a key: without one that is refused (D1)."""
        able = [call for call in self._calls() if not call.parked and not isinstance(call.record.state, PendingState)]
        if able:
            of = data.draw(st.sampled_from(able)).record
            ops: list[Op] = [_completion(of.uid, of.fence), Parked(of.uid, of.fence + off, parking, self._tick())]
            self._do(data, rest, *ops[data.draw(st.sampled_from((0, 0, 1))) :])

    @rule(data=st.data(), resolution=resolutions, rest=st.booleans())
    def resolve(self, data: st.DataObject, resolution: Resolution, rest: bool) -> None:
        """First, second, early, late, or with a key that nobody knows."""
        waited_for = [f"key-{call.record.uid}" for call in self._calls() if call.parked]
        key = data.draw(st.sampled_from([*waited_for, *self._model.waits, "never issued"]))
        self._do(data, rest, Resolved(key, resolution, self._tick()))

    @precondition(lambda self: self._model.waits)
    @rule(data=st.data(), conversation=conversations, rest=st.booleans())
    def revoke(self, data: st.DataObject, conversation: str, rest: bool) -> None:
        self._do(data, rest, Revoked(conversation, self._tick()))

    # Turns, events, news

    @rule(
        data=st.data(), conversation=conversations, what=st.sampled_from(("new", "resume", "wrong")), rest=st.booleans()
    )
    def begin_a_turn(self, data: st.DataObject, conversation: str, what: str, rest: bool) -> None:
        before = self._model.turns.get(conversation)
        was, owner = (None, None) if before is None else (before.turn, before.owner)
        at = self._tick()
        turn = was if was is not None and what == "resume" else f"t{at:.0f}"
        self._do(data, rest, TurnBegan(conversation, turn, at, "another" if what == "wrong" else was, owner))

    @precondition(lambda self: self._model.turns)
    @rule(data=st.data(), what=st.sampled_from(("open", "open", "answer", "answer", "end")), rest=st.booleans())
    def go_on_with_a_turn(self, data: st.DataObject, what: str, rest: bool) -> None:
        conversation = data.draw(st.sampled_from(sorted(self._model.turns)))
        turn = self._model.turns[conversation]
        number = turn.batches + (what == "open")
        if what == "open":
            self._do(
                data, rest, Opened(conversation, turn.turn, number, (("c", "deploy", {"n": number}, uid(number)),))
            )
        elif what == "answer":
            uids = [uid for uid, call in self._model.calls.items() if call.record.conversation == conversation]
            shown = tuple((of, data.draw(shows)) for of in uids if data.draw(st.booleans()))
            cursors = tuple((of, data.draw(st.integers(0, 9))) for of in uids)
            given = (("c", "result", "model", False, None),)
            self._do(data, rest, Responded(conversation, turn.turn, number, given, cursors, shown, data.draw(carries)))
        else:
            self._do(data, rest, TurnEnded(conversation, turn.turn, self._tick()))

    @rule(data=st.data(), count=st.integers(1, 3), rest=st.booleans())
    def emit(self, data: st.DataObject, count: int, rest: bool) -> None:
        self._do(data, rest, *(Emitted("process", "t", {"n": n}, self._tick()) for n in range(count)))

    @rule(data=st.data(), where=conversations, told=st.lists(notices, min_size=1, max_size=4), rest=st.booleans())
    def tell(self, data: st.DataObject, where: str, told: list[Notice], rest: bool) -> None:
        of = data.draw(st.sampled_from([None, *self._model.calls]))
        at = self._tick()
        self._do(data, rest, *(Notified(where, t.kind, t.level, t.message or "", at, of, t.carriers) for t in told))

    @precondition(lambda self: self._model.notifications.queued)
    @rule(data=st.data(), shown=shows, carrier=st.sampled_from(CARRIERS), take=st.booleans(), rest=st.booleans())
    def deliver(self, data: st.DataObject, shown: Shown, carrier: Carrier, take: bool, rest: bool) -> None:
        """Or take back: the handle was shown."""
        news = data.draw(st.sampled_from(self._model.notifications.queued))
        back = TakenBack(news.conversation, ((news.uid or "", shown),))
        self._do(data, rest, back if take else Delivered(news.conversation, carrier))

    @rule(data=st.data(), conversation=conversations, turn=st.sampled_from("12"), rest=st.booleans())
    def inquire(self, data: st.DataObject, conversation: str, turn: str, rest: bool) -> None:
        self._do(data, rest, Inquired("c.q.1", conversation, turn, None, self._tick(), {"ask": turn}, [turn]))

    # How commits are made

    def _tick(self) -> float:
        self._now += 1
        return self._now

    def _calls(self, *, stopped: bool = False) -> list[Call]:
        return [call for call in self._model.calls.values() if stopped or not call.stopped]

    def _one(self, data: st.DataObject, *, stopped: bool = False) -> Call:
        """A call; mostly one that has not stopped."""
        able = self._calls(stopped=stopped) if data.draw(st.booleans()) else self._calls()
        return data.draw(st.sampled_from(able or self._calls(stopped=True)))

    def _do(self, data: st.DataObject, rest: bool, *ops: Op) -> None:
        store = data.draw(st.sampled_from(self._stores)) if len(self._stores) > 1 else self._stores[0]
        if self._given and self._given[-1][0] is not store:
            self._write()  # between two processes there is no order but that of their commits
        self._given.append((store, ops, self._model.commit(store.owner, ops)))
        if rest:
            self._write()

    def _write(self) -> None:
        """What was held back, as one transaction."""
        given, self._given = self._given, []
        for (_, ops, expected), told in zip(given, self._runner.run(_told(given)), strict=True):
            assert told == _plain(expected), f"{ops} came to {told}, not {expected}"

    # What must be so

    @invariant()
    def what_can_be_read_is_what_the_model_says(self) -> None:
        if not self._given:
            for store in self._stores:
                self._runner.run(self._compare(store))

    async def _compare(self, store: SqliteStore) -> None:
        model = self._model
        found = [
            each for name in CONVERSATIONS for each in await store.handles(HandleQuery(conversation=name, limit=10_000))
        ]
        assert {each.uid: each for each in found} == {uid: call.record for uid, call in model.calls.items()}
        for each in found:
            assert await store.handle(each.uid) == each
            assert await store.named(each.conversation, each.id) == model.named(each.conversation, each.id)
            lines = await store.journal(each.uid)
            assert lines == list(model.journal[each.uid].values())
            self._check_journal(lines)
            waits = await store.waits(each.uid)
            assert waits == model.waits_of(each.uid)
            self._check_waits(each.state, waits)
            self._check_call(each)
        for name in CONVERSATIONS:
            assert await store.turn(name) == model.turns.get(name)
            assert await store.notifications(name) == model.notifications.of(name)
            assert await store.inquiries(name) == [row for row in model.inquiries if row.conversation == name]
        for batch in model.batches:
            assert await store.answers(*batch) == model.answers.get(batch)
        assert await store.process_events("process") == model.events.get("process", [])
        await self._check_owners(store)
        await self._check_due(store)

    def _check_call(self, found: Any) -> None:
        """Stopped is final; a fencing number never decreases."""
        if found.uid in self._stopped:
            assert found.state == self._stopped[found.uid], "what has stopped never changes"
        elif isinstance(found.state, Stopped):
            self._stopped[found.uid] = found.state
        assert found.fence >= self._fences.get(found.uid, 1)
        self._fences[found.uid] = found.fence

    def _check_waits(self, state: Any, waits: list[Any]) -> None:
        """The first resolution stands; a stopped call has no open completion wait."""
        for wait in waits:
            if wait.resolution is not None:
                assert wait.resolution == self._resolutions.setdefault(wait.key_id, wait.resolution)
            if isinstance(state, Stopped) and wait.kind == "completion":
                assert wait.resolution is not None or wait.revoked

    def _check_journal(self, lines: list[Any]) -> None:
        """Nothing is recorded twice."""
        assert len({(line.kind, line.name) for line in lines}) == len(lines)

    async def _check_owners(self, store: SqliteStore) -> None:
        """A parked call has no owner, and every other one is its owner's."""
        calls = self._model.calls.items()
        parked = await store.handles(HandleQuery(parked=True))
        assert all(each.owner is None and not isinstance(each.state, Stopped) for each in parked)
        assert [each.uid for each in parked] == sorted(uid for uid, call in calls if call.parked)
        owners = {call.record.owner for _, call in calls} - {None}
        assert set(await store.owners()) == owners - {store.owner}
        for owner in owners:
            owned = [each.uid for each in await store.owned(owner)]
            assert owned == sorted(uid for uid, call in calls if call.record.owner == owner)
        free = [call for _, call in calls if call.record.owner is None]
        wanted = [call.record.uid for call in free if call.hook_due or (call.parked and call.resolved)]
        assert [each.uid for each in await store.owned(None)] == sorted(wanted)

    async def _check_due(self, store: SqliteStore) -> None:
        """Due is exactly what is parked and past its deadline."""
        deadlines = {uid: call.is_due for uid, call in self._model.calls.items()}
        for now in (NOON, *(deadline for deadline in DEADLINES if deadline is not None)):
            due, following = await store.due(now)
            assert {each.uid for each in due} == {uid for uid, at in deadlines.items() if at is not None and at <= now}
            assert following == min((at for at in deadlines.values() if at is not None and at > now), default=None)

    def teardown(self) -> None:
        try:
            if self._stores:
                self._write()
                self.what_can_be_read_is_what_the_model_says()
        finally:
            queues.NOTIFICATION_LIMIT = NOTIFICATION_LIMIT  # type: ignore[attr-defined]
            self._close()
            self._runner.close()
            shutil.rmtree(self._place)


def _completion(of: str, fence: int, parking: Parking | None = None) -> WaitOpened:
    return WaitOpened(of, fence, f"key-{of}", "completion", "", "s", parking)


async def _told(given: list[tuple[SqliteStore, tuple[Op, ...], Any]]) -> list[Any]:
    """What each commit was answered: results, or the code of a refusal."""
    told = await asyncio.gather(*(give(store, *ops) for store, ops, _ in given), return_exceptions=True)
    return [each.code if isinstance(each, KeepholdError) else _plain(each) for each in told]


def _plain(results: Any) -> Any:
    """Revoked keys come in any order."""
    if isinstance(results, BaseException):
        raise results
    if isinstance(results, str):
        return results
    return [tuple(map(sorted, each)) if _revoked(each) else each for each in results]


def _revoked(result: Any) -> bool:
    return isinstance(result, tuple) and not any(isinstance(each, QueuedNotification) for each in result)


JournalMachine.TestCase.settings = settings(
    max_examples=tries(8, soak=60),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestJournal = pytest.mark.timeout(300)(JournalMachine.TestCase)  # a failure takes a while to be made short
