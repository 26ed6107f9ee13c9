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
    """The points that are tried on that side: each is tried on one, in turn, and in the soak on both."""
    return points(rehearsal) if SOAK else points(rehearsal)[SIDES.index(side) :: 2]


def sides(number: int) -> tuple[str, ...]:
    """The sides on which a commit is tried: one, in turn, and in the soak both."""
    return SIDES if SOAK else (SIDES[number % 2],)
