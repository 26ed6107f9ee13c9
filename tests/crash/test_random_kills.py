"""Thirty kills at random moments; `make soak` does a thousand."""

import random

import pytest
from tests.crash import kills


@pytest.mark.parametrize("half", [1, 2])
def test_R4_killed_at_random_moments(half: int) -> None:
    report = kills.run(15, random.SystemRandom().randrange(2**32), workers=1)
    print(report)  # with the seed: python -m tests.crash.kills 15 SEED
    assert not report.wrong
    assert report.kills >= 15
    assert report.told > report.kills
