"""The reads of a SQLite store: point queries on a connection of the loop's own, and scans in a thread."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw

from keephold.errors import KeepholdError
from keephold.handles.state import EndedBy
from keephold.store.base import (
    EVERY_SPAWNED,
    LIVE,
    NOTIFICATION_LIMIT,
    Answers,
    Collected,
    ConversationRow,
    ConversationSummary,
    Entry,
    Expired,
    HandleQuery,
    InquiryRow,
    Kind,
    Opened,
    OpenTurn,
    Post,
    PostKind,
    ProcessEvent,
    QueuedNotification,
    Record,
    Request,
    Status,
    StoredEvent,
    TranscriptLine,
    TurnRow,
    WaitRow,
)
from keephold.store.sqlite.codec import (
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
from keephold.store.sqlite.events import between, event_row
from keephold.store.sqlite.listing import conversations, expired, left_turns, listing, scans
from keephold.store.sqlite.processes import STREAM, Owners
from keephold.store.sqlite.sql import RECORDS, SQL
from keephold.store.sqlite.threads import Scanner


class Reads:
    """All reads of `SqliteStore` and `ReadOnlyStore`."""

    owner: str
    _reading: apsw.Connection | None = None
    _scanner: Scanner
    _owners: Owners | None = None

    def alive(self, owner: str) -> bool:
        return self._owners is not None and self._owners.alive(owner)

    def stream(self, owner: str) -> str | None:
        """Return where the runtime of an owner listens for streams; None if unknown."""
        bell = "" if self._owners is None else self._owners.bell(owner)
        return bell + STREAM if bell else None

    def _rows(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        if self._reading is None:
            raise _not_open()
        try:
            return self._reading.execute(query, tuple(bindings)).fetchall()
        except apsw.Error as error:
            raise _unreadable(error) from error

    async def _scanned(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        """Run a query that looks at very many rows in a thread, so that the loop is not blocked."""
        if self._reading is None:
            raise _not_open()
        try:
            return await self._scanner.rows(query, bindings)
        except apsw.Error as error:
            raise _unreadable(error) from error

    def _row(self, query: str, *bindings: Any) -> Row | None:
        rows = self._rows(query, bindings)
        return rows[0] if rows else None

    def _record(self, query: str, *bindings: Any) -> Record | None:
        row = self._row(query, *bindings)
        return None if row is None else record(row)

    def _records(self, query: str, *bindings: Any) -> list[Record]:
        return [record(row) for row in self._rows(query, bindings)]

    async def handle(self, uid: str) -> Record | None:
        return self._record(RECORDS["uid"], uid)

    async def named(self, conversation: str, id: str) -> Record | Expired | None:
        found = self._record(RECORDS["named"], conversation, id)
        if found is not None:
            return found
        row = self._row(SQL["tombstone"], conversation, id)
        return None if row is None else Expired(*row)

    async def expired(self, ref: str) -> Expired | None:
        row = self._row(SQL["tombstone_of"], ref) or self._row(SQL["tombstone_anywhere"], ref)
        return None if row is None else Expired(*row)

    async def called(self, conversation: str, call_id: str) -> Record | None:
        return self._record(RECORDS["called"], conversation, call_id)

    async def handles(self, query: HandleQuery = EVERY_SPAWNED, /) -> list[Record]:
        found = listing(query)
        rows = await self._scanned(*found) if scans(query) else self._rows(*found)
        return [record(row) for row in rows]

    async def tally(self, conversation: str, *, timers: bool = True) -> dict[tuple[Kind, Status], int]:
        rows = self._rows(SQL["tally"], (conversation,))
        if timers:
            rows += self._rows(SQL["tally_timers"], (conversation,))
        counts: Counter[tuple[Kind, Status]] = Counter()
        for kind, status, count in rows:
            counts[kind, status] += count
        return counts

    async def ended(self, since: float) -> dict[tuple[str, Status, EndedBy], int]:
        rows = await self._scanned(SQL["ended"], (since,))
        return {(tool, status, ended_by): count for tool, status, ended_by, count in rows}

    async def count(self) -> dict[str, int]:
        counts = {**dict.fromkeys((*LIVE, "stopped", "parked"), 0), **dict(self._rows(SQL["count"], ()))}
        counts["stopped"] -= sum(counts[state] for state in LIVE)
        return counts

    async def asking(self) -> dict[str, int]:
        return dict(self._rows(SQL["asking"], ()))

    async def expiring(self, op: Collected) -> list[Record]:
        query, bound = expired(op, left_turns(op, self._rows, self.alive))
        which = f"WHERE h.number IN (SELECT number FROM ({query})) ORDER BY h.stopped_at"
        return self._records(f"{SQL['records']} {which}", *bound)

    async def used_bytes(self) -> int:
        facts = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._rows(f"PRAGMA {each}", ())[0][0] for each in facts)
        return int((pages - free) * size)

    async def owners(self) -> list[str]:
        return [owner for (owner,) in self._rows(SQL["call_owners"], ()) if owner != self.owner]

    async def owned(self, owner: str | None, limit: int = 1000, after: str = "") -> list[Record]:
        if owner is None:
            return self._records(RECORDS["free"], after, limit)
        return self._records(RECORDS["owned"], owner, after, limit)

    async def holding(self) -> list[Record]:
        return self._records(RECORDS["holding"])

    async def journal(self, uid: str) -> list[Entry]:
        return [entry_row(row) for row in self._rows(SQL["journal"], (uid,))]

    async def journal_end(self, uid: str, *, before: int | None = None, limit: int = 200) -> tuple[list[Entry], int]:
        ((count,),) = self._rows(SQL["journal_count"], (uid,))
        end = count if before is None else max(0, min(before, count))
        rows = self._rows(SQL["journal_end"], (uid, min(end, limit), count - end))
        return [entry_row(row) for row in rows], count

    async def waits(self, uid: str) -> list[WaitRow]:
        return [wait_row(row) for row in self._rows(SQL["waits"], (uid,))]

    async def open_waits(
        self, *, conversation: str | None = None, after: str | None = None, limit: int = 1000
    ) -> list[tuple[WaitRow, Record]]:
        place, number = ("", 0) if after is None else self._row(SQL["place_of_wait"], after) or ("", 0)
        if conversation is not None and conversation != place:
            place, number = conversation, 0
        rows = self._rows(SQL["open_waits_in"], (place, number, limit))
        if conversation is None and len(rows) < limit:
            rows += self._rows(SQL["open_waits_beyond"], (place, limit - len(rows)))
        found = [wait_row(row) for row in rows]
        named = encode(list({row.uid for row in found})).decode()
        records = {each.uid: each for each in self._records(RECORDS["among"], named)}
        return [(row, records[row.uid]) for row in found if row.uid in records]

    async def count_open_waits(self, conversations: Sequence[str]) -> dict[str, int]:
        rows = await self._scanned(SQL["count_open_waits"], (encode(list(conversations)).decode(),))
        return {**dict.fromkeys(conversations, 0), **dict(rows)}

    async def wait(self, key_id: str) -> WaitRow | None:
        row = self._row(SQL["wait"], key_id)
        return None if row is None else wait_row(row)

    async def secret(self, id: str | None = None, *, oldest: bool = False) -> tuple[str, bytes] | None:
        if oldest:
            row = self._row(SQL["oldest_secret"])
            return None if row is None else (row[0], row[1])
        row = self._row(SQL["newest_secret"]) if id is None else self._row(SQL["secret"], id)
        return None if row is None else (row[0], row[1])

    async def due(self, now: float, limit: int = 1000) -> tuple[list[Record], float | None]:
        found = self._records(RECORDS["due"], now, limit + 1)
        if len(found) > limit:
            parking = found.pop().parking
            return found, None if parking is None else parking.deadline
        row = self._row(SQL["next_due"], now)
        return found, None if row is None else row[0]

    async def turn(self, conversation: str) -> OpenTurn | None:
        row = self._row(SQL["open_turn"], conversation)
        if row is None:
            return None
        turn, owner, batches, number = row
        calls = None if number is None else self._row(SQL["batch"], conversation, turn, number)
        batch = None if calls is None else Opened(conversation, turn, number, decode_calls(calls[0]))
        return OpenTurn(turn, owner, batches, batch)

    async def turns(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[TurnRow]:
        return [TurnRow(*row) for row in self._rows(SQL["turns"], (conversation, before, limit))]

    async def summaries(self, *, after: str = "", limit: int = 1000) -> list[ConversationSummary]:
        return [summary_row(row) for row in self._rows(SQL["summaries"], (after, limit))]

    async def answers(self, conversation: str, turn: str, batch: int) -> Answers | None:
        row = self._row(SQL["answers"], conversation, turn, batch)
        if row is None or row[0] is None:
            return None
        return answers(*row)

    async def process_events(
        self, process: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[ProcessEvent]:
        rows = self._rows(SQL["newest_process_events" if newest else "process_events"], (process, after, limit))
        found = [ProcessEvent(id, sequence, type, decode(payload), at) for id, sequence, type, payload, at in rows]
        return found[::-1] if newest else found

    async def events(
        self,
        after: int = 0,
        limit: int = 1000,
        *,
        uid: str | None = None,
        conversation: str | None = None,
        notifications: bool = False,
        newest: bool = False,
        before: int | None = None,
    ) -> list[StoredEvent]:
        query, bound = between(after, limit, uid, conversation, notifications, newest, before)
        long = notifications and conversation is not None
        rows = await self._scanned(query, bound) if long else self._rows(query, bound)
        return [event_row(row) for row in rows]

    async def events_range(self) -> tuple[int, int]:
        ((first, last),) = self._rows(SQL["kept_events"], ())
        return last + 1 if first is None else first, last

    async def notifications(self, conversation: str, limit: int = NOTIFICATION_LIMIT + 1) -> list[QueuedNotification]:
        rows = self._rows(SQL["notifications"], (conversation, limit))
        return [notification_row(row) if row[0] else dropped_row(row) for row in rows]

    async def inquiries(
        self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[InquiryRow]:
        query = SQL["newest_inquiries" if newest else "inquiries"]
        return [inquiry_row(row) for row in self._rows(query, (conversation, turn, limit))]

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[TranscriptLine]:
        return [TranscriptLine(*row) for row in self._rows(SQL["transcript"], (conversation, after, limit))]

    async def conversation(self, id: str) -> ConversationRow | None:
        row = self._row(SQL["described"], id)
        return None if row is None else conversation_row(row)

    async def conversations(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[ConversationRow]:
        return [conversation_row(row) for row in self._rows(*conversations(metadata, before, limit))]

    async def requests(self) -> list[Request]:
        return [Request(*row) for row in self._rows(SQL["requests"], (self.owner,))]

    async def posts(self, kind: PostKind, prefix: str = "") -> list[Post]:
        return [Post(*row) for row in self._rows(SQL["posts"], (kind, prefix, prefix))]

    async def reply(self, id: str) -> bytes | None:
        row = self._row(SQL["reply_to"], id)
        return None if row is None else row[0]


def _not_open() -> KeepholdError:
    return KeepholdError("the store is not open", code="store_unavailable")


def _unreadable(error: apsw.Error) -> KeepholdError:
    return KeepholdError(
        f"the store cannot be read: {error}; see that its file and its disk are there", code="store_unavailable"
    )
