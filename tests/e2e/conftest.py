"""Turns for the tests here: `start(config)` gives one in a directory of its own, gone when the test is over."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.driver import Start, turn


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a turn with a configuration; the working directory of its tools is `tmp_path`."""
    with ExitStack() as stack:
        yield lambda config: stack.enter_context(turn(config, tmp_path))
