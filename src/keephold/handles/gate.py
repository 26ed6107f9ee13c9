"""Queues for running: resources that exclude each other, and slots that are limited in number (B4, B5, W11).

A ticket takes all of its names at once or none. Queues are ordered by priority, then by arrival; a ticket is passed
only by tickets that share none of its resources. Slots reserve nothing: a ticket that waits for something else lets the
next one have the slot, or one call that waits for a file would hold up every call of the runtime. The serial lane is
such a name too, in a gate of its own: it keeps emitted order, and a handle passes it before it queues for anything
else, so two orders can never block each other.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keephold.handles.handle import Handle

RESOURCE = "resource:"
"""The prefix of a resource's name; any other name is one of slots."""

LANE_POST = "lane:"
"""The prefix of the post that says which handle has a serial lane in the store."""


class GateQueue:
    """One name: its holders and its queue. A resource's queue is `strict`: nobody passes the first."""

    __slots__ = ("capacity", "holders", "queue", "strict")

    def __init__(self, name: str, capacity: int) -> None:
        self.strict = name.startswith(RESOURCE)
        self.capacity = capacity
        self.holders: list[Ticket] = []
        self.queue: list[Ticket] = []

    @property
    def full(self) -> bool:
        return len(self.holders) >= self.capacity


class Ticket:
    """A handle's position in a gate, for names each with its capacity. `start` is called once, when it has all of
    them."""

    __slots__ = ("gate", "handle", "held", "names", "priority", "rank", "start")

    def __init__(
        self, gate: "Gate", handle: "Handle", names: Mapping[str, int], start: Callable[[], None], *, priority: int = 0
    ) -> None:
        self.gate = gate
        self.handle = handle
        self.names = names
        self.start = start
        self.priority = priority
        self.rank = (0, 0)
        self.held = False

    def __lt__(self, other: "Ticket") -> bool:
        return self.rank < other.rank

    def lines(self) -> list[GateQueue]:
        return [self.gate.lines[name] for name in self.names]

    def in_front(self) -> "list[list[Handle]]":
        """Return groups of handles that hold this ticket up; one handle of each group must leave first."""
        if self.held:
            return []
        groups = []
        for line in self.lines():
            if line.full:
                groups.append([ticket.handle for ticket in line.holders])
            # Nobody passes the ticket before it in the queue for a resource, and that one may be held up by something
            # else.
            place = bisect_left(line.queue, self) if line.strict else 0
            if place:
                groups.append([line.queue[place - 1].handle])
        return groups

    def waits_for(self) -> "list[tuple[str, list[Handle]]]":
        """Return the names that this ticket waits for, each with the handles in front of it: the holders, and for a
        resource those that queued before it."""
        found = []
        for name, line in zip(() if self.held else self.names, self.lines(), strict=False):
            place = bisect_left(line.queue, self) if line.strict else 0
            if line.full or place:
                holders = line.holders if line.full else []
                found.append((name, [ticket.handle for ticket in (*holders, *line.queue[:place])]))
        return found

    def holds_up(self) -> list[tuple[GateQueue, int]]:
        """Return queues and positions in them that this ticket holds up: by what it holds, or by being first for a
        resource."""
        if self.held:
            return [(line, 0) for line in self.lines()]
        return [(line, bisect_right(line.queue, self)) for line in self.lines() if line.strict]

    @property
    def ready(self) -> bool:
        """Whether it could be served now."""
        return not any(line.full or (line.strict and line.queue[0] is not self) for line in self.lines())

    def stuck_elsewhere(self, already_handled: Container[str]) -> "Handle | None":
        """Return the handle of another process that waits for the caller and holds this ticket up."""
        return None

    def stuck_behind(self, already_handled: Container[str] = ()) -> "Handle | None":
        """Return a handle that waits for the caller and without which this ticket cannot be served (A6)."""
        seen, todo, looked = {self}, [self], set[GateQueue]()
        for ticket in todo:  # a loop that visits each ticket and queue once: queues may be long
            if (stuck := ticket.stuck_elsewhere(already_handled)) is not None:
                return stuck
            for line in ticket.lines():
                if line.full and line not in looked:
                    looked.add(line)
                    holders = [each.handle for each in line.holders]
                    if all(handle.waits_for_caller(already_handled) for handle in holders):
                        return holders[0]
                    queueing = (
                        holders[0].queueing if holders[0].uid not in already_handled else None
                    )  # of the serial lane
                    if queueing is not None and queueing not in seen:
                        seen.add(queueing)
                        todo.append(queueing)
                # Nobody passes the tickets before it in the queue for a resource, and each may be held up by something
                # else.
                for place in range(bisect_left(line.queue, ticket) - 1 if line.strict else -1, -1, -1):
                    before = line.queue[place]
                    if before in seen:
                        break
                    seen.add(before)
                    if len(before.names) > 1 and before.handle.uid not in already_handled:
                        todo.append(before)
        return None


class Gate:
    """All queues of one kind."""

    def __init__(self) -> None:
        self.lines: dict[str, GateQueue] = {}
        self._arrivals = 0
        self._freed: deque[str] = deque()
        self._serving = False

    def enter(self, ticket: Ticket) -> None:
        """Queue the ticket. Its `start` runs before this returns, or when a `leave` makes room."""
        self._arrivals += 1
        ticket.rank = (-ticket.priority, self._arrivals)
        grown = False
        for name, capacity in ticket.names.items():
            line = self.lines.setdefault(name, GateQueue(name, capacity))
            grown = grown or capacity > line.capacity
            line.capacity = capacity  # a reloaded configuration may have changed the capacity
            insort(line.queue, ticket)
        if grown or ticket.ready:
            self._serve(ticket.names)

    def take(self, ticket: Ticket) -> None:
        """Hold the names at once, beside their holders: for a call that keeps names it had already."""
        ticket.held = True
        for name, capacity in ticket.names.items():
            self.lines.setdefault(name, GateQueue(name, capacity)).holders.append(ticket)

    def rank(self, ticket: Ticket, priority: int) -> None:
        """Change the priority of a queued ticket; among equals it keeps its place by arrival."""
        if ticket.held or ticket.priority == priority:
            return
        for line in ticket.lines():
            line.queue.remove(ticket)
        ticket.priority, ticket.rank = priority, (-priority, ticket.rank[1])
        for line in ticket.lines():
            insort(line.queue, ticket)
        self._serve(ticket.names)

    def leave(self, ticket: Ticket) -> None:
        """Release what the ticket holds, or leave the queues. Calling it twice is harmless."""
        freed = []
        for name in ticket.names:
            line = self.lines.get(name)
            members = [] if line is None else line.holders if ticket.held else line.queue
            if line is None or ticket not in members:
                continue
            # Nobody waited for a slot while some were free, so a long queue need not be searched.
            if line.strict or line.full:
                freed.append(name)
            members.remove(ticket)
            if not line.queue and not line.holders:
                del self.lines[name]
        self._serve(freed)

    def _serve(self, names: Iterable[str]) -> None:
        # A start may end at once and leave again: the loop below serves what it frees, without recursion.
        self._freed.extend(names)
        if self._serving:
            return
        self._serving = True
        try:
            while self._freed:
                self._serve_line(self._freed.popleft())
        finally:
            self._serving = False

    def _serve_line(self, name: str) -> None:
        line = self.lines.get(name)
        while line is not None and not line.full:
            first = line.queue[:1] if line.strict else line.queue
            ticket = next((each for each in first if each.ready), None)
            if ticket is None:
                return
            ticket.held = True
            for other in ticket.lines():
                other.queue.remove(ticket)
                other.holders.append(ticket)
            ticket.start()
