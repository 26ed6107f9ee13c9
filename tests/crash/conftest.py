from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.crash.driver import Life, NewLife, Nursery
from tests.crash.postgres_tables import prepared
from tests.soak import soak


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where the children come from that are killed."""
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=soak)])
def new_life(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[NewLife]:
    """Makes lives, on stores in files and, in the soak, in PostgreSQL."""
    with ExitStack() as stack:

        def make(directory: Path, scenes: tuple[str, ...], *, new: bool = False) -> Life:
            if request.param == "sqlite":
                return Life(nursery, directory, scenes, new=new)
            url = stack.enter_context(request.getfixturevalue("postgres_schemas").one())
            prepared(url)
            return Life(nursery, directory, scenes, url=url)

        yield make
