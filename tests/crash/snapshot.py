"""What a store holds on the disk, read without keephold: from a copy, as a crash left it.

A connection to the file itself would write the WAL back when it closes, and the next run would not find what the one
before had left.
"""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.crash.stage import store_file, store_url

from keephold.store.sql.queries import invariants

_HANDLES = """
SELECT uid, id, tool, conversation, call_id, owner, fence, stateful, hook_due, parking IS NOT NULL,
    next_attempt_at IS NOT NULL, state FROM handles
"""


class Row(NamedTuple):
    """A handle."""

    uid: str
    id: str
    tool: str
    conversation: str
    call_id: str
    owner: str | None
    fence: int
    stateful: bool
    hook_due: bool
    parked: bool
    """It has terms to wait on; if it has an owner too, it counts as parked once that one is dead."""
    planned: bool
    """Its next attempt is planned, and nothing of it runs."""
    state: Any

    @property
    def stopped(self) -> bool:
        return bool(self.state["type"] == "stopped")


@dataclass(frozen=True)
class Snapshot:
    """Everything that may not get lost or change."""

    handles: dict[str, Row] = field(default_factory=dict)
    journal: dict[tuple[str, str, str], tuple[bool, Any]] = field(default_factory=dict)
    """By uid, kind and name: whether it was a success, and the value."""
    waits: dict[str, tuple[str, str, Any]] = field(default_factory=dict)
    """By key id: uid, kind and resolution."""
    events: dict[tuple[str, int], Any] = field(default_factory=dict)
    responses: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    """By conversation, turn and number: what a batch was answered, None if it was not."""
    news: dict[int, str] = field(default_factory=dict)
    carried: frozenset[str] = frozenset()
    """The uids of handles whose notifications ride on a batch's responses."""
    open_turns: frozenset[str] = frozenset()

    @classmethod
    def of(cls, directory: Path) -> "Snapshot":
        url = store_url(directory)
        if url is not None:
            from tests.crash.postgres_tables import rows_of

            with rows_of(url) as rows:
                _refuse_broken(rows, "missing_events")  # PostgreSQL loses numbers when it rolls back
                return cls._read(rows)
        source = store_file(directory)
        if not source.exists():
            return cls()
        with tempfile.TemporaryDirectory(dir=directory) as copies:
            copy = Path(copies) / "copy.db"
            for end in ("", "-wal"):
                if Path(f"{source}{end}").exists():
                    shutil.copyfile(f"{source}{end}", f"{copy}{end}")
            connection = sqlite3.connect(copy)
            try:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                _refuse_broken(connection.execute)
                return cls._read(connection.execute)
            finally:
                connection.close()

    @classmethod
    def _read(cls, rows: Callable[[str], Iterable[Any]]) -> "Snapshot":
        return cls(
            handles={row[0]: Row._make((*row, json.loads(state))) for *row, state in rows(_HANDLES)},
            journal={
                (uid, kind, name): (bool(ok), json.loads(value))
                for uid, kind, name, ok, value in rows(
                    "SELECT uid, j.kind, name, ok, value FROM journal j JOIN handles h ON h.number = j.handle"
                )
            },
            waits={
                key_id: (uid, kind, _json(resolution))
                for key_id, uid, kind, resolution in rows("SELECT key_id, uid, kind, resolution FROM waits")
            },
            events={
                (process, sequence): [type, json.loads(payload)]
                for process, sequence, type, payload in rows(
                    "SELECT process, sequence, type, payload FROM process_events"
                )
            },
            responses={
                (conversation, turn, number): _json(responses)
                for conversation, turn, number, responses in rows(
                    "SELECT conversation, turn, batch, responses FROM batches"
                )
            },
            news=dict(rows("SELECT number, uid FROM notifications")),
            carried=frozenset(
                each["uid"]
                for (carried,) in rows("SELECT notifications FROM batches WHERE notifications IS NOT NULL")
                for each in json.loads(carried)
            ),
            open_turns=frozenset(turn for (turn,) in rows("SELECT turn FROM turns WHERE ended_at IS NULL")),
        )


def _refuse_broken(rows: Callable[[str], Iterable[Any]], *unknown: str) -> None:
    """Fail for everything that `keephold store check` would find, but for these rules."""
    found = {rule: [*rows(query)] for rule, query in invariants().items() if rule not in unknown}
    assert not any(found.values()), found


def _json(value: bytes | None) -> Any:
    return None if value is None else json.loads(value)
