"""The protocol of a store: operations are written as one transaction before anyone may see them.

Everything that must survive is an operation. `commit` writes a list of operations as one transaction and then calls
back; nothing is visible before that (durable before visible). Commits finish in the order they were given, but commits
that only delete (`Collected`) may finish later than those behind them. Reads show what any process has committed.

A store knows the process that opened it by `owner`: an id with a lock that ends with the process (E6). The process owns
the calls it runs. Every operation about a call carries the call's fencing number, and a stale one is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from keephold.errors import KeepholdError
from keephold.handles.state import EndedBy
from keephold.listeners import Listeners
from keephold.store.events import EVENTS_LIMIT as EVENTS_LIMIT
from keephold.store.events import NOTIFICATION_TYPES as NOTIFICATION_TYPES
from keephold.store.events import StoredEvent as StoredEvent
from keephold.store.ops import *  # noqa: F403 (so that callers find operations and rows here, too)
from keephold.store.rows import *  # noqa: F403

Done = Callable[[Sequence[Any]], object]
"""Gets the results of a commit, one for each operation; None where an operation has no result."""
Failed = Callable[[Exception], None]
"""Gets the `KeepholdError` that says why a commit was refused: then nothing of it was written."""
Heard = Callable[[frozenset[str] | None], None]
"""Gets what another process changed: uids of handles, key ids, and conversations with notifications of no handle; None:
anything may have changed."""


class Committing(Protocol):
    """The signature of `Store.commit`."""

    def __call__(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None: ...


class Store(Protocol):
    """Everything a runtime needs of its store. Methods are called on the event loop's thread and call back on it."""

    durable: bool
    """Whether anything survives the process (E9)."""
    owner: str
    """The id of this process in the store, from `open` on."""
    inline_output: int
    """Output up to this size goes into the commit, more into a file of `directory`."""
    directory: Path | None
    """Where output files are. None: the store has no directory, and outputs stay in the runtime's spool."""

    @property
    def trouble(self) -> str | None:
        """Why the store cannot write at present; None: it can."""

    @property
    def on_commit(self) -> Listeners[[]]:
        """Called after a commit of this process that wrote events, once its callbacks have run; sometimes without any
        new event. `open`'s `heard` is called for what other processes write."""

    async def open(self, heard: Heard) -> None:
        """Get ready. If that fails, raise `KeepholdError` and change nothing."""

    async def close(self) -> None:
        """Write all that was given, then release everything, the owner's lock last. Calling it twice is harmless."""

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        """Write all of `ops` or none, then call `done`, or `failed` if the store refuses. No operations: a barrier.

        If the store cannot write now, it finds out whether the operations were written nevertheless. If they were not,
        `failed` gets `store_unavailable`; with `keep` the commit waits, in its place, until it can be written.
        """

    def alive(self, owner: str) -> bool:
        """Whether the process behind an owner lives. A dead process does not write any more."""

    # Handles

    async def handle(self, uid: str) -> Record | None: ...

    async def named(self, conversation: str, id: str) -> Record | Expired | None:
        """Return the newest handle of the id, or its tombstone."""

    async def called(self, conversation: str, call_id: str) -> Record | None:
        """Return the newest one-shot call of that label."""

    async def handles(self, query: HandleQuery = EVERY_SPAWNED, /) -> list[Record]:
        """Return the handles that the query describes. The default is the first thousand spawned handles."""

    async def tally(self, conversation: str, *, timers: bool = True) -> dict[tuple[Kind, Status], int]:
        """Count the conversation's spawned handles, and timers as in `HandleQuery`, without zeros."""

    async def expiring(self, op: Collected) -> list[Record]:
        """Return the handles that this operation would delete now, the first to have stopped first."""

    async def used_bytes(self) -> int:
        """Return how many bytes on the disk the store uses, without the files of its directory and unused space."""

    # Calls of other processes, and what has to be done about parked ones

    async def owners(self) -> list[str]:
        """Return every other owner of a call, or of a cancelled call whose hook is due."""

    async def owned(self, owner: str | None, limit: int = 1000, after: str = "") -> list[Record]:
        """Return an owner's calls that have not stopped, and its cancelled calls whose hook is due.

        None: cancelled calls without an owner whose hook is due, and held calls (`Parking.hold`) that are resolved.
        """

    async def holding(self) -> list[Record]:
        """Return the parked calls that hold resources (B5)."""

    async def due(self, now: float, limit: int = 1000) -> tuple[list[Record], float | None]:
        """Return the parked calls whose deadline has passed, and the next deadline."""

    async def requests(self) -> list[Request]:
        """Return the requests of other processes to this one that have no reply."""

    async def reply(self, id: str) -> bytes | None:
        """Return the reply to a request of this process, once there is one."""

    async def posts(self, kind: PostKind, prefix: str = "") -> list[Post]:
        """Return what processes have posted, oldest first, with ids that begin so; those of a dead process only until
        the next one opens."""

    # Journals, waits and keys

    async def journal(self, uid: str) -> list[Entry]: ...

    async def waits(self, uid: str) -> list[WaitRow]: ...

    async def wait(self, key_id: str) -> WaitRow | None: ...

    async def secret(self, id: str | None = None, *, oldest: bool = False) -> tuple[str, bytes] | None:
        """Return the secret of that id, or the one to use for new keys, or the first there was."""

    async def process_events(
        self, process: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[ProcessEvent]:
        """Return at most `limit` events of a process after that number: the first ones, or with `newest` the last ones.
        The oldest comes first."""

    # Conversations and turns

    async def turn(self, conversation: str) -> OpenTurn | None: ...

    async def answers(self, conversation: str, turn: str, batch: int) -> Answers | None:
        """Return the recorded responses of a batch; None if it has none, or the store does not keep them."""

    async def notifications(self, conversation: str, limit: int = NOTIFICATION_LIMIT + 1) -> list[QueuedNotification]:
        """Return the queue, oldest first, after the line that says how many were dropped."""

    async def inquiries(
        self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
    ) -> list[InquiryRow]:
        """Return the inquiries of one turn or all, oldest or newest first. They are deleted with their turn's batches
        (Q6)."""

    async def transcript(self, conversation: str, after: int = 0, limit: int = 10_000) -> list[TranscriptLine]:
        """Return what was said in a conversation, oldest first, after the line of that number."""

    async def conversation(self, id: str) -> ConversationRow | None: ...


@runtime_checkable
class Browse(Store, Protocol):
    """A store with the reads that only lists and pages need: the command line, the dashboard, the API and ACP."""

    async def expired(self, ref: str) -> Expired | None:
        """Return the tombstone of the handle of a uid, or the newest of an id in any conversation."""

    async def count(self) -> dict[str, int]:
        """Count spawned handles by the name of their state, and how many of them are `parked`."""

    async def totals(self, query: HandleQuery = EVERY_SPAWNED, /) -> dict[str, int]:
        """Count the handles that the query describes: live ones by the name of their state, stopped ones by their
        `End`, without zeros. At most `limit` are counted, the oldest or the `newest`; `after` does not matter."""

    async def asking(self) -> dict[str, int]:
        """Count the calls that have an open question, spawned or not, by owner."""

    async def ended(self, since: float) -> dict[tuple[str, Status, EndedBy], int]:
        """Count the spawned handles that have stopped since then, by tool, status and what ended them, without zeros.
        A completed handle ended by itself."""

    async def journal_end(self, uid: str, *, before: int | None = None, limit: int = 200) -> tuple[list[Entry], int]:
        """Return the last lines of a journal without traces, or the last of its first `before`, newest first; and how
        many lines it has."""

    async def step_times(self, uid: str, *, after: int = 0, limit: int = 200) -> dict[tuple[str, str], float]:
        """Return when the last lines of a journal were written, by kind and name, without the last `after` of them, as
        far as events are kept."""

    async def open_waits(
        self, *, conversation: str | None = None, after: str | None = None, limit: int = 1000
    ) -> list[tuple[WaitRow, Record]]:
        """Return the open waits of calls that have not stopped, each with its handle: by conversation, oldest first,
        after the one of key id `after`, which may have been resolved since."""

    async def count_open_waits(self, conversations: Sequence[str]) -> dict[str, int]:
        """Count those waits for each of these conversations."""

    async def turns(self, conversation: str, *, before: int | None = None, limit: int = 50) -> list[TurnRow]:
        """Return the turns of a conversation, newest first, before the one of that number."""

    async def conversations(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[ConversationRow]:
        """Return conversations with a transcript or a description, by `updated`, then id, the highest first.

        `metadata`: as in `HandleQuery`. `before`: `updated` and `id` of the last one of the page before.
        """

    async def summaries(self, *, after: str = "", limit: int = 1000) -> list[ConversationSummary]:
        """Return every conversation that has handles, turns or a transcript, by name, after that one."""

    async def events(self, query: EventQuery = EVERY_EVENT, /) -> list[StoredEvent]:
        """Return the events that the query describes. The default is the first thousand that are kept."""

    async def events_range(self) -> tuple[int, int]:
        """Return the numbers of the first and the last event that is kept. The newest is always kept; (1, 0): there
        never was one."""


@runtime_checkable
class SupportsWhispers(Store, Protocol):
    """A store that carries messages from process to process without writing them down, so that they may be secret."""

    @property
    def ear(self) -> str:
        """Where messages reach this process. Only readers of the store can learn it. Empty: nowhere at present."""

    @property
    def on_whisper(self) -> Listeners[[str | None]]:
        """Called with each message to this process, in the order they were sent; None: some may be lost."""

    async def whisper(self, ear: str, message: str) -> None:
        """Send fewer than 8,000 bytes of text. The message may be lost, and never arrives twice. Raises
        `KeepholdError`, after which it may have been sent."""


@runtime_checkable
class SupportsStreams(Protocol):
    """A store whose processes can be reached at sockets of this machine."""

    def stream(self, owner: str) -> str | None:
        """Return where the runtime of an owner listens for streams; None if that is unknown or on another machine."""


@runtime_checkable
class SupportsCounting(Protocol):
    """A store that counts its transactions since it was opened."""

    commits: int


@runtime_checkable
class InFile(Protocol):
    """A store in a file of this machine."""

    path: Path


@runtime_checkable
class OnServer(Protocol):
    """A store of a database server, whose address may hold a password."""

    address: Any


def file_of(store: Store) -> Path | None:
    """Return the file that the store is in; None if it is in no file."""
    return store.path if isinstance(store, InFile) else None


def address_of(store: Store) -> Any:
    """Return the address at which a server has the store; None if none has."""
    return store.address if isinstance(store, OnServer) else None


def browsable(store: Store) -> Browse:
    """Return the store as one that can be browsed; raise `KeepholdError` if it lacks those reads."""
    if not isinstance(store, Browse):
        raise KeepholdError(
            f"{type(store).__name__} has no lists: it implements Store but not Browse", code="unsupported_store"
        )
    return store


async def newest_retry(store: Store, record: Record) -> Record | None:
    """Return the newest retry of a stopped call, unless a later handle has taken the id."""
    newest = await store.named(record.conversation, record.retry_id)
    first = record.retry_of or record.uid
    return newest if isinstance(newest, Record) and newest.retry_of == first and newest.uid != record.uid else None
