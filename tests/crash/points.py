"""Where a scene can be cut short: at each of its commits."""

from tests.crash.driver import Life
from tests.crash.scenes import SCENES
from tests.soak import SOAK

SIDES = ("before", "after")

_BEGINNING = 2
"""Commits with which every scene begins: a look for what has expired, and the turn."""


def points(rehearsal: Life) -> list[tuple[int, int]]:
    """By the run and the number in it. What all scenes have in common is left to the first of them."""
    first = 1 if rehearsal.scenes == (next(iter(SCENES)),) else _BEGINNING + 1
    return [(run.number, number) for run in rehearsal.runs for number in range(first, run.commits + 1)]


def chosen(rehearsal: Life, side: str) -> list[tuple[int, int]]:
    """The points that are tried on that side: a quarter of them, other ones on each side, and in the soak all."""
    every = points(rehearsal)
    return every if SOAK else every[2 * SIDES.index(side) :: 4] or every[-1:]


def sides(number: int) -> tuple[str, ...]:
    """The sides on which a commit is tried: one, in turn, and in the soak both."""
    return SIDES if SOAK else (SIDES[number % 2],)
