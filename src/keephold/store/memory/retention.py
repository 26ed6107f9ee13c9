"""How the memory store deletes what is old (S5). Deleting is never refused, so it is never undone."""

from collections import deque

from keephold.store.base import TOMBSTONE_SECS, TOMBSTONES, Collected, Expired, Record
from keephold.store.events import removed
from keephold.store.memory.tables import ConversationTables, Tables, stopped_at, wanted


def line_up(t: Tables) -> None:
    """Sort all stopped records that may be deleted by their times, with those that an ended turn kept."""
    for conversation in [each for each in t.keeping if t.conversation(each).turn is None]:
        known = t.conversation(conversation)
        t.stopped.extendleft(reversed(known.kept or ()))
        known.kept = None
        t.keeping.discard(conversation)
        t.in_order = False
    if not t.in_order:
        t.stopped = deque(sorted(t.stopped, key=stopped_at))
        t.in_order = True


def may_be_deleted(t: Tables, record: Record) -> bool:
    """Whether the record is still there, has no hook due, and no turn keeps it."""
    there = t.records.get(record.uid) is record and record.uid not in t.hooks
    return there and t.conversation(record.conversation).turn is None


def delete_expired(t: Tables, op: Collected) -> int:
    """Delete the records that the operation selects among those that stopped before its time; return how many."""
    line_up(t)
    passed: list[Record] = []
    gone, is_wanted = 0, wanted(t, op)
    while t.stopped and gone < op.limit and stopped_at(t.stopped[0]) < op.before:
        record = t.stopped.popleft()
        known = t.conversation(record.conversation)
        if t.records.get(record.uid) is not record or record.uid in t.hooks:
            continue  # deleted already, or it is listed again when its hook has been called
        if known.turn is not None:
            known.kept = [] if known.kept is None else known.kept
            known.kept.append(record)
            t.keeping.add(record.conversation)
        elif is_wanted(record):
            delete_handle(t, record, known, op.at)
            gone += 1
        else:
            passed.append(record)
    t.stopped.extendleft(reversed(passed))
    if gone < op.limit:
        forget_old(t, op.at)
    if not op.partial:
        forget_inquiries(t, op.before)
        forget_turns(t, op.before)
    return gone


def delete_handle(t: Tables, record: Record, known: ConversationTables, at: float) -> None:
    uid = record.uid
    for table in (t.records, t.journals, t.events, t.held, t.holding):
        table.pop(uid, None)
    if known.queue:
        found = known.queue.of(uid)
        known.queue.take(found, None)
        t.history.noted += tuple(removed(each, "expired") for each in found)
    if known.labels.get(record.call_id) is record:
        del known.labels[record.call_id]
    newest = known.names.get(record.id) is record
    if newest:
        del known.names[record.id]
    if record.stateful or uid in t.keys:  # a key's resolution is kept as long as the tombstone (D5)
        tombs = known.tombs = {} if known.tombs is None else known.tombs
        tombs[uid] = (record.id if record.stateful else None, at)
        if newest:
            known.newest_tombs = {} if known.newest_tombs is None else known.newest_tombs
            known.newest_tombs[record.id] = Expired(uid, at)
        if len(tombs) > TOMBSTONES:
            forget_oldest(t, known)


def forget_old(t: Tables, at: float) -> None:
    for conversation, known in list(t.conversations.items()):
        while known.tombs and next(iter(known.tombs.values()))[1] + TOMBSTONE_SECS <= at:
            forget_oldest(t, known)
        if known.empty:
            del t.conversations[conversation]


def forget_inquiries(t: Tables, before: float) -> None:
    over = {key for key, at in t.over.items() if at < before}
    for conversation in {conversation for conversation, _ in over}:
        rows = [row for row in t.inquiries.pop(conversation, ()) if (conversation, row.turn) not in over]
        if rows:
            t.inquiries[conversation] = rows
    for key in over:
        del t.over[key]


def forget_turns(t: Tables, before: float) -> None:
    for conversation, turns in list(t.history.turns.items()):
        for row in [row for row in turns.values() if row.ended_at is not None and row.ended_at < before]:
            del turns[row.turn]
        if not turns:
            del t.history.turns[conversation]


def forget_oldest(t: Tables, known: ConversationTables) -> None:
    assert known.tombs is not None
    uid = next(iter(known.tombs))
    id, _ = known.tombs.pop(uid)
    for key_id in t.keys.pop(uid, ()):
        t.waits.pop(key_id, None)
        t.settled.pop(key_id, None)
    if id is not None and known.newest_tombs is not None and (tomb := known.newest_tombs.get(id)) and tomb.uid == uid:
        del known.newest_tombs[id]
