"""The operations: everything that changes what a store keeps. `Store.commit` writes a list of them as one.

Those with `fence` are refused with `lease_lost` when the call has another fencing number by now, and with
`already_stopped` when it has stopped.
"""

from typing import Any, Literal

import msgspec

from keephold.handles.state import Event, Progress, State
from keephold.store.rows import (
    CARRIERS,
    Carrier,
    EntryKind,
    Given,
    KeptOutput,
    Kind,
    Level,
    Notice,
    Opened,
    Parking,
    QueuedNotification,
    Record,
    Resolution,
    Shown,
    Status,
)


class TurnBegan(msgspec.Struct, frozen=True):
    """A conversation has a turn of ours. Refused with `turn_open` unless its open turn is `was` (None: there is none)
    and, where it is given, that of `was_owner`: of two who resume a turn at once, one is first.

    If `was` is not this very turn, it is over: its open batch will never be answered. News that it was handed last,
    with nothing since to show that it arrived, is queued again (N3), unless `answers` gives it to whoever resumes it.
    """

    conversation: str
    turn: str
    at: float
    was: str | None = None
    was_owner: str | None = None


class TurnEnded(msgspec.Struct, frozen=True):
    """A turn is over. The result is whether it was open."""

    conversation: str
    turn: str
    at: float


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A handle exists, and is ours. Refused with `batch_rejected` if its id is active in its conversation (S6).

    One that comes without an owner and with terms to wait on (`Parking`) is nobody's: it is parked from the start. The
    same commit takes its key (`WaitOpened`).
    """

    record: Record
    once: bool = False
    """Refused also if there is a handle of that id in any state (W7)."""


class Changed(msgspec.Struct, frozen=True, gc=False):
    """An event of the state machine happened to a handle. Refused with `already_stopped` if it has stopped.

    The end of a call also resolves what it still waited for: its completion key by the outcome (D1). Of a parked call
    it is news (D9) even if none is given and, if the call was cancelled, makes its hook due (D2).
    """

    uid: str
    fence: int
    event: Event
    state: State
    """The state after the event."""
    output: KeptOutput | None = None
    notice: Notice | None = None
    """Queued for the handle's conversation as news of the handle (N3)."""


class Rewritten(msgspec.Struct, frozen=True):
    """A person edited what runs (P5): these are the call's arguments, and what they need, from now on."""

    uid: str
    fence: int
    arguments: dict[str, Any]
    resources: tuple[str, ...] = ()


class Annotated(msgspec.Struct, frozen=True):
    """What is said about a handle that has not stopped: None leaves a thing as it is, keys of `metadata` are changed
    one by one, and None as the value removes a key. The result is its `Record`.

    No fencing number is asked for: whoever may name the handle may. Refused like those that have one.
    """

    uid: str
    progress: Progress | None = None
    priority: int | None = None
    metadata: dict[str, Any] | None = None


class Claimed(msgspec.Struct, frozen=True):
    """A call of a dead owner is ours. Its fence is one higher, and its attempt too, unless the call had not started or
    was between two attempts. The result is its `Record`; None: not any more.

    `was` is the owner it was seen with. A claim of a waiting call withdraws its question: it is running.
    """

    uid: str
    was: str | None


class Released(msgspec.Struct, frozen=True):
    """Nobody has it any more. A call that has not stopped is parked since it took its key (R1, `external`), and stops
    now if its completion was there first; of a cancelled one somebody else will call the hook. The result is its state.
    """

    uid: str
    fence: int


class Attempted(msgspec.Struct, frozen=True):
    """An attempt failed and another is to come at `next_at` (R5), or, with None, begins now.

    Recorded errors are forgotten when the next attempt is planned.
    """

    uid: str
    fence: int
    attempt: int
    next_at: float | None


class Journaled(msgspec.Struct, frozen=True, gc=False):
    """Something that a replay must find again (E). The same kind and name twice in one call is a bug, and refused."""

    uid: str
    fence: int
    kind: EntryKind
    name: str
    digest: bytes
    """What the step was given, as a hash (E3)."""
    value: bytes
    """JSON: the value of a success, an `Error` otherwise."""
    ok: bool = True
    input: bytes = b""
    """JSON: what the step was given, for people to read; empty: that is not known."""


class Wrote(msgspec.Struct, frozen=True):
    """What a call has printed so far, so that its next attempt finds it after a crash (E10)."""

    uid: str
    fence: int
    output: KeptOutput


class WaitOpened(msgspec.Struct, frozen=True):
    """A key was taken. `parking`: the call counts as parked from here on if its owner dies (R1, `external`).

    The result is whether the key is new: the same one is taken again by a replay.
    """

    uid: str
    fence: int
    key_id: str
    kind: Literal["completion", "event"]
    name: str
    secret_id: str
    parking: Parking | None = None


class Parked(msgspec.Struct, frozen=True):
    """The tool has returned and its call waits for its completion; nobody owns it. The result is the state it has now:
    it is stopped already if the completion was there first."""

    uid: str
    fence: int
    parking: Parking
    at: float
    output: KeptOutput | None = None


class Resolved(msgspec.Struct, frozen=True):
    """Somebody resolves a wait. The result is a `Resolving`; the first one counts. A parked call is stopped by it."""

    key_id: str
    resolution: Resolution
    at: float


class Revoked(msgspec.Struct, frozen=True):
    """The conversation's open keys are worth nothing any more. Calls parked on them are stopped.

    The result is a tuple of the `(uid, state)` of those, and the key ids of the others.
    """

    conversation: str
    at: float


class Emitted(msgspec.Struct, frozen=True):
    """A process event (E8). The result is its number, counted from 1 in its process."""

    process: str
    type: str
    payload: Any
    at: float


class Exposed(msgspec.Struct, frozen=True):
    """A one-shot call becomes a handle that its conversation can name (D10). The result is whether there is one."""

    uid: str
    id: str


class Responded(msgspec.Struct, frozen=True):
    """A batch was answered; `cursors` says up to where each handle's output was shown (C5).

    News of what it showed is taken back, as by `TakenBack`. Then whatever may ride on one of `carry` is delivered and
    kept beside the responses; the result is a tuple of that `News`, as of `Delivered`.
    """

    conversation: str
    turn: str
    batch: int
    responses: tuple[Given, ...]
    cursors: tuple[tuple[str, int], ...]
    shown: tuple[tuple[str, Shown], ...] = ()
    carry: tuple[Carrier, ...] = ()


class HookCalled(msgspec.Struct, frozen=True):
    """The hook of a cancelled call has run (D2)."""

    uid: str


class Notified(msgspec.Struct, frozen=True):
    """News for a conversation (N1).

    Of kind `tool.content` one is queued for a handle: the next takes its place, with its own message and time (N6).
    At most `NOTIFICATION_LIMIT` wait in a conversation. Beyond it the oldest `info` is dropped, then the oldest
    `warning`, then `error`; `critical` never. One line of kind `keephold.dropped` says how many were dropped.
    """

    conversation: str
    kind: str
    level: Level
    message: str
    at: float
    uid: str | None = None
    carriers: tuple[Carrier, ...] = CARRIERS


class TakenBack(msgspec.Struct, frozen=True):
    """News of what was shown is no news (N3). By uid, as what a handle was shown: `stopped` takes back all news of it,
    `waiting` its `tool.waiting` and `tool.content`, `running` its `tool.content`, `answered` its `tool.waiting`."""

    conversation: str
    shown: tuple[tuple[str, Shown], ...]


class Delivered(msgspec.Struct, frozen=True):
    """Whatever is queued and may ride on that carrier is delivered (N4): it is queued no more.

    The result is a tuple of that `News`: `critical` first, else in the order of the numbers.
    """

    conversation: str
    carrier: Carrier


class HandedOut(msgspec.Struct, frozen=True):
    """The open turn was handed this news by other means than the queue. Should its process die before anything shows
    that it arrived, it is queued (N3)."""

    conversation: str
    notifications: tuple[QueuedNotification, ...]


class Inquired(msgspec.Struct, frozen=True):
    """An inquiry is over (Q6): what was asked, and the answer or why there is none."""

    id: str
    conversation: str
    turn: str
    uid: str | None
    at: float
    request: Any
    answer: Any = None
    error: str | None = None


class TranscriptAppended(msgspec.Struct, frozen=True):
    """Lines are added to a conversation's transcript, in order; the conversation is made if there is none. The result
    is the number of its last line, 0 if it has none."""

    conversation: str
    turn: str
    at: float
    lines: tuple[tuple[str, bytes], ...]
    """Of each its kind, and JSON."""


class Described(msgspec.Struct, frozen=True):
    """What is said about a conversation, which is made if there is none: keys of `metadata` are changed one by one, and
    None as the value removes a key."""

    conversation: str
    at: float
    metadata: dict[str, Any]


class Forgotten(msgspec.Struct, frozen=True):
    """The transcript and the description of a conversation go. Its handles, turns and news stay. The result is whether
    it had any."""

    conversation: str


class Requested(msgspec.Struct, frozen=True):
    """Something that only the owner of a handle can do for us (several processes on one store)."""

    id: str
    uid: str
    to: str
    body: bytes


class Replied(msgspec.Struct, frozen=True):
    """The answer to a request."""

    id: str
    body: bytes


class RequestClosed(msgspec.Struct, frozen=True):
    """Nobody waits for this request any more."""

    id: str


class SecretAdded(msgspec.Struct, frozen=True):
    """From now on keys are made with this secret (D3)."""

    id: str
    secret: bytes
    at: float


class Collected(msgspec.Struct, frozen=True):
    """Let go of what stopped before `before` in conversations without a turn, leaving tombstones (S5).

    The result is how many handles went; ask again while it is `limit`. Their output files are gone, too. Handles of one
    conversation, of some kinds or of some statuses go alone; else what was said in turns of that age goes as well, and
    events of that age, and those beyond the newest `EVENTS_LIMIT`: ten times `limit` of them at once.

    What is to be archived is read by `Store.expiring`, archived, and then let go with `only`: nothing goes unread, even
    if more has expired since. Transcripts and descriptions stay until they are `Forgotten`.
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
    """Of all these no others than those of these uids."""

    @property
    def partial(self) -> bool:
        """Whether it is about some of the handles, whatever their age."""
        return self.conversation is not None or bool(self.kinds or self.statuses)


Op = (
    TurnBegan | TurnEnded | Opened | Registered | Changed | Rewritten | Annotated | Claimed | Released | Attempted
    | Journaled | Wrote | WaitOpened | Parked | Resolved | Revoked | Emitted | Exposed | Responded | HookCalled
    | Notified | TakenBack | Delivered | HandedOut | Inquired | TranscriptAppended | Described | Forgotten
    | Requested | Replied | RequestClosed | SecretAdded | Collected
)  # fmt: skip
