"""The operations: everything that changes what a store keeps. `Store.commit` writes a list of them as one.

Those with `fence` are refused with `lease_lost` when the call has another fencing number by now, and with
`already_stopped` when it has stopped.
"""

from typing import Any, Literal

import msgspec

from holdfast.handles.state import Event, State
from holdfast.store.rows import EntryKind, Given, Kept, Opened, Parking, Record, Resolution


class TurnBegan(msgspec.Struct, frozen=True):
    """A conversation has a turn of ours. Refused with `turn_open` unless its open turn is `was` (None: there is none)
    and, where it is given, that of `was_owner`: of two who resume a turn at once, one is first.

    If `was` is not this very turn, it is over: its open batch will never be answered.
    """

    conversation: str
    turn: str
    at: float
    was: str | None = None
    was_owner: str | None = None


class TurnEnded(msgspec.Struct, frozen=True):
    conversation: str
    turn: str
    at: float


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A handle exists, and is ours. Refused with `batch_rejected` if its id is active in its conversation (S6)."""

    record: Record


class Changed(msgspec.Struct, frozen=True, gc=False):
    """An event of the state machine happened to a handle. Refused with `already_stopped` if it has stopped.

    The end of a call also resolves what it still waited for: its completion key by the outcome (D1). Of a parked call
    it queues the news (D9) and, if the call was cancelled, makes its hook due (D2).
    """

    uid: str
    fence: int
    event: Event
    state: State
    """The state after the event."""
    output: Kept | None = None


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


class Wrote(msgspec.Struct, frozen=True):
    """What a call has printed so far, so that its next attempt finds it after a crash (E10)."""

    uid: str
    fence: int
    output: Kept


class WaitOpened(msgspec.Struct, frozen=True):
    """A key was taken. `parking`: the call counts as parked from here on if its owner dies (R1, `external`)."""

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
    output: Kept | None = None


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
    """A one-shot call becomes a handle that its conversation can name (D10)."""

    uid: str
    id: str


class Responded(msgspec.Struct, frozen=True):
    """A batch was answered; `cursors` says up to where each handle's output was shown (C5).

    News of handles that it showed stopped is taken back (N3).
    """

    conversation: str
    turn: str
    batch: int
    responses: tuple[Given, ...]
    cursors: tuple[tuple[str, int], ...]
    shown: tuple[str, ...] = ()


class HookCalled(msgspec.Struct, frozen=True):
    """The hook of a cancelled call has run (D2)."""

    uid: str


class Notified(msgspec.Struct, frozen=True):
    """News for a conversation (N1)."""

    conversation: str
    kind: str
    level: Literal["info", "warning", "error", "critical"]
    message: str
    at: float
    uid: str | None = None


class Delivered(msgspec.Struct, frozen=True):
    """News up to that number has been delivered."""

    conversation: str
    upto: int


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

    The result is how many handles went; ask again while it is `limit`. Their output files are gone, too.
    """

    before: float
    at: float
    limit: int = 1000


Op = (
    TurnBegan | TurnEnded | Opened | Registered | Changed | Claimed | Released | Attempted | Journaled | Wrote
    | WaitOpened | Parked | Resolved | Revoked | Emitted | Exposed | Responded | HookCalled | Notified | Delivered
    | Requested | Replied | RequestClosed | SecretAdded | Collected
)  # fmt: skip
