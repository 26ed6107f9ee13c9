"""How often random tests try: some of it every time, all of it with `KEEPHOLD_SOAK=1`."""

import os

import pytest

SOAK = bool(os.environ.get("KEEPHOLD_SOAK"))
soak = pytest.mark.skipif(not SOAK, reason="runs with KEEPHOLD_SOAK=1")
postgres_in_soak = pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=soak)], indirect=True)
"""For tests that take the fixture `store`, and take long on PostgreSQL."""


def tries(usual: int, *, soak: int) -> int:
    """How many examples, plays or kills a test draws."""
    return soak if SOAK else usual
