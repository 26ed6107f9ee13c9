"""Places for servers, and the servers in them; none outlives its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp.serving import Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    """A directory with tools and a store; what was started in it is ended."""
    office = Office(tmp_path)
    yield office
    office.close()
