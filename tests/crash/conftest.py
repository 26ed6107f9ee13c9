from collections.abc import Iterator

import pytest
from tests.crash.driver import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where the children come from that are killed."""
    with Nursery() as nursery:
        yield nursery
