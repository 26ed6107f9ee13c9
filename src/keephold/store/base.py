"""The store seam: what happened, written as one before anyone may see it.

Everything that must survive is an operation. `commit` writes a list of operations as one transaction and then calls
back; nothing is visible before that (durable before visible). Commits finish in the order they were given. Reads show
what has been committed, by any process.

A store knows the process that opened it by `owner`: an id with a lock that dies with the process (E6). What the process
runs is owned by it; every operation about a call carries the call's fencing number, and a stale one is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from keephold.handles.state import EndedBy
from keephold.listeners import Listeners
from keephold.store.events import EVENTS_LIMIT, NOTIFICATION_TYPES, StoredEvent
from keephold.store.ops import (
    Annotated,
    Attempted,
    Changed,
    Claimed,
    Collected,
    Delivered,
    Described,
    Emitted,
    Exposed,
    Forgotten,
    HandedOut,
    HookCalled,
    Inquired,
    Journaled,
    Notified,
    Op,
    Parked,
    Registered,
    Released,
    Replied,
    RequestClosed,
    Requested,
    Resolved,
    Responded,
    Revoked,
    Rewritten,
    SecretAdded,
    TakenBack,
    TranscriptAppended,
    TurnBegan,
    TurnEnded,
    WaitOpened,
    Wrote,
)
from keephold.store.rows import (
    CARRIERS,
    LIVE,
    NOTIFICATION_LIMIT,
    TOMBSTONE_SECS,
    TOMBSTONES,
    WAIT_KINDS,
    Answers,
    BatchRow,
    Carrier,
    ConversationRow,
    Entry,
    EntryKind,
    Expired,
    Given,
    InquiryRow,
    KeptOutput,
    Kind,
    Level,
    Notice,
    Opened,
    OpenTurn,
    Parking,
    Place,
    ProcessEvent,
    QueuedNotification,
    Record,
    Request,
    Resolution,
    Resolving,
    Shown,
    Sort,
    Status,
    TranscriptLine,
    TurnRow,
    WaitRow,
    made_at,
    status_of,
)

__all__ = [
    "CARRIERS",
    "EVENTS_LIMIT",
    "LIVE",
    "NOTIFICATION_LIMIT",
    "NOTIFICATION_TYPES",
    "TOMBSTONES",
    "TOMBSTONE_SECS",
    "WAIT_KINDS",
    "Annotated",
    "Answers",
    "Attempted",
    "BatchRow",
    "Carrier",
    "Changed",
    "Claimed",
    "Collected",
    "ConversationRow",
    "Delivered",
    "Described",
    "Done",
    "Emitted",
    "Entry",
    "EntryKind",
    "Expired",
    "Exposed",
    "Failed",
    "Forgotten",
    "Given",
    "HandedOut",
    "Heard",
    "HookCalled",
    "Inquired",
    "InquiryRow",
    "Journaled",
    "KeptOutput",
    "Kind",
    "Level",
    "Notice",
    "Notified",
    "Op",
    "OpenTurn",
    "Opened",
    "Parked",
    "Parking",
    "Place",
    "ProcessEvent",
    "QueuedNotification",
    "Record",
    "Registered",
    "Released",
    "Replied",
    "Request",
    "RequestClosed",
    "Requested",
    "Resolution",
    "Resolved",
    "Resolving",
    "Responded",
    "Revoked",
    "Rewritten",
    "SecretAdded",
    "Shown",
    "Sort",
    "Status",
    "Store",
    "StoredEvent",
    "TakenBack",
    "TranscriptAppended",
    "TranscriptLine",
    "TurnBegan",
    "TurnEnded",
    "TurnRow",
    "WaitOpened",
    "WaitRow",
    "Wrote",
    "made_at",
    "status_of",
]

Done = Callable[[Sequence[Any]], None]
"""Gets the results of a commit, one for each operation; None where there is nothing to tell."""
Failed = Callable[[Exception], None]
"""Gets the `KeepholdError` that says why a commit was refused: then nothing of it was written."""
Heard = Callable[[frozenset[str] | None], None]
"""Gets what another process changed: uids of handles, key ids, and conversations with news of no handle; None: anything
may have changed."""


class Committing(Protocol):
    """What takes commits: `Store.commit`, and whatever looks at them on their way to it."""

    def __call__(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None: ...


class Store(Protocol):
    """Keeps what happened. Everything is called on the event loop's thread and calls back on it."""

    durable: bool
    """Whether anything survives the process (E9)."""
    owner: str
    """Who we are, from `open` on."""
    inline_output: int
    """Output up to this size goes into the commit, more into a file of `directory`."""
    directory: Path | None
    """Where output files are. None: there is no such place, outputs stay where they are."""
    trouble: str | None
    """Why it cannot write at present; None: it can."""

    @property
    def on_commit(self) -> Listeners[[]]:
        """Called after a commit of this process that wrote events, once its callbacks have run; sometimes without any
        new event. `open`'s `heard` is called for what other processes write."""

    async def open(self, heard: Heard) -> None:
        """Be ready. Raises `KeepholdError` if that cannot be, and then has changed nothing."""

    async def close(self) -> None:
        """Write what was given, then let go of everything, our lock last. Twice is harmless."""

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        """Write all of `ops` or none, then call `done`, or `failed` if that is refused. No operations: a barrier.

        If the store cannot write now it finds out whether it has written nevertheless. If not, `failed` gets
        `store_unavailable`; with `keep` the commit waits, in its place, until it can be written.
        """

    def alive(self, owner: str) -> bool:
        """Whether the process behind an owner lives. Of a dead one nothing is heard any more."""

    async def handle(self, uid: str) -> Record | None: ...

    async def named(self, conversation: str, id: str) -> Record | Expired | None:
        """The newest handle that bears the id, or its tombstone."""

    async def expired(self, uid: str) -> Expired | None:
        """The tombstone of the handle of a uid."""

    async def called(self, conversation: str, call_id: str) -> Record | None:
        """The newest one-shot call of that label."""

    async def handles(
        self,
        *,
        conversation: str | None = None,
        state: str | None = None,
        live: bool = False,
        turn: str | None = None,
        parked: bool | None = None,
        stateful: bool | None = True,
        kind: Kind | None = None,
        status: Status | None = None,
        tool: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        search: str | None = None,
        timers: bool = False,
        sort: Sort = "created",
        after: str | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> list[Record]:
        """Handles, oldest first or, with `newest`, newest first; after the one of uid `after` in that order.

        `live`: those that have not stopped. `metadata`: those that have each of these keys with the same JSON value.
        `search`: those whose id, tool or uid has that text in it, whatever the case of its ASCII letters. `timers`:
        besides spawned handles the one-shot calls of kind `timer` that have not stopped (W1). Sorted by anything but
        `created`, a list that goes on after a handle that is gone is empty; by `stopped`, what lives is the oldest.
        """

    async def count(self) -> dict[str, int]:
        """How many spawned handles there are, by the name of their state; and how many of those are `parked`."""

    async def asking(self) -> dict[str, int]:
        """How many calls ask something at present, spawned or not, by who owns them."""

    async def tally(self, conversation: str, *, timers: bool = True) -> dict[tuple[Kind, Status], int]:
        """How many spawned handles the conversation has, and timers as in `handles`; only what there is."""

    async def ended(self, since: float) -> dict[tuple[str, Status, EndedBy], int]:
        """How many spawned handles have stopped since then, by tool, status and what ended them; only what there is.
        What has completed ended by itself."""

    async def expiring(self, op: Collected) -> list[Record]:
        """What that operation would let go of now, what stopped first first."""

    async def owners(self) -> list[str]:
        """Everyone but us who owns a call, or a cancelled one whose hook is due."""

    async def owned(self, owner: str | None, limit: int = 1000, after: str = "") -> list[Record]:
        """What an owner has: calls that have not stopped, and cancelled ones whose hook is due.

        None: cancelled calls whose hook is due and that nobody has, and held calls (`Parking.hold`) that are resolved.
        """

    async def holding(self) -> list[Record]:
        """Parked calls that hold resources (B5)."""

    async def journal(self, uid: str) -> list[Entry]: ...

    async def journal_end(self, uid: str, *, before: int | None = None, limit: int = 200) -> tuple[list[Entry], int]:
        """The last lines of a journal, traces aside, or the last of its first `before`, newest first; and how many it
        has."""

    async def waits(self, uid: str) -> list[WaitRow]: ...

    async def open_waits(
        self, *, conversation: str | None = None, after: str | None = None, limit: int = 1000
    ) -> list[tuple[WaitRow, Record]]:
        """Waits that are open, of calls that have not stopped, each with its handle: by conversation, the oldest first,
        after the one of key id `after`, which may have been resolved since."""

    async def count_open_waits(self, conversations: Sequence[str]) -> dict[str, int]:
        """How many of those each of these conversations has."""

    async def wait(self, key_id: str) -> WaitRow | None: ...

    async def secret(self, id: str | None = None, *, oldest: bool = False) -> tuple[str, bytes] | None:
        """The secret of that id, or the one to use for new keys, or the first there was."""

    async def due(self, now: float, limit: int = 1000) -> tuple[list[Record], float | None]:
        """Parked calls whose deadline has come, and when the next one will."""

    async def turn(self, conversation: str) -> OpenTurn | None: ...

    async def turns(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[TurnRow]:
        """The turns of a conversation, newest first, before the one of that number."""

    async def batches(self, conversation: str, turn: str) -> list[BatchRow]:
        """The batches of a turn, in order. A store that does not last has the open one only."""

    async def places(self, *, after: str = "", limit: int = 1000) -> list[Place]:
        """Every conversation that has handles, turns or a transcript, by name, after that one."""

    async def answers(self, conversation: str, turn: str, batch: int) -> Answers | None:
        """What a batch was answered; None if it was not, or if that is not kept."""

    async def process_events(self, process: str, after: int = 0, limit: int = 1000) -> list[ProcessEvent]: ...

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
        """What happened, in order, or newest first, between these two numbers: of a handle, its steps aside (see
        its journal), of a conversation, or only what happened to news."""

    async def events_range(self) -> tuple[int, int]:
        """The numbers of the first and of the last event that is kept, as the newest always is; (1, 0): there never was
        one."""

    async def notifications(self, conversation: str, limit: int = NOTIFICATION_LIMIT + 1) -> list[QueuedNotification]:
        """What is queued, oldest first, after the line that says how much was dropped."""

    async def inquiries(
        self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[InquiryRow]:
        """What was asked and answered, of one turn or all, oldest or newest first. It goes when its turn's batches go
        (Q6)."""

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[TranscriptLine]:
        """What was said in a conversation, oldest first, after the line of that number."""

    async def conversation(self, id: str) -> ConversationRow | None: ...

    async def conversations(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[ConversationRow]:
        """Conversations, the newest `updated` first, then by id, the highest first.

        `metadata`: as in `handles`. `before`: `updated` and `id` of the last one of the page before.
        """

    async def requests(self) -> list[Request]:
        """What others want of us and has not been answered."""

    async def reply(self, id: str) -> bytes | None:
        """The answer to a request of ours, once it is there."""
