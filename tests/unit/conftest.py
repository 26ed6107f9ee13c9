"""What the tests of parts share."""

import math
from collections.abc import Iterator

import pytest

from keephold.store.sqlite import writer


@pytest.fixture(params=["loop", "thread"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Who writes: the loop's thread whenever it may, or the writer's alone."""
    longest = math.inf if request.param == "loop" else -1.0
    monkeypatch.setattr(writer, "QUICK", longest)
    monkeypatch.setattr(writer, "MOMENT", longest)
    yield request.param
