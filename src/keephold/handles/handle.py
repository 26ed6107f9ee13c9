"""A handle: one tool call, from its registration to the end of its retention (S4).

A handle has a *decided* and a *visible* state. Events are checked against the decided one in order of arrival, so of
two racing ends the first wins before anything is written; `state` is what everybody sees, and follows the store's
commit.
"""

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.handles.output import Output
from keephold.handles.question import Question
from keephold.handles.state import Failure, Outcome, Pending, Progress, Running, State, Stopped, Waiting, name
from keephold.store.base import Kind, Parking, Record

__all__ = ["Handle", "HandleInfo", "OnStop", "Progress", "Watcher", "info_in"]

if TYPE_CHECKING:
    from keephold.handles.gate import Ticket
    from keephold.tools.base import Tool
    from keephold.tools.call import FileDiff
    from keephold.tools.run import Run


class Watcher:
    """Something that wants to hear of a handle; each kind of watcher says what of.

    One with `wants_reading = True` has programs asked whether they read their input (C4).
    """

    __slots__ = ()

    def stopped(self, handle: "Handle") -> None:
        """It has stopped. Told once."""

    def started(self, handle: "Handle") -> None:
        """It was queued, and runs now."""

    def parked(self, handle: "Handle") -> None:
        """Its tool has returned and it waits for its completion (D9)."""

    def handle_changed(self, handle: "Handle") -> None:
        """It may have become blocked on the caller (A6)."""

    def progressed(self, handle: "Handle") -> None:
        """It has said how far it is."""

    def showed(self, handle: "Handle", diff: "FileDiff") -> None:
        """It has shown a change of a file."""


class OnStop(Watcher):
    """A watcher that only wants to hear of the end."""

    __slots__ = ("_then",)

    def __init__(self, then: "Callable[[Handle], None]") -> None:
        self._then = then

    def stopped(self, handle: "Handle") -> None:
        self._then(handle)


class Handle:
    """One call. Slots that most handles never need stay None: a hundred thousand of these may live at once."""

    __slots__ = (
        "asks_caller", "attempt", "call_id", "conversation", "cursor", "decided", "driver", "fence", "id", "kind",
        "lane", "lingering", "metadata", "next_attempt_at", "output", "owner", "parking", "priority", "progress",
        "reading", "run", "state", "stateful", "ticket", "tool", "turn", "uid", "unwritten",
        "watchers",
    )  # fmt: skip
    decided: State
    state: State

    def __init__(
        self,
        *,
        id: str,
        uid: str,
        tool: "Tool",
        conversation: str,
        turn: str,
        call_id: str,
        stateful: bool,
        created: float,
        owner: str | None,
        priority: int = 0,
        kind: Kind = "tool",
    ) -> None:
        self.id = id
        self.uid = uid
        self.tool = tool
        self.kind: Kind = kind
        self.conversation = conversation
        self.turn = turn
        self.call_id = call_id
        self.stateful = stateful
        self.priority = priority
        self.owner = owner
        self.fence = 1
        self.attempt = 1
        self.next_attempt_at: float | None = None
        self.parking: Parking | None = None
        self.settle(Pending(created))
        self.cursor = 0
        self.output: Output | None = None
        self.progress: Progress | None = None
        self.metadata: dict[str, Any] | None = None
        self.reading = False
        self.asks_caller = False
        self.driver: Literal["person"] | None = None
        self.lingering = False
        self.run: Run | None = None
        self.lane: Ticket | None = None
        self.ticket: Ticket | None = None
        self.watchers: list[Watcher] | None = None
        self.unwritten: Record | None = None
        """What the store is to be told of it before anything else: a call that may be over at once is written then."""

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
        """Not visibly stopped: its id is taken (S6)."""
        return not isinstance(self.state, Stopped)

    @property
    def parked(self) -> bool:
        """Waits for its completion from outside: nobody runs it (D9)."""
        return self.parking is not None and self.owner is None and not isinstance(self.state, Stopped)

    @property
    def withheld(self) -> bool:
        """It has ended, and whether its result may be seen is being asked: until then nothing new of it is (P5)."""
        return self.run is not None and self.run.delivering

    def watch(self, watcher: Watcher) -> None:
        """Tell it when this stops: now, if it has."""
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
        """A6: only the caller can make it go on: by an answer, by input, or by doing so for the one it queues behind.

        `already_handled` holds the uids of handles that the caller is dealing with already: those are not blocked yet.
        """
        return self.waits_for_caller(already_handled) or (
            self.uid not in already_handled and self.behind(already_handled) is not None
        )

    def waits_for_caller(self, already_handled: Container[str] = ()) -> bool:
        """The caller's answer or input is what it waits for itself."""
        state = self.state
        if self.uid in already_handled or self.driver is not None:
            return False
        return self.reading if isinstance(state, Running) else self.asks_caller and isinstance(state, Waiting)

    def behind(self, already_handled: Container[str] = ()) -> "Handle | None":
        """The handle blocked on the caller that this pending one queues behind, if there is one."""
        ticket = self.queueing
        return ticket.stuck_behind(already_handled) if ticket is not None else None

    @property
    def queueing(self) -> "Ticket | None":
        """Where it stands in line, if it does."""
        for ticket in (self.lane, self.ticket):
            if ticket is not None and not ticket.held:
                return ticket
        return None

    def _deadline(self) -> float | None:
        state, secs = self.state, self.tool.timeout_secs
        if self.parked and self.parking is not None:
            return self.parking.deadline
        if self.run is not None:
            return self.run.deadline
        return None if secs is None or isinstance(state, Pending | Stopped) else state.started + secs

    def info(self) -> "HandleInfo":
        """A snapshot of what is visible now."""
        return info_in(
            self.state,
            id=self.id,
            uid=self.uid,
            tool=self.tool.name,
            kind=self.kind,
            conversation=self.conversation,
            turn=self.turn,
            progress=self.progress,
            metadata=self.metadata or {},
            priority=self.priority,
            attempt=self.attempt,
            next_attempt_at=self.next_attempt_at,
            parked=self.parked,
            deadline=self._deadline(),
            output_bytes=self.output.total if self.output is not None else 0,
            lingering=self.lingering,
            driver=self.driver,
        )


class HandleInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A handle as it was visible at one moment. Nothing in it changes any more."""

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
    """When its tool's timeout, or of a parked call its deadline, will end it; None while a person is waited for."""
    next_attempt_at: float | None = None
    """When it is tried again, between two attempts (R5)."""
    parked: bool = False
    """Waits for its completion from outside (D9)."""
    output_bytes: int = 0
    lingering: bool = False
    """Stopped, but a thread or task of it has not ended yet; it still holds its lane and resources."""

    driver: Literal["person"] | None = None
    """Who drives a terminal: a person who is attached to it, or None, which is the assistant."""

    @property
    def ok(self) -> bool:
        """Stopped, and not with an error."""
        return self.outcome is not None and not isinstance(self.outcome, Failure)


def info_in(state: State, **known: Any) -> HandleInfo:
    """Describe a handle in that state; `known` are the fields that do not depend on it."""
    stopped = state if isinstance(state, Stopped) else None
    return HandleInfo(
        state=name(state),
        created=state.created,
        started=None if isinstance(state, Pending) else state.started,
        stopped=stopped.stopped if stopped else None,
        question=state.question if isinstance(state, Waiting) else None,
        outcome=stopped.outcome if stopped else None,
        ended_by=stopped.ended_by if stopped else None,
        exit_code=stopped.exit_code if stopped else None,
        signal=stopped.signal if stopped else None,
        **known,
    )
