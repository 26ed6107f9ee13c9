"""What the tests of parts share."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keephold.store.sqlite import writer


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory that has nothing yet. Modules that are put there can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture(params=["loop", "thread"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Who writes: the loop's thread whenever it may, or the writer's alone."""
    longest = math.inf if request.param == "loop" else -1.0
    monkeypatch.setattr(writer, "QUICK", longest)
    monkeypatch.setattr(writer, "MOMENT", longest)
    yield request.param
