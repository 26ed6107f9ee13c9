"""A handle: one tool call, from its registration to the end of its retention (S4).

A handle has a *decided* and a *visible* state. Events are checked against the decided state in order of arrival, so
that the first of two racing ends wins before anything is written. `state` is what everybody sees; it follows the
store's commit.
"""

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.handles.question import Question
from keephold.handles.state import Failure, Outcome, PendingState, Progress, Running, State, Stopped, Waiting, name
from keephold.store.base import Kind, Record

__all__ = ["Handle", "HandleInfo", "OnStop", "Progress", "Watcher", "info_in"]

if TYPE_CHECKING:
    from keephold.handles.gate import Ticket
    from keephold.handles.output import Output
    from keephold.tools.base import Tool
    from keephold.tools.call import FileDiff
    from keephold.tools.run import Run


class Watcher:
    """Receives calls about a handle; subclasses override the methods they need.

    With `wants_reading = True`, programs are asked whether they read their input (C4). With `awaits = True`, it stands
    for an `await`, of this process or another one (Q3).
    """

    __slots__ = ()

    def stopped(self, handle: "Handle") -> None:
        """The handle has stopped. Called once."""

    def started(self, handle: "Handle") -> None:
        """The handle was queued and runs now."""

    def parked(self, handle: "Handle") -> None:
        """The handle's tool has returned, and it waits for its completion (D9)."""

    def handle_changed(self, handle: "Handle") -> None:
        """The handle may have become blocked on the caller (A6)."""

    def printed(self, handle: "Handle") -> None:
        """The handle's output has grown."""

    def has_printed(self, handle: "Handle", total: int) -> None:
        """Another process runs the handle, whose output has that size: some of it may still be on its way."""

    def became_ready(self, handle: "Handle") -> None:
        """The handle has printed the line that its tool's `ready` describes (A9)."""

    def released(self, handle: "Handle") -> None:
        """This process runs the handle no more: another one takes it over (R6)."""

    def progressed(self, handle: "Handle") -> None:
        """The handle has reported its progress."""

    def showed(self, handle: "Handle", diff: "FileDiff") -> None:
        """The handle has shown a change of a file."""


class OnStop(Watcher):
    """A watcher that is called only when the handle stops."""

    __slots__ = ("_then",)

    def __init__(self, then: "Callable[[Handle], None]") -> None:
        self._then = then

    def stopped(self, handle: "Handle") -> None:
        self._then(handle)


class Handle:
    """One call. Slots that most handles never need stay None: a hundred thousand of these may live at once."""

    __slots__ = (
        "asks_caller", "attempt", "call_id", "conversation", "cursor", "decided", "driven_since", "driver", "fence",
        "id", "kind", "lane", "lingering", "metadata", "next_attempt_at", "output", "owner", "parking", "priority",
        "progress", "reading", "ready_attempt", "run", "state", "stateful", "ticket", "tool", "turn", "uid",
        "unwritten", "watchers",
    )  # fmt: skip
    decided: State
    state: State

    def __init__(self, record: Record, tool: "Tool") -> None:
        """Without the output and progress of the record, which a registry adds."""
        self.uid = record.uid
        self.tool = tool
        self.kind = record.kind
        self.conversation = record.conversation
        self.turn = record.turn
        self.call_id = record.call_id
        self.become(record)
        self.cursor = 0
        self.output: Output | None = None
        self.progress: Progress | None = None
        self.reading = False
        self.asks_caller = False
        self.driver: Literal["person"] | None = None
        self.driven_since: float | None = None
        """Since when a user drives it in this process."""
        self.lingering = False
        self.run: Run | None = None
        self.lane: Ticket | None = None
        self.ticket: Ticket | None = None
        self.watchers: list[Watcher] | None = None
        self.unwritten: Record | None = None
        """The record that must be written before any change of the handle: a short call is written when it stops."""

    def become(self, record: Record) -> None:
        """Take what the store knows of the handle, except for its output and progress."""
        self.settle(record.state)
        self.id, self.stateful = record.id, record.stateful
        self.owner, self.fence, self.attempt = record.owner, record.fence, record.attempt
        self.next_attempt_at, self.parking = record.next_attempt_at, record.parking
        self.metadata, self.priority = record.metadata, record.priority
        self.ready_attempt = record.ready  # 0: none has become ready (A9)

    def decide(self, state: State) -> None:
        """Set the decided state; the store is yet to confirm it. Nothing else sets it."""
        self.decided = state

    def settle(self, state: State) -> None:
        """Set both states: this one is in the store, or will be registered with the handle."""
        self.decide(state)
        self.state = state

    def __repr__(self) -> str:
        return f"<Handle {self.id} {self.tool.name} {name(self.state)}>"

    @property
    def active(self) -> bool:
        """Whether the handle has not visibly stopped: its id is taken (S6)."""
        return not isinstance(self.state, Stopped)

    @property
    def ready(self) -> bool:
        """Whether what runs now has printed the line that the tool's `ready` describes (A9)."""
        return self.ready_attempt == self.attempt and not isinstance(self.state, Stopped)

    @property
    def parked(self) -> bool:
        """Whether the handle has no owner and waits for its completion from outside (D9)."""
        return self.parking is not None and self.owner is None and not isinstance(self.state, Stopped)

    @property
    def withheld(self) -> bool:
        """Whether approval of the handle's result is pending: until then nothing new of it is shown (P5)."""
        return self.run is not None and self.run.delivering

    def watch(self, watcher: Watcher) -> None:
        """Call the watcher when the handle stops: at once if it has."""
        if not self.active:
            watcher.stopped(self)
        elif self.watchers is None:
            self.watchers = [watcher]
        else:
            self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        if self.watchers is not None and watcher in self.watchers:
            self.watchers.remove(watcher)

    def blocked_on_caller(self, already_handled: Container[str] = ()) -> bool:
        """Whether only the caller can unblock the handle (A6): by an answer, by input, or by unblocking the one it
        queues behind.

        `already_handled` has the uids of handles that other calls of the batch deal with: those do not count as
        blocked.
        """
        return self.waits_for_caller(already_handled) or (
            self.uid not in already_handled and self.behind(already_handled) is not None
        )

    def waits_for_caller(self, already_handled: Container[str] = ()) -> bool:
        """Whether the handle itself waits for the caller's answer or input."""
        state = self.state
        if self.uid in already_handled or self.driver is not None:
            return False
        return self.reading if isinstance(state, Running) else self.asks_caller and isinstance(state, Waiting)

    def behind(self, already_handled: Container[str] = ()) -> "Handle | None":
        """Return the handle blocked on the caller that this pending one queues behind, if there is one."""
        ticket = self.queueing
        return ticket.stuck_behind(already_handled) if ticket is not None else None

    @property
    def queueing(self) -> "Ticket | None":
        """The ticket with which the handle queues, if it does."""
        for ticket in (self.lane, self.ticket):
            if ticket is not None and not ticket.held:
                return ticket
        return None

    def waits_for(self) -> "list[tuple[str, list[Handle]]]":
        """Return the names that the handle queues for: of its lane, or of resources and slots, each with the handles in
        front of it."""
        ticket = self.queueing
        return [] if ticket is None else ticket.waits_for()

    def in_front_of(self) -> "list[Handle]":
        """Return the handles that cannot start before this one leaves, or may have to wait for it: the next first."""
        found: dict[str, Handle] = {}
        for ticket in (self.lane, self.ticket):
            for line, place in ticket.holds_up() if ticket is not None else ():
                if line.full or line.strict:
                    found |= {queued.handle.uid: queued.handle for queued in line.queue[place:]}
        return list(found.values())

    def _deadline(self) -> float | None:
        state, secs = self.state, self.tool.timeout_secs
        if self.parked and self.parking is not None:
            return self.parking.deadline
        if self.run is not None:
            return self.run.deadline
        return None if secs is None or isinstance(state, PendingState | Stopped) else state.started + secs

    def info(self) -> "HandleInfo":
        """Return a snapshot of what is visible now."""
        return info_in(
            self,
            tool=self.tool.name,
            parked=self.parked,
            ready=self.ready,
            deadline=self._deadline(),
            output_bytes=self.output.total if self.output is not None else 0,
            lingering=self.lingering,
            driver=self.driver,
        )


class HandleInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A handle as it was visible at one moment. It never changes."""

    id: str
    uid: str
    tool: str
    kind: Kind
    conversation: str
    turn: str
    state: str
    created: float
    started: float | None = None
    stopped: float | None = None
    question: Question | None = None
    outcome: Outcome | None = None
    ended_by: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    progress: Progress | None = None
    metadata: dict[str, Any] = {}
    priority: int = 0
    attempt: int = 1
    deadline: float | None = None
    """When the tool's timeout, or a parked call's deadline, will end it; None while the user is asked."""
    next_attempt_at: float | None = None
    """When the call is tried again, between two attempts."""
    parked: bool = False
    """Whether the call waits for its completion from outside."""
    ready: bool = False
    """Whether the call runs and has printed the line that its tool's `ready` describes."""
    output_bytes: int = 0
    lingering: bool = False
    """Stopped, but a thread or task of the call has not ended yet; it still holds its lane and resources."""

    driver: Literal["person"] | None = None
    """Who controls a terminal: `person` while a user is attached, None for the model."""

    @property
    def ok(self) -> bool:
        """Stopped, and not with an error."""
        return self.outcome is not None and not isinstance(self.outcome, Failure)


def info_in(handle: Handle | Record, **known: Any) -> HandleInfo:
    """Describe a handle; `known` are the fields that it and a stored one have in different forms."""
    state = handle.state
    stopped = state if isinstance(state, Stopped) else None
    return HandleInfo(
        id=handle.id,
        uid=handle.uid,
        kind=handle.kind,
        conversation=handle.conversation,
        turn=handle.turn,
        state=name(state),
        created=state.created,
        started=None if isinstance(state, PendingState) else state.started,
        stopped=stopped.stopped if stopped else None,
        question=state.question if isinstance(state, Waiting) else None,
        outcome=stopped.outcome if stopped else None,
        ended_by=stopped.ended_by if stopped else None,
        exit_code=stopped.exit_code if stopped else None,
        signal=stopped.signal if stopped else None,
        progress=handle.progress,
        metadata=handle.metadata or {},
        priority=handle.priority,
        attempt=handle.attempt,
        next_attempt_at=handle.next_attempt_at,
        **known,
    )
