"""Sessions of the documentation start our programs warm."""

from collections.abc import Iterator

import pytest
from tests import warm
from tests.docs import sessions


@pytest.fixture(scope="session", autouse=True)
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    sessions.launchers.append(warm.launchers(tmp_path_factory.mktemp("launchers")))
    yield
    sessions.launchers.clear()
