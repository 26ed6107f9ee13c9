"""The load test of the server, for two seconds; `make soak` runs it for a minute. Benchmarks of it run at all."""

from types import ModuleType

import pytest
from bench import serve_complete, serve_load, serve_streams
from bench.rounds import Plan


def test_a_server_under_load_makes_no_mistake_and_does_not_grow() -> None:
    """Gentler than the soak: other tests run meanwhile. How long answers take is not asked here."""
    load = serve_load.run(2.0, rate=100, streams=50)
    assert len(load.times) == 200
    assert load.wrong == []


@pytest.mark.parametrize("module", [serve_complete, serve_streams])
def test_the_benchmarks_of_the_server_run(module: ModuleType) -> None:
    assert module.run(Plan(rounds=1, seconds=0.05))
