"""The model's batches: calls, lanes, and what a conversation knows (B1, B3)."""

from dataclasses import dataclass, field

from tests.simulation.expect import Reply
from tests.simulation.model import GRACE, SETTLE, SETTLE_MAX, Handle, Wait
from tests.simulation.ops import Await, Call, Once, Spawn, kind_of


@dataclass(eq=False)
class Slot:
    """A call, and how far it is."""

    call: Call
    named: Handle | None = None
    started: bool = False
    reply: Reply | None = None
    wait: Wait | None = None
    settles_from: float | None = None
    heard: float | None = None
    """While its reply settles (C4): the last output."""
    until: Handle | None = None
    """Answered when this handle has stopped."""
    shown: int = 0
    """How much of the handle's output its reply showed (C5)."""
    made: Handle | None = None
    """The handle of a spawn or a one-shot call."""
    after: "Slot | None" = None
    """The call before it that names the same handle."""

    @property
    def lane(self) -> str:
        if isinstance(self.call, Await):
            return "synchronising"
        return "serial" if isinstance(self.call, Spawn | Once) and kind_of(self.call.id).serial else "parallel"

    @property
    def late(self) -> bool:
        """It follows a serial spawn, so the serial lane does not wait for it."""
        return self.after is not None and (self.after.lane == "serial" or self.after.late)

    @property
    def settled_at(self) -> float:
        assert self.settles_from is not None
        latest = self.settles_from + SETTLE_MAX
        return latest if self.heard is None else min(self.heard + SETTLE, latest)


@dataclass(eq=False)
class Batch:
    slots: list[Slot]
    beginning: bool = True
    """Calls whose turn has come begin at once; later on, that takes a pass of the loop,"""
    going_on: bool = False
    """which is under way."""
    before: dict[Handle, str] = field(default_factory=dict)
    """The states of all handles when it began."""
    cancelled_at: float | None = None
    closed_at: float | None = None

    @property
    def open(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.reply is None]

    @property
    def grace_ends(self) -> float:
        return float("inf") if self.cancelled_at is None else self.cancelled_at + GRACE

    def named(self) -> set[Handle]:
        return {slot.named for slot in self.open if slot.named is not None}

    def ready(self, slot: Slot) -> bool:
        """B3."""
        if slot.started or (slot.after is not None and slot.after.reply is None):
            return False
        if slot.lane != "serial":
            return True
        before = self.slots[: self.slots.index(slot)]
        first = [s for s in self.slots if s.lane == "parallel" and not s.late]
        return all(s.reply is not None for s in [*first, *(s for s in before if s.lane == "serial")])


@dataclass(eq=False)
class Conversation:
    names: dict[str, Handle] = field(default_factory=dict)
    calls: dict[str, Handle] = field(default_factory=dict)
    """One-shot calls, by the name the script has for them."""
    batch: Batch | None = None
    closing: str | None = None
    told: bool = False
    all_told: bool = False
    """Whether its handles are being told that the turn ends, and have been."""
    ended: Reply = field(default_factory=lambda: Reply(-1.0, [None]))
    since: float = -1.0
    """When its last batch or turn was over."""

    @property
    def ends_now(self) -> bool:
        """Its last batch is answered; its handles are told next."""
        return self.closing is not None and self.batch is None and not self.told


def chain(slots: list[Slot]) -> None:
    """Calls that name one handle run in emitted order, its spawn first (B3)."""
    last: dict[str, Slot] = {}
    for slot in sorted(slots, key=lambda slot: not isinstance(slot.call, Spawn)):
        if not isinstance(slot.call, Await | Once):
            slot.after = last.get(slot.call.id)
            last[slot.call.id] = slot
