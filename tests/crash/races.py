"""Two processes resolve one key at the same moment, many times (D5). `make soak` runs the full count."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.driver import Life, Nursery


@dataclass
class Report:
    """What came of it."""

    won: list[int] = field(default_factory=lambda: [0, 0])
    """How often each of the two was first."""
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = (
            f"{sum(self.won)} keys, each resolved by two processes at once: {self.won[0]} times the first was first, "
            f"{self.won[1]} times the second; {len(self.wrong)} wrong"
        )
        return "\n".join([told, *self.wrong])


def run(life: Life, count: int) -> Report:
    """Park so many calls, then complete each of them twice."""
    report = Report()
    assert life.start(role="park", count=count).ended().code == 0, str(life)
    keys = [told["key"] for told in life.told if told["kind"] == "key"]
    life.runs.clear()
    two = [life.start(role="resolve", keys=keys, place=place) for place in range(2)]
    for child in two:
        assert child.ended().code == 0, str(life)
    raced = [next(told["came_to"] for told in child.reports if told["kind"] == "raced") for child in two]
    for came_to in zip(*raced, strict=True):
        (first, winner), second = sorted(came_to)
        if (first, second) == ("accepted", ["already_resolved", winner]):
            report.won[winner] += 1
        else:
            report.wrong.append(str(came_to))
    return report


def soak(count: int) -> Report:
    """The same, with everything it needs."""
    with tempfile.TemporaryDirectory() as directory, Nursery() as nursery:
        return run(Life(nursery, Path(directory), ()), count)
