"""Durable effects promise the same on every store and on every engine."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conformance.sites import InMemory, OnStore
from tests.soak import SOAK

if TYPE_CHECKING:
    from tests.postgres import Schemas


@pytest.mark.parametrize("check", InMemory.checks())
async def test_memory(check: str) -> None:
    await InMemory().run(check)


@pytest.mark.parametrize("check", OnStore.checks())
async def test_sqlite(check: str, tmp_path: Path) -> None:
    numbers = itertools.count()
    await OnStore(lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db", tmp_path).run(check)


@pytest.fixture
def new_schema(postgres_schemas: "Schemas") -> Iterator[Callable[[], str]]:
    """Returns the URL of an empty PostgreSQL store each time."""
    with ExitStack() as schemas:
        yield lambda: schemas.enter_context(postgres_schemas.one())


@pytest.mark.slow
@pytest.mark.parametrize("check", OnStore.checks())
async def test_postgres(check: str, tmp_path: Path, new_schema: Callable[[], str]) -> None:
    await OnStore(new_schema, tmp_path).run(check)


@pytest.mark.skipif(not SOAK, reason="for the soak: the suite plays some")
@pytest.mark.parametrize("round", range(100))
async def test_more_random_programs(round: int, tmp_path: Path, new_schema: Callable[[], str]) -> None:
    numbers, seed = itertools.count(), random.randrange(2**32)
    print("seed", seed)
    await InMemory().play(seed=seed, count=50, crashes=0)
    await OnStore(lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db", tmp_path).play(seed=seed, count=20, crashes=3)
    await OnStore(new_schema, tmp_path).play(seed=seed, count=20, crashes=3)
