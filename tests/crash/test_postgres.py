"""The crash tests over PostgreSQL: killed at commits, and at random moments; `make soak` tries all commits."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.crash.driver import Life, Nursery
from tests.crash.points import SIDES, points
from tests.crash.postgres_tables import prepared
from tests.crash.scenes import SCENES
from tests.soak import SOAK

if TYPE_CHECKING:
    from tests.postgres import Schemas

SAMPLE = ("steps", "parked", "batch")


@pytest.mark.parametrize("scene", SCENES if SOAK else SAMPLE)
def test_R4_killed_at_a_commit_to_postgresql(
    nursery: Nursery, tmp_path: Path, postgres_schemas: "Schemas", scene: str
) -> None:
    with postgres_schemas.one() as url:
        prepared(url)
        rehearsal = Life(nursery, tmp_path / "rehearsal", (scene,), url=url)
        rehearsal.finish()
        every = [(run, number, side) for run, number in points(rehearsal) for side in SIDES]
    chance = random.Random(scene)
    for earlier, number, side in every if SOAK else chance.sample(every, 2):
        with postgres_schemas.one() as url:
            prepared(url)
            life = Life(nursery, tmp_path / f"{earlier}-{number}-{side}", (scene,), url=url)
            for _ in range(earlier):
                life.run()
            life.run(kill=f"{side}:{number}")
            life.finish()


def test_R4_killed_at_random_moments_on_postgresql(
    nursery: Nursery, tmp_path: Path, postgres_schemas: "Schemas"
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    for number in range(100 if SOAK else 2):
        with postgres_schemas.one() as url:
            prepared(url)
            life = Life(nursery, tmp_path / str(number), tuple(SCENES), url=url)
            for _ in range(2):
                life.kill_randomly(chance, 1.5)
            life.finish()
