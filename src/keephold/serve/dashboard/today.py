"""What has stopped today, counted by outcome and by tool, for the page of numbers.

Only spawned handles are counted. The store does that, beside the loop: nothing of them is read but how they ended.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from keephold.control.store_view import Reading
from keephold.serve.dashboard.rendering import mark

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
    outcomes: Sequence[tuple[str, int]]
    """How many ended how, in the words of `mark`: what is done, then the most frequent."""
    used: Sequence[ToolToday]
    """Those with the most handles, the first of them."""
    failing: Sequence[ToolToday]
    """Those with the most failures, the first of them; none that has not failed."""


async def today(control: Reading, now: float) -> Today:
    """What has stopped since midnight, by the clock of this machine."""
    handles, failures, outcomes = Counter[str](), Counter[str](), Counter[str]()
    for (tool, status, ended_by), count in (await control.ended(_midnight(now))).items():
        shape, word = mark({"state": "stopped", "ended_by": ended_by, "ok": status == "completed"})
        outcomes[word] += count
        handles[tool] += count
        failures[tool] += count if shape == "failed" else 0
    tools = [ToolToday(name, handles[name], failures[name]) for name in sorted(handles)]
    failing = sorted((tool for tool in tools if tool.failed), key=lambda tool: -tool.failed)
    return Today(
        stopped=handles.total(),
        outcomes=sorted(outcomes.items(), key=lambda each: (each[0] != "done", -each[1], each[0])),
        used=sorted(tools, key=lambda tool: -tool.handles)[:_TOOLS],
        failing=failing[:_TOOLS],
    )


def _midnight(now: float) -> float:
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))
