"""Durable effects promise the same on Temporal, with a real server and real HTTP."""

import pytest

pytest.register_assert_rewrite("keephold.testing.conformance")

from tests.conformance.sites import OnTemporal  # noqa: E402
from tests.temporal import Place  # noqa: E402


@pytest.mark.parametrize("check", OnTemporal.checks())
async def test_temporal(check: str, temporal: Place) -> None:
    await OnTemporal(temporal).run(check)
