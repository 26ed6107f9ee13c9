"""Workflows that are started in the same millisecond, by clients that know nothing of each other (W12)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import stored_in
from tests.mcp.clients import connected, read
from tests.serve.application import TOKEN, application

from keephold.handles.clock import SystemClock

STEPS: list[dict[str, Any]] = [{"id": "end", "type": "transform", "config": {"expression": "'well'"}}]
MANY = 8


async def test_W12_workflows_of_one_millisecond_have_ids_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SystemClock().now()
    monkeypatch.setattr(SystemClock, "now", lambda _: now)
    async with (
        application([], stored_in(tmp_path)) as served,
        connected(f"{served.base}/mcp", token=TOKEN) as client,
    ):

        async def start() -> str:
            made = await client.call_tool("execute_workflow_async", {"workflowId": "w", "name": "W", "steps": STEPS})
            assert not made.is_error, made
            return str(read(made)["handleId"])

        ids = await asyncio.gather(*(start() for _ in range(MANY)))
    base = f"workflow_w_{int(now * 1000)}"
    assert sorted(ids) == [base, *(f"{base}_{number}" for number in range(2, MANY + 1))]
