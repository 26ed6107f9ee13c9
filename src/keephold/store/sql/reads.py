"""The reads of the stores that speak SQL. Each store runs the queries in its own way."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.handles.state import EndedBy
from keephold.listeners import Listeners
from keephold.store import base
from keephold.store.base import NOTIFICATION_LIMIT
from keephold.store.housekeeping import Weight
from keephold.store.sql.codec import (
    Row,
    answers,
    conversation_row,
    decode,
    decode_calls,
    dropped_row,
    encode,
    entry_row,
    inquiry_row,
    notification_row,
    record,
    summary_row,
    wait_row,
)
from keephold.store.sql.listing import conversations, event_row, events, expired, left_turns, listing, scans, totals

_NOTHING = "\uffff"
"""Stands for text that no row has: nothing is found."""


def findable(value: Any, *unknown: str) -> Any:
    """Return a value to look for. Text with half of a character, or with one of these characters, is never found."""
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return _NOTHING
    return _NOTHING if any(each in value for each in unknown) else value


class SqlReads:
    """All reads of `Store` and `Browse` but `used_bytes`."""

    directory: Path | None
    owner: str
    sql: Mapping[str, str]

    def alive(self, owner: str) -> bool:
        raise NotImplementedError

    async def _rows(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        """Run a query that is answered at once."""
        raise NotImplementedError

    async def _scanned(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        """Run a query that looks at very many rows."""
        raise NotImplementedError

    async def _row(self, query: str, *bindings: Any) -> Row | None:
        rows = await self._rows(query, bindings)
        return rows[0] if rows else None

    async def _record(self, query: str, *bindings: Any) -> base.Record | None:
        row = await self._row(query, *bindings)
        return None if row is None else record(row)

    async def _records(self, query: str, *bindings: Any) -> list[base.Record]:
        return [record(row) for row in await self._rows(query, bindings)]

    async def handle(self, uid: str) -> base.Record | None:
        return await self._record(self.sql["records_uid"], uid)

    async def named(self, conversation: str, id: str) -> base.Record | base.Expired | None:
        found = await self._record(self.sql["records_named"], conversation, id)
        if found is not None:
            return found
        row = await self._row(self.sql["tombstone"], conversation, id)
        return None if row is None else base.Expired(*row)

    async def expired(self, ref: str) -> base.Expired | None:
        row = await self._row(self.sql["tombstone_of"], ref) or await self._row(self.sql["tombstone_anywhere"], ref)
        return None if row is None else base.Expired(*row)

    async def called(self, conversation: str, call_id: str) -> base.Record | None:
        return await self._record(self.sql["records_called"], conversation, call_id)

    async def handles(self, query: base.HandleQuery = base.EVERY_SPAWNED, /) -> list[base.Record]:
        rows = await (self._scanned if scans(query) else self._rows)(*listing(self.sql, query))
        return [record(row) for row in rows]

    async def tally(self, conversation: str, *, timers: bool = True) -> dict[tuple[base.Kind, base.Status], int]:
        rows = await self._rows(self.sql["tally"], (conversation,))
        if timers:
            rows += await self._rows(self.sql["tally_timers"], (conversation,))
        counts: Counter[tuple[base.Kind, base.Status]] = Counter()
        for kind, status, count in rows:
            counts[kind, status] += count
        return counts

    async def ended(self, since: float) -> dict[tuple[str, base.Status, EndedBy], int]:
        rows = await self._scanned(self.sql["ended"], (since,))
        return {(tool, status, ended_by): count for tool, status, ended_by, count in rows}

    async def count(self) -> dict[str, int]:
        counts = {
            **dict.fromkeys((*base.LIVE, "stopped", "parked"), 0),
            **dict(await self._rows(self.sql["count"], ())),
        }
        counts["stopped"] -= sum(counts[state] for state in base.LIVE)
        return counts

    async def totals(self, query: base.HandleQuery = base.EVERY_SPAWNED, /) -> dict[str, int]:
        return dict(await self._scanned(*totals(self.sql, query)))

    async def asking(self) -> dict[str, int]:
        return dict(await self._rows(self.sql["asking"], ()))

    async def expiring(self, op: base.Collected) -> list[base.Record]:
        old = [] if op.partial else await self._rows(self.sql["old_turns"], (op.before,))
        query, bound = expired(self.sql, op, left_turns(old, self.alive))
        which = f"WHERE h.number IN (SELECT number FROM ({query}) AS found) ORDER BY h.stopped_at, h.number"
        return await self._records(f"{self.sql['records']} {which}", *bound)

    async def weigh(self, op: base.Collected) -> Weight:
        old = [] if op.partial else await self._rows(self.sql["old_turns"], (op.before,))
        query, bound = expired(self.sql, replace(op, limit=2**53), left_turns(old, self.alive))
        ((handles, all_of_them, size),) = await self._scanned(f"{self.sql['weigh']} ({query}) AS found", bound)
        in_files = 0
        if self.directory is not None:
            files = await self._scanned(f"SELECT file FROM ({query}) AS found WHERE file IS NOT NULL", bound)
            in_files = sum(_size_of(self.directory / str(file)) for (file,) in files)
        return Weight(handles, all_of_them - handles, int(size), in_files)

    async def owners(self) -> list[str]:
        return [owner for (owner,) in await self._rows(self.sql["call_owners"], ()) if owner != self.owner]

    async def owned(self, owner: str | None, limit: int = 1000, after: str = "") -> list[base.Record]:
        if owner is None:
            return await self._records(self.sql["records_free"], after, limit)
        return await self._records(self.sql["records_owned"], owner, after, limit)

    async def holding(self) -> list[base.Record]:
        return await self._records(self.sql["records_holding"])

    async def journal(self, uid: str) -> list[base.Entry]:
        return [entry_row(row) for row in await self._rows(self.sql["journal"], (uid,))]

    async def journal_end(
        self, uid: str, *, before: int | None = None, limit: int = 200
    ) -> tuple[list[base.Entry], int]:
        ((count,),) = await self._rows(self.sql["journal_count"], (uid,))
        end = count if before is None else max(0, min(before, count))
        rows = await self._rows(self.sql["journal_end"], (uid, min(end, limit), count - end))
        return [entry_row(row) for row in rows], count

    async def step_times(self, uid: str, *, after: int = 0, limit: int = 200) -> dict[tuple[str, str], float]:
        rows = await self._scanned(self.sql["step_times"], (uid, limit, after))
        found = ((decode(data), at) for data, at in reversed(rows))
        return {(data["kind"], data["name"]): at for data, at in found}

    async def waits(self, uid: str) -> list[base.WaitRow]:
        return [wait_row(row) for row in await self._rows(self.sql["waits"], (uid,))]

    async def open_waits(
        self, *, conversation: str | None = None, after: str | None = None, limit: int = 1000
    ) -> list[tuple[base.WaitRow, base.Record]]:
        place, number = ("", 0) if after is None else await self._row(self.sql["place_of_wait"], after) or ("", 0)
        if conversation is not None and conversation != place:
            place, number = conversation, 0
        rows = await self._rows(self.sql["open_waits_in"], (place, number, limit))
        if conversation is None and len(rows) < limit:
            rows += await self._rows(self.sql["open_waits_beyond"], (place, limit - len(rows)))
        found = [wait_row(row) for row in rows]
        named = encode(list({row.uid for row in found})).decode()
        records = {each.uid: each for each in await self._records(self.sql["records_among"], named)}
        return [(row, records[row.uid]) for row in found if row.uid in records]

    async def count_open_waits(self, conversations: Sequence[str]) -> dict[str, int]:
        rows = await self._scanned(self.sql["count_open_waits"], (encode(list(conversations)).decode(),))
        return {**dict.fromkeys(conversations, 0), **dict(rows)}

    async def wait(self, key_id: str) -> base.WaitRow | None:
        row = await self._row(self.sql["wait"], key_id)
        return None if row is None else wait_row(row)

    async def secret(self, id: str | None = None, *, oldest: bool = False) -> tuple[str, bytes] | None:
        if oldest or id is None:
            row = await self._row(self.sql["oldest_secret" if oldest else "newest_secret"])
        else:
            row = await self._row(self.sql["secret"], id)
        return None if row is None else (row[0], row[1])

    async def due(self, now: float, limit: int = 1000) -> tuple[list[base.Record], float | None]:
        found = await self._records(self.sql["records_due"], now, limit + 1)
        if len(found) > limit:
            parking = found.pop().parking
            return found, None if parking is None else parking.deadline
        row = await self._row(self.sql["next_due"], now)
        return found, None if row is None else row[0]

    async def turn(self, conversation: str) -> base.OpenTurn | None:
        row = await self._row(self.sql["open_turn"], conversation)
        if row is None:
            return None
        turn, owner, batches, number = row
        calls = None if number is None else await self._row(self.sql["batch"], conversation, turn, number)
        batch = None if calls is None else base.Opened(conversation, turn, number, decode_calls(calls[0]))
        return base.OpenTurn(turn, owner, batches, batch)

    async def turns(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[base.TurnRow]:
        return [base.TurnRow(*row) for row in await self._rows(self.sql["turns"], (conversation, before, limit))]

    async def summaries(self, *, after: str = "", limit: int = 1000) -> list[base.ConversationSummary]:
        return [summary_row(row) for row in await self._rows(self.sql["summaries"], (after, limit))]

    async def answers(self, conversation: str, turn: str, batch: int) -> base.Answers | None:
        row = await self._row(self.sql["answers"], conversation, turn, batch)
        if row is None or row[0] is None:
            return None
        return answers(*row)

    async def process_events(
        self, process: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[base.ProcessEvent]:
        rows = await self._rows(
            self.sql["newest_process_events" if newest else "process_events"], (process, after, limit)
        )
        found = [base.ProcessEvent(id, sequence, type, decode(payload), at) for id, sequence, type, payload, at in rows]
        return found[::-1] if newest else found

    async def events(self, query: base.EventQuery = base.EVERY_EVENT, /) -> list[base.StoredEvent]:
        long = query.notifications and query.conversation is not None
        rows = await (self._scanned if long else self._rows)(*events(self.sql, query))
        return [event_row(row) for row in rows]

    async def events_range(self) -> tuple[int, int]:
        ((first, last),) = await self._rows(self.sql["kept_events"], ())
        return last + 1 if first is None else first, last

    async def notifications(
        self, conversation: str, limit: int = NOTIFICATION_LIMIT + 1
    ) -> list[base.QueuedNotification]:
        rows = await self._rows(self.sql["notifications"], (conversation, limit))
        return [notification_row(row) if row[0] else dropped_row(row) for row in rows]

    async def inquiries(
        self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[base.InquiryRow]:
        query = self.sql["newest_inquiries" if newest else "inquiries"]
        return [inquiry_row(row) for row in await self._rows(query, (conversation, turn, limit))]

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[base.TranscriptLine]:
        return [
            base.TranscriptLine(*row) for row in await self._rows(self.sql["transcript"], (conversation, after, limit))
        ]

    async def conversation(self, id: str) -> base.ConversationRow | None:
        row = await self._row(self.sql["described"], id)
        return None if row is None else conversation_row(row)

    async def conversations(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[base.ConversationRow]:
        return [conversation_row(row) for row in await self._rows(*conversations(self.sql, metadata, before, limit))]

    async def requests(self) -> list[base.Request]:
        return [base.Request(*row) for row in await self._rows(self.sql["requests"], (self.owner,))]

    async def posts(self, kind: base.PostKind, prefix: str = "") -> list[base.Post]:
        return [base.Post(*row) for row in await self._rows(self.sql["posts"], (kind, prefix))]

    async def reply(self, id: str) -> bytes | None:
        row = await self._row(self.sql["reply_to"], id)
        return None if row is None else row[0]


class ReadOnly:
    """The rest of a store that is only read: it registers no owner, and does not hear of changes."""

    durable = True
    owner = ""
    trouble: str | None = None
    on_commit: Listeners[[]] = Listeners()

    def commit(self, ops: Sequence[base.Op], done: base.Done, failed: base.Failed, *, keep: bool = False) -> None:
        refuse(failed, "the store was opened read-only")


def refuse(failed: base.Failed, why: str) -> None:
    """Refuse a commit to a store that does not write."""
    error = KeepholdError(f"{why}; nothing was written", code="store_unavailable")
    asyncio.get_running_loop().call_soon(failed, error)


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it is missing, or was just deleted
        return 0
