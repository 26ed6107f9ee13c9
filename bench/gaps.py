"""How a difference is measured: the raw thing and ours in turns of a few, so that both see the same disk.

The time of an fsync drifts within a second, by more than the difference measured here. So a round is many short turns
of each; its figure is the difference of the two medians. The result is the median of the rounds, with their spread.
"""

import gc
import statistics
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

from bench.rounds import Plan, Row, seconds

TURN = 20
"""How many of each in a turn."""

Times = list[float]
Turn = Callable[[Times], Awaitable[None]]
"""Does it `TURN` times and appends what each took, in seconds."""


async def alternate(plan: Plan, sides: Sequence[Turn]) -> list[tuple[float, ...]]:
    """Of each round the median of each side."""
    rounds = []
    for number in range(-1, plan.rounds):  # the first is to warm up
        gc.collect()
        times: list[Times] = [[] for _ in sides]
        until = perf_counter() + (plan.seconds * len(sides) if number >= 0 else plan.seconds / 5)
        while perf_counter() < until:
            for side, of_side in zip(sides, times, strict=True):
                await side(of_side)
        if number >= 0:
            rounds.append(tuple(statistics.median(of_side) for of_side in times))
    return rounds


def gap(what: str, bar: float | None, pairs: Sequence[tuple[float, float]]) -> Row:
    """The row of the rounds' medians, raw and ours."""
    gaps = [ours - raw for raw, ours in pairs]
    figure = statistics.median(gaps)
    return Row(
        what=what,
        bare=seconds(statistics.median(raw for raw, _ in pairs)),
        ours=seconds(statistics.median(ours for _, ours in pairs)),
        result=f"{_signed(figure)} ({_signed(min(gaps))} to {_signed(max(gaps))})",
        bar="" if bar is None else f"≤ {_signed(bar)}",
        met=None if bar is None else figure <= bar,
    )


def figure(what: str, bar: float, rounds: Sequence[float], *, against: str = "") -> Row:
    """The row of something that has a time for a bar, and nothing to be compared with."""
    middle = statistics.median(rounds)
    return Row(
        what=what,
        bare=against,
        ours=seconds(middle),
        result=f"{seconds(middle)} ({seconds(min(rounds))}–{seconds(max(rounds))})",
        bar=f"≤ {seconds(bar)}",
        met=middle <= bar,
    )


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{seconds(abs(value))}"
