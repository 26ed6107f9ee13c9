"""How each operation changes the tables of the memory store.

Every function that `OPERATIONS` lists checks its operation, raises `KeepholdError` to refuse it, and then applies it.
Records are kept as given and changed in place.
"""

from collections.abc import Callable
from heapq import heapify, heappush
from typing import Any

from msgspec.structs import astuple, replace

from keephold.errors import AlreadyStopped, KeepholdError
from keephold.handles.state import Ended, PendingState, Running, State, Stopped, Waiting, describe, transition
from keephold.store import base, events
from keephold.store.base import (
    NOBODY,
    NOTIFICATION_LIMIT,
    Carrier,
    ConversationRow,
    Entry,
    InquiryRow,
    Notice,
    OpenTurn,
    QueuedNotification,
    Record,
    Resolving,
    Shown,
    TranscriptLine,
    TurnRow,
    WaitRow,
)
from keephold.store.memory.notification_queue import SORTED_AT_ONCE, Queue
from keephold.store.memory.retention import delete_expired
from keephold.store.memory.tables import ConversationTables, Tables, awaits, completion, is_parked, is_resolved
from keephold.store.rules import (
    CONTENT,
    REVOKED,
    TAKES,
    completed_instead,
    end_notice,
    ended,
    gone,
    hook_is_due,
    in_order,
    lease_lost,
    merged,
    resolution_of,
)

# Handles


def registered(t: Tables, op: base.Registered) -> None:
    record = op.record
    uid = record.uid
    known = t.conversations.get(record.conversation) or t.conversation(record.conversation)
    names, name = (known.names, record.id) if record.stateful else (known.labels, record.call_id)
    if record.stateful and name in names:
        check_free(t, known, name)
        if op.once:
            raise KeepholdError(f"handle id `{name}` was used before", code="batch_rejected")
    if uid in t.records:
        raise KeepholdError(f"handle `{uid}` exists already", code="batch_rejected")
    if t.undo is None:
        t.records[uid] = names[name] = record
    else:
        t.put(t.records, uid, record)
        t.put(names, name, record)
    if record.parking is not None and is_parked(record):
        t.history.noted += (events.parked(uid, record.conversation, record.parking),)
        park(t, record, None, None)
        return
    record.owner = t.owner
    if type(record.state) is Stopped:
        stop(t, record, record.state)


def retried(t: Tables, op: base.Retried) -> None:
    if op.of not in t.records:
        raise gone(op.of)
    registered(t, base.Registered(op.record))
    t.put(t.journals, op.record.uid, dict(t.journals.get(op.of, {})))


def check_free(t: Tables, known: ConversationTables, id: str) -> None:
    holder = known.names.get(id)
    if holder is not None and type(holder.state) is not Stopped:
        raise KeepholdError(
            f"handle id `{id}` is active in conversation `{holder.conversation}`; abort it or choose another id",
            code="batch_rejected",
        )


def exposed(t: Tables, op: base.Exposed) -> bool:
    t.history.translate()  # the event of its registration shows the id it had
    record = t.records.get(op.uid)
    if record is None:
        return False
    known = t.conversation(record.conversation)
    if known.names.get(op.id) is not record:
        check_free(t, known, op.id)
    t.save(record)
    record.stateful, record.id = True, op.id
    t.put(known.names, op.id, record)
    return True


def changed(t: Tables, op: base.Changed) -> State | None:
    # On the path of every stop: what other operations leave to `own` and `stop` is written out here.
    uid = op.uid
    record = t.records.get(uid)
    if record is None or op.fence != record.fence or type(record.state) is Stopped:
        record = own(t, uid, op.fence)
    state = op.state
    if op.yields and type(state) is Stopped and (row := completion(t, uid)) is not None and row.resolution is not None:
        state, notice = completed_instead(state, row.resolution, op.notice, record.stateful)
        changed(t, replace(op, state=state, notice=notice, yields=False))
        return state
    if t.undo is not None:
        t.save(record)
    if type(state) is not Stopped:
        record.state = state
        if op.notice is not None:
            queue(t, record.conversation, op.notice, op.event.at, uid, record.id, record.tool, state)
        return None
    if record.owner is None and record.parking is not None:
        end_unowned(t, record, record.parking, state, op.notice)
    else:
        stop(t, record, state, op.notice)
    if op.output is not None:
        record.output = op.output
    return None


def end_unowned(t: Tables, record: Record, parking: base.Parking, state: Stopped, notice: Notice | None) -> None:
    """End a parked call, unless its completion was accepted first: a late clock does not undo that."""
    if state.ended_by == "timeout" and is_resolved(t, record.uid):
        raise lease_lost(record.uid)
    stop(t, record, state, notice or end_notice(state, parking.carriers))  # the end of a parked call is notified (D9)
    if hook_is_due(parking, state.ended_by):
        record.owner = t.owner
        t.put(t.hooks, record.uid, record)


def rewritten(t: Tables, op: base.Rewritten) -> None:
    record = own(t, op.uid, op.fence)
    t.save(record)
    if op.arguments is not None:
        record.arguments, record.resources = op.arguments, op.resources
    record.allowed = op.allowed or record.allowed


def annotated(t: Tables, op: base.Annotated) -> Record:
    record = own(t, op.uid, None)
    t.save(record)
    if op.progress is not None:
        record.progress = op.progress
    if op.priority is not None:
        record.priority = op.priority
    if op.metadata is not None:
        record.metadata = merged(record.metadata, op.metadata)
    return record


def claimed(t: Tables, op: base.Claimed) -> Record | None:
    record = t.records.get(op.uid)
    if record is None or record.owner != op.was:
        return None
    if type(record.state) is Stopped and op.uid not in t.hooks:
        return None
    t.save(record)
    record.owner = t.owner
    record.fence += 1
    started = not isinstance(record.state, PendingState)
    began = started and record.next_attempt_at is None and record.standing != "queued"
    if began and not op.kept:
        record.attempt += 1  # an attempt was cut short
        record.deaths += record.standing != "released"
    record.standing = "queued" if op.queued else None
    if isinstance(record.state, Waiting):
        record.state = Running(record.state.created, record.state.started)
    return record


def counted(t: Tables, op: base.Counted) -> None:
    record = t.records.get(op.uid)
    if record is not None and record.fence == op.fence and type(record.state) is not Stopped:
        t.save(record)
        record.deaths, record.standing = op.deaths, op.standing


def released(t: Tables, op: base.Released) -> State:
    record = t.hooks.get(op.uid)
    if record is None or record.fence != op.fence:
        record = own(t, op.uid, op.fence)
    t.save(record)
    record.owner = record.standing = None
    record.deaths = 0
    if record.parking is None and type(record.state) is not Stopped:
        record.owner, record.standing = NOBODY, "released"
        return record.state
    return park(t, record, completion(t, op.uid), None)


def attempted(t: Tables, op: base.Attempted) -> None:
    record = own(t, op.uid, op.fence)
    t.save(record)
    record.attempt, record.next_attempt_at = op.attempt, op.next_at
    if op.next_at is not None and op.uid in t.journals:
        kept = {key: entry for key, entry in t.journals[op.uid].items() if entry.ok}
        t.put(t.journals, op.uid, kept)


def readied(t: Tables, op: base.Readied) -> None:
    record = own(t, op.uid, op.fence)
    t.save(record)
    record.ready = record.attempt


def journaled(t: Tables, op: base.Journaled) -> None:
    own(t, op.uid, op.fence)
    journal = t.journals.get(op.uid)
    if journal is None:
        journal = t.journals[op.uid] = {}
    elif (op.kind, op.name) in journal:
        raise KeepholdError(
            f"{op.kind} `{op.name}` of this call is recorded already; use each name once in a call",
            code="durable_effect_duplicate_step_id",
        )
    t.put(journal, (op.kind, op.name), Entry(op.kind, op.name, op.digest, op.value, op.ok, op.input))


def wrote(t: Tables, op: base.Wrote) -> None:
    record = own(t, op.uid, op.fence)
    t.save(record)
    record.output = op.output


def hook_called(t: Tables, op: base.HookCalled) -> None:
    record = t.hooks.get(op.uid)
    if record is not None:
        t.save(record)
        record.owner = None
        t.drop(t.hooks, op.uid)
        if isinstance(record.state, Stopped):
            note_stop(t, record, record.state.stopped)


# Waits from outside (D), and how calls end


def own(t: Tables, uid: str, fence: int | None) -> Record:
    """Return the record if the holder of this fencing number may change it; None stands for any holder."""
    record = t.records.get(uid)
    if record is None or fence not in (None, record.fence):
        raise lease_lost(uid)
    if type(record.state) is Stopped:
        raise AlreadyStopped(f"already stopped: {describe(record.state.outcome)}")
    return record


def stop(t: Tables, record: Record, state: Stopped, notice: Notice | None = None) -> None:
    """Stop a call, and resolve the key of its completion if that is open."""
    uid, at = record.uid, state.stopped
    record.state = state
    record.owner = record.next_attempt_at = None
    t.stopped.append(record)  # as `note_stop`
    if t.undo is not None:
        t.undo.append((t.stopped.pop,))
    if at < t.last_stop:
        t.in_order = False
    else:
        t.last_stop = at
    if uid in t.keys:
        row = completion(t, uid)
        if row is not None and row.resolution is None and not row.revoked:
            resolution = resolution_of(state.outcome)
            t.put(t.waits, row.key_id, replace(row, resolution=resolution))
            t.history.noted += (events.resolved(uid, row.conversation, row.key_id, resolution.status),)
    if notice is not None:
        queue(t, record.conversation, notice, at, uid, record.id, record.tool, state)


def note_stop(t: Tables, record: Record, at: float) -> None:
    """Remember that the record may be deleted one day."""
    t.stopped.append(record)
    if t.undo is not None:
        t.undo.append((t.stopped.pop,))
    if at < t.last_stop:
        t.in_order = False
    else:
        t.last_stop = at


def wait_opened(t: Tables, op: base.WaitOpened) -> bool:
    record = own(t, op.uid, op.fence)
    new = op.key_id not in t.waits
    if new:
        row = WaitRow(op.key_id, op.uid, record.conversation, op.kind, op.name, op.secret_id)
        t.put(t.waits, op.key_id, row)
        t.put(t.keys, op.uid, (*t.keys.get(op.uid, ()), op.key_id))
    if op.parking is not None:
        t.save(record)
        record.parking = op.parking
    return new


def parked(t: Tables, op: base.Parked) -> State:
    record = own(t, op.uid, op.fence)
    row = completion(t, op.uid)
    if row is None:
        raise KeepholdError(
            f"`{record.tool}` returned Pending without a key; take one first: key = await call.completion_key()",
            code="pending_tool_missing_completion_key",
        )
    t.save(record)
    record.parking, record.owner, record.next_attempt_at = op.parking, None, None
    record.deaths, record.standing = 0, None
    if op.output is not None:
        record.output = op.output
    return park(t, record, row, op.at)


def park(t: Tables, record: Record, row: WaitRow | None, at: float | None) -> State:
    """Stop the call if its completion came first: at `at`, or when that came. Otherwise list it where reads find it."""
    parking = record.parking
    if parking is None or type(record.state) is Stopped:
        return record.state
    if row is not None and (row.revoked or (row.resolution is not None and not parking.hold)):
        when = t.settled[row.key_id] if at is None else at
        return end_parked(t, record, Ended(when, REVOKED) if row.resolution is None else ended(row.resolution, when))
    if record.resources:
        t.put(t.holding, record.uid, record)
    if row is not None and row.resolution is not None:
        t.held[record.uid] = record
    if parking.deadline is not None:
        heappush(t.deadlines, (parking.deadline, record.uid))
        if len(t.deadlines) > t.crowded:
            t.deadlines = [(at, uid) for at, uid in t.deadlines if awaits(t, uid, at)]
            heapify(t.deadlines)
            t.crowded = 2 * len(t.deadlines) + 1000
    return record.state


def end_parked(t: Tables, record: Record, end: Ended) -> State:
    """End a parked call from outside."""
    state = transition(record.state, end)
    assert isinstance(state, Stopped) and record.parking is not None
    t.history.noted += (events.stopped(record.uid, record.conversation, state),)
    stop(t, record, state, end_notice(state, record.parking.carriers))
    return state


def resolved(t: Tables, op: base.Resolved) -> Resolving:
    row = t.waits.get(op.key_id)
    if row is None or row.revoked:
        return Resolving("unknown_or_revoked")
    if row.resolution is not None:
        return Resolving("already_resolved", row.resolution)
    record = t.records.get(row.uid) if row.kind == "completion" else None
    end = None
    if record is not None and record.parking is not None and is_parked(record):
        if record.parking.hold:
            t.held[record.uid] = record
        else:
            end = ended(op.resolution, op.at)
    t.put(t.waits, op.key_id, replace(row, resolution=op.resolution))
    t.history.noted += (events.resolved(row.uid, row.conversation, op.key_id, op.resolution.status),)
    if record is None or end is None:
        t.put(t.settled, op.key_id, op.at)
        return Resolving("accepted")
    t.save(record)
    what = (record.tool, record.kind, record.stateful)
    return Resolving("accepted", uid=record.uid, state=end_parked(t, record, end), what=what)


def revoked(t: Tables, op: base.Revoked) -> tuple[tuple[tuple[str, State], ...], tuple[str, ...]]:
    stopped, others = [], []
    for row in list(t.waits.values()):
        if row.conversation != op.conversation or row.resolution is not None or row.revoked:
            continue
        t.put(t.waits, row.key_id, replace(row, revoked=True))
        t.history.noted += (events.revoked(row.uid, row.conversation, row.key_id),)
        record = t.records.get(row.uid)
        if row.kind == "completion" and record is not None and is_parked(record):
            t.save(record)
            stopped.append((row.uid, end_parked(t, record, Ended(op.at, REVOKED))))
        else:
            t.put(t.settled, row.key_id, op.at)
            others.append(row.key_id)
    return tuple(stopped), tuple(others)


# Turns, their batches and inquiries


def turn_began(t: Tables, op: base.TurnBegan) -> None:
    known = t.conversation(op.conversation)
    open_turn = known.turn
    is_open, owner = (None, None) if open_turn is None else (open_turn.turn, open_turn.owner)
    if is_open != op.was or op.was_owner not in (None, owner):
        raise KeepholdError(
            f"conversation `{op.conversation}` has an open turn; end or resume that one first"
            if open_turn is not None
            else f"turn `{op.was}` of conversation `{op.conversation}` is not open any more; begin a new one",
            code="turn_open",
        )
    resumed = op.turn == op.was
    if known.carried is not None:
        by, notifications = known.carried
        t.set_carried(known, by, ())
        for each in () if resumed and by == "response" else notifications:
            queue(t, op.conversation, each, each.at, each.uid)
    if open_turn is not None and resumed:
        t.set_turn(known, replace(open_turn, owner=t.owner))
        return
    if open_turn is not None:
        note_over(t, op.conversation, open_turn.turn, op.at)
        note_end(t, op.conversation, open_turn, op.at)
    turns = t.history.turns.get(op.conversation)
    if turns is None:
        turns = {}
        t.put(t.history.turns, op.conversation, turns)
    before = turns.get(op.turn)
    if before is None:
        t.numbers += 1
        before = TurnRow(t.numbers, op.turn, t.owner, op.at, None, 0)
    t.put(turns, op.turn, replace(before, owner=t.owner, ended_at=None))
    t.set_turn(known, OpenTurn(op.turn, t.owner, before.batches))
    t.drop(t.over, (op.conversation, op.turn))


def turn_ended(t: Tables, op: base.TurnEnded) -> bool:
    known = t.conversations.get(op.conversation)
    if known is None or known.turn is None or known.turn.turn != op.turn:
        return False
    t.set_carried(known, "turn", ())
    note_end(t, op.conversation, known.turn, op.at)
    t.set_turn(known, None)
    note_over(t, op.conversation, op.turn, op.at)
    if t.undo is None and known.empty:
        del t.conversations[op.conversation]
    return True


def turn_released(t: Tables, op: base.TurnReleased) -> None:
    known = t.conversations.get(op.conversation)
    if known is not None and known.turn is not None and known.turn.turn == op.turn and known.turn.owner == t.owner:
        t.set_turn(known, replace(known.turn, owner=NOBODY))
        turns = t.history.turns[op.conversation]
        t.put(turns, op.turn, replace(turns[op.turn], owner=NOBODY))


def opened(t: Tables, op: base.Opened) -> None:
    known = t.conversations.get(op.conversation)
    turn = None if known is None else known.turn
    if known is not None and turn is not None and turn.turn == op.turn:
        t.set_turn(known, OpenTurn(op.turn, turn.owner, max(turn.batches, op.batch), op))
        t.set_carried(known, "turn", ())


def responded(t: Tables, op: base.Responded) -> tuple[QueuedNotification, ...]:
    for uid, cursor in op.cursors:
        record = t.records.get(uid)
        if record is not None and record.cursor < cursor:
            t.save(record)
            record.cursor = cursor
    known = t.conversations.get(op.conversation)
    if known is None:
        return ()
    turn = known.turn
    take_back(t, known, op.shown)
    notifications = deliver(t, known, op.carry)
    t.history.noted += tuple(events.events_of(op, notifications))  # not the operation: its answers may be long
    if turn is not None and turn.turn == op.turn and turn.batch is not None and turn.batch.batch == op.batch:
        t.set_turn(known, OpenTurn(turn.turn, turn.owner, turn.batches))
        if notifications:
            t.set_carried(known, "response", notifications)
    return notifications


def inquired(t: Tables, op: base.Inquired) -> None:
    row = InquiryRow(*astuple(op))
    rows = t.inquiries.get(op.conversation)
    if rows is None:
        rows = []
        t.put(t.inquiries, op.conversation, rows)
    rows.append(row)
    if t.undo is not None:
        t.undo.append((rows.pop,))
    known = t.conversations.get(op.conversation)
    if known is None or known.turn is None or known.turn.turn != op.turn:  # the call has outlived its turn
        note_over(t, op.conversation, op.turn, op.at)


def note_end(t: Tables, conversation: str, turn: OpenTurn, at: float) -> None:
    turns = t.history.turns.get(conversation, {})
    if turn.turn in turns:
        t.put(turns, turn.turn, replace(turns[turn.turn], ended_at=at, batches=turn.batches))


def note_over(t: Tables, conversation: str, turn: str, at: float) -> None:
    """Remember when the turn ended, if inquiries of the conversation are kept."""
    if conversation in t.inquiries:
        t.put(t.over, (conversation, turn), max(at, t.over.get((conversation, turn), at)))


# Notifications (N)


def queue(
    t: Tables,
    conversation: str,
    notice: Notice | base.Notified | QueuedNotification,
    at: float,
    uid: str | None,
    id: str = "",
    tool: str = "",
    state: State | None = None,
) -> None:
    """Queue a notification; one without a message is about the handle that has that id, tool and state."""
    known = t.conversations.get(conversation) or t.conversation(conversation)
    queued = known.queue
    if queued is None:
        queued = known.queue = Queue(conversation)
    t.numbers = number = t.numbers + 1
    entry = (number, conversation, notice, at, uid, id, tool, state)
    unsorted = queued.unsorted
    if t.undo is None and notice.kind != CONTENT and len(unsorted) + len(queued.rows) < NOTIFICATION_LIMIT:
        unsorted.append(entry)
        t.history.noted += (entry,)
        if len(unsorted) >= SORTED_AT_ONCE:
            queued.sort_in()
        return
    queued.sort_in()
    row = queued.add(entry, t.undo)
    t.history.noted += (events.queued(row.number, conversation, uid, row.kind, row.level, row.message),)
    if queued.evicted:
        t.history.noted += tuple(events.removed(each, "dropped") for each in queued.evicted)
        queued.evicted = []


def take_back(t: Tables, known: ConversationTables, shown: tuple[tuple[str, Shown], ...]) -> None:
    """Remove the notifications of what a reply has shown."""
    if known.queue:
        for uid, state in shown:
            found = known.queue.of(uid, TAKES[state])
            if found:
                known.queue.take(found, t.undo)
                t.history.noted += tuple(events.removed(each, "shown") for each in found)


def deliver(t: Tables, known: ConversationTables, carriers: tuple[Carrier, ...]) -> tuple[QueuedNotification, ...]:
    """Take from the queue what may ride on one of these carriers."""
    if not known.queue or not carriers:
        return ()
    found = [each for each in known.queue.all() if not set(carriers).isdisjoint(each.carriers)]
    known.queue.take(found, t.undo)
    return in_order(found)


def notified(t: Tables, op: base.Notified) -> None:
    queue(t, op.conversation, op, op.at, op.uid)


def taken_back(t: Tables, op: base.TakenBack) -> None:
    known = t.conversations.get(op.conversation)
    if known is not None:
        take_back(t, known, op.shown)


def handed_out(t: Tables, op: base.HandedOut) -> None:
    known = t.conversations.get(op.conversation)
    if known is not None:
        t.set_carried(known, "message", op.notifications)


def delivered(t: Tables, op: base.Delivered) -> tuple[QueuedNotification, ...]:
    known = t.conversations.get(op.conversation)
    if known is None:
        return ()
    notifications = deliver(t, known, (op.carrier,))
    t.set_carried(known, op.carrier, notifications)
    return notifications


# Transcripts


def transcript_appended(t: Tables, op: base.TranscriptAppended) -> int:
    lines = t.lines.get(op.conversation)
    if lines is None:
        lines = []
        t.put(t.lines, op.conversation, lines)
    before = len(lines)
    if t.undo is not None:
        t.undo.append((lines.__delitem__, slice(before, None)))
    lines += [TranscriptLine(number, op.turn, *line, op.at) for number, line in enumerate(op.lines, before + 1)]
    row = described_row(t, op.conversation, op.at)
    t.put(t.descriptions, op.conversation, replace(row, lines=len(lines)))
    return len(lines)


def described(t: Tables, op: base.Described) -> None:
    row = described_row(t, op.conversation, op.at)
    t.put(t.descriptions, op.conversation, replace(row, metadata=merged(row.metadata, op.metadata)))


def forgotten(t: Tables, op: base.Forgotten) -> bool:
    t.history.translate()
    known = op.conversation in t.descriptions
    t.drop(t.descriptions, op.conversation)
    t.drop(t.lines, op.conversation)
    return known


def described_row(t: Tables, id: str, at: float) -> ConversationRow:
    """Return the conversation's row, updated at that time, or a new one."""
    row = t.descriptions.get(id)
    return ConversationRow(id, at, at, {}, 0) if row is None else replace(row, updated=max(row.updated, at))


# Everything else


def emitted(t: Tables, op: base.Emitted) -> int:
    found = t.events.setdefault(op.process, {})
    number = len(found) + 1
    t.put(found, number, base.ProcessEvent(op.process, number, op.type, op.payload, op.at))
    return number


def requested(t: Tables, op: base.Requested) -> None:
    t.put(t.requests, op.id, op)


def replied(t: Tables, op: base.Replied) -> bool:
    if op.id in t.requests:
        t.put(t.replies, op.id, op.body)
    return op.id in t.requests


def request_closed(t: Tables, op: base.RequestClosed) -> bool:
    closes = op.id in t.requests and not (op.unanswered and op.id in t.replies)
    if closes:
        t.drop(t.requests, op.id)
        t.drop(t.replies, op.id)
    return closes


def posted(t: Tables, op: base.Posted) -> None:
    t.put(t.posts, op.id, base.Post(op.id, op.kind, t.owner, op.at, op.body))


def taken_down(t: Tables, op: base.TakenDown) -> None:
    for id in op.ids:
        t.drop(t.posts, id)


def secret_added(t: Tables, op: base.SecretAdded) -> None:
    t.put(t.secrets, op.id, op.secret)


def collected(t: Tables, op: base.Collected) -> int:
    t.history.translate()  # while the handles it names exist
    more = not op.partial and t.history.forget(op)
    if not op.partial:
        _end_left_turns(t, op)
    gone = delete_expired(t, op)
    return op.limit if more else gone


def _end_left_turns(t: Tables, op: base.Collected) -> None:
    """End turns that were released, if every call of their conversation stopped before the time of the operation."""
    rows = ((name, row) for name, turns in t.history.turns.items() for row in turns.values())
    left = {
        name: row for name, row in rows if row.ended_at is None and row.owner == NOBODY and row.began_at < op.before
    }
    for record in t.records.values() if left else ():
        if type(record.state) is not Stopped or record.state.stopped >= op.before:
            left.pop(record.conversation, None)
    for name, row in left.items():
        turn_ended(t, base.TurnEnded(name, row.turn, op.at))


BESIDES, TELLS, COMES, CHANGES = None, "tells", "comes", "changes"
"""Which event an operation writes: none but those it notes on the way; one of its own; or one with a time of its own,
as the two have that are in every call (reading the clock would take a tenth of a microsecond)."""
OPERATIONS: dict[type, tuple[Callable[[Tables, Any], Any], str | None]] = {
    base.TurnBegan: (turn_began, TELLS),
    base.TurnEnded: (turn_ended, TELLS),
    base.TurnReleased: (turn_released, BESIDES),
    base.Opened: (opened, BESIDES),
    base.Registered: (registered, COMES),
    base.Retried: (retried, TELLS),
    base.Changed: (changed, CHANGES),
    base.Rewritten: (rewritten, TELLS),
    base.Annotated: (annotated, TELLS),
    base.Claimed: (claimed, TELLS),
    base.Counted: (counted, BESIDES),
    base.Released: (released, TELLS),
    base.Attempted: (attempted, TELLS),
    base.Readied: (readied, TELLS),
    base.Journaled: (journaled, TELLS),
    base.Wrote: (wrote, BESIDES),
    base.WaitOpened: (wait_opened, TELLS),
    base.Parked: (parked, TELLS),
    base.Resolved: (resolved, BESIDES),
    base.Revoked: (revoked, BESIDES),
    base.Emitted: (emitted, TELLS),
    base.Exposed: (exposed, TELLS),
    base.Responded: (responded, BESIDES),
    base.HookCalled: (hook_called, BESIDES),
    base.Notified: (notified, BESIDES),
    base.TakenBack: (taken_back, BESIDES),
    base.Delivered: (delivered, TELLS),
    base.HandedOut: (handed_out, TELLS),
    base.Inquired: (inquired, BESIDES),
    base.TranscriptAppended: (transcript_appended, TELLS),
    base.Described: (described, BESIDES),
    base.Forgotten: (forgotten, TELLS),
    base.Requested: (requested, BESIDES),
    base.Replied: (replied, BESIDES),
    base.RequestClosed: (request_closed, BESIDES),
    base.Posted: (posted, BESIDES),
    base.TakenDown: (taken_down, BESIDES),
    base.SecretAdded: (secret_added, BESIDES),
    base.Collected: (collected, BESIDES),
}
