"""Every way to read the memory store. These are coroutines because other stores' reads have to be; none waits."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import dropwhile, islice, takewhile
from typing import Any

from msgspec.structs import replace

from keephold.handles.state import EndedBy, Pending, Running, State, Stopped, Waiting, name
from keephold.store.base import (
    EVERY_SPAWNED,
    LIVE,
    NOTIFICATION_LIMIT,
    Answers,
    Collected,
    Entry,
    Expired,
    HandleQuery,
    InquiryRow,
    Kind,
    OpenTurn,
    ProcessEvent,
    QueuedNotification,
    Record,
    Request,
    Sort,
    Status,
    StoredEvent,
    TurnRow,
    WaitRow,
    status_of,
)
from keephold.store.memory.tables import Tables, stopped_at, wanted
from keephold.store.memory.tables import parked as is_parked
from keephold.store.metadata import folded, holds

_STATES: dict[str, type[State]] = {"pending": Pending, "running": Running, "waiting": Waiting, "stopped": Stopped}


_KEYS: dict[Sort, Callable[[Record], Any]] = {
    "stopped": lambda record: record.state.stopped if isinstance(record.state, Stopped) else 0.0,
    "tool": lambda record: record.tool,
    "id": lambda record: record.id,
}


def _is_timer(record: Record) -> bool:
    """A one-shot call that is listed while it lasts (W1)."""
    return record.kind == "timer" and not record.stateful and type(record.state) is not Stopped


class Reads(Tables):
    """What the seam promises of each read is said there."""

    # Handles

    async def handle(self, uid: str) -> Record | None:
        return self._records.get(uid)

    async def named(self, conversation: str, id: str) -> Record | Expired | None:
        known = self._conversations.get(conversation)
        if known is None:
            return None
        return known.names.get(id) or (known.graves.get(id) if known.graves is not None else None)

    async def expired(self, uid: str) -> Expired | None:
        graves = (known.tombs[uid] for known in self._conversations.values() if known.tombs and uid in known.tombs)
        return next((Expired(uid, at) for _, at in graves), None)

    async def called(self, conversation: str, call_id: str) -> Record | None:
        known = self._conversations.get(conversation)
        if known is None:
            return None
        newest = known.labels.get(call_id)
        if newest is not None and not newest.stateful:
            return newest
        for record in reversed(self._records.values()):  # the newest one is gone or exposed: an older one may be there
            if record.call_id == call_id and record.conversation == conversation and not record.stateful:
                return record
        return None

    async def handles(self, q: HandleQuery = EVERY_SPAWNED, /) -> list[Record]:
        if q.state is not None and q.state not in _STATES:
            return []
        of_state = None if q.state is None else _STATES[q.state]
        sought = None if q.search is None else folded(q.search)
        chosen = (
            record
            for record in self._in_order_of(q.sort, q.after, newest=q.newest)
            if (q.conversation is None or record.conversation == q.conversation)
            and (of_state is None or type(record.state) is of_state)
            and not (q.live and type(record.state) is Stopped)
            and (q.turn is None or record.turn == q.turn)
            and (q.tool is None or record.tool == q.tool)
            and (sought is None or any(sought in folded(text) for text in (record.id, record.tool, record.uid)))
            and (q.parked is None or is_parked(record) is q.parked)
            and (q.stateful is None or record.stateful is q.stateful or (q.timers and _is_timer(record)))
            and (q.kind is None or record.kind == q.kind)
            and (q.status is None or status_of(record.state) == q.status)
            and (q.metadata is None or holds(record.metadata, q.metadata))
        )
        return list(islice(chosen, q.limit))

    async def tally(self, conversation: str, *, timers: bool = True) -> dict[tuple[Kind, Status], int]:
        return Counter(
            (record.kind, status_of(record.state))
            for record in self._records.values()
            if record.conversation == conversation and (record.stateful or (timers and _is_timer(record)))
        )

    async def ended(self, since: float) -> dict[tuple[str, Status, EndedBy], int]:
        counts: Counter[tuple[str, Status, EndedBy]] = Counter()
        for record in self._records.values():
            state = record.state
            if isinstance(state, Stopped) and record.stateful and state.stopped >= since:
                status = status_of(state)
                counts[record.tool, status, "self" if status == "completed" else state.ended_by] += 1
        return counts

    async def expiring(self, op: Collected) -> list[Record]:
        self._line_up()
        before, is_wanted = takewhile(lambda record: stopped_at(record) < op.before, self._stopped), wanted(op)
        return list(islice((record for record in before if self._is_over(record) and is_wanted(record)), op.limit))

    async def count(self) -> dict[str, int]:
        counts = dict.fromkeys((*LIVE, "stopped", "parked"), 0)
        for record in self._records.values():
            if record.stateful:
                counts[name(record.state)] += 1
                counts["parked"] += is_parked(record)
        return counts

    async def asking(self) -> dict[str, int]:
        asks = (each for each in self._records.values() if isinstance(each.state, Waiting) and each.owner is not None)
        return dict(Counter(str(record.owner) for record in asks))

    def _in_order_of(self, sort: Sort, after: str | None, *, newest: bool) -> Iterable[Record]:
        if sort != "created":
            records = sorted(self._records.values(), key=lambda each: (_KEYS[sort](each), each.uid), reverse=newest)
            if not after:
                return records
            return islice(dropwhile(lambda each: each.uid != after, records), 1, None)
        if not newest:
            return self._after(after)
        backwards = reversed(self._records.values())
        if not after:
            return backwards
        if after not in self._records:
            return (record for record in backwards if record.uid < after)
        return islice(dropwhile(lambda each: each.uid != after, backwards), 1, None)

    def _after(self, uid: str | None) -> Iterable[Record]:
        """The records after the one of that uid, which may be gone by now: a uid begins with the time it was made."""
        if not uid:
            return self._records.values()
        records = iter(self._records.values())
        if uid not in self._records:
            return (record for record in records if record.uid > uid)
        next(record for record in records if record.uid == uid)
        return records

    async def owners(self) -> list[str]:
        return []  # nobody else can reach this store

    async def owned(self, owner: str | None, limit: int = 1000, after: str = "") -> list[Record]:
        chosen: Iterator[Record]
        if owner is None:
            found = {**self._held, **self._hooks}
            chosen = (found[uid] for uid in sorted(found) if uid > after and self._left_alone(found[uid]))
        else:
            chosen = (
                record
                for record in self._after(after)
                if record.owner == owner and (type(record.state) is not Stopped or record.uid in self._hooks)
            )
        return list(islice(chosen, limit))

    def _left_alone(self, record: Record) -> bool:
        """Whether something has to be done about it that nobody has taken on."""
        if record.uid in self._hooks:
            return record.owner is None
        return is_parked(record) and self._is_resolved(record.uid)

    async def holding(self) -> list[Record]:
        return [record for record in self._holding.values() if is_parked(record)]

    async def due(self, now: float, limit: int = 1000) -> tuple[list[Record], float | None]:
        deadlines = self._deadlines
        found: dict[str, Record] = {}
        following = None
        while deadlines:
            deadline, uid = deadlines[0]
            if uid in found or not self._awaits(uid, deadline):
                heappop(deadlines)
            elif deadline > now or len(found) == limit:
                following = deadline
                break
            else:
                found[uid] = self._records[uid]
                heappop(deadlines)
        for record in found.values():  # due until somebody has ended it
            assert record.parking is not None and record.parking.deadline is not None
            heappush(deadlines, (record.parking.deadline, record.uid))
        return list(found.values()), following

    def _awaits(self, uid: str, deadline: float) -> bool:
        """Whether the call is parked with that deadline, and nothing has come for it."""
        record = self._records.get(uid)
        if record is None or record.parking is None or record.parking.deadline != deadline or not is_parked(record):
            return False
        return not self._is_resolved(uid)

    def _is_resolved(self, uid: str) -> bool:
        completion = self._completion(uid)
        return completion is not None and completion.resolution is not None

    def _completion(self, uid: str) -> WaitRow | None:
        rows = (self._waits[key_id] for key_id in self._keys.get(uid, ()))
        return next((row for row in rows if row.kind == "completion"), None)

    # Everything else

    async def journal(self, uid: str) -> list[Entry]:
        return list(self._journals.get(uid, {}).values())

    async def journal_end(self, uid: str, *, before: int | None = None, limit: int = 200) -> tuple[list[Entry], int]:
        entries = [entry for entry in self._journals.get(uid, {}).values() if entry.kind != "trace"]
        end = len(entries) if before is None else max(0, min(before, len(entries)))
        return entries[max(0, end - limit) : end][::-1], len(entries)

    async def open_waits(
        self, *, conversation: str | None = None, after: str | None = None, limit: int = 1000
    ) -> list[tuple[WaitRow, Record]]:
        last = None if after is None else self._waits.get(after)
        if last is not None and conversation not in (None, last.conversation):
            last = None
        places = {key_id: number for number, key_id in enumerate(self._waits)}
        found = [
            row
            for row in self._open_waits()
            if conversation in (None, row.conversation)
            and (last is None or (row.conversation, places[row.key_id]) > (last.conversation, places[last.key_id]))
        ]
        found.sort(key=lambda row: (row.conversation, places[row.key_id]))
        return [(row, self._records[row.uid]) for row in found[:limit]]

    async def count_open_waits(self, conversations: Sequence[str]) -> dict[str, int]:
        counts = Counter(row.conversation for row in self._open_waits())
        return {conversation: counts[conversation] for conversation in conversations}

    def _open_waits(self) -> Iterator[WaitRow]:
        for row in self._waits.values():
            record = self._records.get(row.uid) if row.resolution is None and not row.revoked else None
            if record is not None and type(record.state) is not Stopped:
                yield row

    async def waits(self, uid: str) -> list[WaitRow]:
        return [self._waits[key_id] for key_id in self._keys.get(uid, ())]

    async def wait(self, key_id: str) -> WaitRow | None:
        return self._waits.get(key_id)

    async def secret(self, id: str | None = None, *, oldest: bool = False) -> tuple[str, bytes] | None:
        if oldest:
            return next(iter(self._secrets.items()), None)
        if id is None:
            return next(reversed(self._secrets.items()), None)
        secret = self._secrets.get(id)
        return None if secret is None else (id, secret)

    async def turn(self, conversation: str) -> OpenTurn | None:
        known = self._conversations.get(conversation)
        return None if known is None else known.turn

    async def turns(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[TurnRow]:
        rows = self._history.turns.get(conversation, {}).values()
        chosen = (row for row in reversed(rows) if before is None or row.number < before)
        return [self._as_it_is(conversation, row) for row in islice(chosen, limit)]

    def _as_it_is(self, conversation: str, row: TurnRow) -> TurnRow:
        """An open turn has had batches since it was noted."""
        turn = None if row.ended_at is not None else self._conversation(conversation).turn
        return row if turn is None else replace(row, owner=turn.owner, batches=turn.batches)

    async def answers(self, conversation: str, turn: str, batch: int) -> Answers | None:
        return None  # whoever could ask for them has got them: nothing survives this process

    async def process_events(self, process: str, after: int = 0, limit: int = 1000) -> list[ProcessEvent]:
        events = self._events.get(process, {})
        return [events[number] for number in range(max(after, 0) + 1, min(len(events), max(after, 0) + limit) + 1)]

    async def events(
        self,
        after: int = 0,
        limit: int = 1000,
        *,
        uid: str | None = None,
        conversation: str | None = None,
        notifications: bool = False,
        newest: bool = False,
        before: int | None = None,
    ) -> list[StoredEvent]:
        return self._history.events(after, limit, uid, conversation, notifications, newest, before)

    async def events_range(self) -> tuple[int, int]:
        return self._history.range()

    async def notifications(self, conversation: str, limit: int = NOTIFICATION_LIMIT + 1) -> list[QueuedNotification]:
        known = self._conversations.get(conversation)
        if known is None or not known.queue:
            return []
        return known.queue.all()[:limit]

    async def inquiries(
        self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[InquiryRow]:
        rows: Sequence[InquiryRow] = self._inquiries.get(conversation, ())
        in_order = reversed(rows) if newest else rows
        return list(islice((row for row in in_order if turn is None or row.turn == turn), limit))

    async def requests(self) -> list[Request]:
        return [
            Request(asked.id, asked.uid, asked.body)
            for asked in self._requests.values()
            if asked.to == self.owner and asked.id not in self._replies
        ]

    async def reply(self, id: str) -> bytes | None:
        return self._replies.get(id)
