"""How a ratio is measured: alternating rounds of the bare thing and of ours, the median of the rounds' ratios.

Machines drift and others work on them. Two rounds that follow each other saw the same machine, so each pair gives a
ratio; which of the two goes first changes from pair to pair. The spread of these ratios is part of the result.
"""

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Round = Callable[[float], float]
"""Runs for about so many seconds and returns its figure: a time, in seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure."""

    rounds: int = 7
    seconds: float = 1.0


FULL = Plan()
QUICK = Plan(rounds=3, seconds=0.2)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    bare: str
    ours: str
    result: str
    bar: str
    met: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio may be at most (`time` of ours over the bare one's) or at least (`speed`)."""

    limit: float
    of: Literal["time", "speed"] = "time"

    def met(self, ratio: float) -> bool:
        return ratio <= self.limit if self.of == "time" else ratio >= self.limit

    def __str__(self) -> str:
        return f"≤ {self.limit:g} ×" if self.of == "time" else f"≥ {self.limit:g} ×"


def measure(what: str, plan: Plan, bar: Bar, bare: Round, ours: Round, unit: Callable[[float], str] | None = None) -> Row:
    """Measure both in turns. `unit` writes a round's figure; without it, as a time."""
    show = unit or seconds
    pairs = _alternate(plan, bare, ours)
    ratios = [b / a if bar.of == "time" else a / b for a, b in pairs]
    ratio = statistics.median(ratios)
    return Row(
        what=what,
        bare=show(statistics.median(a for a, _ in pairs)),
        ours=show(statistics.median(b for _, b in pairs)),
        result=f"{ratio:.2f} × ({min(ratios):.2f}–{max(ratios):.2f})",
        bar=str(bar),
        met=bar.met(ratio),
    )


def _alternate(plan: Plan, bare: Round, ours: Round) -> list[tuple[float, float]]:
    for warm_up in (bare, ours):  # imports, caches, a guard that starts with the first command
        warm_up(plan.seconds / 5)
    pairs = []
    for number in range(plan.rounds):
        first, second = (bare, ours) if number % 2 == 0 else (ours, bare)
        figures = [_round(each, plan.seconds) for each in (first, second)]
        pairs.append((figures[0], figures[1]) if number % 2 == 0 else (figures[1], figures[0]))
    return pairs


def _round(run: Round, length: float) -> float:
    gc.collect()  # nobody pays for the garbage of the round before
    return run(length)


def seconds(value: float) -> str:
    """A time, in the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.2f} {unit}"
    return f"{value * 1e6:.1f} µs"
