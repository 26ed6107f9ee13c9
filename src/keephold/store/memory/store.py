"""The memory store: commits and reads.

A commit is applied and called back before `commit` returns. It is on the path of every call: one operation is checked,
then applied, at about a microsecond; several keep a list of what to undo, should a later one be refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, nlargest, nsmallest
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from time import time
from typing import Any

from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.handles.state import EndedBy, PendingState, Running, State, Stopped, Waiting, name
from keephold.listeners import Listeners
from keephold.store import base
from keephold.store.base import NOTIFICATION_LIMIT
from keephold.store.memory.operations import CHANGES, COMES, OPERATIONS
from keephold.store.memory.retention import line_up, may_be_deleted
from keephold.store.memory.tables import Noted, Tables, awaits, is_parked, is_resolved, stopped_at, wanted
from keephold.store.rules import folded, holds

_STATES: dict[str, type[State]] = {"pending": PendingState, "running": Running, "waiting": Waiting, "stopped": Stopped}
_KEYS: dict[base.Sort, Callable[[base.Record], Any]] = {
    "stopped": lambda record: record.state.stopped if isinstance(record.state, Stopped) else 0.0,
    "tool": lambda record: record.tool,
    "id": lambda record: record.id,
}


class MemoryStore:
    """Commits at once. Everything in it ends with the process."""

    durable = False
    inline_output = 1 << 20
    directory: Path | None = None
    trouble: str | None = None

    def __init__(self) -> None:
        self._t = Tables()
        self.owner = self._t.owner
        self.on_commit: Listeners[[]] = Listeners()

    async def open(self, heard: base.Heard) -> None:
        pass  # no other process can write to it

    async def close(self) -> None:
        pass  # every commit is done already

    def alive(self, owner: str) -> bool:
        return owner == self.owner

    def commit(self, ops: Sequence[base.Op], done: base.Done, failed: base.Failed, *, keep: bool = False) -> None:
        if len(ops) != 1:
            self._commit_several(ops, done, failed)
            return
        op = ops[0]
        apply, tells = OPERATIONS[type(op)]
        tables = self._t
        history = tables.history
        try:
            result = apply(tables, op)
        except KeepholdError as refused:
            history.noted = ()
            failed(refused)
            return
        if tells is CHANGES:
            history.write((None, op, result, history.noted))
        elif tells is COMES:
            history.write((None, op, op.record.state, history.noted))  # type: ignore[union-attr]
        elif tells:
            history.write((time(), op, result, history.noted))
        elif history.noted:
            history.write((time(), None, None, history.noted))
        else:
            done((result,))
            return
        history.noted = ()
        done((result,))
        if self.on_commit:
            self.on_commit()

    def _commit_several(self, ops: Sequence[base.Op], done: base.Done, failed: base.Failed) -> None:
        if not ops:
            done(())
            return
        tables = self._t
        undo = tables.undo = []
        refused: KeepholdError | None = None
        noted: list[Noted] = []
        try:
            # Deleting is never refused and cannot be undone, so it comes last.
            results = [None if type(op) is base.Collected else self._one_of_several(op, noted) for op in ops]
        except Exception as error:
            tables.history.noted = ()
            for action, *arguments in reversed(undo):
                action(*arguments)
            if not isinstance(error, KeepholdError):
                raise
            refused = error
        finally:
            tables.undo = None
        if refused is not None:
            failed(refused)
            return
        tables.history.write_all(noted)
        for index, op in enumerate(ops):
            if type(op) is base.Collected:
                last: list[Noted] = []
                results[index] = self._one_of_several(op, last)
                tables.history.write_all(last)
                noted += last
        done(results)
        if noted:
            self.on_commit()

    def _one_of_several(self, op: base.Op, into: list[Noted]) -> Any:
        apply, tells = OPERATIONS[type(op)]
        result = apply(self._t, op)
        history = self._t.history
        noted, history.noted = history.noted, ()
        if tells or noted:
            known = result if tells is not COMES else op.record.state  # type: ignore[union-attr]
            into.append((time(), op if tells else None, known, noted))
        return result

    # Reads. They are coroutines because other stores' reads have to be; none waits.

    async def handle(self, uid: str) -> base.Record | None:
        return self._t.records.get(uid)

    async def named(self, conversation: str, id: str) -> base.Record | base.Expired | None:
        known = self._t.conversations.get(conversation)
        if known is None:
            return None
        return known.names.get(id) or (known.newest_tombs.get(id) if known.newest_tombs is not None else None)

    async def expired(self, ref: str) -> base.Expired | None:
        places = self._t.conversations.values()
        tombs = (known.tombs[ref] for known in places if known.tombs and ref in known.tombs)
        found = next((base.Expired(ref, at) for _, at in tombs), None)
        named = [known.newest_tombs[ref] for known in places if known.newest_tombs and ref in known.newest_tombs]
        return found or max(named, key=lambda each: each.at, default=None)

    async def called(self, conversation: str, call_id: str) -> base.Record | None:
        known = self._t.conversations.get(conversation)
        if known is None:
            return None
        newest = known.labels.get(call_id)
        if newest is not None and not newest.stateful:
            return newest
        for record in reversed(
            self._t.records.values()
        ):  # the newest is deleted or promoted: an older one may be there
            if record.call_id == call_id and record.conversation == conversation and not record.stateful:
                return record
        return None

    async def handles(self, q: base.HandleQuery = base.EVERY_SPAWNED, /) -> list[base.Record]:
        return list(islice(filter(_matches(q), _sorted_records(self._t, q.sort, q.after, newest=q.newest)), q.limit))

    async def totals(self, q: base.HandleQuery = base.EVERY_SPAWNED, /) -> dict[str, int]:
        chosen = islice(filter(_matches(q), _sorted_records(self._t, "created", None, newest=q.newest)), q.limit)
        return dict(Counter(base.end_of(record.state) or name(record.state) for record in chosen))

    async def tally(self, conversation: str, *, timers: bool = True) -> dict[tuple[base.Kind, base.Status], int]:
        return Counter(
            (record.kind, base.status_of(record.state))
            for record in self._t.records.values()
            if record.conversation == conversation and (record.stateful or (timers and _is_timer(record)))
        )

    async def ended(self, since: float) -> dict[tuple[str, base.Status, EndedBy], int]:
        counts: Counter[tuple[str, base.Status, EndedBy]] = Counter()
        for record in self._t.records.values():
            state = record.state
            if isinstance(state, Stopped) and record.stateful and state.stopped >= since:
                status = base.status_of(state)
                counts[record.tool, status, "self" if status == "completed" else state.ended_by] += 1
        return counts

    async def expiring(self, op: base.Collected) -> list[base.Record]:
        line_up(self._t)
        before, is_wanted = (
            takewhile(lambda record: stopped_at(record) < op.before, self._t.stopped),
            wanted(self._t, op),
        )
        return list(
            islice((record for record in before if may_be_deleted(self._t, record) and is_wanted(record)), op.limit)
        )

    async def used_bytes(self) -> int:
        return 0

    async def count(self) -> dict[str, int]:
        counts = dict.fromkeys((*base.LIVE, "stopped", "parked"), 0)
        for record in self._t.records.values():
            if record.stateful:
                counts[name(record.state)] += 1
                counts["parked"] += is_parked(record)
        return counts

    async def asking(self) -> dict[str, int]:
        asks = (each for each in self._t.records.values() if isinstance(each.state, Waiting) and each.owner is not None)
        return dict(Counter(str(record.owner) for record in asks))

    async def owners(self) -> list[str]:
        return []  # nobody else can reach this store

    async def owned(self, owner: str | None, limit: int = 1000, after: str = "") -> list[base.Record]:
        chosen: Iterator[base.Record]
        if owner is None:
            found = {**self._t.held, **self._t.hooks}
            chosen = (found[uid] for uid in sorted(found) if uid > after and _needs_attention(self._t, found[uid]))
        else:
            chosen = (
                record
                for record in _records_after(self._t, after)
                if record.owner == owner and (type(record.state) is not Stopped or record.uid in self._t.hooks)
            )
        return list(islice(chosen, limit))

    async def holding(self) -> list[base.Record]:
        return [record for record in self._t.holding.values() if is_parked(record)]

    async def due(self, now: float, limit: int = 1000) -> tuple[list[base.Record], float | None]:
        deadlines = self._t.deadlines
        found: dict[str, base.Record] = {}
        following = None
        while deadlines:
            deadline, uid = deadlines[0]
            if uid in found or not awaits(self._t, uid, deadline):
                heappop(deadlines)
            elif deadline > now or len(found) == limit:
                following = deadline
                break
            else:
                found[uid] = self._t.records[uid]
                heappop(deadlines)
        for record in found.values():  # due until a process has ended them
            assert record.parking is not None and record.parking.deadline is not None
            heappush(deadlines, (record.parking.deadline, record.uid))
        return list(found.values()), following

    async def journal(self, uid: str) -> list[base.Entry]:
        return list(self._t.journals.get(uid, {}).values())

    async def journal_end(
        self, uid: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[list[base.Entry], int]:
        entries = [entry for entry in self._t.journals.get(uid, {}).values() if entry.kind != "trace"]
        end = len(entries) if before is None else max(0, min(before, len(entries)))
        return entries[max(0, end - limit) : end][::-1], len(entries)

    async def open_waits(
        self, *, conversation: str | None = None, after: str | None = None, limit: int = 1000
    ) -> list[tuple[base.WaitRow, base.Record]]:
        last = None if after is None else self._t.waits.get(after)
        if last is not None and conversation not in (None, last.conversation):
            last = None
        places = {key_id: number for number, key_id in enumerate(self._t.waits)}
        found = [
            row
            for row in _open_waits(self._t)
            if conversation in (None, row.conversation)
            and (last is None or (row.conversation, places[row.key_id]) > (last.conversation, places[last.key_id]))
        ]
        found.sort(key=lambda row: (row.conversation, places[row.key_id]))
        return [(row, self._t.records[row.uid]) for row in found[:limit]]

    async def count_open_waits(self, conversations: Sequence[str]) -> dict[str, int]:
        counts = Counter(row.conversation for row in _open_waits(self._t))
        return {conversation: counts[conversation] for conversation in conversations}

    async def step_times(self, uid: str, *, after: int = 0, limit: int = 200) -> dict[tuple[str, str], float]:
        steps = (each for each in self._t.history.events() if each.uid == uid and each.type == "handle.stepped")
        found = list(islice(steps, after, after + limit))
        return {(event.data["kind"], event.data["name"]): event.at for event in reversed(found)}

    async def waits(self, uid: str) -> list[base.WaitRow]:
        return [self._t.waits[key_id] for key_id in self._t.keys.get(uid, ())]

    async def wait(self, key_id: str) -> base.WaitRow | None:
        return self._t.waits.get(key_id)

    async def secret(self, id: str | None = None, *, oldest: bool = False) -> tuple[str, bytes] | None:
        if oldest:
            return next(iter(self._t.secrets.items()), None)
        if id is None:
            return next(reversed(self._t.secrets.items()), None)
        secret = self._t.secrets.get(id)
        return None if secret is None else (id, secret)

    async def turn(self, conversation: str) -> base.OpenTurn | None:
        known = self._t.conversations.get(conversation)
        return None if known is None else known.turn

    async def turns(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[base.TurnRow]:
        rows = self._t.history.turns.get(conversation, {}).values()
        chosen = (row for row in reversed(rows) if before is None or row.number < before)
        return [_current_turn(self._t, conversation, row) for row in islice(chosen, limit)]

    async def answers(self, conversation: str, turn: str, batch: int) -> base.Answers | None:
        return None  # every caller has them already: nothing survives this process

    async def process_events(
        self, process: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[base.ProcessEvent]:
        events = self._t.events.get(process, {})
        numbers = range(max(after, 0) + 1, len(events) + 1)
        return [events[number] for number in (numbers[max(0, len(numbers) - limit) :] if newest else numbers[:limit])]

    async def events(self, q: base.EventQuery = base.EVERY_EVENT, /) -> list[base.StoredEvent]:
        since = takewhile(lambda event: event.seq > q.after, self._t.history.events())
        chosen = (
            event
            for event in (since if q.newest else reversed(list(since)))
            if (q.before is None or event.seq < q.before)
            and (q.uid is None or (event.uid == q.uid and event.type != "handle.stepped"))
            and q.conversation in (None, event.conversation)
            and (not q.notifications or event.type in base.NOTIFICATION_TYPES)
        )
        return list(islice(chosen, q.limit))

    async def events_range(self) -> tuple[int, int]:
        return self._t.history.range()

    async def notifications(
        self, conversation: str, limit: int = NOTIFICATION_LIMIT + 1
    ) -> list[base.QueuedNotification]:
        known = self._t.conversations.get(conversation)
        if known is None or not known.queue:
            return []
        return known.queue.all()[:limit]

    async def inquiries(
        self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[base.InquiryRow]:
        rows: Sequence[base.InquiryRow] = self._t.inquiries.get(conversation, ())
        in_order = reversed(rows) if newest else rows
        return list(islice((row for row in in_order if turn is None or row.turn == turn), limit))

    async def requests(self) -> list[base.Request]:
        return [
            base.Request(asked.id, asked.uid, asked.body)
            for asked in self._t.requests.values()
            if asked.to == self.owner and asked.id not in self._t.replies
        ]

    async def posts(self, kind: base.PostKind, prefix: str = "") -> list[base.Post]:
        return [post for post in self._t.posts.values() if post.kind == kind and post.id.startswith(prefix)]

    async def reply(self, id: str) -> bytes | None:
        return self._t.replies.get(id)

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[base.TranscriptLine]:
        start = max(after, 0)
        return self._t.lines.get(conversation, [])[start : start + limit]

    async def conversation(self, id: str) -> base.ConversationRow | None:
        return self._t.descriptions.get(id)

    async def summaries(self, *, after: str = "", limit: int = 1000) -> list[base.ConversationSummary]:
        have_handles = {record.conversation for record in self._t.records.values()}
        names = have_handles | self._t.history.turns.keys() | self._t.descriptions.keys()
        chosen = nsmallest(limit, (each for each in names if each > after))
        handles: dict[str, list[base.Record]] = {each: [] for each in chosen}
        for record in self._t.records.values():
            if record.conversation in handles:
                handles[record.conversation].append(record)
        return [_summary(self._t, each, handles[each]) for each in chosen]

    async def conversations(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[base.ConversationRow]:
        chosen = (
            row
            for row in self._t.descriptions.values()
            if (before is None or (row.updated, row.id) < before)
            and (metadata is None or holds(row.metadata, metadata))
        )
        return nlargest(limit, chosen, key=lambda row: (row.updated, row.id))


def _matches(q: base.HandleQuery) -> Callable[[base.Record], bool]:
    """Return whether a handle is one that the query describes."""
    of_state = None if q.state is None else _STATES.get(q.state, type(None))
    sought = None if q.search is None else folded(q.search)
    since = "" if q.since is None else base.first_uid(q.since)
    until = None if q.until is None else base.first_uid(q.until)
    return lambda record: (
        (q.conversation is None or record.conversation == q.conversation)
        and (of_state is None or type(record.state) is of_state)
        and not (q.live and type(record.state) is Stopped)
        and (q.turn is None or record.turn == q.turn)
        and (q.tool is None or record.tool == q.tool)
        and record.uid >= since
        and (until is None or record.uid < until)
        and (sought is None or any(sought in folded(text) for text in (record.id, record.tool, record.uid)))
        and (q.parked is None or is_parked(record) is q.parked)
        and (q.stateful is None or record.stateful is q.stateful or (q.timers and _is_timer(record)))
        and (q.kind is None or record.kind == q.kind)
        and (q.status is None or base.status_of(record.state) == q.status)
        and (q.end is None or base.end_of(record.state) == q.end)
        and (q.metadata is None or holds(record.metadata, q.metadata))
    )


def _is_timer(record: base.Record) -> bool:
    """Whether this is a one-shot call that is listed until it stops (W1)."""
    return record.kind == "timer" and not record.stateful and type(record.state) is not Stopped


def _sorted_records(t: Tables, sort: base.Sort, after: str | None, *, newest: bool) -> Iterable[base.Record]:
    if sort != "created":
        records = sorted(t.records.values(), key=lambda each: (_KEYS[sort](each), each.uid), reverse=newest)
        if not after:
            return records
        return islice(dropwhile(lambda each: each.uid != after, records), 1, None)
    if not newest:
        return _records_after(t, after)
    backwards = reversed(t.records.values())
    if not after:
        return backwards
    if after not in t.records:
        return (record for record in backwards if record.uid < after)
    return islice(dropwhile(lambda each: each.uid != after, backwards), 1, None)


def _records_after(t: Tables, uid: str | None) -> Iterable[base.Record]:
    """Return the records after the one of that uid, which may be deleted: a uid begins with the time it was made."""
    if not uid:
        return t.records.values()
    records = iter(t.records.values())
    if uid not in t.records:
        return (record for record in records if record.uid > uid)
    next(record for record in records if record.uid == uid)
    return records


def _needs_attention(t: Tables, record: base.Record) -> bool:
    """Whether the record needs something done that no process has taken on."""
    if record.uid in t.hooks:
        return record.owner is None
    return is_parked(record) and is_resolved(t, record.uid)


def _open_waits(t: Tables) -> Iterator[base.WaitRow]:
    for row in t.waits.values():
        record = t.records.get(row.uid) if row.resolution is None and not row.revoked else None
        if record is not None and type(record.state) is not Stopped:
            yield row


def _current_turn(t: Tables, conversation: str, row: base.TurnRow) -> base.TurnRow:
    """Return the row of a turn, with the batches an open one has had since it was noted."""
    turn = None if row.ended_at is not None else t.conversation(conversation).turn
    return row if turn is None else replace(row, owner=turn.owner, batches=turn.batches)


def _summary(t: Tables, id: str, records: list[base.Record]) -> base.ConversationSummary:
    spawned = [record for record in records if record.stateful]
    live = sum(type(record.state) is not Stopped for record in spawned)
    made = max((base.made_at(record.uid) for record in records), default=0.0)
    described = t.descriptions.get(id)
    turn = next(reversed(t.history.turns.get(id, {}).values()), None)
    turned = 0.0 if turn is None else turn.ended_at or turn.began_at
    updated = max(made, turned, 0.0 if described is None else described.updated)
    return base.ConversationSummary(id, len(spawned), live, updated, None if described is None else described.metadata)
