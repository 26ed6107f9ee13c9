"""The operations on calls: they come, change, end, and change hands."""

import apsw

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, Running, State, Stopped, Waiting, name, transition
from keephold.store import base, events
from keephold.store.base import Record, status_of
from keephold.store.endings import REVOKED, ended
from keephold.store.metadata import merged
from keephold.store.sqlite.codec import decode_resolution, encode, record
from keephold.store.sqlite.notifications import tell_of
from keephold.store.sqlite.sql import RECORDS, SQL
from keephold.store.sqlite.transaction import CallRow, Transaction, lease_lost
from keephold.store.sqlite.waits import resolve_by_end, stop_parked

_CHANGE, _STOP, _REGISTER, _RECORD_STEP = SQL["change"], SQL["stop"], SQL["register"], SQL["record_step"]


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
        _encoded(new.progress), encode(state), encode(new.arguments),
    )  # fmt: skip
    if op.once and tx.row(SQL["named"], (new.conversation, new.id)) is not None:
        raise _taken(tx, new.uid, new.conversation, new.id)
    try:
        tx.run(_REGISTER, columns)
    except apsw.ConstraintError as error:
        raise _taken(tx, new.uid, new.conversation, new.id) from error
    if nobodys and stopped_at is None and parking is not None:
        tx.events.append(events.parked(new.uid, new.conversation, parking))
    if new.output is not None:
        tx.keep_output(new.uid, new.output)
    tx.touched.add(new.uid)


def _encoded(value: object) -> bytes | None:
    return None if value is None else encode(value)


def exposed(tx: Transaction, op: base.Exposed) -> bool:
    try:
        tx.run(SQL["expose"], (op.id, op.uid))
    except apsw.ConstraintError as error:
        call = tx.call(op.uid)
        assert call is not None
        raise _taken(tx, None, call.conversation, op.id) from error
    tx.touched.add(op.uid)
    return bool(tx.changes())


def _taken(tx: Transaction, uid: str | None, conversation: str, id: str) -> KeepholdError:
    if uid is not None and tx.call(uid) is not None:
        return KeepholdError(f"handle `{uid}` exists already", code="batch_rejected")
    return KeepholdError(
        f"handle id `{id}` is active in conversation `{conversation}`; abort it or choose another id",
        code="batch_rejected",
    )


def changed(tx: Transaction, op: base.Changed) -> None:
    state, told = op.state, op.notice
    if type(state) is not Stopped:
        tx.run(_CHANGE, (name(state), encode(state), op.uid, op.fence))
        if not tx.changes():
            tx.own(op.uid, op.fence)
        if told is not None:
            conversation, id, tool = tx.rows(SQL["conversation"], (op.uid,))[0]
            tell_of(tx, (conversation, id, tool), op.uid, state, told, op.event.at)
    elif stopped := tx.rows(_STOP, (encode(state), status_of(state), state.stopped, op.uid, op.fence)):
        keyed, conversation, id, tool = stopped[0]
        if keyed:
            resolve_by_end(tx, op.uid, state)
        if told is not None:
            tell_of(tx, (conversation, id, tool), op.uid, state, told, state.stopped)
    else:
        call = tx.own(op.uid, op.fence)
        if state.ended_by == "timeout" and call.resolved:  # held: what was accepted is not undone by a late clock
            raise lease_lost(op.uid)
        stop_parked(tx, call, state, hook=True, told=told)
    if op.output is not None:
        tx.keep_output(op.uid, op.output)
    tx.touched.add(op.uid)


def rewritten(tx: Transaction, op: base.Rewritten) -> None:
    call = tx.own(op.uid, op.fence)
    tx.run(SQL["rewrite"], (encode(op.arguments), encode(op.resources) if op.resources else None, call.number))
    tx.touched.add(op.uid)


def annotated(tx: Transaction, op: base.Annotated) -> Record:
    call = tx.own(op.uid, None)
    changes = None
    if op.metadata is not None:
        changes = encode(merged(_read(tx, op.uid).metadata, op.metadata))
    tx.run(SQL["annotate"], (call.number, _encoded(op.progress), op.priority, changes))
    tx.touched.add(op.uid)
    return _read(tx, op.uid)


def _read(tx: Transaction, uid: str) -> Record:
    row = tx.row(RECORDS["uid"], (uid,))
    assert row is not None
    return record(row)


def claimed(tx: Transaction, op: base.Claimed) -> Record | None:
    call = tx.call(op.uid)
    if call is None or call.owner != op.was or (call.stopped_at is not None and not call.hook_due):
        return None
    state = call.state
    if isinstance(state, Waiting):
        state = Running(state.created, state.started)
    tx.run(SQL["claim"], (tx.owner, name(state), encode(state), call.number))
    tx.touched.add(op.uid)
    return _read(tx, op.uid)


def released(tx: Transaction, op: base.Released) -> State:
    call = tx.call(op.uid)
    if call is None or call.fence != op.fence or not call.hook_due:
        call = tx.own(op.uid, op.fence)
    tx.run(SQL["release"], (call.number,))
    tx.touched.add(op.uid)
    return _settle(tx, call, None)


def wrote(tx: Transaction, op: base.Wrote) -> None:
    tx.own(op.uid, op.fence)
    tx.keep_output(op.uid, op.output)


def attempted(tx: Transaction, op: base.Attempted) -> None:
    call = tx.own(op.uid, op.fence)
    tx.run(SQL["attempt"], (op.attempt, op.next_at, call.number))
    if op.next_at is not None:
        tx.run(SQL["forget_errors"], (call.number,))
        tx.forgetful = True
    tx.touched.add(op.uid)


def journaled(tx: Transaction, ops: list[base.Journaled]) -> None:
    """Lines of journals, of any calls. Whose line it is that is refused, if one is, shows when they come one by one."""
    before = tx.total_changes()
    lines = [(op.kind, op.name, op.digest, op.value, op.ok, op.input or None, op.uid, op.fence) for op in ops]
    try:
        if len(lines) == 1:
            tx.run(_RECORD_STEP, lines[0])
        else:
            tx.many(_RECORD_STEP, lines)
    except apsw.ConstraintError as error:
        raise KeepholdError(
            f"{ops[0].kind} `{ops[0].name}` of this call is recorded already; use each name once in a call",
            code="durable_effect_duplicate_step_id",
        ) from error
    if tx.total_changes() - before != len(ops):
        tx.own(ops[0].uid, ops[0].fence)
        raise lease_lost(ops[0].uid)
    tx.line = (ops[0].uid, ops[0].kind, ops[0].name)


def parked(tx: Transaction, op: base.Parked) -> State:
    call = tx.own(op.uid, op.fence)
    if not call.keyed:
        raise KeepholdError(
            f"`{call.tool}` returned Pending without a key; take one first: key = await call.completion_key()",
            code="pending_tool_missing_completion_key",
        )
    parking = encode(op.parking)
    tx.run(SQL["park"], (parking, op.parking.deadline, call.number))
    if op.output is not None:
        tx.keep_output(op.uid, op.output)
    tx.touched.add(op.uid)
    return _settle(tx, call._replace(parking_json=parking), op.at)


def _settle(tx: Transaction, call: CallRow, at: float | None) -> State:
    """What a call that is parked now comes to: its completion may have been there first."""
    state = call.state
    parking = call.parking
    if parking is None or call.stopped_at is not None:
        return state
    completion = tx.row(SQL["completion"], (call.uid,))
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
    stopped = transition(state, end)
    assert isinstance(stopped, Stopped)
    tx.events.append(events.stopped(call.uid, call.conversation, stopped))
    stop_parked(tx, call, stopped, hook=False)
    return stopped
