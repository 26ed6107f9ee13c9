"""Which function writes which operation, and how a list of them is written."""

from collections.abc import Callable, Sequence
from typing import Any

from keephold.store import base
from keephold.store.base import Journaled, Op
from keephold.store.events import events_of
from keephold.store.sqlite import calls, notifications, retention, turns, waits
from keephold.store.sqlite.transaction import Transaction


def _one_line(tx: Transaction, op: Journaled) -> None:
    calls.journaled(tx, [op])


_WRITE: dict[type, Callable[[Transaction, Any], Any]] = {
    base.TurnBegan: turns.turn_began,
    base.TurnEnded: turns.turn_ended,
    base.Opened: turns.opened,
    base.Registered: calls.registered,
    base.Changed: calls.changed,
    base.Rewritten: calls.rewritten,
    base.Annotated: calls.annotated,
    base.Claimed: calls.claimed,
    base.Released: calls.released,
    base.Attempted: calls.attempted,
    base.Journaled: _one_line,
    base.Wrote: calls.wrote,
    base.WaitOpened: waits.wait_opened,
    base.Parked: calls.parked,
    base.Resolved: waits.resolved,
    base.Revoked: waits.revoked,
    base.Emitted: turns.emitted,
    base.Exposed: calls.exposed,
    base.Responded: turns.responded,
    base.HookCalled: turns.hook_called,
    base.Notified: notifications.notified,
    base.TakenBack: notifications.taken_back,
    base.Delivered: notifications.delivered,
    base.HandedOut: notifications.handed_out,
    base.Inquired: turns.inquired,
    base.TranscriptAppended: turns.said,
    base.Described: turns.described,
    base.Forgotten: turns.forgotten,
    base.Requested: turns.requested,
    base.Replied: turns.replied,
    base.RequestClosed: turns.request_closed,
    base.SecretAdded: turns.secret_added,
    base.Collected: retention.collected,
}


def write(tx: Transaction, ops: Sequence[Op]) -> list[Any]:
    """Run the statements of all of them; their results, in order."""
    return [_one(tx, op) for op in ops]


def _one(tx: Transaction, op: Op) -> Any:
    """One operation. What it tells comes before what it brings about."""
    place = len(tx.events)
    result = _WRITE[type(op)](tx, op)
    tx.events[place:place] = events_of(op, result)
    return result


def write_group(tx: Transaction, group: Sequence[Sequence[Op]]) -> list[list[Any]]:
    """The same for the commits of a group, with neighbouring lines of journals written by one statement."""
    results: list[list[Any]] = []
    lines: list[Journaled] = []
    for ops in group:
        found: list[Any] = []
        for op in ops:
            if type(op) is Journaled:
                lines.append(op)
                found.append(None)
                continue
            if lines:
                _some_lines(tx, lines)
                lines = []
            found.append(_one(tx, op))
        results.append(found)
    if lines:
        _some_lines(tx, lines)
    return results


def _some_lines(tx: Transaction, lines: list[Journaled]) -> None:
    calls.journaled(tx, lines)
    for line in lines:
        tx.events += events_of(line, None)
