"""Rows that must never be in a store: `invariants.sql` has one query for each rule, the sentences are here."""

from collections.abc import Sequence
from typing import Any

from keephold.store.housekeeping import Problem
from keephold.store.sql.queries import invariants

MANY = 20
"""How many violations of one rule are described; the rest is counted."""
_RESTORE = "restore a backup, and please report this with the log"

INVARIANTS = invariants()
SENTENCES = {
    "unowned_call": "call `{}` has not stopped, has no owner and is not parked, so no process will run it; end it with "
    "`keephold abort {0}`",
    "parked_without_key": "call `{}` is parked, but no open key can complete it; end it with `keephold abort {0}`",
    "stopped_with_open_key": "handle `{}` has stopped, but its completion key `{}` is open; a result that arrives "
    "there is accepted and shown to nobody. Revoke the keys of its conversation with `keephold revoke`",
    "stopped_with_owner": "handle `{}` has stopped, but process `{}` owns it; open the store with a runtime that has "
    "its tool, or wait until the handle expires",
    "contradicting_state": f"handle `{{}}` is in state `{{}}`, which its time of stopping contradicts; {_RESTORE}",
    "fence_not_positive": f"call `{{}}` has fencing number {{}} and attempt {{}}, which count from 1; {_RESTORE}",
    "handle_and_tombstone": f"handle `{{}}` is stored and has a tombstone, too; {_RESTORE}",
    "journal_of_no_handle": f"journal lines belong to handle number {{}}, which does not exist; {_RESTORE}",
    "output_of_no_handle": f"output is stored for handle number {{}}, which does not exist; {_RESTORE}",
    "key_of_no_handle": f"key `{{}}` belongs to no handle; {_RESTORE}",
    "key_without_secret": "key `{}` was signed with secret `{}`, which is missing, so nobody can use the key; revoke "
    "the keys of its conversation with `keephold revoke`",
    "missing_events": f"between events {{}} and {{}}, {{}} are missing; {_RESTORE}",
    "event_before_creation": f"handle `{{}}` has events before number {{}}, which says that it was made; {_RESTORE}",
    "stopped_twice": f"handle `{{}}` has stopped {{}} times by its events; {_RESTORE}",
    "notification_of_no_handle": f"notification {{}} of conversation `{{}}` is about handle `{{}}`, which does not "
    f"exist; {_RESTORE}",
    "notification_of_no_conversation": f"notification {{}} is for no conversation; {_RESTORE}",
    "miscounted_queue": f"conversation `{{}}` counts {{}} queued notifications and has {{}}; {_RESTORE}",
    "miscounted_handles": f"conversation `{{}}` counts {{}} spawned handles and has {{}}; {_RESTORE}",
    "batch_of_no_turn": f"conversation `{{}}` has no turn `{{}}`, but batch {{}} of it; {_RESTORE}",
    "lost_batch": "conversation `{}`, turn `{}`: its open batch {} is missing, so the turn cannot be resumed; "
    "begin a new turn in that conversation",
    "incomplete_transcript": f"the transcript of conversation `{{}}` should have {{}} lines and has {{}}; {_RESTORE}",
    "line_of_no_conversation": f"transcript lines belong to conversation number {{}}, which does not exist; {_RESTORE}",
}  # fmt: skip
"""By the name of the query: what a row means, and what to do."""


def violations(rule: str, rows: Sequence[Any]) -> list[Problem]:
    """Return the problems that the rows of a rule's query are."""
    return [Problem(rule, _filled(SENTENCES[rule], row)) for row in rows[:MANY]] + more(rule, rows)


def more(rule: str, found: Sequence[Any]) -> list[Problem]:
    """Count what is not described."""
    surplus = len(found) - MANY
    return [Problem(rule, f"the same holds for {surplus} more")] if surplus > 0 else []


def _filled(sentence: str, row: Sequence[object]) -> str:
    """Put the values in, in order; `{0}` repeats the first one."""
    numbered = sentence.replace("{0}", str(row[0]))
    return numbered.format(*row)
