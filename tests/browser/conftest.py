"""The server under the browser, and the camera. `--update-pictures` also writes the pictures of the documentation."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.browsing import Camera
from tests.browser.workshop import CONFIG
from tests.serve.serving import Served, served


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-pictures", action="store_true", help="write docs/pictures/*.png anew")


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Served]:
    """`keephold serve` with everything there is to see."""
    with served(tmp_path, CONFIG) as server:
        yield server


@pytest.fixture
def camera(request: pytest.FixtureRequest) -> Camera:
    return Camera(bool(request.config.getoption("--update-pictures", default=False)))
