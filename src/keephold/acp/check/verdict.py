"""A check, and how it fails or is skipped."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from keephold.acp.check.probe import WireEntry

if TYPE_CHECKING:
    from keephold.acp.check.scenes import Scenes

Examine: TypeAlias = Callable[["Scenes"], Awaitable[None]]
Level: TypeAlias = Literal["MUST", "SHOULD"]
"""MUST: the protocol, or the extension that the agent offers, requires it. SHOULD: clients rely on it all the same."""


class Check(msgspec.Struct, frozen=True):
    """A check: its name, its topic, its level, its statement about an agent that passes, and its function."""

    name: str
    topic: str
    level: Level
    says: str
    examine: Examine


_known: list[Check] = []


def _check(level: Level, topic: str, name: str, says: str) -> Callable[[Examine], Examine]:

    def add(examine: Examine) -> Examine:
        _known.append(Check(name, topic, level, says, examine))
        return examine

    return add


must, should = partial(_check, "MUST"), partial(_check, "SHOULD")


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
