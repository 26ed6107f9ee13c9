"""The model: what the SPEC says about handles, queues and waits, in the fewest words, without a loop or a store.

Everything is worked out anew after each step: slow, and obvious. A step is done as soon as it is asked for. What
happens after that in the same instant is a list of moments; an answer may be given at any of them, so what it would
show at each is accepted (`Reply.accept`), and nothing else.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.expect import OneOf, Reply, Says
from tests.simulation.ops import TICK, Kind, Order

SETTLE, SETTLE_MAX = TICK, 1.0
"""C4, as the simulation configures it."""
GRACE, FORCE = 0.05, 5.0
"""B7's moment for a cancelled call, and when a tool that does not listen is left to linger (C7)."""
CANCELLED = Says("Tool execution cancelled.")
QUESTION = {"id": "sure", "text": "Sure?", "answer_type": "Boolean"}


class Undecided(Exception):
    """Two things happen in one pass of the loop, the SPEC leaves open in which order, and what follows depends on it.

    Two tools time out; calls of two conversations begin; a call aborts a handle that another call of its batch queues
    behind; a question is answered while a wait is being told of it. And, if commits take a while: a call is about a
    handle that another call of its batch has just changed.
    """


@dataclass(eq=False)
class Handle:
    number: int
    id: str
    conversation: int
    kind: Kind
    stateful: bool
    names: frozenset[str] = frozenset()
    state: str = "pending"
    reading: bool = False
    asking: bool = False
    deaf: bool = False
    ending: str | None = None
    """Why it was told to end, from then until it has."""
    listens: bool = False
    """It was idle when it was told to end."""
    force_at: float | None = None
    outcome: dict[str, Any] = field(default_factory=dict)
    ended_by: str | None = None
    released: bool = False
    admitted: bool = False
    """Its spawn has been begun; from then on it queues."""
    arrival: int | None = None
    """Its number in the line for resources, once it stands in it."""
    started: float | None = None
    started_in: int = -1
    """The pass of the loop in which it started."""
    output: str = ""
    cursor: int = 0
    inbox: int = 0
    told: int = -1
    """The pass of the loop in which it was last told something."""

    @property
    def stopped(self) -> bool:
        return self.state == "stopped"

    @property
    def times_out_at(self) -> float | None:
        late = self.kind.timeout is None or self.started is None or self.ending is not None
        return None if late else (self.started or 0.0) + (self.kind.timeout or 0.0)

    @property
    def idle(self) -> bool:
        """It runs and does what it is told next."""
        return self.state == "running" and not self.reading

    def entry(self) -> dict[str, Any]:
        """C3."""
        entry: dict[str, Any] = {"id": self.id, "state": self.state, **self.outcome}
        told = self.state in ("running", "waiting") or "ended_by" in self.outcome
        if told and self.output[self.cursor :]:
            entry["content"] = self.output[self.cursor :]
        if self.state == "waiting":
            entry["question"] = QUESTION
        return entry


@dataclass(eq=False)
class Wait:
    """An `await`, or a Python caller's `rt.wait`."""

    any: list[Handle]
    all: list[Handle]
    deadline: float | None
    lines: list[Handle] = field(default_factory=list)
    already_handled: Callable[[], Collection[Handle]] = tuple
    """A6: handles that unanswered calls of the same batch name."""
    values: bool = False
    """Python's form: `is_error` in each result."""
    reason: str | None = None
    reply: Reply | None = None

    @property
    def satisfied(self) -> bool:
        """A2, A9."""
        stopped = all(h.stopped for h in self.all) and (not self.any or any(h.stopped for h in self.any))
        return stopped and all(h.stopped or h.output for h in self.lines)

    def needed(self) -> list[Handle]:
        rest = [h for h in self.all if not h.stopped] + [h for h in self.lines if not h.stopped and not h.output]
        return rest if any(h.stopped for h in self.any) else rest + self.any


class Model:
    """All handles of a runtime, and whoever waits for them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handles: list[Handle] = []
        self.waits: list[Wait] = []
        self.later: list[Callable[[], None]] = []
        """What happens one pass of the loop later, in this order."""
        self._arrivals = 0
        self.pass_number = 0

    # Queues (B4, B5, W11)

    def ahead(self, handle: Handle) -> list[Handle]:
        """Who must go before this pending handle may start."""
        if not handle.admitted:
            return []
        rest = [h for h in self.handles if h is not handle and h.admitted and not h.released]
        if handle.kind.serial:  # one lane for what is spawned, one for one-shot calls
            lane = [h for h in rest if h.kind.serial and h.stateful == handle.stateful]
            before = [h for h in lane if h.conversation == handle.conversation and h.number < handle.number]
            if before:
                return before
        if handle.arrival is None:
            self._arrivals += 1
            handle.arrival = self._arrivals
        place = (-handle.kind.priority, handle.arrival)
        return [
            h
            for h in rest
            if h.names & handle.names
            and h.arrival is not None
            and (h.started is not None or (-h.kind.priority, h.arrival) < place)
        ]

    def admit(self, handle: Handle) -> None:
        handle.admitted = True
        while self.serve():
            pass

    def serve(self) -> bool:
        """Start whatever may start."""
        ready = [h for h in self.handles if h.state == "pending" and h.admitted and not self.ahead(h)]
        for handle in ready[:1]:
            handle.state, handle.started, handle.started_in = "running", self.now, self.pass_number
        return bool(ready)

    # A6

    def blocked(self, handle: Handle, already_handled: Collection[Handle] = ()) -> bool:
        """Only the caller can make it go on."""
        if handle in already_handled:
            return False
        match handle.state:
            case "running":
                return handle.reading
            case "waiting":
                return handle.asking
            case "pending":
                return any(self.blocked(h, already_handled) for h in self.ahead(handle))
        return False

    def _blocking(self, handle: Handle) -> Iterator[str]:
        """Ids of the blocked handles that a pending one is behind."""
        for other in self.ahead(handle):
            if self.blocked(other):
                yield other.id
                yield from self._blocking(other) if other.state == "pending" else ()

    # What tools and callers do to handles

    def tell(self, handle: Handle, order: Order, text: str) -> None:
        handle.told = self.pass_number
        if handle.stopped:  # it lingers, and this is its real end
            handle.released = handle.released or order in ("ok", "fail")
        elif handle.ending and not handle.deaf:
            self.stop(handle, ended(handle), handle.ending)  # it wakes, and hears that it is cancelled first
        elif order == "deaf":
            handle.deaf = True
        elif order == "emit":
            handle.output += text
        elif order in ("ask", "read") and not (handle.stateful and handle.kind.apply):  # nobody could answer
            self.finish(handle, {"result": Says(), "is_error": True})
        elif order == "ask":
            handle.state, handle.asking = "waiting", True
        elif order == "read":
            handle.reading, handle.inbox = not handle.inbox, max(0, handle.inbox - 1)
        else:
            self.finish(handle, {"result": text} if order == "ok" else {"result": text, "is_error": True})

    def finish(self, handle: Handle, outcome: dict[str, Any]) -> None:
        """A tool ends by itself; if it was told to end, that is why it ended, unless it was cancelled (B7)."""
        if handle.ending in (None, "cancel"):
            self.stop(handle, outcome, "self")
        else:
            self.stop(handle, ended(handle), handle.ending)

    def stop(self, handle: Handle, outcome: dict[str, Any], by: str | None, *, lingers: bool = False) -> None:
        """The end. The first one stands (S2)."""
        if handle.stopped:
            return
        handle.state, handle.outcome, handle.ended_by = "stopped", outcome, by
        handle.reading = handle.asking = False
        handle.released = not lingers

    def end(self, handle: Handle, why: str) -> None:
        """End it from outside (C7). What has not started never will; what runs ends when it listens."""
        if handle.stopped or handle.ending:
            return
        hear = partial(self._hear_cancel, handle)
        handle.listens = handle.idle
        handle.ending, handle.asking, handle.reading = why, False, False
        if handle.state == "pending":
            self.stop(handle, ended(handle), why)
            while self.serve():  # those behind it
                pass
        elif handle.deaf:
            handle.force_at = self.now + FORCE
        elif handle.started_in == self.pass_number:  # its task ends before it began, which takes one pass more
            self.later.append(lambda: self.later.append(hear))
        else:
            self.later.append(hear)

    def end_all(self, handles: list[Handle], why: str) -> None:
        """End several: those that queue first, and all of them before anyone starts because another one has left."""
        for handle in handles:
            if handle.state == "pending":
                handle.ending = why
                self.stop(handle, ended(handle), why)
        for handle in handles:
            self.end(handle, why)

    def linger(self, handle: Handle) -> None:
        """It did not end in time: it is stopped all the same, and keeps what it holds until it really ends (Y2)."""
        self.stop(handle, ended(handle), handle.ending, lingers=True)

    def _hear_cancel(self, handle: Handle) -> None:
        self.stop(handle, ended(handle), handle.ending)

    # Waiting (A2, A3, A5, A6)

    def wake(self) -> bool:
        """Decide every wait whose condition has come true, or whose needed handles are all blocked on the caller."""
        woken = False
        for wait in self.waits:
            if wait.reply is None:
                if wait.satisfied:
                    self._decide(wait, "satisfied")
                elif self._all_blocked(wait):
                    self._decide(wait, "needs_input")
                woken = woken or wait.reply is not None
        return woken

    def time_out(self) -> None:
        """Decide every wait that is due. What has finished by now is reported finished."""
        for wait in self.waits:
            if wait.reply is None and wait.deadline is not None and wait.deadline <= self.now + 1e-9:
                self._decide(wait, "timed_out")

    def _decide(self, wait: Wait, reason: str) -> None:
        wait.reason = reason
        wait.reply = Reply(self.now, [self.shown(wait, reason)])

    def _all_blocked(self, wait: Wait) -> bool:
        already_handled = wait.already_handled()
        return all(self.blocked(h, already_handled) for h in wait.needed())

    def note_moment(self) -> None:
        """Answers that are under way may be given now as well: they show what is so at that moment."""
        for wait in self.waits:
            if wait.reply is None or wait.reason is None:
                continue
            if wait.reason == "needs_input" and not wait.satisfied and not self._all_blocked(wait):
                raise Undecided  # it may have been answered, or have seen that it should go on
            reasons = [wait.reason]
            if wait.reason == "timed_out" and self._all_blocked(wait):
                reasons.append("needs_input")  # either may be noticed first
            for reason in reasons:
                if (shown := self.shown(wait, reason)) not in wait.reply.accept:
                    wait.reply.accept.append(shown)

    def shown(self, wait: Wait, reason: str) -> Any:
        """A3; as a call's response it comes with `is_error`."""
        named = list(dict.fromkeys([*wait.any, *wait.all, *wait.lines]))
        flag = {} if wait.satisfied else {reason: True}
        completed = [h.entry() for h in named if h.stopped]
        if wait.values:
            completed = [{"is_error": False, **entry} for entry in completed]
        pending = [self._pending(h, "needs_input" in flag) for h in named if not h.stopped]
        for handle, entry in zip([h for h in named if not h.stopped], pending, strict=True):
            if handle in wait.lines and handle.output:
                entry["matched"] = Says()
        answer = {"completed": completed, "pending": pending, **flag}
        return answer if wait.values else (False, answer)

    def _pending(self, handle: Handle, needs_input: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"id": handle.id, "state": handle.state}
        if needs_input and handle.state == "waiting":
            entry["question"] = QUESTION
        elif needs_input and handle.state == "running" and handle.reading:
            entry["waiting_for_input"] = True
        elif needs_input and handle.state == "pending" and (ids := frozenset(self._blocking(handle))):
            entry["behind"] = OneOf(ids)
        return entry


def ended(handle: Handle) -> dict[str, Any]:
    """How replies show a handle that was ended from outside (S3): an abort is never shown as a failure."""
    if handle.ending == "timeout":
        return {"result": Says(), "is_error": True, "transient": True}
    return {"result": Says(), "ended_by": handle.ending}
