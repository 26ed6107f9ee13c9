"""Queues in front of running: resources that exclude each other, and slots of which there are so many (B4, B5, W11).

A ticket takes all of its names at once or none. Lines are ordered by priority, then by arrival; a ticket is passed only
by tickets that share none of its names. The serial lane is such a name too, in a gate of its own: it keeps emitted
order, and a handle passes it before it queues for anything else, so two orders can never block each other.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.handles.handle import Handle


class Line:
    """One name: who holds it, and who queues for it."""

    __slots__ = ("capacity", "holders", "queue")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.holders: list[Ticket] = []
        self.queue: list[Ticket] = []

    @property
    def full(self) -> bool:
        return len(self.holders) >= self.capacity


class Ticket:
    """A handle's place in a gate, for names each with its capacity. `start` is called once, when all are its own."""

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

    def lines(self) -> list[Line]:
        return [self.gate.lines[name] for name in self.names]

    def in_front(self) -> "list[list[Handle]]":
        """Groups of handles that hold this ticket up; one handle of each group must go before it can."""
        if self.held:
            return []
        groups = []
        for line in self.lines():
            if line.full:
                groups.append([ticket.handle for ticket in line.holders])
            elif line.queue[0] is not self:
                groups.append([line.queue[0].handle])
        return groups

    def stuck_behind(self, spare: Container[str] = ()) -> "Handle | None":
        """A handle blocked on the caller without which this ticket cannot be served (A6)."""
        for group in self.in_front():
            if all(handle.blocked_on_caller(spare) for handle in group):
                return group[0]
        return None


class Gate:
    """All lines of one kind."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self._arrivals = 0
        self._freed: deque[str] = deque()
        self._serving = False

    def enter(self, ticket: Ticket) -> None:
        """Queue. The ticket's `start` runs before this returns, or when a `leave` makes room."""
        self._arrivals += 1
        ticket.rank = (-ticket.priority, self._arrivals)
        for name, capacity in ticket.names.items():
            insort(self.lines.setdefault(name, Line(capacity)).queue, ticket)
        self._serve(ticket.names)

    def leave(self, ticket: Ticket) -> None:
        """Give back what the ticket holds, or leave the queues. Harmless when done twice."""
        for name in ticket.names:
            line = self.lines.get(name)
            if line is None:
                continue
            members = line.holders if ticket.held else line.queue
            if ticket in members:
                members.remove(ticket)
        self._serve(ticket.names)

    def _serve(self, names: Mapping[str, int]) -> None:
        # A start may end at once and leave again: what it frees is served by the loop below, not by recursion.
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
        while line is not None and line.queue and not line.full:
            ticket = line.queue[0]
            lines = ticket.lines()
            if any(other.full or other.queue[0] is not ticket for other in lines):
                return
            ticket.held = True
            for other in lines:
                other.queue.pop(0)
                other.holders.append(ticket)
            self._freed.extend(ticket.names)  # the next in these lines may be served too, if there is room
            ticket.start()
        if line is not None and not line.queue and not line.holders:
            self.lines.pop(name, None)
