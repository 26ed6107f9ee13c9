"""What every client sees: tools, results, errors, news, order (M1, M5, W7, C9)."""

import asyncio
from pathlib import Path

import pytest
from tests.mcp.clients import ERAS, connected, read, text, texts
from tests.mcp.serving import serving


@pytest.mark.parametrize("era", ERAS)
async def test_M5_a_spawn_and_an_await_sent_at_once_find_each_other(era: str, tmp_path: Path) -> None:
    async with serving() as here, connected(here.url, era) as client:
        for number in range(30):
            gate = tmp_path / f"{number}"
            gate.touch()
            spawned, awaited = await asyncio.gather(
                client.call_tool("work", {"action": "spawn", "id": f"w{number}", "gate": str(gate)}),
                client.call_tool("await", {"all": [f"w{number}"], "timeout_secs": 10}),
            )
            assert read(spawned)["id"] == f"w{number}"
            assert not awaited.is_error, texts(awaited)
            assert read(awaited)["completed"][0]["result"] == f"worked at {number}"
        assert here.idle()
