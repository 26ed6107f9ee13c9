"""One fixture server for all tests of a file: it keeps nothing that one test could disturb another with."""

from collections.abc import Iterator

import pytest
from tests.interop.foreign import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the fixture server listens."""
    with serving("tests.interop.fixture") as url:
        yield url
