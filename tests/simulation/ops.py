"""The vocabulary of a simulation: what a caller may do to a runtime, and what its tools may be told to do.

A script is a list of these. The model (`model.py`) says what must come of it; the world (`world.py`) does it to a real
runtime. The first letter of a handle's id names its tool, so that every call can be written down by id alone.
"""

from dataclasses import dataclass
from typing import Any, Literal

TICK = 0.125
"""Scripts live on a grid of so many seconds, and so does C4's settle time: much happens in one and the same instant."""
MOMENT = 2.0**-20
"""Long enough for everything that is under way to be over, too short to be of the next tick. Exact as a float."""


@dataclass(frozen=True)
class Kind:
    """A tool, as far as it matters to the order of things."""

    tool: str
    apply: bool = False
    serial: bool = False
    locks: bool = False
    priority: int = 0
    timeout: float | None = None
    denied: bool = False


KINDS = {
    "w": Kind("work"),
    "c": Kind("chat", apply=True),
    "l": Kind("line", serial=True),
    "d": Kind("desk", apply=True, serial=True),
    "k": Kind("lock", locks=True),
    "v": Kind("vault", apply=True, locks=True),
    "u": Kind("urgent", locks=True, priority=1),
    "t": Kind("till", serial=True, locks=True),
    "b": Kind("brief", timeout=1.0),
    "n": Kind("never", denied=True),
}


def kind_of(id: str) -> Kind:
    return KINDS[id[0]]


# Calls of a batch


@dataclass(frozen=True)
class Spawn:
    id: str
    names: tuple[str, ...] = ()
    """The resources it locks, at most two."""
    bad: bool = False
    """Its arguments do not fit the schema."""


@dataclass(frozen=True)
class Once:
    """A one-shot call. Its id is no handle's: it is how the script names the call it tells something."""

    id: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fetch:
    id: str


@dataclass(frozen=True)
class Apply:
    id: str
    input: Any


@dataclass(frozen=True)
class Abort:
    id: str


@dataclass(frozen=True)
class Await:
    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    timeout: int | None = None
    lines: tuple[str, ...] = ()
    """Handles whose output must have a line (A9)."""


Call = Spawn | Once | Fetch | Apply | Abort | Await

# Steps of a script


@dataclass(frozen=True)
class Run:
    """A batch begins."""

    conversation: int
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Wait:
    """A Python caller waits, beside whatever the conversation's batch does."""

    conversation: int
    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    timeout: float | None = None


Order = Literal["emit", "ask", "read", "deaf", "ok", "fail"]


@dataclass(frozen=True)
class Tell:
    """A running tool is told what to do next. `deaf`: from now on it does not listen when it is cancelled."""

    conversation: int
    id: str
    order: Order


@dataclass(frozen=True)
class End:
    """The turn ends, or is cancelled, and a new one is opened as soon as it is over."""

    conversation: int
    cancel: bool = False


@dataclass(frozen=True)
class Passes:
    """Let the event loop go round so many times; no time passes."""

    count: int


@dataclass(frozen=True)
class Calm:
    """Let everything that is under way come to rest, and look at all handles."""


@dataclass(frozen=True)
class Ticks:
    """Time passes, to a point of the grid."""

    count: int


Op = Run | Wait | Tell | End | Passes | Calm | Ticks
Script = tuple[Op, ...]
