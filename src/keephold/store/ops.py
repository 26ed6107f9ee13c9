"""The operations: everything that changes what a store keeps. `Store.commit` writes a list of them as one.

Those with `fence` are refused with `lease_lost` if the call has another fencing number by now, and with
`already_stopped` if it has stopped.
"""

from typing import Any, Literal

import msgspec

from keephold.handles.state import Progress, State, StateEvent
from keephold.store.rows import (
    CARRIERS,
    Allowed,
    Carrier,
    EntryKind,
    Given,
    InquiryRow,
    KeptOutput,
    Kind,
    Level,
    Notice,
    Opened,
    Parking,
    PostKind,
    QueuedNotification,
    Record,
    Resolution,
    Shown,
    Standing,
    Status,
)


class TurnBegan(msgspec.Struct, frozen=True):
    """Begin or resume a turn, which this process owns. Refused with `turn_open` unless the conversation's open turn is
    `was` (None: it has none) and, where it is given, belongs to `was_owner`: of two processes that resume a turn at
    once, one is first.

    If `was` is another turn, that one ends: its open batch will never be answered. Notifications that were handed to it
    last, with nothing since to show that they arrived, are queued again (N3), unless `answers` gives them to the
    process that resumes the turn.
    """

    conversation: str
    turn: str
    at: float
    was: str | None = None
    was_owner: str | None = None


class TurnEnded(msgspec.Struct, frozen=True):
    """End a turn. The result is whether it was open."""

    conversation: str
    turn: str
    at: float


class TurnReleased(msgspec.Struct, frozen=True):
    """Give up an open turn of this process, as if the process had died: its owner is `NOBODY`, and it can be resumed
    (R9)."""

    conversation: str
    turn: str


class Registered(msgspec.Struct, frozen=True, gc=False):
    """Register a handle, which this process owns. Refused with `batch_rejected` if its id is active in its conversation
    (S6).

    A record with `Parking` and without an owner is parked from the start. The same commit takes its key (`WaitOpened`).
    """

    record: Record
    once: bool = False
    """Refused also if a handle of that id exists in any state (W7)."""


class Changed(msgspec.Struct, frozen=True, gc=False):
    """Apply an event of the state machine to a handle. Refused with `already_stopped` if it has stopped.

    The end of a call also resolves its open completion key by the outcome (D1). The end of a parked call is notified
    (D9) even without a `notice` and, if the call was cancelled, makes its hook due (D2). The result is None, or the
    state with the completion that was accepted before (`yields`).
    """

    uid: str
    fence: int
    event: StateEvent
    state: State
    """The state after the event."""
    output: KeptOutput | None = None
    notice: Notice | None = None
    """Queued in the handle's conversation as a notification of the handle (N3)."""
    yields: bool = False
    """Whether the call stops with its completion instead, if that was accepted before (R4)."""


class Rewritten(msgspec.Struct, frozen=True):
    """Record the permission of a call: the arguments and resources, if a user edited them (P5), and what allowed it."""

    uid: str
    fence: int
    arguments: dict[str, Any] | None
    """None: arguments and resources stay."""
    resources: tuple[str, ...] = ()
    allowed: Allowed | None = None
    """None: it stays."""


class Annotated(msgspec.Struct, frozen=True):
    """Annotate a handle that has not stopped: None leaves a field as it is, keys of `metadata` are changed one by one,
    and None as the value removes a key. The result is its `Record`.

    It needs no fencing number, because any process may annotate; it is refused like operations that have one.
    """

    uid: str
    progress: Progress | None = None
    priority: int | None = None
    metadata: dict[str, Any] | None = None


class Claimed(msgspec.Struct, frozen=True):
    """Take over a call of a dead owner. Its fence is one higher, and its attempt too, unless the call had not started
    or was between two attempts. The result is its `Record`, or None if another process was first.

    `was` is the owner it was seen with. Claiming a waiting call withdraws its question: the call is running.

    A death is counted for a call that was running (R8): not for one whose standing is `queued` or `released`, nor, like
    the attempt, for one that had not started or was between two attempts. The standing is that of `queued` afterwards.
    """

    uid: str
    was: str | None
    queued: bool = False
    """It is not started at once: then a death before its start counts neither as an attempt nor as a death."""
    kept: bool = False
    """Its process has run on (R7): neither an attempt nor a death is counted."""


class Counted(msgspec.Struct, frozen=True):
    """Set the number of deaths that count against a call, and its standing (R8). A call that has stopped, or has
    another fencing number by now, stays as it is: this is written along with operations on other calls.

    `Parked` and `Released` set both back, too.
    """

    uid: str
    fence: int
    deaths: int
    standing: Standing | None = None


class Retried(msgspec.Struct, frozen=True):
    """Register a handle that repeats the call `of`, with a copy of the call's journal (R8). Refused as `Registered`
    is, and with `handle_expired` if the store does not have that call any more."""

    record: Record
    of: str


class Released(msgspec.Struct, frozen=True):
    """Give up ownership of a call. One that took its key (R1, `external`) has been parked since then, and stops now if
    its completion came first; the hook of a cancelled one is left to another process. Any other call that has not
    stopped gets the owner `NOBODY`, who is dead: another process claims it, and no death counts (R8). The result is its
    state."""

    uid: str
    fence: int


class Attempted(msgspec.Struct, frozen=True):
    """Record that an attempt failed and the next is due at `next_at` (R5), or, with None, begins now.

    Recorded errors are deleted when the next attempt is planned.
    """

    uid: str
    fence: int
    attempt: int
    next_at: float | None


class Readied(msgspec.Struct, frozen=True):
    """Record that the current attempt of a call is ready: it has printed the line that its tool describes (A9)."""

    uid: str
    fence: int


class Journaled(msgspec.Struct, frozen=True, gc=False):
    """Record a line that a replay must find again (E). The same kind and name twice in one call is refused."""

    uid: str
    fence: int
    kind: EntryKind
    name: str
    digest: bytes
    """A hash of the step's input (E3)."""
    value: bytes
    """JSON: the value of a success, an `Error` otherwise."""
    ok: bool = True
    input: bytes = b""
    """JSON: the step's input, for people to read; empty: unknown."""


class Wrote(msgspec.Struct, frozen=True):
    """Keep a call's output so far, so that its next attempt finds it after a crash (E10)."""

    uid: str
    fence: int
    output: KeptOutput


class WaitOpened(msgspec.Struct, frozen=True):
    """Record that a key was taken. `parking`: the call counts as parked from now on if its owner dies (R1, `external`).

    The result is whether the key is new: a replay takes the same one again.
    """

    uid: str
    fence: int
    key_id: str
    kind: Literal["completion", "event"]
    name: str
    secret_id: str
    parking: Parking | None = None


class Parked(msgspec.Struct, frozen=True):
    """Park a call whose tool has returned: it waits for its completion and has no owner. The result is its state, which
    is stopped already if the completion came first."""

    uid: str
    fence: int
    parking: Parking
    at: float
    output: KeptOutput | None = None


class Resolved(msgspec.Struct, frozen=True):
    """Resolve a wait. The result is a `Resolving`; the first resolution counts, and stops a parked call."""

    key_id: str
    resolution: Resolution
    at: float


class Revoked(msgspec.Struct, frozen=True):
    """Revoke the conversation's open keys. Calls parked on them are stopped.

    The result is a tuple of the `(uid, state)` of those, and the key ids of the others.
    """

    conversation: str
    at: float


class Emitted(msgspec.Struct, frozen=True):
    """Add a process event (E8). The result is its number, counted from 1 in its process."""

    process: str
    type: str
    payload: Any
    at: float


class Exposed(msgspec.Struct, frozen=True):
    """Turn a one-shot call into a handle that its conversation can name (D10). The result is whether the call
    exists."""

    uid: str
    id: str


class Responded(msgspec.Struct, frozen=True):
    """Record the responses of a batch; `cursors` says up to where each handle's output was shown (C5).

    Notifications of what the responses showed are taken back, as by `TakenBack`. Then those that may ride on one of
    `carry` are delivered and kept beside the responses; the result is a tuple of them, as of `Delivered`.
    """

    conversation: str
    turn: str
    batch: int
    responses: tuple[Given, ...]
    cursors: tuple[tuple[str, int], ...]
    shown: tuple[tuple[str, Shown], ...] = ()
    carry: tuple[Carrier, ...] = ()


class HookCalled(msgspec.Struct, frozen=True):
    """Record that the hook of a cancelled call has run (D2)."""

    uid: str


class Notified(msgspec.Struct, frozen=True):
    """Queue a notification for a conversation (N1).

    A handle has at most one of kind `tool.content`: the next replaces its message and time (N6). At most
    `NOTIFICATION_LIMIT` wait in a conversation. Beyond it the oldest `info` is dropped, then the oldest `warning`, then
    `error`; `critical` never. One line of kind `keephold.dropped` says how many were dropped.
    """

    conversation: str
    kind: str
    level: Level
    message: str
    at: float
    uid: str | None = None
    carriers: tuple[Carrier, ...] = CARRIERS


class TakenBack(msgspec.Struct, frozen=True):
    """Remove notifications of what a reply has shown (N3), by uid and how the handle was shown: `stopped` removes all,
    `waiting` its `tool.waiting` and `tool.content`, `running` its `tool.content`, `asked` its `tool.waiting`,
    `ready` its `tool.ready`."""

    conversation: str
    shown: tuple[tuple[str, Shown], ...]


class Delivered(msgspec.Struct, frozen=True):
    """Deliver the queued notifications that may ride on that carrier (N4), and remove them from the queue.

    The result is a tuple of them: `critical` first, else in the order of the numbers.
    """

    conversation: str
    carrier: Carrier


class HandedOut(msgspec.Struct, frozen=True):
    """Record that the open turn was handed these notifications by other means than the queue. If its process dies
    before anything shows that they arrived, they are queued (N3)."""

    conversation: str
    notifications: tuple[QueuedNotification, ...]


class Inquired(InquiryRow, frozen=True):
    """Record an inquiry (Q6): its request, and its answer or why there is none."""


class TranscriptAppended(msgspec.Struct, frozen=True):
    """Append lines to a conversation's transcript, and make the conversation if it does not exist. The result is the
    number of its last line, 0 if it has none."""

    conversation: str
    turn: str
    at: float
    lines: tuple[tuple[str, bytes], ...]
    """The kind of each line, and JSON."""


class Described(msgspec.Struct, frozen=True):
    """Change a conversation's metadata, and make the conversation if it does not exist: keys are changed one by one,
    and None as the value removes a key."""

    conversation: str
    at: float
    metadata: dict[str, Any]


class Forgotten(msgspec.Struct, frozen=True):
    """Delete the transcript and the description of a conversation. Its handles, turns and notifications stay. The
    result is whether it had any."""

    conversation: str


class Requested(msgspec.Struct, frozen=True):
    """Ask another process for something that only the owner of a handle can do."""

    id: str
    uid: str
    to: str
    body: bytes


class Replied(msgspec.Struct, frozen=True):
    """Answer a request. The result is whether it was still there."""

    id: str
    body: bytes


class RequestClosed(msgspec.Struct, frozen=True):
    """Close a request that nobody waits for any more. The result is whether it was there."""

    id: str
    unanswered: bool = False
    """Whether it is withdrawn: an answered one stays."""


class Posted(msgspec.Struct, frozen=True):
    """Let other processes see something of this one (`PostKind`), until it is taken down or this process ends. The same
    id again replaces it.

    The result is None, or the `Post` of the process that has posted this id: then nothing is written.
    """

    id: str
    kind: PostKind
    at: float
    body: bytes
    instead_of: str | None = None
    """The owner whose post of this id it replaces, because that process is dead."""


class TakenDown(msgspec.Struct, frozen=True):
    """Remove what this process has posted. Unknown ids and those of other processes are ignored."""

    ids: tuple[str, ...]


class SecretAdded(msgspec.Struct, frozen=True):
    """Make keys with this secret from now on (D3)."""

    id: str
    secret: bytes
    at: float


class Collected(msgspec.Struct, frozen=True):
    """Delete handles that stopped before `before` in conversations without a turn, leaving tombstones (S5).

    A turn of a dead process that began before `before` is ended, if every call of its conversation stopped before that,
    too: nobody has resumed it for that long.

    The result is how many handles were deleted, or `limit` if there is more to delete: repeat while it is. Their output
    files are deleted, too. With a conversation, kinds or statuses only such handles are deleted. Otherwise inquiries
    and turns of that age are deleted as well, events of that age, and events beyond the newest `EVENTS_LIMIT`: ten
    times `limit` of them at once. Then the store returns unused space to the disk, some of it at a time.

    To archive handles, read them with `Store.expiring`, archive them, and delete them with `only`: then none is deleted
    unread, even if more have expired since. Transcripts and descriptions stay until they are `Forgotten`.
    """

    before: float
    at: float
    limit: int = 1000
    conversation: str | None = None
    kinds: tuple[Kind, ...] = ()
    """Empty: any."""
    statuses: tuple[Status, ...] = ()
    """Empty: any."""
    only: tuple[str, ...] | None = None
    """Only handles of these uids."""
    early: Literal["seen", "any"] | None = None
    """To make room (K6): only handles without a queued notification, or any; nothing but handles is deleted."""
    files: bool = False
    """Only handles whose output is in a file."""

    @property
    def partial(self) -> bool:
        """Whether the operation is about some handles only, at any age."""
        return self.conversation is not None or self.early is not None or bool(self.kinds or self.statuses)


Op = (
    TurnBegan | TurnEnded | TurnReleased | Opened | Registered | Retried | Changed | Rewritten | Annotated | Claimed
    | Counted | Released | Attempted | Readied | Journaled | Wrote | WaitOpened | Parked | Resolved | Revoked | Emitted
    | Exposed
    | Responded | HookCalled | Notified | TakenBack | Delivered | HandedOut | Inquired | TranscriptAppended | Described
    | Forgotten | Requested | Replied | RequestClosed | Posted | TakenDown | SecretAdded | Collected
)  # fmt: skip
