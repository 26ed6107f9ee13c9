"""Killed at every commit: before it is written, or after it is and before anyone has been told (R4, S2, E2, E4).

Each scene is played once to count its transactions. Then, for each of them, a child dies just there; every third time
the next one dies, too, at one of its first. The last one comes to the end, and nothing is lost, changed or done twice.
Every second commit is tried, on one side in turn; `make soak` tries both sides of each.
"""

import shutil
from pathlib import Path

import pytest
from tests.crash.driver import Life, Nursery
from tests.crash.points import chosen
from tests.crash.scenes import SCENES

OTHER = {"before": "after", "after": "before"}


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("scene", SCENES)
def test_R4_killed_at_every_commit(nursery: Nursery, tmp_path: Path, scene: str, side: str) -> None:
    rehearsal = Life(nursery, tmp_path / "rehearsal", (scene,))
    rehearsal.finish()
    for earlier, number in chosen(rehearsal, side):
        for hit in range(number, 0, -1):  # several commits may be one transaction: then this life has fewer of them
            life = Life(nursery, tmp_path / f"{earlier}-{number}-{hit}", (scene,))
            for _ in range(earlier):
                life.run()
            life.run(kill=f"{side}:{hit}")
            died = life.deaths
            if hit % 3 == 1:
                life.run(kill=f"{OTHER[side]}:{1 + hit % 5}")
            life.finish()
            shutil.rmtree(life.directory)
            if died:
                break
        assert died, f"commit {number} of run {earlier}"
