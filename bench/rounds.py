"""How a ratio is measured: alternating rounds of the bare thing and of ours, the median of the rounds' ratios.

Machines drift and others work on them. Two rounds that follow each other saw the same machine, so each pair gives a
ratio; which of the two goes first changes from pair to pair. The spread of these ratios is part of the result.
"""

import asyncio
import gc
import statistics
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

Round = Callable[[float], float] | Callable[[float], Coroutine[Any, Any, float]]
"""Runs for about this many seconds and returns its figure: a time, in seconds. A coroutine gets a loop of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure."""

    rounds: int = 7
    seconds: float = 1.0


FULL = Plan()
QUICK = Plan(rounds=3, seconds=0.2)


@dataclass(frozen=True, slots=True)
class Bar:
    """The highest ratio (`time` of ours over the bare one's) or the lowest (`speed`) that meets the bar."""

    limit: float
    of: Literal["time", "speed"] = "time"

    def met(self, ratio: float) -> bool:
        return ratio <= self.limit if self.of == "time" else ratio >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.of == 'time' else '≥'} {self.limit:g} ×"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. A row without a bar is there to be known, and is neither met nor missed."""

    what: str
    bare: str
    ours: str
    result: str
    bar: str = ""
    met: bool | None = None


def measure(
    what: str, plan: Plan, bar: Bar | None, bare: Round, ours: Round, *, show: Callable[[float], str] | None = None
) -> Row:
    """Measure both in turns. `show` writes a round's figure; without it, as a time."""
    show = show or seconds
    pairs = _alternate(plan, bare, ours)
    speed = bar is not None and bar.of == "speed"
    ratios = [a / b if speed else b / a for a, b in pairs]
    ratio = statistics.median(ratios)
    return Row(
        what=what,
        bare=show(statistics.median(a for a, _ in pairs)),
        ours=show(statistics.median(b for _, b in pairs)),
        result=f"{ratio:.2f} × ({min(ratios):.2f}–{max(ratios):.2f})",
        bar="" if bar is None else str(bar),
        met=None if bar is None else bar.met(ratio),
    )


def added(what: str, plan: Plan, limit: float, bare: Round, ours: Round) -> Row:
    """Measure both in turns, and how many seconds ours takes more; at most `limit` meets the bar."""
    pairs = _alternate(plan, bare, ours)
    more = [b - a for a, b in pairs]
    middle = statistics.median(more)
    return Row(
        what=what,
        bare=seconds(statistics.median(a for a, _ in pairs)),
        ours=seconds(statistics.median(b for _, b in pairs)),
        result=f"+ {seconds(middle)} ({seconds(min(more))}–{seconds(max(more))})",
        bar=f"≤ + {seconds(limit)}",
        met=middle <= limit,
    )


def _alternate(plan: Plan, bare: Round, ours: Round) -> list[tuple[float, float]]:
    for warm_up in (bare, ours):  # imports and caches
        _round(warm_up, plan.seconds / 5)
    pairs = []
    for number in range(plan.rounds):
        if number % 2 == 0:
            first = _round(bare, plan.seconds)
            pairs.append((first, _round(ours, plan.seconds)))
        else:
            first = _round(ours, plan.seconds)
            pairs.append((_round(bare, plan.seconds), first))
    return pairs


def _round(run: Round, length: float) -> float:
    gc.collect()  # nobody pays for the garbage of the round before
    figure = run(length)
    return figure if isinstance(figure, float) else asyncio.run(figure)


def seconds(value: float) -> str:
    """A time, in the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.2f} {unit}"
    return f"{value * 1e6:.1f} µs"
