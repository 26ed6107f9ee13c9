"""What has stopped today, counted by outcome and by tool, for the page of numbers.

Only spawned handles are looked at, newest first, and at most `MOST` of them: an index has them in order, so that it
costs a few pages of the list however many are stored. If there were more today, it is said since when it was counted.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.control.looking import PAGE
from holdfast.serve.dashboard.look import mark

if TYPE_CHECKING:
    from holdfast.control.control import Control

MOST = 1000
"""Handles that are looked at."""
_TOOLS = 5
"""Tools that are named."""


@dataclass(frozen=True)
class ToolToday:
    """A tool, how many handles of it have stopped, and how many of those have failed."""

    name: str
    handles: int
    failed: int


@dataclass(frozen=True)
class Today:
    """What has stopped today."""

    stopped: int
    since: float | None
    """When the first of them stopped, if there were more than were counted."""
    outcomes: Sequence[tuple[str, int]]
    """How many ended how, in the words of `mark`: what is done, then the most frequent."""
    used: Sequence[ToolToday]
    """Those with the most handles, the first of them."""
    failing: Sequence[ToolToday]
    """Those with the most failures, the first of them; none that has not failed."""


async def today(control: "Control", now: float) -> Today:
    """What has stopped since midnight, by the clock of this machine."""
    facts, more = await _stopped(control, _midnight(now))
    handles, failures = Counter[str](), Counter[str]()
    outcomes = Counter[str]()
    for fact in facts:
        shape, word = mark(fact)
        outcomes[word] += 1
        handles[fact["tool"]] += 1
        failures[fact["tool"]] += shape == "failed"
    tools = [ToolToday(name, count, failures[name]) for name, count in handles.most_common()]
    failing = sorted((tool for tool in tools if tool.failed), key=lambda tool: -tool.failed)
    return Today(
        stopped=len(facts),
        since=facts[-1]["stopped"] if more else None,
        outcomes=sorted(outcomes.items(), key=lambda each: (each[0] != "done", -each[1])),
        used=tools[:_TOOLS],
        failing=failing[:_TOOLS],
    )


async def _stopped(control: "Control", midnight: float) -> tuple[list[dict[str, Any]], bool]:
    """The handles that stopped after that, newest first, and whether there are more of them."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while len(found) < MOST:
        listed = await control.handles(state="stopped", sort="stopped", after=after, limit=PAGE)
        fresh = [fact for fact in listed["handles"] if fact["stopped"] >= midnight]
        found += fresh
        after = listed["next"]
        if after is None or len(fresh) < len(listed["handles"]):
            return found, False
        await asyncio.sleep(0)  # others have their turn between two pages
    return found, True


def _midnight(now: float) -> float:
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))
