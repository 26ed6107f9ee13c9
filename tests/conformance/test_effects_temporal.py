"""Durable effects promise the same on Temporal, with a real server and real HTTP."""

import logging

import pytest

pytest.register_assert_rewrite("keephold.testing.conformance")

from tests.conformance.sites import OnTemporal  # noqa: E402
from tests.temporal import Place  # noqa: E402


@pytest.mark.parametrize("check", OnTemporal.checks())
async def test_temporal(check: str, temporal: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):  # a traceback that pytest keeps would keep the worker's connection open
        await OnTemporal(temporal).run(check)
