"""Fifteen kills at random moments; `make soak` does a thousand."""

import random

from tests.crash import kills


def test_R4_killed_at_random_moments() -> None:
    report = kills.run(15, random.SystemRandom().randrange(2**32), workers=1)
    print(report)  # with the seed: python -m tests.crash.kills 15 SEED
    assert not report.wrong
    assert report.kills >= 15
    assert report.told > report.kills
