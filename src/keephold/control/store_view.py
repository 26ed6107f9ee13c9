"""Read a store: handles, conversations, keys, notifications. Nothing here writes, and no runtime is needed: commands
read what other processes run.

Everything is returned as JSON, in pages that the store cuts. Keys are replaced by their ids (K5).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from msgspec import UNSET, UnsetType

from keephold.control.handle_json import (
    HandleGlance,
    HeldUp,
    JournalEntry,
    MaybeSeconds,
    Owner,
    Seconds,
    Shape,
    as_json,
    details,
    emitted_event,
    glance,
    held_up_elsewhere,
    journal_entry,
    prompts_of,
)
from keephold.control.resolve_handle import bearing, check_expired, expired
from keephold.durable.keys import masked
from keephold.errors import KeepholdError
from keephold.handles.facts import NOTHING, Fact, facts_of
from keephold.handles.state import Failure, PendingState, Stopped
from keephold.ids import parent_of
from keephold.store.base import (
    End,
    EventQuery,
    Expired,
    HandleQuery,
    Kind,
    Record,
    Store,
    StoredEvent,
    WaitRow,
    browsable,
    newest_retry,
)

if TYPE_CHECKING:
    from keephold.handles.output import Output

PAGE = 200
"""The most handles, conversations or lines of one page."""
ENDS: tuple[str, ...] = get_args(End)
STATES = ("live", "pending", "running", "waiting", "parked", "stopped", *ENDS)
SORTS = ("newest", "oldest", "stopped", "tool", "id")
KINDS: tuple[str, ...] = get_args(Kind)
COUNTED = 5000
"""The most handles that are counted for a page."""
_QUEUED = 200
_EVENTS = 1000
"""Events that are searched: one handle's for its timeline, notifications' for their conversations."""


class HandlesPage(Shape):
    """A page of handles."""

    handles: list[HandleGlance]
    next: str | None
    totals: Annotated[
        dict[str, int] | UnsetType,
        msgspec.Meta(description=f"How many match, by state, and by end if stopped; at most {COUNTED:,}."),
    ] = UNSET


class JournalPage(Shape):
    """A page of a journal, newest first, and how many entries the journal has."""

    entries: list[JournalEntry]
    count: int
    next: int | None


class ConversationGlance(Shape):
    """A conversation in a list."""

    id: str
    handles: int
    live: int
    updated: MaybeSeconds
    title: str | None
    turn_open: bool
    owner: Owner
    parent: str | None


class ConversationsPage(Shape):
    """A page of conversations."""

    conversations: list[ConversationGlance]
    next: str | None


class TurnGlance(Shape):
    """A turn of a conversation."""

    number: int
    turn: str
    began: Seconds
    ended: MaybeSeconds
    batches: int
    owner: Owner


class ConversationDetails(Shape):
    """A conversation and a page of its turns, newest first."""

    id: str
    title: str | None
    created: MaybeSeconds
    updated: MaybeSeconds
    lines: int
    parent: str | None
    turns: list[TurnGlance]
    next: int | None


class TranscriptLine(Shape):
    """A line of a transcript."""

    line: int
    turn: str
    kind: str
    at: Seconds
    body: Any


class TranscriptPage(Shape):
    """A page of a transcript."""

    lines: list[TranscriptLine]
    next: int | None


class OpenKey(Shape):
    """An open key, by its id."""

    key_id: str
    kind: str
    name: str
    conversation: str
    uid: str
    id: str
    tool: str
    deadline: MaybeSeconds


class KeysPage(Shape):
    """A page of open keys."""

    keys: list[OpenKey]
    next: str | None


class NotificationsPage(Shape):
    """Queued notifications, and a page of what became of earlier ones."""

    queued: list[dict[str, Any]]
    history: list[StoredEvent]
    next: int | None


class StoreView:
    """Reads a store."""

    def __init__(
        self,
        store: Store,
        glance_of: Callable[[Record, Fact], HandleGlance] | None = None,
        output_here: Callable[[Record], "Output | None"] = lambda _: None,
        *,
        longest_page: int = PAGE,
    ) -> None:
        """`glance_of` describes a handle for lists; a runtime's includes what only its process knows. `output_here`
        returns the output of a handle that this process has in memory."""
        self.store = browsable(store)
        self._glance = glance_of or partial(glance, store)
        self._output_here = output_here
        self._longest_page = longest_page

    def _size(self, limit: int) -> int:
        return max(1, min(limit, self._longest_page))

    # Handles

    async def glances(self, records: Sequence[Record]) -> list[HandleGlance]:
        """Describe handles for a list, with what the processes that run them have posted about them."""
        facts = await facts_of(self.store, records)
        shown = [self._glance(record, facts.get(record.uid, NOTHING)) for record in records]
        pending = [record for record in records if isinstance(record.state, PendingState) and record.owner is not None]
        if pending:
            prompts, queues = await prompts_of(self.store), await held_up_elsewhere(self.store, pending, facts)
            for each in shown:
                if each.uid in prompts and not each.held_up:
                    each.held_up = [HeldUp("permission", prompts[each.uid], [], 0)]
                each.held_up = each.held_up or queues.get(each.uid, [])
        return shown

    async def handles(
        self,
        *,
        conversation: str | None = None,
        state: str | None = None,
        kind: str | None = None,
        tool: str | None = None,
        search: str | None = None,
        text: str | None = None,
        since: float | None = None,
        until: float | None = None,
        sort: str = "newest",
        after: str | None = None,
        limit: int = 50,
        oneshot: bool = False,
        totals: bool = False,
    ) -> dict[str, Any]:
        """Return a page of handles; `next` is the next page's `after`, None on the last. `since` and `until` are about
        when they were made; `text` is in their arguments or their output."""
        _check("state", state, STATES)
        _check("kind", kind, KINDS)
        _check("sort", sort, SORTS)
        size = self._size(limit)
        query = HandleQuery(
            conversation=conversation,
            state="stopped" if state in ENDS else None if state in ("parked", "live") else state,
            end=state if state in ENDS else None,  # type: ignore[arg-type]
            parked=True if state == "parked" else None,
            live=state == "live",
            kind=kind,  # type: ignore[arg-type]  # checked above
            tool=tool,
            search=search or None,
            since=since,
            until=until,
            stateful=None if oneshot else True,
            sort="created" if sort in ("newest", "oldest") else sort,  # type: ignore[arg-type]
            newest=sort in ("newest", "stopped"),
            after=after,
            limit=size + 1,
        )
        if text:
            from keephold.control.stored_output import containing  # takes a while

            query = msgspec.structs.replace(query, limit=size)
            records, following = await containing(self.store, query, text, self._output_here)
        else:
            records = await self.store.handles(query)
            following = records[size - 1].uid if len(records) > size else None
        page = HandlesPage(await self.glances(records[:size]), following)
        if totals and not text:
            page.totals = await self.store.totals(msgspec.structs.replace(query, limit=COUNTED))
        return as_json(page)

    async def record(self, ref: str, conversation: str | None = None) -> Record:
        """Return the handle of a uid, or the newest of an id in a conversation. Raises `KeepholdError` if there is
        none."""
        record: Record | Expired | None = await self.store.handle(ref)
        if record is None and conversation is not None:
            record = await self.store.named(conversation, ref)
        if isinstance(record, Expired):
            raise expired(ref)
        if record is None:
            if conversation is not None or not await bearing(self.store, ref, None):
                await check_expired(self.store, ref, conversation)
            where = "" if conversation is None else f" in conversation `{conversation}`"
            raise KeepholdError(f"Handle `{ref}` not found{where}; name it by its uid", code="handle_not_found")
        return record

    async def described(self, record: Record, **more: Any) -> dict[str, Any]:
        """Describe a handle in full, with the end of its journal; `more` are further fields of `HandleDetails`."""
        entries, count = await self.store.journal_end(record.uid, limit=PAGE)
        waits, (shown,) = await self.store.waits(record.uid), await self.glances((record,))
        resumed = shown.owner == "gone" and await self._waits_for_resume(record)
        events = await self.store.process_events(record.uid, limit=PAGE, newest=True)
        failed = isinstance(record.state, Stopped) and isinstance(record.state.outcome, Failure)
        retry = await newest_retry(self.store, record) if failed else None
        more |= {"retried_by": None if retry is None else retry.uid}
        more |= {"waits_for_resume": resumed, "process_events": [emitted_event(event) for event in events]}
        return as_json(details(shown, record, waits, entries[::-1], count, **more))

    async def _waits_for_resume(self, record: Record) -> bool:
        turn = await self.store.turn(record.conversation)
        if turn is None or not turn.waits_for(record):
            return False
        from keephold.tools.builtin import source_of  # takes a while
        from keephold.turn.recovery import waits_for_resume

        return waits_for_resume(record.state, source_of(record.tool))

    async def journal(self, uid: str, *, before: int | None = None, limit: int = PAGE) -> dict[str, Any]:
        """Return a page of a call's journal, newest first; `next` is the `before` of earlier entries."""
        size = self._size(limit)
        entries, count = await self.store.journal_end(uid, before=before, limit=size)
        end = count if before is None else min(before, count)
        # Entries of failed attempts are deleted and their events are not, so that some more events may be needed.
        times = await self.store.step_times(uid, after=max(0, count - end - size), limit=3 * size)
        shown = [journal_entry(entry, times.get((entry.kind, entry.name))) for entry in entries]
        return as_json(JournalPage(shown, count, max(0, end - size) or None))

    async def timeline(self, uid: str) -> list[dict[str, Any]]:
        """Return a handle's events, oldest first; if there are very many, the newest of them."""
        newest = await self.store.events(EventQuery(uid=uid, newest=True, limit=_EVENTS))
        return [as_json(_event(event)) for event in reversed(newest)]

    async def whole_journal(self, uid: str) -> list[dict[str, Any]]:
        """Return a call's journal, oldest first, without traces."""
        found = []
        for number, entry in enumerate(await self.store.journal(uid), 1):
            if entry.kind != "trace":
                found.append(as_json(journal_entry(entry)))
            if not number % PAGE:
                await asyncio.sleep(0)  # let others run: a journal may be long
        return found

    # Conversations

    async def conversations(self, *, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Return a page of conversations by name: all that have handles, turns or a transcript."""
        size = self._size(limit)
        places = await self.store.summaries(after=after or "", limit=size + 1)
        listed = []
        for place in places[:size]:
            turn = await self.store.turn(place.id)
            listed.append(
                ConversationGlance(
                    id=place.id,
                    handles=place.handles,
                    live=place.live,
                    updated=place.updated or None,
                    title=masked((place.described or {}).get("title")),
                    turn_open=turn is not None,
                    owner=None if turn is None else self._owner(turn.owner),
                    parent=parent_of(place.id),
                )
            )
        return as_json(ConversationsPage(listed, places[size - 1].id if len(places) > size else None))

    async def conversation(self, id: str, *, before: int | None = None, limit: int = 20) -> dict[str, Any]:
        """Return a conversation and its turns, newest first; `before` is the number of the previous page's last
        turn."""
        described, size = await self.store.conversation(id), self._size(limit)
        turns = await self.store.turns(id, before=before, limit=size + 1)
        any_call = HandleQuery(conversation=id, stateful=None, limit=1)
        if described is None and not turns and not await self.store.handles(any_call):
            raise KeepholdError(f"there is no conversation `{id}`", code="conversation_not_found")
        found = ConversationDetails(
            id=id,
            title=masked(described.metadata.get("title")) if described else None,
            created=described.created if described else None,
            updated=described.updated if described else None,
            lines=described.lines if described else 0,
            parent=parent_of(id),
            turns=[
                TurnGlance(
                    number=turn.number,
                    turn=turn.turn,
                    began=turn.began_at,
                    ended=turn.ended_at,
                    batches=turn.batches,
                    owner=self._owner(turn.owner),
                )
                for turn in turns[:size]
            ],
            next=turns[size - 1].number if len(turns) > size else None,
        )
        return as_json(found)

    def _owner(self, owner: str | None) -> Owner:
        return None if owner is None else "alive" if self.store.alive(owner) else "gone"

    async def inquiries(self, conversation: str, limit: int = 20) -> list[dict[str, Any]]:
        """Return the inquiries of a conversation and their answers (Q6), newest first."""
        rows = await self.store.inquiries(conversation, newest=True, limit=self._size(limit))
        return [masked(msgspec.to_builtins(row)) for row in rows]

    async def transcript(self, conversation: str, after: int = 0, limit: int = 100) -> dict[str, Any]:
        """Return a page of a conversation's transcript after that line."""
        size = self._size(limit)
        lines = await self.store.transcript(conversation, after, size + 1)
        shown = [
            TranscriptLine(each.number, each.turn, each.kind, each.at, masked(msgspec.json.decode(each.body)))
            for each in lines[:size]
        ]
        return as_json(TranscriptPage(shown, lines[size - 1].number if len(lines) > size else None))

    # Keys and notifications

    async def keys(self, conversation: str | None = None, after: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Return a page of open keys by their ids, grouped by conversation. Keys themselves are never shown (D3)."""
        size = self._size(limit)
        found = await self.store.open_waits(conversation=conversation, after=after or None, limit=size + 1)
        listed = [_key(row, record) for row, record in found[:size]]
        return as_json(KeysPage(listed, listed[-1].key_id if len(found) > size else None))

    async def notifications(
        self, conversation: str | None = None, before: int | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """Return the queued notifications and a page of earlier ones, newest first; `next` is the next page's
        `before`."""
        size = self._size(limit)
        names = [conversation] if conversation else await self._with_notifications()
        queued = [
            {**msgspec.to_builtins(notification), "message": masked(notification.message)}
            for name in names
            for notification in await self.store.notifications(name, _QUEUED)
        ]
        past = await self.store.events(
            EventQuery(notifications=True, conversation=conversation, newest=True, before=before, limit=size + 1)
        )
        history = [_event(event) for event in past[:size]]
        return as_json(NotificationsPage(queued[:_QUEUED], history, past[size - 1].seq if len(past) > size else None))

    async def _with_notifications(self) -> list[str]:
        """Return conversations that may have notifications, latest first; most conversations never had any."""
        events = await self.store.events(EventQuery(notifications=True, newest=True, limit=_EVENTS))
        return list(dict.fromkeys(event.conversation for event in events))


def _check(what: str, given: str | None, known: Iterable[str]) -> None:
    if given is not None and given not in known:
        raise KeepholdError(f"`{what}` must be one of {', '.join(known)}", code="invalid_arguments")


def _event(event: StoredEvent) -> StoredEvent:
    """Mask a stored event: a notification may contain a tool's question, which may name a key (K5)."""
    return msgspec.structs.replace(event, data=masked(event.data))


def _key(row: WaitRow, record: Record) -> OpenKey:
    return OpenKey(
        key_id=row.key_id,
        kind=row.kind,
        name=row.name,
        conversation=row.conversation,
        uid=record.uid,
        id=record.id,
        tool=record.tool,
        deadline=record.parking.deadline if record.parking is not None else None,
    )
