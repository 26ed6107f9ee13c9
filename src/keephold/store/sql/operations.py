"""The SQL of each operation, and how a list of operations is written.

Functions that `_WRITE` lists check their operation, raise `KeepholdError` to refuse it, and run its statements.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, Running, State, Stopped, Waiting, name, transition
from keephold.store import base, events
from keephold.store.base import (
    NOBODY,
    NOTIFICATION_LIMIT,
    TOMBSTONE_SECS,
    TOMBSTONES,
    Carrier,
    Journaled,
    Notice,
    Op,
    QueuedNotification,
    Record,
    Resolving,
    Shown,
    status_of,
)
from keephold.store.rules import (
    CONTENT,
    DROPS,
    REVOKED,
    TAKES,
    completed_instead,
    dropped,
    end_notice,
    ended,
    gone,
    hook_is_due,
    in_order,
    lease_lost,
    merged,
    resolution_of,
    words,
)
from keephold.store.sql.codec import (
    carrier_bits,
    conversation_row,
    decode_notification,
    decode_resolution,
    encode,
    notification_row,
    record,
    text,
    wait_row,
)
from keephold.store.sql.listing import expired, left_turns
from keephold.store.sql.transaction import CallRow, Commit, Transaction, remove_events

# Calls: they are registered, change, stop, and change owners


def registered(tx: Transaction, op: base.Registered) -> None:
    new = op.record
    state = new.state
    stopped_at = state.stopped if type(state) is Stopped else None
    parking = new.parking
    nobodys = stopped_at is not None or (parking is not None and new.owner is None)
    columns = (
        new.uid, new.id, new.tool, new.conversation, new.turn, new.batch, new.position, new.call_id, new.kind,
        new.priority, new.stateful, name(state), status_of(state), stopped_at, None if nobodys else tx.owner, new.fence,
        new.attempt, new.next_attempt_at, new.cursor, None if parking is None else parking.deadline,
        _encoded(parking), encode(new.resources) if new.resources else None, _encoded(new.metadata),
        _encoded(new.progress), encode(state), encode(new.arguments), _encoded(new.allowed), new.retry_of,
    )  # fmt: skip
    if op.once:
        tx.lock(new.conversation)
        if tx.row(tx.sql["named"], (new.conversation, new.id)) is not None:
            raise _taken(tx, new.uid, new.conversation, new.id)
    tx.run(tx.sql["register"], columns)
    if not tx.changes():
        raise _taken(tx, new.uid, new.conversation, new.id)
    if nobodys and stopped_at is None and parking is not None:
        tx.events.append(events.parked(new.uid, new.conversation, parking))
    if new.output is not None:
        tx.keep_output(new.uid, new.output)
    tx.touched.add(new.uid)


def retried(tx: Transaction, op: base.Retried) -> None:
    if tx.call(op.of) is None:
        raise gone(op.of)
    registered(tx, base.Registered(op.record))
    tx.run(tx.sql["copy_journal"], (op.record.uid, op.of))


def _encoded(value: object) -> bytes | None:
    return None if value is None else encode(value)


def exposed(tx: Transaction, op: base.Exposed) -> bool:
    tx.run(tx.sql["promote"], (op.id, op.uid))
    exists = bool(tx.changes())
    if not exists and (call := tx.call(op.uid)) is not None:
        raise _taken(tx, None, call.conversation, op.id)
    tx.touched.add(op.uid)
    return exists


def _taken(tx: Transaction, uid: str | None, conversation: str, id: str) -> KeepholdError:
    if uid is not None and tx.call(uid) is not None:
        return KeepholdError(f"handle `{uid}` exists already", code="batch_rejected")
    return KeepholdError(
        f"handle id `{id}` is active in conversation `{conversation}`; abort it or choose another id",
        code="batch_rejected",
    )


def changed(tx: Transaction, op: base.Changed) -> State | None:
    state, notice = op.state, op.notice
    if op.yields and type(state) is Stopped and (call := tx.call(op.uid)) is not None and call.keyed:
        completion = tx.row(tx.sql["completion"], (op.uid,))
        if completion is not None and completion[0] is not None:
            resolution = decode_resolution(completion[0])
            state, notice = completed_instead(state, resolution, notice, bool(call.stateful))
            changed(tx, replace(op, state=state, notice=notice, yields=False))
            return state
    if type(state) is not Stopped:
        tx.run(tx.sql["change"], (name(state), encode(state), op.uid, op.fence))
        if not tx.changes():
            tx.own(op.uid, op.fence)
        if notice is not None:
            conversation, id, tool = tx.rows(tx.sql["conversation"], (op.uid,))[0]
            queue_change(tx, (conversation, id, tool), op.uid, state, notice, op.event.at)
    elif stopped := tx.rows(tx.sql["stop"], (encode(state), status_of(state), state.stopped, op.uid, op.fence)):
        keyed, conversation, id, tool = stopped[0]
        if keyed:
            resolve_by_end(tx, op.uid, state)
        if notice is not None:
            queue_change(tx, (conversation, id, tool), op.uid, state, notice, state.stopped)
    else:
        call = tx.own(op.uid, op.fence)
        if state.ended_by == "timeout" and call.resolved:  # held: a late clock does not undo an accepted completion
            raise lease_lost(op.uid)
        stop_parked(tx, call, state, hook=True, notice=notice)
    if op.output is not None:
        tx.keep_output(op.uid, op.output)
    tx.touched.add(op.uid)
    return None


def rewritten(tx: Transaction, op: base.Rewritten) -> None:
    call = tx.own(op.uid, op.fence)
    resources = encode(op.resources) if op.resources else None
    tx.run(tx.sql["rewrite"], (_encoded(op.arguments), resources, _encoded(op.allowed), call.number))
    tx.touched.add(op.uid)


def annotated(tx: Transaction, op: base.Annotated) -> Record:
    call = tx.own(op.uid, None)
    changes = None
    if op.metadata is not None:
        changes = encode(merged(_read(tx, op.uid).metadata, op.metadata))
    tx.run(tx.sql["annotate"], (call.number, _encoded(op.progress), op.priority, changes))
    tx.touched.add(op.uid)
    return _read(tx, op.uid)


def _read(tx: Transaction, uid: str) -> Record:
    row = tx.row(tx.sql["records_uid"], (uid,))
    assert row is not None
    return record(row)


def claimed(tx: Transaction, op: base.Claimed) -> Record | None:
    call = tx.call(op.uid)
    if call is None or call.owner != op.was or (call.stopped_at is not None and not call.hook_due) or tx.lives(op.was):
        return None
    state = call.state
    if isinstance(state, Waiting):
        state = Running(state.created, state.started)
    standing = "queued" if op.queued else None
    tx.run(tx.sql["claim"], (tx.owner, op.kept, name(state), encode(state), standing, call.number))
    tx.touched.add(op.uid)
    return _read(tx, op.uid)


def counted(tx: Transaction, op: base.Counted) -> None:
    tx.run(tx.sql["count_deaths"], (op.deaths, op.standing, op.uid, op.fence))


def released(tx: Transaction, op: base.Released) -> State:
    call = tx.call(op.uid)
    if call is None or call.fence != op.fence or not call.hook_due:
        call = tx.own(op.uid, op.fence)
    tx.touched.add(op.uid)
    if call.parking_json is None and call.stopped_at is None:
        tx.run(tx.sql["release_running"], (NOBODY, call.number))
        return call.state
    tx.run(tx.sql["release"], (call.number,))
    return _settle(tx, call, None)


def wrote(tx: Transaction, op: base.Wrote) -> None:
    tx.own(op.uid, op.fence)
    tx.keep_output(op.uid, op.output)


def attempted(tx: Transaction, op: base.Attempted) -> None:
    call = tx.own(op.uid, op.fence)
    tx.run(tx.sql["attempt"], (op.attempt, op.next_at, call.number))
    if op.next_at is not None:
        tx.run(tx.sql["forget_errors"], (call.number,))
        tx.forgetful = True
    tx.touched.add(op.uid)


def readied(tx: Transaction, op: base.Readied) -> None:
    tx.run(tx.sql["make_ready"], (tx.own(op.uid, op.fence).number,))
    tx.touched.add(op.uid)


def journaled(tx: Transaction, ops: list[base.Journaled]) -> None:
    """Write journal lines of any calls. If one is refused, the writer finds out which by writing them one by one."""
    if tx.record_steps(ops) != len(ops):
        tx.own(ops[0].uid, ops[0].fence)
        raise KeepholdError(
            f"{ops[0].kind} `{ops[0].name}` of this call is recorded already; use each name once in a call",
            code="durable_effect_duplicate_step_id",
        )
    tx.line = (ops[0].uid, ops[0].kind, ops[0].name)


def parked(tx: Transaction, op: base.Parked) -> State:
    call = tx.own(op.uid, op.fence)
    if not call.keyed:
        raise KeepholdError(
            f"`{call.tool}` returned Pending without a key; take one first: key = await call.completion_key()",
            code="pending_tool_missing_completion_key",
        )
    parking = encode(op.parking)
    tx.run(tx.sql["park"], (parking, op.parking.deadline, call.number))
    if op.output is not None:
        tx.keep_output(op.uid, op.output)
    tx.touched.add(op.uid)
    return _settle(tx, call._replace(parking_json=parking), op.at)


def _settle(tx: Transaction, call: CallRow, at: float | None) -> State:
    """Stop a call that was just parked if its completion came first; return its state."""
    state = call.state
    parking = call.parking
    if parking is None or call.stopped_at is not None:
        return state
    completion = tx.row(tx.sql["completion"], (call.uid,))
    if completion is None:
        return state
    resolution, resolved_at, revoked = completion
    when = resolved_at if at is None else at
    if revoked:
        end = Ended(when, REVOKED)
    elif resolution is not None and not parking.hold:
        end = ended(decode_resolution(resolution), when)
    else:
        return state
    return _end_parked(tx, call, end)


# Waits from outside (D), and how parked calls end


def stop_parked(
    tx: Transaction, call: CallRow, state: Stopped, *, hook: bool, notice: Notice | None = None, resolved: bool = False
) -> None:
    """Stop a parked call, resolve its key, and queue the notification (D9). `hook`: if it is a cancel, its hook is due
    (D2). `resolved`: the resolution of its key brought the end."""
    parking = call.parking
    assert parking is not None
    due = hook and hook_is_due(parking, state.ended_by)
    owner = tx.owner if due else None
    tx.run(tx.sql["stop_parked"], (encode(state), status_of(state), state.stopped, owner, due, resolved, call.number))
    if not resolved:
        resolve_by_end(tx, call.uid, state)
    notice = notice or end_notice(state, parking.carriers)
    queue_change(tx, (call.conversation, call.id, call.tool), call.uid, state, notice, state.stopped)
    tx.touched.add(call.uid)


def resolve_by_end(tx: Transaction, uid: str, state: Stopped) -> None:
    resolution = resolution_of(state.outcome)
    for (key_id,) in tx.rows(tx.sql["resolve_by_end"], (encode(resolution), state.stopped, uid)):
        tx.events.append(events.resolved(uid, None, key_id, resolution.status))


def wait_opened(tx: Transaction, op: base.WaitOpened) -> bool:
    call = tx.own(op.uid, op.fence)
    tx.run(tx.sql["open_wait"], (op.key_id, op.uid, call.conversation, op.kind, op.name, op.secret_id))
    new = bool(tx.changes())
    parking = op.parking
    if op.kind == "completion":
        terms = (None, None) if parking is None else (encode(parking), parking.deadline)
        tx.run(tx.sql["take_completion_key"], (call.number, *terms))
    return new


def resolved(tx: Transaction, op: base.Resolved) -> Resolving:
    first = tx.row(tx.sql["resolve"], (encode(op.resolution), op.at, op.key_id))
    if first is None:
        row = tx.row(tx.sql["wait"], (op.key_id,))
        wait = None if row is None else wait_row(row)
        if wait is None or wait.revoked:
            return Resolving("unknown_or_revoked")
        return Resolving("already_resolved", wait.resolution)
    uid, kind, conversation = first
    tx.events.append(events.resolved(uid, conversation, op.key_id, op.resolution.status))
    tx.touched.update((op.key_id, uid))
    call = tx.call(uid) if kind == "completion" else None
    if call is None:
        return Resolving("accepted")
    parking = call.parking
    if parking is None or parking.hold or not call.parked:
        tx.run(tx.sql["completed"], (call.number,))
        return Resolving("accepted")
    state = _end_parked(tx, call, ended(op.resolution, op.at), resolved=True)
    return Resolving("accepted", uid=call.uid, state=state, what=(call.tool, call.kind, bool(call.stateful)))


def revoked(tx: Transaction, op: base.Revoked) -> tuple[tuple[tuple[str, State], ...], tuple[str, ...]]:
    stopped: list[tuple[str, State]] = []
    others: list[str] = []
    for key_id, uid, kind in tx.rows(tx.sql["revoke"], (op.at, op.conversation)):
        call = tx.call(uid) if kind == "completion" else None
        tx.events.append(events.revoked(uid, op.conversation, key_id))
        if call is not None and call.parked:
            stopped.append((uid, _end_parked(tx, call, Ended(op.at, REVOKED))))
        else:
            others.append(key_id)
        tx.touched.update((key_id, uid))
    return tuple(stopped), tuple(others)


def _end_parked(tx: Transaction, call: CallRow, end: Ended, *, resolved: bool = False) -> State:
    """End a parked call from outside. Its hook is not called, because the outside itself ended it."""
    state = transition(call.state, end)
    assert isinstance(state, Stopped)
    tx.events.append(events.stopped(call.uid, call.conversation, state))
    stop_parked(tx, call, state, hook=False, resolved=resolved)
    return state


# Notifications (N). Triggers count the queue: see the schema


def queue(
    tx: Transaction, conversation: str, notice: Notice | base.Notified | QueuedNotification, at: float, uid: str | None
) -> None:
    """Queue a notification. Every stop that is notified does this in its commit, so it must be cheap for any queue."""
    tx.touched.add(conversation if uid is None else uid)
    message = text(notice.message or "")
    if notice.kind == CONTENT and uid is not None:
        tx.lock(conversation)
        renewed = tx.row(tx.sql["renew"], (message, at, uid, CONTENT, conversation))
        if renewed is not None:
            tx.events.append(events.queued(renewed[0], conversation, uid, notice.kind, renewed[1], message))
            return
    bits = carrier_bits(notice.carriers)
    ((number,),) = tx.rows(tx.sql["notify"], (conversation, notice.kind, notice.level, message, at, uid, bits))
    tx.events.append(events.queued(number, conversation, uid, notice.kind, notice.level, message))
    row = tx.row(tx.sql["waiting"], (conversation,))
    assert row is not None
    if row[0] > NOTIFICATION_LIMIT:
        _drop(tx, conversation, row[0] - NOTIFICATION_LIMIT, at)


Named = tuple[str, str, str]
"""A handle's conversation, its id, and its tool."""


def queue_change(tx: Transaction, named: Named, uid: str, state: State, notice: Notice, at: float) -> None:
    """Queue the notification of a handle's change, with its own message or the usual one."""
    conversation, id, tool = named
    if notice.message is None:
        notice = replace(notice, message=words(id, tool, state))
    queue(tx, conversation, notice, at, uid)


def _drop(tx: Transaction, conversation: str, surplus: int, at: float) -> None:
    """Drop that many, or as many as may be dropped. A store of version 0.1, which had no limit, may hold many more."""
    gone = 0
    for level in DROPS:
        if gone < surplus:
            gone += len(_remove(tx, "dropped", "drop_oldest", conversation, level, surplus - gone))
    if gone:
        tx.run(tx.sql["count_dropped"], (gone, at, conversation))


def take_back(tx: Transaction, conversation: str, shown: Iterable[tuple[str, Shown]]) -> None:
    """Remove notifications of what was shown (N3)."""
    for uid, state in shown:
        kinds = TAKES[state]
        if kinds is None:
            _remove(tx, "shown", "take_back", uid, conversation)
        else:
            for kind in kinds:
                _remove(tx, "shown", "take_back_kind", uid, kind, conversation)


def _remove(
    tx: Transaction, by: Literal["shown", "dropped", "expired"], query: str, *bindings: Any
) -> list[QueuedNotification]:
    gone = sorted((notification_row(row) for row in tx.rows(tx.sql[query], bindings)), key=lambda each: each.number)
    tx.events += [events.removed(each, by) for each in gone]
    return gone


def deliver(tx: Transaction, conversation: str, carriers: tuple[Carrier, ...]) -> tuple[QueuedNotification, ...]:
    """Take from the queue what may ride on one of the carriers, in order."""
    row = tx.row(tx.sql["queue"], (conversation,)) if carriers else None
    if row is None:
        return ()
    count, at = row
    found = []
    if count:
        found.append(dropped(conversation, count, at))
        tx.run(tx.sql["tell_dropped"], (conversation,))
    found += [notification_row(row) for row in tx.rows(tx.sql["deliver"], (conversation, carrier_bits(carriers)))]
    return in_order(found)


def queue_again(tx: Transaction, conversation: str, *, resumed: bool) -> None:
    """Queue again what a dead process's open turn was handed last, because it may not have arrived (N3)."""
    row = tx.row(tx.sql["carried"], (conversation,))
    if row is None or (resumed and row[1] == "response"):
        return
    for each in decode_notification(row[0]):
        queue(tx, conversation, each, each.at, each.uid)


def notified(tx: Transaction, op: base.Notified) -> None:
    queue(tx, op.conversation, op, op.at, op.uid)


def taken_back(tx: Transaction, op: base.TakenBack) -> None:
    take_back(tx, op.conversation, op.shown)


def handed_out(tx: Transaction, op: base.HandedOut) -> None:
    tx.run(tx.sql["carry"], (encode(op.notifications) if op.notifications else None, "message", op.conversation))


def delivered(tx: Transaction, op: base.Delivered) -> tuple[QueuedNotification, ...]:
    notifications = deliver(tx, op.conversation, (op.carrier,))
    tx.run(tx.sql["carry"], (encode(notifications) if notifications else None, op.carrier, op.conversation))
    return notifications


# Turns, their batches and inquiries; events, requests, secrets; transcripts


def turn_began(tx: Transaction, op: base.TurnBegan) -> None:
    tx.lock(op.conversation)
    row = tx.row(tx.sql["open_turn"], (op.conversation,))
    is_open, owner = (None, None) if row is None else row[:2]
    if is_open != op.was or op.was_owner not in (None, owner) or tx.lives(op.was_owner):
        raise KeepholdError(
            f"turn `{op.was}` of conversation `{op.conversation}` is not open any more; begin a new one"
            if is_open is None
            else f"conversation `{op.conversation}` has an open turn, `{is_open}`; end or resume that one first",
            code="turn_open",
        )
    if op.was is not None:
        queue_again(tx, op.conversation, resumed=op.was == op.turn)
    if op.was is not None and op.was != op.turn:
        tx.run(tx.sql["end_turn"], (op.at, op.conversation, op.was))
    tx.run(tx.sql["begin_turn"], (op.conversation, op.turn, tx.owner, op.at))


def turn_ended(tx: Transaction, op: base.TurnEnded) -> bool:
    tx.run(tx.sql["end_turn"], (op.at, op.conversation, op.turn))
    return bool(tx.changes())


def turn_released(tx: Transaction, op: base.TurnReleased) -> None:
    tx.run(tx.sql["release_turn"], (NOBODY, op.conversation, op.turn, tx.owner))


def opened(tx: Transaction, op: base.Opened) -> None:
    tx.run(tx.sql["count_batch"], (op.batch, op.conversation, op.turn))
    if tx.changes():
        tx.run(tx.sql["open_batch"], (op.conversation, op.turn, op.batch, encode(op.calls)))


def responded(tx: Transaction, op: base.Responded) -> tuple[QueuedNotification, ...]:
    take_back(tx, op.conversation, op.shown)
    notifications = deliver(tx, op.conversation, op.carry)
    carried = encode(notifications) if notifications else None
    tx.run(tx.sql["answer_batch"], (encode(op.responses), carried, op.conversation, op.turn, op.batch))
    tx.run(tx.sql["close_batch"], (op.conversation, op.turn, op.batch))
    if notifications and tx.changes():
        tx.run(tx.sql["carry"], (carried, "response", op.conversation))
    for uid, cursor in op.cursors:
        tx.run(tx.sql["show_output"], (uid, cursor))
    return notifications


def inquired(tx: Transaction, op: base.Inquired) -> None:
    request, answer, error = encode(op.request), encode(op.answer), None if op.error is None else text(op.error)
    tx.run(tx.sql["inquire"], (op.id, op.conversation, op.turn, op.uid, op.at, request, answer, error))


def emitted(tx: Transaction, op: base.Emitted) -> int:
    tx.lock(op.process)
    row = tx.row(tx.sql["emit"], (op.process, op.type, encode(op.payload), op.at))
    assert row is not None
    return int(row[0])


def hook_called(tx: Transaction, op: base.HookCalled) -> None:
    tx.run(tx.sql["call_hook"], (op.uid,))
    tx.touched.add(op.uid)


def requested(tx: Transaction, op: base.Requested) -> None:
    tx.run(tx.sql["request"], (op.id, op.uid, tx.owner, op.to, op.body))
    tx.touched.add(op.uid)


def replied(tx: Transaction, op: base.Replied) -> bool:
    row = tx.row(tx.sql["reply"], (op.body, op.id))
    if row is not None:
        tx.touched.update((op.id, row[0]))
    return row is not None


def request_closed(tx: Transaction, op: base.RequestClosed) -> bool:
    tx.run(tx.sql["close_request"], (op.id, op.unanswered))
    return bool(tx.changes())


def posted(tx: Transaction, op: base.Posted) -> base.Post | None:
    tx.run(tx.sql["post"], (op.id, op.kind, tx.owner, op.at, op.body, op.instead_of))
    if not tx.changes():
        row = tx.row(tx.sql["posted"], (op.id,))
        assert row is not None
        return base.Post(*row)
    tx.touched.add(op.id)
    return None


def taken_down(tx: Transaction, op: base.TakenDown) -> None:
    tx.many(tx.sql["take_down"], [(id, tx.owner) for id in op.ids])
    tx.touched.update(op.ids)


def secret_added(tx: Transaction, op: base.SecretAdded) -> None:
    tx.run(tx.sql["add_secret"], (op.id, op.secret, op.at))


_NOTHING = encode({})


def transcript_appended(tx: Transaction, op: base.TranscriptAppended) -> int:
    row = tx.row(tx.sql["say"], (op.conversation, op.at, len(op.lines), _NOTHING))
    assert row is not None
    conversation, last = row
    first = last - len(op.lines) + 1
    lines = ((conversation, number, op.turn, kind, op.at, body) for number, (kind, body) in enumerate(op.lines, first))
    tx.many(tx.sql["add_line"], lines)
    return int(last)


def described(tx: Transaction, op: base.Described) -> None:
    tx.lock(op.conversation)
    row = tx.row(tx.sql["described"], (op.conversation,))
    metadata = merged(None if row is None else conversation_row(row).metadata, op.metadata)
    tx.run(tx.sql["describe"], (op.conversation, op.at, encode(metadata)))


def forgotten(tx: Transaction, op: base.Forgotten) -> bool:
    tx.run(tx.sql["forget"], (op.conversation,))
    return bool(tx.changes())


# Deleting what is old (S5): handles, then their tombstones, old turns and events


def collected(tx: Transaction, op: base.Collected) -> int:
    tx.lock("collected")
    _remove_litter(tx)
    left = _left_turns(tx, op)
    gone = tx.rows(*expired(tx.sql, op, left))
    tx.forgetful = True
    if gone:
        uids = encode([uid for _, uid, *_ in gone]).decode()
        tx.run(tx.sql["add_tombstones"], (op.at, uids))
        _remove(tx, "expired", "remove_notifications", uids)
        for query in ("remove_journals", "remove_outputs", "remove_process_events", "remove_handles"):
            tx.run(tx.sql[query], (uids,))
    for _, uid, _, _, file in gone:
        if file is not None:
            tx.run(tx.sql["add_litter"], (file,))
            tx.litter.append(file)
        tx.touched.add(uid)
    forgotten = tx.rows(tx.sql["remove_old_tombstones"], (op.at - TOMBSTONE_SECS, op.limit))
    more = op.limit in (len(gone), len(forgotten))
    # A look costs a walk over all tombstones that are kept; while there is more, one conversation in turn is enough.
    for conversation in {row[3] for row in gone} if len(gone) < op.limit else {random.choice(gone)[3]}:
        forgotten += tx.rows(tx.sql["remove_surplus_tombstones"], (conversation, TOMBSTONES))
    if forgotten:
        tx.run(tx.sql["remove_waits"], (encode([uid for (uid,) in forgotten]).decode(),))
    for conversation, turn in left.items():
        tx.run(tx.sql["end_turn"], (op.at, conversation, turn))
    if not op.partial:
        turns = tx.rows(tx.sql["remove_old_turns"], (op.before, op.limit))
        for conversation, turn in turns:
            tx.run(tx.sql["remove_batches"], (conversation, turn))
        tx.run(tx.sql["remove_old_inquiries"], (op.before, op.limit))
        more |= op.limit in (len(turns), tx.changes())
        more |= remove_events(tx, op)
    return op.limit if more or (not op.partial and tx.shrink()) else len(gone)


def _left_turns(tx: Transaction, op: base.Collected) -> dict[str, str]:
    """Return the turns that the operation ends. While it does, no process can resume them."""
    if op.partial:
        return {}
    left = left_turns(tx.rows(tx.sql["old_turns"], (op.before,)), tx.alive)
    if left:
        tx.lock(*left)
        left = left_turns(tx.rows(tx.sql["old_turns"], (op.before,)), tx.alive)
    return left


def _remove_litter(tx: Transaction) -> None:
    """Delete output files of handles that an earlier transaction deleted, in case of a crash before that."""
    if tx.directory is None:
        return
    for (file,) in tx.rows(tx.sql["litter"], ()):
        (tx.directory / file).unlink(missing_ok=True)
        tx.run(tx.sql["remove_litter"], (file,))


# All of them


def _one_line(tx: Transaction, op: Journaled) -> None:
    journaled(tx, [op])


_WRITE: dict[type, Callable[[Transaction, Any], Any]] = {
    base.TurnBegan: turn_began,
    base.TurnEnded: turn_ended,
    base.TurnReleased: turn_released,
    base.Opened: opened,
    base.Registered: registered,
    base.Retried: retried,
    base.Changed: changed,
    base.Rewritten: rewritten,
    base.Annotated: annotated,
    base.Claimed: claimed,
    base.Counted: counted,
    base.Released: released,
    base.Attempted: attempted,
    base.Readied: readied,
    base.Journaled: _one_line,
    base.Wrote: wrote,
    base.WaitOpened: wait_opened,
    base.Parked: parked,
    base.Resolved: resolved,
    base.Revoked: revoked,
    base.Emitted: emitted,
    base.Exposed: exposed,
    base.Responded: responded,
    base.HookCalled: hook_called,
    base.Notified: notified,
    base.TakenBack: taken_back,
    base.Delivered: delivered,
    base.HandedOut: handed_out,
    base.Inquired: inquired,
    base.TranscriptAppended: transcript_appended,
    base.Described: described,
    base.Forgotten: forgotten,
    base.Requested: requested,
    base.Replied: replied,
    base.RequestClosed: request_closed,
    base.Posted: posted,
    base.TakenDown: taken_down,
    base.SecretAdded: secret_added,
    base.Collected: collected,
}


def write_group(tx: Transaction, group: Sequence[Commit]) -> None:
    """Run the operations of several commits, neighbouring journal lines by one statement, and note the results. If one
    is refused, none of them can be committed."""
    lines: list[Journaled] = []
    for commit in group:
        found: list[Any] = []
        for op in commit.ops:
            if type(op) is Journaled:
                lines.append(op)
                found.append(None)
                continue
            if lines:
                _some_lines(tx, lines)
                lines = []
            found.append(_one(tx, op))
        commit.results = found
    if lines:
        _some_lines(tx, lines)
    for commit in group:
        commit.error, commit.told = None, bool(tx.events)


def write_each(
    begin: Callable[[], Transaction], group: Sequence[Commit], refusal: Callable[[Exception], KeepholdError]
) -> Transaction:
    """Do the same, but leave out the commits that are refused. `refusal` raises an error that is not the commit's."""
    whole = begin()
    for commit in group:
        tx = begin()
        tx.run("SAVEPOINT commit_", ())
        try:
            commit.results, commit.error = [_one(tx, op) for op in commit.ops], None
            commit.told = bool(tx.events)
        except Exception as error:
            commit.error = refusal(error)
            tx.run("ROLLBACK TO commit_", ())
        else:
            whole.add(tx)
        tx.run("RELEASE commit_", ())
    return whole


def _one(tx: Transaction, op: Op) -> Any:
    """Run one operation. Its own event comes before those that it causes."""
    place = len(tx.events)
    result = _WRITE[type(op)](tx, op)
    tx.events[place:place] = events.events_of(op, result)
    return result


def _some_lines(tx: Transaction, lines: list[Journaled]) -> None:
    journaled(tx, lines)
    for line in lines:
        tx.events += events.events_of(line, None)
