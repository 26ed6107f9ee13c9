"""The rows of a store, as its reads return them: handles, waits, journals, turns, notifications, transcripts."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from keephold.handles.state import EndedBy, Failure, Progress, State, Stopped
from keephold.ids import call_id

Kind = Literal["tool", "agent", "workflow", "timer", "hook", "custom"]
WAIT_KINDS: tuple[Kind, ...] = ("agent", "workflow", "timer", "hook", "custom")
"""The kinds of the wait tools (W)."""
Status = Literal["pending", "completed", "failed", "timeout"]
"""A state as the wait tools see it (W1)."""
LIVE = ("pending", "running", "waiting")
"""The states of a handle that has not stopped."""
End = Literal["done", "failed", "aborted"]
"""How a handle stopped. `done`: it completed. `failed`: it failed, timed out, or its process died. `aborted`: somebody
ended it, or the end of a turn or a runtime did."""
FROM_OUTSIDE: tuple[EndedBy, ...] = ("abort", "cancel", "turn_end", "shutdown")
"""Causes of an end that counts as `aborted`."""
Sort = Literal["created", "stopped", "tool", "id"]
"""How a list of handles is sorted; handles with equal keys are sorted by uid."""
What = tuple[str, Kind, bool]
"""The tool of a handle, its kind, and whether it was spawned."""
Given = tuple[str, str, str, bool, str | None]
"""The answer to a call: its id, its result, the model's text, whether that is an error, and its code."""
EntryKind = Literal["step", "sleep", "event", "ask", "input", "trace", "attempt"]
"""The kinds of journal entries. `attempt`: why an attempt failed that was retried (R5); a replay ignores it."""
Level = Literal["info", "warning", "error", "critical"]
Carrier = Literal["response", "message", "turn"]
"""Where a notification may be delivered (N4): with a tool response, a user's message in the turn, the start of the next
turn."""
CARRIERS: tuple[Carrier, ...] = ("response", "message", "turn")
Standing = Literal["queued", "alone", "released"]
"""How a recovered call stands with its process (R8): not started yet; started, and nothing else runs; released by a
process that closed in order. None: it runs beside others."""
NOBODY = "nobody"
"""The owner of a call that its process has released while it lives. No process has this id."""
OWN_METADATA = ("mcp.", "engine.")
"""Keys of a handle's metadata that begin so are keephold's own: the prompts of a task, what its client sent, and
`ENGINE_AT`."""
ENGINE_AT = "engine.at"
"""How far a call is followed at its engine: the attempt and the number of the last frame that the store has, the same
of the newest frame by its origin, and whether the call is suspended."""
Shown = Literal["running", "waiting", "asked", "ready", "stopped"]
"""How a reply showed a handle (N3); `asked`: its question, and nothing else; `ready`: that it is ready."""


class Parking(msgspec.Struct, frozen=True, omit_defaults=True):
    """The terms on which a call waits for its completion from outside (D2)."""

    deadline: float | None = None
    """A time of day."""
    on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result"
    on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work"
    hook: bool = False
    """The tool has a hook that must be called when the call is cancelled."""
    hold: bool = False
    """Its outcome must pass a runtime that has the tool before anyone sees it (P1's `result`)."""
    carriers: tuple[Carrier, ...] = CARRIERS
    """Where the notification of its end may be delivered (D9, N4)."""
    timed_out: str | None = None
    """The message when its deadline passes; None: the usual one."""


class Allowed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The permission with which a call ran (P6).

    `configuration`: `run = "unattended"`. `conversation`: its conversation runs without asking. `detached`:
    `detached = "auto"`. `standing`: a standing permission. `unknown`: the call is older than this record.
    """

    by: Literal["configuration", "conversation", "detached", "standing", "user", "unknown"]
    at: float | None = None
    """When the user decided."""
    who: str | None = None
    """Who the user was, as far as is known: `the dashboard`."""
    permission: str | None = None
    """The id of the standing permission."""


class KeptOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a handle's output is, once no more will come: inline, or in a file of the store's directory."""

    total: int
    head: int
    ring: int
    kept_from: int = 0
    in_file: int = 0
    """Places below this one are in the file, the others in `data`."""
    data: bytes = b""
    file: str | None = None
    times: bytes = b""
    """The times of the output: its `Timeline`, dumped."""


class Record(msgspec.Struct, kw_only=True, gc=False):
    """A handle as the store has it."""

    uid: str
    id: str
    tool: str
    conversation: str
    turn: str
    batch: int
    position: int
    call_id: str
    stateful: bool
    state: State
    arguments: dict[str, Any]
    kind: Kind = "tool"
    priority: int = 0
    metadata: dict[str, Any] | None = None
    progress: Progress | None = None
    resources: tuple[str, ...] = ()
    owner: str | None = None
    """The process that runs it. None: it is parked or has stopped."""
    fence: int = 1
    attempt: int = 1
    next_attempt_at: float | None = None
    ready: int = 0
    """The attempt that became ready (A9); 0: none has."""
    deaths: int = 0
    """How many processes have died while they ran it, without progress in between (R8)."""
    standing: Standing | None = None
    retry_of: str | None = None
    """The uid of the call that it repeats: the first one, if that was repeated more than once."""
    parking: Parking | None = None
    cursor: int = 0
    output: KeptOutput | None = None
    allowed: Allowed | None = None
    """None: the configuration."""

    @property
    def retry_id(self) -> str:
        """The id of a retry. A one-shot call is repeated as a handle, because nobody waits for its response any
        more."""
        return self.id if self.stateful else call_id(self.call_id)


class HandleQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which handles to read, and in which order. A field without a value does not narrow the list."""

    conversation: str | None = None
    state: str | None = None
    live: bool = False
    """Only handles that have not stopped."""
    turn: str | None = None
    parked: bool | None = None
    stateful: bool | None = True
    """True: spawned handles; False: one-shot calls; None: both."""
    kind: Kind | None = None
    status: Status | None = None
    end: End | None = None
    tool: str | None = None
    since: float | None = None
    """Only handles that were made at this time of day or later."""
    until: float | None = None
    """Only handles that were made before this time of day."""
    metadata: Mapping[str, Any] | None = None
    """Only handles that have each of these keys with the same JSON value."""
    search: str | None = None
    """Only handles whose id, tool or uid contains this text; ASCII letters match in either case."""
    timers: bool = False
    """Besides spawned handles, list the one-shot calls of kind `timer` that have not stopped (W1)."""
    sort: Sort = "created"
    """By `stopped`, handles that have not stopped count as the oldest."""
    after: str | None = None
    """Continue after the handle of this uid. If that handle is deleted, the list continues when it is sorted by
    `created`, and is empty when it is sorted by anything else."""
    limit: int = 1000
    newest: bool = False
    """Newest first instead of oldest first."""


EVERY_SPAWNED = HandleQuery()
"""The first thousand spawned handles."""


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to read. A field without a value does not narrow the list."""

    after: int = 0
    """Only events with a higher number."""
    before: int | None = None
    """Only events with a lower number."""
    uid: str | None = None
    """Only events of this handle, without its steps, which are in its journal."""
    conversation: str | None = None
    notifications: bool = False
    """Only events about notifications."""
    limit: int = 1000
    newest: bool = False
    """Newest first instead of in order."""


EVERY_EVENT = EventQuery()
"""The first thousand events that are kept."""


def made_at(uid: str) -> float:
    """Return when a handle was made, which its uid begins with; 0 if keephold did not make the uid."""
    try:
        return int(uid[:12], 16) / 1000
    except ValueError:
        return 0.0


def first_uid(at: float) -> str:
    """Return the lowest uid of a handle that was made at that time of day or later."""
    return f"{min(max(0, math.ceil(at * 1000)), 2**48 - 1):012x}"


def end_of(state: State) -> End | None:
    """Return how a handle in that state stopped; None if it has not."""
    if not isinstance(state, Stopped):
        return None
    if not isinstance(state.outcome, Failure):
        return "done"
    return "aborted" if state.ended_by in FROM_OUTSIDE else "failed"


def status_of(state: State) -> Status:
    """Return the status of a handle in that state (W1)."""
    if not isinstance(state, Stopped):
        return "pending"
    outcome = state.outcome
    if not isinstance(outcome, Failure):
        return "completed"
    return "timeout" if state.ended_by == "timeout" or outcome.code in _TIMEOUTS else "failed"


_TIMEOUTS = ("timeout", "tool_completion_timeout")

TOMBSTONE_SECS, TOMBSTONES = 90 * 86_400.0, 10_000
"""How long tombstones are kept, and how many of a conversation (S5)."""


class Expired(msgspec.Struct, frozen=True):
    """The tombstone of a handle whose retention is over (S5)."""

    uid: str
    at: float


class Resolution(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a wait ended: `ok` and `err` carry a payload, `timeout` and `cancelled` do not."""

    status: Literal["ok", "err", "timeout", "cancelled"]
    payload: Any = None


class WaitRow(msgspec.Struct, frozen=True):
    """One thing a call waits for from outside."""

    key_id: str
    uid: str
    conversation: str
    kind: Literal["completion", "event"]
    name: str
    secret_id: str
    resolution: Resolution | None = None
    revoked: bool = False


class Resolving(msgspec.Struct, frozen=True):
    """The result of a resolution. `uid` and `state` are those of a call that it stopped."""

    status: Literal["accepted", "already_resolved", "unknown_or_revoked"]
    terminal: Resolution | None = None
    uid: str | None = None
    state: State | None = None
    what: What | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of a call's journal."""

    kind: EntryKind
    name: str
    digest: bytes
    value: bytes
    ok: bool
    input: bytes = b""
    """JSON: the step's input. Empty: unknown."""


class Opened(msgspec.Struct, frozen=True):
    """A batch that is about to run: all that is needed to answer it later, should this process die first (B9)."""

    conversation: str
    turn: str
    batch: int
    calls: tuple[tuple[str, str, dict[str, Any] | str, str | None], ...]
    """For each call its id, its tool's name, its arguments as given, and the uid of the handle it makes, if any."""


class QueuedNotification(msgspec.Struct, frozen=True, gc=False):
    """A queued notification. The line that says how many were dropped has number 0, so that it comes first (N6)."""

    number: int
    conversation: str
    kind: str
    level: Level
    message: str
    at: float
    uid: str | None = None
    carriers: tuple[Carrier, ...] = CARRIERS


class OpenTurn(msgspec.Struct, frozen=True):
    """A turn that has not ended, and its unanswered batch, if it has one."""

    turn: str
    owner: str | None
    batches: int
    """How many batches the turn has had."""
    batch: Opened | None = None

    def waits_for(self, record: Record) -> bool:
        """Whether the call belongs to the batch that was never answered (B9)."""
        return self.turn == record.turn and self.batch is not None and self.batch.batch == record.batch


class TurnRow(msgspec.Struct, frozen=True):
    """A turn, open or ended. `number` grows from one turn of a conversation to the next."""

    number: int
    turn: str
    owner: str | None
    began_at: float
    ended_at: float | None
    batches: int
    """How many batches the turn has had."""


class ConversationSummary(msgspec.Struct, frozen=True):
    """A conversation that has handles, turns or a transcript."""

    id: str
    handles: int
    """How many spawned handles it has."""
    live: int
    """How many of those have not stopped."""
    updated: float
    """The latest of: its newest handle was made, its newest turn began or ended, its transcript or description
    changed."""
    described: dict[str, Any] | None = None
    """Its description; None: it has neither that nor a transcript."""


class ProcessEvent(msgspec.Struct, frozen=True):
    """One event of a process. `sequence` counts from 1."""

    process_id: str
    sequence: int
    type: str
    payload: Any
    at: float


NOTIFICATION_LIMIT = 1000
"""How many notifications a conversation's queue holds (N6)."""


class Notice(msgspec.Struct, frozen=True, gc=False):
    """The notification of a handle's change (N1). If it has no message, the store writes one when somebody reads it:
    most notifications are taken back before."""

    kind: str
    level: Level
    message: str | None
    carriers: tuple[Carrier, ...] = CARRIERS


class Answers(msgspec.Struct, frozen=True):
    """The responses of a batch, and the notifications delivered with them (N4)."""

    responses: tuple[Given, ...]
    notifications: tuple[QueuedNotification, ...] = ()


class InquiryRow(msgspec.Struct, frozen=True):
    """One finished inquiry (Q6). `error` says why it was not answered."""

    id: str
    conversation: str
    turn: str
    uid: str | None
    at: float
    request: Any
    answer: Any = None
    error: str | None = None


class TranscriptLine(msgspec.Struct, frozen=True, gc=False):
    """One line of a conversation's transcript. `number` counts from 1 in its conversation."""

    number: int
    turn: str
    kind: str
    body: bytes
    """JSON."""
    at: float


class ConversationRow(msgspec.Struct, frozen=True):
    """A conversation that has a transcript or a description."""

    id: str
    created: float
    updated: float
    """When its transcript or its description was last changed."""
    metadata: dict[str, Any]
    lines: int
    """How many its transcript has."""


PostKind = Literal["prompt", "standing", "watch", "fact", "lane", "server"]


class Post(msgspec.Struct, frozen=True):
    """Something that a process posted for others to see: an open prompt or a standing permission (P6), that it waits
    for a handle or what it knows about one (A6), that it holds a serial lane (B4), that it serves
    MCP over HTTP (M3)."""

    id: str
    kind: PostKind
    owner: str
    at: float
    body: bytes


class Request(msgspec.Struct, frozen=True):
    """A request of another process."""

    id: str
    uid: str
    body: bytes


def user_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of a handle without keephold's own, as models and people see it."""
    return {key: value for key, value in (metadata or {}).items() if not key.startswith(OWN_METADATA)}
