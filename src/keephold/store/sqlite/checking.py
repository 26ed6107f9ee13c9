"""Whether a store is whole: SQLite's own check of the file, then what must always hold of its rows and output files.

Everything is read in one transaction, so a runtime that writes meanwhile does not matter. `store/sql/invariants.sql`
has one query for each rule about rows; the sentences are here.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from keephold.store.housekeeping import Problem
from keephold.store.sql.queries import invariants
from keephold.store.sqlite.processes import Owners

_MANY = 20
"""How many violations of one rule are described; the rest is counted."""
_YOUNG_SECS = 60.0
"""An output file that was written to this recently may belong to a handle that is not written yet."""
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


def problems(connection: apsw.Connection, output: Path, owners: Owners | None) -> list[Problem]:
    """Check a store of this keephold's schema. `owners`: those of a store in use; a copy has none."""
    connection.execute("BEGIN")
    try:
        found = file_problems(connection)
        for rule, query in () if found else INVARIANTS.items():
            found += _problems_of(rule, connection.execute(query).fetchall())
        if not found or found[0].rule != "sqlite":
            found += [*_missing_files(connection, output), *_orphans(connection, output)]
            found += [] if owners is None else _displaced(connection, owners)
        return found
    finally:
        connection.execute("ROLLBACK")


def file_problems(connection: apsw.Connection) -> list[Problem]:
    """Return what SQLite itself finds, which works for any schema."""
    told = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_MANY})").fetchall()]
    return [Problem("sqlite", f"SQLite: {' '.join(each.split())}; restore a backup") for each in told if each != "ok"]


def _problems_of(rule: str, rows: list[tuple[object, ...]]) -> list[Problem]:
    found = [Problem(rule, _filled(SENTENCES[rule], row)) for row in rows[:_MANY]]
    if len(rows) > _MANY:
        found.append(Problem(rule, f"the same holds for {len(rows) - _MANY} more"))
    return found


def _filled(sentence: str, row: tuple[object, ...]) -> str:
    """Put the values in, in order; `{0}` repeats the first one."""
    numbered = sentence.replace("{0}", str(row[0]))
    return numbered.format(*row)


def _missing_files(connection: apsw.Connection, output: Path) -> list[Problem]:
    rows = connection.execute(
        "SELECT h.uid, o.file FROM outputs o JOIN handles h ON h.number = o.handle WHERE o.file IS NOT NULL"
    )
    missing = [(uid, file) for uid, file in rows if not (output / file).is_file()]
    return [
        Problem("missing_output", f"the output of handle `{uid}` is missing: there is no file `{output / file}`; put "
        "it back from a backup, or live without it")
        for uid, file in missing[:_MANY]
    ] + _more("missing_output", missing)  # fmt: skip


def _orphans(connection: apsw.Connection, output: Path) -> list[Problem]:
    known = "SELECT 1 FROM handles WHERE uid = ?1 UNION ALL SELECT 1 FROM outputs WHERE file = ?1"
    orphans = [
        file
        for file in _files(output)
        if not connection.execute(f"{known} UNION ALL SELECT 1 FROM litter WHERE file = ?1", (file.name,)).fetchall()
    ]
    return [
        Problem("orphaned_output", f"output file `{file}` belongs to no handle; `keephold gc` deletes it when it is an "
        "hour old")
        for file in orphans[:_MANY]
    ] + _more("orphaned_output", orphans)  # fmt: skip


def _files(output: Path) -> Iterator[Path]:
    try:
        for file in output.iterdir():
            try:
                if file.is_file() and time.time() - file.stat().st_mtime > _YOUNG_SECS:
                    yield file
            except FileNotFoundError:  # just deleted
                continue
    except FileNotFoundError:
        return


def _displaced(connection: apsw.Connection, owners: Owners) -> list[Problem]:
    rows = connection.execute(
        "SELECT owner, count(*) FROM handles h WHERE owner IS NOT NULL AND stopped_at IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM owners o WHERE o.owner = h.owner) GROUP BY owner"
    ).fetchall()
    return [
        Problem("displaced_owner", f"process `{owner}` is alive and runs {count} calls, but other processes took it "
        "for dead, so nothing it does is recorded; restart it")
        for owner, count in rows
        if owners.alive(str(owner))
    ]  # fmt: skip


def _more(rule: str, found: list[object] | list[Path] | list[tuple[str, str]]) -> list[Problem]:
    surplus = len(found) - _MANY
    return [Problem(rule, f"the same holds for {surplus} more")] if surplus > 0 else []
