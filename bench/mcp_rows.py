"""Rows of the MCP table: ratios of what was measured in turns of a few (see `gaps`)."""

import statistics
from collections.abc import Sequence
from typing import Literal

from bench.rounds import Bar, Row, seconds


def ratio(
    what: str, bar: Bar | None, pairs: Sequence[tuple[float, float]], of: Literal["time", "speed"] = "time"
) -> Row:
    """The row of the rounds' medians, of what it is compared with and of ours. `of` is the bar's, if there is one."""
    speed = (of if bar is None else bar.of) == "speed"
    ratios = [bare / ours if speed else ours / bare for bare, ours in pairs]
    middle = statistics.median(ratios)
    return Row(
        what=what,
        bare=seconds(statistics.median(bare for bare, _ in pairs)),
        ours=seconds(statistics.median(ours for _, ours in pairs)),
        result=f"{middle:.2f} × ({min(ratios):.2f}–{max(ratios):.2f})",
        bar="" if bar is None else str(bar),
        met=None if bar is None else bar.met(middle),
    )


def beside(what: str, rounds: Sequence[float]) -> Row:
    """The row of a figure that explains others."""
    spread = f"{seconds(min(rounds))}–{seconds(max(rounds))}"
    return Row(what=what, bare=seconds(statistics.median(rounds)), ours="", result=f"({spread})")
