"""A check, and how it fails or is skipped."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from keephold.acp.check.probe import WireEntry

if TYPE_CHECKING:
    from keephold.acp.check.scenes import Scenes

Examine: TypeAlias = Callable[["Scenes"], Awaitable[None]]


class Check(msgspec.Struct, frozen=True):
    """A check: its name, its topic, its statement about an agent that passes, and its function."""

    name: str
    topic: str
    says: str
    examine: Examine


_known: list[Check] = []


def check(topic: str, name: str, says: str) -> Callable[[Examine], Examine]:

    def add(examine: Examine) -> Examine:
        _known.append(Check(name, topic, says, examine))
        return examine

    return add


def checks_of(topic: str) -> list[Check]:
    """Return the checks of a topic, in the order they are written."""
    return [each for each in _known if each.topic == topic]


class Failed(Exception):
    """The agent is wrong; the messages show where."""

    def __init__(self, why: str, messages: Sequence[WireEntry | None] = ()) -> None:
        super().__init__(why)
        self.messages = tuple(entry for entry in messages if entry is not None)


class Skipped(Exception):
    """The check does not apply to this agent, or cannot tell."""
